"""The keys of the section `ray`: which Ray a run uses, and where its processes go on a cluster."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt

from envsdk.config.section import Section

_VALUE = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_SELECTOR = re.compile(rf"!?(?:{_VALUE}|in\({_VALUE}(?:, ?{_VALUE})*\))")


def _is_selector(text: str) -> str:
    if not _SELECTOR.fullmatch(text):
        raise ValueError("no selector of Ray's labels: write `a`, `!a`, `in(a, b)` or `!in(a, b)`")
    return text


LabelSelector = Annotated[str, AfterValidator(_is_selector)]


class RolePlacement(Section):
    """On which nodes of a cluster the processes of one role run."""

    strategy: Literal["spread", "pack", "driver"] = "spread"
    """`spread` over the nodes in proportion to their CPUs, `pack` on as few as hold them, or on the
    `driver`'s own."""
    labels: dict[str, LabelSelector] = Field(default_factory=dict)
    """Labels that the node must have, as `ray start --labels` gave them: `a`, `!a`, `in(a, b)`,
    `!in(a, b)`."""
    resources: dict[str, PositiveFloat] = Field(default_factory=dict)
    """Resources of Ray that each process takes, besides CPUs and accelerators."""
    num_cpus: NonNegativeFloat | None = None
    """CPUs that each process takes; when absent, none."""


class TrainerPlacement(RolePlacement):
    """On which nodes of a cluster the ranks of a trainer run."""

    strategy: Literal["spread", "pack", "driver"] = "pack"
    """`pack` on as few nodes as hold them, `spread` over many, or on the `driver`'s own."""
    num_cpus: PositiveFloat | None = None
    """CPUs that each rank takes; when absent, one, or less where a node has fewer than ranks."""


class PlacementArgs(Section):
    """Where processes run on a cluster. Schedulers are always on the driver's node."""

    workers: RolePlacement = Field(default_factory=RolePlacement)
    """Processes of environments."""
    engines: RolePlacement = Field(default_factory=RolePlacement)
    """Engines."""
    trainer: TrainerPlacement = Field(default_factory=TrainerPlacement)
    """Ranks of the trainer."""
    reference: TrainerPlacement = Field(default_factory=TrainerPlacement)
    """Ranks of the reference model."""


class RayArgs(Section):
    """The Ray runtime."""

    address: str | None = None
    """Cluster to join; absent: one is started on this machine, on loopback, and ended with the run."""
    num_cpus: PositiveInt | None = None
    """CPUs Ray may count on; as many as the machine has when absent."""
    object_store_memory: PositiveInt | None = None
    """Bytes of the shared object store; Ray decides when absent."""
    include_dashboard: bool = False
    """Whether Ray serves its dashboard."""
    placement: PlacementArgs = Field(default_factory=PlacementArgs)
    """On which nodes of a cluster the processes of each role run."""
