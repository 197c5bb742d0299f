"""Values of ROLL's keys as values of ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
    """ROLL normalizes rewards, clips them, pays them at the end of the sequence, and then sums them up; in
    ours some estimators normalize by themselves."""
    mean, std = _statistics(place)
    if value == "gigpo":
        return _gigpo(mean, std, place)
    if value in ("grpo", "reinforce") and _is_grpo(mean, std, place):
        return {"adv_estimator": "grpo", "grpo_normalize_std": std == "group"}
    common = {"reward_normalize_mean": mean, "reward_normalize_std": std}
    if value == "step_reinforce":
        gamma = place.get("step_reward_gamma", default=0.95)
        common |= {"discount_level": "turn", "gamma": gamma, "reward_level": "return"}
    elif not place.has_prompts:
        common |= {"reward_level": "trajectory"}
    if value not in ("grpo", "reinforce", "agentic_reinforce", "step_reinforce"):
        return {"adv_estimator": value, **common}
    level = {"discount_level": "turn" if value == "agentic_reinforce" else "token"}
    return {"adv_estimator": "reinforce", "reinforce_baseline": "none", **level, **common}


def _gigpo(mean: str, std: str, place: Place) -> Mapping[str, Any]:
    step, episode = (place.get(f"{name}_reward_weight", default=1.0) for name in ("step", "episode"))
    if not isinstance(step, int | float) or not isinstance(episode, int | float) or episode <= 0:
        raise ValueError("gigpo needs step_reward_weight and a positive episode_reward_weight")
    if mean != "group" or std not in ("group", "none"):
        raise ValueError(
            "gigpo compares within the group here: set reward_normalization to grouping: traj_group_id and "
            "method: mean or mean_std"
        )
    return {
        "adv_estimator": "gigpo",
        "gigpo_step_weight": step / episode,
        "grpo_normalize_std": std == "group",
        "gamma": place.get("step_reward_gamma", default=0.95),
    }


def _is_grpo(mean: str, std: str, place: Place) -> bool:
    """Whether the advantage is the normalized reward itself, on every token."""
    return (
        mean == "group"
        and std in ("group", "none")
        and _group_size(place) != 1
        and place.get("gamma", default=1) == 1
        and has_no_kl_reward(None, place)
        and not reward_clip_acts(place.get("reward_clip"), place)
    )


def reward_clip_acts(value: Any, place: Place) -> bool:
    """Whether any reward, normalized as ROLL does, can lie beyond `reward_clip`. Of n numbers none is farther
    than (n - 1) / sqrt(n) sample deviations from their mean."""
    size = _group_size(place)
    if (
        not isinstance(value, int | float)
        or not isinstance(size, int)
        or _statistics(place) != ("group",) * 2
    ):
        return bool(value)
    return value != 0 and value < (size - 1) / math.sqrt(max(1, size))


def gigpo_clip(value: Any, place: Place) -> Mapping[str, Any]:
    """ROLL clips the sum of both parts, which is the advantage before it is whitened."""
    if place.get("whiten_advantages"):
        raise ValueError("beside gigpo and whiten_advantages it is not there: leave one of the two out")
    clip = place.get("advantage_clip")
    return {} if isinstance(clip, int | float) and clip <= value else {"advantage_clip": value}


def baseline_note(value: Any, place: Place) -> bool:
    """Whether a file's `grpo` compares nothing: ROLL takes a baseline from `reward_normalization` alone."""
    return value == "grpo" and not place.has_prompts and _statistics(place)[0] == "none"


def _group_size(place: Place) -> Any:
    size = place.get("num_return_sequences_in_group")
    return size or place.get("train_env_manager", "group_size", default=1)


