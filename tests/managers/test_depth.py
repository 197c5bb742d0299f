"""The depth that a run finds by itself: within its bounds, and settled where the wait is as asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.managers.ledger_parts import DepthControl


def control(alpha: float = 1.0, most: float = 4.0, groups_per_batch: int = 8) -> DepthControl:
    return DepthControl(alpha=alpha, most=most, max_wait_share=0.1, groups_per_batch=groups_per_batch)


@given(
    most=st.sampled_from([1, 2, 6]),
    groups_per_batch=st.sampled_from([1, 3, 32]),
    batches=st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100), st.booleans()), max_size=200),
)
def test_the_depth_stays_between_nothing_and_the_most(
    most: float, groups_per_batch: int, batches: list[tuple[float, float, bool]]
) -> None:
    depth = control(alpha=1.0, most=most, groups_per_batch=groups_per_batch)
    for waited_s, trained_s, had_idle_slot in batches:
        before = depth.alpha
        changed = depth.observe(waited_s=waited_s, lasted_s=waited_s + trained_s, had_idle_slot=had_idle_slot)
        assert 0 < depth.alpha <= most
        assert (changed is None) == (depth.alpha == before)
        assert changed in (None, depth.alpha)


def settle(
    depth: DepthControl, needed: float, num_batches: int, *, had_idle_slot: bool = True
) -> list[float]:
    """Depths after each batch where the trainer waits half of the time below `needed`, else not at all."""
    found = []
    for _ in range(num_batches):
        waited_s = 1.0 if depth.alpha < needed else 0.0
        depth.observe(waited_s=waited_s, lasted_s=2.0, had_idle_slot=had_idle_slot)
        found.append(depth.alpha)
    return found


@pytest.mark.parametrize("needed", [0.25, 0.75, 1.0, 2.5, 3.75])
def test_it_settles_at_the_least_depth_that_is_enough(needed: float) -> None:
    depths = settle(control(), needed, 300)
    # It tries less now and then; most of the time it is at the least depth that is enough.
    settled = depths[100:]
    assert settled.count(needed) > 0.7 * len(settled)
    assert min(settled) >= needed - 0.25
    assert max(settled) <= needed + 0.25


def test_a_wait_for_environments_is_not_answered_with_depth() -> None:
    depths = settle(control(), needed=3.0, num_batches=100, had_idle_slot=False)
    assert set(depths) == {1.0}


def test_the_depth_ends_at_the_most_where_the_trainer_waits_in_any_case() -> None:
    assert settle(control(most=2.0), needed=9.0, num_batches=100)[-1] == 2.0


def test_a_batch_of_one_group_changes_by_whole_groups() -> None:
    depths = settle(control(groups_per_batch=1, most=4.0), needed=3.0, num_batches=100)
    assert set(depths) <= {1.0, 2.0, 3.0, 4.0}
