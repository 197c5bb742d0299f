"""Which episodes are kept."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.contracts.trajectory import Outcome, Trajectory
from envsdk.rollouts.datasets.selection import (
    Deduplicator,
    Duplicates,
    EpisodeFilters,
    episode_digest,
    selection_config,
)
from tests.envsdk.rollouts.data_sets.episodes import episode, episodes

limits = st.none() | st.integers(0, 4)


@given(episodes)
def test_no_filter_keeps_everything(played: Trajectory) -> None:
    assert EpisodeFilters().reason_to_drop(played) is None


@given(episodes, limits, limits, limits, st.booleans())
def test_what_is_kept_is_what_was_asked_for(
    played: Trajectory, min_turns: int | None, max_tokens: int | None, max_reward: int | None, success: bool
) -> None:
    filters = EpisodeFilters(
        success_only=success, min_turns=min_turns, max_tokens=max_tokens, max_reward=max_reward
    )
    wanted = (
        played.outcome is not Outcome.FAILED
        and (not success or played.success)
        and (min_turns is None or len(played.turns) >= min_turns)
        and (max_tokens is None or (played.tokens is not None and len(played.tokens) <= max_tokens))
        and (max_reward is None or played.total_reward <= max_reward)
    )
    assert (filters.reason_to_drop(played) is None) == (wanted or not filters)


@pytest.mark.parametrize(
    ("filters", "played", "reason"),
    [
        (EpisodeFilters(success_only=True), episode("a", success=False), "not_solved"),
        (EpisodeFilters(min_reward=2), episode("a", rewards=[1]), "reward"),
        (EpisodeFilters(max_reward=0.5), episode("a", rewards=[1]), "reward"),
        (EpisodeFilters(min_reward=0), episode("a", rewards=[math.nan]), "reward"),
        (EpisodeFilters(min_turns=2), episode("a"), "too_short"),
        (EpisodeFilters(max_turns=1), episode("a", "b"), "too_long"),
        (EpisodeFilters(max_tokens=3), episode("a", num_tokens=4), "too_many_tokens"),
        (EpisodeFilters(max_tokens=3), episode("a"), "too_many_tokens"),
        (EpisodeFilters(max_turns=9), episode("a", outcome=Outcome.FAILED), "failed"),
    ],
)
def test_the_reason_is_named(filters: EpisodeFilters, played: Trajectory, reason: str) -> None:
    assert filters.reason_to_drop(played) == reason


@pytest.mark.parametrize("limits", [{"min_reward": 2.0, "max_reward": 1.0}, {"min_turns": 3, "max_turns": 2}])
def test_limits_that_keep_nothing_are_refused(limits: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="nothing would be kept"):
        EpisodeFilters(**limits)  # type: ignore[arg-type]


@given(st.lists(episodes, max_size=12), st.sampled_from(Duplicates))
def test_of_each_kind_the_first_is_kept(played: list[Trajectory], kind: Duplicates) -> None:
    seen = Deduplicator(kind)
    kept = [each for each in played if seen.is_new(each)]

    def key(each: Trajectory) -> object:
        if kind is Duplicates.TASK:
            first = each.turns[0].observation if each.turns else each.final_observation
            return (each.task.tag, first)
        texts = [(turn.observation, turn.reply) for turn in each.turns]
        return (each.task.tag, tuple(texts), each.final_observation)

    expected, known = [], set()
    for each in played:
        if each.outcome is Outcome.FAILED and not each.turns:
            expected.append(each)
        elif key(each) not in known:
            known.add(key(each))
            expected.append(each)
    assert kept == expected


def test_where_one_text_ends_and_the_next_begins_makes_a_difference() -> None:
    assert episode_digest(episode("ab", "c"), Duplicates.EPISODE) != episode_digest(
        episode("a", "bc"), Duplicates.EPISODE
    )


def test_a_data_set_without_a_selection_says_nothing_of_it() -> None:
    assert selection_config(EpisodeFilters(), None) == {}
    assert selection_config(EpisodeFilters(max_turns=3), Duplicates.TASK) == {
        "filters": {"max_turns": 3},
        "deduplicate": "task",
    }
