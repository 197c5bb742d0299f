"""What a run says when it does not learn: once, and only where it is so."""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st

from envsdk.contracts.trajectory import Outcome, Task, Trajectory, Turn
from envsdk.tracking.learning_signs import (
    ENTROPY_STEPS,
    WINDOW,
    LearningSigns,
    no_action_read,
    signs_of,
)
from tests.trajectories import trajectory_with

shares = st.sampled_from([0.0, 0.3, 0.7, 1.0])


def rows(
    values: list[float], name: str = "rollout/zero_variance_groups_share", **more: float
) -> list[dict[str, float]]:
    return [{"step": step, name: value, **more} for step, value in enumerate(values)]


def told(metrics: list[dict[str, float]], words: str) -> list[int]:
    """Steps after which a sign with these words was told."""
    return [step for step, text in signs_of(metrics) if words in text]


def teaches_nothing(newest: list[float]) -> bool:
    """Two steps in a row without any group that differs, or ten with few."""
    window = newest[-WINDOW:]
    is_empty = newest[-2:] == [1.0, 1.0]
    return is_empty or (len(window) == WINDOW and (sum(window) >= 7.999 or window.count(1.0) > WINDOW / 2))


@given(st.lists(shares, max_size=40))
def test_groups_with_equal_rewards_are_told_once_and_as_soon_as_they_teach_nothing(
    values: list[float],
) -> None:
    first = next((step for step in range(1, len(values) + 1) if teaches_nothing(values[:step])), None)
    assert told(rows(values), "nothing can be learned") == ([] if first is None else [first])


@given(st.lists(st.floats(0.0, 0.6), max_size=40))
def test_a_run_whose_groups_differ_is_told_nothing(values: list[float]) -> None:
    assert signs_of(rows(values)) == []


def test_with_advantages_all_the_same_equal_rewards_may_still_teach() -> None:
    """A critic, or no baseline at all, learns from groups with equal rewards."""
    learning = {"advantage/min": -0.4, "advantage/max": 0.9, "advantage/zero_share": 0.0}
    assert signs_of(rows([1.0] * 20, **learning)) == []
    stuck = {"advantage/min": 0.0, "advantage/max": 0.0, "advantage/zero_share": 1.0}
    assert told(rows([1.0] * 20, **stuck), "nothing can be learned") == [2]


def test_what_to_try_depends_on_whether_nothing_or_everything_is_solved() -> None:
    (_, none), *_ = signs_of(rows([1.0, 1.0], **{"success/mean": 0.0, "reward/mean": 0.0}))
    assert "equal rewards (mean 0.00)" in none
    for key in ("warm_start.num_episodes", "pretrain", "group_size", "temperature", "easier tasks"):
        assert key in none
    (_, all_solved), *_ = signs_of(rows([1.0, 1.0], **{"success/mean": 1.0}))
    assert all_solved.startswith("most episodes are solved")
    assert "harder tasks" in all_solved
    assert not {"warm_start", "nothing"} & set(all_solved.split())


def entropy(values: list[float], **more: float) -> list[dict[str, float]]:
    return rows(values, "actor/behavior_entropy", **more)


def test_a_collapsed_entropy_is_told_once_with_what_to_try() -> None:
    """As it was seen: 1.75 nats at the start, 0.2 in the middle, 0.08 at the end, at 68% success."""
    values = [1.75 - 0.08 * step for step in range(20)] + [0.2, 0.15, 0.1] * 5 + [0.08] * 10
    ((step, text),) = signs_of(entropy(values, **{"success/mean": 0.68}))
    assert 20 <= step < 30
    assert "fell from 1.59 to" in text
    assert all(key in text for key in ("entropy_loss_coef", "temperature", "learning_rate"))


@given(st.lists(st.floats(0.01, 3.0), min_size=ENTROPY_STEPS, max_size=40))
def test_an_entropy_that_falls_by_less_than_four_fifths_is_told_nothing(values: list[float]) -> None:
    bounded = [max(value, 0.25 * max(values)) for value in values]
    assert signs_of(entropy(bounded)) == []


def test_a_policy_that_solves_nearly_everything_may_be_sure() -> None:
    values = [1.0] * 5 + [0.02] * 20
    assert signs_of(entropy(values, **{"success/mean": 0.97})) == []
    assert len(signs_of(entropy(values, **{"success/mean": 0.5}))) == 1


@given(st.lists(st.dictionaries(st.sampled_from([
    "rollout/zero_variance_groups_share", "actor/behavior_entropy", "env/action_is_valid", "success/mean",
    "advantage/min", "advantage/max",
]), st.floats()), max_size=30))  # fmt: skip
@example([{"rollout/zero_variance_groups_share": 1e308}] * 10)
@example([{"rollout/zero_variance_groups_share": -1e308}] * 10)
def test_any_metrics_can_be_read_and_each_sign_is_told_at_most_once(metrics: list[dict[str, float]]) -> None:
    signs = LearningSigns()
    found = [text for row in metrics for text in signs.step(row)]
    assert len(found) <= 3
    assert not any("nan" in text or "inf " in text for text in found)


def test_a_batch_of_which_no_reply_could_be_read_says_so() -> None:
    assert told([{"step": 0, "env/action_is_valid": 0.0}], "no reply of the batch held an action") == [1]
    assert told([{"step": 0, "val/env/action_is_valid": 0.0}], "no reply of the evaluation held") == [1]
    assert (
        signs_of([{"step": 0, "env/action_is_valid": 0.1}, {"step": 1, "env/action_is_valid": math.nan}])
        == []
    )


def episode(*valid: float | None) -> Trajectory:
    turns = [
        Turn(
            observation="o",
            reply=f"I like\nmaps {at}",
            reward=0.0,
            response_start=0,
            response_end=0,
            metrics={} if v is None else {"action_is_valid": v},
        )
        for at, v in enumerate(valid)
    ]
    return trajectory_with(
        trajectory_id="a",
        task=Task(tag="Lake", split="val", index=0),
        turns=turns,
        outcome=Outcome.TRUNCATED,
        success=False,
    )


def test_an_evaluation_of_which_no_reply_could_be_read_shows_one() -> None:
    text = no_action_read([episode(0.0, 0.0), episode(0.0)])
    assert text.startswith(
        "none of 3 replies held an action that its environment could read, such as 'I like maps 0'"
    )
    assert no_action_read([episode(0.0, 1.0)]) == ""
    assert no_action_read([episode(None)]) == ""
    assert no_action_read([]) == ""
