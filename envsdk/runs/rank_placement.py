"""Where the ranks of a trainer and the engines run: the resources that each asks for and gets. Pure.

rank_resources -> (Ray places one bundle per rank) -> rank_places
device_bundle -> (Ray places one bundle per accelerator of an engine) -> rank_places -> engine_places
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from envsdk.contracts.failures import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """One rank's place."""

    bundle: int
    """Index of its bundle in the placement group."""
    local_rank: int
    """Among the ranks on its node."""
    devices: tuple[int, ...]
    """Accelerators of its node that the ranks there use, by local rank; empty: CPUs, or what Ray chooses."""


def rank_resources(
    cluster: Mapping[str, float],
    *,
    mapping: Sequence[int] | None,
    all_mappings: Sequence[Sequence[int] | None],
    uses_accelerators: bool,
) -> dict[str, float]:
    """Resources of one rank: a CPU, and an accelerator where the cluster has them and the trainer uses them.

    `all_mappings` are those of all trainers of the run, this one's included, and of its engines. Models
    mapped to the same accelerator take turns on it, so they share it; and a machine with fewer cores than
    ranks and no accelerator still runs them, each with its share of the cores.
    """
    gpus = cluster.get("GPU", 0.0)
    if uses_accelerators and gpus >= 1:
        users = Counter(device for one in all_mappings for device in one or ())
        most = max((users[device] for device in mapping or ()), default=1)
        return {"CPU": 1.0, "GPU": _floor(1 / most)}
    num_ranks = sum(num_ranks_of(one) for one in all_mappings)
    return {"CPU": min(1.0, _floor(cluster.get("CPU", 0.0) / num_ranks))}


def num_ranks_of(mapping: Sequence[int] | None) -> int:
    """Processes of a trainer with this `device_mapping`: one per accelerator named, or one."""
    return len(mapping) if mapping else 1


def rank_places(
    bundle_nodes: Mapping[int, str],
    gpus_of_node: Mapping[str, int],
    mapping: Sequence[int] | None,
    *,
    key: str,
) -> list[RankPlace]:
    """The place of each rank, by rank: ranks of a node are neighbors, the node with most of them first.

    `gpus_of_node` covers the cluster; it is empty when the ranks run on CPUs. `mapping` counts accelerators
    through the nodes in that order, so entry m is number m modulo the accelerators of a node.
    ConfigurationError names `key` when an accelerator is not there or taken twice.
    """
    crowd = Counter(bundle_nodes.values())
    bundles = sorted(
        bundle_nodes, key=lambda index: (-crowd[bundle_nodes[index]], bundle_nodes[index], index)
    )
    total = sum(gpus_of_node.values())
    by_node: dict[str, list[int]] = {}
    for rank, bundle in enumerate(bundles):
        node = bundle_nodes[bundle]
        devices = by_node.setdefault(node, [])
        if not (mapping and total):
            continue
        if mapping[rank] >= total:
            raise ConfigurationError(
                f"{key} names accelerator {mapping[rank]}, and Ray has {total}, numbered from 0"
            )
        device = mapping[rank] % gpus_of_node[node]
        if device in devices:
            raise ConfigurationError(
                f"{key}={list(mapping)} puts two ranks on accelerator {device} of one machine; ranks fill "
                "one machine after the other, so name accelerators of as few machines as hold them"
            )
        devices.append(device)

    places: list[RankPlace] = []
    seen: Counter[str] = Counter()
    for bundle in bundles:
        node = bundle_nodes[bundle]
        places.append(RankPlace(bundle=bundle, local_rank=seen[node], devices=tuple(by_node[node])))
        seen[node] += 1
    return places


def _floor(share: float) -> float:
    """To Ray's resolution, never up: all shares together must fit."""
    return int(share * 1000) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlace:
    """One engine's place."""

    bundle: int
    """The placement group's bundle for its actor; the bundles of its other accelerators stay empty."""
    node: str
    devices: tuple[int, ...]
    """Accelerators of its node, in the order of the mapping."""


def device_bundle(mapping: Sequence[int], other_mappings: Sequence[Sequence[int] | None]) -> dict[str, float]:
    """Ray resources of one accelerator of an engine: a share of it, when trainers are mapped to it too."""
    users = Counter(device for one in (mapping, *other_mappings) for device in one or ())
    most = max(users[device] for device in mapping)
    return {"GPU": int(1000 / most) / 1000}


def engine_places(
    places: Sequence[RankPlace],
    bundle_nodes: Mapping[int, str],
    *,
    per_engine: int,
) -> list[EnginePlace]:
    """Each engine's place, from those of its accelerators; `per_engine` in a row are one engine's.

    ConfigurationError when they are on different machines.
    """
    found = []
    for first in range(0, len(places), per_engine):
        its = places[first : first + per_engine]
        nodes = {bundle_nodes[place.bundle] for place in its}
        if len(nodes) > 1:
            raise ConfigurationError(
                f"actor_infer.device_mapping: an engine of {per_engine} accelerators would be on "
                f"{len(nodes)} machines; of each machine name as many as are whole engines"
            )
        found.append(
            EnginePlace(
                bundle=its[0].bundle,
                node=nodes.pop(),
                devices=tuple(place.devices[place.local_rank] for place in its),
            )
        )
    return found
