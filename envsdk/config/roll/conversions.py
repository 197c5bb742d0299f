"""Values of ROLL's keys as values of ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from envsdk.config.foreign.row import Place
from envsdk.config.ranges import parse_index_list

REFERENCE_TRAINERS = {
    "megatron_infer": "megatron_train",
    "hf_infer": "fsdp2_train",
    "fsdp2_infer": "fsdp2_train",
}
ATTENTION = {"fa2": "flash_attention_2", "sdpa": "sdpa", "disabled": "eager", "auto": "auto"}
"""Of transformers' names, by ROLL's words."""
_TRACKERS: Mapping[Any, tuple[str, ...]] = {
    "wandb": ("project", "entity", "group", "tags", "notes", "mode"),
    "trackio": ("project", "tags", "notes"),
    "mlflow": ("project", "tags", "notes"),
}
"""Trackers of both, with the keys of ROLL's `tracker_kwargs` that they take."""
_STEPWISE = ("step_reinforce", "gigpo")
_FOREVER = 1_000_000


def resume(value: Any, place: Place) -> Mapping[str, Any]:
    return {"resume": "auto" if value is True else value if isinstance(value, str) else "never"}


def trackers(value: Any, place: Place) -> Mapping[str, Any]:
    """Trackers that envsdk lacks are replaced by TensorBoard."""
    if value in (None, "stdout", "jsonl"):
        return {"trackers": ["jsonl"]}
    return {"trackers": ["jsonl", value if value in _TRACKERS else "tensorboard"]}


def tracker_args(value: Any, place: Place) -> Mapping[str, Any]:
    """What W&B and trackio take in both; folders and keys are the environment's."""
    tracker = place.get("track_with")
    taken = _TRACKERS.get(tracker, ()) if isinstance(value, Mapping) else ()
    args = {name: value[name] for name in taken if value.get(name) is not None}
    if "tags" in args and isinstance(args["tags"], str):
        args["tags"] = [args["tags"]]
    return {f"tracker_args.{tracker}": args} if args else {}


def no_end(value: Any, place: Place) -> Mapping[str, Any]:
    return {"max_steps": _FOREVER}


def estimator(value: Any, place: Place) -> Mapping[str, Any]:
    """ROLL normalizes rewards and then sums them up; in ours some estimators normalize by themselves."""
    if value in _STEPWISE:
        return _stepwise(value, place)
    if value not in ("grpo", "reinforce", "agentic_reinforce"):
        return {"adv_estimator": value, **_normalization(place)}
    group_size = place.get("num_return_sequences_in_group") or place.get(
        "train_env_manager", "group_size", default=1
    )
    mean, std = _statistics(place)
    if value == "grpo" and place.has_prompts:
        mean = std = "group"
    if mean == "group" and std in ("group", "none") and group_size != 1:
        return {"adv_estimator": "grpo", "grpo_normalize_std": std == "group"}
    level = "turn" if value == "agentic_reinforce" else "token"
    return {
        "adv_estimator": "reinforce",
        "reinforce_baseline": "none",
        "discount_level": level,
        **_normalization(place),
    }


def _stepwise(value: str, place: Place) -> Mapping[str, Any]:
    gamma = place.get("step_reward_gamma", default=0.95)
    if value == "step_reinforce":
        return {
            "adv_estimator": "reinforce",
            "reinforce_baseline": "none",
            "discount_level": "turn",
            "gamma": gamma,
            **_normalization(place),
        }
    step, episode = (place.get(f"{name}_reward_weight", default=1.0) for name in ("step", "episode"))
    if not isinstance(step, int | float) or not isinstance(episode, int | float) or episode <= 0:
        raise ValueError("gigpo needs step_reward_weight and a positive episode_reward_weight")
    return {"adv_estimator": "gigpo", "gigpo_step_weight": step / episode, "gamma": gamma}


def _normalization(place: Place) -> Mapping[str, Any]:
    mean, std = _statistics(place)
    return {"reward_normalize_mean": mean, "reward_normalize_std": std}


def _statistics(place: Place) -> tuple[str, str]:
    """What rewards are compared with: of `none`, `group`, `batch`, `tag`."""
    section = place.get("reward_normalization", default={})
    section = section if isinstance(section, Mapping) else {}
    method, grouping = section.get("method", "identity"), section.get("grouping", "batch")
    over = "batch" if grouping == "batch" else "tag" if grouping == "tags" else "group"
    mean, std = {"mean": (over, "none"), "mean_std": (over, over), "asym_clip": (over, over)}.get(
        str(method), ("none", "none")
    )
    mean = section.get("norm_mean_type") or place.get("norm_mean_type") or mean
    std = section.get("norm_std_type") or place.get("norm_std_type") or std
    if "running" in (mean, std):
        raise ValueError("running statistics are not there: a reward would depend on when it was earned; "
                         "set norm_mean_type and norm_std_type to batch or group")  # fmt: skip
    if place.has_prompts:
        mean, std = ("tag" if each == "batch" else each for each in (mean, std))
    elif place.get("train_env_manager", "group_size", default=1) == 1:
        mean, std = ("none" if each == "group" else each for each in (mean, std))
    return mean, std


