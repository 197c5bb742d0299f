"""Trinity-RFT's files load, and say what each key became."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from envsdk.config import RunConfig, explain, load_config
from envsdk.config.loading import LoadedConfig
from envsdk.config.trinity.dialect import TRINITY, is_trinity_file
from envsdk.contracts.failures import ConfigurationError
from tests.envsdk.config.trinity_examples import GROUPS, examples_list

PAGE = Path(__file__).parents[3] / "docs" / "coming-from-trinity.md"
REFERENCE = sorted((Path(__file__).parent / "reference").glob("trinity-*.yaml"))
EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))

FILE = """
project: lessons
group: first
name: GSM8K grpo
checkpoint_root_dir: /data/checkpoints
algorithm:
  algorithm_type: grpo
  repeat_times: 4
  optimizer: {lr: 1e-5, lr_warmup_steps: 3, lr_scheduler_type: cosine, min_lr_ratio: 0.1}
model: {model_path: embedded_default, max_response_tokens: 64, max_model_len: 256, temperature: 0.7}
cluster: {node_num: 1, gpu_per_node: 8}
buffer:
  total_epochs: 3
  batch_size: 5
  explorer_input:
    default_workflow_type: math_workflow
    taskset:
      name: gsm8k
      storage_type: file
      path: rows.jsonl
      split: train
      format: {prompt_key: question, response_key: answer}
      rollout_args: {temperature: 1.0, logprobs: 0}
    eval_tasksets:
      - name: gsm8k-eval
        path: rows.jsonl
        format: {prompt_key: question, response_key: answer}
        repeat_times: 2
        rollout_args: {temperature: 0.1, top_k: -1}
  trainer_input:
    experience_buffer: {name: gsm8k_buffer, storage_type: queue, path: "sqlite:///gsm8k.db"}
explorer:
  eval_interval: 20
  runner_per_model: 8
  max_timeout: 900
  rollout_model: {engine_num: 2, tensor_parallel_size: 2, enforce_eager: true, dtype: bfloat16, seed: 1}
