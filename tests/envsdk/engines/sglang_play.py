"""Playing with the `sglang` engine on an emulated server, for tests."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from remote_play import one_reply_of, play_on
from sglang_server import Array, FakeSGLang, Respond, distributions, read_table

from envsdk.engines.engine import EngineConfig, GenerationResult
from envsdk.engines.sglang.engine import SGLangEngine
from envsdk.testing.engines import until


@contextmanager
def serving(folder: Path) -> Iterator[FakeSGLang]:
    """A server of the model in `folder`, which none may ask with stale weights."""
    with FakeSGLang(read_table(folder)) as server:
        yield server
        assert not server.behavior.num_stale_reads


def config_of(server: FakeSGLang, folder: Path) -> EngineConfig:
    settings = {"base_url": server.base_url, "backoff_s": 0.01, "stream_interval": 4}
    return EngineConfig(model=folder, sequence_length=256, max_running=8, strategy_config=settings)


def having(config: EngineConfig, **settings: Any) -> EngineConfig:
    return replace(config, strategy_config={**config.strategy_config, **settings})


def play(config: EngineConfig, test: Callable[[SGLangEngine], Awaitable[Any]]) -> Any:
    return play_on(SGLangEngine, config, test)


def one_reply(config: EngineConfig, **sampling: Any) -> GenerationResult:
    return one_reply_of(SGLangEngine, config, **sampling)


def slowly(server: FakeSGLang, token_s: float = 0.01) -> None:
    server.behavior.slow_after, server.behavior.token_s = 0, token_s


async def sampled(engine: SGLangEngine, num_tokens: int) -> None:
    await until(lambda: engine.health().num_tokens_sampled >= num_tokens)


def check_logprobs(result: GenerationResult, tables: list[Array], **params: Any) -> None:
    """Each token's log-probability is that of the weights its span names."""
    shape = {"temperature": 1.0, "top_k": -1, "top_p": 1.0} | params
    last = 4
    for span in result.version_spans:
        for n in range(span.start, span.end):
            token = int(result.token_ids[n])
            expected = distributions(tables[span.version], last, shape)[1][token]
            assert result.logprobs[n] == pytest.approx(expected, abs=1e-5)
            last = token


def hang_up_after(num_tokens: int) -> Respond:
    def respond(handler: Any, body: dict[str, Any]) -> bool:
        handler.begin_stream()
        for count, message in enumerate(handler.messages(body)):
            handler.event(json.dumps(message))
            if count >= num_tokens // 4:
                break
        handler.engine.abort(body["rid"], abort_all=False)
        handler.close_connection = True
        return True

    return respond


def status(code: int) -> Respond:
    return lambda handler, body: handler.answer(code, {"error": {"message": f"told {code}"}})
