"""Time limits of a rollout's policy: for one reply, for one episode, and for all of them.

    limits = TimeLimits(turn_s=30.0)
    policy = limits.timed(policy)        # a reply that is late fails its episode

A late reply is no longer waited for: its coroutine is cancelled, and its thread left behind, since Python can
end none. What blocks the event loop itself is noticed when it returns.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import replace

from envsdk.base.processes.stretches import outcome
from envsdk.contracts.failures import Boundary, Failure
from envsdk.contracts.policy import Policy, PolicyFailed, Reply, TurnContext

_GRACE_S = 1.0
"""For a policy to end after its episode was cancelled."""
_BLOCKED = (
    "when the event loop was free again: a policy that blocks (time.sleep, a client without await) must be a "
    "plain function"
)


class TimeLimits:
    """Seconds that a policy may take; None where there is no limit.

    made -> start -> running -> is_over
    """

    def __init__(
        self,
        *,
        turn_s: float | None = None,
        episode_s: float | None = None,
        rollout_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.turn_s, self.episode_s, self.rollout_s = turn_s, episode_s, rollout_s
        self._clock = clock
        self._started = math.inf

    def __bool__(self) -> bool:
        return (self.turn_s, self.episode_s, self.rollout_s) != (None, None, None)

    def start(self) -> None:
        """The first episode begins."""
        self._started = self._clock()

    @property
    def is_over(self) -> bool:
        """Whether the time of the rollout is over, so that no more episodes begin."""
        return self.rollout_s is not None and self._clock() - self._started >= self.rollout_s

    def of(self, turn: TurnContext) -> tuple[float, Failure]:
        """Seconds left for this reply, and the failure of an episode that gets none in time."""
        limits = []
        if self.turn_s is not None:
            limits.append((self.turn_s, _late(f"no reply within turn_timeout_s={self.turn_s:g}")))
        if self.episode_s is not None:
            played_s = sum(each.generate_s + each.env_s for each in turn.turns)
            message = f"turn {turn.turn_index + 1} had no reply within episode_timeout_s={self.episode_s:g}"
            limits.append((self.episode_s - played_s, _late(message)))
        if self.rollout_s is not None:
            left_s = self._started + self.rollout_s - self._clock()
            message = f"timeout_s={self.rollout_s:g} of the rollout was over at turn {turn.turn_index + 1}"
            limits.append((left_s, Failure(boundary=Boundary.SCHEDULER, kind="timeout", message=message)))
        return min(limits, key=lambda limit: limit[0])

    def timed(self, policy: Policy) -> Policy:
        """The policy, held to these limits."""
        return _TimedPolicy(policy, self, self._clock) if self else policy


def _late(message: str) -> Failure:
    return Failure(boundary=Boundary.POLICY, kind="timeout", message=message)


class _TimedPolicy(Policy):
    def __init__(self, policy: Policy, limits: TimeLimits, clock: Callable[[], float]) -> None:
        self.name = policy.name
        self._policy = policy
        self._limits = limits
        self._clock = clock

    async def act(self, turn: TurnContext) -> Reply:
        left_s, failure = self._limits.of(turn)
        if left_s <= 0:
            raise PolicyFailed(failure)
        asked = self._clock()
        # A task of its own: a policy that does not heed its cancellation must not hold up the episode.
        asking = asyncio.create_task(outcome(self._policy.act(turn)))
        try:
            await asyncio.wait({asking}, timeout=left_s)
        except asyncio.CancelledError:
            asking.cancel()
            await asyncio.wait({asking}, timeout=_GRACE_S)
            raise
        if not asking.done():
            asking.cancel()
            raise PolicyFailed(failure)
        if (took_s := self._clock() - asked) > left_s:
            late = f"{failure.message}; it came after {took_s:.1f} s, {_BLOCKED}"
            raise PolicyFailed(replace(failure, message=late))
        reply, error = asking.result()
        if error is not None:
            raise error
        assert reply is not None
        return reply
