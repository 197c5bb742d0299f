"""How much a run may play at a time, how old a sample may be, and when a group is complete. Pure.

The configuration shows these numbers and the ledger keeps to them.
"""

from __future__ import annotations

import math
from fractions import Fraction


def capacity(async_generation_ratio: float, batch_size: int) -> int:
    """Trajectories leased or waiting at the same time, spares not counted: floor((1 + alpha) x batch_size).

    >>> capacity(1.15, 20)
    43
    """
    # Through the decimal the user wrote: 1.15 * 20 is 22.999... in binary.
    return math.floor((1 + Fraction(str(async_generation_ratio))) * batch_size)


def max_staleness(async_generation_ratio: float) -> int:
    """Weight versions that a delivered sample may be behind the trainer."""
    return math.ceil(async_generation_ratio)


def required_group_size(group_size: int, min_group_size: int | None) -> int:
    """Members with an outcome that a delivered group needs: `min_group_size`, or what stands for it when it
    is absent: half of the group, rounded up, and at least 2 where there are 2.
    """
    if min_group_size is not None:
        return min_group_size
    return max(math.ceil(group_size / 2), min(2, group_size))