def default_estimator(place: Place) -> Any:
    return None if place.get("adv_estimator") else "gae"


def discounts_steps(value: Any, place: Place) -> bool:
    return place.get("adv_estimator") in _STEPWISE


def has_no_kl_reward(value: Any, place: Place) -> bool:
    is_off = place.has_prompts and not place.get("add_token_level_kl")
    return is_off or (place.get("init_kl_coef", default=0) == 0 and place.path != ("init_kl_coef",))


def kl_penalty(value: Any, place: Place) -> Mapping[str, Any]:
    known = {"kl": "k1", "mse": "k2", "k3": "k3"}
    if value not in known:
        raise ValueError(f"{value} is not there: use kl, mse or k3")
    return {"kl_reward_type": known[value]}


def dual_clip(value: Any, place: Place) -> Mapping[str, Any]:
    clip = place.get("pg_clip", default=0.2)
    return {"dual_clip": 1 + 2 * clip if value and isinstance(clip, int | float) else None}


def pg_clip(value: Any, place: Place) -> Mapping[str, Any]:
    return {} if place.get("use_pg_clip_range") else {"pg_clip_low": value, "pg_clip_high": value}


def importance_sampling(value: Any, place: Place) -> Mapping[str, Any]:
    if value not in ("token", "seq"):
        raise ValueError(f"{value!r} is neither token nor seq")
    return {"pg_variant": "segment_ppo"} if value == "seq" else {}


def pg_variant(value: Any, place: Place) -> Mapping[str, Any]:
    def own(name: str, default: Any) -> Any:
        return place.get(name, default=place.get("actor_train", name, default=default))

    args: Mapping[str, Any] = {
        "tis": {"ratio_over": "proximal", "upper_bound": own("tis_upper_bound", 1.0)},
        "topr": {"ratio_over": "proximal", "level": "token"},
        "cispo": {
            "ratio_over": "proximal",
            "clip_low": own("cispo_epsilon_low", 0.1),
            "clip_high": own("cispo_epsilon_high", 0.1),
        },
        "kimi15": {"level": "token", "tau": own("kimi15_tau", 0.1)},
    }.get(str(value), {})
    return {"pg_variant": value, **({"pg_args": args} if args else {})}


def rl_loss_coef(value: Any, place: Place) -> Mapping[str, Any]:
    if value == 0 and "use_topr_neg_loss_coef" in place.data:
        return {"pg_variant": "topr"}
    if value != 1:
        raise ValueError(
            f"is {value}: scale actor_train.training_args.learning_rate instead, and leave it out"
        )
    return {}


def is_true(value: Any, place: Place) -> Mapping[str, Any]:
    if value is not True:
        raise ValueError("false is not there: weights have no gradient; leave it out")
    return {}


def threshold(value: Any, place: Place) -> Mapping[str, Any]:
    return {"error_max_len_threshold": None}


def worker_class(value: Any, place: Place) -> Mapping[str, Any]:
    if value is not None and not str(value).startswith("roll."):
        raise ValueError(
            f"`{value}` is no class of ROLL's; what roles do is a plug-in here: see docs/how-to-add.md"
        )
    return {}


def has_lora(place: Place) -> bool:
    return place.get("actor_train", "model_args", "lora_rank") is not None


def trains_with_fsdp2(value: Any, place: Place) -> bool:
    return place.get("actor_train", "strategy_args", "strategy_name") == "fsdp2_train" or has_lora(place)


def changes_trainer(value: Any, place: Place) -> bool:
    return value == "megatron_train" and has_lora(place)


def changes_trainer_settings(value: Any, place: Place) -> bool:
    name = place.get("actor_train", "strategy_args", "strategy_name")
    return place.path[0] == "actor_train" and changes_trainer(name, place)


def trainer(value: Any, place: Place) -> Mapping[str, Any]:
    return {"actor_train.strategy_args.strategy_name": "fsdp2_train"}


def reference_trainer(value: Any, place: Place) -> Mapping[str, Any]:
    return {"reference.strategy_args.strategy_name": REFERENCE_TRAINERS[value]}


def gradient_checkpointing(value: Any, place: Place) -> Mapping[str, Any]:
    return {"actor_train.model_args.gradient_checkpointing": not value}


def trainer_dtype(value: Any, place: Place) -> Mapping[str, Any]:
    known = {"bf16": "bfloat16", "fp16": "bfloat16", "fp32": "float32"}
    return {"*.model_args.dtype": known.get(value, value)}


def chooses_attention(place: Place) -> bool:
    """Whether the role's trainer takes `attn_implementation` as transformers spells it."""
    role = str(place.path[0])
    name = place.get(role, "strategy_args", "strategy_name", default="torch")
    if role == "actor_train" and has_lora(place):
        return True
    return REFERENCE_TRAINERS.get(name, name) in ("torch", "fsdp2_train")