synchronizer: {sync_method: nccl, sync_interval: 1, sync_timeout: 1200}
trainer: {save_interval: 50, grad_clip: 0.5, use_dynamic_bsz: true, max_token_len_per_gpu: 16384}
monitor: {monitor_type: wandb}
"""


@pytest.fixture(autouse=True)
def _prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty rows in the form of GSM8K's."""
    rows = [
        {"question": f"What is {n} + 2?", "answer": f"Add them: <<{n}+2={n + 2}>>.\n#### {n + 2}"}
        for n in range(20)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    for name in ("TRINITY_CHECKPOINT_ROOT_DIR", "TRINITY_MODEL_PATH", "TRINITY_TASKSET_PATH"):
        monkeypatch.delenv(name, raising=False)


def load(*overrides: str, **more: Any) -> LoadedConfig:
    """The file above, with the sections of `more` in place of its own."""
    path = Path("lesson.yaml")
    path.write_text(yaml.safe_dump({**yaml.safe_load(FILE), **more}))
    return load_config(path, overrides, to_explain=True)


def config(*overrides: str, **more: Any) -> RunConfig:
    return load(*overrides, **more).config


def refusal(*overrides: str, **more: Any) -> str:
    with pytest.raises(ConfigurationError) as error:
        load(*overrides, **more)
    return str(error.value)


@pytest.mark.parametrize("path", REFERENCE, ids=lambda path: path.name)
def test_the_files_that_trinitys_documents_print_explain_unchanged(path: Path) -> None:
    loaded = load_config(path, to_explain=True)
    assert loaded.config.num_return_sequences_in_group == 8
    assert loaded.config.rollout_batch_size == 64
    text = explain(loaded)
    assert "Keys of Trinity-RFT with other values here" in text
    assert "openai/gsm8k is not on this machine" in text


def test_the_explorers_and_the_trainer_of_a_job_agree() -> None:
    configs = {path.stem: load_config(path, to_explain=True).config for path in REFERENCE}
    trainer, *explorers = (configs[f"trinity-{name}"] for name in ("trainer", "explorer", "explorer-new"))
    assert (trainer.mode, {each.mode for each in explorers}) == ("train", {"explore"})
    assert {each.explorer.name for each in explorers} == {"explorer", "explorer_new"}
    assert {each.run_folder for each in explorers} == {trainer.run_folder}
    for each in explorers:
        assert each.buffer.trainer_input == trainer.buffer.trainer_input
        assert each.synchronizer == trainer.synchronizer
        assert each.async_generation_ratio == trainer.async_generation_ratio == 1
        assert each.custom_envs == trainer.custom_envs
    assert trainer.actor_train.device_mapping == [0, 1, 2, 3]
    assert [each.actor_infer.num_engines for each in explorers] == [4, 8]


@pytest.mark.parametrize("path", REFERENCE, ids=lambda path: path.name)
@pytest.mark.parametrize("mode", ["both", None])
def test_two_variables_of_the_environment_and_a_mode_make_them_run_on_the_tiny_policy(
    path: Path, mode: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINITY_TASKSET_PATH", "rows.jsonl")
    monkeypatch.setenv("TRINITY_MODEL_PATH", "embedded_default")
    overrides = ["buffer.batch_size=5", "buffer.train_batch_size=40", "explorer.rollout_model.engine_num=1"]
    loaded = load_config(path, [*overrides, *([f"mode={mode}"] if mode else [])])
    assert loaded.config.actor_train.strategy_args.strategy_name == "torch"
    assert loaded.config.actor_infer.strategy_args.strategy_name == "embedded"
    assert loaded.config.max_steps == 20 // 5
    assert loaded.config.actor_train.device_mapping is None
    assert load_config(path, overrides, preset="tiny").config.max_steps == 5


def test_what_is_said_in_one_file_becomes_ours() -> None:
    loaded = load()
    config = loaded.config
    assert (config.exp_name, str(config.output_dir)) == ("GSM8K-grpo", "/data/checkpoints/lessons/first")
    assert (config.num_return_sequences_in_group, config.rollout_batch_size) == (4, 5)
    assert config.max_steps == 3 * 20 // 5
    assert (config.prompt_length, config.response_length, config.sequence_length) == (192, 64, 256)
    assert (config.eval_steps, config.save_steps) == (20, 50)
    assert config.train_env_manager.episode_deadline_s == 900
    training = config.actor_train.training_args
    assert (training["learning_rate"], training["weight_decay"]) == (1e-5, 0.01)
    assert (training["warmup_steps"], training["max_steps"], training["min_lr_ratio"]) == (3, 12, 0.1)
    assert (training["max_grad_norm"], training["max_tokens_per_microbatch"]) == (0.5, 16384)
    assert config.trackers == ["jsonl", "wandb"]
    assert config.tracker_args["wandb"]["project"] == "lessons"
    assert loaded.provenance["max_steps"].endswith("as buffer.total_epochs")
    assert loaded.without_effect["synchronizer.sync_method"][1].startswith("mode: both")


def test_the_algorithm_has_trinitys_defaults() -> None:
    keys = config().algorithm
    assert (keys.adv_estimator, keys.grpo_normalize_std) == ("grpo", True)
    assert (keys.pg_variant, keys.pg_args, keys.dual_clip) == ("ppo", {"ratio_over": "behavior"}, 3.0)
    assert (keys.kl_loss_type, keys.kl_loss_coef, keys.entropy_loss_coef) == ("k2", 0.001, 0.0)
    assert (keys.loss_agg_mode, keys.init_kl_coef) == ("token-mean", 0.0)


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ({"algorithm_type": "opmd"}, {"pg_variant": "opmd", "grpo_normalize_std": False}),
        ({"algorithm_type": "rloo"}, {"adv_estimator": "rloo", "pg_variant": "ppo"}),
        ({"algorithm_type": "gspo"}, {"pg_variant": "gspo", "loss_agg_mode": "seq-mean-token-mean"}),
        ({"algorithm_type": "topr"}, {"adv_estimator": "reinforce", "pg_variant": "topr"}),
        (
            {"algorithm_type": "cispo"},
            {"pg_args": {"ratio_over": "behavior", "clip_low": 1.0, "clip_high": 0.28}},
        ),
        ({"algorithm_type": "reinforceplusplus"}, {"adv_estimator": "reinforce_plus_plus"}),
        ({"algorithm_type": "ppo"}, {"adv_estimator": "gae", "lambd": 1.0, "gamma": 1.0}),
        ({"algorithm_type": "dapo"}, {"kl_loss_coef": 0.0}),
        (
            {
                "algorithm_type": "grpo",
                "policy_loss_fn_args": {"clip_range_low": 0.2, "clip_range_high": 0.28},
            },
            {"pg_clip_low": 0.2, "pg_clip_high": 0.28},
        ),
        ({"algorithm_type": "grpo", "bypass_old_logprobs": False}, {"pg_args": {"ratio_over": "proximal"}}),
        ({"algorithm_type": "grpo", "kl_loss_fn": "low_var_kl"}, {"kl_loss_type": "k3"}),
        (
            {"algorithm_type": "grpo", "kl_loss_fn": "k1", "kl_loss_fn_args": {"kl_coef": 0.0}},
            {"kl_loss_coef": 0},
        ),
        ({"algorithm_type": "grpo", "kl_penalty_fn": "k1"}, {"init_kl_coef": 0.001, "kl_reward_type": "k1"}),
        (
            {"algorithm_type": "grpo", "entropy_loss_fn_args": {"entropy_coef": 0.01}},
            {"entropy_loss_coef": 0.01},
        ),
        (
            {"algorithm_type": "grpo", "advantage_fn_args": {"std_cal_level": "batch"}},
            {"adv_estimator": "reinforce", "reward_normalize_mean": "group", "reward_normalize_std": "batch"},
        ),
    ],
    ids=str,
)
def test_an_algorithm_becomes_ours(algorithm: dict[str, Any], expected: dict[str, Any]) -> None:
    keys = config(algorithm={"repeat_times": 4, **algorithm}).algorithm
    assert {name: getattr(keys, name) for name in expected} == expected


