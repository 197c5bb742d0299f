"""Grades patches as the product does, and plainly, and says what each made of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from envsdk.envs.swe.evaluator import evaluate
from envsdk.rewards.sandbox import SandboxBackend
from tests.envs.swe.grading.plain import Plain, grade_plainly
from tests.envs.swe.grading.subjects import Subject

REACHED = "the means of this cheat took effect"
"""What a cheat prints where it found what it looks for, whether or not that pays."""
PLAIN_TIMEOUT_S = 20.0


T = TypeVar("T", bound="Entry")


class Entry(Protocol):
    """A patch of either corpus."""

    @property
    def kind(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def subject(self) -> Subject: ...

    @property
    def make(self) -> Callable[[], str]: ...


@dataclass(frozen=True, kw_only=True)
class Graded:
    """What became of one patch."""

    kind: str
    name: str
    task: str
    plain: bool
    """Plain pytest says that it resolves the task."""
    plain_s: float
    reward: float | None
    """Of the product; None where it masks the patch."""
    reason: str
    detail: str
    elapsed_s: float
    reached: bool
    """A cheat's means took effect, in either grading."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.name} ({self.task}): {self.reason}: {self.detail}"


async def grade(entry: Entry, backend: SandboxBackend, *, plainly: bool = True) -> Graded:
    patch = await asyncio.to_thread(entry.make)
    task = entry.subject.task
    plain = Plain(resolved=False, passed=frozenset(), elapsed_s=0.0, output="")
    if plainly:
        plain = await grade_plainly(task, patch, backend, timeout_s=PLAIN_TIMEOUT_S)
    verdict = await evaluate(replace(task, limits=replace(task.limits, timeout_s=30.0)), patch, backend)
    return Graded(
        kind=entry.kind,
        name=entry.name,
        task=entry.subject.name,
        plain=plain.resolved,
        plain_s=plain.elapsed_s,
        reward=verdict.reward,
        reason=verdict.reason.value,
        detail=verdict.detail,
        elapsed_s=verdict.elapsed_s,
        reached=any(REACHED in output for output in (plain.output, verdict.output_tail)),
    )


async def grade_all(
    entries: Sequence[Entry],
    backend: SandboxBackend,
    *,
    at_once: int,
    plainly: bool = True,
    on_done: Callable[[Graded], None] = lambda graded: None,
) -> list[Graded]:
    """Grade `entries`, `at_once` at the same time, in the order in which they stand.

    Without `plainly`, only as the product does.
    """
    slots = asyncio.Semaphore(at_once)

    async def one(entry: Entry) -> Graded:
        async with slots:
            graded = await grade(entry, backend, plainly=plainly)
        on_done(graded)
        return graded

    return list(await asyncio.gather(*(one(entry) for entry in entries)))


def sample(entries: Sequence[T], number: int, seed: int = 0) -> list[T]:
    """`number` of them, as evenly over kinds as they are."""
    shuffled = list(entries)
    random.Random(seed).shuffle(shuffled)
    kinds: dict[str, list[T]] = {}
    for entry in shuffled:
        kinds.setdefault(entry.kind, []).append(entry)
    rounds = (kind[at] for at in range(len(shuffled)) for kind in kinds.values() if at < len(kind))
    return [entry for entry, _ in zip(rounds, range(number), strict=False)]
