"""The experts that servers tell of with a reply, of vLLM's protocol and of SGLang's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai_server import FakeServer
from remote_play import play_on, request
from sglang_play import config_of, sampled, serving, slowly
from sglang_server import FakeSGLang, write_model

from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.engine import Engine, EngineConfig, GenerationResult
from envsdk.engines.openai.engine import OpenAIEngine
from envsdk.engines.sglang.engine import SGLangEngine

ROUTED = np.random.default_rng(0).integers(0, 128, (256, 3, 2))
"""What the servers' mixture chooses: `[positions, layers, chosen]`."""


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def vllm() -> Iterator[FakeServer]:
    with FakeServer() as server:
        server.behavior.routed = ROUTED.astype(np.uint8)
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = write_model(tmp_path / "model", seed=0)
    named = {"text_config": {"num_hidden_layers": 3, "num_experts_per_tok": 2}}
    (folder / "config.json").write_text(json.dumps(named))
    return folder


@pytest.fixture
def sglang(folder: Path) -> Iterator[FakeSGLang]:
    with serving(folder) as server:
        server.behavior.routed = ROUTED
        yield server


def vllm_config(server: FakeServer, protocol: str) -> EngineConfig:
    settings = {"base_url": server.base_url, "model": "table", "protocol": protocol}
    return EngineConfig(model=None, sequence_length=64, strategy_config=settings)


async def check_replies(engine: Engine) -> None:
    assert engine.abilities.routed_experts
    for start in (0, 2):
        found = await engine.submit(replace(request(str(start)), experts_from=start))
        assert found.experts is not None
        np.testing.assert_array_equal(found.experts, ROUTED[start : 3 + len(found.token_ids) - 1])
    assert (await engine.submit(request("other"))).experts is None


@pytest.mark.parametrize("protocol", ["completions", "generate"])
def test_vllms_server_tells_them_of_the_tokens_asked_for(vllm: FakeServer, protocol: str) -> None:
    play_on(OpenAIEngine, vllm_config(vllm, protocol), check_replies)
    start = "routed_experts_prompt_start"
    asked = [body.get("sampling_params", body).get(start) for body in vllm.behavior.bodies]
    assert asked[-3:] == [0, 2, 3]  # as few as may be where nobody asks
    assert asked[0] is None  # a server that knows the field is known by its answer


def test_sglangs_server_tells_them_of_the_tokens_asked_for(sglang: FakeSGLang, folder: Path) -> None:
    play_on(SGLangEngine, config_of(sglang, folder), check_replies)
    assert "return_routed_experts" not in sglang.behavior.bodies[-1]


def test_a_reply_that_an_update_interrupts_has_those_of_all_its_tokens(
    sglang: FakeSGLang, folder: Path, tmp_path: Path
) -> None:
    async def update(engine: SGLangEngine) -> None:
        slowly(sglang)
        running = engine.submit(replace(request(max_new_tokens=60), experts_from=1))
        await sampled(engine, 10)
        await engine.load_weights(write_model(tmp_path / "other", seed=1), 1)
        result = await running
        assert [span.version for span in result.version_spans] == [0, 1]
        np.testing.assert_array_equal(result.experts, ROUTED[1:62])

    play_on(SGLangEngine, config_of(sglang, folder), update)


@pytest.mark.parametrize("routed", [ROUTED[:5], ROUTED[:, 0], None])
def test_a_reply_without_those_asked_for_is_refused(
    vllm: FakeServer, sglang: FakeSGLang, folder: Path, routed: Any
) -> None:
    async def ask(engine: Engine) -> GenerationResult:
        for server in (vllm, sglang):
            server.behavior.routed = routed
        return await engine.submit(replace(request(), experts_from=0))

    configs = {OpenAIEngine: vllm_config(vllm, "generate"), SGLangEngine: config_of(sglang, folder)}
    for engine_class, config in configs.items():
        result = play_on(engine_class, config, ask)
        assert result.finish_reason is FinishReason.ERROR
        assert "routed_experts: " in result.error


def test_a_server_that_tells_of_none_is_not_asked(
    vllm: FakeServer, sglang: FakeSGLang, folder: Path, tmp_path: Path
) -> None:
    async def ask(engine: Engine) -> GenerationResult:
        return await engine.submit(replace(request(), experts_from=0))

    dense = config_of(sglang, write_model(tmp_path / "dense", seed=0))
    assert play_on(SGLangEngine, dense, ask).error.startswith("routed_experts: ")
    vllm.behavior.routed = sglang.behavior.routed = None
    assert play_on(SGLangEngine, config_of(sglang, folder), ask).error.startswith("routed_experts: ")
    assert play_on(OpenAIEngine, vllm_config(vllm, "generate"), ask).error.startswith("routed_experts: ")
