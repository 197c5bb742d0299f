from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.algorithms.group_filters import uniform_success, zero_variance
from envsdk.failures import Boundary, ConfigurationError, Failure, RolloutStalled
from envsdk.managers.group_judge import GroupFilters
from envsdk.trajectory import Outcome, Task, Trajectory, Turn


def member(reward: float, *, success: bool = False, failed: bool = False) -> Trajectory:
    failure = Failure(boundary=Boundary.ENGINE, kind="turn_timeout", message="late") if failed else None
    return Trajectory(
        trajectory_id="train-0",
        group_id=0,
        task=Task(tag="Lake", split="train", index=0),
        seed=0,
        outcome=Outcome.FAILED if failed else Outcome.TERMINATED,
        success=success,
        turns=(Turn(observation="", reply="", reward=reward, response_start=0, response_end=0),),
        tokens=None,
        failure=failure,
        started_at=0.0,
        ended_at=1.0,
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
