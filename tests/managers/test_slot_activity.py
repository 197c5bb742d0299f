"""When a worker hangs, and when it died too often."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from envsdk.contracts.trajectory import Task
from envsdk.managers.episode import EpisodeOrder
from envsdk.managers.slot_activity import MAX_RESTARTS_WITHOUT_PROGRESS, RestartCounter, SlotActivity

ORDER = EpisodeOrder(
    lease_id=7, group_id=0, member=0, task=Task(tag="a", split="train", index=0), seed=0, policy_seed=0
)


def test_a_slot_hangs_until_it_reports_after_its_stop_deadline() -> None:
    slots = SlotActivity()
    slots.playing["slot"] = ORDER
    slots.stop("slot", 10.0)
    assert slots.hung(10.0) == []
    assert slots.hung(10.5) == ["slot"]
    assert not slots.reported("slot")
    assert slots.hung(99.0) == []


def test_a_new_ledger_stops_what_plays_once_and_takes_each_slot_when_it_reports() -> None:
    slots = SlotActivity()
    slots.playing |= {"stopping": ORDER, "playing": ORDER}
    slots.stop("stopping", 10.0)
    assert slots.begin_again() == [("playing", 7)]
    assert slots.reported("stopping")
    assert slots.reported("playing")
    assert not slots.reported("playing")


@given(st.lists(st.sampled_from(["died", "died", "died", "progressed", "reset"]), max_size=40))
def test_a_worker_is_given_up_after_too_many_deaths_in_a_row(events: list[str]) -> None:
    counter, in_a_row = RestartCounter(), 0
    for event in events:
        if event == "died":
            counter.died("w")
        elif event == "progressed":
            counter.progressed("w")
        else:
            counter.reset()
        in_a_row = in_a_row + 1 if event == "died" else 0
        assert (counter.verdict("w") is not None) == (in_a_row > MAX_RESTARTS_WITHOUT_PROGRESS)
        assert counter.verdict("other") is None
