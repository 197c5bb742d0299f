from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from envsdk.algorithms.group_filters import (
    FilterArgs,
    GroupFilterEntries,
    GroupFilterEntry,
    group_filter,
    load_filter,
    uniform_success,
    zero_variance,
)
from envsdk.contracts.failures import Boundary, ConfigurationError, Failure, RolloutStalled
from envsdk.contracts.trajectory import Outcome, Task, Trajectory, Turn
from envsdk.managers.group_judge import GroupFilters
from tests.trajectories import trajectory_with

ENTRIES: TypeAdapter[list[GroupFilterEntry]] = TypeAdapter(GroupFilterEntries)


def member(reward: float, *, success: bool = False, failed: bool = False, tag: str = "Lake") -> Trajectory:
    failure = Failure(boundary=Boundary.ENGINE, kind="turn_timeout", message="late") if failed else None
    return trajectory_with(
        task=Task(tag=tag, split="train", index=0),
        outcome=Outcome.FAILED if failed else Outcome.TERMINATED,
        success=success,
        turns=(Turn(observation="", reply="", reward=reward, response_start=0, response_end=0),),
        failure=failure,
    )


members = st.builds(member, st.sampled_from([0.0, 0.5, 1.0]), success=st.booleans(), failed=st.booleans())


@given(st.lists(members, max_size=6), st.randoms(use_true_random=False))
def test_the_built_in_filters_drop_what_does_not_vary_whatever_the_order(group, random) -> None:
    played = [each for each in group if each.failure is None]
    varies = len({each.total_reward for each in played}) > 1
    is_mixed = {each.success for each in played} == {True, False}
    random.shuffle(group)
    assert (zero_variance(group) is None) == varies
    assert (uniform_success(group) is None) == is_mixed


@given(st.lists(members, max_size=4), members)
def test_a_failed_member_does_not_make_a_group_vary(group, other) -> None:
    failed = member(0.25, success=not other.success, failed=True)
    for judge in (zero_variance, uniform_success):
        assert judge([*group, failed]) == judge(group)


def test_the_first_filter_that_objects_is_named_with_its_reason_and_counted() -> None:
    filters = GroupFilters(["zero_variance", "uniform_success"], limit=10)
    assert filters.judge([member(0.5), member(0.5)], is_awaited=True) == "zero_variance: every reward is 0.5"
    solved = [member(0.5, success=True), member(1.0, success=True)]
    assert filters.judge(solved, is_awaited=True) == "uniform_success: every member succeeded"
    assert filters.judge([member(0.0), member(1.0, success=True)], is_awaited=True) is None
    assert filters.delivered() == {"zero_variance": 1, "uniform_success": 1}
    assert filters.delivered() == {"zero_variance": 0, "uniform_success": 0}


def test_dropping_everything_ends_in_an_error_that_says_who_dropped_and_why() -> None:
    filters = GroupFilters(["zero_variance"], limit=3)
    same = [member(0.0), member(0.0)]
    for _ in range(2):
        filters.judge(same, is_awaited=True)
    filters.delivered()  # counting begins again
    for _ in range(5):
        filters.judge(same, is_awaited=False)  # a batch is ready without it
    for _ in range(2):
        filters.judge(same, is_awaited=True)
    with pytest.raises(RolloutStalled) as caught:
        filters.judge(same, is_awaited=True)
    message = str(caught.value)
    for part in ("3 groups in a row", "by zero_variance", "every reward is 0", "max_filtered_groups 3"):
        assert part in message


def raises(group):
    raise KeyError("speed")


def answers_with_a_boolean(group):
    return False


def test_a_filter_that_breaks_ends_the_run_by_name() -> None:
    with pytest.raises(RolloutStalled, match="test_group_judge:raises' raised KeyError: 'speed'"):
        GroupFilters([f"{__name__}:raises"], limit=3).judge([], is_awaited=True)
    with pytest.raises(RolloutStalled, match="returned False; it must return a reason"):
        GroupFilters([f"{__name__}:answers_with_a_boolean"], limit=3).judge([], is_awaited=True)
    with pytest.raises(ConfigurationError, match="did you mean `zero_variance`"):
        GroupFilters(["zero_varianc"], limit=3)


@given(
    st.lists(members, max_size=6),
    st.sampled_from([-1.0, 0.0, 0.25, 0.5]),
    st.sampled_from([None, 0.5, 0.9, 1.0]),
)
def test_the_mean_and_deviation_filters_keep_what_rolls_query_filter_keeps(group, low, high) -> None:
    rewards = [each.total_reward for each in group if each.failure is None]
    mean = GroupFilterEntry(name="mean_filter", threshold_down=low, threshold_up=high)
    deviation = GroupFilterEntry(name="std_filter", std_threshold=low)
    keeps_mean = keeps_deviation = len(rewards) == 1
    if len(rewards) > 1:
        keeps_mean = low < statistics.fmean(rewards) < (float("inf") if high is None else high)
        keeps_deviation = statistics.stdev(rewards) > low
    assert (load_filter(mean)(group) is None) == keeps_mean
    assert (load_filter(deviation)(group) is None) == keeps_deviation


def test_a_filter_judges_its_tags_alone_and_each_of_its_entries_is_counted() -> None:
    entries = ENTRIES.validate_python(
        [
            {"name": "mean_filter", "tags": ["math", "code"], "threshold_down": 0.1},
            {"name": "mean_filter", "tags": ["judge"], "threshold_up": 0.9},
            "zero_variance",
        ]
    )
    filters = GroupFilters(entries, limit=10)
    wrong = [member(0.0, tag="code"), member(0.0, tag="code")]
    reason = "mean_filter/math+code: the mean reward 0 is not above threshold_down 0.1"
    assert filters.judge(wrong, is_awaited=True) == reason
    right = [member(1.0, tag="judge"), member(1.0, tag="judge")]
    assert filters.judge(right, is_awaited=True) == (
        "mean_filter/judge: the mean reward 1 is not below threshold_up 0.9"
    )
    assert filters.judge([member(0.0, tag="judge"), member(0.5, tag="judge")], is_awaited=True) is None
    assert filters.delivered() == {"mean_filter/math+code": 1, "mean_filter/judge": 1, "zero_variance": 0}
    # As the resolved configuration writes them, they are read again.
    written = ENTRIES.dump_python(entries, mode="json")
    assert written[2] == "zero_variance"
    assert written[1] == {"name": "mean_filter", "tags": ["judge"], "threshold_up": 0.9}
    assert ENTRIES.validate_python(written) == entries


class LengthArgs(FilterArgs):
    least: int = 2


@group_filter(LengthArgs)
def too_short_for(group, own):
    return f"fewer than {own.least}" if len(group) < own.least else None


def test_a_filter_of_ones_own_takes_settings_and_unknown_ones_are_refused() -> None:
    name = f"{__name__}:too_short_for"
    own = GroupFilters([GroupFilterEntry(name=name, least=3)], limit=3)
    assert own.judge([member(0.0), member(0.0)], is_awaited=True) == f"{name}: fewer than 3"
    with pytest.raises(ConfigurationError, match="did you mean `least`"):
        GroupFilters([GroupFilterEntry(name=name, lest=3)], limit=3)
    with pytest.raises(ConfigurationError, match="threshold"):
        GroupFilters([GroupFilterEntry(name="zero_variance", threshold=3)], limit=3)
    with pytest.raises(ValidationError, match="tags"):
        GroupFilterEntry(name=name, tags=[])