def _statistics(place: Place) -> tuple[str, str]:
    """What rewards are compared with: of `none`, `group`, `batch`, `tag`."""
    if place.has_prompts:
        if place.get("adv_estimator") == "grpo":
            return "group", "group"
        found = [place.get(f"norm_{part}_type") or "none" for part in ("mean", "std")]
        if "running" in found:
            raise ValueError(
                "running statistics are not there: a reward would depend on when it was earned; "
                "set norm_mean_type and norm_std_type to batch or group"
            )
        return _known(found, {"none": "none", "group": "group", "batch": "tag"})
    section = place.mapping("reward_normalization")
    grouping, method = section.get("grouping") or "batch", section.get("method") or "identity"
    if grouping not in ("batch", "tags", "traj_group_id"):
        raise ValueError(
            f"reward_normalization.grouping: {grouping} is not there: traj_group_id, tags or batch"
        )
    given = "batch" if grouping == "batch" else "group"
    by_method = {"mean": (given, "none"), "mean_std": (given, given), "asym_clip": (given, given)}
    found = [
        section.get(f"norm_{part}_type") or default
        for part, default in zip(("mean", "std"), by_method.get(str(method), ("none", "none")), strict=True)
    ]
    group = {"batch": "batch", "tags": "tag"}.get(grouping, "group")
    mean, std = _known(found, {"none": "none", "batch": "batch", "group": group})
    if place.get("adv_estimator") != "step_reinforce" and _group_size(place) == 1:
        mean, std = ("none" if each == "group" else each for each in (mean, std))
    return mean, std


def _known(found: Sequence[Any], words: Mapping[str, str]) -> tuple[str, str]:
    unknown = [each for each in found if not isinstance(each, str) or each not in words]
    if unknown:
        raise ValueError(f"norm_mean_type, norm_std_type: {unknown[0]} is not there: batch, group or null")
    mean, std = (words[each] for each in found)
    return mean, std


def default_estimator(name: str) -> Callable[[Place], Any]:
    """What one of the keys is where the file names no estimator."""
    return lambda place: None if place.get("adv_estimator") else estimator("gae", place).get(name)


def discounts_steps(value: Any, place: Place) -> bool:
    return place.get("adv_estimator") in _STEPWISE


def has_no_kl_reward(value: Any, place: Place) -> bool:
    return not place.get("add_token_level_kl") or place.get("init_kl_coef", default=0.2) == 0


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


VARIANT_ARGS = (
    "tis_lower_bound",
    "tis_upper_bound",
    "cispo_epsilon_low",
    "cispo_epsilon_high",
    "cispo_use_unified_mask",
    "kimi15_tau",
    "topr_positive_weight",
    "topr_negative_weight",
)
"""Settings of losses; ROLL reads them in `actor_train`, and documents them at the top level too."""


def pg_variant(value: Any, place: Place) -> Mapping[str, Any]:
    def own(name: str, default: Any) -> Any:
        return place.get("actor_train", name, default=place.get(name, default=default))

    args: Mapping[str, Any] = {
        "tis": {
            "ratio_over": "proximal",
            "lower_bound": own("tis_lower_bound", 0.0),
            "upper_bound": own("tis_upper_bound", 1.0),
        },
        "topr": {
            "ratio_over": "proximal",
            "level": "token",
            "positive_weight": own("topr_positive_weight", 1.0),
            "negative_weight": own("topr_negative_weight", 1.0),
        },
        "cispo": {
            "ratio_over": "proximal",
            "clip_low": own("cispo_epsilon_low", 0.1),
            "clip_high": own("cispo_epsilon_high", 0.1),
            "masks_clipped": own("cispo_use_unified_mask", False),
        },
        "kimi15": {"level": "token", "tau": own("kimi15_tau", 0.1)},
    }.get(str(value), {})
    return {"pg_variant": value, **({"pg_args": args} if args else {})}


def ratio_type(value: Any, place: Place) -> Mapping[str, Any]:
    if value not in ("token", "segment"):
        raise ValueError(f"{value!r} is neither token nor segment")
    variant = place.get("actor_train", "pg_variant") or place.get("pg_variant") or "ppo"
    if value == "segment" and variant != "ppo":
        raise ValueError(f"segment is there for pg_variant ppo, not for {variant}: leave one of the two out")
    return {"pg_variant": "segment_ppo"} if value == "segment" else {}


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


