"""What a file and its model's config.json decide is refused before anything starts, by `--explain` too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envsdk.base.store.model_files import config_problem
from envsdk.config import load_config
from envsdk.contracts.failures import ConfigurationError
from envsdk.trainers.training_args import TorchStrategyConfig

TRAIN, INFER = "actor_train.strategy_args", "actor_infer.strategy_args"
LORA = f"{TRAIN}.strategy_config.lora"
VLLM = f"{INFER}.strategy_name=vllm"
MEGATRON = f"{TRAIN}.strategy_name=megatron_train"
QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 61,
    "max_position_embeddings": 256,
}
MIXTRAL = {**QWEN3, "model_type": "mixtral", "num_local_experts": 4, "sliding_window": None}
GPT2 = {"model_type": "gpt2", "n_positions": 128, "n_embd": 32, "n_head": 4, "n_layer": 2, "vocab_size": 61}
ONE_RANK = "actor_train.device_mapping=[0]"


@pytest.fixture
def without_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a folder is tried in a process of its own, each time anew; config.json alone decides here."""
    monkeypatch.setattr("envsdk.config.machine_checks.model_problem", config_problem)


@pytest.mark.usefixtures("without_tokenizer")
@pytest.mark.parametrize(
    ("shape", "changes", "words"),
    [
        (
            {"model_type": "olmo2"},
            [MEGATRON],
            f"{TRAIN}.strategy_name (override): megatron_train cannot train this model: model_type is",
        ),
        (
            QWEN3,
            [
                MEGATRON,
                f"{TRAIN}.strategy_config.tensor_model_parallel_size=3",
                "actor_train.device_mapping=[0,1,2]",
            ],
            "tensor_model_parallel_size (override): 3 does not divide the model's num_attention_heads of 4 "
            "and num_key_value_heads of 2",
        ),
        (
            QWEN3,
            [MEGATRON, f"{LORA}={{rank: 4, target_modules: [nobody, q_proj]}}"],
            "lora.target_modules (override): no layer that is adapted is called nobody; of this model down",
        ),
        (
            MIXTRAL,
            [MEGATRON, f"{LORA}={{rank: 4, target_modules: [w1]}}"],
            "no layer that is adapted is called w1; of this model k_proj, o_proj, q_proj, v_proj are",
        ),
        (
            QWEN3,
            [f"{LORA}={{rank: 4, target_modules: [nobody, q_proj]}}"],
            f"{LORA}.target_modules (override): no layer that is adapted is called nobody; of this",
        ),
        (
            QWEN3,
            [f"{LORA}={{rank: 4, target_modules: []}}"],
            f"{LORA}.target_modules (override): must be 'all-linear' or must have at least 1 entry, not []",
        ),
        (
            QWEN3,
            ["actor_train.model_args.attn_implementation=flsh"],
            "actor_train.model_args.attn_implementation (override): must be auto, sdpa, flash_attention_2",
        ),
        (
            QWEN3,
            ["actor_train.model_args.device=gpu"],
            "actor_train.model_args.device (override): must match ^(cpu|cuda|",
        ),
        ({**QWEN3, "hidden_size": "64"}, [], "hidden_size must be a whole number, not '64'"),
        ({**QWEN3, "hidden_size": "64"}, [MEGATRON], "hidden_size must be a whole number, not '64'"),
        ({**QWEN3, "rms_norm_eps": "x"}, [MEGATRON], "Field 'rms_norm_eps' expected float, got str"),
        (
            QWEN3,
            [VLLM, f"{INFER}.strategy_config.tensor_parallel_size=3"],
            f"{INFER}.strategy_config.tensor_parallel_size (override): vLLM cannot share out the model's 4 "
            "attention heads over 3 devices",
        ),
        (
            {**QWEN3, "num_attention_heads": 12, "num_key_value_heads": 4},
            [VLLM, "actor_infer.model_args.tensor_parallel_size=3"],
            "actor_infer.model_args.tensor_parallel_size (override): vLLM cannot share out the model's 4 key",
        ),
        (
            {**QWEN3, "intermediate_size": 50},
            [VLLM, f"{INFER}.strategy_config.tensor_parallel_size=4"],
            "cannot share out the model's intermediate_size of 50 over 4 devices",
        ),
        (
            {**QWEN3, "num_attention_heads": 6, "num_key_value_heads": 3},
            [VLLM, f"{INFER}.strategy_config.tensor_parallel_size=3"],
            "cannot share out the model's vocabulary of 64 with padding over 3 devices",
        ),
        (
            QWEN3,
            [VLLM, f"{LORA}={{rank: 17}}", f"{INFER}.strategy_config.enable_lora=true"],
            f"{INFER}.strategy_config.enable_lora (override): the adapter has rank 17, and vLLM takes up to",
        ),
        (
            QWEN3,
            [VLLM, f"{INFER}.strategy_config.max_lora_rank=24"],
            f"{INFER}.strategy_config.max_lora_rank (override): must be 1, 8, 16, 32, 64, 128, 256, 320 "
            "or 512, not 24",
        ),
        (GPT2, [], "sequence_length (examples/agentic_async.yaml:20): 512, but the model in"),
        (GPT2, [], "was made for at most 128 positions (n_positions); lower it"),
        (QWEN3, [VLLM, "sequence_length=300"], "at most 256 positions (max_position_embeddings)"),
        (
            {**QWEN3, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            [VLLM, "sequence_length=300"],
            "at most 256 positions (max_position_embeddings)",
        ),
        (
            {**QWEN3, "rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
            [VLLM, "sequence_length=600"],
            "at most 512 positions (max_position_embeddings)",
        ),
        (
            QWEN3,
            [f"{INFER}.strategy_name=sglang", "sequence_length=300"],
            "at most 256 positions (max_position_embeddings)",
        ),
        (
            GPT2,
            [f"{LORA}={{rank: 4}}", "sequence_length=128"],
            "this model has no linear layers for an adapter: train without lora",
        ),
        (
            {**QWEN3, "tie_word_embeddings": True},
            [f"{LORA}={{rank: 4, target_modules: [lm_head]}}"],
            "lm_head computes with the embeddings' weight",
        ),
        ({"model_type": "t5"}, [], "transformers runs no decoder of text alone for model_type t5"),
        (
            {**QWEN3, "model_type": "llama4_text"},
            [f"{TRAIN}.strategy_config.share_prefixes=true"],
            "share_prefixes (override): not known to be exact for model type llama4_text",
        ),
        (QWEN3, ["sequence_length=512"], "was made for at most 256 positions"),
        (
            QWEN3,
            ["sequence_length=128", f"{INFER}.strategy_config.kv_slots=2"],
            "kv_slots (override): 2 are too few for the 128 requests that run together",
        ),
        (
            QWEN3,
            [VLLM, f"{INFER}.strategy_config.max_model_len=64", "sequence_length=128"],
            "max_model_len (override): 64, but sequence_length is 128",
        ),
    ],
)
def test_what_the_start_refuses_is_refused_by_explain_too(
    shape: dict[str, Any], changes: list[str], words: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(shape))
    for to_explain in (True, False):
        with pytest.raises(ConfigurationError) as refused:
            load_config("agentic_sync.yaml", [f"pretrain={tmp_path}", *changes], to_explain=to_explain)
        assert words in " ".join(str(refused.value).split())
        assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    "changes",
    [
        [],
        [MEGATRON, f"{LORA}={{rank: 4, target_modules: [q_proj, mlp.up_proj]}}"],
        [f"{LORA}={{rank: 4, target_modules: [q_proj, mlp.up_proj]}}"],
        [f"{LORA}={{rank: 4}}"],
    ],
)
def test_what_the_start_takes_is_explained(changes: list[str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3))
    found = load_config(
        "agentic_sync.yaml", [f"pretrain={tmp_path}", "sequence_length=128", *changes], to_explain=True
    )
    assert found.config.pretrain == str(tmp_path)


def test_a_teacher_that_its_trainer_or_engine_cannot_run_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    with pytest.raises(ConfigurationError, match=r"teachers.large.pretrain.*no decoder of text alone"):
        load_config("agentic_sync.yaml", [f"teachers.large.pretrain={tmp_path}"], to_explain=True)


def test_an_opponents_engine_is_asked_too(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**QWEN3, "max_position_embeddings": 8}))
    plays = [f"opponents.past.pretrain={tmp_path}", "custom_envs.SelfPlay.players=[policy, past]"]
    with pytest.raises(ConfigurationError, match=r"sequence_length .*at most 8 positions"):
        load_config("agentic_tic_tac_toe.yaml", plays, to_explain=True)


def test_a_trainer_that_needs_gpus_is_a_note_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def notes(*changes: str) -> str:
        return " ".join(load_config("agentic_megatron_async.yaml", changes, to_explain=True).machine_notes)

    monkeypatch.setattr("envsdk.config.start_checks.has_gpus", lambda: False)
    needed = "megatron_train needs a CUDA GPU for each rank, and this machine has none"
    assert needed in notes()
    assert needed not in notes("ray.address=auto")
    monkeypatch.setattr("envsdk.config.start_checks.has_gpus", lambda: True)
    assert needed not in notes()


def test_families_that_trainers_are_known_to_take_need_no_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envsdk.base.store.language_model.language_config", None)
    (tmp_path / "config.json").write_text(json.dumps(QWEN3))
    assert list(TorchStrategyConfig().model_problems(tmp_path)) == []
