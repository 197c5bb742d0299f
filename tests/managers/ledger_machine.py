"""Random event sequences for the ledger, as a Hypothesis state machine over `CheckedLedger`."""

from __future__ import annotations

import math

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from ledger_model import CheckedLedger, LedgerFactory

from envsdk.managers.ledger import RolloutLedger
from envsdk.managers.ledger_types import LedgerConfig

DEADLINE_S = 100.0

configs = st.builds(
    lambda group_size, num_groups, min_group_size, alpha, more, **rest: LedgerConfig(
        batch_size=group_size * num_groups,
        alpha=alpha,
        max_staleness=None if more is None or alpha == 0 else max(1, math.ceil(alpha) + more),
        max_wait_share=0.1 if alpha else None,
        group_size=group_size,
        min_group_size=None if min_group_size is None else min(min_group_size, group_size),
        episode_deadline_s=DEADLINE_S,
        max_group_attempts=4,
        **rest,
    ),
    group_size=st.integers(1, 4),
    num_groups=st.integers(1, 3),
    min_group_size=st.sampled_from([None, None, 0, 1, 4]),
    alpha=st.sampled_from([0, 0.5, 1, 1.5, 2]),
    more=st.sampled_from([None, None, -1, 1, 2]),
    tag_weights=st.sampled_from([{"a": 1}, {"a": 2, "b": 1}]),
    group_size_redundancy=st.sampled_from([0, 0, 1, 2]),
    num_groups_redundancy=st.sampled_from([0, 0, 1]),
    max_fruitless_batches=st.sampled_from([1, 3]),
    keeps_shares=st.booleans(),
)


