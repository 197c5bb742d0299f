"""The table: each key of Trinity-RFT's files, and what becomes of it.

Pure data, but for the conversions in `conversions.py`, `algorithm.py` and `tasks.py`. The first row that
matches a key and applies to its value decides; what no row matches is a key of ours, or unknown.
`docs/coming-from-trinity.md` lists every row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from envsdk.config.foreign.row import Place, Row, converted, no_effect, refused, renamed
from envsdk.config.trinity import algorithm as a
from envsdk.config.trinity import conversions as c
from envsdk.config.trinity import tasks as t
from envsdk.config.trinity import workflows as w
from envsdk.config.trinity.task_keys import FOLLOWS, TASK_ROWS

_BUFFER = "buffer.trainer_input.experience_buffer"
_MODEL = "explorer.rollout_model"
_SAMPLING = "actor_infer.generating_args"

_MICRO = "micro-batches follow from tokens: max_token_len_per_gpu"
_OFFLOAD = "weights and optimizer stay on their devices"
_CHAT = "chats are rendered by the model's own template"
_API = "every engine answers an agent's requests: docs/agent-of-your-own.md"
_RETRIES = "programs try again for buffer.retry_s"
_BOTH = "mode: both publishes weights after every step"


def _is_both(value: Any, place: Place) -> bool:
    return c.is_alone(place)


ROWS: tuple[Row, ...] = (
    # The job.
    refused(
        "mode",
        "colocate is not there: engines and the trainer do not take turns on one device; take both",
        applies=lambda v, p: v == "colocate",
        condition="colocate",
    ),
    converted("checkpoint_root_dir", "output_dir", c.folder, "checkpoint_root_dir/project/group"),
    converted("project", "output_dir", c.folder, "checkpoint_root_dir/project/group"),
    converted("group", "output_dir", c.folder, "checkpoint_root_dir/project/group"),
    converted("name", "exp_name", c.name, ""),
    converted("continue_from_checkpoint", "resume", c.resume, "true: auto; false: never"),
    *no_effect("checkpoint_job_dir ray_namespace", FOLLOWS),
    *no_effect("ignore_validator_suggestions", "`--explain` says what a file lacks"),
    # The algorithm.
    converted(
        "algorithm.algorithm_type",
        "adv_estimator, pg_variant, kl_loss_coef, ...",
        a.algorithm,
        "with the functions that Trinity takes for it, where the file names none",
    ),
    *[
        converted(f"algorithm.{name}{end}", to, convert, "")
        for (name, convert), to in zip(
            a.CONVERSIONS.items(),
            (
                "adv_estimator, reward_normalize_*, group_filters, gamma, lambd",
                "pg_variant, pg_args, pg_clip_*, dual_clip, loss_agg_mode",
                "kl_loss_coef, kl_loss_type",
                "init_kl_coef, kl_reward_type",
                "entropy_loss_coef",
            ),
            strict=True,
        )
        for end in ("", "_args")
    ],
    converted("algorithm.loss_agg_mode", "loss_agg_mode", a.policy_loss),
    converted(
        "algorithm.repeat_times", "num_return_sequences_in_group, train_env_manager.group_size", t.group_size
    ),
    converted(
        "algorithm.bypass_old_logprobs",
        "pg_args.ratio_over",
        a.policy_loss,
        "true: behavior; false: proximal",
    ),
    *no_effect(
        "algorithm.sample_strategy algorithm.sample_strategy_args",
        "experience_buffer.selection chooses among complete groups",
        applies=lambda v, p: p.get("algorithm", "sample_strategy") in (None, "default"),
        condition="default",
    ),
    refused("algorithm.sample_strategy", "only default is there: experience_buffer.selection chooses"),
    *no_effect("algorithm.sample_strategy_args", "belongs to sample_strategy"),
    refused(
        "algorithm.enable_router_replay",
        "true is not there: the trainer computes its own routing; leave it out",
        applies=lambda v, p: bool(v),
        condition="true",
    ),
    *no_effect("algorithm.enable_router_replay", "is off"),
    refused(
        "algorithm.rollout_correction",
        "is train_infer_correction here: docs/algorithms.md",
        applies=lambda v, p: bool(v),
        condition="with keys",
    ),
    *no_effect("algorithm.rollout_correction", "is off"),
    converted(
        "algorithm.optimizer.lr", "actor_train.training_args.learning_rate", c.optimizer("learning_rate")
    ),
    converted(
        "algorithm.optimizer.weight_decay",
        "actor_train.training_args.weight_decay",
        c.optimizer("weight_decay"),
    ),
    converted("algorithm.optimizer.betas", "adam_beta1, adam_beta2", c.betas),
    converted("algorithm.optimizer.optimizer_type", "", a.optimizer_kind, "adam and adamw: AdamW"),
    converted("algorithm.optimizer.lr_warmup_steps", "warmup_steps", c.warmup, "-1: by the ratio"),
    converted("algorithm.optimizer.lr_warmup_steps_ratio", "warmup_steps", c.warmup, "of all training steps"),
    *[
        converted(
            f"algorithm.optimizer.{name}",
            "lr_scheduler_type, max_steps, min_lr_ratio",
            c.scheduler,
            "decays to the last training step",
        )
        for name in ("lr_scheduler_type", "warmup_style")
    ],
    *no_effect("algorithm.optimizer.min_lr_ratio", "is part of lr_scheduler_type's conversion"),
    *no_effect("algorithm.optimizer.clip_grad", "trainer.grad_clip is the limit"),
    # The model.
    renamed("model.model_path", "pretrain"),
    *no_effect("model.critic_model_path", "values come from a head on the policy: there is no second model"),
    *[
        converted(
            f"model.{name}",
            "prompt_length, response_length, sequence_length",
            c.prompt_length,
            "what one of the three leaves out follows from the others; longer prompts are left out",
        )
        for name in ("max_model_len", "max_prompt_tokens", "max_response_tokens")
    ],
    *no_effect("model.enable_prompt_truncation", "longer prompts are left out, and not cut"),
    *no_effect("model.min_response_tokens", "a reply ends where the model ends it"),
    *[
        converted(f"model.{name}", f"{_SAMPLING}.{name}", t.sampling, "the task set's rollout_args go before")
        for name in ("temperature", "top_p", "top_k")
    ],
    *no_effect("model.logprobs", "they are always recorded"),
    *no_effect("model.repetition_penalty", "is off", applies=lambda v, p: v == 1, condition="1"),
    refused(
        "model.repetition_penalty", "is not there: replies are sampled from the model alone; set it to 1"
    ),
    *no_effect("model.enable_thinking model.trust_remote_code", "the model's own template and code are used"),
    *no_effect(
        "model.custom_chat_template model.chat_template_path",
        _CHAT,
        applies=lambda v, p: v is None,
        condition="null",
    ),
    *[
        refused(f"model.{name}", "the model's own template is used: put yours into the model's folder")
        for name in ("custom_chat_template", "chat_template_path")
    ],
    converted(
        "model.lora_configs", "strategy_config.lora, enable_lora", c.lora, "fsdp2_train trains the adapter"
    ),
    *no_effect("model.fully_sharded_loras model.max_cpu_loras", "one adapter is there"),
    *no_effect(
        "model.rope_scaling model.rope_theta",
        "the model's config.json says it",
        applies=lambda v, p: v is None,
        condition="null",
    ),
    *[
        refused(f"model.{name}", "write it into the model's config.json, where trainer and engines read it")
        for name in ("rope_scaling", "rope_theta")
    ],
    *no_effect("model.tinker model.external_model", "is off"),
    # Devices.
    converted(
        "cluster.gpu_per_node",
        "device_mapping",
        c.devices,
        "engines have the first devices, trainers the others; mode: train and explore have all of theirs",
    ),
    converted("cluster.node_num", "device_mapping", c.devices, ""),
    *no_effect(
        "cluster.ray_address",
        "a runtime is started on this machine; ray.address joins one",
        applies=lambda v, p: v in (None, "auto"),
        condition="auto",
    ),
    renamed("cluster.ray_address", "ray.address"),
    *TASK_ROWS,
    # The experience buffer.
    renamed(f"{_BUFFER}.name", f"{_BUFFER}.name"),
    refused(
        f"{_BUFFER}.storage_type",
        "file in mode: train is training on recorded data: `envsdk sft` imitates it",
        applies=lambda v, p: v == "file" and p.get("mode") == "train",
        condition="file, in mode: train",
    ),
    converted(
        f"{_BUFFER}.storage_type",
        f"{_BUFFER}.storage_type",
        lambda v, p: {f"{_BUFFER}.storage_type": v},
        "all three are a database",
    ),
    converted(
        f"{_BUFFER}.path", f"{_BUFFER}.path", c.experience_path, "a JSON file: buffer.db in the run's folder"
    ),
    *no_effect(
        f"{_BUFFER}.replay_buffer",
        "mode: both trains on each experience once",
        applies=_is_both,
        condition="in mode: both",
    ),
    converted(
        f"{_BUFFER}.replay_buffer",
        "selection, max_uses",
        c.replay,
        "enable: selection: priority; max_uses is use_count_limit, or 2 with reuse_cooldown_time",
    ),
    converted(
        f"{_BUFFER}.max_read_timeout",
        "buffer.patience_s",
        lambda v, p: {"buffer.patience_s": v},
        "",
    ),
    *no_effect(f"{_BUFFER}.capacity", "follows from async_generation_ratio"),
    *no_effect(f"{_BUFFER}.max_retry_times {_BUFFER}.max_retry_interval", _RETRIES),
    *no_effect(
        f"{_BUFFER}.format {_BUFFER}.split {_BUFFER}.subset_name {_BUFFER}.enable_progress_bar "
        f"{_BUFFER}.data_selector {_BUFFER}.schema_type {_BUFFER}.index {_BUFFER}.batch_size "
        f"{_BUFFER}.tokenizer_path {_BUFFER}.total_epochs {_BUFFER}.total_steps {_BUFFER}.ray_namespace",
        "experiences are trajectories of the run's own",
    ),
    refused(
        "buffer.trainer_input.auxiliary_buffers",
        "training on other data beside experiences is not there: imitate it first, with `envsdk sft`",
        applies=lambda v, p: bool(v),
        condition="with a buffer",
    ),
    *no_effect("buffer.trainer_input.auxiliary_buffers", "is empty"),
    *no_effect("buffer.explorer_output buffer.tokenizer_path buffer.cache_dir", FOLLOWS),
    *no_effect(
        "data_processor.experience_pipeline.save_input data_processor.experience_pipeline.input_save_path",
        "every trajectory is kept in the run's folder",
    ),
    *[
        row
        for key in ("data_processor.experience_pipeline.operators", "data_processor.task_pipeline")
        for row in (
            refused(
                key,
                "pipelines are not there: prepare the rows before the run; group_filters and rewards take "
                "the place of operators on experiences",
                applies=lambda v, p: bool(v),
                condition="with operators",
            ),
            *no_effect(key, "is empty"),
        )
    ],
    *no_effect(
        "data_processor.experience_pipeline.inputs data_processor.experience_pipeline.output service",
        "belongs to pipelines, which are not there",
    ),
    # The explorer.
    renamed("explorer.name", "explorer.name"),
    *no_effect(
        "explorer.runner_per_model explorer.runner_num explorer.concurrent_mode "
        "explorer.max_repeat_times_per_runner explorer.runner_prepare_concurrency "
        "explorer.runner_prepare_max_retries explorer.runner_state_report_interval",
        "all episodes of the batch run at the same time: train_env_manager.num_env_groups",
    ),
    renamed("explorer.max_timeout", "train_env_manager.episode_deadline_s"),
    converted(
        "explorer.max_retry_times", "train_env_manager.max_group_attempts", c.retries, "and the first try"
    ),
    *no_effect("explorer.env_vars", "set variables of the environment before the run starts"),
    renamed("explorer.eval_interval", "eval_steps", "beside programs of their own, mode: bench evaluates"),
    *no_effect(
        "explorer.eval_on_startup", "an evaluation is made before and after, where there are files for it"
    ),
    *no_effect("explorer.bench_on_latest_checkpoint", "mode: bench evaluates the newest version each time"),
    *no_effect(
        "explorer.service_status_check_interval explorer.min_running_model_num",
        "engines that die are started again, while requests wait",
    ),
    *no_effect("explorer.db_url", "serve.out keeps ended sessions"),
    renamed("explorer.proxy_port", "serve.port"),
    renamed("explorer.listen_address", "serve.host"),
    converted(
        "explorer.over_rollout.ratio",
        "train_env_manager.num_groups_redundancy",
        c.spare_groups,
        "so many spare groups are played; a batch is complete without the slowest",
    ),
    *no_effect(
        "explorer.over_rollout.wait_after_min explorer.over_rollout.return_partial_tasks "
        "explorer.dynamic_timeout explorer.max_inflight_batches",
        "the first complete groups make a batch, and stragglers go into the next",
    ),
    *no_effect(
        "explorer.auxiliary_models",
        "its model_path is the judge's model, which you serve: rewards.*.base_url",
        applies=w.asks_judge,
        condition="with a judge",
    ),
    refused(
        "explorer.auxiliary_models",
        "models beside the policy are servers that you start; the reward `judge` asks one",
        applies=lambda v, p: bool(v),
        condition="with a model",
    ),
    *no_effect("explorer.auxiliary_models", "is empty"),
    converted(
        f"{_MODEL}.engine_type", "actor_infer.strategy_args.strategy_name", c.engine, "vllm_async: vllm"
    ),
    renamed(f"{_MODEL}.engine_num", "actor_infer.num_engines"),
    *[
        converted(
            f"{_MODEL}.{name}",
            f"actor_infer.strategy_args.strategy_config.{name}",
            c.engine_setting(name),
            "",
        )
        for name in (
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "gpu_memory_utilization",
            "enforce_eager",
            "enable_prefix_caching",
            "enable_chunked_prefill",
            "enable_expert_parallel",
            "dtype",
        )
    ],
    *no_effect(
        f"{_MODEL}.data_parallel_size",
        "engine_num makes copies",
        applies=lambda v, p: v == 1,
        condition="1",
    ),
    refused(f"{_MODEL}.data_parallel_size", "engine_num makes copies: multiply it, and set this to 1"),
    refused(
        f"{_MODEL}.extra_engine_args",
        "write engine settings under actor_infer.strategy_args.strategy_config",
        applies=lambda v, p: bool(v),
        condition="with keys",
    ),
    *no_effect(f"{_MODEL}.extra_engine_args", "is empty"),
    *no_effect(f"{_MODEL}.seed", "each reply is sampled with a seed of its own, which follows from seed"),
    *no_effect(
        f"{_MODEL}.enable_openai_api {_MODEL}.enable_history {_MODEL}.enable_log_requests {_MODEL}.base_port "
        f"{_MODEL}.api_key",
        _API,
    ),
    *no_effect(
        f"{_MODEL}.enable_auto_tool_choice {_MODEL}.tool_call_parser {_MODEL}.reasoning_parser "
        f"{_MODEL}.chat_template {_MODEL}.enable_thinking",
        _CHAT,
    ),
    *no_effect(
        f"{_MODEL}.max_model_len {_MODEL}.max_prompt_tokens {_MODEL}.max_response_tokens "
        f"{_MODEL}.min_response_tokens {_MODEL}.enable_prompt_truncation {_MODEL}.temperature {_MODEL}.top_p "
        f"{_MODEL}.top_k {_MODEL}.logprobs {_MODEL}.repetition_penalty {_MODEL}.model_path "
        f"{_MODEL}.rope_scaling {_MODEL}.rope_theta {_MODEL}.trust_remote_code",
        "`model` says it",
    ),
    *no_effect(
        f"{_MODEL}.name {_MODEL}.use_v1 {_MODEL}.ignore_eos {_MODEL}.enable_multimodal {_MODEL}.nnodes "
        f"{_MODEL}.node_rank {_MODEL}.gpu_per_engine {_MODEL}.enable_return_routed_experts "
        f"{_MODEL}.weight_sync_buffer_size {_MODEL}.external_model_config",
        "the engine sets it",
    ),
    # The trainer.
    *no_effect(
        "trainer.trainer_type",
        "trainer_strategy says it",
        applies=lambda v, p: v == "verl",
        condition="verl",
    ),
    refused("trainer.trainer_type", "only verl's strategies are there: fsdp2 and megatron"),
    converted(
        "trainer.trainer_strategy",
        "strategy_args.strategy_name",
        c.strategy,
        "fsdp and fsdp2: fsdp2_train; megatron: megatron_train",
    ),
    *[
        converted(f"trainer.megatron.{name}", f"strategy_config.{name}", c.megatron(name), "with megatron")
        for name in (
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "virtual_pipeline_model_parallel_size",
            "expert_model_parallel_size",
            "expert_tensor_parallel_size",
            "context_parallel_size",
            "sequence_parallel",
        )
    ],
    converted(
        "trainer.trainer_config",
        "strategy_args, gradient_checkpointing, ppo_epochs",
        c.verl,
        "of veRL's own keys: strategy, Megatron's sizes, checkpointing, epochs, bypass_mode",
    ),
    *no_effect("trainer.trainer_config_path", "is empty", applies=lambda v, p: not v, condition="empty"),
    refused("trainer.trainer_config_path", "write what differs into the sections of this file"),
    renamed("trainer.save_interval", "save_steps"),
    converted(
        "trainer.total_steps",
        "max_steps",
        t.max_steps,
        "buffer.total_steps goes before",
        applies=lambda v, p: bool(v),
    ),
    *no_effect("trainer.total_steps", "says nothing"),
    renamed("trainer.grad_clip", "actor_train.training_args.max_grad_norm"),
    renamed("trainer.critic_warmup", "critic_warmup"),
    renamed("trainer.max_token_len_per_gpu", "actor_train.training_args.max_tokens_per_microbatch"),
    *no_effect(
        "trainer.use_dynamic_bsz trainer.use_remove_padding trainer.balance_batch "
        "trainer.fix_actor_microbatch_loss_scale",
        _MICRO,
    ),
    *no_effect(
        "trainer.ulysses_sequence_parallel_size",
        "results are the same, but each device holds the activations of complete sequences, so many times "
        "more than in Trinity: take a smaller max_token_len_per_gpu, or trainer_strategy: megatron with "
        "context_parallel_size",
        applies=lambda v, p: isinstance(v, int) and v > 1 and c.trainer(None, p) != "megatron_train",
        condition="above 1, with fsdp",
    ),
    *no_effect(
        "trainer.ulysses_sequence_parallel_size", "megatron shards sequences by context_parallel_size"
    ),
    *no_effect(
        "trainer.param_offload trainer.optimizer_offload trainer.grad_offload trainer.offload_policy",
        _OFFLOAD,
    ),
    *no_effect(
        "trainer.save_hf_checkpoint trainer.save_strategy trainer.max_checkpoints_to_keep",
        "a checkpoint holds the model's folder, and is complete or not there",
    ),
    *no_effect("trainer.name trainer.trust_remote_code", FOLLOWS),
    *no_effect("trainer.enable_preview", "`envsdk view` shows episodes"),
    # Weights.
    *no_effect("synchronizer.sync_method", _BOTH, applies=_is_both, condition="in mode: both"),
    renamed("synchronizer.sync_method", "synchronizer.sync_method"),
    *[
        converted(
            f"synchronizer.{name}",
            "async_generation_ratio, synchronizer.sync_interval",
            c.ahead,
            "in mode: both, 1 where Trinity lets weights be older than a step, otherwise 0; for programs of "
            "their own, 1, and 1 more for each sync_interval of sync_offset",
        )
        for name in ("sync_interval", "sync_offset", "trainer_sync_interval")
    ],
    *no_effect(
        "synchronizer.explorer_sync_interval synchronizer.sync_style",
        "explorers take each version when it comes",
    ),
    renamed("synchronizer.sync_timeout", "synchronizer.sync_timeout"),
    *no_effect(
        "synchronizer.group_name synchronizer.wait_for_checkpoint synchronizer.explorer_world_size "
        "synchronizer.ray_namespace",
        FOLLOWS,
    ),
    # Records.
    converted("monitor.monitor_type", "trackers, tracker_args.*.project", c.trackers, "and jsonl"),
    converted(
        "monitor.monitor_args",
        "tracker_args.mlflow.tracking_uri",
        c.tracker_args,
        "keys: WANDB_API_KEY and the like",
    ),
    *no_effect("monitor.detailed_stats monitor.cache_dir", "metrics go to metrics.jsonl in full"),
    *no_effect("monitor.enable_ray_timeline", "`timeline.json` is in the run's folder"),
    *no_effect("log", "messages go to the terminal"),
    *no_effect("stages", "is empty"),
)


def _checkpointing(place: Place) -> Any:
    is_fsdp = c.trainer(None, place) == "fsdp2_train" and _has_no_trainer(place)
    return True if is_fsdp else None


def _has_no_trainer(place: Place) -> bool:
    """Whether no trainer of ours is named on top of the file."""
    return place.get("actor_train", "strategy_args", "strategy_name") is None


DEFAULTS: Mapping[str, Callable[[Place], Any]] = {
    "exp_name": lambda place: "rft",
    "output_dir": lambda place: c.folder(None, place)["output_dir"],
    "num_return_sequences_in_group": lambda place: None if t.is_played(place) else 1,
    "max_steps": lambda place: t.max_steps(None, place)["max_steps"],
    "async_generation_ratio": lambda place: c.ahead(None, place).get("async_generation_ratio"),
    "eval_steps": lambda place: 100,
    "save_steps": lambda place: 0,
    "actor_train.data_args.shuffle": lambda place: None if t.is_played(place) else False,
    "actor_train.training_args.learning_rate": lambda place: 1e-6,
    "actor_train.training_args.weight_decay": lambda place: 0.01,
    "actor_train.strategy_args.strategy_name": lambda place: c.trainer(None, place),
    "reference.strategy_args.strategy_name": lambda place: c.trainer(None, place),
    "actor_infer.strategy_args.strategy_name": c.engine_kind,
    "actor_train.model_args.dtype": lambda place: (
        "bfloat16" if _has_no_trainer(place) and not c.is_tiny(place) else None
    ),
    "reference.model_args.dtype": lambda place: (
        "bfloat16" if _has_no_trainer(place) and not c.is_tiny(place) else None
    ),
    "actor_train.model_args.gradient_checkpointing": _checkpointing,
}
"""What a key stands for that one of Trinity's files leaves out, where that is something else than ours; None:
as in ours."""
