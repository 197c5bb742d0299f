"""The adapter without vLLM: queue, pauses and updates on a scripted core; settings, weights and wording."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_backend import ScriptedBackend
from vllm_models import make_model, save_model

from envsdk.base.settings.validation import validated
from envsdk.config import load_config
from envsdk.contracts.failures import ConfigurationError, EngineError
from envsdk.contracts.held import Held
from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.engine import (
    Engine,
    EngineAbilities,
    EngineConfig,
    GenerationRequest,
    PauseMode,
    WeightReference,
)
from envsdk.engines.refusals import why_impossible
from envsdk.engines.sampling import LogitChanges, OutputStructure, SamplingParams, TaggedJson
from envsdk.engines.vllm.backend import AsyncLLMBackend
from envsdk.engines.vllm.engine import VLLMEngine
from envsdk.engines.vllm.settings import SET_BY_ENGINE, VLLMSettings, end_token, engine_args
from envsdk.engines.vllm.staged_weights import StagedWeights, read_staged, stage
from envsdk.engines.vllm.translate import read_output, sampling_options, why_refused
from envsdk.testing.engine_structures import END_TOKEN, write_tokenizer
from envsdk.testing.engines import CoreSuite, until
from envsdk.weights.lora import A_SUFFIX, B_SUFFIX
from envsdk.weights.shapes import shapes_in


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model("qwen2-tied", tmp_path_factory.mktemp("model"))


class TestAdapterConforms(CoreSuite):
    engine_class = VLLMEngine
    long_reply, long_reply_s = 100, 0.5
    sequence_length = 128
    unknown_key, nearest_key = "enforce_eagr", "enforce_eager"
    model: Path

    @pytest.fixture(autouse=True)
    def _model(self, folder: Path) -> None:
        type(self).model = folder

    def config(self, **changes: Any) -> EngineConfig:
        return EngineConfig(model=self.model, sequence_length=self.sequence_length, **changes)

    def weights(self) -> WeightReference:
        return self.model

    def make_engine(self, **changes: Any) -> Engine:
        config = self.config(**changes)
        settings = validated(VLLMSettings, config.strategy_config, "strategy_config")
        core = ScriptedBackend(token_s=self.long_reply_s / self.long_reply)
        return VLLMEngine.on(core, config=config, settings=settings)

    # The scripted core has no cache of prefixes.
    test_a_session_computes_only_what_is_new_and_gets_the_same_reply = None  # type: ignore[assignment]
    test_a_session_does_not_reuse_what_older_weights_computed = None  # type: ignore[assignment]


def engine_on(core: ScriptedBackend, folder: Path, **settings: Any) -> VLLMEngine:
    config = EngineConfig(model=folder, sequence_length=64, max_running=2, strategy_config=settings)
    return VLLMEngine.on(core, config=config, settings=validated(VLLMSettings, settings, "strategy_config"))


def request(name: str, num_tokens: int = 4, **sampling: Any) -> GenerationRequest:
    return GenerationRequest(
        request_id=name,
        prompt_ids=np.arange(4, dtype=np.int32),
        sampling=SamplingParams(max_new_tokens=num_tokens, seed=1, **sampling),
    )


def run(engine: VLLMEngine, test: Callable[[], Awaitable[None]]) -> None:
    async def scenario() -> None:
        await engine.start()
        try:
            await asyncio.wait_for(test(), 20)
        finally:
            await engine.close()

    asyncio.run(scenario())


def test_weights_arrive_whole_and_under_their_names(folder: Path) -> None:
    core = ScriptedBackend()
    engine = engine_on(core, folder)
    model = make_model("qwen2-tied", seed=5)

    async def test() -> None:
        await engine.load_weights(iter(model.state_dict().items()), 1)
        (loaded,) = core.loaded
        assert "lm_head.weight" not in loaded  # it is the embedding
        for name, weight in loaded.items():
            np.testing.assert_array_equal(weight, model.state_dict()[name].numpy())

    run(engine, test)


def test_a_wrong_weight_is_refused_by_name_before_vllm_sees_any(folder: Path) -> None:
    core = ScriptedBackend()
    engine = engine_on(core, folder)
    weights = {name: value.numpy() for name, value in make_model("qwen2-tied").state_dict().items()}
    norm = "model.norm.weight"

    def broken_off() -> Iterator[tuple[str, Any]]:
        yield norm, weights[norm]
        raise EngineError("the trainer is gone")

    async def test() -> None:
        for wrong, message in (
            ({name: value for name, value in weights.items() if name != norm}, f"`{norm}` is missing"),
            (weights | {norm: np.zeros(7, np.float32)}, rf"`{norm}` has shape \[7\]"),
            (weights | {"stray": np.zeros(7, np.float32)}, "`stray` is not one"),
            (broken_off(), "the trainer is gone"),
        ):
            with pytest.raises(EngineError, match=message):
                await engine.load_weights(wrong, 1)
        assert core.loaded == []
        assert core.forgets == []
        result = await engine.submit(request("after"))
        assert [span.version for span in result.version_spans] == [0]

    run(engine, test)


def test_whole_weights_that_vllm_would_not_renew_are_refused(tmp_path: Path) -> None:
    save_model("qwen2-tied", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "gpt_oss"}))
    engine = engine_on(ScriptedBackend(), tmp_path)

    async def test() -> None:
        with pytest.raises(EngineError, match="keeps the old experts and attention sinks of GPT-OSS"):
            await engine.load_weights(tmp_path, 1)
        assert not (await engine.submit(request("after"))).error

    run(engine, test)


def test_an_update_that_breaks_off_in_vllm_ends_the_engine(folder: Path) -> None:
    core = ScriptedBackend(token_s=0.01)
    engine = engine_on(core, folder)

    async def test() -> None:
        running = [engine.submit(request(str(n), 40)) for n in range(3)]
        core.broken_load = "out of memory"
        with pytest.raises(EngineError, match="out of memory"):
            await engine.load_weights(folder, 1)
        for result in await asyncio.gather(*running):
            assert result.finish_reason is FinishReason.ERROR
        assert "out of memory" in engine.health().error
        assert (await engine.submit(request("late"))).finish_reason is FinishReason.ERROR

    run(engine, test)


def test_kept_keys_and_values_are_not_found_by_requests_of_the_next_version(folder: Path) -> None:
    core = ScriptedBackend()
    engine = engine_on(core, folder, kv_after_update="keep")

    async def test() -> None:
        await engine.submit(request("old"))
        await engine.load_weights(folder, 3)
        await engine.submit(request("new"))
        assert core.salts == ["0", "3"]
        assert core.forgets == [False]

    run(engine, test)


def test_recomputed_ones_are_forgotten_and_need_no_salt(folder: Path) -> None:
    core = ScriptedBackend()
    engine = engine_on(core, folder)

    async def test() -> None:
        await engine.load_weights(folder, 1)
        await engine.submit(request("new"))
        assert core.salts == [None]
        assert core.forgets == [True]

    run(engine, test)


def test_a_pause_survives_an_update(folder: Path) -> None:
    core = ScriptedBackend(token_s=0.001)
    engine = engine_on(core, folder)

    async def test() -> None:
        running = engine.submit(request("running", 30))
        await until(lambda: engine.health().num_tokens_sampled > 0)
        await engine.pause(PauseMode.KEEP)
        await engine.load_weights(folder, 1)
        sampled = engine.health().num_tokens_sampled
        for _ in range(20):
            await asyncio.sleep(0)
        assert engine.health().num_tokens_sampled == sampled
        await engine.resume()
        assert [span.version for span in (await running).version_spans] == [0, 1]

    run(engine, test)


def test_the_experts_that_vllm_tells_come_with_the_reply_from_the_token_asked_for(folder: Path) -> None:
    async def scenario() -> None:
        found = await engine.submit(replace(request("one"), experts_from=2))
        assert found.experts is not None
        assert found.experts[:, 1, 1].tolist() == [2, 3, 0, 1, 2]  # of 4 + 4 tokens, not the last
        assert (await engine.submit(request("other"))).experts is None

    engine = engine_on(ScriptedBackend(), folder, enable_return_routed_experts=True)
    run(engine, scenario)


def test_a_vllm_that_was_not_told_to_tell_experts_is_not_asked_for_them(folder: Path) -> None:
    async def scenario() -> None:
        found = await engine.submit(replace(request("one"), experts_from=0))
        assert found.finish_reason is FinishReason.ERROR
        assert found.error.startswith("routed_experts: ")

    engine = engine_on(ScriptedBackend(), folder)
    run(engine, scenario)


def test_when_vllm_dies_every_request_and_the_health_say_so(folder: Path) -> None:
    core = ScriptedBackend(token_s=0.001)
    engine = engine_on(core, folder)

    async def test() -> None:
        asked = [engine.submit(request(str(n), 50)) for n in range(5)]
        await until(lambda: engine.health().num_tokens_sampled > 0)
        core.error = "the engine core died"
        for result in await asyncio.gather(*asked):
            assert (result.finish_reason, result.error) == (FinishReason.ERROR, "the engine core died")
        assert engine.health().error == "the engine core died"
        with pytest.raises(EngineError, match="engine core died"):
            await engine.load_weights(folder, 1)

    run(engine, test)


@given(
    shapes=st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=12),
    bucket_bytes=st.integers(1, 3000),
)
def test_staged_weights_come_out_as_they_went_in(shapes: list[list[int]], bucket_bytes: int) -> None:
    draw = np.random.default_rng(0)
    dtypes = (np.float32, np.float16, np.int64)
    weights = {f"w{n}": draw.normal(size=shape).astype(dtypes[n % 3]) for n, shape in enumerate(shapes)}
    staged = StagedWeights(bucket_bytes)
    staged.fill(weights.items())
    found = dict(read_staged(staged.handle))
    staged.close()
    assert found.keys() == weights.keys()
    for name, weight in weights.items():
        assert found[name].dtype == weight.dtype
        np.testing.assert_array_equal(found[name], weight)


def test_a_folder_is_staged_with_all_its_shards(tmp_path: Path) -> None:
    model = make_model("qwen3")
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    staged = stage(tmp_path, {}, optional=frozenset())
    found = dict(read_staged(staged.handle))
    staged.close()
    assert found.keys() == model.state_dict().keys()


def test_known_arguments_of_vllm_pass_through_and_absent_ones_are_its_own(folder: Path) -> None:
    config = EngineConfig(
        model=folder,
        sequence_length=100,
        max_running=7,
        seed=3,
        strategy_config={"block_size": 64, "swa_bounded_replay": True, "logprobs": "raw"},
    )
    settings = validated(VLLMSettings, config.strategy_config, "strategy_config")
    args = engine_args(config, settings, on_cpu=False)
    assert args["max_model_len"] == 100
    assert (args["max_num_seqs"], args["seed"], args["block_size"]) == (7, 3, 64)
    assert args["logprobs_mode"] == "raw_logprobs"
    assert args["swa_bounded_replay"] is True
    assert not args.keys() & {"dtype", "kv_cache_memory_bytes", "enforce_eager", "logprobs", "num_threads"}


def test_on_a_cpu_it_starts_small_and_exact(folder: Path) -> None:
    config = EngineConfig(model=folder, sequence_length=100)
    args = engine_args(config, VLLMSettings(), on_cpu=True)
    assert (args["dtype"], args["enforce_eager"], args["kv_cache_memory_bytes"]) == ("float32", True, 1 << 30)
    shared = engine_args(config, VLLMSettings(gpu_memory_utilization=0.3), on_cpu=True)
    assert "kv_cache_memory_bytes" not in shared
    assert shared["gpu_memory_utilization"] == 0.3


def test_prompts_are_not_cut_on_a_cpu(folder: Path) -> None:
    config = EngineConfig(model=folder, sequence_length=100)
    assert engine_args(config, VLLMSettings(), on_cpu=True)["enable_chunked_prefill"] is False
    settings = validated(VLLMSettings, {"enable_chunked_prefill": True}, "strategy_config")
    assert engine_args(config, settings, on_cpu=False)["enable_chunked_prefill"] is True
    with pytest.raises(ConfigurationError, match="breaks down on a CPU"):
        engine_args(config, settings, on_cpu=True)


def test_a_context_shorter_than_the_sequences_is_refused(folder: Path) -> None:
    config = EngineConfig(model=folder, sequence_length=100)
    with pytest.raises(ConfigurationError, match="max_model_len: 50, but sequence_length is 100"):
        engine_args(config, VLLMSettings(max_model_len=50), on_cpu=True)


@pytest.mark.parametrize("name", sorted(SET_BY_ENGINE))
def test_what_follows_from_the_run_is_refused_with_what_it_follows_from(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}: .*cannot be set here"):
        validated(VLLMSettings, {name: "x"}, "strategy_config")


def test_a_misspelled_argument_is_refused_before_the_run_starts() -> None:
    key = "actor_infer.strategy_args"
    override = [f"{key}.strategy_name=vllm", f"{key}.strategy_config.tensor_paralel_size=2"]
    with pytest.raises(ConfigurationError, match=r"tensor_paralel_size.*did you mean `tensor_parallel_size`"):
        load_config("agentic_async.yaml", override)


@pytest.mark.parametrize("engines", [["num_engines=2"], ["num_engines=1", "max_engines=2"]])
def test_the_devices_are_shared_out_between_as_many_engines_as_there_may_be(engines: list[str]) -> None:
    args = ["actor_infer.strategy_args.strategy_name=vllm", "actor_infer.device_mapping=[0,1,2,3]"]
    args += [f"actor_infer.{key}" for key in engines]
    parallel = "actor_infer.strategy_args.strategy_config.tensor_parallel_size"
    with pytest.raises(ConfigurationError, match=r"device_mapping.*_engines=2 are 2 for each"):
        load_config("agentic_async.yaml", args)
    load_config("agentic_async.yaml", [*args, f"{parallel}=2"])


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_it_says_what_to_install(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"envsdk\[vllm\]"):
        VLLMEngine.create(EngineConfig(model=folder, sequence_length=8))


def test_a_missing_model_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="needs a model"):
        VLLMEngine.create(EngineConfig(model=None, sequence_length=8))
    with pytest.raises(ConfigurationError, match=r"no config\.json"):
        VLLMEngine.create(EngineConfig(model=tmp_path, sequence_length=8))


@given(
    max_new_tokens=st.integers(1, 100),
    room=st.integers(1, 100),
    temperature=st.sampled_from([0.0, 0.5, 2.0]),
    stop=st.lists(st.integers(0, 9), max_size=3),
)
def test_a_request_never_outgrows_its_context_and_stops_at_its_own_tokens_alone(
    max_new_tokens: int, room: int, temperature: float, stop: list[int]
) -> None:
    sampling = SamplingParams(
        max_new_tokens=max_new_tokens, temperature=temperature, stop_token_ids=tuple(stop)
    )
    options = sampling_options(sampling, room=room)
    assert options["max_tokens"] == min(max_new_tokens, room)
    assert options["stop_token_ids"] == stop
    assert options["ignore_eos"]
    assert not options["detokenize"]
    assert (options["logit_bias"], options["repetition_penalty"], options["frequency_penalty"]) == (
        None,
        1,
        0,
    )


def test_biases_and_penalties_go_by_vllms_names_and_keep_to_its_vocabulary() -> None:
    changes = LogitChanges(bias=((5, -2.0),), repetition_penalty=1.1, presence_penalty=0.5)
    sampling = SamplingParams(max_new_tokens=1, changes=changes)
    asked = {
        "logit_bias": {5: -2.0},
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.5,
    }
    assert asked.items() <= sampling_options(sampling, room=1).items()
    request = GenerationRequest(request_id="r", prompt_ids=np.array([1], np.int32), sampling=sampling)
    assert why_refused(request, vocab_size=6, end_token=None) is None
    told = why_refused(request, vocab_size=5, end_token=None)
    assert told is not None
    assert "logit bias" in told.message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 0.001}, "samples at 0 and from 0.01 to 2"),
        ({"temperature": 2.5}, "samples at 0 and from 0.01 to 2"),
        ({"top_p": 0.0}, "top_p must be"),
        ({"min_p": 1.5}, "min_p must be"),
        ({"top_k": -1}, "top_k must be"),
    ],
)
def test_what_vllm_does_not_sample_is_refused(changes: dict[str, Any], message: str) -> None:
    assert message in refused(request("r", **changes))


def test_a_token_outside_the_vocabulary_is_refused() -> None:
    assert "vocabulary of 3" in refused(request("r"), vocab_size=3)


def refused(asked: GenerationRequest, *, vocab_size: int = 64, end_token: int | None = 63) -> str:
    abilities = EngineAbilities(structured_output=end_token is not None)
    failure = why_impossible(asked, sequence_length=64, abilities=abilities) or why_refused(
        asked, vocab_size=vocab_size, end_token=end_token
    )
    return "" if failure is None else failure.message


def test_a_structure_needs_a_tokenizer_and_its_end_token_among_the_stop_tokens() -> None:
    only = OutputStructure(choices=("a",))
    assert refused(request("r", structure=only, stop_token_ids=(5, 63))) == ""
    assert "end token 63" in refused(request("r", structure=only, stop_token_ids=(5,)))
    assert "no tokenizer" in refused(request("r", structure=only, stop_token_ids=(63,)), end_token=None)


SPACES = '"x-guidance": {"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "}'


@pytest.mark.parametrize(
    ("structure", "option"),
    [
        (OutputStructure(regex="a+"), {"regex": "a+"}),
        (OutputStructure(json_schema='{"type": "null"}'), {"json": f'{{{SPACES}, "type": "null"}}'}),
        (OutputStructure(choices=("a", "b")), {"choice": ["a", "b"]}),
        (
            OutputStructure(tagged=(TaggedJson(begin="<a>", json_schema="true", end="</a>"),)),
            {"grammar": f'start: part0\npart0: "<a>" json0 "</a>"\njson0: %json {{{SPACES}}}\n'},
        ),
        (
            OutputStructure(
                tagged=(TaggedJson(begin="<a>!", json_schema="true", end="</a>"),), opening="<a>"
            ),
            {
                "grammar": 'start: TEXT | begun part ("\\n" "<a>" part)*\npart: part0\n'
                'begun[lazy]: TEXT "<a>"\nTEXT: /(.|\\n)*/\n'
                f'part0: "!" json0 "</a>"\njson0: %json {{{SPACES}}}\n'
            },
        ),
        (None, None),
    ],
)
def test_a_structure_in_vllms_words(structure: OutputStructure | None, option: Any) -> None:
    sampling = SamplingParams(max_new_tokens=1, structure=structure)
    assert sampling_options(sampling, room=1)["structured_outputs"] == option


def test_the_end_token_is_the_tokenizers(tmp_path: Path) -> None:
    assert end_token(tmp_path) is None
    write_tokenizer(tmp_path)
    assert end_token(tmp_path) == END_TOKEN
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<end>"}}')
    assert end_token(tmp_path) == END_TOKEN
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert end_token(tmp_path) is None


def adapter_for(folder: Path, rank: int = 2) -> dict[str, np.ndarray]:
    module = "model.layers.0.mlp.down_proj"
    rows, columns = shapes_in(folder)[f"{module}.weight"]
    return {
        module + A_SUFFIX: np.ones((rank, columns), np.float32),
        module + B_SUFFIX: np.ones((rows, rank), np.float32),
    }


def test_an_adapter_is_loaded_alone_and_on_the_weights_of_the_models_folder(folder: Path) -> None:
    core = ScriptedBackend()
    engine = engine_on(core, folder, enable_lora=True)
    adapter, other = adapter_for(folder), make_model("qwen2-tied", seed=5).state_dict()

    async def test() -> None:
        (nothing,) = core.adapters  # so that requests before the first one have a place for it
        assert not any(half.any() for half in nothing.values())
        await engine.load_weights(iter(adapter.items()), 1)
        assert core.loaded == []
        assert core.adapters[1].keys() == {f"base_model.model.{name}" for name in adapter}
        await engine.load_weights(other, 2)
        assert len(core.loaded) == 1
        assert core.adapters[2].keys() == nothing.keys()
        await engine.load_weights(other, 3)
        await engine.load_weights(adapter, 4)
        np.testing.assert_array_equal(
            core.loaded[2]["model.norm.weight"], make_model("qwen2-tied").state_dict()["model.norm.weight"]
        )
        await engine.load_weights(adapter, 5)
        assert (len(core.loaded), len(core.adapters)) == (3, 6)
        assert engine.health().version == 5

    run(engine, test)


@pytest.mark.parametrize("takes_adapters", [False, True])
def test_prompts_are_scored_where_no_adapters_are_taken(folder: Path, takes_adapters: bool) -> None:
    engine = engine_on(ScriptedBackend(), folder, enable_lora=takes_adapters)

    async def test() -> None:
        result = await engine.submit(request("scored", prompt_logprobs=True))
        assert (result.prompt_scores is None) is takes_adapters
        assert ("does not score prompts" in result.error) is takes_adapters

    run(engine, test)


def test_an_adapter_of_too_high_a_rank_is_refused_with_the_key_to_change(folder: Path) -> None:
    engine = engine_on(ScriptedBackend(), folder, enable_lora=True, max_lora_rank=8)

    async def test() -> None:
        with pytest.raises(EngineError, match="takes up to 8; set max_lora_rank"):
            await engine.load_weights(adapter_for(folder, rank=9), 1)
        assert engine.health().error == ""

    run(engine, test)


def test_an_engine_that_takes_no_adapters_keeps_its_weights(folder: Path) -> None:
    core = ScriptedBackend()
    engine = engine_on(core, folder)

    async def test() -> None:
        with pytest.raises(EngineError, match="lora_A"):
            await engine.load_weights(adapter_for(folder), 1)
        assert (core.loaded, core.adapters) == ([], [])

    run(engine, test)


def completion(**changes: Any) -> Any:
    values: dict[str, Any] = {
        "token_ids": [5, 6, 7],
        # Two log-probabilities at the second position: the sampled token's is the first.
        "logprobs": SimpleNamespace(start_indices=[0, 1, 3], logprobs=[-0.5, -1.5, -0.1, 1e-8]),
        "weight_versions": [
            SimpleNamespace(version="2", start=0, end=1),
            SimpleNamespace(version="3", start=1, end=3),
        ],
        "finish_reason": "length",
    }
    return SimpleNamespace(outputs=[SimpleNamespace(**(values | changes))])


def test_a_reply_is_read_with_the_versions_that_vllm_stamped() -> None:
    result = read_output("r", completion())
    assert result.token_ids.tolist() == [5, 6, 7]
    np.testing.assert_array_equal(result.logprobs, np.array([-0.5, -1.5, 0.0], np.float32))
    assert [(span.version, span.start, span.end) for span in result.version_spans] == [(2, 0, 1), (3, 1, 3)]
    assert result.finish_reason is FinishReason.LENGTH


def test_weights_that_diverged_make_the_reply_an_error() -> None:
    flat = SimpleNamespace(start_indices=[0, 1, 2], logprobs=[-0.5, float("nan"), -1.0])
    result = read_output("r", completion(logprobs=flat))
    assert result.finish_reason is FinishReason.ERROR
    assert "not finite" in result.error


def test_tokens_without_a_version_are_an_error_and_not_a_guess() -> None:
    with pytest.raises(ValueError, match="cover 0 of 3 tokens"):
        read_output("r", completion(weight_versions=None))


async def test_vllm_sleeps_deeply_and_wakes_for_weights_before_the_cache() -> None:
    asked: list[tuple[str, Any]] = []

    class Llm:
        async def sleep(self, level: int, mode: str) -> None:
            asked.append(("sleep", (level, mode)))

        async def wake_up(self, tags: list[str]) -> None:
            asked.append(("wake_up", tags))

    config = SimpleNamespace(model_config=SimpleNamespace(get_vocab_size=lambda: 8))
    backend = AsyncLLMBackend(config, {}, "cpu")
    backend._llm = Llm()
    for held in (Held.ALL, Held.NOTHING, Held.NOTHING, Held.WEIGHTS, Held.WEIGHTS, Held.ALL, Held.WEIGHTS):
        await backend.hold(held)
    assert asked == [("sleep", (2, "keep")), ("wake_up", ["weights"]), ("wake_up", ["kv_cache"])]
    await backend.hold(Held.NOTHING)
    assert asked[3:] == [("sleep", (2, "keep"))]


async def test_an_engine_without_new_weights_takes_no_cache(folder: Path) -> None:
    config = EngineConfig(model=folder, sequence_length=64, takes_turns=True)
    assert "enable_sleep_mode" not in engine_args(config, VLLMSettings(), on_cpu=True)
    assert engine_args(config, VLLMSettings(), on_cpu=False)["enable_sleep_mode"]
    engine = VLLMEngine.on(ScriptedBackend(), config=config, settings=VLLMSettings())
    await engine.start()
    await engine.pause(PauseMode.KEEP)
    await engine.hold(Held.NOTHING)
    with pytest.raises(EngineError, match="no new ones were loaded"):
        await engine.hold(Held.ALL)
    await engine.close()
