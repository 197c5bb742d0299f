"""What a player of a game can know so far, taken from its texts alone. Pure.

    notebook = Notebook.begin(first_observation)
    notebook = notebook.after("go to desk 1", "You arrive at desk 1. On the desk 1, you see a mug 2.")
    notebook.contents["desk 1"]     # ("mug 2",)
    notebook.view()                 # facts for `solver.next_command`
    notebook.notes()                # the same in a few words

Things are known by the names that the texts use: `mug 2`. What follows an empty line in an observation, after
the first one's, is not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from envsdk.envs.alfworld.furniture import FITS
from envsdk.envs.alfworld.games import TASK_TYPES, Goal
from envsdk.envs.alfworld.problem import DESCRIPTIONS, FIXED
from envsdk.envs.alfworld.solver import TREATMENTS, Fact, View, type_name

_NAME = re.compile(r"[a-z]+ \d+")
_ROOM = re.compile(r"Looking quickly around you, you see ([^.]*)\.")
_TASK = re.compile(r"Your task is to: ([^\n]*?)\.?(?:\n|$)")
_ARRIVAL = re.compile(r"You arrive at ([a-z]+ \d+)\.")
_CONTENT = re.compile(r"(?:On the ([a-z]+ \d+)|The ([a-z]+ \d+) is open\. In it), you see ([^.]*)\.")
_CLOSED = re.compile(r"The ([a-z]+ \d+) is closed\.|You close the ([a-z]+ \d+)\.")
_TAKEN = re.compile(r"You pick up the ([a-z]+ \d+) from the ([a-z]+ \d+)\.")
_PUT = re.compile(r"You (?:move|put) the ([a-z]+ \d+) (?:to|in/on|in|on) the ([a-z]+ \d+)\.")
_TREATED = re.compile(r"You (clean|heat|cool) the ([a-z]+ \d+) using the [a-z]+ \d+\.")

_RESULTS = {verb: predicate for predicate, verb, _ in TREATMENTS.values()}
_OPPOSITES = {"heat": "iscool", "cool": "ishot"}
_ADJECTIVES = {"isclean": "clean", "ishot": "hot", "iscool": "cool"}
_LAMPS = ("desklamp", "floorlamp")
_FITS = {(type_name(receptacle), type_name(thing)) for receptacle, things in FITS.items() for thing in things}
_FIXED = {type.lower() for type in FIXED}

MOVE = "move {} to {}"
PUT = "put {} in/on {}"
"""How older data says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notebook:
    """What is known. Each `after` gives another one."""

    task: str = ""
    """The goal in the words of the first observation, such as `put some mug on desk`."""
    receptacles: tuple[str, ...] = ()
    """In the order of the first observation."""
    contents: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Things in each receptacle whose content has been seen."""
    closed: frozenset[str] = frozenset()
    """Receptacles that are known to be closed."""
    here: str = ""
    """The receptacle one stands at; empty in the middle of the room."""
    held: str = ""
    results: frozenset[tuple[str, str]] = frozenset()
    """What has been done to things, as facts: `("isclean", "mug 2")`."""
    put: str = MOVE
    """The command for putting something somewhere."""

    @classmethod
    def begin(cls, observation: str) -> Notebook:
        """Notes of a first observation."""
        room, task = _ROOM.search(observation), _TASK.search(observation)
        return cls(
            task=task.group(1) if task else "",
            receptacles=tuple(dict.fromkeys(_NAME.findall(room.group(1)))) if room else (),
        )

    def after(self, command: str, observation: str) -> Notebook:
        """With what the answer to `command` tells."""
        text = observation.partition("\n\n")[0]
        book = self
        if command.startswith(("move ", "put ")) and text == "Nothing happens.":
            # Either it cannot be done here, or the game has the other command.
            return replace(book, put=PUT if command.startswith("move ") else MOVE)
        if match := _ARRIVAL.search(text):
            book = replace(book, here=match.group(1))
        for match in _CONTENT.finditer(text):
            place = match.group(1) or match.group(2)
            contents = {**book.contents, place: tuple(_NAME.findall(match.group(3)))}
            book = replace(book, contents=contents, closed=book.closed - {place})
        for match in _CLOSED.finditer(text):
            book = replace(book, closed=book.closed | {match.group(1) or match.group(2)})
        if match := _TAKEN.search(text):
            thing, place = match.groups()
            left = tuple(other for other in book.contents.get(place, ()) if other != thing)
            book = replace(book, held=thing, contents={**book.contents, place: left})
        if match := _PUT.search(text):
            thing, place = match.groups()
            inside = (*book.contents.get(place, ()), thing)
            book = replace(book, held="", contents={**book.contents, place: inside})
        if match := _TREATED.search(text):
            verb, thing = match.groups()
            left_as = book.results - {(_OPPOSITES.get(verb, ""), thing)}
            book = replace(book, results=left_as | {(_RESULTS[verb], thing)})
        return book

    @property
    def unseen(self) -> tuple[str, ...]:
        """Receptacles that have not been looked into, in the order of the first observation."""
        return tuple(place for place in self.receptacles if place not in self.contents)

    def view(self) -> View:
        """What is known as facts. That things of some types fit into some receptacles is common knowledge."""
        return View(self._facts())

    def goal(self) -> Goal | None:
        """What the task asks for, types in lower case; None where its words are none of ALFWorld's."""
        return parse_task(self.task)

    def notes(self) -> str:
        """Task, what is in hand, where one has seen what the task names, and where one has not looked."""
        adjectives = [
            _ADJECTIVES[predicate] for predicate, thing in sorted(self.results) if thing == self.held
        ]
        held = " ".join([*adjectives, self.held]) if self.held else "nothing"
        wanted = [f"{thing} at {place}" for thing, place in self._wanted()]
        seen = f" Seen: {', '.join(wanted)}." if wanted else ""
        unseen = ", ".join(self.unseen) or "nothing"
        return f"Task: {self.task}. In hand: {held}.{seen}\nNot looked into: {unseen}."

    def _wanted(self) -> Iterator[tuple[str, str]]:
        """Things of the types that the task names, and where they are."""
        goal = self.goal()
        types = {goal.object_type, goal.lamp_type} if goal else set()
        for place, inside in self.contents.items():
            for thing in inside:
                if thing.rpartition(" ")[0] in types:
                    yield thing, place

    def _facts(self) -> Iterator[Fact]:
        things = {thing: place for place, inside in self.contents.items() for thing in inside}
        places = dict.fromkeys((*self.receptacles, *self.contents, *([self.here] if self.here else [])))
        for place in places:
            yield "receptacletype", (place, _type_of(place))
            yield "receptacleatlocation", (place, place)
        for place in self.closed:
            yield "openable", (place,)
        for thing, place in things.items():
            yield "inreceptacle", (thing, place)
        for thing in (*things, *([self.held] if self.held else [])):
            kind = thing.rpartition(" ")[0]
            yield "objecttype", (thing, _type_of(thing))
            if kind in _LAMPS:
                yield "toggleable", (thing,)
            elif kind not in _FIXED:
                yield "pickupable", (thing,)
        for pair in _FITS:
            yield "cancontain", pair
        for predicate, thing in self.results:
            yield predicate, (thing,)
        if self.here:
            yield "atlocation", ("agent", self.here)
        if self.held:
            yield "holds", ("agent", self.held)


def parse_task(task: str) -> Goal | None:
    """The goal that ALFWorld's templates say as `task`; None for other words."""
    for task_type, pattern in _PATTERNS:
        if match := pattern.fullmatch(task):
            found = match.groupdict(default="")
            return Goal(
                task_type=task_type,
                object_type=found["obj"],
                receptacle_type=found.get("recep", ""),
                lamp_type=found.get("toggle", ""),
            )
    return None


def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[a-z]+)", template))


_PATTERNS: Sequence[tuple[str, re.Pattern[str]]] = [
    (task_type, _pattern(template)) for task_type in TASK_TYPES for template in DESCRIPTIONS[task_type]
]


def _type_of(name: str) -> str:
    return type_name(name.rpartition(" ")[0])
