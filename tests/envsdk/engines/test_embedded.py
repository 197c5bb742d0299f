"""The embedded engine against a plain transformers forward, and where it can go wrong."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from remote_play import play_with
from tiny_models import (
    FAST_KINDS,
    KINDS,
    VOCAB_SIZE,
    make_tiny,
    reference_logits,
    reference_logprobs,
    save_tiny,
    shake,
)

from envsdk.contracts.failures import ConfigurationError, EngineError
from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.embedded import EmbeddedEngine
from envsdk.engines.embedded.batch import Batch
from envsdk.engines.embedded.fast import FastDecoder
from envsdk.engines.embedded.sampling import SamplingPlan, changed, sample, uniforms
from envsdk.engines.engine import EngineConfig, GenerationRequest, GenerationResult
from envsdk.engines.sampling import LogitChanges, SamplingParams
from envsdk.testing.engines import gather, until

TOLERANCE = 1e-4
"""What the trainer is promised in float32."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    saved: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in saved:
            saved[kind] = save_tiny(kind, tmp_path_factory.mktemp(kind))
        return saved[kind]

    return folder


def make_engine(
    folder: Path, *, max_running: int = 4, sequence_length: int = 128, **settings: Any
) -> EmbeddedEngine:
    return EmbeddedEngine.create(
        EngineConfig(
            model=folder, sequence_length=sequence_length, max_running=max_running, strategy_config=settings
        )
    )


def request(
    number: int | str, prompt: np.ndarray, num_tokens: int = 8, *, session_id: str = "", **sampling: Any
) -> GenerationRequest:
    sampling = {"seed": 0} | sampling
    return GenerationRequest(
        request_id=str(number),
        prompt_ids=prompt.astype(np.int32),
        session_id=session_id,
        sampling=SamplingParams(max_new_tokens=num_tokens, **sampling),
    )


def prompts_of(*lengths: int, seed: int = 0) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, VOCAB_SIZE, length).astype(np.int32) for length in lengths]


def assert_exact(model: Any, prompt: np.ndarray, result: GenerationResult, temperature: float = 1.0) -> None:
    expected = reference_logprobs(model, prompt, result.token_ids, temperature)
    np.testing.assert_allclose(result.logprobs, expected, atol=TOLERANCE)


@pytest.mark.parametrize("kind", KINDS)
def test_logprobs_equal_a_plain_forward_over_turns_and_updates(
    kind: str, folders: Callable[[str], Path]
) -> None:
    engine, model = make_engine(folders(kind)), make_tiny(kind)
    assert isinstance(engine.core.decoder, FastDecoder) == (kind in FAST_KINDS)

    async def test() -> None:
        prompts = prompts_of(1, 5, 30, 17, 9, 2)
        for version in range(3):
            requests = [
                request(n, prompt, 4 + n, session_id=f"s{n}", seed=n, temperature=0.7)
                for n, prompt in enumerate(prompts)
            ]
            results = await gather(engine, requests)
            for prompt, result in zip(prompts, results, strict=True):
                assert_exact(model, prompt, result, temperature=0.7)
            prompts = [
                np.concatenate([prompt, result.token_ids, added])
                for prompt, result, added in zip(prompts, results, prompts_of(*range(1, 7)), strict=True)
            ]
            if version:
                shake(model, 0.1, seed=version)
                weights = {name: value.numpy() for name, value in model.state_dict().items()}
                await engine.load_weights(weights, version)

    play_with(engine, test)


