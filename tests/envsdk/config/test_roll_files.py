"""Files in ROLL's keys load, and say what each key became."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import yaml

from envsdk.algorithms.advantage_sample import AdvantageSample
from envsdk.algorithms.batches import token_advantages
from envsdk.config import RunConfig, explain, load_config
from envsdk.config.advantage_checks import algorithm_notes
from envsdk.config.device_sharing import device_groups
from envsdk.config.loading import LoadedConfig, shipped_tags
from envsdk.config.roll.dialect import ROLL
from envsdk.contracts.failures import ConfigurationError

PAGE = Path(__file__).parents[3] / "docs" / "coming-from-roll.md"
REFERENCE = sorted((Path(__file__).parent / "reference").glob("roll-*.yaml"))

SHARED = """
action_pattern: <answer>(.*?)</answer>
think_pattern: <think>(.*?)</think>\\s*<answer>(.*?)</answer>
turns: 10
custom_env:
  Lake:
    env_type: frozen_lake
    max_steps: ${turns}
    max_tokens_per_step: 64
    env_manager_cls: roll.pipeline.agentic.env_manager.traj_env_manager.TrajEnvManager
    use_thread_lock: true
    agent_template: "At {current_step}: {current_observation}{history} as \\\\boxed{{answer}}"
    env_config: {action_pattern: "${think_pattern}", max_steps: "${turns}", format_penalty: -0.01}
  Boxes:
    env_type: sokoban
    max_steps: ${turns}
    env_config:
      {action_pattern: "${action_pattern}", max_steps: "${turns}", dim_room: [10, 10], num_boxes: 2,
       search_depth: 10, grid_lookup: {0: W, 3: C}, grid_vocab: {W: wall}, format_penalty: -0.15}
"""
AGENTIC = """
defaults: [../config/envs@_here_]
hydra: {output_subdir: null}
tracker_kwargs: {api_key: "${oc.env:A_KEY_THAT_NOBODY_SET}"}
track_with: wandb
rollout_batch_size: 16
val_batch_size: 4
sequence_length: 4096
max_steps: 100
adv_estimator: grpo
reward_normalization: {grouping: traj_group_id, method: mean_std}
pretrain: Qwen/Qwen2.5-0.5B-Instruct
reward_pretrain: Qwen/Qwen2.5-0.5B-Instruct
turns: 12
actor_train:
  model_args: {flash_attn: fa2, disable_gradient_checkpointing: false, dtype: bf16, model_type: ~}
  training_args: {learning_rate: 1.0e-6, per_device_train_batch_size: 1, gradient_accumulation_steps: 2,
                  lr_scheduler_type: cosine, warmup_steps: 1}
  data_args: {template: qwen2_5}
  strategy_args: {strategy_name: megatron_train, strategy_config: {tensor_model_parallel_size: 1, bf16: true}}
  device_mapping: list(range(0,4))
  infer_batch_size: 1
actor_infer:
  model_args: {dtype: fp16}
  generating_args: {max_new_tokens: 32, top_k: -1, num_beams: 1, num_return_sequences: 1}
  strategy_args: {strategy_name: vllm, strategy_config: {tensor_parallel_size: 2, max_model_len: 100}}
  device_mapping: list([4,5,6,7])
  infer_batch_size: 1
reference:
  strategy_args: {strategy_name: hf_infer, strategy_config: ~}
