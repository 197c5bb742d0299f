"""The table: each key of ROLL's files that is not ours, and what becomes of it.

Pure data, but for the conversions in `conversions.py` and `environments.py`. The first row that matches a key
and applies to its value decides. A key without a row is ours, or unknown. `docs/coming-from-roll.md` lists
every row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from envsdk.config.foreign.row import NULL, Place, Row, converted, no_effect, refused, renamed
from envsdk.config.roll import conversions as c
from envsdk.config.roll import environments as e

_ROLES = "actor_train|actor_infer|reference|critic"
_TRAINERS = "actor_train|reference"
_MANAGERS = "train_env_manager|val_env_manager"
_ATTENTION = "fa2 beside bf16 or fp16: flash_attention_2; disabled: eager; sdpa: sdpa; else auto"
_OWN_KERNELS = "Megatron and engines choose their kernels themselves"
_MICRO = "micro-batches follow from tokens: actor_train.training_args.max_tokens_per_microbatch"
_LAYOUT = "is a detail of ROLL's Megatron; results are the same"
_FSDP = "is a detail of ROLL's FSDP; results are the same"
_UNREAD = "ROLL's code reads it nowhere"
_ONE_MODEL = "every role has the model that `pretrain` names"

ROWS: tuple[Row, ...] = (
    # The run.
    *no_effect("hydra", "envsdk composes `defaults` itself and has no output folder of Hydra's"),
    *no_effect("system_envs *.system_envs", "set variables of the environment before the run starts"),
    *no_effect(
        "max_ckpt_to_keep",
        "all checkpoints are kept: save_steps says how many, and old folders may be removed",
    ),
    *no_effect("otlp_output_dir", "`trackers: [otel]` sends traces and metrics to a collector"),
    *no_effect("transfer_backend", "model_update_transport says how weights travel"),
    *no_effect("router_args", "requests go to the engine with their prefix, or the least load"),
    *no_effect(
        "user_defined_rollout_loop_cls",
        "is ROLL's own",
        applies=lambda v, p: v is None or str(v).startswith("roll."),
        condition="null, or roll.*",
    ),
    refused(
        "user_defined_rollout_loop_cls",
        "the loop is envsdk's: write an env manager (env_manager_cls), a group filter (group_filters) or a "
        "reward instead; docs/how-to-add.md",
    ),
    *no_effect("use_opd is_pure_opd", "distills nothing", applies=lambda v, p: not v, condition="false"),
    refused(
        "use_opd",
        "distillation is not there: train with rewards alone and leave it out, or imitate the teacher's "
        "episodes with `envsdk collect` and `envsdk sft`",
    ),
    refused(
        "is_pure_opd",
        "distillation is not there: imitate the teacher's episodes with `envsdk collect` and `envsdk sft`",
    ),
    *no_effect("opd_kl_coef *.opd_kl_coef", "has no effect without use_opd"),
    *no_effect("logging_dir render_save_dir", "everything goes to the run's folder: output_dir/exp_name"),
    *no_effect(
        "rollout_dump_dir rollout_mock",
        "every trajectory is kept in the run's folder; `envsdk replay` plays it again",
        applies=lambda value, place: not isinstance(value, dict) or value.get("mode", "dump") == "dump",
        condition="but mode: mock",
    ),
    refused(
        "rollout_mock",
        "mode: mock is not there: `envsdk replay` plays recorded trajectories again; leave it out",
    ),
    *no_effect("checkpoint_config", "checkpoints go to the run's folder: output_dir/exp_name"),
    converted("resume_from_checkpoint", "resume", c.resume, "false: never; a path: that checkpoint"),
    converted(
        "track_with",
        "trackers",
        c.trackers,
        "trackers that are not there: tensorboard; metrics always go to metrics.jsonl",
    ),
    converted(
        "tracker_kwargs",
        "tracker_args",
        c.tracker_args,
        "of wandb: project, entity, group, tags, notes, mode; keys come from the environment: WANDB_API_KEY",
        applies=lambda value, place: bool(c.tracker_args(value, place)),
        condition="with settings of wandb",
    ),
    *no_effect("tracker_kwargs model_name", "trackers write to the run's folder"),
    *no_effect(
        "num_gpus_per_node num_nodes", "device_mapping says which devices are used; ray.address, where"
    ),
    *no_effect(
        "model_download_type", "models come from the Hugging Face hub, or from a folder: pretrain: DIR"
    ),
    *no_effect("rpc_timeout", "engines and workers have deadlines of their own"),
    *no_effect(
        "profiler_output_dir profiler_memory profiler_timeline", "`timeline.json` in the run's folder"
    ),
    *no_effect("offload_nccl *.offload_nccl is_offload_states", "roles do not take turns on one device"),
    *no_effect("reward_pretrain reward_model", "rewards that need a model ask a server that you start"),
    *no_effect("global_template", "chats are rendered by the model's own template"),
    *no_effect(
        "env_monitor.enable env_monitor.monitor_interval env_monitor.hung_timeout",
        "turns and episodes have deadlines: step_timeout_s, episode_deadline_s",
    ),
    *no_effect("partial_gpu_mode", "engines keep their devices"),
    *no_effect("skip_mock_system_prompt parse_tool_call_parameter_to_dict", "is about ROLL's own rendering"),
    *no_effect("val_greedy val_n_sample", _UNREAD),
    refused(
        "custom_env",
        "did you mean custom_envs? Without it the tags of ROLL's own list of environments are played",
        applies=lambda v, p: not p.get("custom_envs"),
        condition="without custom_envs",
    ),
    *no_effect("custom_env", "is there for ${...} to read"),
    *no_effect("default_history_length", "the policy sees all turns of the episode, as a chat"),
    converted(
        "max_steps",
        "max_steps",
        c.no_end,
        "-1 stands for 1000000",
        applies=lambda v, p: v == -1,
        condition="-1",
    ),
    # The algorithm.
    converted(
        "adv_estimator",
        "adv_estimator, reinforce_baseline",
        c.estimator,
        "is REINFORCE without a baseline, as in ROLL, where reward_normalization alone compares rewards; "
        "for GRPO set reward_normalization: {grouping: traj_group_id, method: mean_std}",
        only_their_files=True,
        applies=c.baseline_note,
        condition="grpo without reward_normalization",
    ),
    converted(
        "adv_estimator",
        "adv_estimator, reward_normalize_*, reward_level, gamma, ...",
        c.estimator,
        "with the reward normalization that ROLL does before it",
        only_their_files=True,
    ),
    *no_effect(
        "reward_normalization.grouping reward_normalization.method reward_normalization.norm_mean_type "
        "reward_normalization.norm_std_type norm_mean_type norm_std_type step_reward_gamma "
        "step_reward_weight episode_reward_weight",
        "is part of adv_estimator's conversion",
        only_their_files=True,
    ),
    *no_effect(
        "reward_clip",
        "no reward is beyond it: none of n is farther than (n - 1) / sqrt(n) deviations from their mean",
        only_their_files=True,
        applies=lambda v, p: p.get("adv_estimator") != "gigpo" and not c.reward_clip_acts(v, p),
        condition="beside rewards that are normalized by the group; 0",
    ),
    converted(
        "reward_clip",
        "advantage_clip",
        c.gigpo_clip,
        "the smaller of the two",
        only_their_files=True,
        applies=lambda v, p: p.get("adv_estimator") == "gigpo" and isinstance(v, int | float) and v > 0,
        condition="beside gigpo",
    ),
    *no_effect(
        "gamma",
        "is step_reward_gamma here",
        only_their_files=True,
        applies=c.discounts_steps,
        condition="beside step_reinforce and gigpo",
    ),
    *no_effect("batch_adjust_mode", "batches need not be divisible by anything"),
    *no_effect("add_token_level_kl", "decides whether init_kl_coef is used", only_their_files=True),
    *no_effect(
        "init_kl_coef target_kl kl_horizon kl_penalty",
        "has no effect in ROLL either: add_token_level_kl is not set, or init_kl_coef is 0",
        only_their_files=True,
        applies=c.has_no_kl_reward,
        condition="without a KL penalty",
    ),
    converted("kl_penalty", "kl_reward_type", c.kl_penalty, "kl: k1, mse: k2, k3: k3"),
    *no_effect(
        "kl_horizon",
        "has no effect without target_kl",
        only_their_files=True,
        applies=lambda v, p: p.get("target_kl") is None,
        condition="without target_kl",
    ),
    *no_effect("use_kl_loss", "decides whether kl_loss_coef is used"),
    *no_effect(
        "kl_loss_coef",
        "has no effect in ROLL either: use_kl_loss is not set",
        only_their_files=True,
        applies=lambda v, p: not p.get("use_kl_loss"),
        condition="without use_kl_loss",
    ),
    converted("dual_clip_loss", "dual_clip", c.dual_clip, "true: 1 + 2 * pg_clip"),
    converted("pg_clip", "pg_clip_low, pg_clip_high", c.pg_clip, "", only_their_files=True),
    *no_effect("use_pg_clip_range", "decides between pg_clip and pg_clip_low, pg_clip_high"),
    *no_effect(
        "pg_clip_low pg_clip_high",
        "has no effect in ROLL either: use_pg_clip_range is not set",
        only_their_files=True,
        applies=lambda v, p: not p.get("use_pg_clip_range"),
        condition="without use_pg_clip_range",
    ),
    converted("importance_sampling", "pg_variant", c.importance_sampling, "seq: segment_ppo"),
    converted("ratio_type", "pg_variant", c.ratio_type, "segment: segment_ppo"),
    converted("actor_train.pg_variant", "pg_variant, pg_args", c.pg_variant, "as top-level pg_variant"),
    converted("pg_variant", "pg_variant, pg_args", c.pg_variant, "", only_their_files=True),
    *no_effect(
        " ".join(f"{name} actor_train.{name}" for name in c.VARIANT_ARGS),
        "is part of pg_variant's conversion",
    ),
    renamed("max_grad_norm", "actor_train.training_args.max_grad_norm"),
    converted("rl_loss_coef", "", c.rl_loss_coef, "1.0 alone: scale training_args.learning_rate instead"),
    refused(
        "whiten_rewards",
        "true is not there: use reward_normalize_mean and reward_normalize_std",
        applies=lambda v, p: bool(v),
    ),
    *no_effect(
        "whiten_rewards enable_reference enable_old_logprobs_recompute force_disable_old_logprobs_recompute",
        "follows from the other keys",
    ),
    *no_effect(
        "reward_normalization.global_scale_factor reward_normalization.global_shift_value "
        "val_response_length "
        "dirty_data_mask open_feedback_turn use_token_reward "
        "reward_norm reward_shift reward_scale use_reward_scaling use_reward_norm add_len_reward "
        "postive_loss_coef positive_loss_coef use_topr_neg_loss_coef use_topr_loss use_policy_loss_type "
        "mask_type balance_length minibatch_data_iter_num l2 world_size",
        _UNREAD,
    ),
    converted(
        "error_max_len_threshold",
        "error_max_len_threshold",
        c.threshold,
        "9999999999: none",
        applies=lambda v, p: v == 9999999999,
        condition="9999999999",
    ),
    converted(
        "train_infer_correction.is_weight.detach", "", c.is_true, "true alone: weights have no gradient"
    ),
    *no_effect(
        "train_infer_correction.is_weight.enabled",
        "as when absent: where the loss needs it",
        applies=lambda v, p: v is None,
        condition="null",
    ),
    # Prompts.
    *no_effect(
        "val_prompt_length val_sequence_length",
        "is that of training",
        applies=lambda v, p: v in (None, p.get(str(p.path[0]).removeprefix("val_")), c.sequence_length(p)),
        condition="as in training",
    ),
    refused(
        "val_prompt_length",
        "one prompt_length holds for training and validation: set it to the larger of the two",
    ),
    refused(
        "val_sequence_length",
        "one sequence_length holds for training and validation: set it to the larger of the two, and limit "
        "replies with max_new_tokens in validation.generating_args or val_env_manager.generating_args",
    ),
    *no_effect("dataset_filter", "says nothing", applies=lambda v, p: not v, condition="empty"),
    refused("dataset_filter", "filter the rows before; `rewards.*.tag_included` chooses by tag"),
    *no_effect(
        "rewards.*.reward_manager_config", "is about ROLL's remote reward system: `worker_cls: remote`"
    ),
    converted(
        "val_batch_size",
        "val_batch_size",
        c.all_held_out,
        "-1: all rows",
        applies=lambda v, p: v == -1,
        condition="-1",
    ),
    renamed("is_use_additional_prompts", "use_additional_prompts"),
    *no_effect(
        "generate_opt_level",
        "is 1: responses are scheduled one by one",
        applies=lambda v, p: v == 1,
        condition="1",
    ),
    refused("generate_opt_level", "0 is not there: one scheduler serves all runs; leave it out"),
    *no_effect(
        "tag_to_template actor_train.data_args.interleave_probs",
        "the model's own chat template is used, and domain_interleave_probs",
    ),
    *no_effect(
        "actor_train.data_args",
        "the model's own chat template is used; no file is named",
        applies=lambda v, p: isinstance(v, dict) and "file_name" not in v,
        condition="without file_name",
    ),
    *no_effect(
        "validation.data_args",
        "no file is named",
        applies=lambda v, p: isinstance(v, dict) and "file_name" not in v,
        condition="without file_name",
    ),
    *no_effect(
        "actor_train|validation.data_args.template actor_infer.data_args reference.data_args",
        "chats are rendered by the model's own template",
    ),
    *no_effect("validation.eval_steps", "the file's eval_steps holds"),
    *no_effect("validation.data_args.interleave_probs", "the set is played as a whole"),
    # Sampling.
    *no_effect(
        "*.generating_args.num_beams", "replies are sampled", applies=lambda v, p: v == 1, condition="1"
    ),
    refused("*.generating_args.num_beams", "beam search is not there: replies are sampled; set it to 1"),
    *no_effect(
        "actor_infer.generating_args.num_return_sequences",
        "follows from num_return_sequences_in_group or group_size",
    ),
    converted(
        "*.generating_args.top_k",
        "top_k",
        lambda v, p: {"*.generating_args.top_k": 0},
        "-1: 0",
        applies=lambda v, p: v == -1,
        condition="-1",
    ),
    converted(
        "*.generating_args.top_p",
        "top_p",
        lambda v, p: {"*.generating_args.top_p": float(v)},
        "",
        applies=lambda v, p: type(v) is int,
        condition="an integer",
    ),
    *no_effect("*.generating_args.do_sample", "temperature decides: 0 is greedy"),
    *no_effect(
        "*.generating_args.stop_strings *.generating_args.include_stop_str_in_output",
        "a reply ends where the model ends it, or at max_new_tokens",
    ),
    *no_effect("*.generating_args.logprobs", "they are always recorded"),
    *no_effect(
        "*.generating_args.repetition_penalty",
        "is no penalty",
        applies=lambda v, p: v == 1,
        condition="1.0",
    ),
    refused("*.generating_args.repetition_penalty", c.NO_PENALTY),
    *no_effect("*.generating_args.max_length", "max_new_tokens holds"),
    *no_effect("*.generating_args.length_penalty", "is about beam search"),
    *no_effect(
        "actor_infer.infer_batch_size",
        "ROLL does not read it where it samples: max_running_requests is the limit",
        only_their_files=True,
    ),
    # Roles.
    *no_effect("critic", "values come from a head on the policy: there is no second model"),
    *no_effect("reward", "rewards are those of environments and of `rewards`"),
    converted(
        f"{_ROLES}.worker_cls", "", c.worker_class, "ROLL's own classes: the role's plug-in does the work"
    ),
    *no_effect(f"{_TRAINERS}.infer_batch_size", _MICRO),
    renamed(
        "actor_train.max_tokens_per_microbatch_in_train",
        "actor_train.training_args.max_tokens_per_microbatch",
    ),
    *no_effect(
        f"{_ROLES}.use_dynamic_batching_in_train {_ROLES}.use_dynamic_batching_in_infer "
        f"{_ROLES}.max_tokens_per_microbatch_in_infer reference.max_tokens_per_microbatch_in_train "
        f"{_ROLES}.sequence_length_round_in_train {_ROLES}.sequence_length_round_in_infer "
        f"{_ROLES}.use_remove_padding {_ROLES}.use_sequence_packing {_ROLES}.sequence_packing_args "
        f"{_ROLES}.logits_in_fp32",
        _MICRO,
    ),
    *no_effect(
        f"{_ROLES}.router_replay",
        "replays nothing",
        applies=lambda v, p: not isinstance(v, dict) or v.get("mode", "disable") == "disable",
        condition="mode: disable",
    ),
    refused(
        f"{_ROLES}.router_replay",
        "the experts that the engine chose are not replayed: set mode: disable, and hold the gap with "
        "train_infer_correction",
    ),
    *no_effect(
        f"{_ROLES}.mtp_training_mode",
        "trains no further head",
        applies=lambda v, p: v in (None, "disabled"),
        condition="disabled",
    ),
    refused(
        f"{_ROLES}.mtp_training_mode", "multi-token prediction heads are not trained: set it to disabled"
    ),
    *no_effect(
        f"{_ROLES}.model_update_frequency",
        "engines get weights after every step",
        applies=lambda v, p: v == 1,
        condition="1",
    ),
    refused(
        f"{_ROLES}.model_update_frequency",
        "engines get weights after every step: set it to 1; explorers have synchronizer.sync_interval",
    ),
    *no_effect("actor_infer.num_gpus_per_worker", "follows from device_mapping and tensor_parallel_size"),
    converted(
        f"{_TRAINERS}.model_args.flash_attn",
        "attn_implementation",
        c.attention,
        _ATTENTION,
        applies=lambda v, p: c.chooses_attention(p),
        condition="with fsdp2_train",
    ),
    converted(
        f"{_TRAINERS}.model_args.attn_implementation",
        "attn_implementation",
        c.attention,
        _ATTENTION,
        applies=lambda v, p: c.chooses_attention(p) and v in (None, *c.ATTENTION),
        condition="in ROLL's words, with fsdp2_train",
    ),
    *no_effect(
        f"{_TRAINERS}.model_args.attn_implementation",
        _OWN_KERNELS,
        only_their_files=True,
        applies=lambda v, p: not c.chooses_attention(p),
        condition="with megatron_train",
    ),
    *no_effect(
        f"{_TRAINERS}.model_args.flash_attn actor_infer|critic.model_args.flash_attn "
        "actor_infer|critic.model_args.attn_implementation",
        _OWN_KERNELS,
    ),
    *no_effect(
        f"{_ROLES}.model_args.model_type",
        "the model's folder says it",
        applies=lambda v, p: v in (None, "causal_lm"),
        condition="null, or causal_lm",
    ),
    *no_effect(
        f"{_ROLES}.model_args.lora_dropout",
        "is none",
        applies=lambda v, p: not v,
        condition="0",
    ),
    refused(
        f"{_ROLES}.model_args.lora_dropout",
        "adapters have no dropout, which would change log-probabilities; set 0",
    ),
    *no_effect(
        f"{_ROLES}.model_args.additional_target",
        "names nothing",
        applies=lambda v, p: not v,
        condition="null",
    ),
    refused(
        f"{_ROLES}.model_args.additional_target",
        "the adapter alone is trained: leave it out, or train all weights without lora_rank",
    ),
    converted(
        "actor_train.model_args.disable_gradient_checkpointing",
        "gradient_checkpointing",
        c.gradient_checkpointing,
        "with fsdp2_train",
        applies=c.trains_with_fsdp2,
        condition="with fsdp2_train",
    ),
    *no_effect(
        f"{_ROLES}.model_args.disable_gradient_checkpointing",
        "Megatron has recompute_granularity; others have nothing to recompute",
    ),
    converted(f"{_TRAINERS}.model_args.dtype", "dtype", c.trainer_dtype, "bf16 and fp16: bfloat16"),
    converted("actor_infer.model_args.dtype", "dtype", c.engine_dtype, "bf16: bfloat16, fp16: float16"),
    converted(
        "actor_train.model_args.lora_rank",
        "strategy_config.lora",
        c.lora,
        "fsdp2_train trains the adapter, also in place of megatron_train",
    ),
    *no_effect(
        "actor_train.model_args.lora_alpha actor_train.model_args.lora_target",
        "is part of lora_rank's conversion",
    ),
    converted(
        "actor_infer.model_args.lora_rank",
        "enable_lora, max_lora_rank",
        c.engine_lora,
        "vllm takes adapters",
    ),
    *no_effect(
        "actor_infer.model_args.lora_alpha actor_infer.model_args.lora_target", "come with the adapter"
    ),
    *no_effect(
        f"{_ROLES}.model_args.ulysses_size",
        "sequences are not sharded; megatron_train can, by context_parallel_size",
    ),
    *no_effect(
        f"{_ROLES}.model_args.model_name_or_path",
        _ONE_MODEL,
        applies=lambda v, p: v == p.get("pretrain"),
        condition="pretrain",
    ),
    refused(f"{_ROLES}.model_args.model_name_or_path", f"{_ONE_MODEL}; leave it out"),
    *no_effect(
        f"{_ROLES}.model_args.freeze_module_prefix",
        "a model's text part alone is trained",
        applies=lambda v, p: "vision" in str(v) or "visual" in str(v),
        condition="vision's",
    ),
    # Training.
    *no_effect(
        "actor_train.training_args.per_device_train_batch_size",
        "is part of gradient_accumulation_steps' conversion",
    ),
    converted(
        "actor_train.training_args.gradient_accumulation_steps",
        "ppo_mini_batch_size",
        c.mini_batch,
        "per_device_train_batch_size x gradient_accumulation_steps x data-parallel ranks; none where that "
        "is the batch",
    ),
    *no_effect("actor_train.training_args.num_train_epochs", "max_steps decides"),
    *no_effect(
        "actor_train.training_args.warmup_steps",
        "warmup_ratio holds",
        only_their_files=True,
        applies=lambda v, p: v == 0 and bool(p.beside("warmup_ratio")),
        condition="0 beside warmup_ratio",
    ),
    converted(
        "actor_train.training_args.warmup_ratio", "warmup_steps", c.warmup_ratio, "of all optimizer steps"
    ),
    converted(
        "actor_train.training_args.lr_scheduler_type",
        "lr_scheduler_type, max_steps",
        c.scheduler,
        "decays to the run's last optimizer step",
        only_their_files=True,
    ),
    # Trainers.
    converted(
        "actor_train.strategy_args.strategy_name",
        "strategy_name",
        c.trainer,
        "",
        applies=c.changes_trainer,
        condition="megatron_train beside lora_rank",
    ),
    converted(
        "reference.strategy_args.strategy_name",
        "strategy_name",
        c.reference_trainer,
        "megatron_infer: megatron_train; hf_infer and fsdp2_infer: fsdp2_train",
        applies=lambda v, p: v in c.REFERENCE_TRAINERS,
        condition="*_infer",
    ),
    refused(
        f"{_TRAINERS}.strategy_args.strategy_name",
        "DeepSpeed is not there: take fsdp2_train or megatron_train",
        applies=lambda v, p: isinstance(v, str) and v.startswith("deepspeed"),
    ),
    *no_effect(
        f"{_ROLES}.strategy_args.strategy_config",
        "says nothing",
        applies=lambda v, p: v is None,
        condition="null",
    ),
    *no_effect(
        f"{_TRAINERS}.strategy_args.strategy_config",
        "fsdp2_train has no such settings",
        applies=c.changes_trainer_settings,
        condition="Megatron's, beside lora_rank",
    ),
    *no_effect(
        f"{_TRAINERS}.strategy_args.strategy_config.sequence_parallel",
        "has no effect without tensor_model_parallel_size of 2 or more",
        applies=lambda v, p: not v or p.beside("tensor_model_parallel_size", default=1) == 1,
        condition="without tensor parallelism",
    ),
    *no_effect(
        f"{_TRAINERS}.strategy_args.strategy_config.virtual_pipeline_model_parallel_size",
        "has no effect without pipeline_model_parallel_size of 2 or more",
        applies=lambda v, p: p.beside("pipeline_model_parallel_size", default=1) == 1,
        condition="without pipeline parallelism",
    ),
    renamed(
        f"{_TRAINERS}.strategy_args.strategy_config.max_grad_norm",
        "actor_train.training_args.max_grad_norm",
    ),
    *no_effect(
        " ".join(
            f"{_TRAINERS}.strategy_args.strategy_config.{name}"
            for name in [
                "apply_rope_fusion",
                "bias_activation_fusion",
                "cross_entropy_loss_fusion",
                "bf16",
                "fp16",
                "recompute_modules",
                "recompute_method",
                "recompute_num_layers",
                "moe_grouped_gemm",
                "moe_layer_recompute",
                "moe_shared_expert_overlap",
                "moe_token_dispatcher_type",
                "moe_aux_loss_coeff",
                "account_for_embedding_in_pipeline_split",
                "account_for_loss_in_pipeline_split",
                "additional_configs",
                "pipeline_model_parallel_layout",
                "distrib_optim_fully_reshardable",
                "use_batched_model_update",
            ]
        ),
        _LAYOUT,
    ),
    renamed(
        f"{_TRAINERS}.strategy_args.strategy_config.fsdp_size", "*.strategy_args.strategy_config.shard_size"
    ),
    *no_effect(f"{_TRAINERS}.strategy_args.strategy_config.param_dtype", "model_args.dtype says it"),
    *no_effect(f"{_TRAINERS}.strategy_args.strategy_config.offload_policy", "weights stay on their device"),
    *no_effect(
        " ".join(
            f"{_TRAINERS}.strategy_args.strategy_config.{name}"
            for name in [
                "reduce_dtype",
                "wrap_policy",
                "ep_size",
                "efsdp_size",
                "apply_expert_patch",
                "apply_tiled_mlp",
                "tiled_num_shards",
                "moe_use_grouped_mm",
                "async_save_ckpt",
            ]
        ),
        _FSDP,
    ),
    # Engines.
    *no_effect(
        "actor_infer.strategy_args.strategy_config.max_model_len",
        "is sequence_length",
        only_their_files=True,
    ),
    *no_effect(
        "actor_infer.strategy_args.strategy_config.sleep_level "
        "actor_infer.strategy_args.strategy_config.enable_memory_saver",
        "engines keep their devices",
    ),
    *no_effect(
        "actor_infer.strategy_args.strategy_config.VLLM_USE_V1 "
        "actor_infer.strategy_args.strategy_config.disable_log_stats "
        "actor_infer.strategy_args.strategy_config.disable_mm_preprocessor_cache",
        "the engine sets it",
    ),
    *no_effect("actor_infer.strategy_args.strategy_config.data_parallel_size", "num_engines makes copies"),
    # Managers of environments.
    *no_effect(
        f"{_MANAGERS}.format_penalty", "ROLL does not read it: env_config.format_penalty is the penalty"
    ),
    *no_effect(
        f"{_MANAGERS}.generating_args",
        "ROLL replaces it by actor_infer.generating_args",
        only_their_files=True,
        applies=c.infer_samples,
        condition="beside actor_infer.generating_args",
    ),
    converted(
        "train_env_manager.generating_args",
        "actor_infer.generating_args",
        c.sampling,
        "as if it stood there",
    ),
    converted(
        "val_env_manager.generating_args",
        "generating_args",
        c.sampling,
        "in ROLL's words",
        applies=lambda v, p: isinstance(v, dict) and p.is_theirs,
        condition="in ROLL's files",
    ),
    *no_effect(
        f"{_MANAGERS}.max_env_num_per_worker", "as when absent", applies=lambda v, p: v == 0, condition="0"
    ),
    *no_effect(f"{_MANAGERS}.max_traj_per_env", "environments play until the batch is full"),
    converted(f"{_MANAGERS}.worker_cls", "", c.worker_class, "ROLL's own classes"),
    converted(f"{_MANAGERS}.group_filter_cls", "", c.worker_class, "ROLL's own, which keeps everything"),
    *no_effect(
        f"{_MANAGERS}.llm_proxy.proxy_type",
        "is `policy`",
        applies=lambda v, p: v == "policy",
        condition="policy",
    ),
    *no_effect(
        f"{_MANAGERS}.llm_proxy.proxy_config",
        "the policy has no settings of its own",
        applies=lambda v, p: p.beside("proxy_type", default="policy") == "policy",
        condition="beside policy",
    ),
    refused(
        f"{_MANAGERS}.llm_proxy.proxy_type",
        "the policy that trains plays: set it to policy; `envsdk collect --policy` plays with other ones",
    ),
    *no_effect(f"{_MANAGERS}.llm_proxy.proxy_config", "goes with proxy_type"),
    # Environments.
    *e.ENVIRONMENT_ROWS,
    # Rewards.
    *e.REWARD_ROWS,
)

ROLL_DEFAULTS: dict[str, Callable[[Place], Any]] = {
    "loss_agg_mode": lambda place: "seq-mean-token-mean",
    "value_clip": lambda place: NULL,
    "lambd": lambda place: 0.95,
    **{f"actor_infer.generating_args.{name}": c.default_sampling(name) for name in c.SAMPLING_DEFAULTS},
    "actor_infer.num_engines": c.num_engines,
    "actor_train.training_args.lr_scheduler_type": c.default_scheduler,
    "actor_train.training_args.max_steps": c.default_decay,
    **{
        name: c.default_estimator(name)
        for name in ("adv_estimator", "reward_normalize_mean", "reward_normalize_std", "reward_level")
    },
}
"""What a key stands for that one of ROLL's files leaves out, where that is something else than ours; None: as
in ours."""
