"""Faults of a job's trainer that once ended it, or left its explorers waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from envsdk.buffer.audit import audit
from envsdk.buffer.contract import ClaimedGroup, FinishedGroup, JobStatus, Member, Role
from envsdk.buffer.payload import pack
from envsdk.buffer.tables import groups, payloads
from envsdk.config import load_config
from envsdk.config.loading import LoadedConfig
from envsdk.explorers.buffered_batches import BufferedBatches
from envsdk.explorers.membership import Membership
from envsdk.explorers.start import run
from envsdk.explorers.weights import VersionPublisher
from envsdk.runs.checkpoints import RunState, write_checkpoint
from envsdk.runs.run_folder import RunFolder
from envsdk.weights.versions import write_version
from tests.envsdk.explorers.trainer_stand_in import TrainerStandIn
from tests.envsdk.view.view_runs import make_trajectory


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedConfig:
    overrides = [f"output_dir={tmp_path}", "exp_name=job", "max_steps=1", "buffer.lease_s=30"]
    return load_config("agentic_trainer.yaml", overrides)


class Nowhere(VersionPublisher):
    """Keeps no weights."""

    def __init__(self) -> None: ...

    def still_has(self, version: int) -> bool:
        return False

    async def publish(self, version: int) -> Mapping[str, Any]:
        return {"number": version}

    async def close(self) -> None:
        return


async def test_a_trainer_that_was_taken_for_dead_goes_on(loaded: LoadedConfig) -> None:
    config = loaded.config
    folder = RunFolder.open(config)
    membership = Membership(config, Role.TRAINER, "trainer", say=print)
    batches = BufferedBatches(config, folder, membership=membership, publisher=Nowhere(), say=print)
    await batches.start()
    buffer = batches._membership.buffer
    assert batches._living is not None
    batches._living.cancel()
    batches._living = None  # held up: it does not say that it lives

    def dead() -> None:
        buffer.leave(batches._membership.me)  # as an explorer would note it, once the database is back

    dead()
    await batches.publish(0, step=0)
    explorer = buffer.join(Role.EXPLORER, "e")
    _put(batches, explorer)
    dead()
    assert (await batches._taken(0)).step == 0
    dead()
    await batches.checkpointed(1)
    dead()
    await batches.finished()
    assert buffer.view().status is JobStatus.FINISHED
    await batches.close()


def _put(batches: BufferedBatches, explorer: Member) -> None:
    claimed = batches._membership.buffer.explorer.claim(explorer, ["FrozenLake"] * 100, version=0, token="1")
    finished = [
        FinishedGroup(group_id=each.group_id, payload=b"", num_trajectories=1, num_tokens=1, oldest_version=0)
        for each in claimed
    ]
    assert batches._membership.buffer.explorer.put(explorer, finished) == []


async def test_a_damaged_group_is_dropped_by_name_and_the_next_one_takes_its_place(tmp_path: Path) -> None:
    keys = [f"output_dir={tmp_path}", "exp_name=job", "rollout_batch_size=16", "mode=train"]
    config = load_config("agentic_async.yaml", keys).config
    said: list[str] = []
    membership = Membership(config, Role.TRAINER, "trainer", say=said.append)
    folder = RunFolder.open(config)
    batches = BufferedBatches(config, folder, membership=membership, publisher=Nowhere(), say=said.append)
    await batches.start()
    buffer = batches._membership.buffer
    await batches.publish(0, step=0)
    explorer = buffer.join(Role.EXPLORER, "e")
    claimed = buffer.explorer.claim(explorer, ["FrozenLake"] * 3, version=0, token="1")
    assert len(claimed) == 3

    def packed(group: ClaimedGroup) -> FinishedGroup:
        tag, index = group.task.tag, group.task.index
        rows = [make_trajectory(8 * group.group_id + number, tag=tag, group=index) for number in range(8)]
        return pack(group.group_id, [replace(each, group_id=group.group_id) for each in rows])

    assert buffer.explorer.put(explorer, [packed(group) for group in claimed[:2]]) == []
    spoiled = claimed[1].group_id
    with buffer.engine.begin() as connection:
        (data,) = connection.execute(
            sa.select(payloads.c.data).where(payloads.c.group_id == spoiled)
        ).scalars()
        flipped = data[:-50] + bytes([data[-50] ^ 4]) + data[-49:]
        connection.execute(payloads.update().where(payloads.c.group_id == spoiled).values(data=flipped))
    said.clear()
    getting = asyncio.ensure_future(batches.get_batch(0))
    while not said:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert f"group {spoiled} of the batch of step 0 is dropped as damaged" in said[0]
    last = packed(claimed[2])
    assert buffer.explorer.put(explorer, [last], dropped_tokens={"other": 5}) == []
    batch = await getting
    assert {each.group_id for each in batch.trajectories} == {claimed[0].group_id, claimed[2].group_id}
    assert batch.dropped_tokens == {"FrozenLake": last.num_tokens, "other": 5}
    assert batch.discarded_tokens == last.num_tokens + 5
    assert audit(buffer.engine, decode=True) == []
    with buffer.engine.connect() as connection:
        reason = sa.select(groups.c.reason).where(groups.c.id == spoiled)
        assert connection.execute(reason).scalar_one() == "damaged"
    await batches.close()


def test_a_trainer_killed_after_its_last_checkpoint_still_ends_the_job(loaded: LoadedConfig) -> None:
    config = loaded.config
    killed = TrainerStandIn(config)
    killed.buffer.trainer.publish(killed.me, 0, 0, {})
    write_checkpoint(
        config.run_folder,
        RunState(step=1, seed=config.seed, kl_coef=0.0, ledger=None),
        lambda folder: (folder / "model").mkdir(),
    )
    killed.leave()

    run(loaded)

    assert killed.buffer.view().status is JobStatus.FINISHED
    killed.buffer.engine.dispose()


def test_weights_that_are_gone_are_published_again(loaded: LoadedConfig) -> None:
    publisher = VersionPublisher(loaded.config, None, model=Path("unused"), say=print)  # type: ignore[arg-type]
    assert not publisher.still_has(3)
    folder = write_version(
        loaded.config.run_folder / "weights", 3, 3, lambda into: (into / "config.json").touch() or None
    )
    assert publisher.still_has(3)
    (folder / "version.json").write_text("{")
    assert not publisher.still_has(3)