def test_groups_that_hardly_differ_are_left_out() -> None:
    section = {"algorithm_type": "grpo", "repeat_times": 4, "advantage_fn_args": {"std_threshold": 0.0001}}
    (filtered,) = config(algorithm=section).as_dict()["group_filters"]
    assert (filtered["name"], filtered["std_threshold"]) == ("std_filter", 0.0001)


def test_the_selectors_become_samplers() -> None:
    at = "buffer.explorer_input.taskset.task_selector"
    loaded = load(f"{at}={{selector_type: difficulty_based, kwargs: {{target_reward: 0.5, tau: 0}}}}").config
    assert loaded.as_dict()["task_sampler"] == {"name": "difficulty", "target": 0.5, "temperature": 0}
    loaded = load(f"{at}={{selector_type: offline_easy2hard, feature_keys: [pass_rate]}}").config
    assert loaded.task_sampler.args == {"columns": ["pass_rate"], "higher_is": "easier"}
    assert loaded.as_dict()["actor_train"]["data_args"]["shuffle"] is False
    for kind in ("offline_easy2hard", "mine"):
        with pytest.raises(ConfigurationError, match=f"{kind} is not there: take sequential"):
            load(f"{at}={{selector_type: {kind}}}")


def test_a_math_workflow_is_a_domain_with_its_reward_and_its_prompt() -> None:
    loaded = config()
    reward = loaded.custom_envs["gsm8k"].env_config["reward"]
    assert reward["worker_cls"] == "sum"
    assert (reward["parts"]["answer"]["worker_cls"], reward["parts"]["form"]["met"]) == ("math", 0.1)
    assert "<answer>" in loaded.custom_envs["gsm8k"].agent_system_template
    assert loaded.custom_envs["gsm8k_val"].agent_system_template
    assert loaded.custom_envs["gsm8k"].env_config["columns"] == {
        "prompt": "question",
        "ground_truth": "answer",
    }
    assert loaded.train_env_manager.tags == ["gsm8k"]
    assert (loaded.val_env_manager.tags, loaded.val_batch_size) == (["gsm8k_val"], 20 * 2)
    assert (loaded.actor_infer.generating_args.temperature, loaded.val_generating_args.temperature) == (
        1.0,
        0.1,
    )


def test_a_boxed_workflow_and_a_prompt_of_the_files_own() -> None:
    loaded = config(
        "buffer.explorer_input.default_workflow_type=math_boxed_workflow",
        "buffer.explorer_input.taskset.format.system_prompt=Be brief.",
    )
    assert loaded.custom_envs["gsm8k"].env_config["reward"] == {"worker_cls": "math", "extract": ["boxed"]}
    assert loaded.custom_envs["gsm8k"].agent_system_template == "Be brief."


def test_a_right_answer_is_worth_1_and_a_wrong_one_less_1_with_math_dapo_reward() -> None:
    loaded = config("buffer.explorer_input.default_reward_fn_type=math_dapo_reward")
    parts = loaded.custom_envs["gsm8k"].env_config["reward"]["parts"]
    assert (parts["answer"]["weight"], parts["form"]["met"], parts["form"]["missed"]) == (2.0, -1.0, -1.0)
    assert parts["form"]["tags"] == []


def test_a_reward_given_on_top_takes_the_place_of_one_that_is_not_there() -> None:
    reward = "buffer.explorer_input.default_reward_fn_type=my_reward"
    message = refusal(reward)
    assert "buffer.explorer_input.default_reward_fn_type (override): the reward my_reward" in message
    assert "rewards.gsm8k.worker_cls=package.module:Class" in message
    prompt = "buffer.explorer_input.taskset.format.system_prompt=Be brief."
    loaded = config(reward, prompt, "rewards.gsm8k.worker_cls=exact")
    assert loaded.rewards["gsm8k"].worker_cls == "exact"
    assert loaded.custom_envs["gsm8k"].agent_system_template == "Be brief."


@pytest.mark.parametrize(
    ("buffer", "prompts"),
    [
        ({"batch_size": 5}, 5),
        ({"train_batch_size": 24}, 6),
        ({"batch_size": 5, "train_batch_size": 24}, 6),
        ({"batch_size": 5, "train_batch_size": 0}, 5),
        ({"batch_size": 5, "train_batch_size": 21}, 5),
    ],
)
def test_tasks_and_experiences_of_a_step_give_the_same_batch(buffer: dict[str, int], prompts: int) -> None:
    given = yaml.safe_load(FILE)["buffer"]
    del given["batch_size"]
    loaded = config(buffer=given | buffer)
    assert loaded.rollout_batch_size == prompts
    assert loaded.max_steps == 3 * 20 // prompts