class LedgerMachine(RuleBasedStateMachine):
    """Everything a shell may do, in any order, then a drain that must deliver."""

    make: LedgerFactory = RolloutLedger
    model: CheckedLedger

    @initialize(config=configs, num_slots=st.integers(1, 8))
    def start(self, config: LedgerConfig, num_slots: int) -> None:
        self.num_slots_named = 0
        self.model = CheckedLedger(config, type(self).make)
        for tag in config.tag_weights:
            self._add(tag, num_slots)

    def _add(self, tag: str, count: int) -> None:
        names = [f"slot{self.num_slots_named + i}" for i in range(count)]
        self.num_slots_named += count
        self.model.add_slots(dict.fromkeys(names, tag))

    @rule(data=st.data(), count=st.integers(1, 3))
    def slots_appear(self, data: st.DataObject, count: int) -> None:
        self._add(data.draw(st.sampled_from(list(self.model.config.tag_weights))), count)

    @precondition(lambda self: self.model.slots)
    @rule(data=st.data())
    def a_worker_comes_back_under_its_name(self, data: st.DataObject) -> None:
        slot_id = data.draw(st.sampled_from(list(self.model.slots)))
        self.model.add_slots({slot_id: self.model.slots[slot_id]})

    @precondition(lambda self: self.model.slots)
    @rule(data=st.data())
    def a_worker_is_lost(self, data: st.DataObject) -> None:
        """Also one that was drained and still played."""
        known = sorted({*self.model.slots, *self.model.occupied})
        ids = st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True)
        self.model.remove_slots(data.draw(ids))

    @precondition(lambda self: self.model.slots)
    @rule(data=st.data(), in_a_hurry=st.booleans())
    def a_worker_is_drained(self, data: st.DataObject, in_a_hurry: bool) -> None:
        ids = st.lists(st.sampled_from(list(self.model.slots)), min_size=1, max_size=3, unique=True)
        slot_ids = data.draw(ids)
        if in_a_hurry:
            self.model.hand_over(slot_ids)
        else:
            self.model.retire_slots(slot_ids)

    @precondition(lambda self: self.model.running())
    @rule(
        data=st.data(),
        age=st.integers(-1, 2),
        outcome=st.sampled_from(["valid", "valid", "valid", "failed", "nothing sampled"]),
    )
    def an_episode_finishes(self, data: st.DataObject, age: int, outcome: str) -> None:
        lease_id = data.draw(st.sampled_from(self.model.running()))
        # From one version before the grant (an engine that lagged) to now.
        granted = self.model.records[lease_id].lease.version
        oldest = max(0, min(granted + age, self.model.version))
        self.model.pass_time(1.0)
        self.model.finish(
            lease_id,
            oldest_version=None if outcome == "nothing sampled" else oldest,
            failed=outcome == "failed",
        )

    def _finish_all(self, *, except_first: int = 0) -> None:
        for lease_id in self.model.running()[except_first:]:
            # Finishing one member may cancel another.
            if lease_id in self.model.running():
                version = self.model.records[lease_id].lease.version
                self.model.finish(lease_id, oldest_version=version)

    @rule(hung=st.integers(0, 2))
    def all_but_a_few_finish(self, hung: int) -> None:
        self._finish_all(except_first=hung)

    @rule(hung=st.integers(0, 2), publish=st.booleans())
    def a_step_goes_by(self, hung: int, publish: bool) -> None:
        self.model.resume()
        for _ in range(4):
            self._finish_all(except_first=hung)
            if self.model.take(self.model.config.batch_size) is not None:
                break
        if publish:
            self.model.publish(self.model.version + 1)

    @precondition(lambda self: self.model.cancelled_on_slots())
    @rule(data=st.data(), by_name=st.booleans())
    def a_cancelled_slot_reports(self, data: st.DataObject, by_name: bool) -> None:
        lease_id = data.draw(st.sampled_from(self.model.cancelled_on_slots()))
        if by_name:
            self.model.slots_idle([self.model.records[lease_id].slot_id])
        else:
            self.model.finish(lease_id, oldest_version=self.model.version)

    @precondition(lambda self: self.model.records)
    @rule(data=st.data())
    def an_old_report_arrives(self, data: st.DataObject) -> None:
        running = set(self.model.running())
        others = [lease_id for lease_id in self.model.records if lease_id not in running]
        if others:
            self.model.finish(data.draw(st.sampled_from(others)), oldest_version=0)

    @rule(seconds=st.sampled_from([1.0, DEADLINE_S / 2, DEADLINE_S * 2]))
    def time_passes(self, seconds: float) -> None:
        self.model.pass_time(seconds)
        self.model.tick()

    @rule(step=st.sampled_from([0, 1, 1, 1, 2]))
    def weights_are_published(self, step: int) -> None:
        self.model.publish(self.model.version + step)

    @precondition(lambda self: self.model.config.alpha > 0)
    @rule(alpha=st.sampled_from([0.25, 0.5, 1, 2, 3]))
    def the_depth_changes(self, alpha: float) -> None:
        self.model.set_depth(min(alpha, self.model.bound))

    @rule(part=st.booleans(), publish=st.booleans())
    def a_batch_is_taken(self, part: bool, publish: bool) -> None:
        config = self.model.config
        batch = self.model.take(config.group_size if part else config.batch_size)
        if batch is not None and publish:
            self.model.publish(self.model.version + 1)

    @precondition(lambda self: self.model.ready)
    @rule(data=st.data())
    def a_group_is_filtered(self, data: st.DataObject) -> None:
        group_id = data.draw(st.sampled_from(list(self.model.ready)))
        self.model.reject(group_id)

    @rule()
    def validation_starts(self) -> None:
        self.model.suspend()

    @precondition(lambda self: self.model.is_suspended)
    @rule()
    def validation_ends(self) -> None:
        self.model.resume()

    @rule()
    def the_run_is_killed_and_resumed(self) -> None:
        self.model.restart()
        for tag in self.model.config.tag_weights:
            self._add(tag, 2)

    def teardown(self) -> None:
        """Whatever happened, episodes that finish lead to batches."""
        if not hasattr(self, "model") or self.model.is_broken:
            return
        model = self.model
        model.resume()
        for tag in model.config.tag_weights:
            self._add(tag, 1)
        model.publish(model.version)
        for _ in range(300):
            model.slots_idle([model.records[lease_id].slot_id for lease_id in model.cancelled_on_slots()])
            self._finish_all()
            if model.take(model.config.batch_size) is not None:
                return
        model.promise(5, False, "every episode finishes and no batch comes")
