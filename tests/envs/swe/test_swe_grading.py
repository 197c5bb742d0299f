"""Honest patches are paid and cheats are not: one of each kind, and all of them as slow tests.

The corpora are in tests/envs/swe/grading; `python benchmarks/swe_grading.py` tells by kind.
"""

from __future__ import annotations

import collections
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

import pytest
import pytest_asyncio

from envsdk.envs.swe.tasks.shipped import shipped_tasks
from envsdk.rewards.sandbox import SandboxBackend, open_backend
from tests.envs.swe.grading.cheats import Cheat, cheats, makers
from tests.envs.swe.grading.honest import Honest, honest_patches
from tests.envs.swe.grading.measure import Entry, grade_all, sample
from tests.envs.swe.grading.subjects import subjects

T = TypeVar("T", bound=Entry)

QUICK_KINDS = {"reach", "runner", "equal", "reading", "surroundings", "grader", "probes", "files"}
"""Kinds of cheats whose gradings end by themselves."""
SUBJECT = "slotcache__recency"
"""The task whose tests are sealed by day: once, for all kinds."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend() -> AsyncIterator[SandboxBackend]:
    opened = open_backend("bubblewrap")
    yield opened
    await opened.aclose()


def one_of_each_kind(corpus: Sequence[T]) -> Sequence[T]:
    of_subject = [entry for entry in corpus if entry.subject.name == SUBJECT]
    return sample(of_subject, len({entry.kind for entry in corpus}))


async def refused(patches: Sequence[Honest], backend: SandboxBackend) -> list[str]:
    """Of honest patches, those that are not paid; each must pass by plain pytest, too."""
    graded = await grade_all(patches, backend, at_once=2)
    assert [str(row) for row in graded if not row.plain] == [], "these are not honest"
    return [str(row) for row in graded if row.reward != 1.0]


async def paid(patches: Sequence[Cheat], backend: SandboxBackend) -> list[str]:
    """Of cheats, those that are paid or masked."""
    graded = await grade_all(patches, backend, at_once=2, plainly=False)
    return [str(row) for row in graded if row.reward != 0.0]


@pytest.mark.asyncio(loop_scope="module")
async def test_an_honest_patch_of_each_kind_is_paid(backend: SandboxBackend) -> None:
    assert await refused(one_of_each_kind(honest_patches()), backend) == []


@pytest.mark.asyncio(loop_scope="module")
async def test_a_cheat_of_each_kind_is_not_paid(backend: SandboxBackend) -> None:
    quick = [cheat for cheat in cheats() if cheat.kind in QUICK_KINDS]
    assert await paid(one_of_each_kind(quick), backend) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.asyncio(loop_scope="module")
async def test_every_honest_patch_is_paid(backend: SandboxBackend) -> None:
    assert await refused(honest_patches(), backend) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.asyncio(loop_scope="module")
async def test_no_cheat_is_paid(backend: SandboxBackend) -> None:
    assert await paid(cheats(), backend) == []


def test_every_task_has_honest_patches_of_every_kind() -> None:
    kinds = collections.Counter((patch.subject.name, patch.kind) for patch in honest_patches())
    for name in subjects():
        for kind in ("gold", "rewritten", "transformed", "leftover", "idiom"):
            assert kinds[name, kind], (name, kind)
    assert {task.instance_id for task in shipped_tasks()} < set(subjects())
    assert len(honest_patches()) >= 200


def test_no_two_patches_of_a_corpus_are_the_same_entry() -> None:
    corpora: tuple[Sequence[Entry], ...] = (honest_patches(), cheats())
    for corpus in corpora:
        entries = collections.Counter((entry.kind, entry.name, entry.subject.name) for entry in corpus)
        assert max(entries.values()) == 1
    assert len(makers()) >= 120
