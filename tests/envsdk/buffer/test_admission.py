"""What is played is trained in time: no group grows too old, and no batch waits for ever."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from envsdk.buffer.admission import PATIENCE, due_groups, num_places
from envsdk.buffer.contract import Terms
from envsdk.buffer.selection import Selection, WaitingGroup, choose
from tests.by_day import examples

EXPLORERS = st.sampled_from(["a", "b", "c"])


class AdmissionMachine(RuleBasedStateMachine):
    """A trainer and explorers whose weights lag behind and whose groups take any time, by the rule alone."""

    @initialize(
        alpha=st.sampled_from([0.0, 0.5, 1.0, 2.5]),
        slack=st.sampled_from([None, 0, 1, 2]),
        interval=st.sampled_from([1, 1, 2, 3]),
        groups_per_batch=st.integers(1, 4),
        max_uses=st.sampled_from([1, 1, 2]),
        order=st.sampled_from(["oldest", "freshest", "priority"]),
    )
    def begin(
        self,
        alpha: float,
        slack: int | None,
        interval: int,
        groups_per_batch: int,
        max_uses: int,
        order: str,
    ) -> None:
        self.terms = Terms(
            seed=0,
            group_size=1,
            groups_per_batch=groups_per_batch,
            alpha=alpha,
            max_staleness=None if slack is None else max(slack, math.ceil(min(alpha, 1))),
            sync_interval=interval,
        )
        self.selection = Selection(order=order, max_uses=max_uses)
        self.step = 0
        self.is_training = False
        self.versions = dict.fromkeys("abc", 0)
        self.waiting: dict[int, WaitingGroup] = {}
        self.num_started = self.num_trained = self.num_in_training = 0
        self.used: list[WaitingGroup] = []

    @property
    def version(self) -> int:
        return self.terms.version_at(self.step)

    @property
    def unused(self) -> list[WaitingGroup]:
        return [group for group in self.waiting.values() if not group.uses]

    def places(self, explorer: str) -> int:
        if self.terms.alpha == 0 and self.is_training:
            return 0
        versions = [group.oldest_version for group in self.unused]
        free = num_places(self.terms, self.step + self.is_training, versions, self.versions[explorer])
        return min(free, self.terms.capacity_groups - self.num_in_training - len(versions))

    @rule(explorer=EXPLORERS, wanted=st.sampled_from([1, 2, 9]))
    def claim(self, explorer: str, wanted: int) -> None:
        for _ in range(min(wanted, self.places(explorer))):
            self.waiting[self.num_started] = WaitingGroup(
                group_id=self.num_started,
                tag="any",
                explorer=explorer,
                oldest_version=self.versions[explorer],
                leased_at=0.0,
                ready_at=None,
            )
            self.num_started += 1

    @rule(explorer=EXPLORERS)
    def load_the_newest_weights(self, explorer: str) -> None:
        self.versions[explorer] = self.version

    @rule(explorer=EXPLORERS)
    def lose(self, explorer: str) -> None:
        """Killed; what it played is claimed again later."""
        self.waiting = {n: g for n, g in self.waiting.items() if g.explorer != explorer or g.ready_at}

    @rule(start=st.integers(0, 20), count=st.integers(1, 6), is_newer=st.booleans())
    def finish(self, start: int, count: int, is_newer: bool) -> None:
        """Their first tokens may have been sampled long after they were claimed."""
        played = [group for group in self.waiting.values() if group.ready_at is None]
        for group in (played[start % max(1, len(played)) :] + played)[:count]:
            version = max(group.oldest_version, self.versions[group.explorer] if is_newer else 0)
            self.waiting[group.group_id] = replace(group, ready_at=1.0, oldest_version=version)

    @precondition(lambda self: not self.is_training)
    @rule()
    def take(self) -> None:
        due = due_groups(self.terms, self.step, self.unused, {"any": math.inf}, now=1e9)
        ready = [group for group in self.waiting.values() if group.ready_at]
        count = self.terms.groups_per_batch
        assert due.is_awaited == any(
            self.num_until(last, ready_only=True)
            < min(count, self.num_until(last) - count * max(0, last - self.step))
            for last in range(self.step, self.step + 20)
        )
        chosen = choose(ready, count, self.selection, first=due.first)
        if chosen is None or due.is_awaited:
            return
        taken = [self.waiting.pop(group_id) for group_id in chosen]
        assert len(taken) == count
        assert all(self.step <= self.terms.last_step(group.oldest_version) for group in taken)
        self.used = [replace(group, uses=group.uses + 1) for group in taken]
        self.num_trained += count
        self.num_in_training = count
        self.is_training = True

    @precondition(lambda self: self.is_training)
    @rule()
    def publish(self) -> None:
        self.step += 1
        self.is_training = False
        self.num_in_training = 0
        self.waiting = {n: g for n, g in self.waiting.items() if not g.uses or self.is_in_time(g)}
        again = [g for g in self.used if g.uses < self.selection.max_uses and self.is_in_time(g)]
        self.waiting |= {group.group_id: group for group in again}

    @rule(laggard=EXPLORERS, rounds=st.integers(1, 3), left=st.integers(0, 3))
    def go_on(self, laggard: str, rounds: int, left: int) -> None:
        """All explorers but one do their work, and leave some groups unfinished, the oldest first."""
        for _ in range(rounds):
            for explorer in set("abc") - {laggard}:
                self.load_the_newest_weights(explorer)
                self.claim(explorer, 9)
            played = [group for group in self.waiting.values() if group.ready_at is None]
            self.finish(left, max(0, len(played) - left), is_newer=False)
            if self.is_training:
                self.publish()
            self.claim(laggard, 9)
            self.take()

    def num_until(self, last: int, *, ready_only: bool = False) -> int:
        """Groups that have to be in a batch up to this step."""
        return sum(
            self.terms.last_step(group.oldest_version) <= last
            for group in self.unused
            if group.ready_at or not ready_only
        )

    def is_in_time(self, group: WaitingGroup) -> bool:
        return self.terms.last_step(group.oldest_version) >= self.step

    @invariant()
    def nothing_grows_too_old(self) -> None:
        if hasattr(self, "terms"):
            assert all(self.is_in_time(group) for group in self.unused)

    def teardown(self) -> None:
        """Whatever happened: once explorers have the newest weights and end what they play, steps go on."""
        if not hasattr(self, "terms"):
            return
        before = self.num_trained
        for _ in range(4):
            if self.is_training:
                self.publish()
            for explorer in "abc":
                self.load_the_newest_weights(explorer)
                self.claim(explorer, 9)
            self.finish(0, len(self.waiting), is_newer=True)
            self.take()
            assert self.is_training
            self.nothing_grows_too_old()
        assert self.num_trained == before + 4 * self.terms.groups_per_batch


AdmissionMachine.TestCase.settings = settings(
    max_examples=examples(35), stateful_step_count=20, deadline=None
)
TestAdmission = AdmissionMachine.TestCase


@given(
    lag=st.integers(0, 4),
    waiting=st.integers(0, 30),
    bound=st.integers(0, 4),
    groups_per_batch=st.integers(1, 6),
)
def test_a_group_begins_if_it_can_be_trained_in_time_behind_those_that_wait(
    lag: int, waiting: int, bound: int, groups_per_batch: int
) -> None:
    terms = Terms(seed=0, group_size=1, groups_per_batch=groups_per_batch, alpha=1, max_staleness=bound)
    newest, version = 10, 10 - lag
    is_admitted = num_places(terms, newest, [version] * waiting, version) > 0
    assert is_admitted == (lag + waiting // groups_per_batch <= bound)


def test_a_batch_waits_for_a_slow_group_and_not_for_one_that_hangs() -> None:
    terms = Terms(seed=0, group_size=1, groups_per_batch=2, alpha=1)
    quick = WaitingGroup(group_id=0, tag="quick", explorer="a", oldest_version=1, leased_at=0.0, ready_at=1.0)
    slow = replace(quick, group_id=1, tag="slow", oldest_version=0, ready_at=None)
    waiting = [quick, replace(quick, group_id=2), slow]
    usual_s = {"slow": 3.0}
    assert due_groups(terms, 1, waiting, usual_s, now=PATIENCE * 3.0).is_awaited
    assert not due_groups(terms, 1, waiting, usual_s, now=PATIENCE * 3.0 + 0.1).is_awaited
    assert not due_groups(terms, 0, waiting, usual_s, now=0.0).is_awaited  # a later batch may hold it
    spare = replace(terms, num_groups_redundancy=1)
    assert not due_groups(spare, 1, waiting, usual_s, now=0.0).is_awaited
    ended = [*waiting[:2], replace(slow, ready_at=2.0)]
    assert due_groups(terms, 1, ended, usual_s, now=2.0).first == {1}
