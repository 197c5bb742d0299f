"""A policy that a program brings along as an object: what a `Player` needs to know of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from envsdk.contracts.policy import Policy

if TYPE_CHECKING:
    from envsdk.config import RunConfig
    from envsdk.managers.traj_env_manager import TagSetup

WAITING_SLOTS = 16
"""Episodes at a time where a policy waits for something else, and nobody said more."""


class PolicyForm(ABC):
    """A function, an object, a client or an engine as the policy of each tag.

    check -> open -> policies play -> the block ends
    """

    name: str
    slots: int = WAITING_SLOTS
    """Episodes at a time, over all tags, where no number is given."""

    def check(self, config: RunConfig, tags: Sequence[str]) -> None:  # noqa: B027 - most play anything
        """ConfigurationError when it cannot play these tags."""

    @abstractmethod
    def open(self, num_slots: int) -> AbstractAsyncContextManager[Callable[[TagSetup], Policy]]:
        """The policies by setup, for as long as the block runs; `num_slots` episodes ask at a time."""
