"""The `openai` engine against a server on a socket, and its pure parts."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai_server import FakeServer, Respond, chunk, distribution
from remote_play import one_reply_of, play_on, request, then

from envsdk.base.store.trajectories import read_trajectories
from envsdk.collect import collect
from envsdk.config import load_config
from envsdk.contracts.failures import ConfigurationError, EngineError
from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.engine import EngineConfig, ErrorKind, GenerationResult, WeightReference
from envsdk.engines.engine_support.failures import MAX_BACKOFF_S, ReplyRefused, retry_after_s, wait_s
from envsdk.engines.openai.engine import OpenAIEngine
from envsdk.engines.openai.settings import SET_BY_ENGINE, OpenAISettings
from envsdk.engines.openai.wire import VersionLabel, completion_body, read_event, why_inexpressible
from envsdk.engines.sampling import LogitChanges, OutputStructure, SamplingParams, TaggedJson
from envsdk.engines.vllm.translate import version_spans
from envsdk.testing.engine_structures import END_TOKEN, text_of
from envsdk.testing.engine_structures import write_tokenizer as write_structure_tokenizer
from envsdk.testing.engines import CoreSuite, until
from envsdk.trainers.warm_start.tiny_policy import build_tokenizer, write_tokenizer

KEY = "sk-very-secret"
WAYS = ["structured_outputs", "sglang", "response_format"]
SCHEMA = OutputStructure(json_schema='{"enum": [true, false]}')


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


class TestOpenAIConforms(CoreSuite):
    engine_class = OpenAIEngine
    unknown_key, nearest_key = "base_ur", "base_url"
    long_reply_s = 0.5
    server: FakeServer

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _serve(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        folder = tmp_path_factory.mktemp("tokenizer")
        write_structure_tokenizer(folder)
        with FakeServer() as cls.server:
            cls.server.behavior.tokenizer = folder
            cls.server.behavior.slow_after = 30  # the long replies, so that the rest of the suite is quick
            cls.server.behavior.token_s = 1.2 * cls.long_reply_s / (cls.long_reply - 30)
            yield

    protocol = "completions"

    def config(self, **changes: Any) -> EngineConfig:
        settings = {"base_url": self.server.base_url, "model": "table", "protocol": self.protocol}
        settings["structured_output"] = "structured_outputs"
        changes["strategy_config"] = settings | dict(changes.get("strategy_config", {}))
        return EngineConfig(model=None, sequence_length=self.sequence_length, **changes)

    def weights(self) -> WeightReference:
        return {"weight": np.zeros(1, np.float32)}


class TestGenerateConforms(TestOpenAIConforms):
    protocol = "generate"


def config_for(server: FakeServer, *, max_running: int = 8, **settings: Any) -> EngineConfig:
    settings = {"base_url": server.base_url, "model": "table", "backoff_s": 0.01} | settings
    return EngineConfig(model=None, sequence_length=64, max_running=max_running, strategy_config=settings)


def play(config: EngineConfig, test: Callable[[OpenAIEngine], Awaitable[Any]]) -> Any:
    return play_on(OpenAIEngine, config, test)


def one_reply(config: EngineConfig, **sampling: Any) -> GenerationResult:
    return one_reply_of(OpenAIEngine, config, **sampling)


def status(code: int, **headers: str) -> Respond:
    return lambda handler, body: handler.answer(code, {"error": {"message": f"told {code}"}}, **headers)


def hang_up_after(num_events: int) -> Respond:
    def respond(handler: Any, body: dict[str, Any]) -> bool:
        handler.begin_stream()
        for _ in range(num_events):
            handler.event(chunk({"token_ids": [1], "logprobs": {"token_logprobs": [-1.0]}}))
        handler.close_connection = True
        return True

    return respond


def test_logprobs_are_those_of_the_distribution_that_tokens_were_drawn_from(server: FakeServer) -> None:
    result = one_reply(config_for(server), temperature=0.7, top_p=0.8, top_k=9)
    body = server.behavior.bodies[-1]
    last = 4
    for token, logprob in zip(result.token_ids.tolist(), result.logprobs.tolist(), strict=True):
        assert logprob == pytest.approx(distribution(last, body)[1][token], abs=1e-6)
        last = token
    assert len(result.token_ids) == 6


def test_a_prompt_goes_as_token_ids_with_all_that_shapes_the_distribution(server: FakeServer) -> None:
    one_reply(
        config_for(server, extra_body={"ignore_eos": True}), stop_token_ids=(200,), temperature=0.5, min_p=0.1
    )
    assert server.behavior.bodies[-1] == {
        "ignore_eos": True, "model": "table", "prompt": [3, 1, 4], "max_tokens": 6, "temperature": 0.5,
        "top_p": 1.0, "top_k": -1, "min_p": 0.1, "repetition_penalty": 1.0, "stop_token_ids": [200],
        "seed": 11, "n": 1, "stream": True, "return_token_ids": True, "logprobs": 0,
    }  # fmt: skip


def test_generate_is_asked_for_the_same_in_its_own_words(server: FakeServer) -> None:
    settings = {"protocol": "generate", "extra_body": {"ignore_eos": True}}
    asked: dict[str, Any] = {
        "stop_token_ids": (200,),
        "temperature": 0.5,
        "changes": LogitChanges(bias=((5, 1.0),)),
    }
    assert one_reply(config_for(server, **settings), **asked).finish_reason is FinishReason.LENGTH
    assert server.behavior.bodies[-1] == {
        "model": "table", "token_ids": [3, 1, 4], "stream": True, "return_token_ids": True,
        "sampling_params": {
            "ignore_eos": True, "max_tokens": 6, "temperature": 0.5, "top_p": 1.0, "top_k": -1, "min_p": 0.0,
            "repetition_penalty": 1.0, "stop_token_ids": [200], "seed": 11, "n": 1, "logprobs": 0,
            "logit_bias": {"5": 1.0}, "frequency_penalty": 0.0, "presence_penalty": 0.0, "detokenize": False,
        },
    }  # fmt: skip


def spans_of(result: GenerationResult) -> list[tuple[int, int, int]]:
    return [(span.version, span.start, span.end) for span in result.version_spans]


def test_each_token_has_the_version_that_the_server_sampled_it_under(server: FakeServer) -> None:
    server.behavior.label = "7"

    async def ask(engine: OpenAIEngine) -> None:
        assert spans_of(await engine.submit(request("a"))) == [(7, 0, 6)]
        server.behavior.relabel = {2: "8", 5: "12"}
        assert spans_of(await engine.submit(request("b"))) == [(7, 0, 2), (8, 2, 5), (12, 5, 6)]
        server.behavior.slow_after, server.behavior.token_s = 3, 0.02
        running = engine.submit(request("c", max_new_tokens=50))
        await until(
            lambda: any(
                reply.request.request_id == "c" and len(reply.token_ids) >= 3 for reply in engine.core.tasks
            )
        )
        engine.abort(["c"])
        cut = await running  # before the server told: not newer than what it was
        assert spans_of(cut) == [(12, 0, len(cut.token_ids))]

    play(config_for(server, protocol="generate"), ask)


def test_weights_that_nobody_labeled_are_version_0_and_labels_that_are_no_number_are_refused(
    server: FakeServer,
) -> None:
    assert spans_of(one_reply(config_for(server, protocol="generate"))) == [(0, 0, 6)]
    server.behavior.label = "step-3"
    with pytest.raises(EngineError, match="label `step-3`: label them with the number"):
        one_reply(config_for(server, protocol="generate"))


@given(st.lists(st.integers(1, 4), max_size=6), st.integers(0, 9), st.booleans())
def test_versions_cover_a_reply_once_or_are_refused(lengths: list[int], first: int, is_whole: bool) -> None:
    ends = list(itertools.accumulate(lengths))
    labels = [
        VersionLabel(version=str(first + number), start=end - length, end=end)
        for number, (length, end) in enumerate(zip(lengths, ends, strict=True))
    ]
    num_tokens = sum(lengths) + (0 if is_whole else 1)
    if not is_whole:
        with pytest.raises(ValueError, match="cover"):
            version_spans(labels, num_tokens)
        return
    versions = [
        span.version for span in version_spans(labels, num_tokens) for _ in range(span.start, span.end)
    ]
    assert versions == [first + number for number, length in enumerate(lengths) for _ in range(length)]


def test_a_sampling_mask_is_the_support_of_the_reply(server: FakeServer) -> None:
    every = list(range(64))
    server.behavior.extras = {"sampling_mask": [every]}
    result = one_reply(config_for(server, protocol="generate"))
    assert result.support is not None
    assert result.support.counts.tolist() == [64] * len(result.token_ids)
    assert result.support.ids.tolist() == every * len(result.token_ids)


def test_a_server_without_generate_and_structures_it_does_not_know_are_refused(server: FakeServer) -> None:
    server.behavior.generates = False
    with pytest.raises(EngineError, match=r"404: Not Found; .*`--enable-scale-out`, else set `protocol"):
        one_reply(config_for(server, protocol="generate"))
    with pytest.raises(ConfigurationError, match="knows `structured_output: structured_outputs` alone"):
        OpenAIEngine.create(config_for(server, protocol="generate", structured_output="sglang"))


def test_connections_are_used_again(server: FakeServer) -> None:
    async def ask(engine: OpenAIEngine) -> None:
        for n in range(5):
            await engine.submit(request(str(n)))

    play(config_for(server), ask)
    assert len(server.behavior.bodies) == 7
    assert server.behavior.num_connections <= 2  # one may still read the end of its stream


def test_no_more_requests_run_than_allowed(server: FakeServer) -> None:
    server.behavior.slow_after, server.behavior.token_s = 0, 0.005

    async def ask(engine: OpenAIEngine) -> None:
        pending = [engine.submit(request(str(n))) for n in range(9)]
        while not all(future.done() for future in pending):
            assert engine.health().num_running <= 3
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED, timeout=0.01)

    play(config_for(server, max_running=3), ask)
    # A reply's connection may come back to the pool after the next request has taken another one.
    assert server.behavior.num_connections <= 6 < len(server.behavior.bodies)


def test_abort_hangs_up(server: FakeServer) -> None:
    async def ask(engine: OpenAIEngine) -> None:
        server.behavior.slow_after, server.behavior.token_s = 3, 0.02
        running = engine.submit(request(max_new_tokens=50))
        await until(lambda: any(len(reply.token_ids) >= 3 for reply in engine.core.tasks))
        engine.abort(["a"])
        assert (await running).finish_reason is FinishReason.ABORT
        await until(lambda: server.behavior.num_broken_off == 1)

    play(config_for(server), ask)


def test_without_logprobs_they_are_not_asked_for_and_recorded_as_nan(server: FakeServer) -> None:
    result = one_reply(config_for(server, logprobs="none"))
    assert len(result.token_ids) == 6
    assert np.isnan(result.logprobs).all()
    assert "logprobs" not in server.behavior.bodies[-1]


def test_a_server_without_token_ids_is_refused_at_the_start(server: FakeServer) -> None:
    server.behavior.token_ids = False
    with pytest.raises(EngineError, match="return_token_ids"):
        one_reply(config_for(server))


def test_raw_logprobs_are_refused_unless_asked_for(server: FakeServer) -> None:
    server.behavior.processed_logprobs = False
    with pytest.raises(ConfigurationError, match=r"processed_logprobs.*logprobs: raw"):
        one_reply(config_for(server))
    raw = one_reply(config_for(server, logprobs="raw"), top_k=1)
    assert (raw.logprobs < -0.01).all()


def test_a_server_that_leaves_the_stop_token_out_is_refused(server: FakeServer) -> None:
    server.behavior.includes_stop_token = False
    with pytest.raises(ConfigurationError, match="leaves the stop token out"):
        one_reply(config_for(server))


def test_a_server_that_does_not_stream_is_refused_at_once(server: FakeServer) -> None:
    server.behavior.respond = [lambda handler, body: handler.answer(200, {"choices": []})]
    with pytest.raises(EngineError, match="does not stream"):
        one_reply(config_for(server))
    assert len(server.behavior.bodies) == 1


def test_nobody_listening_is_an_error_that_names_the_address() -> None:
    with FakeServer() as gone:
        config = config_for(gone, max_retries=1)
    with pytest.raises(EngineError, match=r"127\.0\.0\.1.*asked 2 times"):
        one_reply(config)


@pytest.mark.parametrize("failure", [status(429), status(503), hang_up_after(0), hang_up_after(3)])
def test_a_failure_that_passes_is_asked_again_and_leaves_no_trace(
    server: FakeServer, failure: Respond
) -> None:
    expected = one_reply(config_for(server))
    then(server, failure, failure)
    result = one_reply(config_for(server))
    assert result.finish_reason is FinishReason.LENGTH
    assert result.token_ids.tolist() == expected.token_ids.tolist()
    assert len(server.behavior.bodies) == 3 + 5


def test_an_error_amid_a_stream_is_asked_again(server: FakeServer) -> None:
    def break_off(handler: Any, body: dict[str, Any]) -> bool:
        handler.begin_stream()
        handler.event(chunk({"token_ids": [1], "logprobs": {"token_logprobs": [-1.0]}}))
        handler.event(json.dumps({"error": {"message": "out of memory", "code": 500}}))
        handler.close_connection = True
        return True

    then(server, break_off)
    assert one_reply(config_for(server)).finish_reason is FinishReason.LENGTH
    then(server, break_off)
    result = one_reply(config_for(server, max_retries=0))
    assert (result.finish_reason, len(result.token_ids)) == (FinishReason.ERROR, 1)
    assert "out of memory" in result.error


def test_silence_is_ended_and_asked_again(server: FakeServer) -> None:
    def hang(handler: Any, body: dict[str, Any]) -> bool:
        handler.begin_stream()
        handler.rfile.read(1)  # until the client hangs up
        return True

    then(server, hang)
    result = one_reply(config_for(server, silence_timeout_s=0.2))
    assert result.finish_reason is FinishReason.LENGTH


def test_a_request_the_server_refuses_is_answered_with_its_words_and_not_asked_again(
    server: FakeServer,
) -> None:
    then(server, status(400))
    result = one_reply(config_for(server))
    assert result.finish_reason is FinishReason.ERROR
    assert "400: told 400" in result.error
    assert len(server.behavior.bodies) == 3


def test_retries_end(server: FakeServer) -> None:
    then(server, *[status(503)] * 3)
    result = one_reply(config_for(server, max_retries=2))
    assert result.finish_reason is FinishReason.ERROR
    assert "told 503 (asked 3 times)" in result.error


def test_a_changed_prompt_is_an_error(server: FakeServer) -> None:
    def truncate(handler: Any, body: dict[str, Any]) -> bool:
        body["prompt"] = body["prompt"][1:]
        return False

    then(server, truncate)
    assert "changed the prompt" in one_reply(config_for(server)).error


def test_the_key_comes_from_the_environment_and_reaches_no_message(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.behavior.api_key = KEY
    monkeypatch.setenv("TEST_KEY", KEY)
    assert one_reply(config_for(server, api_key_env="TEST_KEY")).finish_reason is FinishReason.LENGTH
    monkeypatch.setenv("TEST_KEY", KEY + "-old")
    with pytest.raises(EngineError, match="401: Unauthorized") as refused:
        one_reply(config_for(server, api_key_env="TEST_KEY"))
    assert KEY not in str(refused.value)
    monkeypatch.delenv("TEST_KEY")
    with pytest.raises(ConfigurationError, match=r"TEST_KEY .*is not set"):
        OpenAIEngine.create(config_for(server, api_key_env="TEST_KEY"))


def test_a_key_in_the_place_of_its_name_is_refused_without_repeating_it(server: FakeServer) -> None:
    with pytest.raises(ConfigurationError, match="api_key_env") as refused:
        OpenAIEngine.create(config_for(server, api_key_env=KEY))
    assert KEY not in str(refused.value)


def test_fields_that_the_engine_sets_are_refused_in_extra_body(server: FakeServer) -> None:
    with pytest.raises(ConfigurationError, match="temperature: set by the engine"):
        OpenAIEngine.create(config_for(server, extra_body={"temperature": 0.1}))
    tagged = OutputStructure(tagged=(TaggedJson(begin="<a>", json_schema="true", end="</a>"),))
    structures = [None, SCHEMA, OutputStructure(regex="a"), OutputStructure(choices=("a",)), tagged]
    fields: set[str] = set()
    for way in WAYS:
        settings = OpenAISettings(base_url=server.base_url, model="table", structured_output=way)
        for structure in structures:
            if structure is not None and why_inexpressible(settings, structure):
                continue
            fields |= completion_body(settings, request(structure=structure), 6).keys()
    settings = OpenAISettings(base_url=server.base_url, model="table", protocol="generate")
    body = completion_body(settings, request(), 6, tells_experts=True)
    assert fields | body["sampling_params"].keys() == SET_BY_ENGINE


def test_weights_are_refused(server: FakeServer) -> None:
    async def load(engine: OpenAIEngine) -> None:
        assert not engine.abilities.weight_updates
        with pytest.raises(EngineError, match="cannot load weights"):
            await engine.load_weights({}, 1)

    play(config_for(server), load)


@pytest.fixture
def tokenizer_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    write_tokenizer(folder, build_tokenizer(["<answer>Left</answer> _ P G O"]), sequence_length=1024)
    (folder / "config.json").write_text("{}")
    return folder


def overrides(server: FakeServer) -> list[str]:
    infer = "actor_infer.strategy_args"
    return [
        f"{infer}.strategy_name=openai",
        f"{infer}.strategy_config.base_url={server.base_url}",
        f"{infer}.strategy_config.model=table",
        "actor_infer.generating_args.max_new_tokens=8",
        "sequence_length=1024",
    ]


def test_a_data_set_is_collected_with_tokens_and_logprobs_and_names_the_model(
    server: FakeServer, tokenizer_folder: Path, tmp_path: Path
) -> None:
    collection = collect(
        "envsdk/FrozenLake-v1", tmp_path / "out", num_episodes=3, policy="model", model=tokenizer_folder,
        overrides=overrides(server),
    )  # fmt: skip
    assert collection.manifest.tally.num_scored == 3
    assert collection.manifest.config["model"]["settings"] == {"model": "table", "extra_body": {}}
    trajectories = [each for shard in collection.shards for each in read_trajectories(shard)]
    asked = {tuple(body["prompt"]) for body in server.behavior.bodies}
    for trajectory in trajectories:
        tokens = trajectory.tokens
        assert tokens is not None
        sampled = tokens.response_mask.astype(bool)
        assert (tokens.behavior_logprobs[sampled] < 0).all()
        assert set(tokens.versions[sampled]) == {0}
        for turn in trajectory.turns:  # each prompt is exactly the log so far, earlier replies included
            assert tuple(tokens.ids[: turn.response_start].tolist()) in asked


def test_training_with_it_is_refused_and_playing_is_not(server: FakeServer) -> None:
    with pytest.raises(ConfigurationError, match=r"strategy_name.*takes no new weights.*envsdk collect"):
        load_config("agentic_async.yaml", overrides(server))
    loaded = load_config("agentic_async.yaml", overrides(server), for_training=False)
    assert loaded.config.actor_infer.settings["model"] == "table"


@given(st.integers(0, 2000), st.floats(0.001, 60), st.floats(0, 120), st.floats(0, 1))
def test_waits_grow_up_to_a_limit_and_never_undercut_the_server(
    attempt: int, backoff_s: float, at_least_s: float, uniform: float
) -> None:
    waited = wait_s(attempt, backoff_s=backoff_s, at_least_s=at_least_s, uniform=uniform)
    assert at_least_s <= waited <= max(at_least_s, MAX_BACKOFF_S)
    later = wait_s(attempt + 1, backoff_s=backoff_s, at_least_s=at_least_s, uniform=uniform)
    assert later >= waited > 0


@pytest.mark.parametrize(
    ("header", "seconds"), [(None, 0), ("2", 2), ("-1", 0), ("Wed, 21 Oct 2026 07:28:00 GMT", 0), ("inf", 0)]
)
def test_retry_after_is_read_as_seconds(header: str | None, seconds: float) -> None:
    assert retry_after_s(header) == seconds


@pytest.mark.parametrize(
    ("choice", "complaint"),
    [
        ({"text": "a", "logprobs": {"token_logprobs": [-1.0]}}, "without token ids"),
        ({"token_ids": [1, 2], "logprobs": {"token_logprobs": [-1.0]}}, "1 log-probabilities for 2 tokens"),
        ({"token_ids": [1], "logprobs": {"token_logprobs": [None]}}, "0 log-probabilities for 1"),
        ({"token_ids": [1]}, "logprobs: none"),
        ({"token_ids": [], "finish_reason": "content_filter"}, "content_filter"),
        ({"token_ids": "abc"}, "no completion event"),
    ],
)
def test_events_that_lack_what_was_asked_for_are_refused(choice: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ReplyRefused, match=complaint):
        read_event(chunk(choice), prompt_ids=[1], with_logprobs=True)


def test_events_without_tokens_add_nothing() -> None:
    for data in (json.dumps({"choices": [], "usage": {"total_tokens": 3}}), chunk({"text": ""})):
        delta = read_event(data, prompt_ids=[1], with_logprobs=True)
        assert (list(delta.token_ids), list(delta.logprobs), delta.finish_reason) == ([], [], None)


def test_a_certain_token_rounded_above_zero_is_certain() -> None:
    choice = {"token_ids": [5], "logprobs": {"token_logprobs": [1e-7]}}
    assert list(read_event(chunk(choice), prompt_ids=[1], with_logprobs=True).logprobs) == [0.0]


@given(st.integers(-(2**65), 2**65))
def test_any_seed_fits_the_servers_range(seed: int) -> None:
    settings = OpenAISettings(base_url="http://h/v1", model="m")
    asked = replace(request(), sampling=SamplingParams(max_new_tokens=1, seed=seed))
    assert 0 <= completion_body(settings, asked, 1)["seed"] < 2**63
    assert not math.isnan(completion_body(settings, asked, 1)["temperature"])


@pytest.fixture
def structuring(server: FakeServer, tmp_path: Path) -> FakeServer:
    write_structure_tokenizer(tmp_path)
    server.behavior.tokenizer = tmp_path
    return server


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("protocol", ["completions", "generate"])
def test_a_server_is_told_of_a_structure_in_its_own_words(
    way: str, protocol: str, structuring: FakeServer
) -> None:
    if protocol == "generate" and way != "structured_outputs":
        pytest.skip("it knows them by one name")
    structuring.behavior.understands = way
    structures = {"true|false": SCHEMA}
    if way != "response_format":
        structures |= {
            "n(o|ot)": OutputStructure(regex="n(o|ot)"),
            "a.c|b": OutputStructure(choices=("a.c", "b")),
        }
    if way in ("structured_outputs", "sglang"):
        pair = TaggedJson(begin="<a>", json_schema='{"enum": [true, false]}', end="</a>")
        structures["<a>(true|false)</a>"] = OutputStructure(tagged=(pair,))

    async def ask(engine: OpenAIEngine) -> None:
        for expected, structure in structures.items():
            result = await engine.submit(
                request(structure=structure, max_new_tokens=16, stop_token_ids=(END_TOKEN,))
            )
            assert result.finish_reason is FinishReason.STOP
            assert re.fullmatch(expected.replace(".", r"\."), text_of(result.token_ids[:-1]))

    play(config_for(structuring, structured_output=way, protocol=protocol), ask)


@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_passes_over_structures_is_refused(way: str, server: FakeServer) -> None:
    with pytest.raises(ConfigurationError, match=f"does not keep replies .*`structured_output: {way}`"):
        one_reply(config_for(server, structured_output=way))


def test_json_between_fixed_texts_is_refused_where_the_server_has_no_word_for_it(
    structuring: FakeServer,
) -> None:
    way = "response_format"
    structuring.behavior.understands = way
    tagged = OutputStructure(tagged=(TaggedJson(begin="<a>", json_schema="true", end="</a>"),))
    config = config_for(structuring, structured_output=way)
    refused = one_reply(config, structure=tagged, stop_token_ids=(END_TOKEN,))
    assert refused.error_kind is ErrorKind.UNSUPPORTED_SAMPLING
    assert f"`{way}`, which knows" in refused.error


def test_a_structure_that_cannot_be_told_or_kept_to_is_an_error_of_its_own_kind(
    structuring: FakeServer,
) -> None:
    ends = {"stop_token_ids": (END_TOKEN,)}
    structuring.behavior.understands = "response_format"
    config = config_for(structuring, structured_output="response_format")
    for structure, said in [
        (OutputStructure(json_schema="{"), "not JSON"),
        (OutputStructure(json_schema='{"type": "nonsense"}'), "Failed to compile"),
    ]:
        result = one_reply(config, structure=structure, **ends)
        assert result.error_kind is ErrorKind.STRUCTURED_OUTPUT
        assert said in result.error
    unable = one_reply(config, structure=OutputStructure(regex="a"), **ends)
    assert (unable.error_kind, "JSON schemas alone" in unable.error) == (ErrorKind.UNSUPPORTED_SAMPLING, True)
    refused = one_reply(config_for(structuring), structure=SCHEMA, **ends)
    assert refused.error_kind is ErrorKind.UNSUPPORTED_SAMPLING
    assert "set `structured_output` of `sglang` or `openai`" in refused.error


def test_a_server_that_does_not_heed_biases_is_found_out_at_the_first_request_with_one(
    server: FakeServer,
) -> None:
    asked = LogitChanges(bias=((5, 100.0),), frequency_penalty=0.5)
    heeded = one_reply(config_for(server), changes=asked)
    body = server.behavior.bodies[-1]
    assert set(heeded.token_ids.tolist()) == {5}
    assert (body["logit_bias"], body["frequency_penalty"]) == ({"5": 100.0}, 0.5)
    server.behavior.heeds_biases = False
    refused = one_reply(config_for(server), changes=asked)
    assert refused.error_kind is ErrorKind.UNSUPPORTED_SAMPLING
    assert "does not heed `logit_bias`" in refused.error
    assert one_reply(config_for(server)).error == ""
