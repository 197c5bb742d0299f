"""What the buffer between explorers and a trainer costs.

    python benchmarks/buffer.py [--groups 4000] [--history 125000] [--at URL] [--json FILE]
    python -m tests.postgres_server python benchmarks/buffer.py --at '$ENVSDK_POSTGRES'

Groups of 8 trajectories of 3 turns and 120 tokens, in SQLite in a temporary folder or at `--at`, which must
be empty. Bounds: the same bytes written to a file (`write`), and the same trajectories as a batch file of the
single command (`batch file`). `delay` is from the end of the `put` that completes a batch to the batch in the
trainer's hands, in another process. `history` puts so many groups through the buffer first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from envsdk.base.store.trajectories import write_trajectories
from envsdk.buffer import tables
from envsdk.buffer.client import BufferClient
from envsdk.buffer.connecting import open_engine
from envsdk.buffer.contract import FinishedGroup, Role, Signal, Terms
from envsdk.buffer.payload import from_all_bytes, pack, pack_all
from envsdk.buffer.sql_buffer import SqlBuffer
from envsdk.contracts.trajectory import Outcome, Task, TokenArrays, Trajectory, Turn

GROUP_SIZE = 8
GROUPS_PER_BATCH = 64
NUM_TOKENS = 120


def episode(index: int, member: int) -> Trajectory:
    """Three turns."""
    random = np.random.default_rng((index, member))
    mask = np.zeros(NUM_TOKENS, np.int8)
    mask[-36:] = 1
    turns = tuple(
        Turn(
            observation=f"P _ O\n_ _ _\nO _ G  ({index}.{turn})",
            reply="<answer>Right</answer>",
            reward=0.0,
            response_start=40 * turn + 28,
            response_end=40 * turn + 40,
            metrics={"action_is_valid": 1.0},
        )
        for turn in range(3)
    )
    return Trajectory(
        trajectory_id=f"train-{index}.{member}",
        group_id=index,
        task=Task(tag="lake", split="train", index=index),
        seed=index,
        outcome=Outcome.TERMINATED,
        success=bool(member % 2),
        turns=turns,
        tokens=TokenArrays(
            ids=random.integers(0, 500, NUM_TOKENS).astype(np.int32),
            response_mask=mask,
            behavior_logprobs=(-random.random(NUM_TOKENS) * mask).astype(np.float32),
            versions=np.where(mask == 1, 0, -1).astype(np.int32),
        ),
        started_at=0.0,
        ended_at=1.0,
    )


class Job:
    """One explorer and one trainer of an empty buffer."""

    def __init__(self, place: str) -> None:
        engine = open_engine(place)
        tables.metadata.drop_all(engine)
        self.buffer = SqlBuffer(engine, lease_s=1e9)
        self.buffer.create(
            "benchmark",
            Terms(seed=0, group_size=GROUP_SIZE, groups_per_batch=GROUPS_PER_BATCH, alpha=1.0),
        )
        self.explorer = self.buffer.join(Role.EXPLORER, "explorer")
        self.trainer = self.buffer.join(Role.TRAINER, "trainer")
        self.buffer.trainer.begin(self.trainer, 0)
        self.buffer.trainer.publish(self.trainer, 0, 0, {})
        self.step = 0
        self._calls = 0

    def claim(self) -> list[int]:
        self._calls += 1
        claimed = self.buffer.explorer.claim(
            self.explorer, ["lake"] * GROUPS_PER_BATCH, version=self.step, token=f"{self._calls}"
        )
        return [group.group_id for group in claimed]

    def train(self) -> None:
        self.step += 1
        self.buffer.trainer.publish(self.trainer, self.step, self.step, {})


def finished(group_id: int, version: int, like: FinishedGroup) -> FinishedGroup:
    """The same payload under another id."""
    return FinishedGroup(
        group_id=group_id,
        payload=like.payload,
        num_trajectories=GROUP_SIZE,
        num_tokens=like.num_tokens,
        oldest_version=version,
    )


def put_and_take(place: str, num_groups: int, like: FinishedGroup, *, one_by_one: bool) -> dict[str, float]:
    """Groups per second through claim, put, take and the trainer's next step."""
    job = Job(place)
    seconds = {"claim": 0.0, "put": 0.0, "take": 0.0, "step": 0.0}
    for _ in range(num_groups // GROUPS_PER_BATCH):
        began = time.perf_counter()
        groups = [finished(group_id, job.step, like) for group_id in job.claim()]
        claimed = time.perf_counter()
        for part in [[group] for group in groups] if one_by_one else [groups]:
            job.buffer.explorer.put(job.explorer, part)
        put = time.perf_counter()
        batch = job.buffer.trainer.take(job.trainer, job.step, version=job.step)
        assert batch is not None
        taken = time.perf_counter()
        job.train()
        for name, value in zip(
            seconds, (claimed - began, put - claimed, taken - put, time.perf_counter() - taken), strict=True
        ):
            seconds[name] += value
        if job.step % 20 == 0:
            job.buffer.trainer.trained(job.trainer, job.step, keep_from=job.step)
    total = sum(seconds.values())
    return {
        "groups/s": num_groups / total,
        "MB/s": num_groups * len(like.payload) / total / 1e6,
        **{f"{name}, ms per batch": 1000 * s * GROUPS_PER_BATCH / num_groups for name, s in seconds.items()},
    }


def _trainer(place: str, steps: int, ends: Any) -> None:
    async def wait() -> None:
        buffer = SqlBuffer(open_engine(place), lease_s=1e9)
        client = BufferClient(buffer, retry_s=60, say=print)
        trainer = buffer.join(Role.TRAINER, "trainer")
        buffer.trainer.begin(trainer, 0)
        for step in range(steps):
            buffer.trainer.publish(trainer, step, step, {})
            ends.put(("step", step))
            while True:
                seen = await client.call(lambda: buffer.signal_number(Signal.BATCH))
                batch = await client.call(lambda step=step: buffer.trainer.take(trainer, step, version=step))  # type: ignore[misc]
                if batch is not None:
                    break
                await client.changed(Signal.BATCH, seen, timeout_s=60)
            from_all_bytes([group.payload for group in batch.groups])
            ends.put(("batch", time.time()))
        await client.close()

    asyncio.run(wait())


def delay(place: str, like: FinishedGroup, steps: int = 40) -> float:
    """Median milliseconds from the end of a group's `put` to the decoded batch in another process."""
    job = Job(place)
    job.buffer.leave(job.trainer)
    ends: Any = multiprocessing.get_context("spawn").Queue()
    trainer = multiprocessing.get_context("spawn").Process(target=_trainer, args=(place, steps, ends))
    trainer.start()
    found = []
    for step in range(steps):
        ends.get(timeout=60)
        job.step = step
        *first, last = [finished(group_id, step, like) for group_id in job.claim()]
        job.buffer.explorer.put(job.explorer, first)
        time.sleep(0.05)  # the trainer waits by now
        began = time.time()
        job.buffer.explorer.put(job.explorer, [last])
        found.append(ends.get(timeout=60)[1] - began)
    trainer.join()
    return 1000 * statistics.median(found)


def after_history(place: str, num_groups: int, like: FinishedGroup) -> dict[str, float]:
    """How long a batch is taken after few groups, and after so many; the size of the file."""
    job = Job(place)
    found: dict[str, float] = {}

    def take_ms() -> float:
        times = []
        for _ in range(20):
            job.buffer.explorer.put(job.explorer, [finished(each, job.step, like) for each in job.claim()])
            began = time.perf_counter()
            assert job.buffer.trainer.take(job.trainer, job.step, version=job.step) is not None
            times.append(time.perf_counter() - began)
            job.train()
        return 1000 * statistics.median(times)

    done = 0
    for until in (1_250, num_groups):
        while done < until:
            job.buffer.explorer.put(job.explorer, [finished(each, job.step, like) for each in job.claim()])
            job.buffer.trainer.take(job.trainer, job.step, version=job.step)
            job.train()
            done += GROUPS_PER_BATCH
            if job.step % 20 == 0:
                job.buffer.trainer.trained(job.trainer, job.step, keep_from=max(0, job.step - 60))
        found[f"take after {until * GROUP_SIZE:,} trajectories, ms"] = take_ms()
        done += 20 * GROUPS_PER_BATCH
    if job.buffer.engine.dialect.name == "sqlite":
        found["file, MB"] = os.stat(place).st_size / 1e6
    return found


def bounds(folder: Path, num_groups: int, like: FinishedGroup, batch: list[Trajectory]) -> dict[str, float]:
    """Groups per second of what no buffer can do without."""
    began = time.perf_counter()
    with open(folder / "bytes", "wb") as file:
        for _ in range(num_groups // GROUPS_PER_BATCH):
            file.write(like.payload * GROUPS_PER_BATCH)
            file.flush()
            os.fsync(file.fileno())
    write = time.perf_counter() - began
    began = time.perf_counter()
    for index in range(10):
        write_trajectories(folder / f"{index}.parquet", batch * GROUPS_PER_BATCH)
    parquet = (time.perf_counter() - began) / 10
    began = time.perf_counter()
    for _ in range(200):
        pack(0, batch)
    packing_one = (time.perf_counter() - began) / 200
    began = time.perf_counter()
    for _ in range(20):
        pack_all([(0, batch)] * GROUPS_PER_BATCH)
    packing = (time.perf_counter() - began) / 20 / GROUPS_PER_BATCH
    began = time.perf_counter()
    for _ in range(20):
        from_all_bytes([like.payload] * GROUPS_PER_BATCH)
    reading = (time.perf_counter() - began) / 20 / GROUPS_PER_BATCH
    return {
        "write and fsync, groups/s": num_groups / write,
        "batch file, groups/s": GROUPS_PER_BATCH / parquet,
        "pack one group, us per trajectory": 1e6 * packing_one / GROUP_SIZE,
        "pack, us per trajectory": 1e6 * packing / GROUP_SIZE,
        "unpack, us per trajectory": 1e6 * reading / GROUP_SIZE,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, default=4_000)
    parser.add_argument("--history", type=int, default=0, help="groups; 125000 are a million trajectories")
    parser.add_argument(
        "--at", default="", help="URL of an empty database; $NAME is read from the environment"
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    batch = [episode(0, member) for member in range(GROUP_SIZE)]
    like = pack(0, batch)
    with tempfile.TemporaryDirectory() as folder:
        place = os.path.expandvars(args.at) or f"{folder}/buffer.db"
        found: dict[str, Any] = {
            "bytes per group": len(like.payload),
            "bounds": bounds(Path(folder), args.groups, like, batch),
            "batches": put_and_take(place, args.groups, like, one_by_one=False),
            "group by group": put_and_take(place, args.groups, like, one_by_one=True),
            "delay, ms": delay(place, like),
        }
        found["share of the bound"] = (
            found["batches"]["groups/s"] / found["bounds"]["write and fsync, groups/s"]
        )
        if args.history:
            found["history"] = after_history(place, args.history, like)
    text = json.dumps(found, indent=2)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
