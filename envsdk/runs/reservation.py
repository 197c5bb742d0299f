"""Shell: room for processes in the cluster, reserved as a Ray placement group."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from envsdk.config.ray_models import RolePlacement
from envsdk.contracts.failures import ConfigurationError, EnvsdkError
from envsdk.managers.ray_nodes import bundle_labels, resources_for
from envsdk.runs.rank_placement import RankPlace, rank_places

PLACEMENT_TIMEOUT_S = 60.0
"""How long processes wait for others to leave the cluster's CPUs and accelerators."""


@dataclass(slots=True)
class Reservation:
    """One bundle of resources per process, on the nodes that `placement` allows. `take` blocks.

    take -> places -> ... -> release
    """

    bundle: Mapping[str, float]
    """The resources of each process; those of `placement` are added."""
    mapping: Sequence[int] | None
    _: KW_ONLY
    placement: RolePlacement
    spreads: bool = False
    """Whether bundles are apart; else they are on as few nodes as hold them."""
    count: int
    of_what: str
    """What `count` counts: `2 ranks`."""
    key: str
    """The section whose `device_mapping` this is."""
    error: type[EnvsdkError]
    """Raised when others do not leave room within `timeout_s`."""
    timeout_s: float = PLACEMENT_TIMEOUT_S
    group: Any = field(default=None, init=False)
    """Ray's placement group, once taken."""
    nodes: Mapping[int, str] = field(default_factory=dict, init=False)
    """Node of each bundle."""

    def __post_init__(self) -> None:
        own = {} if self.placement.num_cpus is None else {"CPU": self.placement.num_cpus}
        self.bundle = dict(self.bundle) | own | self.placement.resources

    def take(self) -> list[RankPlace]:
        """The places of the processes, in the order of the mapping.

        ConfigurationError when the cluster can never hold them, `error` when it is too busy.
        """
        cluster = resources_for(self.placement)
        if any(amount * self.count > cluster.get(name, 0.0) for name, amount in self.bundle.items()):
            raise ConfigurationError(
                f"{self._asked_for()}, and Ray has {_amounts(cluster, self.bundle)}: shorten "
                f"{self.key}.device_mapping, or join a larger cluster by ray.address"
            )
        labels = bundle_labels(self.placement)
        group = self.group = placement_group(
            [dict(self.bundle)] * self.count,
            strategy="SPREAD" if self.spreads else "PACK",
            bundle_label_selector=[labels] * self.count if labels else None,
        )
        deadline = time.monotonic() + self.timeout_s
        while not group.wait(0.5):
            if self.group is None:
                raise self.error(f"{self._asked_for()}, and was closed before there was room")
            if time.monotonic() > deadline:
                free = _amounts(ray.available_resources(), self.bundle)
                self.release()
                raise self.error(
                    f"{self._asked_for()} and got no room within {self.timeout_s:g} s. "
                    f"Ray has {_amounts(cluster, self.bundle)}, of which are free {free}: end what else runs "
                    f"there, or shorten {self.key}.device_mapping"
                )
        self.nodes = placement_group_table(group)["bundles_to_node_id"]
        gpus = {node["NodeID"]: int(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]}
        return rank_places(
            self.nodes,
            gpus if "GPU" in self.bundle else {},
            self.mapping,
            key=f"{self.key}.device_mapping",
        )

    def release(self) -> None:
        """Give the resources back; processes that run there end. Idempotent."""
        if self.group is not None:
            remove_placement_group(self.group)
            self.group = None

    def _asked_for(self) -> str:
        total = {name: amount * self.count for name, amount in self.bundle.items()}
        return f"{self.key} asked for {_amounts(total, self.bundle)} ({self.of_what})"


KEEP_DEVICES = {"env_vars": {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}}
"""Runtime environment of a process that calls `show_only`: Ray would show it those of its bundle."""


def show_only(devices: Sequence[int]) -> None:
    """Let this process see these accelerators of its machine. Comes before anything asks CUDA."""
    # Numbers count within what this machine lets Ray use.
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else None
    chosen = [names[device] if names else str(device) for device in devices]
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(chosen)


def _amounts(resources: Mapping[str, float], of: Mapping[str, float]) -> str:
    return " and ".join(f"{resources.get(name, 0.0):g} {name}" for name in of)