@pytest.mark.parametrize("kind", ["qwen3-tied", "llama", "gpt2"])
def test_a_reply_updated_in_flight_goes_on_exactly_under_the_new_weights(
    kind: str, folders: Callable[[str], Path]
) -> None:
    engine, model = make_engine(folders(kind)), make_tiny(kind)
    step, swap = engine.core.batch.step, engine.core.swap
    steps, swaps = 0, threading.Event()

    def held(**options: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps > 2:
            swaps.wait(60)
        return step(**options)

    async def asked(prepared: Any, version: int, *, is_frozen: bool) -> None:
        swapping = asyncio.ensure_future(swap(prepared, version, is_frozen=is_frozen))
        await asyncio.sleep(0)  # the compute thread has it, behind the step that waits
        swaps.set()
        await swapping

    engine.core.batch.step = held  # type: ignore[method-assign]
    engine.core.swap = asked  # type: ignore[method-assign]

    async def test() -> None:
        prompts = prompts_of(3, 20, 8)
        running = [engine.submit(request(n, prompt, 100, seed=n)) for n, prompt in enumerate(prompts)]
        await until(lambda: steps > 2)
        shake(model, 0.1, seed=1)
        await engine.load_weights(model.state_dict(), 1)
        results = await asyncio.gather(*running)
        for prompt, result in zip(prompts, results, strict=True):
            old, new = result.version_spans
            assert (old.version, new.version, new.end) == (0, 1, 100)
            expected = reference_logprobs(model, prompt, result.token_ids)
            np.testing.assert_allclose(result.logprobs[new.start :], expected[new.start :], atol=TOLERANCE)

    play_with(engine, test)


def test_a_scaled_model_goes_past_the_positions_it_was_made_for(folders: Callable[[str], Path]) -> None:
    engine, model = make_engine(folders("qwen3-yarn")), make_tiny("qwen3-yarn")

    async def test() -> None:
        (prompt,) = prompts_of(70)
        assert_exact(model, prompt, await engine.submit(request(0, prompt, 50)))

    play_with(engine, test)


def test_bfloat16_stays_near_float32(folders: Callable[[str], Path]) -> None:
    engine, model = make_engine(folders("qwen3"), dtype="bfloat16"), make_tiny("qwen3")

    async def test() -> None:
        (prompt,) = prompts_of(20)
        result = await engine.submit(request(0, prompt, 30))
        expected = reference_logprobs(model, prompt, result.token_ids)
        assert np.abs(result.logprobs - expected).mean() < 0.1

    play_with(engine, test)


@given(
    temperature=st.floats(0.2, 3.0),
    top_p=st.floats(0.05, 1.0),
    top_k=st.integers(0, 70),
    min_p=st.floats(0.0, 1.0),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_processed_logprobs_equal_an_independent_computation(
    temperature: float, top_p: float, top_k: int, min_p: float, seed: int
) -> None:
    logits = np.random.default_rng(seed).normal(size=(4, VOCAB_SIZE)).astype(np.float32) * 2
    plain = SamplingParams(max_new_tokens=1)
    filtered = SamplingParams(
        max_new_tokens=1, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p
    )
    plan = SamplingPlan.of([filtered, plain, filtered, plain], torch.device("cpu"))
    draws = torch.from_numpy(uniforms(seed, 4))
    tokens, logprobs, *_ = sample(torch.from_numpy(logits), draws, plan)

    for row, params in enumerate([filtered, plain, filtered, plain]):
        scaled = logits[row].astype(np.float64) / params.temperature
        order = np.argsort(-scaled, kind="stable")
        if params.top_k:
            order = order[: params.top_k]
        relative = np.exp(scaled[order] - scaled.max())
        probabilities = relative.copy()
        probabilities /= probabilities.sum()
        before = np.cumsum(probabilities) - probabilities
        # A cut within rounding of top_p or min_p may fall on either side.
        sizes = {
            max(1, int(((before < params.top_p + slack) & (relative >= params.min_p * (1 - slack))).sum()))
            for slack in (-1e-5, 1e-5)
        }
        candidates = [dict(zip(order[:n], probabilities[:n] / probabilities[:n].sum())) for n in sizes]  # noqa: B905
        errors = [
            abs(np.log(kept[int(tokens[row])]) - float(logprobs[row]))
            for kept in candidates
            if int(tokens[row]) in kept
        ]
        assert min(errors) < 1e-4


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -torch.inf, -1.0]])
    count = 10_000
    plan = SamplingPlan.of([SamplingParams(max_new_tokens=1)] * count, torch.device("cpu"))
    evenly = (torch.arange(count) + 0.5) / count
    tokens, *_ = sample(logits.expand(count, 5), evenly, plan)
    frequencies = torch.bincount(tokens, minlength=5) / count
    torch.testing.assert_close(frequencies, logits[0].softmax(-1), atol=1e-3, rtol=0)


