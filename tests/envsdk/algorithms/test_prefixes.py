"""Prefix sampling: the level of a tag follows its formula, and steers a success rate to its target."""

from __future__ import annotations

import json
import random
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.algorithms.task_samplers.prefixes import EndedEpisode, PrefixArgs, PrefixSampling, num_replayed
from envsdk.contracts.trajectory import Task

Group = list[bool]


def task(index: int = 0, tag: str = "maze") -> Task:
    return Task(tag=tag, split="train", index=index)


def ended(successes: Group, num_turns: int = 8) -> list[EndedEpisode]:
    return [
        EndedEpisode(
            success=success, replies=[f"{'won' if success else 'lost'} {n}" for n in range(num_turns)]
        )
        for success in successes
    ]


def expected_levels(args: PrefixArgs, groups: list[Group]) -> list[float]:
    """The level after each group, all of them replayed as far as the oracle's level says."""
    levels, level, plain = [], 0.0, list[bool]()
    for group in groups:
        if group and level == 0:
            plain += group
            rate = statistics.fmean(plain[-args.window :])
            if len(plain) >= args.window and rate <= args.low:
                level = args.gain
        elif group:
            level = min(1.0, max(0.0, level + args.gain * (args.target - statistics.fmean(group))))
        if level:
            plain = []
        levels.append(level)
    return levels


@given(
    st.lists(st.lists(st.booleans(), max_size=4), max_size=40),
    st.sampled_from([0.25, 0.5]),
    st.sampled_from([2, 6]),
    st.integers(0, 40),
)
def test_the_level_is_that_of_the_formula_also_after_a_restart(
    groups: list[Group], gain: float, window: int, restart_at: int
) -> None:
    args = PrefixArgs(source="oracle", gain=gain, window=window, low=0.2)
    sampling, found = PrefixSampling(args), []
    for number, group in enumerate(groups):
        prefix = sampling.prefix_of(number, task())
        assert (prefix is not None) == (sampling.levels.get("maze", 0.0) > 0)
        if number == restart_at:
            sampling = PrefixSampling(args, json.loads(json.dumps(sampling.state())))
            assert sampling.prefix_of(number, task()) == prefix, "what was decided stays"
        sampling.observe(number, task(), ended(group))
        found.append(sampling.levels.get("maze", 0.0))
    assert found == pytest.approx(expected_levels(args, groups))


@pytest.mark.parametrize(("skill", "sign"), [(0.0, 1), (1.0, -1)])
def test_half_of_a_group_passes_where_none_or_all_did(skill: float, sign: int) -> None:
    """A task of 20 turns: what the policy plays of it succeeds with `skill`, more with a head start, less
    with a handicap."""
    sampling, chance, rates = PrefixSampling(PrefixArgs(low=0.1, high=0.9)), random.Random(1), []
    sampling.observe(0, task(), ended([True, False], 20))
    for number in range(1, 200):
        prefix = sampling.prefix_of(number, task())
        share = 0.0 if prefix is None else len(prefix.replies) / 20
        passes = skill + sign * share
        successes = [chance.random() < passes for _ in range(8)]
        rates.append(statistics.fmean(successes))
        sampling.observe(number, task(), ended(successes, 20))
    assert abs(statistics.fmean(rates[50:]) - 0.5) < 0.1
    assert sampling.levels["maze"] * sign > 0
    kind = "won" if sign > 0 else "lost"
    prefix = sampling.prefix_of(1000, task())
    assert prefix is not None
    assert set(prefix.replies) <= {f"{kind} {n}" for n in range(19)}


def test_a_task_without_an_episode_of_its_own_begins_at_the_beginning_and_steers_nothing() -> None:
    args: dict[str, Any] = {"window": 2, "kept": 2}
    sampling = PrefixSampling(PrefixArgs(**args))
    for number in range(3):
        sampling.observe(number, task(number), ended([False, False]))
    assert sampling.levels["maze"] == 0.25
    assert sampling.prefix_of(5, task(7)) is None
    sampling.observe(5, task(7), ended([True, True]))
    assert sampling.levels["maze"] == 0.25
    assert len(sampling.state()["kept"]["maze/False"]) == 2
    assert sampling.prefix_of(6, task(7)) is not None
    sampling.drop([6])
    assert list(sampling.state()["decided"]) == ["6"]


def test_the_last_turn_is_never_replayed() -> None:
    assert [num_replayed(4, share) for share in (0.0, 0.25, 0.5, 1.0)] == [0, 1, 2, 3]
    assert num_replayed(1, 1.0) == num_replayed(0, 1.0) == 0
