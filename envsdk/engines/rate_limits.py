"""Requests and tokens per minute: a pure account, and a gate that waits.

    gate = RateGate(RateLimits(requests_per_minute=60, tokens_per_minute=100_000))
    await gate.admit()          # waits until a request may be sent
    gate.charge(1200)           # what it took, once that is known

An account fills steadily and holds at most one second's worth, so that requests are spread evenly. Tokens are
charged afterwards: the account may fall below zero, and the next request waits until it is paid back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from pydantic import PositiveFloat

from envsdk.base.settings.options import Options
from envsdk.contracts.policy import Policy, Reply, TurnContext

_MINUTE_S = 60.0


class RateLimits(Options):
    """None is no limit."""

    requests_per_minute: PositiveFloat | None = None
    """Most requests to the model, over all processes."""
    tokens_per_minute: PositiveFloat | None = None
    """Most tokens to and from the model, over all processes."""

    def __bool__(self) -> bool:
        return self.requests_per_minute is not None or self.tokens_per_minute is not None

    def share(self, num_processes: int) -> RateLimits:
        """The limits of one of several processes."""
        return RateLimits(
            requests_per_minute=self.requests_per_minute and self.requests_per_minute / num_processes,
            tokens_per_minute=self.tokens_per_minute and self.tokens_per_minute / num_processes,
        )


class Account:
    """Pure: units that come at a steady rate and are spent. Times are seconds of any one clock."""

    def __init__(self, per_minute: float, *, now: float) -> None:
        self._per_s = per_minute / _MINUTE_S
        self._most = max(1.0, self._per_s)
        self._units = self._most
        self._at = now

    def wait_s(self, at_least: float, *, now: float) -> float:
        """Seconds until `at_least` units are there; 0 when they are. At most what the account can hold."""
        self._fill(now)
        return max(0.0, (min(at_least, self._most) - self._units) / self._per_s)

    def spend(self, units: float, *, now: float) -> None:
        """May leave less than nothing."""
        self._fill(now)
        self._units -= units

    def _fill(self, now: float) -> None:
        self._units = min(self._most, self._units + (now - self._at) * self._per_s)
        self._at = now


class RateGate:
    """Lets requests through in the order they come, no faster than the limits. One event loop."""

    def __init__(self, limits: RateLimits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        now = clock()
        self._requests = limits.requests_per_minute and Account(limits.requests_per_minute, now=now)
        self._tokens = limits.tokens_per_minute and Account(limits.tokens_per_minute, now=now)
        self._turnstile = asyncio.Lock()

    async def admit(self) -> None:
        """Wait until one more request may be sent, and count it."""
        async with self._turnstile:
            while (wait_s := self._wait_s()) > 0:  # noqa: ASYNC110 - it is time that is waited for
                await asyncio.sleep(wait_s)
            if self._requests:
                self._requests.spend(1, now=self._clock())

    def charge(self, num_tokens: int) -> None:
        """Count the tokens of a request that was admitted."""
        if self._tokens:
            self._tokens.spend(num_tokens, now=self._clock())

    def _wait_s(self) -> float:
        now = self._clock()
        waits = [
            account.wait_s(least, now=now)
            for account, least in ((self._requests, 1.0), (self._tokens, 0.0))
            if account
        ]
        return max(waits, default=0.0)


class PacedPolicy(Policy):
    """A policy with a token log that asks no faster than `gate` lets it."""

    def __init__(self, policy: Policy, gate: RateGate) -> None:
        self.name = policy.name
        self._policy = policy
        self._gate = gate

    async def act(self, turn: TurnContext) -> Reply:
        await self._gate.admit()
        reply = await self._policy.act(turn)
        self._gate.charge(reply.response_end)
        return reply
