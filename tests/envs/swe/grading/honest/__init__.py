"""Patches that resolve their task, as agents leave them: none may be refused.

gold          the patch of the task
rewritten     by hand, in another way (rewritten.toml)
transformed   the gold patch, changed through its syntax tree in ways that keep its meaning
leftover      the gold patch beside what agents leave behind
idiom         the gold patch, with code in the package that looks suspicious and is not (idioms.txt)
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from tests.envs.swe.grading.honest.leftovers import LEFTOVERS
from tests.envs.swe.grading.honest.transformations import TRANSFORMATIONS
from tests.envs.swe.grading.subjects import Subject, Tree, subjects

EACH = {"transformed": 6, "leftover": 5, "idiom": 2}
"""Of how many kinds each subject gets a patch; the next subject gets the kinds that follow."""
ANOTHER_FRAME = {"helpers", "everything", "decorated", "results of subclasses"}
"""What puts a function between the caller and the one that is called: `stacklevel` is wrong then, and
tests of oddities see it."""


@dataclass(frozen=True, kw_only=True)
class Honest:
    """One patch."""

    kind: str
    name: str
    subject: Subject
    make: Callable[[], str]


@cache
def honest_patches() -> tuple[Honest, ...]:
    """All of them, in an order that stays."""
    return tuple(
        Honest(kind=kind, name=name, subject=subject, make=make)
        for number, subject in enumerate(subjects().values())
        for kind, name, make in _of(number, subject)
    )


def _of(number: int, subject: Subject) -> Iterator[tuple[str, str, Callable[[], str]]]:
    yield "gold", "gold", lambda: subject.task.gold_patch
    for repair in _repairs():
        if repair["subject"] == subject.name:
            yield (
                "rewritten",
                repair["name"],
                lambda edits=repair["edits"]: subject.patch(_edited(subject, edits)),
            )
    left_out = ANOTHER_FRAME if subject.package == "oddities" else set[str]()
    for name in _share("transformed", [name for name in TRANSFORMATIONS if name not in left_out], number):
        if _changes(subject, name):
            yield "transformed", name, partial(_transformed, subject, name)
    for name in _share("leftover", list(LEFTOVERS), number):
        yield "leftover", name, partial(LEFTOVERS[name], subject)
    for name in _share("idiom", [name for name in _idioms() if name not in left_out], number):
        yield "idiom", name, partial(_with_idiom, subject, name)


def _share(kind: str, names: Sequence[str], number: int) -> list[str]:
    return [names[(number * EACH[kind] + at) % len(names)] for at in range(EACH[kind])]


@cache
def _repairs() -> list[dict[str, Any]]:
    return tomllib.loads((Path(__file__).parent / "rewritten.toml").read_text())["repairs"]


def _edited(subject: Subject, edits: Sequence[dict[str, str]]) -> Tree:
    tree = dict(subject.gold)
    for edit in edits:
        before, old = tree[edit["file"]], edit.get("old")
        assert old is None or before.count(old) == 1, (subject.name, old)
        tree[edit["file"]] = before + edit["new"] if old is None else before.replace(old, edit["new"])
    return tree


def _transformed(subject: Subject, name: str) -> str:
    changed = {path: TRANSFORMATIONS[name](subject.gold[path]) for path in subject.repaired}
    return subject.patch({**subject.gold, **changed})


def _changes(subject: Subject, name: str) -> bool:
    """Whether a transformation does more to the repaired files than to write them anew."""
    sources = [subject.gold[path] for path in subject.repaired]
    return any(ast.unparse(ast.parse(source)) + "\n" != TRANSFORMATIONS[name](source) for source in sources)


@cache
def _idioms() -> dict[str, str]:
    parts = re.split(r"^# --- (.+)\n", (Path(__file__).parent / "idioms.txt").read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _with_idiom(subject: Subject, name: str) -> str:
    return subject.patch({**subject.gold, subject.init: f"{subject.gold[subject.init]}\n\n{_idioms()[name]}"})