@pytest.mark.parametrize("draw", [0.0, float(np.float32(1.0 - 2.0**-22))])
def test_a_token_without_probability_is_never_drawn(draw: float) -> None:
    logits = torch.full((1, VOCAB_SIZE), -torch.inf)
    logits[0, 20:40] = torch.randn(20, generator=torch.Generator().manual_seed(0))
    plan = SamplingPlan.of([SamplingParams(max_new_tokens=1)], torch.device("cpu"))
    tokens, logprobs, *_ = sample(logits, torch.tensor([draw]), plan)
    assert 20 <= int(tokens[0]) < 40
    assert torch.isfinite(logprobs).all()


@given(
    bias=st.dictionaries(st.integers(0, 39), st.floats(-50, 50, width=32), max_size=4),
    repetition=st.floats(0.25, 2, width=32),
    frequency=st.floats(-2, 2, width=32),
    presence=st.floats(-2, 2, width=32),
    prompt=st.lists(st.integers(0, 39), min_size=1, max_size=8),
    reply=st.lists(st.integers(0, 39), max_size=8),
)
def test_biases_and_penalties_equal_an_independent_computation(
    bias: dict[int, float],
    repetition: float,
    frequency: float,
    presence: float,
    prompt: list[int],
    reply: list[int],
) -> None:
    changes = LogitChanges(
        bias=tuple(bias.items()),
        repetition_penalty=repetition,
        frequency_penalty=frequency,
        presence_penalty=presence,
    )
    logits = torch.randn(40, generator=torch.Generator().manual_seed(1)) * 3
    expected = logits.tolist()
    for token in range(40):
        expected[token] += bias.get(token, 0.0)
        if token in prompt or token in reply:
            expected[token] *= 1 / repetition if expected[token] > 0 else repetition
        expected[token] -= reply.count(token) * frequency + (token in reply) * presence
    found = changed(logits, changes, np.array(prompt, np.int64), np.array(reply, np.int64))
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("settings", [{}, {"force_generic": True}], ids=["fast", "generic"])
def test_a_reply_under_changes_has_the_log_probabilities_of_what_it_was_drawn_from(
    folders: Callable[[str], Path], settings: dict[str, Any]
) -> None:
    """Beside replies without, whose tokens it leaves alone."""
    folder = folders("qwen3-tied")
    model = make_tiny("qwen3-tied")
    changes = LogitChanges(
        bias=((3, 2.0), (5, -100.0)), repetition_penalty=1.3, frequency_penalty=0.7, presence_penalty=0.5
    )
    (prompt,) = prompts_of(12)
    params = SamplingParams(
        max_new_tokens=20, seed=1, temperature=0.8, changes=changes, top_logprobs=3, prompt_logprobs=True
    )
    asked = GenerationRequest(request_id="changed", prompt_ids=prompt, sampling=params)
    plain = [request(number, prompt, 16) for number in range(2)]
    engine = make_engine(folder, **settings)

    async def test() -> None:
        result, *others = await gather(engine, [asked, *plain])
        for each, other in zip(plain, others, strict=True):
            alone = await engine.submit(replace(each, request_id="alone"))
            assert other.token_ids.tolist() == alone.token_ids.tolist()
            assert other.top is None
        ids = np.concatenate([prompt, result.token_ids]).astype(np.int64)
        logits = reference_logits(model, ids[:1], ids[1:])
        assert result.top is not None
        for place in range(20):
            reply = ids[12 : 12 + place]
            left = changed(logits[11 + place], changes, ids[:12], reply) / 0.8
            logprobs = left.log_softmax(-1)
            assert float(logprobs[ids[12 + place]]) == pytest.approx(result.logprobs[place], abs=TOLERANCE)
            told = dict(zip(result.top.token_ids[place], result.top.logprobs[place], strict=True))
            values, best = logprobs.topk(3)
            assert [told[token] for token in best.tolist()] == pytest.approx(values.tolist(), abs=TOLERANCE)
        assert result.prompt_scores is not None
        raw = logits[:11].log_softmax(-1)[torch.arange(11), torch.from_numpy(ids[1:12])]
        np.testing.assert_allclose(result.prompt_scores.logprobs, raw.numpy(), atol=TOLERANCE)
        assert 5 not in result.token_ids

    play_with(engine, test)


