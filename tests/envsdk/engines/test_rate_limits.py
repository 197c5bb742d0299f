"""Rate limits: never above them, and never slower than they allow."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.engines import rate_limits
from envsdk.engines.rate_limits import Account, RateGate, RateLimits


@given(
    st.floats(1, 6000),
    st.lists(st.tuples(st.floats(0, 5), st.floats(0.1, 50)), max_size=40),
)
def test_an_account_never_gives_more_than_its_rate_allows(
    per_minute: float, asks: list[tuple[float, float]]
) -> None:
    account = Account(per_minute, now=0.0)
    now, spent = 0.0, 0.0
    for passes, units in asks:
        now += passes
        now += account.wait_s(0.0, now=now)
        account.spend(units, now=now)
        spent += units
        # The last one may have gone into debt; everything before it was covered.
        assert spent - units <= max(1.0, per_minute / 60) + per_minute / 60 * now + 1e-6


def test_an_account_that_is_left_alone_fills_up_again_and_no_further() -> None:
    account = Account(60, now=0.0)
    account.spend(5, now=0.0)
    assert account.wait_s(1.0, now=0.0) == pytest.approx(5.0)
    assert account.wait_s(1.0, now=1000.0) == 0.0
    account.spend(1, now=1000.0)
    assert account.wait_s(1.0, now=1000.0) == pytest.approx(1.0)


class VirtualTime:
    """A clock that only sleeping moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        sleep = asyncio.sleep

        async def pass_time(seconds: float) -> None:
            self.now += seconds
            await sleep(0)

        monkeypatch.setattr(rate_limits.asyncio, "sleep", pass_time)

    def __call__(self) -> float:
        return self.now


async def test_requests_at_once_are_spread_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualTime(monkeypatch)
    gate = RateGate(RateLimits(requests_per_minute=120), clock=clock)
    await asyncio.gather(*(gate.admit() for _ in range(21)))
    # Two at once, and then two per second.
    assert clock.now == pytest.approx(19 / 2)


async def test_tokens_that_were_used_hold_the_next_request_back(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualTime(monkeypatch)
    gate = RateGate(RateLimits(tokens_per_minute=600), clock=clock)
    await gate.admit()
    gate.charge(110)
    await gate.admit()
    assert clock.now == pytest.approx(10.0)


def test_processes_share_the_limits() -> None:
    limits = RateLimits(requests_per_minute=60)
    assert limits.share(4) == RateLimits(requests_per_minute=15)
    assert limits
    assert not RateLimits()


@pytest.mark.parametrize("limit", [0, -1, float("nan")])
def test_a_limit_that_is_none_is_refused(limit: float) -> None:
    with pytest.raises(ValueError, match=r"tokens_per_minute(?s:.*)(?:greater than 0|must be a number)"):
        RateLimits(tokens_per_minute=limit)
