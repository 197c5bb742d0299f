"""Limits of a run: how much it plays at a time, how old a sample may be, when a group is complete. Pure.

The configuration shows these numbers and the ledger enforces them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction


def capacity(async_generation_ratio: float, batch_size: int) -> int:
    """Trajectories that may run or wait at the same time, without spares: floor((1 + alpha) x batch_size).

    >>> capacity(1.15, 20)
    43
    """
    # Exact, from the decimal that the user wrote: 1.15 * 20 is 22.999... in binary.
    return math.floor((1 + Fraction(str(async_generation_ratio))) * batch_size)


def staleness_bound(async_generation_ratio: float, max_staleness: int | None) -> int:
    """How many weight versions a delivered sample may be behind the trainer: `max_staleness`.

    The default is as many as generation runs ahead, rounded up.
    """
    return math.ceil(async_generation_ratio) if max_staleness is None else max_staleness


class Staleness:
    """The bound of a class that has these two fields."""

    __slots__ = ()
    alpha: float
    max_staleness: int | None

    @property
    def staleness_bound(self) -> int:
        """`max_staleness`, or its default."""
        return staleness_bound(self.alpha, self.max_staleness)

    def min_version(self, version: int) -> int:
        """The oldest that a delivered token may have when the trainer is at `version`."""
        return version - self.staleness_bound


def version_of_group(versions: Iterable[int | None]) -> int | None:
    """The version that a group counts as: the oldest of its episodes, None when none has a sampled token."""
    return min((version for version in versions if version is not None), default=None)


def envs_per_worker(num_envs: int) -> int:
    """How many environments a worker process hosts by default: `max_env_num_per_worker`.

    An eighth of all, at least 64 and at most 1,024. A process takes some 75 MB and a second of CPU time to
    start, so few are cheaper; each is one event loop on one core, and its death repeats all its episodes.
    """
    return min(max(math.ceil(num_envs / 8), 64), 1024)


def required_group_size(group_size: int, min_group_size: int | None) -> int:
    """How many members of a delivered group need an outcome: `min_group_size`.

    The default is half of the group, rounded up, but at least 2 in groups of 2 or more.
    """
    if min_group_size is not None:
        return min_group_size
    return max(math.ceil(group_size / 2), min(2, group_size))
