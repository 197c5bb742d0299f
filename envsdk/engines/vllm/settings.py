"""Settings of the `vllm` engine, and what vLLM is given for them. Pure; vLLM is not imported."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveInt

from envsdk.base.settings.memory import BFLOAT16, FLOAT32, Memory, ModelSizes
from envsdk.base.settings.problems import Problem
from envsdk.base.store.model_files import COUNTED, positions_problem, text_config
from envsdk.contracts.failures import ConfigurationError
from envsdk.engines.engine import EngineConfig
from envsdk.engines.sampling import SamplingShape
from envsdk.engines.settings import PassThroughSettings

WORKER_EXTENSION = "envsdk.engines.vllm.worker.WorkerExtension"
OWNER = "ENVSDK_VLLM_OWNER"
"""Environment variable of vLLM's processes: id of the process whose engine they are."""
CPU_KV_CACHE_BYTES = 1 << 30
CPU_BLOCK_SIZE = 32
"""Tokens. vLLM's own 128 would hardly ever find a whole block of a short episode again."""

_MAX_LORA_RANK = 16
"""vLLM's own."""
_VOCABULARY_UNIT = 64
"""vLLM pads vocabularies to a multiple of it."""
_SHARE = 0.92
"""vLLM's own `gpu_memory_utilization`."""

SET_BY_ENGINE = {
    "model": "is the run's model (`pretrain`)",
    "tokenizer": "is that of the model's folder",
    "skip_tokenizer_init": "is set where the model's folder has no tokenizer: token ids go in and out",
    "max_num_seqs": "follows from `actor_infer.infer_batch_size`",
    "seed": "follows from the run's `seed`",
    "logprobs_mode": "follows from `logprobs`",
    "generation_config": "is not used: requests say how they are sampled",
    "override_generation_config": "is not used: requests say how they are sampled",
    "scheduling_policy": "is `priority`",
    "worker_extension_cls": "is how weights are updated",
    "weight_transfer_config": "is how weights are updated",
    "disable_log_stats": "is set: the engine's health has the counters",
    "enable_log_requests": "is off",
    "stream_interval": "is not used: replies come whole",
    "enable_sleep_mode": "is set where engines take turns with other roles (`actor_infer.offload`)",
    "data_parallel_size": "is 1; `actor_infer.num_engines` makes copies of the model",
    "runner": "is `generate`",
    "convert": "is not used",
}
"""Arguments of vLLM that follow from the run's own keys, and from which."""


