"""Values of ROLL's keys as values of ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from envsdk.config.foreign.row import Place
from envsdk.config.role_models import parse_index_list

REFERENCE_TRAINERS = {
    "megatron_infer": "megatron_train",
    "hf_infer": "fsdp2_train",
    "fsdp2_infer": "fsdp2_train",
}
_ATTENTION = {"fa2": "flash_attention_2", "sdpa": "sdpa", "disabled": "eager", "auto": "auto"}
"""Transformers' names by ROLL's words."""
_TRACKERS: Mapping[Any, tuple[str, ...]] = {
    "wandb": ("project", "entity", "group", "tags", "notes", "mode"),
    "trackio": ("project", "tags", "notes"),
    "mlflow": ("project", "tags", "notes"),
}
"""Trackers of both, with the keys of ROLL's `tracker_kwargs` that they take."""
_FOREVER = 1_000_000
_ROLES = ("actor_infer", "actor_train", "reference")


def resume(value: Any, place: Place) -> Mapping[str, Any]:
    return {"resume": "auto" if value is True else value if isinstance(value, str) else "never"}


def is_rolls_own(value: Any, place: Place) -> bool:
    return value is None or str(value).startswith("roll.")


def has_mode(value: Any, place: Place, mode: str) -> bool:
    """Whether a section has this mode, which it has without saying so."""
    return not isinstance(value, dict) or value.get("mode", mode) == mode


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


def has_tracker_args(value: Any, place: Place) -> bool:
    return bool(tracker_args(value, place))


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


def has_no_tensor_parallelism(value: Any, place: Place) -> bool:
    return not value or place.beside("tensor_model_parallel_size", default=1) == 1


def recomputes_parts(value: Any, place: Place) -> bool:
    granularity = place.beside("recompute_granularity")
    return granularity == "selective" or (value is True and granularity is None)


def recomputed_parts(value: Any, place: Place) -> Mapping[str, Any]:
    named = place.beside("recompute_modules") or "core_attn"
    parts = [part.strip() for part in named.split(",")] if isinstance(named, str) else list(named)
    parts += ["moe"] * (bool(place.beside("moe_layer_recompute")) and "moe" not in parts)
    config = "*.strategy_args.strategy_config"
    kept = [part for part in parts if part in ("core_attn", "mlp", "moe", "shared_experts")]
    return {f"{config}.recompute_granularity": "selective", f"{config}.recompute_modules": kept}


def chooses_attention(value: Any, place: Place) -> bool:
    """Whether the role's trainer takes `attn_implementation` as transformers spells it."""
    role = str(place.path[0])
    name = place.get(role, "strategy_args", "strategy_name", default="torch")
    if role == "actor_train" and has_lora(place):
        return True
    return REFERENCE_TRAINERS.get(name, name) in ("torch", "fsdp2_train")


def chooses_attention_in_rolls_words(value: Any, place: Place) -> bool:
    return chooses_attention(value, place) and value in (None, *_ATTENTION)


def attention(value: Any, place: Place) -> Mapping[str, Any]:
    chosen = _ATTENTION.get(value, "auto")
    if chosen == "flash_attention_2" and place.beside("dtype") not in ("bf16", "fp16"):
        chosen = "auto"
    return {"*.model_args.attn_implementation": chosen}


def lora(value: Any, place: Place) -> Mapping[str, Any]:
    target = place.beside("lora_target", default="all-linear")
    names = target if target == "all-linear" or not isinstance(target, str) else target.split(",")
    alpha = place.beside("lora_alpha", default=0)
    args = {"rank": value, "alpha": float(alpha), "target_modules": names}
    return {"actor_train.strategy_args.strategy_config.lora": args}


def engine_lora(value: Any, place: Place) -> Mapping[str, Any]:
    base = "actor_infer.strategy_args.strategy_config"
    return {f"{base}.enable_lora": True, f"{base}.max_lora_rank": value}


def is_that_of_training(value: Any, place: Place) -> bool:
    """Whether a length of validation is null, or training's: as given, or the sum that stands for it."""
    name = str(place.path[0])
    lengths = (place.get("prompt_length"), place.get("response_length"))
    is_sum = name == "val_sequence_length" and all(isinstance(each, int) for each in lengths)
    return value in (None, place.get(name.removeprefix("val_"))) or (is_sum and value == sum(lengths))


def all_held_out(value: Any, place: Place) -> Mapping[str, Any]:
    if not place.has_prompts:
        raise ValueError(
            "-1, all tasks, is there for prompts alone: environments draw tasks without end; say how many, a "
            "multiple of val_env_manager.group_size"
        )
    return {}