def test_a_number_of_steps_goes_before_epochs() -> None:
    assert config("buffer.total_steps=7").max_steps == 7
    assert config("trainer.total_steps=8").max_steps == 8
    assert config("max_steps=9").max_steps == 9


def test_a_folder_gives_the_files_of_the_split(tmp_path: Path) -> None:
    folder = tmp_path / "gsm8k" / "main"
    folder.mkdir(parents=True)
    for name in ("train-0.jsonl", "train-1.jsonl", "test-0.jsonl"):
        (folder / name).write_text((tmp_path / "rows.jsonl").read_text())
    at = "buffer.explorer_input"
    loaded = config(
        f"{at}.taskset.path=gsm8k",
        f"{at}.taskset.subset_name=main",
        f"{at}.eval_tasksets=[{{name: e, path: gsm8k, subset_name: main, split: test}}]",
    )
    assert loaded.max_steps == 3 * 40 // 5
    assert loaded.custom_envs["gsm8k"].env_config["files"] == [
        "gsm8k/main/train-0.jsonl",
        "gsm8k/main/train-1.jsonl",
    ]
    assert loaded.custom_envs["gsm8k_val"].env_config["files"] == ["gsm8k/main/test-0.jsonl"]


def test_a_list_of_one_task_set_is_that_one() -> None:
    given = yaml.safe_load(FILE)["buffer"]
    given["explorer_input"]["tasksets"] = [given["explorer_input"].pop("taskset")]
    assert config(buffer=given) == config()
    given["explorer_input"]["tasksets"] *= 2
    assert "several task sets" in refusal(buffer=given)


@pytest.mark.parametrize(
    ("mode", "trains", "plays"),
    [("both", [4, 5, 6, 7], [0, 1, 2, 3]), ("train", list(range(8)), None), ("explore", None, [0, 1, 2, 3])],
)
def test_engines_have_the_first_devices_and_the_trainer_the_others(
    mode: str, trains: list[int] | None, plays: list[int] | None
) -> None:
    loaded = config(f"mode={mode}", "model.model_path=Qwen/Qwen2.5-1.5B-Instruct")
    assert (loaded.actor_train.device_mapping, loaded.actor_infer.device_mapping) == (trains, plays)
    assert loaded.actor_train.strategy_args.strategy_name == "fsdp2_train"
    assert loaded.actor_infer.strategy_args.strategy_name == "vllm"
    assert loaded.actor_infer.strategy_args.strategy_config["tensor_parallel_size"] == 2
    assert "too few" in refusal("model.model_path=some/model", "cluster.gpu_per_node=4")


def test_megatron_is_named_in_the_file_or_in_verls_section() -> None:
    verl = {"strategy": "megatron", "megatron": {"tensor_model_parallel_size": 2, "param_offload": True}}
    given = {"trainer_config": {"actor_rollout_ref": {"actor": verl}}}
    for trainer in (given, {"trainer_strategy": "megatron", "megatron": {"tensor_model_parallel_size": 2}}):
        loaded = config("model.model_path=some/model", trainer=trainer)
        for role in (loaded.actor_train, loaded.reference):
            assert role.strategy_args.strategy_name == "megatron_train"
            assert role.strategy_args.strategy_config == {"tensor_model_parallel_size": 2}


def test_lora_trains_an_adapter() -> None:
    model = {**yaml.safe_load(FILE)["model"], "model_path": "some/model", "lora_configs": [{"lora_rank": 16}]}
    loaded = config(model=model)
    lora = loaded.actor_train.strategy_args.strategy_config["lora"]
    assert (lora["rank"], lora["alpha"]) == (16, 32.0)
    assert loaded.actor_infer.strategy_args.strategy_config["max_lora_rank"] == 16


@pytest.mark.parametrize(
    ("mode", "interval", "offset", "ratio", "ours"),
    [
        ("both", 1, 0, 0, 1),
        ("both", 10, 0, 1, 1),
        ("both", 1, 1, 1, 1),
        ("train", 10, 0, 1, 10),
        ("explore", 10, 4, 2, 10),
    ],
)
def test_generation_runs_ahead_where_weights_may_be_older(
    mode: str, interval: int, offset: int, ratio: int, ours: int
) -> None:
    section = {"sync_method": "checkpoint", "sync_interval": interval, "sync_offset": offset}
    loaded = config(mode=mode, synchronizer=section)
    assert (loaded.async_generation_ratio, loaded.synchronizer.sync_interval) == (ratio, ours)


def test_waiting_and_serving_have_keys_of_ours() -> None:
    loaded = config(
        "mode=serve",
        "explorer.proxy_port=8010",
        "explorer.listen_address=127.0.0.1",
        "buffer.trainer_input.experience_buffer.max_read_timeout=7200",
    )
    assert (loaded.serve.port, loaded.serve.host, loaded.buffer.patience_s) == (8010, "127.0.0.1", 7200)