def sequence_length(place: Place) -> Any:
    """Of `val_sequence_length`: the sum that stands for `sequence_length` where the file leaves it out."""
    lengths = (place.get("prompt_length"), place.get("response_length"))
    if place.path != ("val_sequence_length",) or not all(isinstance(each, int) for each in lengths):
        return None
    return sum(lengths)


def all_held_out(value: Any, place: Place) -> Mapping[str, Any]:
    if not place.has_prompts:
        raise ValueError(
            "-1, all tasks, is there for prompts alone: environments draw tasks without end; say how many, a "
            "multiple of val_env_manager.group_size"
        )
    return {}


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
    config = place.mapping("actor_train", "strategy_args", "strategy_config")
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
    config = place.mapping("actor_infer", "strategy_args", "strategy_config")
    tensor = config.get("tensor_parallel_size") or place.get("actor_infer", "num_gpus_per_worker", default=1)
    pipeline = config.get("pipeline_parallel_size", 1)
    if not devices or not isinstance(tensor, int) or not isinstance(pipeline, int):
        return None
    return max(1, devices // (tensor * pipeline))


def _num_optimizer_steps(place: Place) -> int | None:
    batch, steps = _batch_size(place), place.get("max_steps")
    if batch is None or not isinstance(steps, int):
        return None
    args = place.mapping("actor_train", "training_args")
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
    return "linear" if place.mapping("actor_train", "training_args") else None


def default_decay(place: Place) -> Any:
    args = place.mapping("actor_train", "training_args")
    return (
        _num_optimizer_steps(place)
        if args and args.get("lr_scheduler_type", "linear") != "constant"
        else None
    )


SAMPLING_DEFAULTS = {"temperature": 0.95, "top_p": 0.7, "top_k": 50}
"""ROLL's, where a file samples and leaves them out."""


def default_sampling(name: str) -> Callable[[Place], Any]:
    """The default of one key of `actor_infer.generating_args`."""
    sections = (("actor_infer", "generating_args"), ("train_env_manager", "generating_args"))
    return lambda place: SAMPLING_DEFAULTS[name] if any(place.mapping(*each) for each in sections) else None


def infer_samples(value: Any, place: Place) -> bool:
    """Whether `actor_infer.generating_args` is there, which replaces those of managers."""
    return bool(place.get("actor_infer", "generating_args"))


def sampling(value: Any, place: Place) -> Mapping[str, Any]:
    """A manager's `generating_args`; training's are those of the engines."""
    if not isinstance(value, Mapping):
        raise ValueError("must be a section with keys")
    if value.get("num_beams", 1) != 1:
        raise ValueError("num_beams: beam search is not there: replies are sampled; set it to 1")
    if value.get("repetition_penalty", 1) != 1:
        raise ValueError(f"repetition_penalty: {NO_PENALTY}")
    ours = {name: each for name, each in value.items() if name not in NO_SAMPLING}
    if ours.get("top_k") == -1:
        ours["top_k"] = 0
    if type(ours.get("top_p")) is int:
        ours["top_p"] = float(ours["top_p"])
    is_val = place.path[0] == "val_env_manager"
    return {f"{'val_env_manager' if is_val else 'actor_infer'}.generating_args": ours}


NO_PENALTY = "the trainer's log-probabilities know no penalty, so every ratio would be off; set it to 1.0"
NO_SAMPLING = (
    "num_beams",
    "num_return_sequences",
    "do_sample",
    "stop_strings",
    "include_stop_str_in_output",
    "logprobs",
    "max_length",
    "length_penalty",
    "repetition_penalty",
)
"""Keys of ROLL's `generating_args` that are read before or nowhere."""