def attention(value: Any, place: Place) -> Mapping[str, Any]:
    chosen = ATTENTION.get(value, "auto")
    if chosen == "flash_attention_2" and place.beside("dtype") not in ("bf16", "fp16"):
        chosen = "auto"
    return {"*.model_args.attn_implementation": chosen}


def engine_dtype(value: Any, place: Place) -> Mapping[str, Any]:
    known = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
    return {"actor_infer.model_args.dtype": known.get(value, value)}


def lora(value: Any, place: Place) -> Mapping[str, Any]:
    target = place.beside("lora_target", default="all-linear")
    names = target if target == "all-linear" or not isinstance(target, str) else target.split(",")
    alpha = place.beside("lora_alpha", default=0)
    args = {"rank": value, "alpha": float(alpha), "target_modules": names}
    return {"actor_train.strategy_args.strategy_config.lora": args}


def engine_lora(value: Any, place: Place) -> Mapping[str, Any]:
    base = "actor_infer.strategy_args.strategy_config"
    return {f"{base}.enable_lora": True, f"{base}.max_lora_rank": value}


def mini_batch(value: Any, place: Place) -> Mapping[str, Any]:
    one = place.beside("per_device_train_batch_size", default=8)
    batch = _batch_size(place)
    if not isinstance(one, int) or not isinstance(value, int) or batch is None:
        return {}
    size = one * value * _data_parallel(place)
    return {"ppo_mini_batch_size": size} if size < batch else {}


def _batch_size(place: Place) -> int | None:
    """Trajectories of a training step."""
    prompts = place.get("rollout_batch_size")
    responses = place.get("num_return_sequences_in_group", default=1) if place.has_prompts else 1
    return prompts * responses if isinstance(prompts, int) and isinstance(responses, int) else None


def _data_parallel(place: Place) -> int:
    """Copies of the model that train side by side."""
    names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
    config = place.get("actor_train", "strategy_args", "strategy_config", default=None) or {}
    sizes = [config.get(name, 1) for name in names]
    sizes.append(place.get("actor_train", "model_args", "ulysses_size", default=1))
    ranks = _num_devices(place.get("actor_train", "device_mapping"))
    shared = math.prod(size for size in sizes if isinstance(size, int))
    return max(1, (ranks or 1) // max(1, shared))


def _num_devices(mapping: Any) -> int | None:
    try:
        devices = parse_index_list(mapping)
    except ValueError:
        return None
    return len(devices) if isinstance(devices, list) else None


def num_engines(place: Place) -> int | None:
    """ROLL has one engine for each `tensor_parallel_size` devices."""
    devices = _num_devices(place.get("actor_infer", "device_mapping"))
    config = place.get("actor_infer", "strategy_args", "strategy_config", default=None) or {}
    tensor = config.get("tensor_parallel_size") or place.get("actor_infer", "num_gpus_per_worker", default=1)
    pipeline = config.get("pipeline_parallel_size", 1)
    if not devices or not isinstance(tensor, int) or not isinstance(pipeline, int):
        return None
    return max(1, devices // (tensor * pipeline))


def _num_optimizer_steps(place: Place) -> int | None:
    batch, steps = _batch_size(place), place.get("max_steps")
    if batch is None or not isinstance(steps, int):
        return None
    args = place.get("actor_train", "training_args", default=None) or {}
    sizes = (
        args.get("per_device_train_batch_size", 8),
        args.get("gradient_accumulation_steps", 1),
        place.get("ppo_epochs", default=1),
    )
    one, many, epochs = (each if isinstance(each, int) else 1 for each in sizes)
    size = max(1, min(batch, one * many * _data_parallel(place)))
    return max(1, (_FOREVER if steps == -1 else steps) * math.ceil(batch / size) * epochs)


def warmup_ratio(value: Any, place: Place) -> Mapping[str, Any]:
    steps = _num_optimizer_steps(place)
    if place.beside("warmup_steps") or steps is None or not isinstance(value, int | float):
        return {}
    return {"actor_train.training_args.warmup_steps": math.ceil(value * steps)}


def scheduler(value: Any, place: Place) -> Mapping[str, Any]:
    return {"actor_train.training_args.lr_scheduler_type": value}


def default_scheduler(place: Place) -> Any:
    return "linear" if place.get("actor_train", "training_args") else None


def default_decay(place: Place) -> Any:
    args = place.get("actor_train", "training_args") or {}
    return (
        _num_optimizer_steps(place)
        if args and args.get("lr_scheduler_type", "linear") != "constant"
        else None
    )


def manager_sampling(value: Any, place: Place) -> Mapping[str, Any]:
    if place.get("actor_infer", "generating_args") or not isinstance(value, Mapping):
        return {}
    ours = {name: each for name, each in value.items() if name not in ("num_beams", "num_return_sequences")}
    return {"actor_infer.generating_args": ours}
