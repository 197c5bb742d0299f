"""The rules of ALFRED's domain and its texts, written once more: what plays is tested without the engine."""

from __future__ import annotations

import re
from collections import Counter

from envsdk.envs.alfworld.games import CLEAN, COOL, HEAT, LOOK, TWO, Game
from envsdk.envs.alfworld.solver import Fact, View, listing_order, next_command

PUT = "move {} to {}"
_FACT = re.compile(r"^ +\(([^()]+)\)$", re.MULTILINE)
_TREATMENTS = {
    "clean": ("sinkbasintype", "cleanable", "isclean"),
    "heat": ("microwavetype", "heatable", "ishot"),
    "cool": ("fridgetype", "coolable", "iscool"),
}
_FLAGS = {CLEAN: "isclean", HEAT: "ishot", COOL: "iscool"}


def initial_facts(game: Game) -> set[Fact]:
    """Of the problem's `:init`, under the names that ALFWorld gives things."""
    init = game.problem[game.problem.index("(:init") : game.problem.index("(:goal")]
    facts = [tuple(fact.lower().split()) for fact in _FACT.findall(init)]
    ids = sorted({name for _, *names in facts for name in names if "_bar_" in name})
    kinds = {id: id.split("_bar_")[0] + ("basin" if "basin" in id else "") for id in ids}
    left = Counter(kinds.values())
    names = {}
    for id in ids:
        names[id] = f"{kinds[id]} {left[kinds[id]]}"
        left[kinds[id]] -= 1
    return {(predicate, tuple(names.get(name, name) for name in args)) for predicate, *args in facts}


class ToyGame:
    """A game in play, by facts alone."""

    def __init__(self, game: Game) -> None:
        self.game = game
        self.facts = initial_facts(game)
        self.seen: set[str] = set()

    @property
    def view(self) -> View:
        return View(self.facts)

    def oracle(self, *, explores: bool = False) -> str:
        return next_command(self.view, self.game.goal, put=PUT, seen=self.seen if explores else None)

    def play(self, command: str) -> bool:
        """Whether the command did something."""
        before = set(self.facts)
        view = self.view
        words = re.fullmatch(r"(go to|open|close|take|move|use|clean|heat|cool) (.+)", command)
        if words:
            verb, rest = words.groups()
            first, _, second = re.sub(r" (from|to|with) ", "|", rest).partition("|")
            self._act(view, verb, first, second)
        view = self.view
        if view.here:
            here = (place for place, location in view.location.items() if location == view.here)
            self.seen.update(place for place in here if view.is_open(place))
        return self.facts != before

    def intro(self) -> str:
        """The first observation."""
        places = sorted(self.view.location, key=listing_order)
        return (
            "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. "
            f"Looking quickly around you, you see {_listed(places)}.\n\n"
            f"Your task is to: {self.game.description}."
        )

    def tell(self, command: str) -> str:
        """Play a command; the engine's answer to it."""
        held, before = self.view.held, self.facts.copy()
        does_something = self.play(command)
        verb, _, rest = command.replace("go to", "go", 1).partition(" ")
        first, _, second = re.sub(r" (from|to|with) ", "|", rest).partition("|")
        if verb == "examine" and self.view.location.get(first) == self.view.here != "":
            return self._content(first)
        if not does_something:
            self.facts = before
            return "Nothing happens."
        match verb:
            case "go":
                return f"You arrive at {first}. {self._content(first)}"
            case "open":
                return f"You open the {first}. {self._content(first)}"
            case "close":
                return f"You close the {first}."
            case "take":
                return f"You pick up the {first} from the {second}."
            case "move":
                return f"You move the {held} to the {second}."
            case "use":
                return f"You turn on the {first}."
        return f"You {verb} the {first} using the {second}."

    def _content(self, place: str) -> str:
        view = self.view
        if not view.is_open(place):
            return f"The {place} is closed."
        inside = _listed(sorted(thing for thing, where in view.place.items() if where == place))
        if place in view.those("openable"):
            return f"The {place} is open. In it, you see {inside}."
        return f"On the {place}, you see {inside}."

    def _act(self, view: View, verb: str, first: str, second: str) -> None:
        facts = self.facts
        place = second or first
        is_here = view.location.get(place) == view.here != ""
        if verb == "go to" and first in view.location:
            facts -= {fact for fact in facts if fact[0] == "atlocation"}
            facts.add(("atlocation", ("agent1", view.location[first])))
        elif verb == "open" and is_here and first in view.those("openable"):
            facts.add(("opened", (first,)))
        elif verb == "close" and is_here:
            facts.discard(("opened", (first,)))
        elif verb == "take" and is_here and view.is_open(place) and not view.held:
            if view.place.get(first) == place and first in view.those("pickupable"):
                facts.discard(("inreceptacle", (first, place)))
                facts.add(("holds", ("agent1", first)))
        elif verb == "move" and is_here and view.is_open(place) and view.held == first:
            if (view.receptacle_type[place], view.object_type[first]) in view.fits:
                facts.discard(("holds", ("agent1", first)))
                facts.add(("inreceptacle", (first, place)))
        elif verb == "use" and view.location.get(view.place.get(first, "")) == view.here:
            if first in view.those("toggleable"):
                facts.add(("istoggled", (first,)))
        elif verb in _TREATMENTS and is_here and view.held == first:
            appliance, able, result = _TREATMENTS[verb]
            if view.receptacle_type[place] == appliance and (able, (first,)) in facts:
                facts.add((result, (first,)))

    @property
    def won(self) -> bool:
        view, goal = self.view, self.game.goal
        wanted = f"{goal.object_type.lower()}type"
        if goal.task_type == LOOK:
            lit = [
                lamp
                for lamp in view.those("istoggled")
                if view.object_type[lamp] == goal.lamp_type.lower() + "type"
            ]
            lit = [lamp for lamp in lit if view.location[view.place[lamp]] == view.here]
            return bool(lit) and view.object_type.get(view.held) == wanted
        inside = [
            place
            for thing, place in view.place.items()
            if view.object_type[thing] == wanted
            and view.receptacle_type[place] == goal.receptacle_type.lower() + "type"
            and (goal.task_type not in _FLAGS or thing in view.those(_FLAGS[goal.task_type]))
        ]
        return max(Counter(inside).values(), default=0) >= (2 if goal.task_type == TWO else 1)


def _listed(names: list[str]) -> str:
    *others, last = [f"a {name}" for name in names] or ["nothing"]
    return f"{', '.join(others)}, and {last}" if others else last