class VLLMSettings(PassThroughSettings):
    """`strategy_config` of the `vllm` engine. Any other argument of `AsyncEngineArgs` is taken too."""

    needs = ("vllm",)
    scores_prompts = True
    set_by_engine = SET_BY_ENGINE

    logprobs: Literal["sampling", "raw"] = "sampling"
    """`sampling`: those of the distribution that tokens are drawn from, after temperature, top_p, top_k and
    min_p; `raw`: those of the model's own."""
    kv_after_update: Literal["recompute", "keep"] = "recompute"
    """What becomes of a running reply's keys and values when new weights come: `recompute` computes them
    under the new weights; `keep` goes on with the old ones, which saves time and is not exact."""
    num_threads: PositiveInt = 1
    """Threads of each of vLLM's worker processes on a CPU."""
    tensor_parallel_size: PositiveInt = 1
    """Devices that share out the model."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = None
    """Weights and KV cache. When absent: `float32` on a CPU, vLLM's `auto` elsewhere."""
    enforce_eager: bool | None = None
    """Start in seconds, without compiling. When absent: true on a CPU, false elsewhere."""
    gpu_memory_utilization: float | None = Field(None, gt=0, le=1)
    """Share of the device's memory that vLLM takes; on a CPU of the machine's."""
    kv_cache_memory_bytes: PositiveInt | None = None
    """Size of the KV cache. When it and `gpu_memory_utilization` are absent: 1 GiB on a CPU."""
    block_size: PositiveInt | None = None
    """Tokens of one block of the KV cache, and so of what a session can reuse. When absent: 32 on a CPU,
    vLLM's own choice elsewhere."""
    enable_prefix_caching: bool = True
    """Keep keys and values after a reply, so that a session's next turn computes only what is new."""
    enable_lora: bool = False
    """Take LoRA adapters as updates, from a trainer that trains one. Whole weights are taken as well."""
    max_lora_rank: Literal[1, 8, 16, 32, 64, 128, 256, 320, 512] | None = None
    """Largest rank of an adapter; 16 when absent."""
    max_model_len: PositiveInt | None = None
    """Longest sequence that vLLM prepares for; `sequence_length` when absent, and never less."""
    load_format: str = "auto"
    """How vLLM reads the model; `dummy` makes random weights."""
    return_sampling_mask: bool | None = None
    """Tell which tokens `top_k`, `top_p` and `min_p` leave; each request then needs a `top_k` and a
    temperature above 0, and vLLM a GPU. When absent: where a run trains on replies so sampled."""
    log_level: str = "ERROR"
    """Level of vLLM's own messages."""

    @property
    def uses_one_device(self) -> bool:
        """The model lies on one device."""
        extra = self.model_extra or {}
        return self.tensor_parallel_size == 1 and extra.get("pipeline_parallel_size", 1) == 1

    @property
    def device_share(self) -> tuple[str, float] | None:
        share = _SHARE if self.gpu_memory_utilization is None else self.gpu_memory_utilization
        return None if self.kv_cache_memory_bytes else ("gpu_memory_utilization", share)

    def start_problem(self, model: Path | None, sequence_length: int, max_running: int) -> Problem | None:
        if (longest := self.max_model_len or sequence_length) < sequence_length:
            told = f"{longest}, but sequence_length is {sequence_length}; leave it out"
            return Problem(("strategy_config", "max_model_len"), told)
        if model is not None and (what := self._undivided(text_config(model))):
            told = f"vLLM cannot share out the model's {what} over {self.tensor_parallel_size} devices"
            return Problem(("strategy_config", "tensor_parallel_size"), told)
        return positions_problem(model, sequence_length)

    def _undivided(self, model: Mapping[str, Any]) -> str:
        """What of these sizes `tensor_parallel_size` does not divide as vLLM 0.32 needs it."""
        tp, is_known = self.tensor_parallel_size, model.get("model_type") in COUNTED
        heads, keys = model.get("num_attention_heads") or 0, model.get("num_key_value_heads") or tp
        name = "moe_intermediate_size" if model.get("moe_intermediate_size") else "intermediate_size"
        is_whole = name.startswith("moe") and (self.model_extra or {}).get("enable_expert_parallel")
        width = 0 if is_whole else model.get(name) or 0
        padded = -(-(model.get("vocab_size") or 0) // _VOCABULARY_UNIT) * _VOCABULARY_UNIT
        rests = {
            f"{heads} attention heads": heads % tp,
            f"{keys} key-value heads": is_known and max(keys, tp) % min(keys, tp),  # each device has one
            f"{name} of {width}": is_known and width % tp,
            f"vocabulary of {padded} with padding": is_known and padded % tp,
        }
        return next((what for what, rest in rests.items() if rest), "")

    def update_problem(self, model_type: str, adapter_rank: int | None) -> Problem | None:
        if not self.enable_lora:
            why = why_not_renewed(model_type)
            return Problem(("strategy_name",), why) if why else None
        most = self.max_lora_rank or _MAX_LORA_RANK
        if (adapter_rank or 0) <= most:
            return None
        key = "enable_lora" if self.max_lora_rank is None else "max_lora_rank"
        told = f"the adapter has rank {adapter_rank}, and vLLM takes up to {most}; set max_lora_rank to more"
        return Problem(("strategy_config", key), told)

    def sampling_memory(self, model: ModelSizes, *, num_replies: int, num_tokens: int) -> Memory:
        """In bytes; see `EstimatesSampling`."""
        memory = self.weights_and_keys(
            model,
            FLOAT32 if self.dtype == "float32" else BFLOAT16,  # vLLM's `auto` is half precision
            num_replies,
            num_tokens,
            num_devices=self.tensor_parallel_size,
        )
        size = self.kv_cache_memory_bytes
        return {"weights": memory["weights"], "keys and values": size} if size else memory

    def support_problem(self, sampling: SamplingShape, *others: SamplingShape) -> str:
        if self.return_sampling_mask is False:
            return "return_sampling_mask is false"
        if self.logprobs != "sampling":
            return "vLLM tells them with `logprobs: sampling` alone"
        if all(each.top_k > 0 and each.temperature > 0 for each in (sampling, *others)):
            return ""
        return "vLLM tells them only if all replies, evaluations included, have a top_k and a temperature > 0"

    def identity(self) -> dict[str, Any]:
        return {"logprobs": self.logprobs} | ({"dtype": self.dtype} if self.dtype else {})


def why_not_renewed(model_type: str) -> str:
    """Why vLLM 0.32 takes no whole weights of models of this family; empty where it does."""
    if model_type != "gpt_oss":
        return ""
    return (
        "vLLM 0.32 keeps the old experts and attention sinks of GPT-OSS when new weights come: take the "
        "engine `embedded` or `sglang`, or train a LoRA adapter with enable_lora: true"
    )


def end_token(folder: Path | None) -> int | None:
    """The token with which vLLM ends a text that is held to a structure: that of the folder's tokenizer.

    None where the folder has no fast tokenizer, or one that names no such token.
    """
    if folder is None:
        return None
    try:
        named = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8")).get("eos_token")
        known = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    except (OSError, ValueError, KeyError):
        return None
    text = named.get("content") if isinstance(named, dict) else named
    return next((token["id"] for token in known if token["content"] == text), None)


def engine_args(config: EngineConfig, settings: VLLMSettings, *, on_cpu: bool) -> dict[str, Any]:
    """Arguments of `AsyncEngineArgs`. ConfigurationError when they contradict `config`."""
    if problem := settings.start_problem(config.model, config.sequence_length, config.max_running):
        raise ConfigurationError(str(problem))
    args: dict[str, Any] = {
        "model": str(config.model),
        "max_model_len": settings.max_model_len or config.sequence_length,
        "max_num_seqs": config.max_running,
        "seed": config.seed,
        "logprobs_mode": "processed_logprobs" if settings.logprobs == "sampling" else "raw_logprobs",
        # Read for replies with a structure alone.
        "skip_tokenizer_init": end_token(config.model) is None,
        # xgrammar, vLLM's own choice, would also end a text with tokens that do not end the reply.
        "structured_outputs_config": {"backend": "guidance"},
        "generation_config": "vllm",
        "scheduling_policy": "priority",
        "worker_extension_cls": WORKER_EXTENSION,
        "disable_log_stats": True,
    }
    if config.takes_turns and not on_cpu:  # on a CPU vLLM keeps its memory
        args["enable_sleep_mode"] = True
    if on_cpu:
        if settings.return_sampling_mask:
            raise ConfigurationError(
                "strategy_config.return_sampling_mask: vLLM tells only on a GPU which tokens could be drawn: "
                "set it to false, and top_p to 1, top_k and min_p to 0, or take the engine `embedded`"
            )
        args |= {
            "dtype": "float32",
            "enforce_eager": True,
            "block_size": CPU_BLOCK_SIZE,
            "enable_chunked_prefill": False,
        }
        if settings.gpu_memory_utilization is None:
            args["kv_cache_memory_bytes"] = CPU_KV_CACHE_BYTES
        if settings.model_extra and settings.model_extra.get("enable_chunked_prefill"):
            raise ConfigurationError(
                "strategy_config.enable_chunked_prefill: vLLM 0.32 breaks down on a CPU when the prompt of a "
                "request with a seed is computed in pieces; leave it out"
            )
    own = {"logprobs", "kv_after_update", "num_threads", "max_model_len"}
    return args | settings.model_dump(exclude=own, exclude_none=True)
