"""Pure parts of the `sglang` engine: what it asks, what it understands, what it writes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from envsdk.base.settings.validation import validated
from envsdk.contracts.failures import ConfigurationError, EngineError
from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.engine import EngineConfig
from envsdk.engines.engine_support.failures import ReplyRefused, Unavailable
from envsdk.engines.sampling import LogitChanges, OutputStructure, SamplingParams
from envsdk.engines.sglang.server_weights import ServerWeights
from envsdk.engines.sglang.settings import COMMON_ARGUMENTS, SET_BY_ENGINE, SGLangSettings, server_arguments
from envsdk.engines.sglang.wire import (
    Delta,
    generate_body,
    read_kv_usage,
    read_message,
    why_unsupported,
)
from envsdk.weights import folders
from envsdk.weights.folders import optional_head, write_folder
from envsdk.weights.lora import Adapter
from envsdk.weights.shapes import shapes_in

STAMP = "me-3"


def body(**settings: Any) -> dict[str, Any]:
    sampling = SamplingParams(max_new_tokens=9, **settings.pop("sampling", {}))
    return generate_body(
        SGLangSettings(**settings), rid="r", input_ids=[1, 2], sampling=sampling, max_new_tokens=9
    )


def test_choices_become_a_regular_expression_that_matches_nothing_else() -> None:
    choices = ("a.c", "a|b", "(x)", "\\", "plain - text")
    structure = OutputStructure(choices=choices)
    regex = body(sampling={"structure": structure})["sampling_params"]["regex"]
    assert all(re.fullmatch(regex, choice) for choice in choices)
    assert not any(re.fullmatch(regex, text) for text in ("abc", "a", "b", "x", "", "a|b|"))
    assert "plain - text" in regex  # what is no special character stays as it is


def test_biases_and_penalties_go_by_sglangs_names() -> None:
    changes = LogitChanges(bias=((5, -2.0),), frequency_penalty=0.5)
    asked = {
        "logit_bias": {"5": -2.0},
        "repetition_penalty": 1.0,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.0,
    }
    assert asked.items() <= body(sampling={"changes": changes})["sampling_params"].items()
    assert "logit_bias" not in body()["sampling_params"]


def test_adapters_need_their_largest_size_said_for_a_server_that_is_to_be_started() -> None:
    with pytest.raises(ConfigurationError, match="lora_target_modules and max_lora_rank"):
        validated(SGLangSettings, {"enable_lora": True}, "strategy_config")
    sized = {"enable_lora": True, "max_lora_rank": 16, "lora_target_modules": ["all"]}
    settings = validated(SGLangSettings, sized | {"structured_output": True}, "strategy_config")
    config = EngineConfig(model=Path("m"), sequence_length=9)
    arguments = " ".join(server_arguments(config, settings, port=1))
    assert "--enable-lora --max-lora-rank 16 --lora-target-modules all" in arguments
    assert "--skip-tokenizer-init" not in arguments
    assert "--constrained-json-disable-any-whitespace" in arguments


def test_an_adapter_of_several_ranks_is_refused(tmp_path: Path) -> None:
    pairs = {str(rank): (torch.zeros(rank, 3), torch.zeros(5, rank)) for rank in (1, 2)}
    weights = ServerWeights(None, tmp_path, SGLangSettings())  # type: ignore[arg-type]
    with pytest.raises(EngineError, match=r"ranks \[1, 2\]"):
        weights._adapter_in_folder(Adapter(pairs), tmp_path)


def message(
    output_ids: Sequence[int], completion_tokens: int, finish: dict[str, Any] | None = None, **meta: Any
) -> str:
    told = {
        "completion_tokens": completion_tokens,
        "finish_reason": finish,
        "weight_version": STAMP,
        "output_token_logprobs": [[-0.5 * token, token, None] for token in output_ids],
        "prompt_tokens": 7,
        "cached_tokens": 5,
    }
    return json.dumps({"output_ids": list(output_ids), "meta_info": told | meta})


def read(data: str, num_known: int = 0, **settings: Any) -> Delta:
    return read_message(data, body=body(**settings), num_known=num_known, stamp=STAMP)


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=40),
    st.lists(st.integers(0, 40), max_size=6),
    st.booleans(),
)
def test_a_reply_is_read_whole_from_messages_of_any_size_new_tokens_or_all(
    tokens: list[int], cuts: list[int], is_incremental: bool
) -> None:
    ends = sorted({min(cut, len(tokens)) for cut in cuts} | {len(tokens)})
    taken: list[int] = []
    logprobs: list[float] = []
    last = Delta((), (), None)
    for start, end in pairwise([0, *ends]):
        finish = {"type": "length", "length": len(tokens)} if end == len(tokens) else None
        data = message(tokens[start if is_incremental else 0 : end], end, finish)
        last = read(data, num_known=len(taken))
        taken += last.token_ids
        logprobs += last.logprobs
    assert taken == tokens
    assert logprobs == [-0.5 * token for token in tokens]
    assert (last.finish_reason, last.num_prefilled) == (FinishReason.LENGTH, 2)


def test_a_token_that_an_abort_repeats_is_not_taken_twice() -> None:
    told = [[-0.5 * token, token, None] for token in (3, 4, 5)]
    data = message([5], 3, {"type": "abort", "message": "Abort"}, output_token_logprobs=told)
    delta = read(data, num_known=3)
    assert (list(delta.token_ids), list(delta.logprobs)) == ([], [])
    assert delta.finish_reason is FinishReason.ABORT


def test_a_request_aborted_before_it_ran_is_of_no_tokens() -> None:
    meta = {"completion_tokens": 0, "weight_version": STAMP, "finish_reason": {"type": "abort"}}
    delta = read(json.dumps({"output_ids": [], "meta_info": meta}))
    assert (list(delta.token_ids), delta.finish_reason) == ([], FinishReason.ABORT)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ("[]", "no message of `/generate`"),
        (json.dumps({"text": "a"}), "without output_ids"),
        (message([4], 3), "tells of 3 tokens, of which 0 came before, and sent 1"),
        (message([4], 1, output_token_logprobs=[]), "output_token_logprobs are not those"),
        (message([4], 1, output_token_logprobs=[[-1.0, 5, None]]), "output_token_logprobs are not those"),
        (message([4], 1, output_token_logprobs=[[None, 4, None]]), "0 log-probabilities for 1"),
        (message([4], 1, {"type": "eaten"}), "finish_reason `eaten`"),
        (message([4], 1, {"type": "stop", "matched": 5}), "stopped at 5"),
        (
            message([4], 1, {"type": "length"}, weight_version="default"),
            "of weights `default`, not of `me-3`",
        ),
        (
            message([4], 1, {"type": "length"}, weight_versions=[{"version": "me-2"}, {"version": STAMP}]),
            "of weights `me-2, me-3`",
        ),
        (json.dumps({"error": {"message": "too\nlong", "code": 400}}), "too long"),
        (message([], 0, {"type": "abort", "message": "no mask", "status_code": 400}), "no mask"),
    ],
)
def test_messages_that_will_not_do_are_refused(data: str, complaint: str) -> None:
    with pytest.raises(ReplyRefused, match=complaint):
        read(data)


@pytest.mark.parametrize(
    "data",
    [
        json.dumps({"error": {"message": "shutting down", "code": 503}}),
        message([], 0, {"type": "abort", "message": "shutting down", "status_code": 503}),
    ],
)
def test_failures_that_may_pass_are_told_apart(data: str) -> None:
    with pytest.raises(Unavailable, match="shutting down"):
        read(data)


def test_logprobs_after_truncation_come_from_the_sampling_mask() -> None:
    sampling = {"top_k": 4, "top_p": 0.9}
    data = message([4, 5], 2, output_token_sampling_logprobs=[-0.25, 1e-7])
    assert list(read(data, sampling=sampling).logprobs) == [-0.25, 0.0]
    assert list(read(data, sampling=sampling, logprobs="untruncated").logprobs) == [-2.0, -2.5]
    assert all(math.isnan(value) for value in read(data, logprobs="none").logprobs)
    with pytest.raises(ReplyRefused, match=r"0\.5\.20"):
        read(message([4], 1), sampling=sampling)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda inner: st.lists(inner)))
def test_kv_usage_is_a_number_whatever_is_told(token_usage: Any) -> None:
    assert isinstance(read_kv_usage({"loads": [{"token_usage": token_usage}, "?"]}), float)
    assert read_kv_usage({"loads": [{"token_usage": 0.25}, {"token_usage": 0.5}]}) == 0.5


def test_a_request_names_all_that_shapes_the_distribution() -> None:
    assert body(sampling={"temperature": 0.5, "stop_token_ids": (60,), "seed": 11}) == {
        "rid": "r",
        "input_ids": [1, 2],
        "sampling_params": {
            "max_new_tokens": 9, "temperature": 0.5, "top_p": 1.0, "top_k": -1, "min_p": 0.0,
            "frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0,
            "stop_token_ids": [60], "stream_interval": 16, "sampling_seed": 11,
        },
        "stream": True,
        "return_logprob": True,
        "return_sampling_mask": False,
    }  # fmt: skip


@given(st.integers(-(2**65), 2**65))
def test_any_seed_fits_the_servers_range(seed: int) -> None:
    assert 0 <= body(sampling={"seed": seed})["sampling_params"]["sampling_seed"] < 2**63


def test_a_seed_that_would_not_be_heeded_is_not_sent() -> None:
    assert "sampling_seed" not in body(deterministic=False, sampling={"seed": 1})["sampling_params"]


def test_the_distribution_is_truncated_unless_every_token_can_be_drawn() -> None:
    assert SamplingParams(max_new_tokens=1, top_k=5).is_truncated
    assert SamplingParams(max_new_tokens=1, top_p=0.9).is_truncated
    assert SamplingParams(max_new_tokens=1, min_p=0.1).is_truncated
    assert not SamplingParams(max_new_tokens=1, temperature=0.5).is_truncated
    assert not SamplingParams(max_new_tokens=1, temperature=0, top_k=5, top_p=0.9, min_p=0.1).is_truncated


def test_top_p_alone_is_refused_where_its_logprobs_cannot_be_had() -> None:
    alone = SamplingParams(max_new_tokens=1, top_p=0.9)
    refusal = why_unsupported(SGLangSettings(), alone)
    assert refusal is not None
    assert "set top_k as well" in refusal.message
    assert not why_unsupported(SGLangSettings(logprobs="untruncated"), alone)
    assert not why_unsupported(SGLangSettings(), SamplingParams(max_new_tokens=1, top_p=0.9, top_k=50))


def test_arguments_of_the_server_are_passed_on() -> None:
    settings = SGLangSettings(
        tp_size=2, disable_radix_cache=True, enable_metrics=False, quantization=None,
        lora_paths=["a", "b"], json_model_override_args={"x": 1},
    )  # fmt: skip
    config = EngineConfig(model=Path("/m"), sequence_length=64, max_running=5, seed=3)
    assert server_arguments(config, settings, port=1234) == [
        "--model-path", "/m", "--host", "127.0.0.1", "--port", "1234", "--skip-tokenizer-init",
        "--max-running-requests", "5", "--random-seed", "3", "--incremental-streaming-output",
        "--enable-deterministic-inference", "--tp-size", "2", "--disable-radix-cache",
        "--lora-paths", "a", "b", "--json-model-override-args", '{"x": 1}',
    ]  # fmt: skip


def test_the_arguments_that_the_engine_sets_are_the_servers() -> None:
    assert not SET_BY_ENGINE.keys() & COMMON_ARGUMENTS
    assert not COMMON_ARGUMENTS & SGLangSettings.model_fields.keys()


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"tp_sise": 2}, "tp_sise: .*did you mean `tp_size`"),
        ({"start_timeout": 2}, "did you mean `start_timeout_s`"),
        ({"random_seed": 2}, "random_seed: .*follows from the run's `seed`"),
        ({"base_url": "http://127.0.0.1:1", "tp_size": 2}, "tp_size.*running already"),
        ({"base_url": "127.0.0.1:1"}, "base_url: must match .*https.*, not '127"),
    ],
)
def test_settings_that_would_have_no_effect_are_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        validated(SGLangSettings, settings, "strategy_config")


def test_what_decides_the_replies_is_told_without_what_does_not() -> None:
    settings = SGLangSettings(python="x", dtype="float32", start_timeout_s=5)
    assert settings.identity() == {"logprobs": "sampling", "deterministic": True, "dtype": "float32"}


def test_weights_of_all_types_are_written_in_shards_that_others_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "SHARD_BYTES", 100)
    draw = torch.Generator().manual_seed(0)
    weights: dict[str, torch.Tensor] = {
        "a": torch.randn(7, 5, generator=draw),
        "b": torch.randn(4, 6, generator=draw).bfloat16().t(),
        "c": torch.arange(3),
        "d": torch.tensor(1.5),
        "e": torch.zeros(0, 3),
        "f": torch.randn(2, generator=draw).to(torch.float8_e4m3fn),
    }
    given = {name: value.numpy() if name in "ac" else value for name, value in weights.items()}
    write_folder(given.items(), tmp_path, _shapes(weights), optional=frozenset())
    files = sorted(tmp_path.glob("*.safetensors"))
    assert [file.name for file in files] == ["model-00000.safetensors", "model-00001.safetensors"]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == weights.keys()
    assert set(index["weight_map"].values()) == {file.name for file in files}
    read: dict[str, torch.Tensor] = {}
    for file in files:
        read |= load_file(file)
    assert read.keys() == weights.keys()
    for name, value in weights.items():
        assert read[name].dtype == value.dtype
        assert torch.equal(read[name].double(), value.double())
    assert shapes_in(tmp_path) == _shapes(weights)


def _shapes(weights: dict[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in weights.items()}


@pytest.mark.parametrize(
    ("weights", "complaint"),
    [
        ({"a": np.zeros((2, 3))}, "`b` is missing; 1 weights"),
        ({"a": np.zeros((3, 2))}, r"`a` has shape \[3, 2\]; the model needs \[2, 3\]"),
        ({"c": np.zeros(1)}, "`c` is not one of the model's"),
        ({"a": np.zeros((2, 3), object)}, "`a` cannot be written"),
    ],
)
def test_weights_that_are_not_the_models_are_named(
    weights: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(EngineError, match=complaint):
        write_folder(weights.items(), tmp_path, {"a": (2, 3), "b": (1,)}, optional=frozenset())


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_tied_head_may_come_or_not(is_tied: bool, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"tie_word_embeddings": is_tied}))
    save_file({"lm_head.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    optional = optional_head(tmp_path, shapes_in(tmp_path))
    assert optional == ({"lm_head.weight"} if is_tied else set())
    assert optional_head(tmp_path, {"x": (1,)}) == {"lm_head.weight"}


def test_a_broken_weights_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x09\0\0\0\0\0\0\0not json!")
    with pytest.raises(EngineError, match=r"model\.safetensors cannot be read"):
        shapes_in(tmp_path)
