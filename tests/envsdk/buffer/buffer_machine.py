"""The buffer under random explorers, trainers, clocks and kills. The same machine for every database.

What a program was told is kept beside the buffer, and compared with what the buffer does later.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
import sqlalchemy as sa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from envsdk.buffer import tables
from envsdk.buffer.contract import (
    FinishedGroup,
    GroupState,
    LeaseLost,
    Member,
    Role,
    TakenBatch,
    Terms,
)
from envsdk.buffer.selection import Selection
from envsdk.buffer.sql_buffer import SqlBuffer
from envsdk.contracts.failures import ConfigurationError

LEASE_S = 30.0
NAMES = st.sampled_from(["a", "b", "c"])


@dataclass
class Player:
    """An explorer as it sees itself."""

    member: Member
    version: int
    playing: list[int] = field(default_factory=list)


class BufferMachine(RuleBasedStateMachine):
    """Subclasses say how an empty database is made."""

    def new_engine(self) -> sa.Engine:
        raise NotImplementedError

    @initialize(
        alpha=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
        max_uses=st.sampled_from([1, 1, 2]),
        order=st.sampled_from(["oldest", "freshest", "priority"]),
        sync_interval=st.sampled_from([1, 1, 2]),
    )
    def begin(self, alpha: float, max_uses: int, order: str, sync_interval: int) -> None:
        self.now = 1_000.0
        self.engine = self.new_engine()
        self.buffer = SqlBuffer(self.engine, lease_s=LEASE_S, clock=lambda connection: self.now)
        self.terms = Terms(
            seed=1,
            group_size=2,
            groups_per_batch=2,
            alpha=alpha,
            sync_interval=sync_interval,
            max_group_attempts=3,
        )
        self.buffer.create("job", self.terms)
        self.selection = Selection(order=order, max_uses=max_uses, cool_down_steps=max_uses - 1)
        self.players: dict[str, Player] = {}
        self.killed: set[str] = set()
        self.step = self.saved = 0
        self.checkpoints = [0]
        self.batches: dict[int, TakenBatch] = {}
        """Those that the weights which go on have learned from, or are about to."""
        self.in_step = False
        self.num_calls = 0
        self.trainer = self.buffer.join(Role.TRAINER, "trainer")
        self.buffer.trainer.begin(self.trainer, 0)
        self.publish()

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.dispose()

    def publish(self) -> None:
        version = self.terms.version_at(self.step)
        location = {"at": version} if self.step % self.terms.sync_interval == 0 else None
        self.buffer.trainer.publish(self.trainer, self.step, version, location, selection=self.selection)

    @rule(name=NAMES)
    def start_explorer(self, name: str) -> None:
        newest = self.buffer.newest_version()
        assert newest is not None
        try:
            member = self.buffer.join(Role.EXPLORER, name)
        except ConfigurationError:
            assert name in self.players or name in self.killed
            return
        self.players[name] = Player(member, newest.version)

    @rule(name=NAMES)
    def kill_explorer(self, name: str) -> None:
        """The buffer does not hear of it; only the clock tells."""
        if self.players.pop(name, None) is not None:
            self.killed.add(name)

    @rule(name=NAMES)
    def leave(self, name: str) -> None:
        player = self.players.pop(name, None)
        if player is not None:
            self.buffer.leave(player.member)

    @rule(name=NAMES)
    def update(self, name: str) -> None:
        newest = self.buffer.newest_version()
        if name in self.players and newest is not None:
            self.players[name].version = newest.version

    @rule(name=NAMES, count=st.integers(1, 6), twice=st.booleans())
    def claim(self, name: str, count: int, twice: bool) -> None:
        player = self.players.get(name)
        if player is None:
            return
        self.num_calls += 1
        token = f"call {self.num_calls}"
        tags = ["lake", "rooms"] * count
        try:
            claimed = self.buffer.explorer.claim(
                player.member, tags[:count], version=player.version, token=token
            )
        except LeaseLost:
            self.players.pop(name)
            return
        if twice:
            again = self.buffer.explorer.claim(
                player.member, tags[:count], version=player.version, token=token
            )
            assert not claimed or again == claimed
            claimed = claimed or again
        assert len(claimed) <= count
        if claimed:
            assert player.version >= self.buffer.view().min_version
        player.playing += [group.group_id for group in claimed]

    @rule(name=NAMES, count=st.integers(1, 4), age=st.integers(0, 2), twice=st.booleans())
    def put(self, name: str, count: int, age: int, twice: bool) -> None:
        player = self.players.get(name)
        if player is None or not player.playing:
            return
        ids, player.playing = player.playing[:count], player.playing[count:]
        version = max(0, player.version - age)
        finished = [
            FinishedGroup(
                group_id=each, payload=b"%d" % each, num_trajectories=2, num_tokens=4, oldest_version=version
            )
            for each in ids
        ]
        held = self.buffer.view(player.member).held
        refused = set(self.buffer.explorer.put(player.member, finished))
        assert {each for each in ids if each not in held} <= refused
        if version >= self.buffer.view().min_version:
            assert refused <= {each for each in ids if each not in held}
        else:
            assert refused == set(ids)
        if twice:
            assert set(self.buffer.explorer.put(player.member, finished)) >= refused

    @rule(name=NAMES)
    def give_up(self, name: str) -> None:
        player = self.players.get(name)
        if player is None or not player.playing:
            return
        group = player.playing.pop()
        self.buffer.explorer.drop(player.member, {group: "filtered"})

    @rule(seconds=st.sampled_from([1.0, 10.0, 20.0, 31.0]), trainer_lives=st.booleans())
    def wait(self, seconds: float, trainer_lives: bool) -> None:
        self.now += seconds
        for name, player in list(self.players.items()):
            try:
                view = self.buffer.renew(player.member, version=player.version)
            except LeaseLost:
                self.players.pop(name)
                continue
            player.playing = [each for each in player.playing if each in view.held]
        if trainer_lives:
            try:
                self.buffer.renew(self.trainer)
            except LeaseLost:
                self.restart_trainer()

    @precondition(lambda self: not self.in_step)
    @rule()
    def take(self) -> None:
        version = self.terms.version_at(self.step)
        try:
            taken = self.buffer.trainer.take(
                self.trainer, self.step, version=version, selection=self.selection
            )
        except LeaseLost:
            self.restart_trainer()
            return
        if taken is None:
            assert self.step not in self.batches
            return
        ids = [group.group_id for group in taken.groups]
        assert len(ids) == self.terms.groups_per_batch == len(set(ids))
        assert all(group.payload == b"%d" % group.group_id for group in taken.groups)
        if self.step in self.batches:
            assert taken.is_again
            assert [each.group_id for each in self.batches[self.step].groups] == ids
        else:
            assert not taken.is_again
            with self.engine.connect() as connection:
                oldest = connection.execute(
                    sa.select(sa.func.min(tables.groups.c.oldest_version)).where(tables.groups.c.id.in_(ids))
                ).scalar_one()
            assert oldest >= version - self.terms.staleness_bound
        self.batches[self.step] = taken
        self.in_step = True

    @precondition(lambda self: self.in_step)
    @rule(saves=st.booleans())
    def train(self, saves: bool) -> None:
        try:
            self.buffer.renew(self.trainer)
            self.step += 1
            self.in_step = False
            self.publish()
            if saves:
                self.saved = self.step
                self.checkpoints = [*self.checkpoints[-2:], self.step]
                self.buffer.trainer.trained(self.trainer, self.step, keep_from=self.checkpoints[0])
        except LeaseLost:
            self.restart_trainer()

    @rule()
    def restart_trainer(self) -> None:
        """Killed at any time, and started again from its newest checkpoint."""
        self.now += LEASE_S + 1
        self.trainer = self.buffer.join(Role.TRAINER, "trainer")
        self.step, self.in_step = self.saved, False
        self.buffer.trainer.begin(self.trainer, self.step)
        self.publish()

    @rule(far=st.integers(1, 2))
    def go_back(self, far: int) -> None:
        """The trainer continues from an earlier checkpoint: nothing counts that later weights sampled."""
        if len(self.checkpoints) <= far:
            return
        del self.checkpoints[-far:]
        self.saved = self.checkpoints[-1]
        with self.engine.connect() as connection:
            newest = connection.execute(sa.select(sa.func.max(tables.versions.c.step))).scalar_one()
        self.restart_trainer()
        version = self.terms.version_at(self.saved)
        with self.engine.connect() as connection:
            query = sa.select(tables.groups.c.oldest_version).where(
                tables.groups.c.state == GroupState.READY, tables.groups.c.uses == 0
            )
            assert all(oldest <= version for oldest in connection.execute(query).scalars())
            published = sa.select(sa.func.max(tables.versions.c.version))
            assert connection.execute(published).scalar_one() <= version
        if newest > self.saved:
            for player in self.players.values():
                with pytest.raises(LeaseLost):
                    self.buffer.renew(player.member)
            self.players.clear()

    @invariant()
    def every_promise_holds(self) -> None:
        if not hasattr(self, "terms"):
            return
        with self.engine.connect() as connection:
            rows = connection.execute(sa.select(tables.groups)).mappings().all()
            payloads = set(connection.execute(sa.select(tables.payloads.c.group_id)).scalars())
            uses = Counter(connection.execute(sa.select(tables.batch_groups.c.group_id)).scalars())
            living = set(
                connection.execute(
                    sa.select(tables.members.c.incarnation).where(tables.members.c.left_at.is_(None))
                ).scalars()
            )
        by_state: dict[str, list[int]] = {state: [] for state in GroupState}
        for row in rows:
            by_state[row["state"]].append(row["id"])
            assert (row["state"] == GroupState.LEASED) <= (row["incarnation"] in living)
            assert uses[row["id"]] == row["uses"] <= self.selection.max_uses
            assert (row["state"] in (GroupState.READY, GroupState.TAKEN)) <= (row["id"] in payloads)
            assert (row["state"] in (GroupState.OPEN, GroupState.LEASED, GroupState.DROPPED)) <= (
                row["id"] not in payloads
            )
            assert (row["state"] == GroupState.DROPPED) == (row["reason"] is not None)
            assert row["state"] != GroupState.TRAINED or row["step"] < self.saved
        tasks = Counter((row["tag"], row["task_index"]) for row in rows)
        assert max(tasks.values(), default=1) == 1
        occupied = [
            row
            for row in rows
            if row["state"] == GroupState.LEASED
            or (row["state"] == GroupState.READY and not row["uses"])
            or (row["state"] == GroupState.TAKEN and row["step"] == self.step)
        ]
        assert len(occupied) <= self.terms.capacity_groups
        learned = {
            group.group_id
            for step, batch in self.batches.items()
            if step < self.saved
            for group in batch.groups
        }
        assert self.selection.max_uses > 1 or set(by_state[GroupState.TRAINED]) == learned
