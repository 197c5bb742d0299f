"""The project's own `openai` engine against the endpoint, which samples with a real model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from envsdk.contracts.chat import ChatTokenizer
from envsdk.engines.embedded import EmbeddedEngine
from envsdk.engines.endpoint.sampling import SamplingRules
from envsdk.engines.endpoint.server import Endpoint, EndpointConfig
from envsdk.engines.engine import EngineConfig, GenerationRequest
from envsdk.engines.openai.engine import OpenAIEngine
from envsdk.engines.proxy import InferenceProxy, LocalLink
from envsdk.engines.sampling import OutputStructure, SamplingParams
from tests.tiny_policies import write_tiny_policy

KEY = "ENVSDK_TEST_ENDPOINT_KEY"
LENGTH = 128


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_tiny_policy(
        folder,
        ["hello world Up Down <answer>Up</answer>"] * 3,
        hidden_size=32,
        num_heads=4,
        sequence_length=LENGTH,
    )
    # The padding token's embedding is zero, hence all tokens equally likely behind it: `top_k: 1`, with which
    # the engine asks what comes behind token 0, would then leave them all.
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][0] = weights["model.embed_tokens.weight"][10]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@asynccontextmanager
async def embedded(folder: Path) -> AsyncIterator[EmbeddedEngine]:
    engine = EmbeddedEngine.create(EngineConfig(model=folder, sequence_length=LENGTH))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def requests(chat: ChatTokenizer) -> list[GenerationRequest]:
    prompts = ["hello", "world Up", "漢字", "Down", "hello", "world"]
    how: list[dict[str, Any]] = [
        {},
        {"temperature": 0.7},
        {"top_p": 0.8, "top_k": 20},
        {"temperature": 0.0},
        {"structure": OutputStructure(choices=("Up", "Down"))},
        {"structure": OutputStructure(regex="<answer>(Up|Down)</answer>")},
    ]
    return [
        GenerationRequest(
            request_id=str(number),
            prompt_ids=np.array(chat.first_prompt(system="", user=prompt), np.int32),
            sampling=SamplingParams(
                max_new_tokens=20, stop_token_ids=chat.stop_token_ids, seed=number, **settings
            ),
        )
        for number, (prompt, settings) in enumerate(zip(prompts, how, strict=True))
    ]


@pytest.mark.parametrize("protocol", ["completions", "generate"])
async def test_replies_over_the_endpoint_are_those_of_the_engine_behind_it(
    protocol: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = ChatTokenizer.load(folder)
    async with embedded(folder) as engine:
        direct = [await engine.submit(request) for request in requests(chat)]
        proxy = InferenceProxy({"local": LocalLink(engine)})
        proxy.start()
        endpoint = Endpoint(proxy, chat, EndpointConfig(model_name="tiny", sequence_length=LENGTH))
        await endpoint.start()
        session = endpoint.sessions.open(rules=SamplingRules())
        monkeypatch.setenv(KEY, session.api_key)
        remote = OpenAIEngine.create(
            EngineConfig(
                model=None,
                sequence_length=LENGTH,
                strategy_config={
                    "base_url": endpoint.base_url(session),
                    "model": "tiny",
                    "protocol": protocol,
                    "api_key_env": KEY,
                    "structured_output": "structured_outputs",
                },
            )
        )
        try:
            # At the start it tests whose log-probabilities it gets, and whether stop tokens and structures
            # are heeded.
            await remote.start()
            num_probes = len(session.record.replies)
            through = await asyncio.gather(*(remote.submit(request) for request in requests(chat)))
        finally:
            await remote.close()
            await endpoint.close()
            await proxy.close()
    assert [chat.decode(result.token_ids.tolist()) in ("Up", "Down") for result in direct[3:5]] == [
        False,
        True,
    ]
    for ours, theirs in zip(through, direct, strict=True):
        assert not ours.error
        assert ours.token_ids.tolist() == theirs.token_ids.tolist()
        np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=1e-5)
        assert ours.finish_reason is theirs.finish_reason
    recorded = {tuple(reply.ids): reply.logprobs for reply in session.record.replies[num_probes:]}
    for request, result in zip(requests(chat), direct, strict=True):
        logprobs = recorded[*request.prompt_ids.tolist(), *result.token_ids.tolist()]
        np.testing.assert_allclose(logprobs, result.logprobs, atol=1e-5)
