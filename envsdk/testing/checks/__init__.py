"""The checks every environment should pass, by name: `catalogue()`.

A check is a function of the subject and of examples, and raises AssertionError when its demand is not
met. What it takes besides the subject says how it is run:

    course                                one of the courses that all such checks look at together
    seed, script, then, history, ...      examples of its own, drawn by Hypothesis and shrunk
    nothing                               run once

A check raises NotApplicable when it has nothing to say about this subject.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envsdk.contracts.env import EnvSpec
    from envsdk.testing.subject import Subject

GROUPS = (
    "contract",
    "seeds",
    "isolation",
    "event_loop",
    "text",
    "rewards",
    "roles",
    "end",
    "snapshot",
    "oracle",
    "resources",
    "abilities",
)
"""In the order in which they run and are reported. Each is a module of this package."""


class NotApplicable(Exception):
    """Why a check says nothing about this subject."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One demand."""

    group: str
    title: str
    demand: str
    """One line: what is demanded, and why."""
    function: Callable[..., None]
    needs: tuple[str, ...]
    """Abilities without which the check is skipped."""
    effort: float
    """Share of the examples that it is worth: checks that play long episodes take fewer."""

    @property
    def name(self) -> str:
        return f"{self.group}.{self.title}"

    @property
    def parameters(self) -> tuple[str, ...]:
        """What it takes besides the subject."""
        return tuple(inspect.signature(self.function).parameters)[1:]

    @property
    def looks_on(self) -> bool:
        """It only looks at courses, so that many such checks share them."""
        return self.parameters == ("course",)


_checks: dict[str, Check] = {}


def check(
    demand: str, *, needs: tuple[str, ...] = (), effort: float = 1.0
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a function to the catalogue, under the names of its module and its own."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        group = function.__module__.rpartition(".")[2]
        added = Check(
            group=group,
            title=function.__name__,
            demand=demand,
            function=function,
            needs=needs,
            effort=effort,
        )
        _checks[added.name] = added
        return function

    return add


def spec_of(subject: Subject) -> EnvSpec:
    """The spec of what is under test. NotApplicable when only a factory is known."""
    if subject.spec is None:
        raise NotApplicable("only a factory is known")
    return subject.spec


@cache
def catalogue() -> dict[str, Check]:
    """Every check by its name, group by group."""
    for group in GROUPS:
        import_module(f"{__name__}.{group}")
    return {name: found for group in GROUPS for name, found in _checks.items() if found.group == group}
