"""vLLM itself: what replies and updates are worth in numbers, and that nothing of it stays behind.

One engine is started and closed for real; most tests share it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import select
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import reference_logits, reference_logprobs, save_tiny
from vllm_models import EXACT, ON_A_GPU, make_model, save_model

from envsdk.contracts.failures import ConfigurationError, EngineError
from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.engine import EngineConfig, GenerationRequest, GenerationResult
from envsdk.engines.sampling import SamplingParams
from envsdk.engines.vllm.engine import VLLMEngine
from envsdk.engines.vllm.settings import SET_BY_ENGINE, VLLMSettings
from envsdk.engines.vllm.staged_weights import ALLOW_HANDLES
from envsdk.testing.engines import gather, until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

KIND = "qwen2-tied"
TOLERANCE = 1e-4 if not ON_A_GPU else 5e-3


class _Started:
    """An engine and the loop it lives on."""

    def __init__(self, runner: asyncio.Runner, engine: VLLMEngine) -> None:
        self.engine = engine
        self._runner = runner

    def run(self, test: Callable[[], Awaitable[None]]) -> None:
        self._runner.run(asyncio.wait_for(_awaited(test()), 120))


async def _awaited(work: Awaitable[None]) -> None:
    await work


def make_engine(folder: Path, **settings: Any) -> VLLMEngine:
    return VLLMEngine.create(
        EngineConfig(model=folder, sequence_length=512, max_running=8, strategy_config=EXACT | settings)
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(KIND, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def started(folder: Path) -> Iterator[_Started]:
    before = dict(os.environ)
    with asyncio.Runner() as runner:
        engine = make_engine(folder, max_num_batched_tokens=512)
        runner.run(engine.start())
        assert dict(os.environ) == before | ({ALLOW_HANDLES: "1"} if ON_A_GPU else {})
        yield _Started(runner, engine)
        runner.run(engine.close())
    assert engine.health().error == "the engine is closed"


def request(name: Any, prompt: np.ndarray, num_tokens: int = 20, **sampling: Any) -> GenerationRequest:
    return GenerationRequest(
        request_id=str(name),
        prompt_ids=prompt.astype(np.int32),
        session_id=str(name),
        sampling=SamplingParams(max_new_tokens=num_tokens, **({"seed": 0} | sampling)),
    )


def prompts_of(*lengths: int, seed: int = 0) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    return [draw.integers(0, 64, length) for length in lengths]


def assert_exact(model: Any, prompt: np.ndarray, result: GenerationResult, temperature: float = 1.0) -> None:
    expected = reference_logprobs(model, prompt, result.token_ids, temperature)
    np.testing.assert_allclose(result.logprobs, expected, atol=TOLERANCE)


def test_logprobs_equal_a_plain_forward_over_turns_and_updates_of_a_tied_model(started: _Started) -> None:
    engine = started.engine

    async def test() -> None:
        prompts = prompts_of(1, 5, 70, 33, 9, 2)
        for version in range(10, 13):
            model = make_model(KIND, seed=version)
            await engine.load_weights(model.state_dict(), version)
            fresh = await engine.submit(request("fresh", prompts_of(40, seed=version)[0]))
            assert_exact(model, prompts_of(40, seed=version)[0], fresh)
            requests = [request(n, prompt, 4 + n, temperature=0.7) for n, prompt in enumerate(prompts)]
            results = await gather(engine, requests)
            for prompt, result in zip(prompts, results, strict=True):
                assert_exact(model, prompt, result, temperature=0.7)
                assert [span.version for span in result.version_spans] == [version]
            prompts = [
                np.concatenate([prompt, result.token_ids, added])
                for prompt, result, added in zip(prompts, results, prompts_of(*range(1, 7)), strict=True)
            ]

    started.run(test)


def test_a_reply_updated_in_flight_goes_on_exactly_under_the_new_weights(started: _Started) -> None:
    engine = started.engine
    old_model, new_model = make_model(KIND, seed=20), make_model(KIND, seed=21)

    async def test() -> None:
        await engine.load_weights(old_model.state_dict(), 20)
        prompts = prompts_of(3, 60, 8)
        before = engine.health().num_tokens_sampled
        running = [engine.submit(request(n, prompt, 300, seed=n)) for n, prompt in enumerate(prompts)]
        await until(lambda: engine.health().num_tokens_sampled > before + 30)
        await engine.load_weights(iter(new_model.state_dict().items()), 21)
        for prompt, result in zip(prompts, await asyncio.gather(*running), strict=True):
            old, new = result.version_spans
            assert (old.version, new.version, new.end) == (20, 21, 300)
            for span, model in ((old, old_model), (new, new_model)):
                expected = reference_logprobs(model, prompt, result.token_ids)
                np.testing.assert_allclose(
                    result.logprobs[span.start : span.end], expected[span.start : span.end], atol=TOLERANCE
                )

    started.run(test)


def test_temperature_zero_takes_the_likeliest_token_with_its_logprob_at_temperature_one(
    started: _Started,
) -> None:
    engine, model = started.engine, make_model(KIND, seed=30)

    async def test() -> None:
        await engine.load_weights(model.state_dict(), 30)
        greedy, other = prompts_of(7, 7)
        requests = [request(0, greedy, temperature=0.0, top_p=0.1, seed=None), request(1, other)]
        results = await gather(engine, requests)
        logits = reference_logits(model, greedy, results[0].token_ids)
        assert results[0].token_ids.tolist() == logits.argmax(-1).tolist()
        assert_exact(model, greedy, results[0])
        assert_exact(model, other, results[1])

    started.run(test)


def test_processed_logprobs_are_those_left_by_top_k_and_top_p(started: _Started) -> None:
    engine, model = started.engine, make_model(KIND, seed=40)

    async def test() -> None:
        await engine.load_weights(model.state_dict(), 40)
        (prompt,) = prompts_of(9)
        result = await engine.submit(request(0, prompt, 30, temperature=0.8, top_k=5))
        logits = reference_logits(model, prompt, result.token_ids) / 0.8
        kept = logits.topk(5, dim=-1)
        expected = kept.values.log_softmax(-1)
        for row, token in enumerate(result.token_ids.tolist()):
            place = kept.indices[row].tolist().index(token)
            assert abs(float(expected[row, place]) - float(result.logprobs[row])) < TOLERANCE
        certain = await engine.submit(request(1, prompt, 5, top_p=1e-6))
        np.testing.assert_allclose(certain.logprobs, 0.0, atol=1e-6)

    started.run(test)


def test_wrong_weights_are_refused_by_name_and_the_old_ones_go_on(started: _Started) -> None:
    engine, model = started.engine, make_model(KIND, seed=50)

    async def test() -> None:
        weights = {name: value.numpy() for name, value in model.state_dict().items()}
        await engine.load_weights(weights, 50)
        with pytest.raises(EngineError, match=r"`model\.norm\.weight` has shape \[7\]"):
            await engine.load_weights(weights | {"model.norm.weight": np.zeros(7, np.float32)}, 51)
        (prompt,) = prompts_of(9)
        assert_exact(model, prompt, await engine.submit(request(0, prompt)))
        assert engine.health().version == 50

    started.run(test)


def test_weights_that_are_not_numbers_fail_replies_until_better_ones_come(started: _Started) -> None:
    engine, model = started.engine, make_model(KIND, seed=60)

    async def test() -> None:
        good = {name: value.numpy() for name, value in model.state_dict().items()}
        await engine.load_weights({name: np.full_like(value, np.nan) for name, value in good.items()}, 60)
        (prompt,) = prompts_of(9)
        result = await engine.submit(request(0, prompt))
        assert result.finish_reason is FinishReason.ERROR
        assert "not finite" in result.error
        await engine.load_weights(good, 61)
        assert_exact(model, prompt, await engine.submit(request(0, prompt)))

    started.run(test)


def test_ten_turns_of_an_episode_compute_each_token_about_once(started: _Started) -> None:
    engine = started.engine

    async def test() -> None:
        before = engine.health()
        (prompt,) = prompts_of(30)
        for turn in range(10):
            result = await engine.submit(request("episode", prompt, 10, seed=turn))
            prompt = np.concatenate([prompt, result.token_ids, *prompts_of(20, seed=turn)])
        after = engine.health()
        asked = after.num_prompt_tokens - before.num_prompt_tokens
        computed = after.num_prefilled_tokens - before.num_prefilled_tokens
        assert computed < 0.5 * asked

    started.run(test)


def test_more_prompt_than_vllm_takes_in_one_step_is_exact_with_seeds(started: _Started) -> None:
    engine, model = started.engine, make_model(KIND, seed=70)

    async def test() -> None:
        await engine.load_weights(model.state_dict(), 70)
        prompts = prompts_of(*range(300, 380, 10))
        requests = [request(n, prompt, 5, seed=n) for n, prompt in enumerate(prompts)]
        for prompt, result in zip(prompts, await gather(engine, requests), strict=True):
            assert_exact(model, prompt, result)

    started.run(test)


@pytest.mark.skipif(ON_A_GPU and torch.cuda.device_count() < 2, reason="one GPU")
def test_two_workers_with_raw_logprobs_and_kept_keys(folder: Path) -> None:
    engine = make_engine(folder, tensor_parallel_size=2, kv_after_update="keep", logprobs="raw")
    assert not engine.abilities.processed_logprobs
    old_model, new_model = make_model(KIND), make_model(KIND, seed=80)
    prompt, other = prompts_of(100, 20)

    async def test() -> None:
        cool = await engine.submit(request("cool", prompt, temperature=0.5))
        assert_exact(old_model, prompt, cool)  # at temperature 1
        before = engine.health().num_tokens_sampled
        running = engine.submit(request("running", other, 300))
        await until(lambda: engine.health().num_tokens_sampled > before + 10)
        await engine.load_weights(new_model.state_dict(), 1)
        # The same prompt again: its blocks of the old version are not found.
        assert_exact(new_model, prompt, await engine.submit(request("again", prompt)))
        old, new = (await running).version_spans
        assert (old.version, new.version, new.end) == (0, 1, 300)

    with asyncio.Runner() as runner:
        runner.run(engine.start())
        try:
            runner.run(asyncio.wait_for(test(), 120))
        finally:
            runner.run(engine.close())


def test_vllm_ends_with_its_engine_however_that_ends(folder: Path) -> None:
    file = Path(__file__).with_name("killed_engine.py")
    program = [sys.executable, str(file), str(folder), json.dumps(EXACT)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = next(line for line in process.stdout if line.startswith("PIDS")).split()[1:]
        assert len(pids) > 1
        handles = [os.pidfd_open(int(pid)) for pid in pids if Path(f"/proc/{pid}").exists()]
        process.kill()
        for handle in handles:
            ended, _, _ = select.select([handle], [], [], 60)
            assert ended
            os.close(handle)


def test_no_argument_of_vllm_is_taken_for_a_misspelling() -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs

    found = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    assert found >= SET_BY_ENGINE.keys()
    assert not any(map(VLLMSettings().problem_of, found - SET_BY_ENGINE.keys()))


@pytest.mark.skipif(ON_A_GPU, reason="vLLM's attention on a GPU takes these heads")
def test_heads_that_vllm_cannot_attend_with_are_refused_in_time(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="attention heads have 16 dimensions"):
        make_engine(save_tiny("qwen3", tmp_path))


def test_what_vllm_refuses_is_a_configuration_error(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="refuses its settings"):
        make_engine(folder, kv_cache_dtype="no such type")
