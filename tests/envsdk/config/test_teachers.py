"""Teachers of a run's file, and the support of its sampling distribution."""

from __future__ import annotations

from typing import Any

import pytest

from envsdk.config.loading import load_config
from envsdk.config.sampling_support import engine_settings, keeps_support, support_problem
from envsdk.config.section_checks import teachers_by_tag
from envsdk.contracts.failures import ConfigurationError

TRUNCATED = "actor_infer.generating_args={max_new_tokens: 4, top_p: 0.99, top_k: 100}"


def loaded(*overrides: str) -> Any:
    return load_config("agentic_sync.yaml", overrides, to_explain=True).config


def test_a_teacher_without_tags_has_those_of_no_other() -> None:
    one = loaded("teachers={all: {pretrain: a}}")
    assert teachers_by_tag(one) == {"FrozenLake": "all", "SimpleSokoban": "all"}
    two = loaded("teachers={all: {pretrain: a}, lake: {pretrain: b, tags: [FrozenLake]}}")
    assert teachers_by_tag(two) == {"FrozenLake": "lake", "SimpleSokoban": "all"}
    assert teachers_by_tag(loaded("teachers={lake: {pretrain: b, tags: [FrozenLake]}}")) == {
        "FrozenLake": "lake"
    }
    assert teachers_by_tag(loaded()) == {}


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["teachers={a: {pretrain: x, tags: [Lake]}}"], "unknown tag `Lake`; tags of train_env_manager"),
        (["teachers={a: {pretrain: x}, b: {pretrain: y}}"], "`a` is the teacher without `tags` already"),
        (["teachers={a: {pretrain: x, strategy_args: {strategy_name: mock}}}"], "does not score prompts"),
        (["teachers={a: {pretrain: x, strategy_args: {strategy_name: embeded}}}"], "unknown engine"),
        (
            ["teachers={a: {pretrain: x, device_mapping: [0, 1], strategy_args: {strategy_name: vllm}}}"],
            "start a server for a larger one",
        ),
        (["teachers={a: {pretrain: x}}", "distill_as=loss", "distill_top_k=4"], "take an engine for `a`"),
        (["distill_as=loss"], "`loss` learns from `teachers`, and there are none"),
        (["teachers={a: {pretrain: x, tags: []}}"], "[] is no tag, so this teacher would score nothing"),
        (["distill_top_k=8"], "set distill_as to `loss`"),
        (
            ["teachers={a: {pretrain: x}}", "distill_as=loss", "distill_top_k=8",
             "actor_train.strategy_args.strategy_name=megatron_train"],
            "`megatron_train` computes the sampled tokens alone",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_what_to_do(overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        loaded(*overrides)
    assert words in " ".join(str(error.value).split())


@pytest.mark.parametrize(
    ("engine", "sampling", "why"),
    [
        ("embedded", "top_p: 0.9", ""),
        ("embedded", "min_p: 0.1", ""),
        ("embedded", "temperature: 0.5", None),
        ("sglang", "top_p: 0.9, top_k: 20", ""),
        ("sglang", "top_p: 0.9", "only with a top_k"),
        ("vllm", "top_k: 20", ""),
        ("vllm", "top_p: 0.9", "have a top_k"),
    ],
)
def test_an_engine_is_asked_for_the_support_where_it_tells_it(
    engine: str, sampling: str, why: str | None
) -> None:
    config = loaded(
        f"actor_infer.strategy_args.strategy_name={engine}",
        f"actor_infer.generating_args={{max_new_tokens: 4, {sampling}}}",
    )
    found = support_problem(config)
    assert found == why if not why else why in (found or "")
    assert keeps_support(config) == (why == "")
    asked = engine_settings(config).get("return_sampling_mask")
    assert asked == (True if engine == "vllm" and why == "" else None)


def test_a_greedy_evaluation_keeps_vllm_from_telling_and_so_does_the_user() -> None:
    vllm = "actor_infer.strategy_args.strategy_name=vllm"
    greedy = loaded(vllm, TRUNCATED, "val_env_manager.generating_args.temperature=0.0")
    assert "evaluations included" in (support_problem(greedy) or "")
    off = loaded(vllm, TRUNCATED, "actor_infer.strategy_args.strategy_config.return_sampling_mask=false")
    assert support_problem(off) == "return_sampling_mask is false"
    assert engine_settings(off) == {"return_sampling_mask": False}
