"""Conversions of Trinity's other sections."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from envsdk.config.foreign.row import Place
from envsdk.config.models import EMBEDDED_DEFAULT
from envsdk.config.trinity import tasks

Ours = Mapping[str, Any]

_ENGINE = "actor_infer.strategy_args.strategy_config"
_SGLANG: Mapping[str, str] = {
    "tensor_parallel_size": "tp_size",
    "pipeline_parallel_size": "pp_size",
    "gpu_memory_utilization": "mem_fraction_static",
    "enforce_eager": "disable_cuda_graph",
    "dtype": "dtype",
}
_ROLES = ("actor_train", "actor_infer", "reference")
_FILE = re.compile(r"\.(jsonl?|parquet)$")
_VERL_SIZES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "sequence_parallel",
)


def is_tiny(place: Place) -> bool:
    """Whether the file runs on the tiny policy: without devices, vLLM or FSDP."""
    return EMBEDDED_DEFAULT in (place.get("model", "model_path"), place.get("pretrain"))


def is_alone(value: Any, place: Place) -> bool:
    """Whether one command plays and trains."""
    return place.get("mode", default="both") in ("both", "colocate")


def folder(value: Any, place: Place) -> Ours:
    root = place.get("checkpoint_root_dir") or "runs"
    parts = (root, place.get("project", default="Trinity-RFT"), place.get("group"))
    return {"output_dir": "/".join(str(each).rstrip("/") for each in parts if each)}


def name(value: Any, place: Place) -> Ours:
    return {"exp_name": re.sub(r"[^A-Za-z0-9._-]+", "-", str(value)).strip("-.") or "run"}


def betas(value: Any, place: Place) -> Ours:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError("takes two numbers, such as [0.9, 0.999]")
    args = "actor_train.training_args"
    return {f"{args}.adam_beta1": value[0], f"{args}.adam_beta2": value[1]}


def warmup(value: Any, place: Place) -> Ours:
    """`lr_warmup_steps`, or else the ratio of all steps; one optimizer step is made in each."""
    steps, ratio = (
        place.beside("lr_warmup_steps", default=-1),
        place.beside("lr_warmup_steps_ratio", default=0),
    )
    if not isinstance(steps, int) or steps < 0:
        steps = math.ceil((tasks.num_steps(place) or 1) * (ratio or 0))
    return {"actor_train.training_args.warmup_steps": steps}


def scheduler(value: Any, place: Place) -> Ours:
    args = "actor_train.training_args"
    if value in (None, "constant", "warmup"):
        return {f"{args}.lr_scheduler_type": "constant"}
    least = place.beside("min_lr_ratio", default=0.01)
    steps = tasks.num_steps(place) or 1
    return {
        f"{args}.lr_scheduler_type": value,
        f"{args}.max_steps": steps,
        f"{args}.min_lr_ratio": least,
    }


def prompt_length(value: Any, place: Place) -> Ours:
    """Longest sequence, prompt and response; what one of the three leaves out follows from the others."""
    whole, prompt, response = (
        place.get("model", key) for key in ("max_model_len", "max_prompt_tokens", "max_response_tokens")
    )
    if isinstance(whole, int):
        if prompt is None and response is None:
            prompt = whole // 2
        if response is None:
            response = whole - min(prompt, whole - 1)
        response = min(response, whole - 1)
        prompt = min(whole - response, prompt or whole)
    if prompt is None or response is None:
        raise ValueError(
            "give two of max_model_len, max_prompt_tokens and max_response_tokens: the third follows"
        )
    if tasks.is_played(place):
        ours: dict[str, Any] = {"sequence_length": whole or prompt + response}
        own = tasks.training(place).get("rollout_args")
        longest = own.get("max_tokens") if isinstance(own, Mapping) else None
        return ours | {"actor_infer.generating_args.max_new_tokens": longest or response}
    ours = {"prompt_length": prompt, "response_length": response}
    return ours | ({"sequence_length": whole} if isinstance(whole, int) else {})


def lora(value: Any, place: Place) -> Ours:
    if not value:
        return {}
    if not isinstance(value, list) or len(value) > 1 or not isinstance(value[0], Mapping):
        raise ValueError("takes a list of one adapter")
    given = dict(value[0])
    if given.pop("path", None):
        raise ValueError(
            "path: an adapter that exists cannot be trained on; merge it into the model's folder first"
        )
    if given.pop("exclude_modules", None):
        raise ValueError("exclude_modules is not there: name those that are trained in target_modules")
    rank, alpha = given.pop("lora_rank", 32), given.pop("lora_alpha", 32)
    target = given.pop("target_modules", "all-linear")
    for each in ("name", "base_model_name", "lora_dtype", "is_dummy"):
        given.pop(each, None)
    if given:
        raise ValueError(f"has {', '.join(given)}, which is not there")
    names = target if target == "all-linear" or not isinstance(target, str) else target.split(",")
    own = {"rank": rank, "alpha": float(alpha), "target_modules": names}
    ours: dict[str, Any] = {"actor_train.strategy_args.strategy_config.lora": own}
    if not is_tiny(place):
        ours |= {f"{_ENGINE}.enable_lora": True, f"{_ENGINE}.max_lora_rank": rank}
    return ours


def colocate(value: Any, place: Place) -> Ours:
    return {"mode": "both", **{f"{role}.offload": "all" for role in _ROLES}, **devices(None, place)}


def devices(value: Any, place: Place) -> Ours:
    """Engines come first, the trainer has the others, as in Trinity."""
    found = (place.get("cluster", key) for key in ("node_num", "gpu_per_node"))
    nodes, each = (1 if number is None else number for number in found)
    if is_tiny(place) or not nodes * each:
        return {}
    mode = place.get("mode", default="both")
    if mode == "colocate":
        if nodes * each * _num_engine_devices(place) != 1:
            raise ValueError("colocate is for one GPU and one engine: take both")
        return {f"{role}.device_mapping": [0] for role in _ROLES}
    engines = 0 if mode == "train" else _num_engine_devices(place)
    total = nodes * each
    if engines > total - (mode == "both"):
        raise ValueError(
            f"{nodes} x {each} GPUs are too few: engines take {engines} (engine_num x tensor_parallel_size)"
            + (", and the trainer needs one" if mode == "both" else "")
        )
    ours: dict[str, Any] = {}
    if engines:
        ours["actor_infer.device_mapping"] = list(range(engines))
    if mode in ("both", "train"):
        ours["actor_train.device_mapping"] = list(range(engines, total))
        ours["reference.device_mapping"] = list(range(engines, total))
    return ours


def _num_engine_devices(place: Place) -> int:
    model = place.mapping("explorer", "rollout_model")
    sizes = ("engine_num", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    return math.prod(model.get(size) or 1 for size in sizes)


def ahead(value: Any, place: Place) -> Ours:
    """How far generation runs ahead, in batches: one, where Trinity lets weights be older than a step."""
    given = place.mapping("synchronizer")
    interval = given.get("trainer_sync_interval") or given.get("sync_interval") or 1
    if is_alone(None, place):
        return {"async_generation_ratio": 0 if tasks.is_synchronous(place) else 1}
    versions = 1 + math.ceil((given.get("sync_offset") or 0) / interval)
    return {"async_generation_ratio": versions, "synchronizer.sync_interval": interval}


def trainer(value: Any, place: Place) -> str:
    """The strategy of trainers, which `trainer_strategy` or veRL's own key names."""
    if is_tiny(place):
        return "torch"
    verl = place.get("trainer", "trainer_config", "actor_rollout_ref", "actor", "strategy")
    given = place.get("trainer", "trainer_strategy") or verl or "fsdp2"
    if given not in ("fsdp", "fsdp2", "megatron"):
        raise ValueError(f"{given} is not there: take fsdp2 or megatron")
    return (
        "megatron_train" if given == "megatron" and not place.get("model", "lora_configs") else "fsdp2_train"
    )


