"""Where processes of a run are on a real cluster, and what travels to them."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.nodes import Cluster, Kind, kind
from tests.cluster.runs import ClusterRun

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1800),
    pytest.mark.skipif("ENVSDK_TEST_CLUSTER" not in os.environ, reason="starts clusters: make test-cluster"),
    pytest.mark.skipif(kind() is Kind.LOOPBACK, reason="nodes on one loopback share files and links"),
]

Measured = Callable[[str, float], None]


def test_roles_are_on_nodes_with_their_labels_and_checkpoints_come_back_from_there_and_go_again(
    tmp_path: Path, model: Path
) -> None:
    """The trainer's node has files of its own."""
    labels = {1: "zone=a", 2: "zone=b", 3: "zone=c"}
    cache = {"ENVSDK_CACHE": str(tmp_path / "cache")}
    placement = [
        "ray.placement.trainer={strategy: pack, labels: {zone: c}}",
        "ray.placement.engines.labels={zone: in(b)}",
        "ray.placement.workers.labels={zone: '!c'}",
        "save_steps=2",
    ]
    with Cluster(3, labels=labels, own_folders=[tmp_path, model], env=cache) as cluster:
        run = ClusterRun(tmp_path, model, cluster)
        program = run.start(*placement, "max_steps=4")
        run.wait_for_batches(2, program)
        where = {number: node.actors() for number, node in cluster.nodes.items()}
        assert [where[number]["TrainerHost"] for number in (1, 2, 3)] == [0, 0, 1]
        assert [where[number]["EngineHost"] for number in (1, 2, 3)] == [0, 2, 0]
        assert where[1]["RolloutScheduler"] == 2
        assert where[3]["EnvWorker"] == 0
        assert run.ended(program) == 0, run.output
        assert (run.checkpoint(4) / "trainer" / "trainer.json").is_file()
        program = run.start(*placement, "max_steps=5")
        assert run.ended(program) == 0, run.output
        run.audit(finished=True)


def test_a_label_that_no_node_has_ends_the_run_before_it_starts(tmp_path: Path, model: Path) -> None:
    with Cluster(2, labels={2: "zone=b"}) as cluster:
        run = ClusterRun(tmp_path, model, cluster)
        program = run.start("ray.placement.workers.labels={zone: x}")
        assert run.ended(program) == 2, run.output
        assert "ray.placement.workers.labels: no node of the cluster has zone=x" in run.output
        assert f"{cluster.nodes[2].address} with zone=b" in run.output


def test_weights_reach_each_other_node_once_however_many_engines_are_there(
    tmp_path: Path, measured: Measured
) -> None:
    with Cluster(3) as cluster:
        addresses = [cluster.nodes[number].address for number in (2, 2, 3, 3)]
        for asked_for, expected, copies in (("auto", "object_store", 1), ("broadcast", "broadcast", 2)):
            arguments = ("-m", "tests.cluster.weight_updates", cluster.address, "40", asked_for, *addresses)
            program = cluster.start(cluster.head, *arguments, cwd=tmp_path)
            output, _ = program.communicate(timeout=600)
            assert program.returncode == 0, output
            found = json.loads(output.splitlines()[-1])
            assert found["transport"] == expected
            for received in found["copies"].values():
                assert copies <= received < copies + 0.3
            what = f"40 MB to two engines on each of two nodes by {expected}: {copies} time(s) to each node"
            measured(what, statistics.median(found["seconds"]))
