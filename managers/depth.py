"""How far generation runs ahead, where the run finds it by itself (`async_generation_ratio: auto`). Pure.

    observe, once per batch -> the depth from now on, or None while it stays

The least depth at which the trainer waits for at most the given share of its time. More depth than that makes
samples older and gains nothing.
"""

from __future__ import annotations

import math

from envsdk.managers.ledger_types import LedgerConfig

_STEP = 0.25
"""Batches by which the depth changes at a time, at least one group."""
_WINDOW = 4
"""Batches that are judged together."""
_MEMORY = 12
"""Windows for which a depth that was too little is not tried again."""


class DepthControl:
    """Owner: the scheduler, which knows when the trainer asked for a batch and when it got one."""

    def __init__(self, *, alpha: float, most: float, max_wait_share: float, groups_per_batch: int) -> None:
        """`alpha` is the depth at the start, `most` the largest, in batches."""
        self.alpha = alpha
        self._step = max(_STEP, 1 / groups_per_batch)
        self._most = most
        self._target = max_wait_share
        self._num_unsettled = self._settling()
        self._waited_s = self._lasted_s = 0.0
        self._num_seen = self._num_idle = 0
        self._windows = 0
        self._too_little: tuple[float, int] | None = None
        """The depth that was found to be too little last, and in which window."""

    def observe(self, *, waited_s: float, lasted_s: float, had_idle_slot: bool) -> float | None:
        """The trainer waited for `waited_s` of the `lasted_s` seconds since the batch before.

        `had_idle_slot`: when the batch was complete, an environment had nothing to play. Otherwise a greater
        depth would start nothing: what the trainer waits for is more environments or engines.
        """
        if self._num_unsettled:
            self._num_unsettled -= 1
            return None
        self._waited_s += waited_s
        self._lasted_s += lasted_s
        self._num_seen += 1
        self._num_idle += had_idle_slot
        if self._num_seen < _WINDOW:
            return None
        share = self._waited_s / self._lasted_s if self._lasted_s > 0 else 0.0
        depth_limits = self._num_idle > 0
        self._waited_s = self._lasted_s = 0.0
        self._num_seen = self._num_idle = 0
        self._windows += 1
        return self._change(self._better(share, depth_limits=depth_limits))

    def _better(self, share: float, *, depth_limits: bool) -> float:
        if share > self._target:
            if not depth_limits:
                return self.alpha
            self._too_little = (self.alpha, self._windows)
            return self.alpha + self._step * (2 if share > 2 * self._target else 1)
        less = self.alpha - self._step
        if share < self._target / 2 and less > 0 and not self._was_too_little(less):
            return less
        return self.alpha

    def _was_too_little(self, alpha: float) -> bool:
        if self._too_little is None or self._windows - self._too_little[1] > _MEMORY:
            return False
        return alpha <= self._too_little[0]

    def _change(self, alpha: float) -> float | None:
        alpha = min(alpha, self._most)
        if alpha == self.alpha:
            return None
        self.alpha = alpha
        self._num_unsettled = self._settling()
        return alpha

    def _settling(self) -> int:
        """Batches that were begun under an earlier depth."""
        return math.ceil(self.alpha)


def depth_control(config: LedgerConfig, alpha: float) -> DepthControl | None:
    """What sets the depth of a ledger that begins with `alpha`; None where the configuration gives it."""
    if config.max_wait_share is None:
        return None
    return DepthControl(
        alpha=alpha,
        most=config.staleness_bound,
        max_wait_share=config.max_wait_share,
        groups_per_batch=config.groups_per_batch,
    )