def test_temperature_zero_takes_the_likeliest_token_with_its_logprob_at_temperature_one(
    folders: Callable[[str], Path],
) -> None:
    engine, model = make_engine(folders("qwen3")), make_tiny("qwen3")

    async def test() -> None:
        greedy, other = prompts_of(7, 7)
        requests = [request(0, greedy, temperature=0.0, top_p=0.1, seed=None), request(1, other)]
        results = await gather(engine, requests)
        logits = reference_logits(model, greedy, results[0].token_ids)
        assert results[0].token_ids.tolist() == logits.argmax(-1).tolist()
        assert_exact(model, greedy, results[0])
        assert_exact(model, other, results[1])

    play_with(engine, test)


def test_sessions_that_diverge_or_are_evicted_are_still_exact(folders: Callable[[str], Path]) -> None:
    engine, model = make_engine(folders("qwen3"), max_running=3, kv_slots=4), make_tiny("qwen3")

    async def test() -> None:
        prompts = prompts_of(20, 25, 30, 12, 18, 40)
        for turn in range(4):
            requests = [
                request(n, prompt, 5, session_id=f"s{n}", seed=turn) for n, prompt in enumerate(prompts)
            ]
            results = await gather(engine, requests)
            for n, (prompt, result) in enumerate(zip(prompts, results, strict=True)):
                assert_exact(model, prompt, result)
                # Some go on, some go back to a shorter history, some repeat themselves.
                grown = np.concatenate([prompt, result.token_ids])
                prompts[n] = [grown, np.append(prompt[:-4], 1), prompt][(n + turn) % 3]

    play_with(engine, test)
    health = engine.health()
    assert health.num_prefilled_tokens < health.num_prompt_tokens


@given(st.data())
@settings(max_examples=15, deadline=None)
def test_any_interleaving_of_sessions_aborts_and_updates_is_exact(
    folders: Callable[[str], Path], data: st.DataObject
) -> None:
    engine = make_engine(folders("qwen3-tied"), max_running=3, kv_slots=data.draw(st.integers(3, 6)))
    models = [make_tiny("qwen3-tied")]
    histories: dict[int, np.ndarray] = {}
    batch = engine.core.batch
    requests: dict[str, GenerationRequest] = {}
    ended: list[GenerationResult] = []
    with torch.inference_mode():
        for number in range(data.draw(st.integers(1, 40))):
            match data.draw(st.sampled_from(["turn", "turn", "step", "step", "step", "abort", "update"])):
                case "turn":
                    session = data.draw(st.integers(0, 4))
                    grown = prompts_of(data.draw(st.integers(1, 9)), seed=number)[0]
                    prompt = np.concatenate([histories.get(session, grown[:0]), grown])[-60:]
                    length = data.draw(st.integers(1, 6))
                    requests[str(number)] = request(
                        number, prompt, length, session_id=str(session), seed=number
                    )
                    histories[session] = prompt
                    batch.submit(requests[str(number)], number)
                case "step":
                    ended += batch.step()
                case "abort" if requests:
                    ended += batch.abort([data.draw(st.sampled_from(sorted(requests)))])
                case "update":
                    models.append(make_tiny("qwen3-tied", seed=len(models)))
                    weights = engine.core.decoder.build(models[-1].state_dict().items())
                    batch.swap(weights, len(models) - 1)
            for result in ended:
                histories[int(requests[result.request_id].session_id)] = np.concatenate(
                    [requests[result.request_id].prompt_ids, result.token_ids]
                )
        while batch.has_work:
            ended += batch.step()
    assert sorted(result.request_id for result in ended) == sorted(requests)
    for result in ended:
        prompt = requests[result.request_id].prompt_ids
        for span in result.version_spans:
            expected = reference_logprobs(models[span.version], prompt, result.token_ids)
            np.testing.assert_allclose(
                result.logprobs[span.start : span.end], expected[span.start : span.end], atol=TOLERANCE
            )
    assert 0 <= batch.kv_usage <= 1