train_env_manager: {num_env_groups: 4, group_size: 4, tags: [Lake], format_penalty: -0.1}
val_env_manager: {num_env_groups: 4, group_size: 1, tags: [Boxes, SimpleSokoban]}
custom_envs: {Lake: "${custom_env.Lake}", Boxes: "${custom_env.Boxes}"}
"""
RLVR = """
rollout_batch_size: 64
prompt_length: 2048
response_length: 4096
num_return_sequences_in_group: 8
max_steps: 500
adv_estimator: reinforce
norm_mean_type: batch
add_token_level_kl: false
init_kl_coef: 0.2
use_kl_loss: true
kl_loss_coef: 0.001
dual_clip_loss: true
pretrain: Qwen/Qwen2.5-7B
reward_pretrain: Qwen/Qwen2.5-7B
actor_train: {data_args: {template: qwen2_5, file_name: [absent.jsonl], interleave_probs: "1.0"}}
actor_infer: {generating_args: {num_return_sequences: "${num_return_sequences_in_group}"}}
rewards:
  math_rule:
    worker_cls: roll.pipeline.rlvr.rewards.math_rule_reward_worker.MathRuleRewardWorker
    tag_included: [deepmath_103k]
    model_args: {model_name_or_path: "${reward_pretrain}"}
  llm_judge:
    worker_cls: roll.pipeline.rlvr.rewards.llm_judge_reward_worker.LLMJudgeRewardWorker
    judge_model_type: inference
    model_args: {model_name_or_path: a/judge}
    generating_args: {max_new_tokens: 100, top_k: 50}
