"""Generates households: complete games of all six task types, without any data.

    game = generate_game(7, HEAT, size="small", split="train")

A game is a function of its arguments and `GENERATOR_VERSION` alone. It can always be won: the goal's object
starts in reach and somewhere else than where it belongs, and what it takes to treat it is there.

Splits share no game by construction. A floor plan (which furniture, how many of each) is held out or
not by its digest: `valid_unseen` has only such plans, the other two have none. A game (what lies where, and
the goal) is held out or not by its own: `valid_seen` has only such games, `train` none. Digests leave out
coordinates, so two games that differ in nothing but those are in the same split.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache

from envsdk.envs.alfworld.furniture import ABLE, FITS, LAMP_STANDS, LAMPS, ROOMS, SIZES, TREATMENT, Room, Size
from envsdk.envs.alfworld.games import LOOK, SPLITS, TASK_TYPES, TWO, Game, Goal
from envsdk.envs.alfworld.problem import DESCRIPTIONS, Household, Item, write_problem

GENERATOR_VERSION = 1
"""Raised when the same arguments would give another game."""

_HELD_OUT_ONE_IN = 5
_MAX_TRIES = 10_000
_RARE_SHARE = 0.4
"""Probability that a rare type of object may be in a room at all."""
_FIXTURE_SHARE = 0.5


def generate_game(seed: int, task_type: str, *, size: str = "medium", split: str = "train") -> Game:
    """The game of `seed`; ValueError for an unknown task type, size or split."""
    _check("task_type", task_type, TASK_TYPES)
    _check("size", size, tuple(SIZES))
    _check("split", split, SPLITS)
    for attempt in range(_MAX_TRIES):
        rng = random.Random(f"household/{GENERATOR_VERSION}/{seed}/{task_type}/{size}/{split}/{attempt}")
        room_name = rng.choice(rooms_for(task_type))
        plan = _floor_plan(rng, ROOMS[room_name], SIZES[size], task_type)
        if _is_held_out([room_name, *sorted(plan.items())]) != (split == "valid_unseen"):
            continue
        drawing = _Drawing(rng, room_name, plan, SIZES[size])
        goal = drawing.furnish(task_type)
        if goal is None:
            continue
        if split != "valid_unseen" and _is_held_out(drawing.content(goal)) != (split == "valid_seen"):
            continue
        return Game(
            id=f"{split}/{size}/{task_type}/{seed}",
            goal=goal,
            description=rng.choice(DESCRIPTIONS[task_type]).format(
                obj=goal.object_type.lower(),
                recep=goal.receptacle_type.lower(),
                toggle=goal.lamp_type.lower(),
            ),
            problem=write_problem(drawing.household(), goal),
        )
    raise AssertionError(f"no household for seed {seed}, {task_type}, {size}, {split}")


@cache
def rooms_for(task_type: str) -> tuple[str, ...]:
    return tuple(name for name, room in ROOMS.items() if task_type in room.task_types)


def _floor_plan(rng: random.Random, room: Room, size: Size, task_type: str) -> dict[str, int]:
    """How many of each receptacle type there are."""
    plan = {}
    for receptacle_type, furniture in room.furniture.items():
        is_needed = task_type in TREATMENT and receptacle_type == TREATMENT[task_type][1]
        if rng.random() < furniture.probability or is_needed:
            fewest = max(1, round(furniture.fewest * size.furniture_share))
            most = max(fewest, furniture.fewest, round(furniture.most * size.furniture_share))
            plan[receptacle_type] = rng.randint(fewest, most)
    return plan


class _Drawing:
    """One household while it is drawn."""

    def __init__(self, rng: random.Random, room_name: str, plan: dict[str, int], size: Size) -> None:
        self._rng = rng
        self._room_name = room_name
        self._size = size
        self._used: set[str] = set()
        self._receptacles = [
            Item(self._new_id(receptacle_type), receptacle_type)
            for receptacle_type, count in plan.items()
            for _ in range(count)
        ]
        self._types = sorted(plan)
        self._objects: list[Item] = []
        self._places: dict[str, Item] = {}
        """Receptacle by object id: the one it is in."""
        self._locations: dict[str, str] = {}
        """Places by receptacle id."""

    def furnish(self, task_type: str) -> Goal | None:
        """Choose a goal and put everything somewhere; None when this plan has no place for it."""
        rng, room = self._rng, ROOMS[self._room_name]
        pool = [*room.common, *(rare for rare in room.rare if rng.random() < _RARE_SHARE)]
        goal = self._draw_goal(task_type, pool)
        if goal is None:
            return None
        most_alike = self._size.most_alike
        num_targets = rng.randint(2, max(2, most_alike)) if task_type == TWO else rng.randint(1, most_alike)
        for _ in range(num_targets):
            self._put(goal.object_type, elsewhere_than=goal.receptacle_type)
        self._fill([other for other in pool if other != goal.object_type])
        for fixture, stands in room.fixtures.items():
            if rng.random() < _FIXTURE_SHARE:
                self._stand(fixture, stands)
        if goal.lamp_type:
            self._stand(goal.lamp_type, LAMP_STANDS)
        for receptacle in self._receptacles:
            self._locations[receptacle.id] = self._new_location()
        return goal

    def household(self) -> Household:
        return Household(
            receptacles=sorted(self._receptacles),
            objects=sorted(self._objects),
            places={thing: receptacle.id for thing, receptacle in self._places.items()},
            locations=self._locations,
            start=self._new_location(),
        )

    def content(self, goal: Goal) -> list[object]:
        """What a player can tell apart, as JSON: coordinates and which of two cabinets do not matter."""
        placed = Counter((thing.type, self._places[thing.id].type) for thing in self._objects)
        return [
            self._room_name,
            sorted(Counter(receptacle.type for receptacle in self._receptacles).items()),
            sorted(placed.items()),
            [goal.task_type, goal.object_type, goal.receptacle_type, goal.lamp_type],
        ]

    def _draw_goal(self, task_type: str, pool: Sequence[str]) -> Goal | None:
        if task_type == LOOK:
            return self._draw_look_goal(pool)
        predicate, appliance = TREATMENT.get(task_type, ("", ""))
        pairs = [
            (thing, receptacle_type)
            for thing in sorted(set(pool))
            if not predicate or thing in ABLE[predicate]
            for receptacle_type in self._types
            if thing in FITS[receptacle_type]
            and receptacle_type != appliance
            # It must be able to start somewhere else than where it is to go.
            and any(thing in FITS[other] for other in self._types if other != receptacle_type)
        ]
        if not pairs:
            return None
        # Types first, then places: else what fits in many places would be asked for most of the time.
        target = self._rng.choice(sorted({thing for thing, _ in pairs}))
        destination = self._rng.choice(sorted({place for thing, place in pairs if thing == target}))
        return Goal(task_type=task_type, object_type=target, receptacle_type=destination)

    def _draw_look_goal(self, pool: Sequence[str]) -> Goal | None:
        lamp = LAMPS[0] if self._room_name == "Bedroom" else self._rng.choice(LAMPS)
        targets = sorted({thing for thing in pool if any(thing in FITS[kind] for kind in self._types)})
        if not targets or not set(self._types) & set(LAMP_STANDS):
            return None
        return Goal(task_type=LOOK, object_type=self._rng.choice(targets), lamp_type=lamp)

    def _fill(self, types: list[str]) -> None:
        """Add other objects, a round of all types after the other, up to the size's number."""
        self._rng.shuffle(types)
        wanted = self._rng.randint(*self._size.num_objects)
        for _ in range(self._size.most_alike):
            for thing in types:
                if len(self._objects) >= wanted:
                    return
                self._put(thing)

    def _put(self, thing: str, *, elsewhere_than: str = "") -> None:
        places = [
            receptacle
            for receptacle in self._receptacles
            if thing in FITS[receptacle.type] and receptacle.type != elsewhere_than
        ]
        self._place(thing, places)

    def _stand(self, thing: str, stands: Sequence[str]) -> None:
        self._place(thing, [receptacle for receptacle in self._receptacles if receptacle.type in stands])

    def _place(self, thing: str, places: Sequence[Item]) -> None:
        if places:
            item = Item(self._new_id(thing), thing)
            self._objects.append(item)
            self._places[item.id] = self._rng.choice(places)

    def _new_id(self, type: str) -> str:
        """An AI2-THOR id: the type and where the thing is, such as `Sink|-00.50|+00.91|+01.25|SinkBasin`."""
        full, tail = type, ""
        if type.endswith("Basin"):
            full, tail = type.removesuffix("Basin"), f"|{type}"
        return self._unused(
            lambda: full + "|" + "|".join(f"{place:+06.2f}" for place in self._coordinates()) + tail
        )

    def _coordinates(self) -> Iterator[float]:
        for lowest, highest in ((-4.0, 4.0), (0.0, 2.2), (-4.0, 4.0)):
            yield round(self._rng.uniform(lowest, highest), 2)

    def _new_location(self) -> str:
        rng = self._rng
        return self._unused(
            lambda: (
                f"loc|{rng.randint(-12, 12)}|{rng.randint(-12, 12)}|{rng.randint(0, 3)}"
                f"|{rng.choice((0, 15, 30, 45, 60))}"
            )
        )

    def _unused(self, draw: Callable[[], str]) -> str:
        while True:
            name = draw()
            if name not in self._used:
                self._used.add(name)
                return name


def _is_held_out(content: Sequence[object]) -> bool:
    digest = hashlib.blake2b(json.dumps(content).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % _HELD_OUT_ONE_IN == 0


def _check(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"{name}: must be one of {', '.join(known)}, not {value!r}")