def strategy(value: Any, place: Place) -> Ours:
    found = trainer(None, place)
    return {f"{role}.strategy_args.strategy_name": found for role in ("actor_train", "reference")}


def megatron_setting(value: Any, place: Place) -> Ours:
    """A key of `trainer.megatron`."""
    return _megatron(str(place.path[-1]), value, place)


def _megatron(name: str, value: Any, place: Place) -> Ours:
    if value is None or trainer(None, place) != "megatron_train":
        return {}
    return {f"{role}.strategy_args.strategy_config.{name}": value for role in ("actor_train", "reference")}


def verl(value: Any, place: Place) -> Ours:
    """What veRL's own settings set: the strategy, Megatron's layout, gradient checkpointing and epochs."""
    ours: dict[str, Any] = dict(strategy(None, place))
    actor = place.mapping("trainer", "trainer_config", "actor_rollout_ref", "actor")
    sizes = place.mapping("trainer", "trainer_config", "actor_rollout_ref", "actor", "megatron")
    if trainer(None, place) == "megatron_train":
        for key in _VERL_SIZES:
            if sizes.get(key) is not None:
                ours |= _megatron(key, sizes[key], place)
        transformer = sizes.get("override_transformer_config") or {}
        if (granularity := transformer.get("recompute_granularity")) is not None:
            ours |= _megatron("recompute_granularity", granularity, place)
    saved = place.get(
        "trainer", "trainer_config", "actor_rollout_ref", "model", "enable_gradient_checkpointing"
    )
    if saved is not None and trainer(None, place) == "fsdp2_train":
        ours["actor_train.model_args.gradient_checkpointing"] = saved
    if (epochs := actor.get("ppo_epochs")) is not None:
        ours["ppo_epochs"] = epochs
    return ours