"""


def agentic(tmp_path: Path, *overrides: str, more: str = "") -> LoadedConfig:
    (tmp_path / "config").mkdir(exist_ok=True)
    (tmp_path / "config" / "envs.yaml").write_text(SHARED)
    (tmp_path / "runs").mkdir(exist_ok=True)
    path = tmp_path / "runs" / "a lake.yaml"
    path.write_text(AGENTIC + more)
    return load_config(path, overrides, to_explain=True)


def rlvr(tmp_path: Path, *overrides: str, to_explain: bool = True) -> LoadedConfig:
    path = tmp_path / "rlvr.yaml"
    path.write_text(RLVR)
    return load_config(path, overrides, to_explain=to_explain)


def test_an_agentic_file_composes_and_its_keys_become_ours(tmp_path: Path) -> None:
    loaded = agentic(tmp_path)
    config = loaded.config
    lake, boxes = config.custom_envs["Lake"], config.custom_envs["Boxes"]
    assert config.exp_name == "a-lake"
    assert lake.env_type == "envsdk/FrozenLake-v1"
    assert lake.env_config == {
        "is_slippery": True, "require_think": True, "max_steps": 12, "invalid_penalty": 0.01
    }  # fmt: skip
    assert lake.agent_template == "At {turn_idx}: {observation} as \\boxed{answer}"
    assert boxes.env_config["max_steps"] == 16, "two boxes take at least as many"
    assert boxes.env_config["symbols"] == {"wall": "W", "box_on_target": "C"}
    assert boxes.env_config["success_reward"] == 10.0
    assert boxes.max_steps == 12
    assert config.ppo_mini_batch_size == 8
    assert config.actor_train.training_args["max_steps"] == 200
    assert config.actor_infer.num_engines == 2
    assert config.actor_infer.infer_batch_size == 128
    assert config.actor_infer.generating_args.top_k == 0
    assert config.reference.strategy_args.strategy_name == "fsdp2_train"
    assert (config.adv_estimator, config.loss_agg_mode) == ("grpo", "seq-mean-token-mean")


@pytest.mark.parametrize(
    ("engine", "num_gpus_per_worker", "expected", "num_engines"),
    [
        ("strategy_name: sglang", 2, {"tp_size": 2}, 2),
        ("strategy_name: sglang, strategy_config: {tensor_parallel_size: 4}", 2, {"tp_size": 4}, 1),
        ("strategy_name: sglang", 1, {}, 4),
        ("strategy_name: vllm", 2, {}, 4),
    ],
)
def test_an_engine_shards_the_model_over_the_devices_that_it_has_in_roll(
    engine: str, num_gpus_per_worker: int, expected: Mapping[str, int], num_engines: int, tmp_path: Path
) -> None:
    path = tmp_path / "rlvr.yaml"
    keys = f"strategy_args: {{{engine}}}, num_gpus_per_worker: {num_gpus_per_worker}"
    keys += ", device_mapping: 'list(range(0,4))'"
    path.write_text(RLVR.replace("actor_infer: {", f"actor_infer: {{{keys}, "))
    infer = load_config(path, to_explain=True).config.actor_infer
    assert (infer.settings, infer.num_engines) == (expected, num_engines)


def test_the_explanation_names_the_keys_that_were_written(tmp_path: Path) -> None:
    loaded = agentic(tmp_path)
    text = explain(loaded)
    assert "envsdk/config/tags.yaml" in loaded.provenance["custom_envs.SimpleSokoban.env_type"]
    where = loaded.provenance["ppo_mini_batch_size"]
    assert where.endswith(" as actor_train.training_args.gradient_accumulation_steps")
    assert {"hydra", "tracker_kwargs", "actor_infer.infer_batch_size", "custom_env", "turns"} <= set(
        loaded.without_effect
    )
    assert "Keys without effect" in text
    assert "pretrain: Qwen/Qwen2.5-0.5B-Instruct is not on this machine" in " ".join(text.split())


def test_a_file_of_prompts_becomes_domains_with_rewards(tmp_path: Path) -> None:
    config = rlvr(tmp_path).config
    assert config.rewards["math_rule"].worker_cls == "math"
    judge = config.rewards["llm_judge"]
    assert judge.worker_cls == "judge"
    assert judge.settings["model"] == "a/judge"
    assert judge.settings["extra_body"] == {"top_k": 50}
    assert (config.init_kl_coef, config.kl_loss_coef, config.dual_clip) == (0.0, 0.001, 1.4)
    assert (config.adv_estimator, config.reward_normalize_mean) == ("reinforce", "tag")


def test_training_needs_the_judges_server_and_the_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as error:
        rlvr(tmp_path, to_explain=False)
    assert "rewards.llm_judge.judge_api_url=http://HOST:8001/v1" in str(error.value)
    assert "pretrain" in str(error.value)
    served = rlvr(tmp_path, "rewards.llm_judge.judge_api_url=http://h:1/v1")
    assert served.config.rewards["llm_judge"].settings["base_url"] == "http://h:1/v1"


@pytest.mark.parametrize(
    ("more", "key", "words"),
    [
        ("rollout_batch_sise: 3", "rollout_batch_sise", "rollout_batch_size"),
        ("actor_train.training_args.lr: 1", "actor_train.training_args.lr", "learning_rate"),
        ("actor_infer.generating_args.num_beams: 2", "actor_infer.generating_args.num_beams", "beam search"),
        ("actor_train.strategy_args.strategy_name: deepspeed_train", "strategy_name", "fsdp2_train"),
        ("sft_train: {x: 1}", "sft_train", "envsdk sft"),
        ("chosen_key: chosen", "chosen_key", "DPO"),
        ("student: {x: 1}", "student", "writes them itself"),
        ("pretrain: Qwen/Qwen2.5-VL-7B-Instruct", "pretrain", "images"),
        ("actor_train.data_args.video_fps: 2", "video_fps", "video"),
        ("whiten_rewards: true", "whiten_rewards", "reward_normalize_mean"),
        ("actor_infer.generating_args.repetition_penalty: 1.1", "repetition_penalty", "set it to 1.0"),
        ("val_batch_size: -1", "val_batch_size", "say how many"),
        ("val_sequence_length: 99", "val_sequence_length", "max_new_tokens"),
        ("actor_train.router_replay.mode: R2", "router_replay", "set mode: R3"),
        ("actor_train.mtp_training_mode: joint", "mtp_training_mode", "disabled"),
        ("actor_train.model_update_frequency: 2", "model_update_frequency", "sync_interval"),
        ("actor_train.model_args.lora_dropout: 0.1", "lora_dropout", "set 0"),
        ("actor_train.model_args.additional_target: x", "additional_target", "lora_rank"),
        ("use_opd: true", "use_opd", "needs a `teacher`"),
        ("is_pure_opd: true", "is_pure_opd", "needs a `teacher`"),
        ("user_defined_rollout_loop_cls: a.B", "user_defined_rollout_loop_cls", "group_filters"),
        ("train_env_manager.llm_proxy.proxy_type: openai", "proxy_type", "envsdk collect"),
    ],
)
def test_what_is_refused_says_what_to_do(tmp_path: Path, more: str, key: str, words: str) -> None:
    name, _, value = more.partition(": ")
    with pytest.raises(ConfigurationError) as error:
        agentic(tmp_path, f"{name}={value}")
    assert key in str(error.value)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("trainer", "dtype", "found"),
    [
        ("fsdp2_train", "bf16", "flash_attention_2"),
        ("fsdp2_train", "fp32", "auto"),
        ("megatron_train", "bf16", None),
    ],
)
def test_the_attention_of_a_file_is_that_of_the_trainer_that_can_choose(
    trainer: str, dtype: str, found: str | None, tmp_path: Path
) -> None:
    text = AGENTIC.replace("flash_attn: fa2", "attn_implementation: fa2").replace(
        "dtype: bf16", f"dtype: {dtype}"
    )
    if trainer == "fsdp2_train":
        megatron = "megatron_train, strategy_config: {tensor_model_parallel_size: 1, bf16: true}"
        assert megatron in text
        text = text.replace(megatron, trainer)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "envs.yaml").write_text(SHARED)
    (tmp_path / "runs").mkdir()
    path = tmp_path / "runs" / "lake.yaml"
    for name in ("attn_implementation", "flash_attn"):
        path.write_text(text.replace("attn_implementation", name))
        loaded = load_config(path, to_explain=True)
        assert loaded.config.actor_train.settings.get("attn_implementation") == found
        assert (f"actor_train.model_args.{name}" in loaded.without_effect) == (found is None)


@pytest.mark.parametrize(
    "key",
    [
        "otlp_output_dir: x",
        "transfer_backend.backend_name: x",
        "router_args.router_name: SglangRouter",
        "user_defined_rollout_loop_cls: roll.x.Y",
        "opd_kl_coef: 1.0",
        "val_sequence_length: 4096",
        "val_response_length: 10",
        "actor_train.model_update_frequency: 1",
        "actor_train.mtp_training_mode: disabled",
        "actor_train.model_args.model_type: causal_lm",
        "actor_infer.generating_args.repetition_penalty: 1.0",
        "actor_train.data_args.template: qwen2_5",
    ],
)
def test_what_changes_nothing_is_said(key: str, tmp_path: Path) -> None:
    name, _, value = key.partition(": ")
    found = agentic(tmp_path, f"{name}={value}").without_effect
    assert any(name.startswith(each) for each in found)


@pytest.mark.parametrize("section", ["actor_train", "validation"])
def test_a_section_without_effect_for_want_of_a_misspelt_key_is_refused(section: str, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"{section}.*data_args\.file_nam.*did you mean `file_name`"
    ):
        agentic(tmp_path, f"{section}.data_args.file_nam=absent.jsonl")


def test_environments_under_a_misspelt_key_are_not_replaced_by_others(tmp_path: Path) -> None:
    path = tmp_path / "lake.yaml"
    envs = "  Lake: {env_type: frozen_lake, max_steps: 8}\n"
    path.write_text(f"exp_name: lake\nnum_gpus_per_node: 1\ncustom_env:\n{envs}")
    with pytest.raises(ConfigurationError, match=r"custom_env .*did you mean custom_envs"):
        load_config(path, to_explain=True)


def test_no_warmup_steps_yield_to_a_ratio(tmp_path: Path) -> None:
    keys = ("actor_train.training_args.warmup_steps=0", "actor_train.training_args.warmup_ratio=0.1")
    assert agentic(tmp_path, *keys).config.actor_train.training_args["warmup_steps"] == 20


def test_a_value_given_twice_in_both_names_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="means the same as trackers"):
        agentic(tmp_path, more="trackers: [jsonl]\n")


def test_an_override_in_our_names_replaces_what_the_file_says_in_theirs(tmp_path: Path) -> None:
    loaded = agentic(tmp_path, "trackers=[jsonl]")
    assert loaded.config.trackers == ["jsonl"]
    assert loaded.provenance["trackers"] == "override"


def test_the_preset_keeps_tags_and_rewards_and_yields_to_overrides(tmp_path: Path) -> None:
    path = tmp_path / "rlvr.yaml"
    path.write_text(RLVR)
    given = ["rewards.llm_judge.judge_api_url=http://h:1/v1", "max_steps=7"]
    config = load_config(path, given, preset="tiny").config
    assert set(config.rewards) == {"math_rule", "llm_judge"}
    assert (config.pretrain, config.max_steps) == ("embedded_default", 7)
    assert config.actor_infer.strategy_args.strategy_name == "embedded"
    assert config.rollout_batch_size <= 16
    with pytest.raises(ConfigurationError, match="tiny"):
        load_config(path, preset="tinny")


GROUPS = "reward_normalization: {grouping: traj_group_id, method: mean_std}"


def test_r3_replays_the_experts_that_the_engine_chose(tmp_path: Path) -> None:
    modes = [f"{role}.router_replay.mode=R3" for role in ("actor_train", "actor_infer")]
    modes.append("actor_infer.strategy_args.strategy_config.enable_return_routed_experts=true")
    assert agentic(tmp_path, *modes).config.algorithm.train_infer_correction.routing_replay


@pytest.mark.parametrize(
    ("keys", "granularity", "modules"),
    [
        (["recompute_granularity=selective", "recompute_modules='moe,layernorm'"], "selective", ["moe"]),
        (["recompute_granularity=selective"], "selective", None),
        (["moe_layer_recompute=true"], "selective", ["core_attn", "moe"]),
        (["recompute_granularity=full", "recompute_modules=moe"], "full", None),
        (["recompute_modules=moe"], None, None),
        (["moe_layer_recompute=false"], None, None),
    ],
)
def test_parts_of_layers_are_recomputed_as_roll_says(
    keys: list[str], granularity: str | None, modules: list[str] | None, tmp_path: Path
) -> None:
    section = "actor_train.strategy_args.strategy_config"
    settings = agentic(tmp_path, *(f"{section}.{key}" for key in keys)).config.actor_train.settings
    assert settings.get("recompute_granularity") == granularity
    assert settings.get("recompute_modules") == modules


def agentic_with(tmp_path: Path, *keys: str) -> RunConfig:
    """The agentic file with other rewards and advantages."""
    data = yaml.safe_load(AGENTIC)
    for name, value in ((name, value) for key in keys for name, value in yaml.safe_load(key).items()):
        data[name] = {**data[name], **value} if name == "actor_train" else value
    (tmp_path / "config").mkdir(exist_ok=True)
    (tmp_path / "config" / "envs.yaml").write_text(SHARED)
    (tmp_path / "runs").mkdir(exist_ok=True)
    path = tmp_path / "runs" / "lake.yaml"
    path.write_text(yaml.safe_dump(data))
    return load_config(path, to_explain=True).config


def paid(config: RunConfig, *rewards: list[float]) -> list[list[float]]:
    """Advantages of the tokens of one group, a token for each turn, with another one in between."""
    samples = [
        AdvantageSample(
            group_id=0,
            response_mask=np.array([1, 0] * len(turns), np.int8),
            turn_rewards=turns,
            turn_spans=[(2 * turn, 2 * turn + 1) for turn in range(len(turns))],
        )
        for turns in rewards
    ]
    return [
        each.advantages[::2].astype(float).round(3).tolist()
        for each in token_advantages(config.algorithm, samples)
    ]


def test_rewards_are_normalized_before_they_are_clipped(tmp_path: Path) -> None:
    found = paid(agentic_with(tmp_path, "reward_clip: 10"), [60], [40], [80], [20])
    assert found == [[0.387], [-0.387], [1.162], [-1.162]]
    assert paid(agentic_with(tmp_path, "reward_clip: 1"), [60], [40], [80], [20]) == [
        [0.387], [-0.387], [1.0], [-1.0]
    ]  # fmt: skip
    mean = "reward_normalization: {grouping: traj_group_id, method: mean}"
    assert paid(agentic_with(tmp_path, "reward_clip: 10", mean), [60], [40], [80], [20]) == [
        [10], [-10], [10], [-10]
    ]  # fmt: skip


def test_a_clip_that_no_reward_can_reach_is_without_effect(tmp_path: Path) -> None:
    loaded = rlvr(tmp_path, "adv_estimator=grpo", "reward_clip=10")
    assert (loaded.config.adv_estimator, loaded.config.reward_clip) == ("grpo", None)
    assert "reward_clip" in loaded.without_effect


def test_the_sum_of_a_trajectory_is_paid_on_all_its_tokens(tmp_path: Path) -> None:
    nothing = "reward_normalization: {grouping: tags, method: identity}"
    assert paid(agentic_with(tmp_path, nothing), [1.0, 0.0, 2.0], [0.0]) == [[3, 3, 3], [0]]


def test_steps_are_normalized_and_clipped_as_returns(tmp_path: Path) -> None:
    keys = ("adv_estimator: step_reinforce", "step_reward_gamma: 0.5")
    mean = "reward_normalization: {grouping: traj_group_id, method: mean}"
    config = agentic_with(tmp_path, *keys, mean, "reward_clip: 1.5")
    # Returns 2, 4 and 0: their mean is 2.
    assert paid(config, [0.0, 4.0], [0.0]) == [[0, 1.5], [-1.5]]


@pytest.mark.parametrize(
    ("section", "mean", "std"),
    [
        ("{grouping: tags, norm_mean_type: group, norm_std_type: group}", "tag", "tag"),
        ("{grouping: batch, norm_mean_type: group}", "batch", "none"),
        ("{grouping: tags, norm_mean_type: batch, norm_std_type: group}", "batch", "tag"),
        ("{grouping: traj_group_id, norm_mean_type: group, norm_std_type: batch}", "group", "batch"),
        ("{grouping: tags, method: mean_std, norm_std_type: batch}", "tag", "batch"),
        ("{method: mean_std}", "batch", "batch"),
    ],
)
def test_a_group_is_what_grouping_names(section: str, mean: str, std: str, tmp_path: Path) -> None:
    config = agentic_with(tmp_path, f"reward_normalization: {section}")
    assert (config.reward_normalize_mean, config.reward_normalize_std) == (mean, std)


@pytest.mark.parametrize(("method", "divides"), [("mean", False), ("mean_std", True)])
def test_gigpo_divides_by_deviations_where_the_file_does(method: str, divides: bool, tmp_path: Path) -> None:
    section = f"reward_normalization: {{grouping: traj_group_id, method: {method}}}"
    config = agentic_with(tmp_path, "adv_estimator: gigpo", section, "reward_clip: 20", "advantage_clip: 0.2")
    assert (config.adv_estimator, config.grpo_normalize_std, config.advantage_clip) == ("gigpo", divides, 0.2)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["reward_normalization: {grouping: traj_group_id, methodd: mean}"], "did you mean `method`"),
        (["reward_normalization: {grouping: turn}"], "traj_group_id, tags or batch"),
        (
            ["reward_normalization: {method: meanstd}"],
            "meanstd is not there: one of identity",
        ),
        (["reward_normalization: {norm_std_type: all}"], "batch, group or null"),
        (["adv_estimator: gigpo", "reward_normalization: {method: mean}"], "compares within the group"),
        (["adv_estimator: gigpo", GROUPS, "reward_clip: 1", "whiten_advantages: true"], "whiten_advantages"),
        (["env_monitor: {enabel: true}"], "did you mean `enable`"),
    ],
)
def test_what_cannot_be_compared_says_what_can(keys: list[str], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=words):
        agentic_with(tmp_path, *keys)


def test_no_penalty_is_paid_unless_the_file_adds_it_to_tokens(tmp_path: Path) -> None:
    assert agentic_with(tmp_path, "init_kl_coef: 0.1").init_kl_coef == 0
    config = agentic_with(tmp_path, "init_kl_coef: 0.1", "add_token_level_kl: true")
    assert (config.init_kl_coef, config.adv_estimator) == (0.1, "reinforce")


def test_the_explanation_says_that_grpo_without_normalization_compares_nothing(tmp_path: Path) -> None:
    seed = next(path for path in REFERENCE if "frozenlake" in path.name)
    loaded = load_config(seed, to_explain=True)
    assert (loaded.config.adv_estimator, loaded.config.reinforce_baseline) == ("reinforce", "none")
    assert "REINFORCE without a baseline" in loaded.remarks["adv_estimator"][1]
    assert "reward_normalization: {grouping: traj_group_id, method: mean_std}" in explain(loaded)
    assert "REINFORCE" not in explain(agentic(tmp_path))


SAMPLING = (
    "{max_new_tokens: 16, temperature: 0.2, top_p: 1, top_k: -1, num_beams: 1, num_return_sequences: 1}"
)


def test_evaluations_sample_as_their_manager_says_where_the_engines_say_nothing(tmp_path: Path) -> None:
    data = yaml.safe_load(AGENTIC)
    own = yaml.safe_load(SAMPLING)
    train = {**data["train_env_manager"], "generating_args": own | {"temperature": 0.9}}
    val = {**data["val_env_manager"], "generating_args": own}
    managers = yaml.safe_dump({"train_env_manager": train, "val_env_manager": val})
    config = agentic_with(tmp_path, managers)
    assert config.val_generating_args == config.actor_infer.generating_args, "the engines' replace both"
    infer = {name: value for name, value in data["actor_infer"].items() if name != "generating_args"}
    config = agentic_with(tmp_path, managers, yaml.safe_dump({"actor_infer": infer}))
    assert (config.val_generating_args.temperature, config.val_generating_args.top_k) == (0.2, 0)
    assert config.actor_infer.generating_args.temperature == 0.9


def test_what_a_file_leaves_out_of_its_sampling_is_rolls(tmp_path: Path) -> None:
    sampling = agentic(tmp_path).config.actor_infer.generating_args
    assert (sampling.temperature, sampling.top_p) == (0.95, 0.7)


@pytest.mark.parametrize("place", ["{}", "actor_train: {{pg_variant: {variant}, {}}}"], ids=["top", "role"])
@pytest.mark.parametrize(
    ("variant", "key", "value", "ours"),
    [
        ("topr", "topr_positive_weight", 0.5, "positive_weight"),
        ("topr", "topr_negative_weight", 2.0, "negative_weight"),
        ("cispo", "cispo_use_unified_mask", True, "masks_clipped"),
        ("tis", "tis_lower_bound", 0.25, "lower_bound"),
        ("tis", "tis_upper_bound", 2.0, "upper_bound"),
        ("kimi15", "kimi15_tau", 0.2, "tau"),
    ],
)
def test_settings_of_losses_are_read_at_the_top_and_in_the_role(
    place: str, variant: str, key: str, value: float, ours: str, tmp_path: Path
) -> None:
    written = f"{key}: {str(value).lower()}"
    keys = [f"pg_variant: {variant}", written] if place == "{}" else [place.format(written, variant=variant)]
    config = agentic_with(tmp_path, *keys)
    assert (config.pg_variant, config.pg_args[ours]) == (variant, value)


@pytest.mark.parametrize("tag", sorted(shipped_tags()))
def test_a_tag_that_documents_name_needs_no_definition(tmp_path: Path, tag: str) -> None:
    managers = {"num_env_groups": 1, "group_size": 2, "tags": [tag]}
    keys = {"rollout_batch_size": 2, "val_batch_size": 2, "sequence_length": 128, "max_steps": 1}
    path = tmp_path / "tags.yaml"
    path.write_text(yaml.safe_dump({**keys, "train_env_manager": managers, "val_env_manager": managers}))
    assert tag in load_config(path, to_explain=True).config.custom_envs


@pytest.mark.parametrize("path", REFERENCE, ids=lambda path: path.name)
def test_the_files_that_rolls_documents_print_explain_unchanged(path: Path) -> None:
    assert "Keys without effect" in explain(load_config(path, to_explain=True))


@pytest.mark.parametrize("on_top", ["max_running_requests=4", "actor_infer.infer_batch_size=4"])
def test_files_of_ours_may_limit_requests_in_rolls_words(on_top: str) -> None:
    loaded = load_config("agentic_async.yaml", [on_top])
    assert loaded.config.actor_infer.infer_batch_size == 4


def test_two_limits_of_requests_are_a_problem_where_they_differ(tmp_path: Path) -> None:
    path = tmp_path / "limits.yaml"
    path.write_text("extends: agentic_async.yaml\nactor_infer: {infer_batch_size: 4}\n")
    assert load_config(path, ["max_running_requests=4"]).config.actor_infer.infer_batch_size == 4
    with pytest.raises(ConfigurationError, match=r"means the same as actor_infer\.infer_batch_size"):
        load_config(path, ["max_running_requests=8"])


def test_no_row_stands_for_a_key_that_is_ours_without_a_condition() -> None:
    ours = set(RunConfig.model_fields)
    rows = [row.key for row in ROLL.rows if row.applies is None and not row.only_their_files]
    assert not ours & set(rows)


STUDENT = """
hydra: {run: {dir: .}}
pretrain: small/model
max_steps: 3
rollout_batch_size: 4
num_return_sequences_in_group: 2
prompt_length: 32
response_length: 32
adv_estimator: reinforce
student_train:
  training_args: {learning_rate: 1.0e-6, per_device_train_batch_size: 1, warmup_steps: 0}
  data_args: {file_name: [absent.jsonl]}
  strategy_args: {strategy_name: megatron_train}
  device_mapping: list(range(0,2))
