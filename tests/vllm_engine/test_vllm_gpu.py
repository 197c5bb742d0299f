"""What vLLM does on a GPU alone: turns, weights through the card's memory, masks of sampling, experts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import reference_logits, reference_logprobs
from vllm_models import EXACT, make_model, save_model

from envsdk.contracts.held import Held
from envsdk.engines.engine import EngineConfig, GenerationRequest, GenerationResult, PauseMode
from envsdk.engines.sampling import SamplingParams
from envsdk.engines.vllm.engine import VLLMEngine
from tests.trainers.families import make_family

pytestmark = [pytest.mark.vllm, pytest.mark.gpu, pytest.mark.timeout(900)]

KIND = "qwen3"
LENGTH = 256


def play(
    folder: Path,
    test: Callable[[VLLMEngine], Awaitable[None]],
    *,
    takes_turns: bool = False,
    **settings: Any,
) -> None:
    """Run a test with an engine that is started and closed around it."""

    async def scenario() -> None:
        engine = VLLMEngine.create(
            EngineConfig(
                model=folder,
                sequence_length=LENGTH,
                max_running=8,
                strategy_config=EXACT | settings,
                takes_turns=takes_turns,
            )
        )
        await engine.start()
        try:
            await asyncio.wait_for(test(engine), 120)
        finally:
            await engine.close()

    asyncio.run(scenario())


async def replies(
    engine: VLLMEngine, prompts: Sequence[np.ndarray], *, experts_from: int | None = None, **sampling: Any
) -> list[GenerationResult]:
    """To each prompt one, in its order."""
    return await asyncio.gather(
        *(
            engine.submit(
                GenerationRequest(
                    request_id=f"{sampling}-{number}",
                    prompt_ids=prompt,
                    sampling=SamplingParams(max_new_tokens=20, seed=number, **sampling),
                    experts_from=experts_from,
                )
            )
            for number, prompt in enumerate(prompts)
        )
    )


def prompts_of(count: int, vocab_size: int = 64) -> list[np.ndarray]:
    draw = np.random.default_rng(count)
    return [draw.integers(0, vocab_size, 10 + number).astype(np.int32) for number in range(count)]


def assert_exact(model: Any, prompts: Sequence[np.ndarray], results: Sequence[GenerationResult]) -> None:
    for prompt, result in zip(prompts, results, strict=True):
        assert not result.error
        expected = reference_logprobs(model, prompt, result.token_ids)
        np.testing.assert_allclose(result.logprobs, expected, atol=5e-3)


def free_gib() -> float:
    return torch.cuda.mem_get_info()[0] / 2**30


def test_vllm_gives_the_card_back_and_wakes_with_the_weights_that_come(tmp_path: Path) -> None:
    folder, prompts = save_model(KIND, tmp_path), prompts_of(4)

    async def test(engine: VLLMEngine) -> None:
        assert_exact(make_model(KIND), prompts, await replies(engine, prompts))
        for version in (1, 2):
            taken = free_gib()
            await engine.pause(PauseMode.KEEP)
            await engine.hold(Held.NOTHING)
            assert free_gib() - taken > 4, "of the 5 GiB that vLLM has for keys and values"
            await engine.hold(Held.WEIGHTS)
            assert free_gib() - taken > 4
            model = make_model(KIND, seed=version)
            await engine.load_weights(model.cuda().state_dict(), version)
            await engine.hold(Held.ALL)
            await engine.resume()
            assert free_gib() - taken < 1
            results = await replies(engine, prompts)
            assert_exact(model.cpu(), prompts, results)
            assert {span.version for result in results for span in result.version_spans} == {version}

    play(folder, test, takes_turns=True)


def test_weights_go_through_the_cards_memory_and_leave_none_taken(tmp_path: Path) -> None:
    folder, prompts = save_model(KIND, tmp_path), prompts_of(3)

    async def test(engine: VLLMEngine) -> None:
        assert engine.weight_device == "cuda:0"
        before = 0.0
        for version in range(1, 12):
            model = make_model(KIND, seed=version)
            await engine.load_weights(model.cuda().state_dict(), version)
            assert_exact(model.cpu(), prompts, await replies(engine, prompts))
            before = before or free_gib()
        assert before - free_gib() < 0.05

    play(folder, test)


def test_the_mask_of_each_token_is_what_was_left_to_draw_from(tmp_path: Path) -> None:
    folder, prompts, model = save_model(KIND, tmp_path), prompts_of(4), make_model(KIND)
    shape = {"temperature": 0.8, "top_k": 12, "top_p": 0.7}

    async def test(engine: VLLMEngine) -> None:
        results = await replies(engine, prompts, support=True, **shape)
        for prompt, result in zip(prompts, results, strict=True):
            assert not result.error
            assert result.support is not None
            result.support.check(result.token_ids)
            logits = reference_logits(model, prompt, result.token_ids) / 0.8
            sets = np.split(result.support.ids, np.cumsum(result.support.counts)[:-1])
            for row, (token, kept) in enumerate(zip(result.token_ids, sets, strict=True)):
                ordered = logits[row].topk(12)
                chances = ordered.values.softmax(-1)
                expected = ordered.indices[chances.cumsum(-1) - chances < 0.7]
                assert set(kept.tolist()) == set(expected.tolist())
                drawn = logits[row][int(token)] - logits[row][kept.tolist()].logsumexp(-1)
                assert abs(float(drawn) - float(result.logprobs[row])) < 5e-3

    play(folder, test, return_sampling_mask=True)


def test_the_experts_are_those_that_the_routers_of_transformers_choose(tmp_path: Path) -> None:
    model = make_family("qwen3_moe", 0, hidden_size=64, head_dim=32, intermediate_size=64)
    model.save_pretrained(tmp_path)
    prompts = prompts_of(3, vocab_size=61)

    async def test(engine: VLLMEngine) -> None:
        for prompt, result in zip(prompts, await replies(engine, prompts, experts_from=0), strict=True):
            assert not result.error
            ids = torch.from_numpy(np.concatenate([prompt, result.token_ids])).long()[None]
            with torch.no_grad():
                routers = model(ids, output_router_logits=True).router_logits
            chosen = torch.stack([router.topk(2, -1).indices for router in routers], 1)
            assert result.experts is not None
            told = np.sort(result.experts, -1)
            np.testing.assert_array_equal(told, chosen.sort(-1).values.numpy()[: len(told)])
            assert len(told) == ids.shape[1] - 1

    play(tmp_path, test, enable_return_routed_experts=True)


@pytest.mark.parametrize("shape", [{}, {"enforce_eager": False}], ids=["eager", "compiled"])
def test_in_bfloat16_it_means_what_the_model_means(tmp_path: Path, shape: dict[str, Any]) -> None:
    folder, prompts, model = save_model(KIND, tmp_path), prompts_of(8), make_model(KIND)

    async def test(engine: VLLMEngine) -> None:
        gaps = [
            np.abs(reference_logprobs(model, prompt, result.token_ids) - result.logprobs)
            for prompt, result in zip(prompts, await replies(engine, prompts), strict=True)
        ]
        assert np.concatenate(gaps).mean() < 0.05

    play(folder, test, dtype="bfloat16", **shape)
