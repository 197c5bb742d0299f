"""What the ledger does, by example; several are failures of other schedulers that must not happen here."""

import json

import pytest
from ledger_model import LedgerFactory
from ledger_scenarios import DEADLINE_S, SCENARIOS, finish_all, started

from envsdk.contracts.failures import ConfigurationError, StorageError
from envsdk.managers.ledger import RolloutLedger
from envsdk.managers.ledger_types import (
    Cancel,
    CancelReason,
    Discard,
    Grant,
    GroupReady,
    LeaseEnd,
    LedgerConfig,
    LedgerState,
)


def config(**changes: object) -> LedgerConfig:
    settings = {"batch_size": 8, "group_size": 4, "alpha": 0, "tag_weights": {"maze": 1}}
    return LedgerConfig(**{**settings, **changes})  # type: ignore[arg-type]


def slots(count: int, tag: str = "maze") -> dict[str, str]:
    return {f"{tag}{i}": tag for i in range(count)}


def of_type(commands: list, kind: type) -> list:
    return [command for command in commands if isinstance(command, kind)]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.__name__.replace("_", " "))
def test_the_ledger_keeps_its_promises_when(scenario: object) -> None:
    factory: LedgerFactory = RolloutLedger
    scenario(factory)  # type: ignore[operator]


class TestBatches:
    def test_alpha_0_leases_exactly_one_batch_and_nothing_until_the_weights_are_published(self) -> None:
        model = started(num_slots=20)
        assert len(model.running()) == 8
        finish_all(model)
        assert model.running() == []
        assert model.take(8) is not None
        assert model.running() == []
        model.publish(1)
        assert len(model.running()) == 8

    @pytest.mark.parametrize(("alpha", "leased"), [(0.5, 12), (1.0, 16), (1, 16), (1.5, 20), (0.3, 8)])
    def test_alpha_may_be_a_fraction_and_is_rounded_down_to_whole_groups(
        self, alpha: float, leased: int
    ) -> None:
        assert len(started(num_slots=40, alpha=alpha).running()) == leased

    def test_the_decimal_alpha_means_what_it_says(self) -> None:
        assert config(batch_size=20, group_size=1).capacity_groups(1.15) == 43
        assert config(batch_size=100, group_size=1).capacity_groups(0.29) == 129

    def test_one_hung_environment_never_holds_back_a_batch_while_other_groups_are_complete(self) -> None:
        model = started(num_slots=16, alpha=1)
        hung, *others = model.running()
        for lease_id in others:
            model.finish(lease_id, oldest_version=0)
        batch = model.take(8)
        assert batch is not None
        assert hung not in batch.lease_ids

    def test_groups_with_the_oldest_tokens_are_delivered_first_then_those_complete_first(self) -> None:
        model = started(num_slots=12, alpha=2, batch_size=4)
        model.publish(1)
        leases = model.running()
        for group, version in ((0, 1), (1, 0), (2, 0)):
            for lease_id in leases[4 * group : 4 * group + 4]:
                model.finish(lease_id, oldest_version=version)
        order = []
        while (batch := model.take(4)) is not None:
            order.append(batch.groups[0].task.index)
        assert order == [1, 2, 0]

    def test_a_batch_may_be_taken_in_parts(self) -> None:
        model = started()
        finish_all(model)
        first, second = model.take(4), model.take(4)
        assert first is not None
        assert second is not None
        assert model.take(4) is None

    @pytest.mark.parametrize("size", [0, -4, 3, 12])
    def test_a_batch_that_can_never_be_ready_is_refused(self, size: int) -> None:
        with pytest.raises(ValueError, match=f"cannot take {size} trajectories"):
            RolloutLedger(config()).take(size, now=0.0)

    def test_collection_publishes_the_same_version_to_go_on(self) -> None:
        model = started()
        for _ in range(3):
            finish_all(model)
            assert model.take(8) is not None
            model.publish(0)
        assert model.ledger.counts.delivered == 24
        assert model.ledger.counts.stale == 0