@pytest.mark.parametrize("kind", ["qwen3", "qwen3-tied", "gpt2"])
def test_wrong_weights_are_refused_by_name_and_the_old_ones_go_on(
    kind: str, folders: Callable[[str], Path]
) -> None:
    engine, model = make_engine(folders(kind)), make_tiny(kind)

    async def test() -> None:
        weights = model.state_dict()
        name = next(name for name in weights if "norm" in name or "ln_1" in name)
        with pytest.raises(EngineError, match=f"`{name}` is missing"):
            await engine.load_weights({key: value for key, value in weights.items() if key != name}, 1)
        with pytest.raises(EngineError, match=rf"`{name}` has shape \[7\]"):
            await engine.load_weights(weights | {name: np.zeros(7, np.float32)}, 1)
        with pytest.raises(EngineError, match="`stray` is not one"):
            await engine.load_weights(weights | {"stray": np.zeros(7, np.float32)}, 1)
        (prompt,) = prompts_of(9)
        result = await engine.submit(request(0, prompt))
        assert_exact(model, prompt, result)
        assert engine.health().version == 0

    play_with(engine, test)


def test_weights_come_from_read_only_streams_and_folders_and_are_copied(
    folders: Callable[[str], Path], tmp_path: Path
) -> None:
    engine = make_engine(folders("llama"))
    model = make_tiny("llama", seed=3)
    arrays = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    for array in arrays.values():
        array.setflags(write=False)
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    (prompt,) = prompts_of(9)

    async def test() -> None:
        await engine.load_weights(iter(arrays.items()), 1)
        for array in arrays.values():
            array.setflags(write=True)
            array.fill(0)
        assert_exact(model, prompt, await engine.submit(request(0, prompt)))
        await engine.load_weights(folders("llama"), 2)
        assert_exact(make_tiny("llama"), prompt, await engine.submit(request(1, prompt)))
        await engine.load_weights(tmp_path, 3)
        assert_exact(model, prompt, await engine.submit(request(2, prompt)))
        with pytest.raises(EngineError, match=r"no \*\.safetensors"):
            await engine.load_weights(tmp_path / "empty", 4)

    play_with(engine, test)


def test_weights_that_are_not_numbers_fail_replies_until_better_ones_come(
    folders: Callable[[str], Path],
) -> None:
    engine, model = make_engine(folders("qwen3")), make_tiny("qwen3")
    good = model.state_dict()
    bad = {name: torch.full_like(value, torch.nan) for name, value in good.items()}

    async def test() -> None:
        prompts = prompts_of(9, 12)
        await engine.load_weights(bad, 1)
        requests = [request(n, prompt, session_id=str(n)) for n, prompt in enumerate(prompts)]
        for result in await gather(engine, requests):
            assert result.finish_reason is FinishReason.ERROR
            assert "not finite" in result.error
            assert np.isfinite(result.logprobs).all()
        await engine.load_weights(good, 2)
        for prompt, result in zip(prompts, await gather(engine, requests), strict=True):
            assert_exact(model, prompt, result)

    play_with(engine, test)


def test_nothing_is_left_in_any_slot_of_what_is_no_number(folders: Callable[[str], Path]) -> None:
    """Rows that end one after the other are moved between slots on the way."""
    engine, model = make_engine(folders("qwen3"), max_running=6), make_tiny("qwen3")
    good = model.state_dict()
    bad = {name: torch.full_like(value, torch.nan) for name, value in good.items()}

    async def test() -> None:
        await engine.load_weights(bad, 1)
        broken = [request(n, prompt, 2 + n) for n, prompt in enumerate(prompts_of(20, 12, 30, 7, 25, 16))]
        assert all(result.error for result in await gather(engine, broken))
        await engine.load_weights(good, 2)
        prompts = prompts_of(3, 31, 5, 29, 4, 30)
        requests = [request(f"later {n}", prompt, 6) for n, prompt in enumerate(prompts)]
        for prompt, result in zip(prompts, await gather(engine, requests), strict=True):
            assert_exact(model, prompt, result)

    play_with(engine, test)