def test_reuse_is_for_programs_of_their_own() -> None:
    key = "buffer.trainer_input.experience_buffer.replay_buffer"
    asked = f"{key}={{enable: true, priority_fn_args: {{use_count_limit: 3}}}}"
    buffer = config(asked, "mode=train").buffer.trainer_input.experience_buffer
    assert (buffer.selection, buffer.max_uses) == ("priority", 3)
    alone = load(asked)
    assert alone.config.buffer.trainer_input.experience_buffer.max_uses == 1
    assert "mode: both" in alone.without_effect[key][1]


@pytest.mark.parametrize(
    ("override", "key", "words"),
    [
        ("algorithm.algorithm_type=sft", "algorithm.algorithm_type", "envsdk sft"),
        ("algorithm.algorithm_type=dpo", "algorithm.algorithm_type", "not there"),
        ("algorithm.algorithm_type=mix", "algorithm.algorithm_type", "demonstrations"),
        ("algorithm.algorithm_type=grpoo", "algorithm.algorithm_type", "there are ppo, grpo"),
        ("algorithm.advantage_fn=clipb", "algorithm", "clipb"),
        ("trainer.algorithm_type=ppo", "trainer.algorithm_type", "files of 0.2 and later are read"),
        ("data={dataset_path: openai/gsm8k}", "data.dataset_path", "a key of Trinity-RFT 0.1"),
        (
            "buffer.explorer_input.eval_tasksets=[a]",
            "eval_tasksets",
            "a list of sections of keys, not ['a']",
        ),
        ("algorithm.policy_loss_fn_args={clip: 1}", "policy_loss_fn_args", "clip"),
        ("algorithm.kl_loss_fn=abs", "kl_loss_fn", "k1, k2, k3"),
        ("stages=[{stage_name: warm}]", "stages", "envsdk sft"),
        ("model.tinker={enable: true}", "model.tinker.enable", "GPUs of your own"),
        ("model.model_path=Qwen/Qwen2.5-VL-3B", "model.model_path", "text alone"),
        ("buffer.explorer_input.taskset.format.image_key=images", "image_key", "text alone"),
        ("buffer.explorer_input.taskset.storage_type=sql", "storage_type", "JSONL or Parquet"),
        (
            "buffer.explorer_input.default_workflow_type=sciworld_workflow",
            "default_workflow_type",
            "wrap it as an environment",
        ),
        ("buffer.explorer_input.default_workflow_type=my.own.Flow", "default_workflow_type", "environment"),
        ("buffer.explorer_input.taskset.workflow_args={turns: 3}", "taskset.workflow_args", "has turns"),
        ("buffer.explorer_input.taskset.reward_fn_args={x: 3}", "taskset.reward_fn_args", "has x"),
        ("buffer.trainer_input.auxiliary_buffers={sft: {path: x}}", "auxiliary_buffers", "envsdk sft"),
        ("data_processor.experience_pipeline.operators=[{name: x}]", "operators", "group_filters"),
        ("explorer.auxiliary_models=[{model_path: x}]", "auxiliary_models", "judge"),
        ("explorer.rollout_model.data_parallel_size=2", "data_parallel_size", "engine_num"),
        ("trainer.trainer_config_path=train.yaml", "trainer_config_path", "sections of this file"),
        ("monitor.monitor_type=swanlab", "monitor_type", "tensorboard"),
    ],
)
def test_what_is_refused_says_what_to_do(override: str, key: str, words: str) -> None:
    message = refusal(override)
    assert key in message
    assert words in message
    assert "1 problem\n" in message


SIZES = ("engine_num", "tensor_parallel_size")


def test_colocate_takes_turns_on_one_device() -> None:
    tiny = load("mode=colocate").config
    assert (tiny.mode, tiny.async_generation_ratio) == ("both", 0)
    assert (tiny.actor_train.offload, tiny.actor_infer.offload) == ("all", "all")
    assert tiny.actor_infer.device_mapping is None
    model = "model.model_path=Qwen/Qwen3-0.6B"
    one_gpu = "cluster.gpu_per_node=1", *(f"explorer.rollout_model.{key}=1" for key in SIZES)
    one = load("mode=colocate", model, *one_gpu).config
    assert one.actor_train.device_mapping == one.actor_infer.device_mapping == [0]
    with pytest.raises(ConfigurationError, match="colocate is for one GPU and one engine"):
        load("mode=colocate", model)


@pytest.mark.parametrize(
    ("section", "key", "words"),
    [
        ({"taskset": "abc"}, "explorer_input.taskset", "a section of keys, not 'abc'"),
        ({"tasksets": ["a"]}, "explorer_input.tasksets", "a list of sections of keys, not ['a']"),
        ("abc", "buffer.explorer_input", "a section of keys, not 'abc'"),
        ({}, "explorer_input.taskset", "copy the section"),
    ],
)
def test_what_is_no_task_set_is_named_where_it_stands(section: Any, key: str, words: str) -> None:
    message = refusal(buffer={**yaml.safe_load(FILE)["buffer"], "explorer_input": section})
    assert key in message
    assert words in message
    assert "1 problem\n" in message


