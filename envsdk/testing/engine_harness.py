"""What the tests of every engine stand on: how an engine is made and run, and what requests look like."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
import pytest

from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.engine import Engine, EngineConfig, GenerationRequest, GenerationResult, WeightReference
from envsdk.engines.sampling import SamplingParams

_PATIENCE_S = 60.0
HarnessT = TypeVar("HarnessT", bound="EngineHarness")
_SAMPLING = frozenset(field.name for field in fields(SamplingParams))


class EngineHarness:
    """One engine under test."""

    engine_class: type[Engine]
    vocab_size = 64
    """Prompts are drawn below this."""
    sequence_length = 256
    long_reply = 200
    """Tokens of a reply that is still running when a test interrupts it."""
    long_reply_s = 1.0
    prefix_block = 1
    """A kept prefix is cut to a multiple of so many tokens."""
    unknown_key = "num_thread"
    """A misspelled key of `strategy_config` ..."""
    nearest_key = "num_threads"
    """... and the known one its error should name."""

    def config(self, **changes: Any) -> EngineConfig:
        """How the engine is built; `changes` are fields of EngineConfig."""
        raise NotImplementedError

    def weights(self) -> WeightReference:
        """Weights that differ from those the engine starts with, where it has any."""
        raise NotImplementedError

    def make_engine(self, **changes: Any) -> Engine:
        """An engine that is not started."""
        return self.engine_class.create(self.config(**changes))

    def run(self, test: Callable[[Engine], Coroutine[Any, Any, None]], **changes: Any) -> None:
        """Run `test` with a started engine, and close it."""

        async def scenario() -> None:
            engine = self.make_engine(**changes)
            await engine.start()
            try:
                await asyncio.wait_for(test(engine), _PATIENCE_S)
            finally:
                await engine.close()

        self.play(scenario())

    def play(self, scenario: Coroutine[Any, Any, None]) -> None:
        """On an event loop; override it for another kind of loop."""
        asyncio.run(scenario)

    def prompt(self, length: int = 8, seed: int = 0) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Random token ids."""
        return np.random.default_rng(seed).integers(0, self.vocab_size, length).astype(np.int32)

    def request(
        self, name: str | int = 0, *, length: int = 8, num_tokens: int = 6, **changes: Any
    ) -> GenerationRequest:
        """A short request whose prompt and seed follow from its name."""
        number = sum(str(name).encode())
        sampling = {"max_new_tokens": num_tokens, "seed": number} | {
            key: changes.pop(key) for key in _SAMPLING if key in changes
        }
        prompt = changes.pop("prompt_ids", self.prompt(length, number))
        return GenerationRequest(
            request_id=str(name), prompt_ids=prompt, sampling=SamplingParams(**sampling), **changes
        )

    def long_request(self, name: str | int = "long", **changes: Any) -> GenerationRequest:
        """A request that runs for `long_reply_s` or more."""
        return self.request(name, num_tokens=self.long_reply, **changes)

    async def mid_reply(self, engine: Engine, num_running: int = 1) -> None:
        """Until so many requests are running, and some tokens further."""
        await until(lambda: engine.health().num_running >= num_running)
        before = engine.health().num_tokens_sampled
        await asyncio.sleep(self.long_reply_s / 10)
        # A busy machine may have sampled nothing in that time.
        await until(lambda: _has_sampled(engine, before + num_running))

    def prompt_of(self, name: str | int) -> np.ndarray[Any, np.dtype[np.int32]]:
        """The prompt of `request(name)`."""
        return self.prompt(8, sum(str(name).encode()))


def on_engine(
    *, needs: str = "", **changes: Any
) -> Callable[[Callable[[HarnessT, Engine], Coroutine[Any, Any, None]]], Callable[[HarnessT], None]]:
    """Makes a test of a coroutine that is given a started engine; `changes` as of `EngineHarness.config`.

    It is skipped for an engine without all abilities in `needs`, names with blanks in between.
    """

    def decorate(test: Callable[[HarnessT, Engine], Coroutine[Any, Any, None]]) -> Callable[[HarnessT], None]:
        def run(self: HarnessT) -> None:
            async def able(engine: Engine) -> None:
                if lacking := [name for name in needs.split() if not getattr(engine.abilities, name)]:
                    pytest.skip(f"the engine has no {', '.join(lacking)}")
                await test(self, engine)

            self.run(able, **changes)

        run.__name__, run.__qualname__, run.__doc__ = test.__name__, test.__qualname__, test.__doc__
        return run

    return decorate


def _has_sampled(engine: Engine, num_tokens: int) -> bool:
    health = engine.health()
    return health.num_tokens_sampled >= num_tokens or health.num_running == 0


def check_result(request: GenerationRequest, result: GenerationResult, *, sequence_length: int) -> None:
    """What holds of every result, however the reply ended."""
    count = len(result.token_ids)
    assert result.request_id == request.request_id
    assert result.token_ids.dtype == np.int32
    assert result.logprobs.dtype == np.float32
    assert result.logprobs.shape == (count,)
    assert np.isfinite(result.logprobs).all()
    assert (result.logprobs <= 0).all()
    assert count <= request.sampling.max_new_tokens
    assert len(request.prompt_ids) + count <= sequence_length
    ends = [0, *(span.end for span in result.version_spans)]
    assert [span.start for span in result.version_spans] == ends[:-1]
    assert ends[-1] == count
    assert all(span.end > span.start for span in result.version_spans)
    assert bool(result.error) == (result.finish_reason is FinishReason.ERROR)


async def gather(engine: Engine, requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
    """Submit all at once and wait for all."""
    pending: list[Awaitable[GenerationResult]] = [engine.submit(request) for request in requests]
    return list(await asyncio.gather(*pending))


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something the engine will do; the test's own deadline ends it if it never does."""
    while not condition():  # noqa: ASYNC110 - health is asked, it does not call back
        await asyncio.sleep(0.002)
