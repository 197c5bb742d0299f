"""Shell: the nodes of Ray's cluster, options that put an actor where `placement.py` says, and files of the
driver's machine for processes on other nodes.

placer = Placer(rule)
actor = ray.remote(EnvWorker).options(**placer.options("train-0")).remote()
placer.landed("train-0", node_id)        # again `options("train-0")`: on another node, if there is one
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray._private.state import state as cluster_state
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from envsdk.base.processes.actor_death import ACTOR_DIED, reason_of_death
from envsdk.base.store.travel import DriverFiles, FileServer, paths_in
from envsdk.config.models import RunConfig
from envsdk.config.ray_models import RolePlacement
from envsdk.contracts.failures import StorageError
from envsdk.managers.placement import Node, check_role, choose_node, demand, has_labels

NODE_LABEL = "ray.io/node-id"
"""Ray gives it to each node."""
MANY_CALLS: dict[str, Any] = {"max_concurrency": 10_000}
"""Options of schedulers and engines, with which each worker keeps two calls open. Ray's default is 1,000."""
LOOK_S = 1.0
"""How long one look at the cluster counts: many actors are placed together."""


def this_node() -> str:
    """Ray's id of the node that this process runs on."""
    return str(ray.get_runtime_context().get_node_id())


def cluster_nodes() -> list[Node]:
    """The nodes that are alive, as far as Ray knows: it notices within its health check that one is gone."""
    draining = cluster_state.get_draining_nodes()
    return [
        Node(
            node_id=node["NodeID"],
            address=node["NodeManagerAddress"],
            labels=node["Labels"],
            resources=node["Resources"],
            is_draining=node["NodeID"] in draining,
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def check_placement(role: str, rule: RolePlacement) -> None:
    """ConfigurationError when no node of the cluster could ever hold a process of this role."""
    if rule.labels or demand(rule):
        check_role(role, rule, cluster_nodes())


def resources_for(rule: RolePlacement) -> dict[str, float]:
    """All resources of the nodes that a role may use, in use or not."""
    total: Counter[str] = Counter()
    for node in cluster_nodes():
        if has_labels(rule, node) and (rule.strategy != "driver" or node.node_id == this_node()):
            total.update(node.resources)
    return dict(total)


def bundle_labels(rule: RolePlacement) -> dict[str, str]:
    """Labels that the bundles of a role's placement group ask for."""
    return dict(rule.labels) | ({NODE_LABEL: this_node()} if rule.strategy == "driver" else {})


def on_this_node() -> dict[str, Any]:
    """Options of an actor that must be where this process is: it shares its files."""
    return {
        "num_cpus": 0,
        "max_restarts": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(this_node(), soft=False),
    }


class Placer:
    """Chooses a node for each process of one role. Owner: what starts them, on the driver's node."""

    def __init__(self, rule: RolePlacement, look: Callable[[], list[Node]] = cluster_nodes) -> None:
        self._rule = rule
        self._look = look
        self._nodes: list[Node] = []
        self._looked_at = -LOOK_S
        self._where: dict[str, str] = {}
        """The node of each process."""

    def options(self, name: str, only_on: str | None = None) -> dict[str, Any]:
        """Options of the actor `name`, which may be tied to one node.

        Asked for again, the process was lost: another node is preferred.
        """
        rule, lost_on = self._rule, self._where.pop(name, None)
        if time.monotonic() - self._looked_at >= LOOK_S:
            self._nodes, self._looked_at = self._look(), time.monotonic()
        node = only_on or choose_node(
            rule,
            self._nodes,
            Counter(self._where.values()),
            driver=this_node(),
            avoid=() if lost_on is None else (lost_on,),
        )
        options: dict[str, Any] = {
            "num_cpus": rule.num_cpus or 0,
            "resources": dict(rule.resources),
            "max_restarts": 0,
        }
        labels = dict(rule.labels)
        if node is None:
            return options | {"label_selector": labels}
        self._where[name] = node
        if only_on is not None or rule.strategy == "driver":
            return options | {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}
        # Ray 2.60 puts actors with a soft affinity for a node on any; a label with a fallback it heeds. The
        # fallback is for a node that is gone since the look.
        return options | {
            "label_selector": labels | {NODE_LABEL: node},
            "fallback_strategy": [{"label_selector": labels}],
        }

    def landed(self, name: str, node: str) -> None:
        """The process runs on this node."""
        self._where[name] = node

    def left(self, name: str) -> None:
        """The process has ended and will not be started again."""
        self._where.pop(name, None)


@dataclass(frozen=True, slots=True)
class RayReader:
    """A `Reader` by calls to an actor that has a method `read`."""

    actor: Any

    def read(self, path: Path, offset: int, size: int) -> bytes:
        """At most `size` bytes from `offset` on."""
        try:
            data: bytes = ray.get(self.actor.read.remote(path, offset, size))
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, OSError):
                raise error.cause from error
            raise
        except ACTOR_DIED as error:
            raise StorageError(
                f"{path} cannot be read from its machine any more: {reason_of_death(error)}"
            ) from error
        return data


def find_driver_files(config: RunConfig, paths: Iterable[Path]) -> DriverFiles:
    """These paths and those that environments are given, where processes of the run may be on other nodes.

    driver_files = find_driver_files(config, [model])   # an actor beside the driver serves them
    WorkerSetup(..., driver_files=driver_files)         # a process on a node that lacks them fetches them
    """
    if config.ray.address is None:
        return DriverFiles()
    named = [path for env in config.custom_envs.values() for path in paths_in(env.env_config)]
    server: Any = ray.remote(**on_this_node())(FileServer)
    return DriverFiles.of([*paths, *named], RayReader(server.remote()))
