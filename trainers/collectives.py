"""Collective calls of the ranks of one trainer: every rank makes each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from envsdk.contracts.failures import StorageError

Found = TypeVar("Found")


def all_gather(found: Found) -> list[Found]:
    """The values of all ranks, in their order, on every rank; they are pickled on the way."""
    everything: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everything, found)
    return everything


def raise_on_all_ranks(action: Callable[[], Found]) -> Found:
    """Return the result of `action`; raise a StorageError of one rank on all, so that none waits for it."""
    failure: StorageError | None = None
    try:
        result = action()
    except StorageError as error:
        failure = error
    for message in all_gather(None if failure is None else str(failure)):
        if message is not None:
            raise StorageError(message) from failure
    return result


def on_first_rank(action: Callable[[], None]) -> None:
    """`action` on rank 0, while the others wait; its StorageError is raised on all."""
    raise_on_all_ranks(action if dist.get_rank() == 0 else lambda: None)
