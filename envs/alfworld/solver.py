"""What the facts of a game say about its goal: the oracle's next command, and sub-goals. Pure.

    view = View(facts)
    next_command(view, goal, put="move {} to {}")

Facts are the engine's, with the names that the game's texts use: `("inreceptacle", ("mug 1", "desk 1"))`.
Type names end in `type`, as in the domain: `mugtype`.

The oracle keeps nothing between turns: it looks at where things are now and takes the next step, so being
led astray is no matter. It works on every game of ALFWorld's, generated or official.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from envsdk.envs.alfworld.games import CLEAN, COOL, HEAT, LOOK, TWO, Goal

Fact = tuple[str, tuple[str, ...]]

TREATMENTS = {
    CLEAN: ("isclean", "clean", "sinkbasintype"),
    HEAT: ("ishot", "heat", "microwavetype"),
    COOL: ("iscool", "cool", "fridgetype"),
}
"""Treatment by task type: what the object becomes, the verb that does it, the appliance it takes."""

STAGES = {
    TWO: ("take", "place_one"),
    LOOK: ("take",),
    **{task_type: ("take", verb) for task_type, (_, verb, _) in TREATMENTS.items()},
}
"""Stages by task type: what comes before winning, in order; only `take` for those not listed."""

_PROPERTIES = frozenset(
    {"openable", "opened", "pickupable", "toggleable", "istoggled", "isclean", "ishot", "iscool"}
)
"""Predicates of one argument."""


class View:
    """The facts, indexed."""

    def __init__(self, facts: Iterable[Fact]) -> None:
        self.place: dict[str, str] = {}
        """Receptacle by object: the one it is in."""
        self.location: dict[str, str] = {}
        """Location by receptacle: where one stands to reach it."""
        self.object_type: dict[str, str] = {}
        self.receptacle_type: dict[str, str] = {}
        self.fits: set[tuple[str, str]] = set()
        """Pairs of receptacle type and object type."""
        self.here = ""
        self.held = ""
        self._properties: defaultdict[str, set[str]] = defaultdict(set)
        for predicate, names in facts:
            self._add(predicate, names)

    def _add(self, predicate: str, names: tuple[str, ...]) -> None:
        match predicate:
            case "inreceptacle":
                self.place[names[0]] = names[1]
            case "receptacleatlocation":
                self.location[names[0]] = names[1]
            case "objecttype":
                self.object_type[names[0]] = names[1]
            case "receptacletype":
                self.receptacle_type[names[0]] = names[1]
            case "cancontain":
                self.fits.add((names[0], names[1]))
            case "atlocation":
                self.here = names[1]
            case "holds":
                self.held = names[1]
            case _ if predicate in _PROPERTIES:
                self._properties[predicate].add(names[0])

    def those(self, predicate: str) -> Collection[str]:
        """What a predicate of one argument holds for."""
        return self._properties[predicate]

    def is_open(self, receptacle: str) -> bool:
        """Whether its content can be seen and reached."""
        return receptacle not in self.those("openable") or receptacle in self.those("opened")


def next_command(
    view: View,
    goal: Goal,
    *,
    put: str,
    seen: Collection[str] | None = None,
    search_order: Sequence[str] | None = None,
) -> str:
    """The next command on the way to the goal; `look` where there is no way.

    Args:
        put: The command for putting something somewhere, such as `move {} to {}`; it differs
            between games.
        seen: Receptacles whose content is known. None knows of all; else what has not been seen is looked
            for, one receptacle after the other.
        search_order: Receptacles in the order in which to look for things. When None, those come first in
            which the thing may lie, and then the order is that of the first observation.
    """
    return _Planner(view, goal, put, seen, search_order).next_command()


def reached_stages(view: View, goal: Goal) -> tuple[str, ...]:
    """Which of the goal's `STAGES` the current state shows."""
    target_type = type_name(goal.object_type)
    targets = {thing for thing, kind in view.object_type.items() if kind == target_type}
    destination = type_name(goal.receptacle_type)
    placed = {
        thing for thing in targets if view.receptacle_type.get(view.place.get(thing, "")) == destination
    }
    shown = {"take": view.held in targets or bool(placed), "place_one": bool(placed)}
    if goal.task_type in TREATMENTS:
        predicate, verb, _ = TREATMENTS[goal.task_type]
        shown[verb] = any(thing in view.those(predicate) for thing in targets)
    return tuple(stage for stage in STAGES.get(goal.task_type, ("take",)) if shown[stage])