def test_an_exception_while_computing_ends_every_request_and_shows_in_health(
    folders: Callable[[str], Path],
) -> None:
    engine = make_engine(folders("qwen3"), max_running=2)

    def broken(tokens: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("out of memory")

    engine.core.decoder.decode = broken  # type: ignore[method-assign]

    async def test() -> None:
        requests = [request(n, prompt) for n, prompt in enumerate(prompts_of(*[5] * 6))]
        for result in await gather(engine, requests):
            assert result.finish_reason is FinishReason.ERROR
            assert "out of memory" in result.error
        assert "RuntimeError: out of memory" in engine.health().error
        late = await engine.submit(request("late", prompts_of(3)[0]))
        assert "out of memory" in late.error
        with pytest.raises(EngineError, match="out of memory"):
            await engine.load_weights({}, 1)

    play_with(engine, test)


def test_long_prompts_are_prefilled_in_bounded_pieces_with_the_same_result(
    folders: Callable[[str], Path],
) -> None:
    engine, model = make_engine(folders("qwen3"), max_running=8, max_prefill_tokens=16), make_tiny("qwen3")

    async def test() -> None:
        prompts = prompts_of(50, 3, 7, 40, 2, 8, 20, 11)
        for _ in range(2):
            requests = [request(n, prompt, 5, session_id=str(n), seed=n) for n, prompt in enumerate(prompts)]
            results = await gather(engine, requests)
            for prompt, result in zip(prompts, results, strict=True):
                assert_exact(model, prompt, result)
            prompts = [
                np.concatenate([prompt, result.token_ids, added])
                for prompt, result, added in zip(prompts, results, prompts_of(*range(1, 9)), strict=True)
            ]

    play_with(engine, test)


def test_the_generic_path_can_be_asked_for(folders: Callable[[str], Path]) -> None:
    engine, model = make_engine(folders("llama"), force_generic=True), make_tiny("llama")
    assert not engine.abilities.prefix_reuse

    async def test() -> None:
        (prompt,) = prompts_of(9)
        assert_exact(model, prompt, await engine.submit(request(0, prompt)))

    play_with(engine, test)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequence_length": 4096}, "max_position_embeddings"),
        ({"kv_slots": 2}, "kv_slots: 2 are too few for the 4 requests"),
        ({"device": "warp"}, "not 'warp'"),
        ({"dtype": "float8"}, "dtype: must be"),
        ({"max_runing": 3}, "did you mean `max_running`"),
    ],
)
def test_a_bad_setting_ends_with_one_message(
    changes: dict[str, Any], message: str, folders: Callable[[str], Path]
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_engine(folders("qwen3"), **changes)


def test_a_missing_model_or_a_folder_without_weights_is_a_configuration_error(
    folders: Callable[[str], Path], tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="needs a model"):
        EmbeddedEngine.create(EngineConfig(model=None, sequence_length=8))
    with pytest.raises(ConfigurationError, match=r"no config\.json"):
        make_engine(tmp_path)
    (tmp_path / "config.json").write_text((folders("qwen3") / "config.json").read_text())
    with pytest.raises(ConfigurationError, match=r"no \*\.safetensors"):
        make_engine(tmp_path)


def test_a_token_outside_the_vocabulary_is_refused(folders: Callable[[str], Path]) -> None:
    engine = make_engine(folders("qwen3"))

    async def test() -> None:
        for token in (-1, VOCAB_SIZE):
            result = await engine.submit(request(0, np.array([1, token])))
            assert "vocabulary of 64" in result.error
        assert engine.health().error == ""

    play_with(engine, test)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As the engine's own thread has it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("kind", "most_new", "length"),
    [("qwen3", 60, 256), ("llama-multi-head", 60, 256), ("qwen3", 90, 336), ("qwen3", 150, 488)],
)
def test_what_else_runs_changes_no_bit_of_a_reply(
    kind: str, most_new: int, length: int, tmp_path: Path, one_thread: None
) -> None:
    """Sessions of several turns, under several schedules: all at once, one at a time, and in between."""
    engine = EmbeddedEngine.create(
        EngineConfig(
            model=save_tiny(kind, tmp_path), sequence_length=length, seed=0, max_running=16, reproducible=True
        )
    )

    def played(schedule: int, max_active: int) -> dict[str, tuple[bytes, bytes]]:
        chance, arrivals = random.Random(schedule), itertools.count()
        batch = Batch(
            engine.core.decoder,
            sequence_length=length,
            max_running=max_active,
            max_prefill_tokens=4096,
            prefix_reuse=True,
            seed=0,
        )
        waiting = [(session, 0) for session in range(12)]
        known: dict[int, list[int]] = {session: [] for session in range(12)}
        found = {}
        while waiting or batch.has_work:
            chance.shuffle(waiting)
            for _ in range(chance.randint(0, len(waiting)) if batch.has_work else len(waiting)):
                session, turn = waiting.pop()
                own = random.Random(100 * session + turn)
                known[session] += [own.randrange(VOCAB_SIZE) for _ in range(own.randint(1, most_new))]
                batch.submit(
                    GenerationRequest(
                        request_id=f"{session}/{turn}",
                        prompt_ids=np.array(known[session], np.int32),
                        session_id=str(session),
                        sampling=SamplingParams(max_new_tokens=own.randint(2, 10), seed=own.randrange(99)),
                    ),
                    next(arrivals),
                )
            for ended in batch.step():
                session, turn = map(int, ended.request_id.split("/"))
                known[session] += ended.token_ids.tolist()
                found[ended.request_id] = ended.token_ids.tobytes(), ended.logprobs.tobytes()
                if turn < 2:
                    waiting.append((session, turn + 1))
        return found

    with torch.inference_mode():
        expected = played(0, 16)
        assert len(expected) == 36
        for schedule, max_active in ((1, 16), (2, 1), (3, 2), (4, 5)):
            assert played(schedule, max_active) == expected


