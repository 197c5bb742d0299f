"""Environment workers of a real run come and go, and leave nodes that are drained: no trajectory is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray.cluster_utils import Cluster
from ray.core.generated import autoscaler_pb2

from tests.system.jobs import Job, rows, stop_and_check, wait_until

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]


def test_workers_come_while_episodes_wait(tmp_path: Path, model: Path) -> None:
    job = Job(tmp_path, model, max_steps=1000)
    process = job.start(
        *settings("num_env_groups=1", "group_size=1", "max_env_num_per_worker=1", "tags=[Lake]"),
        *settings("min_workers=1", "max_workers=2", "max_node_cpu=1"),
        "adv_estimator=reinforce",
        "save_steps=0",
        "eval_steps=0",
    )
    wait_until(job.batch(1).is_file, process)
    wait_until(lambda: bool(rows(job)) and rows(job)[0]["workers/playing"] == 1, process)
    wait_until(lambda: rows(job)[-1]["workers/playing"] == 2, process)
    output = stop_and_check(job, process)
    assert "2 workers" in output


def test_workers_that_are_needed_no_more_finish_their_episodes_and_end(tmp_path: Path, model: Path) -> None:
    job = Job(tmp_path, model, max_steps=1000)
    process = job.start(
        *settings("max_env_num_per_worker=16", "min_workers=1", "num_env_groups=12", "worker_idle_s=4"),
        "save_steps=0",
        "eval_steps=0",
    )
    wait_until(job.batch(1).is_file, process)
    wait_until(lambda: bool(rows(job)) and rows(job)[0]["workers/playing"] == 3, process)
    wait_until(lambda: rows(job)[-1]["workers/playing"] == 1, process)
    wait_until(lambda: count_workers(process.pid) == 2, process)  # the other one is that of evaluations
    last = rows(job)[-1]
    assert (last["workers/retired"], last["ledger/failed"]) == (2, 0)
    stop_and_check(job, process)


@dataclass(frozen=True, slots=True)
class Nodes:
    """A cluster of raylets on this machine: the driver's node and two for workers."""

    cluster: Cluster
    for_workers: list[Any]

    def drain(self, node: str, grace_s: float) -> None:
        """As `ray drain-node` does, from a process that belongs to no run."""
        client = ray._raylet.GcsClient(address=self.cluster.address)
        is_accepted, why = client.drain_node(
            node,
            autoscaler_pb2.DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION,
            "test",
            int((time.time() + grace_s) * 1000),
        )
        assert is_accepted, why


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    store = 100 * 2**20
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 3, "object_store_memory": store})
    try:
        added = [
            cluster.add_node(num_cpus=1, object_store_memory=store, labels={"for": "workers"})
            for _ in range(2)
        ]
        yield Nodes(cluster, added)
    finally:
        cluster.shutdown()


def on(nodes: Nodes) -> list[str]:
    return [
        f"ray.address={nodes.cluster.address}",
        "ray.placement.workers.labels={for: workers}",
        "ray.placement.engines.strategy=driver",
        "ray.placement.trainer.strategy=driver",
        *settings("max_env_num_per_worker=4"),
        "val_batch_size=0",
        "save_steps=0",
    ]


def test_a_node_that_is_drained_is_empty_before_it_goes_and_no_episode_is_lost(
    tmp_path: Path, model: Path, nodes: Nodes
) -> None:
    job = Job(tmp_path, model, max_steps=1000)
    process = job.start(*on(nodes))
    wait_until(job.batch(1).is_file, process)
    leaving = nodes.for_workers[0]
    nodes.drain(leaving.node_id, grace_s=60.0)
    # Ray ends a drained node as soon as nothing runs there.
    wait_until(lambda: bool(leaving.dead_processes()), process)
    wait_until(lambda: rows(job)[-1].get("workers/playing") == 4, process)
    last = rows(job)[-1]
    assert (last["workers/added"], last["workers/retired"]) == (2, 2)
    assert (last["ledger/failed"], last["ledger/cancelled"]) == (0, 0)
    output = stop_and_check(job, process)
    assert "goes away in" in output


def test_a_trainer_whose_node_is_drained_stops_with_a_checkpoint_and_goes_on_elsewhere(
    tmp_path: Path, model: Path, nodes: Nodes
) -> None:
    job = Job(tmp_path, model, max_steps=1000)
    away = [key.replace("trainer.strategy=driver", "trainer.labels={for: workers}") for key in on(nodes)]
    process = job.start(*away)
    wait_until(job.batch(1).is_file, process)
    at = next(each for each in nodes.for_workers if has_trainer(each))
    nodes.drain(at.node_id, grace_s=60.0)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "where the trainer runs, goes away" in output
    num_steps = len(rows(job))
    assert job.checkpoint(num_steps).is_dir()

    process = job.start(*away)
    wait_until(job.batch(num_steps + 1).is_file, process)
    assert "goes away" not in stop_and_check(job, process)


def settings(*keys: str) -> list[str]:
    return [f"train_env_manager.{key}" for key in keys]


def count_workers(pid: int) -> int:
    return len(_named("ray::EnvWorker", psutil.Process(pid)))


def has_trainer(node: Any) -> bool:
    [raylet] = node.all_processes["raylet"]
    return bool(_named("ray::TrainerHost", psutil.Process(raylet.process.pid)))


def _named(name: str, parent: psutil.Process) -> list[psutil.Process]:
    found = []
    for process in parent.children(recursive=True):
        try:
            if process.cmdline()[:1] and process.cmdline()[0].startswith(name):
                found.append(process)
        except psutil.Error:
            continue
    return found