@dataclass
class _Planner:
    view: View
    goal: Goal
    put: str
    seen: Collection[str] | None
    search_order: Sequence[str] | None

    def __post_init__(self) -> None:
        self.target_type = type_name(self.goal.object_type)
        self.destination_type = type_name(self.goal.receptacle_type)

    def next_command(self) -> str:
        view, goal = self.view, self.goal
        if view.held and view.object_type.get(view.held) != self.target_type:
            return self._get_rid_of(view.held)
        if goal.task_type == LOOK:
            return self._look()
        if goal.task_type == TWO:
            return self._place_two()
        if not view.held:
            return self._fetch(self._targets(), prefer=self._is_treated)
        if not self._is_treated(view.held):
            return self._treat(view.held)
        return self._place_at(self._destinations())

    def _look(self) -> str:
        view = self.view
        if not view.held:
            return self._fetch(self._targets())
        lamps = self._known(
            thing
            for thing in view.those("toggleable")
            if view.object_type.get(thing) == type_name(self.goal.lamp_type)
        )
        if not lamps:
            return self._search(self.goal.lamp_type)
        return self._at(view.place[lamps[0]], f"use {lamps[0]}", must_be_open=False)

    def _place_two(self) -> str:
        view = self.view
        destinations = self._destinations()
        if not destinations:
            return "look"
        count = {
            place: sum(1 for thing in self._targets() if view.place[thing] == place) for place in destinations
        }
        best = max(destinations, key=lambda place: count[place])
        if not view.held:
            return self._fetch([thing for thing in self._targets() if view.place[thing] != best])
        return self._place_at([best])

    def _treat(self, thing: str) -> str:
        _, verb, appliance_type = TREATMENTS[self.goal.task_type]
        appliances = self._receptacles_of(appliance_type)
        if not appliances:
            return "look"
        return self._at(appliances[0], f"{verb} {thing} with {appliances[0]}", must_be_open=False)

    def _is_treated(self, thing: str) -> bool:
        treatment = TREATMENTS.get(self.goal.task_type)
        return treatment is None or thing in self.view.those(treatment[0])

    def _fetch(self, things: Sequence[str], prefer: Callable[[str], bool] = lambda thing: True) -> str:
        if not things:
            return self._search(self.goal.object_type)
        thing = next(filter(prefer, things), things[0])
        place = self.view.place[thing]
        return self._at(place, f"take {thing} from {place}")

    def _get_rid_of(self, thing: str) -> str:
        view = self.view
        places = sorted(
            (place for place in view.location if self._can_hold(place, view.object_type.get(thing, ""))),
            # A second target must not be put where it is not to stay, nor a wrong thing be searched again.
            key=lambda place: (view.receptacle_type[place] == self.destination_type, self._nearness(place)),
        )
        return self._place_at(places)

    def _place_at(self, places: Sequence[str]) -> str:
        if not places:
            return "look"
        return self._at(places[0], self.put.format(self.view.held, places[0]))

    def _search(self, type: str) -> str:
        """Look into the next receptacle that has not been seen."""
        view, seen = self.view, self.seen
        if seen is None:
            return "look"
        order = self.search_order
        if order is None:
            wanted = type_name(type)
            order = sorted(
                view.location, key=lambda place: (not self._can_hold(place, wanted), listing_order(place))
            )
        unseen = [place for place in order if place not in seen]
        if not unseen:
            return "look"
        place = min(unseen, key=lambda place: view.location[place] != view.here)
        return self._at(place, f"examine {place}")

    def _at(self, place: str, command: str, *, must_be_open: bool = True) -> str:
        """`command` at `place`, or what must come before it: going there, opening it."""
        view = self.view
        if view.location[place] != view.here:
            return f"go to {place}"
        if must_be_open and not view.is_open(place):
            return f"open {place}"
        return command

    def _targets(self) -> list[str]:
        """Objects of the goal's type that can be taken, the nearest first."""
        view = self.view
        return self._known(
            thing for thing in view.those("pickupable") if view.object_type.get(thing) == self.target_type
        )

    def _known(self, things: Iterable[str]) -> list[str]:
        view, seen = self.view, self.seen
        known = [
            thing for thing in things if thing in view.place and (seen is None or view.place[thing] in seen)
        ]
        return sorted(known, key=lambda thing: (self._nearness(view.place[thing]), listing_order(thing)))

    def _destinations(self) -> list[str]:
        places = self._receptacles_of(self.destination_type)
        return [place for place in places if self._can_hold(place, self.target_type)]

    def _receptacles_of(self, type_name: str) -> list[str]:
        view = self.view
        places = (place for place, kind in view.receptacle_type.items() if kind == type_name)
        return sorted((place for place in places if place in view.location), key=self._nearness)

    def _can_hold(self, place: str, object_type: str) -> bool:
        return (self.view.receptacle_type.get(place, ""), object_type) in self.view.fits

    def _nearness(self, place: str) -> tuple[bool, tuple[str, int]]:
        return self.view.location[place] != self.view.here, listing_order(place)


def listing_order(name: str) -> tuple[str, int]:
    """Sorts names as ALFWorld lists them: by type, the highest number first."""
    type, _, number = name.rpartition(" ")
    return type, -int(number) if number.isdigit() else 0


def type_name(type: str) -> str:
    return f"{type.lower()}type"