@pytest.mark.parametrize("max_running", [8, 3])
@pytest.mark.parametrize("kind", ["qwen3-tied", "gpt2"])
def test_a_groups_prompt_is_computed_once_and_its_replies_are_the_same(
    kind: str, max_running: int, folders: Callable[[str], Path]
) -> None:
    long, short = prompts_of(60, 7)
    replies: dict[bool, list[list[int]]] = {}
    for shares in (False, True):
        engine, model = make_engine(folders(kind), max_running=max_running), make_tiny(kind)

        async def test(engine: EmbeddedEngine = engine, model: Any = model, shares: bool = shares) -> None:
            # Two groups, and one that claims the number of the first with another prompt.
            asked = [(long, 0)] * 8 + [(short, 1)] * 8 + [(short, 0)]
            requests = [
                replace(
                    request(n, prompt, 2 + n % 5, session_id=f"s{n}", seed=n),
                    prompt_group=group if shares else None,
                )
                for n, (prompt, group) in enumerate(asked)
            ]
            results = await gather(engine, requests[:8])
            first_group = engine.health().num_prefilled_tokens
            results += await gather(engine, requests[8:])
            for each, result in zip(requests, results, strict=True):
                assert_exact(model, each.prompt_ids, result)
            replies[shares] = [result.token_ids.tolist() for result in results]
            num_prefilled = engine.health().num_prefilled_tokens
            if not shares or not engine.abilities.prefix_reuse:
                assert num_prefilled == 8 * 60 + 9 * 7
            else:
                # One more token for each member that came after its group's prompt was computed.
                assert 60 + 7 + 7 <= num_prefilled <= 60 + 7 + 7 + 14
                assert first_group == 60 if max_running == 8 else 60 <= first_group <= 60 + 5

        play_with(engine, test)
    assert replies[True] == replies[False]


def test_a_group_that_meets_new_weights_computes_its_prompt_again(folders: Callable[[str], Path]) -> None:
    engine, model = make_engine(folders("llama"), max_running=2), make_tiny("llama")
    [prompt] = prompts_of(30)

    async def test() -> None:
        [first] = await gather(engine, [replace(request(0, prompt, session_id="a"), prompt_group=5)])
        assert_exact(model, prompt, first)
        shake(model, 0.1, seed=1)
        await engine.load_weights({name: value.numpy() for name, value in model.state_dict().items()}, 1)
        later = [replace(request(n, prompt, session_id=f"b{n}", seed=n), prompt_group=5) for n in (1, 2)]
        for result in await gather(engine, later):
            assert_exact(model, prompt, result)
        assert engine.health().num_prefilled_tokens == 30 + 30

    play_with(engine, test)
