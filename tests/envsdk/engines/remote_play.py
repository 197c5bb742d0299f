"""Playing with an engine on an emulated server, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import numpy as np

from envsdk.engines.engine import Engine, EngineConfig, GenerationRequest, GenerationResult
from envsdk.engines.sampling import SamplingParams

E = TypeVar("E", bound=Engine)


def request(name: str = "a", **sampling: Any) -> GenerationRequest:
    return GenerationRequest(
        request_id=name,
        prompt_ids=np.array([3, 1, 4], np.int32),
        sampling=SamplingParams(**{"max_new_tokens": 6, "seed": 11} | sampling),
    )


def play_with(engine: Engine, test: Callable[[], Awaitable[Any]]) -> Any:
    """Run `test` while `engine` is started, and close it."""

    async def scenario() -> Any:
        await engine.start()
        try:
            return await asyncio.wait_for(test(), 60)
        finally:
            await engine.close()

    return asyncio.run(scenario())


def play_on(engine_class: type[E], config: EngineConfig, test: Callable[[E], Awaitable[Any]]) -> Any:
    """Run `test` with a started engine, and close it."""

    engine = engine_class.create(config)
    return play_with(engine, lambda: test(engine))


def one_reply_of(engine_class: type[Engine], config: EngineConfig, **sampling: Any) -> GenerationResult:
    async def ask(engine: Engine) -> GenerationResult:
        return await engine.submit(request(**sampling))

    result = play_on(engine_class, config, ask)
    assert isinstance(result, GenerationResult)
    return result


def then(server: Any, *responses: Callable[[Any, dict[str, Any]], bool]) -> None:
    """What the server does with requests after the two of the engine's start."""
    server.behavior.respond = [lambda handler, body: False] * 2 + list(responses)