class TestStaleness:
    def test_what_gets_too_old_is_cancelled_where_it_runs_and_its_member_is_leased_again(self) -> None:
        ledger = RolloutLedger(config(alpha=1, batch_size=4))
        first = of_type(ledger.add_slots(slots(3), now=0.0), Grant)
        finished, *running = [grant.lease.lease_id for grant in first]
        (fourth,) = of_type(ledger.finished(finished, now=1.0, oldest_version=0), Grant)
        assert not of_type(ledger.publish(1, now=2.0), Cancel)
        commands = ledger.publish(2, now=3.0)
        cancelled = of_type(commands, Cancel)
        assert {c.lease_id for c in cancelled} == {*running, fourth.lease.lease_id}
        assert {c.reason for c in cancelled} == {CancelReason.TOO_OLD}
        # What had finished is as old, and goes too.
        assert [(d.lease_id, d.end) for d in of_type(commands, Discard)] == [(finished, LeaseEnd.STALE)]
        again = [g.lease for g in of_type(ledger.slots_idle(slots(3), now=3.0), Grant)]
        assert [(lease.group_id, lease.member, lease.attempt) for lease in again] == [
            (0, 0, 1),
            (0, 1, 1),
            (0, 2, 1),
        ]
        assert ledger.counts.stale == 4

    def test_the_next_batch_is_one_version_later_so_what_will_be_too_old_ends_when_one_is_taken(self) -> None:
        model = started(num_slots=16, alpha=1)
        straggler = model.running()[0]
        for lease_id in model.running()[1:]:
            model.finish(lease_id, oldest_version=0)
        model.publish(1)
        assert straggler in model.running()
        younger = [i for i in model.running() if model.records[i].lease.version == 1]
        assert model.take(8) is not None
        assert straggler not in model.running()
        assert set(younger) <= set(model.running())

    def test_an_episode_that_sampled_nothing_is_never_too_old(self) -> None:
        model = started(num_slots=4, alpha=1, batch_size=4)
        for lease_id in model.running():
            model.finish(lease_id, oldest_version=None)
        model.publish(7)
        assert model.take(4) is not None

    def test_a_group_given_up_makes_room_for_the_next_task(self) -> None:
        model = started(num_slots=4, alpha=1, batch_size=4, max_group_attempts=2)
        for _ in range(2):
            model.publish(model.version + 2)
            model.slots_idle(list(model.slots))
        tasks = {model.records[lease_id].lease.task.index for lease_id in model.running()}
        assert 0 not in tasks
        assert len(model.running()) == 4


class TestGroups:
    def test_a_filtered_group_is_refilled_by_several_environments_in_parallel(self) -> None:
        ledger = RolloutLedger(config())
        grants = of_type(ledger.add_slots(slots(8), now=0.0), Grant)
        commands = []
        for grant in grants[:4]:
            commands += ledger.finished(grant.lease.lease_id, now=1.0, oldest_version=0)
        (ready,) = of_type(commands, GroupReady)
        commands = ledger.reject_group(ready.group_id, now=1.0)
        assert {(c.lease_id, c.end) for c in of_type(commands, Discard)} == {
            (lease_id, LeaseEnd.FILTERED) for lease_id in ready.lease_ids
        }
        refill = of_type(commands, Grant)
        assert len(refill) == 4
        assert {grant.lease.task.index for grant in refill} == {2}

    def test_the_first_members_win_and_spares_are_cancelled(self) -> None:
        ledger = RolloutLedger(config(batch_size=2, group_size=2, group_size_redundancy=2))
        first, second, third, fourth = of_type(ledger.add_slots(slots(4), now=0.0), Grant)
        ledger.finished(third.lease.lease_id, now=1.0, oldest_version=0, failed=True)
        ledger.finished(fourth.lease.lease_id, now=1.0, oldest_version=0)
        commands = ledger.finished(first.lease.lease_id, now=1.0, oldest_version=0)
        assert commands == [
            Cancel(lease_id=second.lease.lease_id, slot_id=second.slot_id, reason=CancelReason.SPARE),
            Discard(lease_id=third.lease.lease_id, end=LeaseEnd.FAILED, reason=CancelReason.SPARE),
            GroupReady(
                group_id=first.lease.group_id, lease_ids=(first.lease.lease_id, fourth.lease.lease_id)
            ),
        ]

    def test_failed_members_fill_a_group_that_has_enough_valid_ones(self) -> None:
        model = started(num_slots=4, batch_size=4)
        one, two, three, four = model.running()
        model.finish(one, oldest_version=0, failed=True)
        model.finish(two, oldest_version=0)
        model.finish(three, oldest_version=0, failed=True)
        model.finish(four, oldest_version=0)
        batch = model.take(4)
        assert batch is not None
        assert batch.groups[0].failures == dict.fromkeys((one, three), CancelReason.EPISODE_FAILED)
        assert model.ledger.counts.failed == 2
        assert model.ledger.counts.delivered == 2

    def test_below_min_group_size_the_failed_members_are_played_again_without_waiting_for_the_rest(
        self,
    ) -> None:
        model = started(num_slots=4, batch_size=4, min_group_size=3)
        one, two, three, _ = model.running()
        model.finish(one, oldest_version=0, failed=True)
        assert len(model.running()) == 3
        model.finish(two, oldest_version=0, failed=True)
        again = [model.records[lease_id].lease for lease_id in model.running()[-2:]]
        assert {(lease.member, lease.attempt) for lease in again} == {(0, 1), (1, 1)}
        assert three in model.running()

    def test_with_min_group_size_0_a_task_is_delivered_whatever_came_of_it(self) -> None:
        model = started(num_slots=4, batch_size=4, min_group_size=0)
        finish_all(model, failed=True)
        batch = model.take(4)
        assert batch is not None
        assert len(batch.groups[0].failures) == 4

    @pytest.mark.parametrize(("group_size", "min_valid"), [(1, 1), (2, 2), (3, 2), (4, 2), (8, 4), (9, 5)])
    def test_half_of_a_group_must_be_valid_unless_said_otherwise(
        self, group_size: int, min_valid: int
    ) -> None:
        assert config(batch_size=group_size, group_size=group_size).min_valid == min_valid

    def test_the_mixture_follows_the_weights_however_slow_a_tag_is(self) -> None:
        model = started(num_slots=0, alpha=1, batch_size=16, tag_weights={"slow": 1, "fast": 3})
        model.add_slots(slots(1, "slow") | slots(30, "fast"))
        while model.take(16) is None:
            model.finish(model.running()[-1], oldest_version=0)
        cursors = model.ledger.state().cursors
        assert cursors == {"slow": 2, "fast": 6}


