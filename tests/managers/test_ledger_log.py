"""A log of random events replays to the same decisions; a changed ledger, and a damaged log, are found."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from ledger_machine import LedgerMachine
from ledger_scenarios import SCENARIOS

from envsdk.contracts.failures import StorageError
from envsdk.managers.ledger import OwnTasks, RolloutLedger
from envsdk.managers.ledger_groups import OpenGroups
from envsdk.managers.ledger_history import replay
from envsdk.managers.ledger_log import LOG_NAME, LedgerLog, read_log, recorded
from envsdk.managers.ledger_types import Grant, LedgerConfig, LedgerState


class Recorder:
    """Makes ledgers that log into a folder, one section each."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.logs: list[LedgerLog] = []
        self.is_first = True

    def __call__(self, config: LedgerConfig, state: LedgerState | None) -> RolloutLedger:
        ledger = RolloutLedger(config, state)
        self.is_first = not self.is_first
        if self.is_first:
            return ledger  # the twin
        for earlier in self.logs:
            earlier.flush()
        log = LedgerLog(self.folder, config, state)
        log._began_ms = 0
        self.logs.append(log)
        return recorded(ledger, log)


class RecordedMachine(LedgerMachine):
    """The machine of the ledger's promises; its twin runs without a recorder, and must decide the same."""

    def __init__(self) -> None:
        super().__init__()
        self.recorder = Recorder()
        self.make = self.recorder  # type: ignore[misc,assignment]
        type(self).make = self.recorder  # type: ignore[assignment]

    def teardown(self) -> None:
        super().teardown()
        try:
            if self.recorder.logs and not self.model.is_broken:
                self.recorder.logs[-1].flush()
                sections = read_log(self.recorder.folder)
                assert replay(_from_zero(sections)).difference is None
        finally:
            shutil.rmtree(self.recorder.folder)


def _from_zero(sections: list[Any]) -> list[Any]:
    return [replace(section, began_ms=0) for section in sections]


