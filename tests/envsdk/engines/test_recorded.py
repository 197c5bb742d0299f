"""Decoding by recordings. PyTorch's tracer stands for a GPU's graphs here: what it has traced runs the same
operations on the same memory, and nothing of Python."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import FAST_KINDS, VOCAB_SIZE, make_tiny, reference_logprobs, save_tiny, shake
from torch.fx.experimental.proxy_tensor import make_fx

from envsdk.engines.embedded import EmbeddedEngine
from envsdk.engines.embedded.engine import _recorder
from envsdk.engines.embedded.recorded import rounded_up
from envsdk.engines.embedded.settings import EmbeddedSettings
from envsdk.engines.engine import EngineConfig, GenerationRequest
from envsdk.engines.sampling import SamplingParams
from envsdk.testing.engines import gather, until

TOLERANCE = 1e-4


class Traces:
    """A recorder for a CPU."""

    def __init__(self) -> None:
        self.num_made = 0
        self.num_replayed = 0

    def __call__(self, step: Callable[[], None]) -> Callable[[], None]:
        self.num_made += 1

        def traceable() -> torch.Tensor:
            step()
            return torch.zeros(())

        traced: Any = make_fx(traceable)()
        assert any(str(node.target).startswith("aten.index_put_") for node in traced.graph.nodes)

        def replay() -> None:
            self.num_replayed += 1
            traced()

        return replay


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Traces:
    recorder = Traces()
    monkeypatch.setattr("envsdk.engines.embedded.engine._recorder", lambda *_: recorder)
    return recorder


def make_engine(folder: Path, **settings: Any) -> EmbeddedEngine:
    config = EngineConfig(model=folder, sequence_length=300, max_running=11, strategy_config=settings)
    return EmbeddedEngine.create(config)


def request(number: int, prompt: np.ndarray, num_tokens: int) -> GenerationRequest:
    return GenerationRequest(
        request_id=str(number),
        prompt_ids=prompt.astype(np.int32),
        session_id=f"session {number}",
        sampling=SamplingParams(max_new_tokens=num_tokens, seed=number, temperature=0.7),
    )


def random_tokens(generator: np.random.Generator, length: int) -> np.ndarray:
    return generator.integers(0, VOCAB_SIZE, length).astype(np.int32)


async def play_turns_and_updates(engine: EmbeddedEngine, model: Any) -> None:
    """Three turns of nine sessions, with new weights after the second and the third, against transformers."""
    generator = np.random.default_rng(0)
    await engine.start()
    prompts = [random_tokens(generator, length) for length in (1, 5, 30, 17, 110, 2, 9, 8, 40)]
    for version in range(3):
        requests = [request(n, prompt, 6 + 3 * n) for n, prompt in enumerate(prompts)]
        results = await gather(engine, requests)
        for prompt, result in zip(prompts, results, strict=True):
            expected = reference_logprobs(model, prompt, result.token_ids, 0.7)
            np.testing.assert_allclose(result.logprobs, expected, atol=TOLERANCE)
        prompts = [
            np.concatenate([prompt, result.token_ids, random_tokens(generator, 3)])
            for prompt, result in zip(prompts, results, strict=True)
        ]
        if version:
            shake(model, 0.1, seed=version)
            await engine.load_weights(model.state_dict(), version)
    await engine.close()


@pytest.mark.parametrize("kind", ["qwen2", "qwen3-tied"])
def test_replies_are_exact_over_turns_updates_and_sizes(kind: str, tmp_path: Path, traces: Traces) -> None:
    """Sessions that wait between two turns lie in slots that rounded-up sizes reach into."""
    engine = make_engine(save_tiny(kind, tmp_path), kv_slots=14)
    asyncio.run(asyncio.wait_for(play_turns_and_updates(engine, make_tiny(kind)), 120))
    # One to nine rows take the sizes 1, 2, 3, 4, 6, 8, 11; keys up to 128 and up to 192.
    assert 2 <= traces.num_made <= 14
    assert traces.num_replayed > 5 * traces.num_made


@pytest.mark.gpu
@pytest.mark.parametrize("kind", FAST_KINDS)
def test_cuda_graphs_are_exact_over_turns_updates_and_sizes(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine(save_tiny(kind, tmp_path), kv_slots=14, device="cuda")
    asyncio.run(asyncio.wait_for(play_turns_and_updates(engine, make_tiny(kind)), 120))
    assert not caplog.records, "a step was not recorded"


def test_a_reply_in_flight_is_exact_under_new_weights(tmp_path: Path, traces: Traces) -> None:
    engine, model = make_engine(save_tiny("qwen3", tmp_path)), make_tiny("qwen3")
    prompts = [random_tokens(np.random.default_rng(1), length) for length in (4, 60, 11)]

    async def test() -> None:
        await engine.start()
        replies = [engine.submit(request(n, prompt, 150)) for n, prompt in enumerate(prompts)]
        await until(lambda: traces.num_replayed > 2)
        shake(model, 0.1, seed=1)
        await engine.load_weights(model.state_dict(), 1)
        for prompt, result in zip(prompts, await asyncio.gather(*replies), strict=True):
            new = result.version_spans[-1]
            assert (new.version, new.end) == (1, 150)
            expected = reference_logprobs(model, prompt, result.token_ids, 0.7)
            np.testing.assert_allclose(result.logprobs[new.start :], expected[new.start :], atol=TOLERANCE)
        await engine.close()

    asyncio.run(asyncio.wait_for(test(), 120))


def test_what_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps on a GPU, unless they must be reproducible or it is switched off; nothing on a CPU."""
    monkeypatch.setattr("envsdk.engines.embedded.engine.CudaGraphs", lambda device: device)
    config = EngineConfig(model=tmp_path, sequence_length=8, max_running=1)
    card, settings = torch.device("cuda:0"), EmbeddedSettings()
    assert _recorder(settings, config, card) is card
    assert _recorder(settings, config, torch.device("cpu")) is None
    assert _recorder(EmbeddedSettings(cuda_graphs=False), config, card) is None
    assert _recorder(settings, replace(config, reproducible=True), card) is None


@given(number=st.integers(1, 5000), most=st.integers(1, 5000))
def test_sizes_are_few_and_waste_at_most_a_third(number: int, most: int) -> None:
    number = min(number, most)
    size = rounded_up(number, most)
    assert number <= size <= most
    assert size == rounded_up(size, most)
    assert size <= max(1.5 * number, number + 1)
    assert len({rounded_up(each, most) for each in range(1, most + 1)}) <= 2 * most.bit_length()