class TestSlots:
    def test_the_slot_of_a_cancelled_episode_is_busy_until_it_is_reported_free(self) -> None:
        ledger = RolloutLedger(config(batch_size=4, episode_deadline_s=10.0))
        (grant,) = of_type(ledger.add_slots(slots(1), now=0.0), Grant)
        assert ledger.next_deadline() == 10.0
        (cancel,) = of_type(ledger.tick(now=10.0), Cancel)
        assert cancel == Cancel(
            lease_id=grant.lease.lease_id, slot_id=grant.slot_id, reason=CancelReason.DEADLINE
        )
        assert ledger.counts.failed == 1
        assert len(of_type(ledger.slots_idle([grant.slot_id], now=11.0), Grant)) == 1

    def test_a_report_after_the_deadline_frees_the_slot_and_its_result_is_dropped(self) -> None:
        ledger = RolloutLedger(config(batch_size=4, episode_deadline_s=10.0))
        (grant,) = of_type(ledger.add_slots(slots(1), now=0.0), Grant)
        ledger.tick(now=10.0)
        discard, again = ledger.finished(grant.lease.lease_id, now=11.0, oldest_version=0)
        assert discard == Discard(
            lease_id=grant.lease.lease_id, end=LeaseEnd.FAILED, reason=CancelReason.LATE
        )
        assert isinstance(again, Grant)
        assert ledger.counts.failed == 1

    def test_an_idle_report_of_an_earlier_lease_does_not_end_the_present_one(self) -> None:
        ledger = RolloutLedger(config(batch_size=4))
        (grant,) = of_type(ledger.add_slots(slots(1), now=0.0), Grant)
        assert ledger.slots_idle([grant.slot_id], now=1.0) == []
        assert ledger.counts.open == 1

    def test_what_a_lost_worker_played_is_played_elsewhere(self) -> None:
        ledger = RolloutLedger(config(batch_size=4))
        (grant,) = of_type(ledger.add_slots({"worker0/0": "maze"}, now=0.0), Grant)
        assert ledger.remove_slots(["worker0/0"], now=1.0) == []
        (again,) = of_type(ledger.add_slots({"worker1/0": "maze"}, now=2.0), Grant)
        assert again.lease.task == grant.lease.task
        assert again.lease.lease_id != grant.lease.lease_id
        assert ledger.counts.cancelled == 1

    def test_a_member_whose_worker_is_lost_again_and_again_fills_its_group_as_failed(self) -> None:
        ledger = RolloutLedger(config(batch_size=4, min_group_size=3, max_group_attempts=3))
        (first, *others) = of_type(ledger.add_slots(slots(4), now=0.0), Grant)
        for grant in others:
            ledger.finished(grant.lease.lease_id, now=1.0, oldest_version=0)
        lost = first
        for attempt in range(1, 3):
            (lost,) = of_type(ledger.add_slots({lost.slot_id: "maze"}, now=1.0), Grant)
            assert (lost.lease.member, lost.lease.attempt) == (first.lease.member, attempt)
        (ready,) = of_type(ledger.remove_slots([lost.slot_id], now=1.0), GroupReady)
        batch, _ = ledger.take(4, now=1.0)
        assert batch is not None
        assert batch.lease_ids == ready.lease_ids
        assert batch.groups[0].failures == {lost.lease.lease_id: CancelReason.WORKER_LOST}
        assert (ledger.counts.failed, ledger.counts.cancelled) == (1, 2)

    def test_a_group_that_keeps_losing_its_workers_is_given_up(self) -> None:
        ledger = RolloutLedger(config(batch_size=4, min_group_size=3, max_group_attempts=2))
        names = slots(4)
        (first, *_) = of_type(ledger.add_slots(names, now=0.0), Grant)
        for _ in range(2):
            ledger.remove_slots(names, now=1.0)
            grants = of_type(ledger.add_slots(names, now=1.0), Grant)
        assert {grant.lease.task.index for grant in grants} == {first.lease.task.index + 1}
        assert (ledger.counts.failed, ledger.counts.cancelled) == (4, 4)

    def test_nothing_is_granted_while_suspended_and_no_deadline_runs(self) -> None:
        ledger = RolloutLedger(config(episode_deadline_s=10.0))
        (grant,) = of_type(ledger.add_slots(slots(1), now=0.0), Grant)
        ledger.suspend(now=4.0)
        assert ledger.finished(grant.lease.lease_id, now=5.0, oldest_version=0) == []
        assert ledger.next_deadline() is None
        (resumed,) = of_type(ledger.resume(now=100.0), Grant)
        assert resumed.lease.deadline == 110.0
        ledger.suspend(now=101.0)
        ledger.resume(now=131.0)
        assert ledger.next_deadline() == 140.0

    def test_a_slot_for_an_unknown_tag_is_refused_by_name(self) -> None:
        with pytest.raises(ValueError, match="slot 's' plays tag 'garden', which is not one of maze"):
            RolloutLedger(config()).add_slots({"s": "garden"}, now=0.0)

    def test_versions_never_go_back(self) -> None:
        ledger = RolloutLedger(config())
        ledger.publish(3, now=0.0)
        with pytest.raises(ValueError, match="version 2 was published after version 3"):
            ledger.publish(2, now=1.0)