def mini_batch(value: Any, place: Place) -> Mapping[str, Any]:
    one = place.beside("per_device_train_batch_size") or 8
    batch = _batch_size(place)
    if value is None or batch is None:
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


def has_sglang(value: Any, place: Place) -> bool:
    return bool(place.get("actor_infer", "strategy_args", "strategy_name") == "sglang")


def shards_in_sglang(value: Any, place: Place) -> bool:
    config = place.mapping("actor_infer", "strategy_args", "strategy_config")
    return value != 1 and has_sglang(value, place) and not config.get("tensor_parallel_size")


def num_engines(value: Any, place: Place) -> int | None:
    """ROLL has one engine for each `tensor_parallel_size` devices, or `num_gpus_per_worker` with SGLang."""
    devices = _num_devices(place.get("actor_infer", "device_mapping"))
    config = place.mapping("actor_infer", "strategy_args", "strategy_config")
    worker = place.get("actor_infer", "num_gpus_per_worker", default=1) if has_sglang(None, place) else 1
    tensor = config.get("tensor_parallel_size") or worker
    pipeline = config.get("pipeline_parallel_size", 1)
    if not devices or not isinstance(tensor, int) or not isinstance(pipeline, int):
        return None
    return max(1, devices // (tensor * pipeline))


def _num_optimizer_steps(place: Place) -> int | None:
    batch, steps = _batch_size(place), place.get("max_steps")
    if batch is None or not isinstance(steps, int):
        return None
    args = place.mapping("actor_train", "training_args")
    one, many = args.get("per_device_train_batch_size") or 8, args.get("gradient_accumulation_steps") or 1
    epochs = given if isinstance(given := place.get("ppo_epochs"), int) else 1
    size = max(1, min(batch, one * many * _data_parallel(place)))
    return int(max(1, (_FOREVER if steps == -1 else steps) * math.ceil(batch / size) * epochs))


def has_warmup_ratio(value: Any, place: Place) -> bool:
    """Whether the steps are 0 beside a ratio."""
    return value == 0 and bool(place.beside("warmup_ratio"))


def warmup_ratio(value: Any, place: Place) -> Mapping[str, Any]:
    steps = _num_optimizer_steps(place)
    if place.beside("warmup_steps") or steps is None or value is None:
        return {}
    return {"actor_train.training_args.warmup_steps": math.ceil(value * steps)}


def default_scheduler(value: Any, place: Place) -> Any:
    return "linear" if place.mapping("actor_train", "training_args") else None


def default_decay(value: Any, place: Place) -> Any:
    args = place.mapping("actor_train", "training_args")
    decays = args and args.get("lr_scheduler_type", "linear") != "constant"
    return _num_optimizer_steps(place) if decays else None


def top_p(value: Any, place: Place) -> Mapping[str, Any]:
    return {"*.generating_args.top_p": float(value)}


def engines_share_devices(value: Any, place: Place) -> bool:
    taken = [parse_index_list(place.get(role, "device_mapping")) or [] for role in _ROLES]
    return any(set(taken[0]) & set(other) for other in taken[1:])


def default_sampling(value: Any, place: Place, usual: Any) -> Any:
    """A key of `actor_infer.generating_args`, in files that sample and leave it out."""
    sections = (("actor_infer", "generating_args"), ("train_env_manager", "generating_args"))
    return usual if any(place.mapping(*each) for each in sections) else None


def sampling(value: Any, place: Place) -> Mapping[str, Any]:
    """A manager's `generating_args`; training's are those of the engines."""
    if not isinstance(value, Mapping):
        raise ValueError("must be a section of keys")
    if value.get("num_beams", 1) != 1:
        raise ValueError("num_beams: beam search is not there: replies are sampled; set it to 1")
    if value.get("repetition_penalty", 1) != 1:
        raise ValueError(f"repetition_penalty: {_NO_PENALTY}")
    ours = {name: each for name, each in value.items() if name not in _NO_SAMPLING}
    if ours.get("top_k") == -1:
        ours["top_k"] = 0
    if type(ours.get("top_p")) is int:
        ours["top_p"] = float(ours["top_p"])
    is_val = place.path[0] == "val_env_manager"
    return {f"{'val_env_manager' if is_val else 'actor_infer'}.generating_args": ours}


_NO_PENALTY = "the trainer's log-probabilities know no penalty, so every ratio would be off; set it to 1.0"
_NO_SAMPLING = (
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
