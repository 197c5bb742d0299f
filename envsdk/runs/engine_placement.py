"""Where the engines run: `tensor_parallel_size` accelerators of one machine for each, in a placement group.

device_bundle -> (Ray places one bundle per accelerator) -> rank_places -> engine_places. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from envsdk.contracts.failures import ConfigurationError
from envsdk.runs.rank_placement import RankPlace


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