class TestRestart:
    def test_a_resumed_run_plays_unfinished_tasks_again_and_delivered_ones_never(self) -> None:
        model = started(num_slots=16, alpha=1)
        for lease_id in model.running()[:12]:
            model.finish(lease_id, oldest_version=0)
        batch = model.take(8)
        assert batch is not None
        model.restart()
        model.add_slots(slots(16))
        tasks = [model.records[lease_id].lease.task.index for lease_id in model.running()]
        assert sorted(set(tasks)) == [2, 3, 4, 5]
        assert min(model.running()) == 16

    def test_the_state_survives_json(self) -> None:
        model = started(tag_weights={"maze": 2, "garden": 1}, alpha=1)
        state = model.ledger.state()
        assert LedgerState.from_dict(json.loads(json.dumps(state.to_dict()))) == state

    def test_a_state_of_another_format_is_refused_with_the_way_out(self) -> None:
        saved = RolloutLedger(config()).state().to_dict()
        with pytest.raises(StorageError, match="has format 99, this version reads 1"):
            LedgerState.from_dict({**saved, "format": 99})

    def test_a_changed_mixture_starts_its_shares_afresh_and_keeps_each_tags_place(self) -> None:
        model = started(num_slots=8)
        finish_all(model)
        assert model.take(8) is not None
        changed = config(tag_weights={"maze": 1, "garden": 1})
        ledger = RolloutLedger(changed, model.ledger.state())
        grants = of_type(ledger.add_slots(slots(8) | slots(8, "garden"), now=0.0), Grant)
        assert {(g.lease.task.tag, g.lease.task.index) for g in grants} == {("maze", 2), ("garden", 0)}


class TestMessages:
    def test_a_stalled_run_says_what_was_thrown_away_and_what_to_do(self) -> None:
        model = started(max_fruitless_batches=2)
        finish_all(model)
        model.ready.clear()
        for group_id in (0, 1):
            model.reject(group_id)
        while not model.stalls:
            finish_all(model, failed=True)
        (message,) = model.stalls
        assert "16 trajectories were thrown away" in message
        assert "8 rejected by the group filter" in message
        assert "8 episode failed" in message
        assert "The limit is 2 x rollout_batch_size 8" in message

    def test_a_tag_without_environments_is_named(self) -> None:
        model = started(num_slots=0)
        model.tick()
        assert model.ledger.next_deadline() == DEADLINE_S
        model.pass_time(DEADLINE_S)
        model.tick()
        (message,) = model.stalls
        assert "tag 'maze' has had tasks waiting" in message
        assert "no worker offers it" in message

    def test_a_batch_of_no_whole_groups_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match=r"rollout_batch_size is 10, .* group_size 4"):
            config(batch_size=10)