student_infer:
  generating_args: {max_new_tokens: 32, top_p: 0.99, top_k: 100, temperature: 0.99}
  strategy_args: {strategy_name: sglang}
teacher:
  mathematician:
    model_args: {model_name_or_path: large/model, dtype: bf16}
    strategy_args: {strategy_name: megatron_infer}
    device_mapping: list(range(0,2))
    tag_included: [dapo]
    opd_kl_coef: 0.5
  programmer: {model_args: {model_name_or_path: code/model}, tag_included: [kod]}
rewards:
  math_rule: {worker_cls: math, tag_included: [dapo]}
  code_rule: {worker_cls: math, tag_included: [kod]}
"""


def test_a_student_is_the_policy_and_its_teachers_are_ours(tmp_path: Path) -> None:
    path = tmp_path / "opd.yaml"
    path.write_text(STUDENT)
    config = load_config(path, to_explain=True).config
    assert config.actor_train.strategy_args.strategy_name == "megatron_train"
    assert config.actor_infer.generating_args.top_k == 100
    found = {name: (each.pretrain, each.tags, each.coef) for name, each in config.teachers.items()}
    assert found == {
        "mathematician": ("large/model", ["math_rule"], 0.5),
        "programmer": ("code/model", ["code_rule"], 1.0),
    }
    scorers = [each.strategy_args.strategy_name for each in config.teachers.values()]
    assert scorers == ["megatron_train", "fsdp2_train"]
    assert config.teachers["mathematician"].device_mapping == [0, 1]
    assert (config.distill_as, config.distill_reward_coef) == ("advantage", 0.0)
    assert not [note for note in algorithm_notes(config) if "top_p" in note]
    mixed = STUDENT.replace("student_train", "actor_train").replace("student_infer", "actor_infer")
    path.write_text(f"use_opd: true\n{mixed}")
    assert load_config(path, to_explain=True).config.distill_reward_coef == 1.0


@pytest.mark.parametrize(
    ("level", "devices", "expected"), [(2, "[4,5,6,7]", "all"), (0, "[4,5,6,7]", "none"), (2, "[0,1]", None)]
)
def test_a_sleep_level_is_what_engines_give_back_of_shared_devices(
    level: int, devices: str, expected: str | None, tmp_path: Path
) -> None:
    agentic(tmp_path)
    file = tmp_path / "runs" / "a lake.yaml"
    text = AGENTIC.replace("max_model_len: 100", f"max_model_len: 100, sleep_level: {level}")
    file.write_text(text.replace("list(range(0,4))", devices))
    loaded = load_config(file, to_explain=True)
    assert loaded.config.actor_infer.offload == expected
    assert ("in turns: actor_infer" in explain(loaded)) is (expected is not None)
    assert device_groups(load_config(file, preset="tiny", to_explain=True).config) == []