def playing(workflow: str, *overrides: str, **args: Any) -> LoadedConfig:
    """The file above, with another workflow."""
    buffer = yaml.safe_load(FILE)["buffer"]
    section = buffer["explorer_input"]
    section["default_workflow_type"] = workflow
    for each in (section["taskset"], *section["eval_tasksets"]):
        each |= {"workflow_args": args} if args else {}
    return load("monitor.monitor_type=tensorboard", *overrides, buffer=buffer)


def test_frozen_lakes_are_a_tag_for_each_size_that_the_rows_have(tmp_path: Path) -> None:
    rows = [{"seed": n, "size": 3 + n % 2, "p": 0.7} for n in range(20)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    loaded = playing("frozen_lake_workflow", agent_max_steps=12, env_max_steps=8, is_slippery=True).config
    assert list(loaded.custom_envs) == ["gsm8k-3", "gsm8k-4"]
    lake = loaded.custom_envs["gsm8k-4"]
    assert (lake.env_type, lake.max_steps) == ("envsdk/FrozenLake-v1", 12)
    assert {name: lake.env_config[name] for name in ("size", "p", "is_slippery", "random_start")} == {
        "size": 4,
        "p": 0.7,
        "is_slippery": True,
        "random_start": True,
    }
    manager = loaded.train_env_manager
    assert (manager.tags, manager.group_size, manager.num_env_groups) == (["gsm8k-3", "gsm8k-4"], 4, 5)
    assert (loaded.rollout_batch_size, loaded.num_train_groups) == (5 * 4, 5)
    assert (loaded.sequence_length, loaded.max_response_tokens("gsm8k-3")) == (256, 64)
    assert loaded.max_steps == 3 * 20 // 5
    assert (loaded.val_env_manager.group_size, loaded.val_batch_size) == (2, 20 * 2)
    assert not loaded.rewards


def test_an_evaluation_on_the_same_environments_plays_another_split_of_the_same_tags() -> None:
    same = {"name": "gsm8k", "path": "rows.jsonl"}
    given = yaml.safe_load(FILE)["buffer"]
    given["explorer_input"] |= {"default_workflow_type": "webshop_workflow", "taskset": same}
    given["explorer_input"]["eval_tasksets"] = [{**same, "split": "test"}]
    loaded = load(buffer=given).config
    assert (loaded.train_env_manager.tags, loaded.val_env_manager.tags) == (["gsm8k"], ["gsm8k_val"])
    given["explorer_input"]["default_workflow_type"] = "frozen_lake_workflow"
    loaded = load(buffer=given).config
    assert loaded.train_env_manager.tags == loaded.val_env_manager.tags == [f"gsm8k-{n}" for n in range(2, 6)]


def test_alfworlds_games_are_where_the_rows_say(tmp_path: Path) -> None:
    game = "/data/alf/json_2.1.1/train/a/b/game.tw-pddl"
    (tmp_path / "rows.jsonl").write_text(json.dumps({"game_file": game, "target": ""}) + "\n")
    format_ = "buffer.explorer_input.taskset.format.prompt_key=game_file"
    loaded = playing("step_wise_alfworld_workflow", format_, "buffer.total_steps=1", max_env_steps=30).config
    assert loaded.custom_envs["gsm8k"].env_config == {
        "max_steps": 30,
        "split": "train",
        "data_dir": "/data/alf",
    }
    assert loaded.custom_envs["gsm8k-eval_val"].env_config["split"] == "valid_seen"


def test_a_batch_of_episodes_counts_tasks_where_experiences_are_turns() -> None:
    given = ["algorithm.algorithm_type=multi_step_grpo", "buffer.train_batch_size=3840"]
    step_norm = "algorithm.advantage_fn_args={enable_step_norm: true}"
    loaded = playing("alfworld_workflow", *given, "buffer.total_steps=1", step_norm).config
    assert loaded.rollout_batch_size == 5 * 4
    assert loaded.algorithm.loss_agg_mode == "seq-mean-token-mean"


@pytest.mark.parametrize(
    ("workflow", "turns"), [("agentscope_react_workflow", 10), ("agentscopev0_react_math_workflow", 5)]
)
def test_an_agent_with_python_is_prompts_with_a_tool(workflow: str, turns: int) -> None:
    loaded = playing(workflow).config
    env = loaded.custom_envs["gsm8k"]
    assert (env.env_type, env.max_steps) == ("envsdk/ToolUse-v1", turns)
    assert env.env_config["env"] == "envsdk/Prompts-v1"
    inside = env.env_config["env_config"]
    assert inside["reward"] == {"worker_cls": "math", "extract": ["boxed"]}
    assert inside["columns"] == {"prompt": "question", "ground_truth": "answer"}
    assert env.env_config["tools"] == ["envsdk.adapters.tools.python_code:execute_python_code"]
    assert loaded.max_steps == 3 * 20 // 5


def test_an_agent_that_searches_needs_a_judge_for_each_of_its_tags() -> None:
    model = "explorer.auxiliary_models=[{model_path: some/judge}]"
    loaded = playing("agentscope_v1_react_search_workflow", model, search_client_type="tavily", max_turns=7)
    config = loaded.config.custom_envs["gsm8k"].env_config
    assert config["mcp_servers"]["search"]["command"][-1] == "tavily-mcp@latest"
    assert config["env_config"]["reward"] == {"worker_cls": "judge", "prompt": "match", "model": "some/judge"}
    lacking = [note.partition(":")[0] for note in loaded.machine_notes]
    assert lacking == [
        f"custom_envs.{tag}.env_config.env_config.reward.base_url" for tag in ("gsm8k", "gsm8k-eval_val")
    ]


def test_a_rubric_is_judged_by_the_auxiliary_model_at_an_address_that_is_given() -> None:
    model = "explorer.auxiliary_models=[{model_path: some/judge}]"
    loaded = playing("rubric_judge_workflow", model)
    assert loaded.config.rewards["gsm8k"].settings == {"prompt": "rubric", "model": "some/judge"}
    assert [note for note in loaded.machine_notes if note.startswith("rewards.gsm8k.base_url: is missing")]
    given = playing("rubric_judge_workflow", model, "rewards.gsm8k.base_url=run")
    assert given.config.rewards["gsm8k"].settings["base_url"] == "run"
    assert not given.machine_notes


def test_a_judge_behind_an_api_is_where_the_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("KEY", "secret")
    args = {"judge_model_name": "big", "judge_api_base_url_env": "JUDGE", "judge_api_key_env": "KEY"}
    loaded = playing("rubric_judge_openai_workflow", **args)
    assert loaded.config.rewards["gsm8k"].settings == {
        "prompt": "rubric",
        "model": "big",
        "base_url": "http://127.0.0.1:9/v1",
        "api_key_env": "KEY",
    }
    assert not loaded.machine_notes


def test_tool_calls_are_asked_for_behind_the_prompt_because_rows_have_a_system_message() -> None:
    loaded = playing("toolcall_workflow").config
    assert loaded.rewards["gsm8k"].worker_cls == "tool_calls"
    assert loaded.custom_envs["gsm8k"].agent_template.startswith("{observation}\n\nThink first")
    assert loaded.custom_envs["gsm8k"].agent_system_template == ""


def test_countdown_and_the_penalty_on_length_have_rewards_here() -> None:
    reward = "buffer.explorer_input.default_reward_fn_type"
    assert config(f"{reward}=countdown_reward").rewards["gsm8k"].worker_cls == "countdown"
    args = "{enable_overlong_penalty: true, penalty_factor: 0.5, max_response_length: 60, cache_length: 20}"
    parts = (
        config(f"{reward}=math_dapo_reward", f"buffer.explorer_input.taskset.reward_fn_args={args}")
        .rewards["gsm8k"]
        .settings["parts"]
    )
    assert parts["length"] == {"worker_cls": "length", "weight": 0.5, "max_length": 240, "buffer": 80}


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (
            {"algorithm_type": "asymre", "policy_loss_fn_args": {"tau": 0}},
            {"pg_variant": "opmd", "adv_args": {"baseline_shift": -0.1}, "kl_loss_coef": 0.0},
        ),
        (
            {"algorithm_type": "sppo", "policy_loss_fn_args": {"epsilon": 0.25}},
            {
                "pg_variant": "rec",
                "pg_args": {"ratio_over": "behavior", "sides": "two", "clip_low": 0.2, "clip_high": 0.25},
            },
        ),
        ({"algorithm_type": "rec"}, {"pg_variant": "vanilla", "grpo_normalize_std": False}),
        (
            {"algorithm_type": "rec", "policy_loss_fn_args": {"clip_mode": "one-side", "epsilon_low": 0.1}},
            {
                "pg_variant": "rec",
                "pg_args": {"ratio_over": "behavior", "sides": "one", "clip_low": 0.1, "clip_high": 0.2},
            },
        ),
    ],
    ids=str,
)
def test_losses_that_weigh_no_token_stay_unweighted(
    algorithm: dict[str, Any], expected: dict[str, Any]
) -> None:
    keys = config(algorithm={"repeat_times": 4, **algorithm}).algorithm
    assert {name: getattr(keys, name) for name in expected} == expected
    assert keys.train_infer_correction.is_weight.enabled is False


