"""When an explorer asks for groups."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from envsdk.buffer.contract import ClaimedGroup, FinishedGroup, LeaseLost, Role
from envsdk.buffer.tables import batches, members
from envsdk.config import RunConfig, load_config
from envsdk.contracts.trajectory import RolloutBatch
from envsdk.explorers import explorer as explorers
from envsdk.explorers.explorer import Explorer
from envsdk.explorers.membership import Membership
from envsdk.managers.explorer_scheduler import ExplorerReport
from tests.envsdk.explorers.trainer_stand_in import FolderReader, TrainerStandIn


class Cluster:
    """Plays nothing; each assignment is kept."""

    def __init__(self) -> None:
        self.assigned: asyncio.Queue[Sequence[ClaimedGroup]] = asyncio.Queue()
        self.versions: asyncio.Queue[int] = asyncio.Queue()
        self.rollout_scheduler: Any = self
        self.assign: Any = self
        self.remote = self.assigned.put
        self.engines: Any = self

    async def call(self, awaitable: Any) -> Any:
        return await awaitable

    async def give_weights(self, version: int) -> None:
        self.versions.put_nowait(version)

    def weights_moving(self) -> asyncio.Lock:
        return asyncio.Lock()


class Anything:
    """Says and keeps nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: args[0] if args else None


async def test_an_explorer_whose_weights_are_too_old_claims_as_soon_as_it_has_newer_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explorers, "LOOK_AGAIN_S", 300.0)
    config = load_config(
        "agentic_explorer.yaml", [f"output_dir={tmp_path}", "buffer.lease_s=300", "async_generation_ratio=0"]
    ).config
    trainer = TrainerStandIn(config)
    membership = Membership(config, Role.EXPLORER, "first", say=print)
    await membership.join()
    cluster = Cluster()
    anything: Any = Anything()
    explorer = Explorer(
        config,
        cluster,  # type: ignore[arg-type]
        membership=membership,
        reader=FolderReader(),  # type: ignore[arg-type]
        weights=anything,
        tracker=anything,
        display=anything,
    )
    trainer.publish(0, tmp_path)
    newest = trainer.buffer.newest_version()
    assert newest is not None
    await explorer._load(newest, membership.me)
    trainer.publish(1, tmp_path)  # no step will be trained on version 0 again

    explorer._wants(["FrozenLake"])
    claiming = asyncio.create_task(explorer._claim())
    assert await asyncio.to_thread(_wants_some, trainer)
    assert cluster.assigned.empty()
    newest = trainer.buffer.newest_version()
    assert newest is not None
    await explorer._load(newest, membership.me)

    (group,) = await asyncio.wait_for(cluster.assigned.get(), timeout=60)
    assert group.task.tag == "FrozenLake"
    claiming.cancel()
    await membership.leave()
    trainer.leave()


def explorer_on(config: RunConfig, cluster: Any, membership: Membership) -> Any:
    """An explorer whose weights, tracker and display do nothing."""
    anything: Any = Anything()
    return Explorer(
        config,
        cluster,
        membership=membership,
        reader=FolderReader(),  # type: ignore[arg-type]
        weights=anything,
        tracker=anything,
        display=anything,
    )


async def test_an_explorer_goes_back_with_its_trainer_and_claims_with_no_weights_that_were_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explorers, "LOOK_AGAIN_S", 0.05)
    config = load_config("agentic_explorer.yaml", [f"output_dir={tmp_path}", "buffer.lease_s=300"]).config
    trainer = TrainerStandIn(config)
    membership = Membership(config, Role.EXPLORER, "first", say=print)
    await membership.join()
    cluster, buffer = Cluster(), trainer.buffer
    explorer = explorer_on(config, cluster, membership)
    following = asyncio.create_task(explorer._follow_versions())
    for version in range(7):
        trainer.publish(version, tmp_path)
        assert await asyncio.wait_for(cluster.versions.get(), timeout=60) == version
    with buffer.engine.begin() as connection:  # a checkpoint of step 6, as far as versions are concerned
        taken = {"waited_s": 0, "taken_at": 0, "trained_at": 1}
        connection.execute(batches.insert(), [{"step": n, "version": n, **taken} for n in range(6)])

    buffer.trainer.begin(trainer.me, 2)
    with pytest.raises(LeaseLost):
        await membership.renew()
    await membership.join()
    explorer._wants(["FrozenLake"])
    claiming = asyncio.create_task(explorer._claim())
    assert await asyncio.wait_for(cluster.versions.get(), timeout=60) == 1  # the newest that holds
    trainer.publish(2, tmp_path)
    assert await asyncio.wait_for(cluster.versions.get(), timeout=60) == 2
    assert cluster.assigned.empty()  # batches 2 to 5 are trained again first
    trainer.publish(6, tmp_path)
    assert await asyncio.wait_for(cluster.versions.get(), timeout=60) == 6
    (group,) = await asyncio.wait_for(cluster.assigned.get(), timeout=60)
    assert group.task.tag == "FrozenLake"
    for task in (claiming, following):
        task.cancel()
    await membership.leave()
    trainer.leave()


class Reports(Cluster):
    """Gives the reports that it is told, one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: asyncio.Queue[ExplorerReport] = asyncio.Queue()
        self.report = SimpleNamespace(remote=self.reports.get)

    def dropped(self, tokens: dict[str, int], group_id: int) -> None:
        finished = FinishedGroup(
            group_id=group_id, payload=b"x", num_trajectories=1, num_tokens=1, oldest_version=0
        )
        counted = RolloutBatch(version=0, groups=(), dropped_tokens=tokens)
        self.reports.put_nowait(
            ExplorerReport(
                finished=[finished], counted=counted, num_succeeded=0, num_failed=0, dropped={}, wanted=[]
            )
        )


async def test_an_explorer_tells_what_it_has_dropped_also_after_it_joined_again(tmp_path: Path) -> None:
    config = load_config("agentic_explorer.yaml", [f"output_dir={tmp_path}", "buffer.lease_s=300"]).config
    trainer = TrainerStandIn(config)
    trainer.publish(0, tmp_path)
    membership = Membership(config, Role.EXPLORER, "first", say=print)
    await membership.join()
    cluster, buffer = Reports(), trainer.buffer
    explorer = explorer_on(config, cluster, membership)
    delivering = asyncio.create_task(explorer._deliver())

    async def told(expected: dict[str, int]) -> None:
        while buffer.dropped_tokens() != expected:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    cluster.dropped({"a": 3}, 1)
    cluster.dropped({"a": 4, "b": 1}, 2)
    await asyncio.wait_for(told({"a": 7, "b": 1}), timeout=60)
    buffer.leave(membership.me)
    await membership.join()
    cluster.dropped({"a": 2}, 3)
    await asyncio.wait_for(told({"a": 9, "b": 1}), timeout=60)
    delivering.cancel()
    await membership.leave()
    trainer.leave()


def _wants_some(trainer: TrainerStandIn) -> bool:
    """Wait until the explorer has asked for groups."""
    wants = sa.select(members.c.wants).where(members.c.role == Role.EXPLORER)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with trainer.buffer.engine.connect() as connection:
            if connection.execute(wants).scalar_one():
                return True
        time.sleep(0.01)
    return False
