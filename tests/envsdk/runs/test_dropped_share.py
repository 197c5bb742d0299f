"""The share of the sampled tokens that was dropped: metrics, a line of the display, a warning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.base.display.progress import StepSummary
from envsdk.contracts.trajectory import RolloutBatch
from envsdk.managers.batch_files import RolloutTally
from envsdk.managers.ledger_types import CancelReason, LedgerCounts
from envsdk.runs.rollout_metrics import LATEST, DroppedTokens
from tests.envsdk.view.view_runs import make_trajectory

TAGS = ("long", "short")
LOST = st.dictionaries(st.sampled_from(TAGS), st.integers(0, 30))


def batch(dropped: Mapping[str, int] | None = None, tags: tuple[str, ...] = TAGS) -> RolloutBatch:
    groups = [[make_trajectory(number, tag=tag)] for number, tag in enumerate(tags)]
    return RolloutBatch(version=0, groups=groups, dropped_tokens=dropped or {})


def trained_tokens(of: RolloutBatch) -> Counter[str]:
    found: Counter[str] = Counter()
    for trajectory in of.trajectories:
        found[trajectory.task.tag] += trajectory.num_sampled_tokens
    return found


@given(st.lists(LOST, min_size=1, max_size=2 * LATEST))
def test_the_share_is_of_what_was_sampled_for_the_latest_batches(lost: list[Mapping[str, int]]) -> None:
    shares = DroppedTokens()
    for each in lost:
        found = shares.add(batch(each))
    dropped: Counter[str] = Counter()
    for each in lost[-LATEST:]:
        dropped.update(each)
    for tag, number in trained_tokens(batch()).items():
        kept = number * len(lost[-LATEST:])
        assert found[f"dropped_share/{tag}"] == pytest.approx(dropped[tag] / (dropped[tag] + kept))
    low, high = sorted(found[f"dropped_share/{tag}"] for tag in TAGS)
    assert low <= found["dropped_share/mean"] <= high


def test_a_tag_of_which_nothing_is_left_is_named_too() -> None:
    found = DroppedTokens().add(batch({"lost": 5}, tags=("short",)))
    assert found["dropped_share/lost"] == 1
    assert found["dropped_share/short"] == 0


def test_much_that_is_dropped_is_said_once_until_it_is_little_again() -> None:
    shares, tokens = DroppedTokens(), trained_tokens(batch())["long"]

    def said(number: int, dropped: int) -> list[str]:
        found = []
        for _ in range(number):
            shares.add(batch({"long": dropped}))
            found.append(shares.warning())
        return [each for each in found if each]

    assert said(LATEST, tokens // 10) == []
    [warning] = said(2 * LATEST, tokens)
    assert "long" in warning
    assert f"the last {LATEST} batches" in warning
    assert said(LATEST, 0) == []
    assert len(said(2 * LATEST, tokens)) == 1


def test_what_filters_and_spare_episodes_cost_is_thrown_away_and_not_dropped() -> None:
    tally = RolloutTally()
    for reason in CancelReason:
        tally.add_discarded(reason.name, 10, reason)
    counts = LedgerCounts(started=0, open=0, delivered=0, filtered=0, stale=0, failed=0, cancelled=0)
    found = tally.batch(0, [], counts, {})
    assert found.discarded_tokens == 10 * len(CancelReason)
    by_choice = {"REJECTED", "SPARE", "SURPLUS"}
    assert found.dropped_tokens == {each.name: 10 for each in CancelReason if each.name not in by_choice}


def test_a_step_names_the_share_of_each_tag() -> None:
    metrics = DroppedTokens().add(batch({"long": 3}))
    summary = StepSummary.from_metrics(metrics, step=1, max_steps=2)
    assert summary.dropped_by_tag == {tag: metrics[f"dropped_share/{tag}"] for tag in TAGS}