@pytest.mark.parametrize(
    ("strategy", "words"), [("fsdp2", "activations of complete"), ("megatron", "shards")]
)
def test_sequences_that_trinity_shards_are_no_silent_difference(strategy: str, words: str) -> None:
    given = {"trainer_strategy": strategy, "ulysses_sequence_parallel_size": 2}
    loaded = load("model.model_path=some/model", trainer=given)
    assert words in loaded.without_effect["trainer.ulysses_sequence_parallel_size"][1]


def test_an_explorer_may_bring_a_task_set_of_its_own() -> None:
    path = REFERENCE[0]
    assert path.name == "trinity-explorer-new.yaml"
    own = ["buffer.explorer_input.taskset.name=letters", "buffer.explorer_input.taskset.path=rows.jsonl"]
    job, other = load_config(path, to_explain=True).config, load_config(path, own, to_explain=True).config
    assert (job.train_env_manager.tags, other.train_env_manager.tags) == (["gsm8k"], ["letters"])
    assert other.custom_envs["letters"].env_config["files"] == ["rows.jsonl"]
    assert (other.run_folder, other.buffer) == (job.run_folder, job.buffer)


def test_a_trainer_needs_the_tasks_too() -> None:
    given = yaml.safe_load(FILE)["buffer"]
    del given["explorer_input"]
    assert "copy the section from the explorer's file" in refusal(buffer=given, mode="train")


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("buffer.total_epoch=1", "did you mean `total_epochs`?"),
        ("explorer.eval_intervall=1", "did you mean `eval_interval`?"),
        ("explorer.rollout_model.engine_nums=1", "did you mean `engine_num`?"),
        ("buffer.explorer_input.taskset.paths=x", "did you mean `path`?"),
        ("cluster.gpus_per_node=1", "did you mean `gpu_per_node`?"),
        ("rollout_batch_sise=1", "did you mean `rollout_batch_size`?"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_one(override: str, hint: str) -> None:
    assert hint in refusal(override)


def test_keys_of_ours_may_stand_on_top_and_replace_the_files() -> None:
    loaded = load("rollout_batch_size=10", "buffer.lease_s=9", "save_steps=4", "kl_loss_coef=0.5")
    assert (loaded.config.rollout_batch_size, loaded.config.buffer.lease_s) == (10, 9.0)
    assert (loaded.config.kl_loss_coef, loaded.config.save_steps) == (0.5, 4)
    assert loaded.provenance["rollout_batch_size"] == "override"


def test_rows_that_are_missing_are_a_note_until_the_steps_are_given() -> None:
    path = "buffer.explorer_input.taskset.path=openai/gsm8k"
    notes = load(path).machine_notes
    assert any(note.startswith("max_steps: follows from total_epochs") for note in notes)
    assert not any(note.startswith("max_steps") for note in load(path, "buffer.total_steps=5").machine_notes)
    with pytest.raises(ConfigurationError, match="openai/gsm8k is no folder, not in the hub's cache"):
        load_config("lesson.yaml", [path])


def test_what_is_explained_loads_again_as_ours(tmp_path: Path) -> None:
    loaded = load()
    again = tmp_path / "ours.yaml"
    again.write_text(loaded.resolved_yaml())
    assert load_config(again).config == loaded.config


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_files_of_ours_are_not_taken_for_trinitys(path: Path) -> None:
    assert not is_trinity_file(yaml.safe_load(path.read_text()))


def test_a_file_of_ours_with_a_mode_and_a_buffer_stays_ours() -> None:
    names = {"mode": "explore", "explorer": {"name": "a"}, "synchronizer": {"sync_interval": 2}}
    ours = {**names, "buffer": {"trainer_input": {"experience_buffer": {"name": "b"}}, "lease_s": 9}}
    assert not is_trinity_file(ours)
    assert not is_trinity_file({**names, "buffer": {"batch_size": 4}, "rollout_batch_size": 4})
    assert not is_trinity_file({**names, "model": {"model_path": "x"}, "project": "y"})
    assert is_trinity_file({**names, "buffer": {"batch_size": 4}})


def why_refused(overrides: tuple[str, ...]) -> str:
    """What is said of a file of this form; empty where it loads."""
    try:
        load(*overrides)
    except ConfigurationError as error:
        (line,) = str(error).splitlines()[1:]
        return line.partition("): ")[2]
    return ""


def test_the_page_says_which_example_files_load_and_which_do_not() -> None:
    assert examples_list(why_refused) in PAGE.read_text(), "write what it returns into the page"
    assert len({name for names, _ in GROUPS for name in names.split()}) == 54


def test_the_only_entry_of_tasksets_has_the_keys_of_taskset() -> None:
    alone, listed = (
        {row.key.replace(f".{section}.", ".") for row in TRINITY.rows if f".{section}." in row.key}
        for section in ("taskset", "tasksets.*")
    )
    assert alone == listed, "the reference says that both have the same keys"


def test_defaults_are_keys_of_ours() -> None:
    assert {key.split(".")[0] for key in TRINITY.table().defaults} <= set(RunConfig.model_fields)
