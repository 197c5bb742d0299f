"""Settings of the embedded engine."""

from __future__ import annotations

from pathlib import Path

from pydantic import PositiveInt

from envsdk.base.settings.memory import Memory, ModelSizes
from envsdk.base.settings.precision import Device, DType, Precision, precision
from envsdk.base.settings.problems import Problem
from envsdk.base.store.model_files import positions_problem
from envsdk.engines.sampling import SamplingShape
from envsdk.engines.settings import EngineSettings

_DEFAULT_CACHE_BYTES = 1 << 30
FAST_MODEL_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Models that do not go through transformers, but for variants of theirs."""


class EmbeddedSettings(EngineSettings):
    """`strategy_config` of the embedded engine."""

    scores_prompts = True

    num_threads: PositiveInt = 1
    """Threads of one PyTorch operation. One is fastest for models of a few million parameters."""
    dtype: DType = "auto"
    """Weights and KV cache: `float32`, `bfloat16`, or `auto`, the checkpoint's own where the processor
    multiplies it, else float32. Log-probabilities are always computed in float32."""
    device: Device = "cpu"
    """A torch device such as `cpu` or `cuda:0`."""
    max_running: PositiveInt | None = None
    """Requests decoded together; overrides the engine's general setting."""
    kv_slots: PositiveInt | None = None
    """Sequences whose keys and values are kept, running and idle together. Default: four times
    `max_running`, or as many as fit in 1 GiB, but no fewer than `max_running`."""
    max_prefill_tokens: PositiveInt = 4096
    """Prompt tokens computed in one forward pass; bounds how long running replies wait for new ones."""
    prefix_reuse: bool = True
    """Keep a session's keys and values after a reply, so that its next turn computes only what is new."""
    cuda_graphs: bool = True
    """On a CUDA device: record the kernels of a decoding step once for each size of batch, and launch them
    together. The fast path only, and not with `reproducible`."""
    force_generic: bool = False
    """Run the model through transformers even where the fast path knows its architecture."""

    @property
    def may_tell_experts(self) -> bool:
        return True

    def start_problem(self, model: Path | None, sequence_length: int, max_running: int) -> Problem | None:
        running = self.max_running or max_running
        if self.kv_slots is None or self.kv_slots >= running:
            return positions_problem(model, sequence_length)
        return Problem(
            ("strategy_config", "kv_slots"),
            f"{self.kv_slots} are too few for the {running} requests that run together, each of which needs "
            "one; raise it, or lower infer_batch_size or max_running",
        )

    def num_slots(self, slot_bytes: int, max_running: int) -> int:
        """Sequences whose keys and values are kept, each of which takes `slot_bytes`."""
        running = self.max_running or max_running
        return self.kv_slots or max(running, min(4 * running, _DEFAULT_CACHE_BYTES // slot_bytes))

    def support_problem(self, sampling: SamplingShape, *others: SamplingShape) -> str:
        return ""

    def precision(self, stored: str) -> Precision:
        """Precision of a model whose folder names the type `stored`."""
        return precision(self.dtype, stored=stored, device=self.device)

    def sampling_memory(self, model: ModelSizes, *, num_replies: int, num_tokens: int) -> Memory:
        """In bytes; see `EstimatesSampling`."""
        element_bytes = model.element_bytes(self.precision(model.stored_dtype).dtype)
        if self.force_generic or model.model_type not in FAST_MODEL_TYPES:
            weights = float(model.num_parameters * element_bytes)  # it keeps no keys and values
            return {"weights": weights, "new weights while they come": weights}
        slots = self.num_slots(num_tokens * model.key_value_bytes(element_bytes), num_replies)
        memory = self.weights_and_keys(model, element_bytes, slots, num_tokens)
        return {**memory, "new weights while they come": memory["weights"]}
