"""The ways of a bucket of weights from the trainer's process into an engine's, and the choice between them.

    BucketSender (trainer): bucket -> payload ==call==> BucketReceiver (engine): payload -> bucket

A payload travels with the call that announces the bucket. It holds the bytes themselves (object store: Ray
hands the engine a view), their address (shared memory, CUDA IPC), or the group to receive them in (broadcast,
NCCL). Buckets of CUDA IPC and NCCL lie in memory of a device, all others in main memory.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from envsdk.contracts.failures import ConfigurationError
from envsdk.weights.buckets import Buffer
from envsdk.weights.device_memory import Handle
from envsdk.weights.shared_memory import SharedPlace

NUM_BUFFERS = 2
"""While one is read by the engines, the next is filled."""


class Transport(StrEnum):
    """How buckets travel."""

    OBJECT_STORE = "object_store"
    """Through Ray's object store: between any two processes of the cluster."""
    SHARED_MEMORY = "shared_memory"
    """Through memory of the trainer that the engines map: on one node, on Linux."""
    BROADCAST = "broadcast"
    """A broadcast from the trainer's first rank to all engines at once, by `torch.distributed` (gloo)."""
    CUDA_IPC = "cuda_ipc"
    """In memory of the card that the trainer's first rank and the engines share."""
    NCCL = "nccl"
    """As a broadcast, from card to card: each engine and the trainer's first rank have one of their own."""

    @property
    def is_on_device(self) -> bool:
        """Buckets lie in memory of a device."""
        return self in (Transport.CUDA_IPC, Transport.NCCL)


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastPayload:
    """A bucket that comes by the next broadcast of this group."""

    address: str
    port: int
    rank: int
    """Rank of the engine that gets this payload; the sender is 0."""
    world_size: int
    on_device: bool = False
    """It comes to the engine's device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePayload:
    """A bucket in memory of the sender on a device that the engine sees too."""

    buffer: int
    """Number of the buffer; it has the same handle in all of an update."""
    handle: Handle


Payload = Buffer | SharedPlace | BroadcastPayload | DevicePayload


def device_transport(
    asked_for: str, *, trainer_card: str, engine_cards: Mapping[str, str]
) -> tuple[Transport | None, str]:
    """The way through memory of cards that `model_update_transport` allows; or None, and why there is none.

    Cards are given by names that are the same in every process; "" where weights are in main memory.
    """
    allowed = [each for each in Transport if each.is_on_device and asked_for in ("auto", each)]
    if not allowed:
        return None, f"model_update_transport is {asked_for}"
    if not trainer_card:
        return None, "the trainer has its weights in main memory"
    if hosts := [name for name, card in engine_cards.items() if not card]:
        return None, f"{hosts[0]} takes them in main memory"
    elsewhere = [name for name, card in engine_cards.items() if card != trainer_card]
    if not elsewhere and Transport.CUDA_IPC in allowed:
        return Transport.CUDA_IPC, ""
    if Transport.NCCL not in allowed:
        return None, f"{elsewhere[0]} has another card than the trainer"
    if len({trainer_card, *engine_cards.values()}) <= len(engine_cards):
        return None, "two of the engines and the trainer share a card, which NCCL refuses"
    return Transport.NCCL, ""


def choose_transport(
    asked_for: str, *, trainer_node: str, engine_nodes: Mapping[str, str], can_share_memory: bool
) -> Transport:
    """What `model_update_transport` stands for, given the nodes of the trainer's first rank and the engines.

    `auto` is a way through main memory. A bucket of the object store goes to a node once, and its engines
    read it there; a broadcast goes to each engine.
    ConfigurationError for shared memory between nodes, or where there is none.
    """
    elsewhere = [name for name, node in engine_nodes.items() if node != trainer_node]
    if asked_for == "auto":
        if elsewhere:
            most = max(Counter(engine_nodes[name] for name in elsewhere).values())
            return Transport.OBJECT_STORE if most > 1 else Transport.BROADCAST
        return Transport.SHARED_MEMORY if can_share_memory else Transport.OBJECT_STORE
    transport = Transport(asked_for)
    if transport is Transport.SHARED_MEMORY and (elsewhere or not can_share_memory):
        why = f"{elsewhere[0]} is on another node than the trainer" if elsewhere else "this is no Linux"
        raise ConfigurationError(
            f"model_update_transport: shared_memory, but {why}; use auto, object_store or broadcast"
            + (", or place both with ray.placement.engines and ray.placement.trainer" if elsewhere else "")
        )
    return transport


def can_share_memory() -> bool:
    """Whether this system has memory without a name that other processes can map (Linux)."""
    return hasattr(os, "memfd_create")