def engine_kind(value: Any, place: Place) -> str:
    if is_tiny(place):
        return "embedded"
    given = str(place.get("explorer", "rollout_model", "engine_type", default="vllm"))
    if given not in ("vllm", "vllm_async", "sglang"):
        raise ValueError(f"{given} is not there: take vllm or sglang")
    return given.removesuffix("_async")


def engine(value: Any, place: Place) -> Ours:
    return {"actor_infer.strategy_args.strategy_name": engine_kind(None, place)}


def engine_setting(value: Any, place: Place) -> Ours:
    """A setting of vLLM's, under SGLang's name where that is the engine."""
    name, kind = str(place.path[-1]), engine_kind(None, place)
    ours = _SGLANG.get(name) if kind == "sglang" else name
    if kind == "embedded" or ours is None or value is None:
        return {}
    return {f"{_ENGINE}.{ours}": value}


def experience_path(value: Any, place: Place) -> Ours:
    if value is None or _FILE.search(str(value)):
        return {}
    return {"buffer.trainer_input.experience_buffer.path": value}


def replay(value: Any, place: Place) -> Ours:
    """Reuse: of the experiences that are used least, the freshest."""
    if not isinstance(value, Mapping) or not value.get("enable"):
        return {}
    section = "buffer.trainer_input.experience_buffer"
    args = value.get("priority_fn_args")
    limit = args.get("use_count_limit") if isinstance(args, Mapping) else None
    uses = limit if isinstance(limit, int) else 1 if value.get("reuse_cooldown_time") is None else 2
    return {f"{section}.selection": "priority", f"{section}.max_uses": uses}


def retries(value: Any, place: Place) -> Ours:
    return {} if value is None else {"train_env_manager.max_group_attempts": value + 1}


def spare_groups(value: Any, place: Place) -> Ours:
    prompts = tasks.batch_size(place)
    if not isinstance(value, int | float) or not 0 <= value < 1:
        raise ValueError("lies from 0 up to 1")
    return (
        {"train_env_manager.num_groups_redundancy": math.floor(value * prompts)} if prompts and value else {}
    )


def trackers(value: Any, place: Place) -> Ours:
    if value not in ("wandb", "tensorboard", "mlflow"):
        raise ValueError(f"{value} is not there: take tensorboard, wandb or mlflow")
    ours: dict[str, Any] = {"trackers": ["jsonl", value]}
    if value in ("wandb", "mlflow") and place.get("project"):
        ours[f"tracker_args.{value}.project"] = str(place.get("project"))
    return ours


def tracker_args(value: Any, place: Place) -> Ours:
    """Addresses and keys come from the environment, but for MLflow's address."""
    uri = value.get("uri") if isinstance(value, Mapping) else None
    return (
        {"tracker_args.mlflow.tracking_uri": uri} if uri and place.beside("monitor_type") == "mlflow" else {}
    )


def shards_sequences_by_fsdp(value: Any, place: Place) -> bool:
    return isinstance(value, int) and value > 1 and trainer(None, place) != "megatron_train"


def trains_on_file(value: Any, place: Place) -> bool:
    return bool(value == "file" and place.get("mode") == "train")


def default_checkpointing(value: Any, place: Place) -> Any:
    return True if trainer(None, place) == "fsdp2_train" and _names_no_trainer(place) else None


def default_dtype(value: Any, place: Place) -> Any:
    return "bfloat16" if _names_no_trainer(place) and not is_tiny(place) else None


def _names_no_trainer(place: Place) -> bool:
    """Whether no trainer of ours is named on top of the file."""
    return place.get("actor_train", "strategy_args", "strategy_name") is None