TestRecordedLedger = RecordedMachine.TestCase
TestRecordedLedger.settings = settings(
    max_examples=15,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def play(folder: Path, num_batches: int = 6, **changes: Any) -> RolloutLedger:
    """Batches of two groups of two on four slots; the second member of each group takes longer."""
    config = LedgerConfig(
        **{"batch_size": 4, "group_size": 2, "alpha": 1, "tag_weights": {"maze": 1}, **changes}
    )
    log = LedgerLog(folder, config, None)
    log._began_ms = 0
    ledger = recorded(RolloutLedger(config), log)
    now, ends = 0.0, []

    def follow(commands: list[Any]) -> None:
        for command in commands:
            if isinstance(command, Grant):
                lasts_s = 1.0 + 2.0 * command.lease.member + 0.1 * command.lease.group_id
                ends.append((now + lasts_s, command.lease.lease_id))

    follow(ledger.add_slots({f"slot{i}": "maze" for i in range(4)}, now=now))
    for step in range(num_batches):
        log.mark("asked", now, step)
        while (taken := ledger.take(4, now))[0] is None:
            ends.sort()
            now, lease_id = ends.pop(0)
            follow(ledger.finished(lease_id, now, oldest_version=ledger.version))
        follow(taken[1])
        log.mark("wrote", now, step)
        log.flush()
        now += 0.5
        follow(ledger.publish(step + 1, now))
    log.flush()
    return ledger


def sections_of(folder: Path) -> list[Any]:
    return _from_zero(read_log(folder))


def test_the_reason_of_a_wait_is_the_episode_that_came_last(tmp_path: Path) -> None:
    play(tmp_path)
    history = replay(sections_of(tmp_path))
    assert history.difference is None
    assert sorted(history.batches) == [0, 1, 2, 3, 4, 5]
    said = " ".join(history.why_step(0))
    assert "Step 0 waited 3.1 s: 0 of 2 groups were ready when it asked, and 4 of 4 environments" in said
    assert "The last group that it needed was group 1 (maze 1): member 1 played for 3.1 s on slot3" in said


def test_a_group_tells_its_life(tmp_path: Path) -> None:
    play(tmp_path)
    history = replay(sections_of(tmp_path))
    first, *moments = history.why_group(history.batches[2][0])
    assert "delivered with step 2" in first
    assert any("began on slot" in moment for moment in moments)
    assert moments[-1].endswith("delivered with step 2")
    with pytest.raises(ValueError, match="no group 999"):
        history.why_group(999)
    with pytest.raises(ValueError, match="no batch of step 77"):
        history.why_step(77)


def test_a_ledger_that_decides_otherwise_is_named_with_the_event(tmp_path: Path) -> None:
    play(tmp_path)

    class Greedy(OwnTasks):
        def start(self, groups: OpenGroups) -> None:
            self.spare_groups = int(groups.version >= 2)
            super().start(groups)

        def max_open(self) -> int:
            return super().max_open() + self.spare_groups

    def greedy(config: LedgerConfig, state: LedgerState | None) -> RolloutLedger:
        return RolloutLedger(config, state, Greedy(config))

    difference = replay(sections_of(tmp_path), greedy).difference
    assert difference is not None
    assert difference.event.startswith("finished(lease_id=11, oldest_version=2")
    assert "decides otherwise" in str(difference)
    assert "x Grant" in difference.decided


def test_a_batch_of_other_groups_is_a_difference_though_the_commands_are_the_same(tmp_path: Path) -> None:
    config = LedgerConfig(batch_size=1, group_size=1, alpha=2, tag_weights={"maze": 1})
    log = LedgerLog(tmp_path, config, None)
    ledger = recorded(RolloutLedger(config), log)
    now = log.clock(0)
    ledger.add_slots({"slot0": "maze", "slot1": "maze"}, now)
    ledger.finished(1, now, oldest_version=0)
    ledger.finished(0, now, oldest_version=0)
    ledger.take(1, now)
    log.flush()

    class Ordered(RolloutLedger):
        def take(self, num_trajectories: int, now: float) -> Any:
            self.groups.ready = dict(sorted(self.groups.ready.items()))
            return super().take(num_trajectories, now)

    assert replay(read_log(tmp_path)).difference is None
    difference = replay(read_log(tmp_path), Ordered).difference
    assert difference is not None
    assert difference.event == "take(num_trajectories=1)"
    assert difference.decided == "a batch of groups [0]"


def test_a_ledger_that_raises_is_named_with_the_event(tmp_path: Path) -> None:
    play(tmp_path)

    class Broken(RolloutLedger):
        def publish(self, version: int, now: float) -> Any:
            raise KeyError(version)

    difference = replay(sections_of(tmp_path), Broken).difference
    assert difference is not None
    assert difference.event == "publish(version=1)"
    assert difference.decided == "it raises KeyError(1)"


def test_a_group_whose_episodes_all_missed_their_deadline_was_given_up(tmp_path: Path) -> None:
    config = LedgerConfig(
        batch_size=2,
        group_size=2,
        alpha=0,
        tag_weights={"maze": 1},
        episode_deadline_s=10,
        max_group_attempts=1,
        min_group_size=1,
    )
    log = LedgerLog(tmp_path, config, None)
    ledger = recorded(RolloutLedger(config), log)
    ledger.add_slots({"slot0": "maze", "slot1": "maze"}, log.clock(0))
    ledger.tick(log.clock(10_001))  # not on the edge, where seconds of a float decide
    ledger.finished(0, log.clock(11_000), oldest_version=0)  # too late
    log.flush()
    history = replay(read_log(tmp_path))
    assert history.difference is None
    first, *moments = history.why_group(0)
    assert "group 0 (maze 0) was dropped: " in first
    assert any("member 1 was stopped: past the episode deadline" in moment for moment in moments)
    assert "dropped: " in moments[-1]


@pytest.mark.parametrize("cut", [1, 7, 30])
def test_a_torn_frame_is_left_out_and_the_log_goes_on_after_it(tmp_path: Path, cut: int) -> None:
    play(tmp_path)
    path = tmp_path / LOG_NAME
    path.write_bytes(path.read_bytes()[:-cut])
    before = replay(sections_of(tmp_path))
    assert before.difference is None
    play(tmp_path, num_batches=2)
    history = replay(sections_of(tmp_path))
    assert history.num_sections == 2
    assert history.difference is None


def test_a_flipped_bit_is_named(tmp_path: Path) -> None:
    play(tmp_path)
    path = tmp_path / LOG_NAME
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(bytes(data))
    with pytest.raises(StorageError, match="damaged at byte"):
        read_log(tmp_path)


def test_a_run_without_a_log_says_what_writes_one(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"has no events/ledger\.log.*mode: both"):
        read_log(tmp_path)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_every_scenario_replays(scenario: Any) -> None:
    recorder = Recorder()
    try:
        scenario(recorder)
        recorder.logs[-1].flush()
        assert replay(_from_zero(read_log(recorder.folder))).difference is None
    finally:
        shutil.rmtree(recorder.folder)


def test_an_episode_on_a_lost_worker_is_told_and_plays_no_more(tmp_path: Path) -> None:
    config = LedgerConfig(batch_size=2, group_size=2, alpha=0, tag_weights={"maze": 1})
    log = LedgerLog(tmp_path, config, None)
    ledger = recorded(RolloutLedger(config), log)
    ledger.add_slots({"slot0": "maze", "slot1": "maze"}, log.clock(0))
    ledger.remove_slots(["slot1"], log.clock(1_000))
    log.mark("asked", log.clock(2_000), 0)
    ledger.finished(0, log.clock(3_000), oldest_version=0)
    ledger.finished(2, log.clock(5_000), oldest_version=0)
    batch, _ = ledger.take(2, log.clock(5_000))
    assert batch is not None
    log.mark("wrote", log.clock(5_000), 0)
    log.flush()
    history = replay(read_log(tmp_path))
    assert history.difference is None
    assert "1 of 1 environments were playing" in history.why_step(0)[0]
    assert any("member 1 was lost with its worker" in moment for moment in history.why_group(0))
