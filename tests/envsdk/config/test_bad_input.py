"""Each wrong input ends in one message that names the key, what is wrong and what to do."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from envsdk.config import load_config
from envsdk.contracts.env import TextEnv
from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.sokoban.env import SokobanEnv

GOOD: dict[str, Any] = {
    "exp_name": "run",
    "rollout_batch_size": 16,
    "val_batch_size": 8,
    "sequence_length": 256,
    "max_steps": 2,
    "custom_envs": {
        "Lake": {"env_type": "envsdk/FrozenLake-v1", "agent_template": "{observation}"},
        "Box": {"env_type": "envsdk/Sokoban-v1"},
    },
    "train_env_manager": {"tags": ["Lake", "Box"], "num_env_groups": 4, "group_size": 4},
    "val_env_manager": {"tags": ["Lake", "Box"], "num_env_groups": 2, "group_size": 2},
}

LAKE = "custom_envs.Lake"
TRAIN, VAL, INFER = "train_env_manager", "val_env_manager", "actor_infer"

BAD: list[tuple[str, Any, str, list[str]]] = [
    # key to set, value, key the message names, what else it says
    ("rollout_batch_sizee", 3, "rollout_batch_sizee", ["unknown key", "`rollout_batch_size`"]),
    ("adv_estimater", "grpo", "adv_estimater", ["`adv_estimator`"]),
    (f"{TRAIN}.group_sise", 3, f"{TRAIN}.group_sise", ["`group_size`"]),
    (f"{LAKE}.env_typ", "x", f"{LAKE}.env_typ", ["`env_type`"]),
    ("max_new_tokens", 3, "max_new_tokens", ["`actor_infer.generating_args.max_new_tokens`"]),
    ("zzz", 3, "zzz", ["unknown key", "known keys: actor_infer"]),
    (f"{LAKE}.env_config.sise", 3, f"{LAKE}.env_config.sise", ["unknown key", "`size`"]),
    (f"{LAKE}.demonstration_config.sise", 3, f"{LAKE}.demonstration_config.sise", ["unknown key", "`size`"]),
    (f"{LAKE}.demonstration_config.size", 1, f"{LAKE}.demonstration_config.size", ["at least 2"]),
    (f"{LAKE}.env_config.size", 1, f"{LAKE}.env_config.size", ["at least 2"]),
    (f"{LAKE}.env_config.size", "big", f"{LAKE}.env_config.size", ["must be a whole number, not 'big'"]),
    (f"{LAKE}.env_config.is_slippery", "no", f"{LAKE}.env_config.is_slippery", ["true or false"]),
    ("actor_train.training_args.learning_rte", 1.0, "actor_train.training_args.learning_rte",
     ["of torch", "`learning_rate`"]),
    ("actor_train.training_args.learning_rate", "fast", "actor_train.training_args.learning_rate",
     ["must be a number, not 'fast'"]),
    ("actor_train.strategy_args.strategy_config.devise", "cpu",
     "actor_train.strategy_args.strategy_config.devise", ["`device`"]),
    ("actor_train.model_args.dtipe", "float32", "actor_train.model_args.dtipe", ["`dtype`"]),
    ("async_generation_ratio", "auto", "async_generation_ratio", ["set max_staleness"]),
    ("async_generation_ratio", "much", "async_generation_ratio", ["'much'", "auto"]),
    ("max_staleness", 1, "max_staleness", ["async_generation_ratio=0", "leave it out"]),
    ("max_staleness", -1, "max_staleness", ["-1"]),
    ("max_wait_share", 0.2, "max_wait_share", ["async_generation_ratio=0", "`auto`"]),
    ("max_wait_share", 1.0, "max_wait_share", ["less than 1"]),
    ("max_steps", "many", "max_steps", ["whole number", "'many'"]),
    ("max_steps", "100", "max_steps", ["'100'", "leave the quotes out"]),
    ("max_steps", 0, "max_steps", ["greater than 0", "not 0"]),
    ("max_steps", None, "max_steps", ["null"]),
    ("exp_name", 7, "exp_name", ["text", "quotes"]),
    ("exp_name", "../up", "exp_name", ["'../up'", "letters"]),
    ("sequence_length", -5, "sequence_length", ["-5"]),
    ("async_generation_ratio", -0.5, "async_generation_ratio", ["at least 0", "-0.5"]),
    ("pg_variant", "ppoo", "pg_variant", ["unknown policy loss `ppoo`", "`ppo`"]),
    ("pg_variant", "nobody.here:loss", "pg_variant", ["nobody.here:loss"]),
    ("pg_args.ratio_ovr", "behavior", "pg_args.ratio_ovr", ["of ppo", "`ratio_over`"]),
    ("pg_args.ratio_over", "reference", "pg_args.ratio_over", ["'proximal' or 'behavior'"]),
    ("train_infer_correction.is_wait", {}, "train_infer_correction.is_wait", ["`is_weight`"]),
    ("train_infer_correction.is_weight.weight_type", "tokn", "train_infer_correction.is_weight.weight_type",
     ["'token'", "'sequence'"]),
    ("train_infer_correction.is_weight.lower_bound", 3.0, "train_infer_correction.is_weight",
     ["lower_bound=3", "upper_bound=2"]),
    ("train_infer_correction.filters", [{"agg_typ": "token"}], "train_infer_correction.filters[0].agg_typ",
     ["`agg_type`"]),
    ("train_infer_correction.filters", [{"ratio_enabled": False}], "train_infer_correction.filters[0]",
     ["neither ratio nor diff"]),
    ("whiten_advantages", "yes please", "whiten_advantages", ["true or false"]),
    ("train_env_manager", [1], "train_env_manager", ["section of keys"]),
    ("custom_envs", {}, "custom_envs", ["must have at least 1 entry, not 0"]),
    (f"{TRAIN}.tags", [], f"{TRAIN}.tags", ["must have at least 1 entry, not 0"]),
    (f"{TRAIN}.tags", "Lake", f"{TRAIN}.tags", ["list", "'Lake'"]),
    (f"{TRAIN}.tags", ["Lake", "Lake"], f"{TRAIN}.tags", ["Lake named more than once"]),
    (f"{TRAIN}.tags", ["Lake", "Bok"], f"{TRAIN}.tags[1]", ["unknown tag `Bok`", "`Box`"]),
    (f"{VAL}.tags", ["Castle"], f"{VAL}.tags[0]", ["unknown tag `Castle`", "Box, Lake"]),
    (f"{TRAIN}.num_groups_partition", [2, 1], f"{TRAIN}.num_groups_partition",
     ["adds up to 3", "num_env_groups=4", "equal split"]),
    (f"{TRAIN}.num_groups_partition", [4], f"{TRAIN}.num_groups_partition", ["1 numbers for 2 tags"]),
    (f"{TRAIN}.num_groups_partition", [4, 0], f"{TRAIN}.num_groups_partition[1]", ["greater than 0"]),
    (f"{TRAIN}.num_env_groups", 1, f"{TRAIN}.num_env_groups", ["too few for 2 tags"]),
    (f"{TRAIN}.min_group_size", 5, f"{TRAIN}.min_group_size", ["group_size=4"]),
    (f"{VAL}.group_size_redundancy", 1, f"{VAL}.group_size_redundancy", ["no effect"]),
    ("rollout_batch_size", 18, "rollout_batch_size", ["18", f"{TRAIN}.group_size=4", "16 or 20"]),
    ("rollout_batch_size", 2, "rollout_batch_size", ["use 4"]),
    ("val_batch_size", 7, "val_batch_size", [f"{VAL}.group_size=2", "6 or 8"]),
    ("val_batch_size", 2, "val_batch_size", ["too few for the 2 tags", "at least 4"]),
    (f"{TRAIN}.group_size", 1, f"{TRAIN}.group_size", ["grpo", "reinforce"]),
    ("adv_estimator", "grpp", "adv_estimator", ["unknown advantage estimator `grpp`", "`grpo`"]),
    ("adv_estimator", "nobody.here:estimate", "adv_estimator", ["nobody.here:estimate"]),
    ("discount_level", "segment", "discount_level", ["no effect with adv_estimator=grpo"]),
    ("discount_level", "reply", "discount_level", ["'turn', 'segment' or 'token'"]),
    ("critic_warmup", 1, "critic_warmup", ["no effect with adv_estimator=grpo", "gae"]),
    ("critic_warmup", -1, "critic_warmup", ["-1"]),
    ("reward_normalize_std", "groups", "reward_normalize_std", ["'none', 'group', 'tag' or 'batch'"]),
    ("reward_clip", 0.0, "reward_clip", ["greater than 0"]),
    ("target_kl", 0.1, "target_kl", ["init_kl_coef"]),
    ("kl_horizon", 100, "kl_horizon", ["no effect without target_kl"]),
    ("loss_agg_mode", "seq-mean-token-sum-norm", "loss_agg_mode",
     ["loss_agg_length", "256"]),
    ("loss_agg_length", 100, "loss_agg_length", ["no effect", "seq-mean-token-sum-norm"]),
    ("loss_agg_mode", "mean", "loss_agg_mode", ["'token-mean'", "'trajectory-mean-token-mean'"]),
    ("group_filters", ["zero_varianc"], "group_filters[0]", ["unknown group filter", "`zero_variance`"]),
    ("group_filters", ["zero_variance", "no.such:filter"], "group_filters[1]", ["no.such:filter"]),
    ("group_filters", ["zero_variance", "zero_variance"], "group_filters", ["more than once"]),
    ("group_filters", [{"tags": ["FrozenLake"]}], "group_filters[0].name", ["required and missing"]),
    ("group_filters", [{"name": "mean_filter", "threshold": 1.0}], "group_filters[0].threshold",
     ["unknown key of mean_filter"]),
    ("group_filters", [{"name": "mean_filter", "tags": ["Lakes"]}], "group_filters[0].tags[0]",
     ["not played in training"]),
    ("task_sampler", "learnabilit", "task_sampler", ["unknown task sampler", "`learnability`"]),
    ("task_sampler", {"name": "difficulty", "num_tasks": 8, "tau": 1}, "task_sampler.tau",
     ["unknown key of difficulty"]),
    ("task_sampler", "learnability", "task_sampler.num_tasks", ["never end", "choose: tags"]),
    ("task_sampler", {"name": "difficulty", "num_tasks": {"Lakes": 8}}, "task_sampler.num_tasks.Lakes",
     ["unknown tag"]),
    ("task_sampler", {"name": "easy_to_hard", "num_tasks": 8}, "task_sampler.columns", ["how hard"]),
    ("batch_mixture", "even", "batch_mixture", ["'as_finished' or 'stratified'"]),
    ("prefix_sampling", {"source": "own"}, "prefix_sampling.source", ["uniform returns to none", "oracle"]),
    ("prefix_sampling", {"gain": 0}, "prefix_sampling.gain", ["greater than 0"]),
    (f"{LAKE}.turn_curriculum", {"start": 2, "add": 1}, f"{LAKE}.turn_curriculum.every",
     ["required and missing"]),
    ("max_filtered_groups", 4, "max_filtered_groups", ["no effect without group_filters"]),
    ("max_filtered_groups", 0, "max_filtered_groups", ["greater than 0"]),
    ("ppo_mini_batch_size", 17, "ppo_mini_batch_size", ["rollout_batch_size=16"]),
    (f"{INFER}.generating_args.max_new_tokens", 256, f"{INFER}.generating_args.max_new_tokens",
     ["sequence_length=256"]),
    (f"{LAKE}.context", "window", LAKE, ["context: window needs context_window"]),
    (f"{LAKE}.context", "compact", LAKE, ["context: compact needs compact_at"]),
    (f"{LAKE}.context", "windows", f"{LAKE}.context", ["'append', 'window', 'step' or 'compact'"]),
    (f"{LAKE}.context_window", 3, LAKE, ["context_window has no effect with context=append"]),
    (f"{LAKE}.compact_at", 3, LAKE, ["compact_at has no effect with context=append"]),
    (LAKE, {"env_type": "envsdk/FrozenLake-v1", "context": "compact", "compact_at": 250},
     f"{LAKE}.compact_at", ["leaves no room for a summary", "sequence_length=256"]),
    (f"{LAKE}.max_episode_tokens", 0, f"{LAKE}.max_episode_tokens", ["0"]),
    (f"{LAKE}.max_tokens_per_step", 300, f"{LAKE}.max_tokens_per_step", ["300", "sequence_length=256"]),
    (f"{LAKE}.env_type", "envsdk/FrozenLak-v1", f"{LAKE}.env_type", ["envsdk/FrozenLake-v1"]),
    (f"{LAKE}.agent_template", "go!", f"{LAKE}.agent_template", ["lacks `{observation}`"]),
    (f"{LAKE}.agent_template", "{observation} {actions_lef}", f"{LAKE}.agent_template",
     ["`{actions_lef}`", "`actions_left`"]),
    (f"{LAKE}.agent_system_template", "{turn_idx}", f"{LAKE}.agent_system_template", ["agent_template"]),
    (f"{LAKE}.isolation", "container", f"{LAKE}.isolation", ["'inline', 'thread', 'async' or 'process'"]),
    (f"{INFER}.strategy_args", {"strategy_name": "embeded"}, f"{INFER}.strategy_args.strategy_name",
     ["unknown engine `embeded`", "`embedded`"]),
    ("actor_train.strategy_args", {"strategy_name": "torsch"}, "actor_train.strategy_args.strategy_name",
     ["unknown trainer `torsch`", "`torch`"]),
    ("reference.strategy_args", {"strategy_name": "nobody.here:Trainer"},
     "reference.strategy_args.strategy_name", ["nobody.here:Trainer"]),
    ("trackers", ["jsonl", "tensorbord"], "trackers[1]", ["unknown tracker", "`tensorboard`"]),
    (f"{TRAIN}.env_manager_cls", "TrajManager", f"{TRAIN}.env_manager_cls", ["`TrajEnvManager`"]),
    (f"{INFER}.device_mapping", "list(range(2**3))", f"{INFER}.device_mapping",
     ["'list(range(2**3))'", "list(range(0,4))"]),
    (f"{INFER}.device_mapping", [0, 0], f"{INFER}.device_mapping", ["0 named more than once"]),
    (f"{INFER}", {"device_mapping": [0, 1, 2], "num_engines": 2, "strategy_args": {"strategy_name": "mock"}},
     f"{INFER}.num_engines", ["3 devices"]),
    (f"{INFER}", {"device_mapping": [0, 1, 2], "max_engines": 2, "strategy_args": {"strategy_name": "mock"}},
     f"{INFER}.max_engines", ["3 devices", "2 engines"]),
    (f"{INFER}", {"device_mapping": [0, 1, 2, 3], "num_engines": 2, "strategy_args": {"strategy_config":
     {"tensor_parallel_size": 4}, "strategy_name": "tests.trainers.toy_engines:ToyEngine"}},
     f"{INFER}.device_mapping", ["tensor_parallel_size=4", "name 8 devices", "tensor_parallel_size to 2"]),
    (f"{INFER}", {"device_mapping": [0, 1, 2, 3], "num_engines": 1, "max_engines": 2, "strategy_args":
     {"strategy_config": {"tensor_parallel_size": 4}, "strategy_name": "vllm"}},
     f"{INFER}.device_mapping", ["max_engines=2", "tensor_parallel_size to 2"]),
    (f"{TRAIN}", {"min_workers": 3, "max_workers": 2, "num_env_groups": 4, "group_size": 4, "tags": ["Lake"]},
     f"{TRAIN}.min_workers", ["3 is more than max_workers=2"]),
    (f"{INFER}.min_engines", 2, f"{INFER}.min_engines", ["2 is more than num_engines=1"]),
    (f"{INFER}", {"num_engines": 3, "max_engines": 2}, f"{INFER}.max_engines", ["less than num_engines=3"]),
    (f"{INFER}.max_queued_per_engine", 20, f"{INFER}.max_queued_per_engine", ["16"]),
    ("actor_train.device_mapping", [0], "actor_train.device_mapping",
     ["`torch` runs on one device", "actor_train.strategy_args.strategy_config.device"]),
    ("actor_train", {"device_mapping": [0, 1, 2, 3], "strategy_args": {"strategy_name": "fsdp2_train",
     "strategy_config": {"shard_size": 3}}}, "actor_train.device_mapping", ["4 ranks", "shard_size=3"]),
    ("actor_train", {"device_mapping": [0, 1, 2], "strategy_args": {"strategy_name": "megatron_train",
     "strategy_config": {"tensor_model_parallel_size": 2}}}, "actor_train.device_mapping",
     ["3 ranks", "tensor 2", "multiple of 2"]),
    ("reference.strategy_args", {"strategy_name": "fsdp2_train", "strategy_config": {"shard_size": 2}},
     "reference.device_mapping", ["1 rank", "shard_size=2", "absent"]),
    (f"{LAKE}.max_steps", 40, f"{LAKE}.max_steps", ["ends episodes after 20", "env_config.max_steps"]),
    ("actor_train.engine_idle_s", 4, "actor_train.engine_idle_s", ["`actor_infer.engine_idle_s`"]),
    ("pretrain", "/no/such/model", "pretrain", ["/no/such/model", "embedded_default"]),
    ("pretrain", "Qwen/Qwen3-0.6B", "pretrain", ["not in the hub's cache", "hf download Qwen/Qwen3-0.6B"]),
    ("exp_name", "..", "exp_name", ["'..'"]),
    ("exp_name", "a" * 256, "exp_name", ["200"]),
    ("output_dir", "a\0b", "output_dir", ["NUL"]),
    ("pretrain", "a\0b", "pretrain", ["NUL"]),
    ("seed", 2**63, "seed", ["9223372036854775808"]),
    ("async_generation_ratio", 1e9, "async_generation_ratio", ["at most 1000"]),
    ("async_generation_ratio", float("inf"), "async_generation_ratio", ["finite"]),
    ("actor_train.training_args.learning_rate", float("inf"), "actor_train.training_args.learning_rate",
     ["finite"]),
    ("actor_train.training_args.learning_rate", float("nan"), "actor_train.training_args.learning_rate",
     ["finite"]),
    ("actor_infer.generating_args.temperature", 1e-308, "actor_infer.generating_args.temperature",
     ["0, which is greedy"]),
    (f"{TRAIN}.num_env_groups", 50_000_000, f"{TRAIN}.num_env_groups", ["at most 1000000"]),
    ("actor_infer.num_engines", 1_000_000, "actor_infer.num_engines", ["at most 10000"]),
    ("actor_train.strategy_args.strategy_config.device", "nope",
     "actor_train.strategy_args.strategy_config.device", ["must match ^(cpu|cuda", "'nope'"]),
    ("actor_infer.strategy_args.strategy_config.device", "cuda:99",
     "actor_infer.strategy_args.strategy_config.device", ["GPUs on this machine"]),
    ("actor_train.strategy_args.strategy_config",
     {"dtype": "bfloat16", "attn_implementation": "no-such-hub/flash-attn9"},
     "actor_train.strategy_args.strategy_config.attn_implementation", ["needs kernels", "`auto`"]),
    ("actor_train.strategy_args.strategy_config", {"attn_implementation": "flash_attention_2"},
     "actor_train.strategy_args.strategy_config", ["flash_attention_2 needs dtype: bfloat16"]),
    ("actor_train.strategy_args.strategy_config", {"attn_implementation": "nonsense"},
     "actor_train.strategy_args.strategy_config.attn_implementation", ["(given: 'nonsense')"]),
    ("actor_infer",
     {"num_engines": 2,
      "strategy_args": {"strategy_name": "sglang",
                        "strategy_config": {"base_url": "http://127.0.0.1:30000"}}},
     "actor_infer.num_engines", ["belongs to one engine"]),
    ("resume", "yes", "resume", ["`yes`", "auto"]),
    ("warm_start", {"num_heads": 3}, "warm_start.num_heads", ["warm_start.hidden_size=128"]),
    ("ray.include_dashbord", True, "ray.include_dashbord", ["`include_dashboard`"]),
]  # fmt: skip


def write(folder: Path, changes: dict[str, Any]) -> Path:
    """GOOD with some dotted keys replaced."""
    data = copy.deepcopy(GOOD)
    for key, value in changes.items():
        *parents, last = key.split(".")
        section = data
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    path = folder / "bad.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    return path


def message_of(path: Path, overrides: list[str] | None = None) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_config(path, overrides or [])
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_the_starting_point_is_good(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, {})).config.max_steps == 2


@pytest.mark.parametrize(
    ("key", "value", "named", "says"), BAD, ids=[f"{row[0]}={row[1]}"[:60] for row in BAD]
)
def test_a_wrong_value_is_named_with_its_line_and_what_to_do(
    tmp_path: Path, key: str, value: Any, named: str, says: list[str]
) -> None:
    path = write(tmp_path, {key: value})
    message = message_of(path)
    assert re.search(rf"^  {re.escape(named)} \(\S*bad\.yaml:\d+\): ", message, re.MULTILINE), message
    for part in says:
        assert part in message
    assert "1 problem\n" in message


def test_the_line_is_that_of_the_key(tmp_path: Path) -> None:
    path = write(tmp_path, {"rollout_batch_sizee": 3})
    line = next(i for i, text in enumerate(path.read_text().splitlines(), 1) if "sizee" in text)
    assert f"bad.yaml:{line})" in message_of(path)


def test_a_wrong_override_is_told_apart_from_the_file(tmp_path: Path) -> None:
    message = message_of(write(tmp_path, {}), ["rollout_batch_size=18"])
    assert "  rollout_batch_size (override): 18 is not divisible" in message


def test_an_override_for_a_misspelled_tag_names_the_tag(tmp_path: Path) -> None:
    message = message_of(write(tmp_path, {}), [f"{LAKE}e.turn_curriculum.start=4"])
    assert "1 problem\n" in message
    assert f"  {LAKE}e (override): no such tag" in message
    assert f"did you mean `{LAKE.partition('.')[2]}`?" in message


def test_settings_of_a_sampler_that_has_none_ask_for_another(tmp_path: Path) -> None:
    message = message_of(write(tmp_path, {}), ["task_sampler.gate.after=3"])
    assert "uniform has no settings; to set those of another, give its `name`" in message


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    path = write(
        tmp_path, {"sead": 3, "rollout_batch_size": 18, f"{VAL}.tags": ["Lak"], "pretrain": "/no/such"}
    )
    message = message_of(path)
    assert "4 problems" in message
    for key in ("sead", "rollout_batch_size", f"{VAL}.tags[0]", "pretrain"):
        assert f"  {key} (" in message


def test_wrong_types_are_told_together_with_unknown_keys(tmp_path: Path) -> None:
    message = message_of(write(tmp_path, {"sead": 3, "max_steps": "x", f"{TRAIN}.group_size": []}))
    assert "3 problems" in message


@pytest.mark.parametrize("key", ["rollout_batch_size", "custom_envs", "val_env_manager"])
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump({name: value for name, value in GOOD.items() if name != key}))
    assert f"  {key}: is required and missing" in message_of(path)


def test_a_folder_without_a_model_is_no_model(tmp_path: Path) -> None:
    assert "config.json" in message_of(write(tmp_path, {"pretrain": str(tmp_path)}))


def test_a_file_in_the_way_of_the_run_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    message = message_of(write(tmp_path, {"output_dir": str(tmp_path / "taken")}))
    assert "output_dir" in message
    assert "is a file" in message


def test_the_same_setting_in_two_places_is_refused(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {
            "actor_train.model_args.dtype": "float32",
            "actor_train.strategy_args": {
                "strategy_name": "torch",
                "strategy_config": {"dtype": "bfloat16"},
            },
        },
    )
    assert "actor_train.model_args.dtype" in message_of(path)


def test_settings_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    message = message_of(write(tmp_path, {"kl_loss_coef": 0.1, "kl_loss_type": "k1"}))
    assert "kl_loss_type: k1" in message


LEARNABLE = {"task_sampler": {"name": "learnability", "num_tasks": 8}}
WEIGHTED = {"name": "weighted", "num_tasks": 8}
STRATEGY = "actor_train.strategy_args.strategy_config"
ALONE = {f"{TRAIN}.group_size": 1}
COMBINATIONS: list[tuple[dict[str, Any], str, list[str]]] = [
    ({"adv_estimator": "rloo", **ALONE}, f"{TRAIN}.group_size", ["rloo", "nothing to compare"]),
    ({"adv_estimator": "gigpo", **ALONE}, f"{TRAIN}.group_size", ["gigpo", "nothing to compare"]),
    ({"adv_estimator": "reinforce", "group_filters": ["zero_variance"], **ALONE}, "group_filters[0]",
     ["every group would be dropped"]),
    ({"adv_estimator": "reinforce", "reward_normalize_std": "group", **ALONE}, "reward_normalize_std",
     ["tag or batch"]),
    ({"adv_estimator": "reinforce", "difficulty_weight": "learnability", **ALONE}, "difficulty_weight",
     ["every weight would be 0"]),
    ({"adv_estimator": "gae", "critic_warmup": 2}, "critic_warmup", ["max_steps=2", "never learn"]),
    ({"task_sampler": {"name": "learnability", "choose": "tags"}, "batch_mixture": "stratified"},
     "batch_mixture", ["choose: tags"]),
    ({"prefix_sampling": {"source": "oracle"}, f"{LAKE}.context": "step"}, "prefix_sampling",
     ["tag `Lake` cannot begin in the middle: its context is step, not append; leave it or"]),
    ({f"{TRAIN}.env_manager_cls": "HarnessEnvManager", "prefix_sampling": {"source": "oracle"}},
     "prefix_sampling", ["tag `Lake` cannot begin in the middle: the TrajEnvManager does not play it"]),
    ({"adv_estimator": "gae", "discount_level": "token"}, "discount_level", ["gae_level"]),
    (LEARNABLE | {"task_sampler.gate": {"after": 64}}, "task_sampler.gate.after",
     ["64", "window=32", "raise"]),
    (LEARNABLE | {"task_sampler.gate": {"solved": 0.2, "hopeless": 0.5}}, "task_sampler.gate.solved",
     ["0.2", "hopeless=0.5", "above"]),
    ({"task_sampler": {"name": "learnability", "num_tasks": 0}}, "task_sampler.num_tasks",
     ["must be a whole number above 0", "(given: 0)"]),
    ({"task_sampler": {"name": "learnability", "num_tasks": {"Lake": 0, "Box": 8}}}, "task_sampler.num_tasks",
     ["by tag, not 0"]),
    ({"task_sampler": {**WEIGHTED, "weights": {"Lake": 0, "Box": 0}}}, "task_sampler.weights",
     ["0 for every tag"]),
    ({"task_sampler": {**WEIGHTED, "choose": "tasks", "weights": {"Lake": 2}}}, "task_sampler.weights",
     ["change nothing", "`both`"]),
    ({"prefix_sampling": {"source": "oracle", "low": 0.9, "high": 0.1}}, "prefix_sampling.low",
     ["0.9", "high=0.1", "below"]),
    ({"prefix_sampling": {"source": "oracle", "target": 0.95}}, "prefix_sampling.target",
     ["0.95", "low=0.1 and high=0.9"]),
    ({f"{LAKE}.max_steps": 4, f"{LAKE}.turn_curriculum": {"start": 4, "add": 1, "every": 1}},
     f"{LAKE}.turn_curriculum.start", ["at most 4 turns", "fewer"]),
    ({f"{LAKE}.turn_curriculum": {"start": 5000, "add": 1, "every": 1}}, f"{LAKE}.turn_curriculum.start",
     ["5000 shortens nothing"]),
    ({f"{VAL}.num_groups_partition": [2]}, f"{VAL}.num_groups_partition", ["one per tag"]),
    ({"reference.offload": "all"}, "reference.offload", ["all", "no reference model is loaded", "leave"]),
    ({f"{STRATEGY}.share_prefixes": 1}, f"{STRATEGY}.share_prefixes",
     ["'auto'", "not 1"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "named", "says"), COMBINATIONS, ids=[str(row[0]) for row in COMBINATIONS]
)
def test_settings_that_make_no_sense_together_are_refused(
    tmp_path: Path, changes: dict[str, Any], named: str, says: list[str]
) -> None:
    message = message_of(write(tmp_path, changes))
    assert re.search(rf"^  {re.escape(named)} \(\S*bad\.yaml:\d+\): ", message, re.MULTILINE), message
    for part in says:
        assert part in message
    assert "1 problem\n" in message


def test_state_hashes_are_asked_of_the_environments_that_training_plays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, {"adv_estimator": "gigpo"})
    assert load_config(path).config.needs_state_hashes
    monkeypatch.setattr(SokobanEnv, "state_hash", TextEnv.state_hash)
    message = message_of(path)
    assert f"  {TRAIN}.tags[1] (" in message
    assert "`envsdk/Sokoban-v1` has no state_hash()" in message


def test_an_estimator_and_a_filter_of_your_own_are_taken_by_dotted_name(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {
            "adv_estimator": "envsdk.algorithms.batches:token_advantages",
            "group_filters": ["envsdk.algorithms.group_filters:zero_variance"],
            "max_filtered_groups": 4,
        },
    )
    assert load_config(path).config.filtered_groups_limit == 4
    assert load_config(write(tmp_path, {})).config.filtered_groups_limit == 40


def test_braces_that_hold_no_name_are_plain_text(tmp_path: Path) -> None:
    path = write(tmp_path, {f"{LAKE}.agent_template": '{observation} {"move": 1} {} {1}'})
    assert load_config(path).config.custom_envs["Lake"].agent_template.endswith("{1}")


def test_an_importance_weight_before_a_loss_that_has_its_own_is_refused(tmp_path: Path) -> None:
    changes = {"pg_variant": "cispo", "train_infer_correction.is_weight.enabled": True}
    text = message_of(write(tmp_path, changes))
    assert "train_infer_correction.is_weight.enabled" in text
    assert "correct twice" in text
    assert "ratio_over to `proximal`" in text
    load_config(write(tmp_path, changes | {"pg_args.ratio_over": "proximal"}))


def test_devices_are_shared_among_the_most_engines_there_may_be(tmp_path: Path) -> None:
    infer = {
        "device_mapping": [0, 1, 2, 3],
        "num_engines": 1,
        "max_engines": 2,
        "strategy_args": {"strategy_name": "vllm", "strategy_config": {"tensor_parallel_size": 2}},
    }
    assert load_config(write(tmp_path, {INFER: infer})).config.actor_infer.engines_between == (1, 2)


def test_an_environment_that_is_dear_to_make_has_its_values_checked_too() -> None:
    change = "custom_envs.Terminal.env_config.action_format=bsh"
    with pytest.raises(
        ConfigurationError, match=r"env_config\.action_format .*must be one of bash, tool, keys"
    ):
        load_config("agentic_terminal_async.yaml", [change], to_explain=True)
