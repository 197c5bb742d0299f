"""Runs on a real cluster whose nodes die, join, are drained and cut off; see nodes.py for what a node is."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.nodes import Cluster, Kind, Node, kind
from tests.cluster.runs import LONG, ClusterRun

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1800),
    pytest.mark.skipif("ENVSDK_TEST_CLUSTER" not in os.environ, reason="starts clusters: make test-cluster"),
]

needs_links = pytest.mark.skipif(kind() is Kind.LOOPBACK, reason="a loopback cannot be cut or slow")
Measured = Callable[[str, float], None]
NOTICED_S = 15.0
"""From the end of the head to the end of the run, with its report and its message."""


def has_workers(node: Node) -> bool:
    return node.actors()["EnvWorker"] > 0


def all_workers(cluster: Cluster) -> int:
    return sum(node.actors()["EnvWorker"] for node in cluster.nodes.values())


def test_workers_of_a_node_that_dies_go_on_elsewhere_and_a_node_that_joins_takes_over(
    tmp_path: Path, model: Path, measured: Measured
) -> None:
    """The second node to die leaves only the head and the joined one."""
    with Cluster(3) as cluster:
        measured("three nodes up", cluster.up_s)
        run = ClusterRun(tmp_path, model, cluster)
        program = run.start(LONG)
        run.wait_for_batches(3, program)
        assert has_workers(cluster.nodes[2])
        assert has_workers(cluster.nodes[3])
        before = all_workers(cluster)
        for number, what in ((3, "a node dies"), (2, "a node dies after another joined")):
            node, begun = cluster.nodes[number], time.time()
            cluster.kill(node, silently=kind() is not Kind.LOOPBACK)
            back = run.wait_for(lambda: all_workers(cluster) == before, program)
            measured(f"{what}: its workers run elsewhere after", back)
            run.wait_for_batches(5, program)
            measured(f"{what}: time without a batch", run.lost_s(begun))
            if number == 3:
                begun = time.time()
                joined = cluster.join()
                measured("a node joins: it is there after", time.time() - begun)
        assert has_workers(joined)
        run.stop(program)
        run.audit()


def test_a_drained_node_hands_over_before_it_goes(tmp_path: Path, model: Path, measured: Measured) -> None:
    with Cluster(3) as cluster:
        run = ClusterRun(tmp_path, model, cluster)
        program = run.start(LONG)
        run.wait_for_batches(3, program)
        before = all_workers(cluster)
        drained, noticed = cluster.nodes[3], cluster.nodes[2]
        for node, what in ((drained, "a node is drained"), (noticed, "a node is preempted, by SIGTERM")):
            begun = time.time()
            if node is drained:
                cluster.drain(node, 30)
            else:
                cluster.notice(node)
            elsewhere = [each for each in cluster.nodes.values() if each is not node]
            run.wait_for(lambda: sum(n.actors()["EnvWorker"] for n in elsewhere) >= before, program)  # noqa: B023
            measured(f"{what}: its workers run elsewhere after", time.time() - begun)
            cluster.kill(node)
            run.wait_for_batches(5, program)
            measured(f"{what}: time without a batch", run.lost_s(begun))
        run.stop(program)
        run.audit()


@needs_links
def test_a_link_that_is_cut_for_seconds_delays_and_one_cut_for_good_is_a_lost_node(
    tmp_path: Path, model: Path, measured: Measured
) -> None:
    with Cluster(3, delay_s=0.01, loss=0.005) as cluster:
        measured("three nodes up, 10 ms and 0.5 % loss each way", cluster.up_s)
        run = ClusterRun(tmp_path, model, cluster)
        program = run.start(LONG)
        run.wait_for_batches(3, program)
        before, begun, node = all_workers(cluster), time.time(), cluster.nodes[3]
        cluster.cut(node)
        time.sleep(5)  # the length of the cut is what is tested
        cluster.mend(node)
        run.wait_for_batches(10, program)
        measured("a link is cut for 5 s: time without a batch", run.lost_s(begun))
        assert node.address in cluster.alive()
        begun = time.time()
        cluster.cut(node)
        others = [cluster.head, cluster.nodes[2]]
        run.wait_for(lambda: sum(n.actors()["EnvWorker"] for n in others) == before, program)
        measured("a link is cut for good: its workers run elsewhere after", time.time() - begun)
        run.wait_for_batches(5, program)
        measured("a link is cut for good: time without a batch", run.lost_s(begun))
        run.stop(program)
        run.audit()


def test_the_end_of_the_head_ends_the_run_with_one_message_and_it_goes_on_in_another_cluster(
    tmp_path: Path, model: Path, measured: Measured
) -> None:
    """The driver is on a node that stays."""
    with Cluster(3, cpus=(0, 2)) as cluster:
        run = ClusterRun(tmp_path, model, cluster, cluster.nodes[2])
        program = run.start(LONG, "save_steps=5")
        run.wait_for(lambda: run.checkpoint(5).is_dir(), program)
        assert not has_workers(cluster.head)
        begun = time.time()
        cluster.kill(cluster.head, silently=kind() is not Kind.LOOPBACK)
        code = run.ended(program, NOTICED_S)
        measured("the head dies: the run has ended after", time.time() - begun)
        assert code == 1, run.output
        assert run.output.count("error: ") == 1, run.output
        assert "Traceback" not in run.output
        run.audit()
    at = run.num_batches
    with Cluster(2) as cluster:
        again = ClusterRun(tmp_path, model, cluster)
        begun = time.time()
        program = again.start(f"max_steps={at + 3}", "save_steps=5")
        again.wait_for_batches(1, program)
        measured("on another cluster: first batch after", time.time() - begun)
        assert again.ended(program) == 0, again.output
        again.audit(finished=True)


@needs_links
@pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs redis-server")
def test_a_head_with_storage_may_restart_under_a_run(tmp_path: Path, model: Path, measured: Measured) -> None:
    patience = {"RAY_gcs_rpc_server_reconnect_timeout_s": "60"}
    with Cluster(3, cpus=(0, 2), storage=True, env=patience) as cluster:
        run = ClusterRun(tmp_path, model, cluster, cluster.nodes[2])
        program = run.start(LONG)
        run.wait_for_batches(3, program)
        begun = time.time()
        cluster.kill(cluster.head)
        cluster.join(1)
        measured("the head restarts with storage: it is back after", time.time() - begun)
        run.wait_for_batches(10, program)
        measured("the head restarts with storage: time without a batch", run.lost_s(begun))
        run.stop(program)
        run.audit()


@needs_links
def test_nodes_with_files_of_their_own_need_nothing_of_the_driver_s(
    tmp_path: Path, model: Path, measured: Measured
) -> None:
    cache = {"ENVSDK_CACHE": str(tmp_path / "cache")}
    with Cluster(3, own_folders=[tmp_path, model], env=cache) as cluster:
        run = ClusterRun(tmp_path, model, cluster)
        begun = time.time()
        program = run.start("max_steps=4")
        run.wait_for_batches(1, program)
        measured("nodes with own files: first batch after", time.time() - begun)
        assert run.ended(program) == 0, run.output
        run.audit(finished=True)
