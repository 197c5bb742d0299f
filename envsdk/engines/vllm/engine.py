"""The `vllm` engine: vLLM as a core.

    begun -> in vLLM -> ended
    new weights: copied to shared memory, or on the card, while replies are sampled -> frozen, loaded, thawed

vLLM computes in processes of its own and stamps each token with the version of the weights.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from envsdk.base.store.model_files import stored_model_type
from envsdk.contracts.failures import ConfigurationError, EngineError
from envsdk.contracts.held import Held
from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.core import NO_WEIGHTS, Counters, Reply, TaskCore
from envsdk.engines.engine import (
    EngineAbilities,
    EngineConfig,
    EngineFailure,
    GenerationRequest,
    TokenDelta,
    WeightReference,
)
from envsdk.engines.engine_support.experts import experts_of
from envsdk.engines.front import EngineFront, model_of, settings_of
from envsdk.engines.refusals import bad_structure
from envsdk.engines.vllm.backend import AsyncLLMBackend
from envsdk.engines.vllm.settings import VLLMSettings, end_token, why_not_renewed
from envsdk.engines.vllm.staged_weights import StagedWeights, WeightsOnCard, stage
from envsdk.engines.vllm.translate import (
    read_output,
    read_progress,
    sampling_options,
    why_refused,
)
from envsdk.weights.folders import as_tensors, optional_head, write_adapter
from envsdk.weights.lora import Adapter, told_apart
from envsdk.weights.shapes import Shapes, shapes_in

_DROPPED = -1
"""Version of weights that are gone."""


@dataclass(frozen=True, slots=True)
class _NewWeights:
    """What vLLM is to load."""

    staged: StagedWeights | WeightsOnCard | None
    """Full weights; None keeps vLLM's."""
    adapter: Adapter | None = None
    """None where it takes none."""
    is_for_the_folders: bool = False
    """The adapter is one to the weights of the model's folder."""


class VLLMCore(TaskCore):
    """See the module's text; settings in `VLLMSettings`."""

    def __init__(self, backend: AsyncLLMBackend, *, config: EngineConfig, settings: VLLMSettings) -> None:
        super().__init__()
        assert config.model is not None
        self._end_token = end_token(config.model)
        self.abilities = EngineAbilities(
            inflight_update=True,
            priority=True,
            prefix_reuse=settings.enable_prefix_caching,
            structured_output=self._end_token is not None,
            logit_changes=True,
            # With adapters vLLM 0.32's worker dies of it on a CPU: it maps them to sampled tokens alone.
            prompt_logprobs=not settings.enable_lora,
            lora=settings.enable_lora,
            progress=True,
            routed_experts=settings.may_tell_experts,
            processed_logprobs=settings.logprobs == "sampling",
            support=bool(settings.return_sampling_mask),
        )
        self.max_open = config.max_running
        self._backend = backend
        self._settings = settings
        self._sequence_length = config.sequence_length
        self._model = config.model
        self._expected = shapes_in(config.model)
        self._optional = optional_head(config.model, self._expected)
        self._adapter_folder: tempfile.TemporaryDirectory[str] | None = None
        self._has_other_weights = False
        """Full weights replaced those of the model's folder."""
        self._version = 0
        self._in_vllm: set[Reply] = set()
        """Replies that vLLM can be asked to abort."""
        self._broken: Callable[[str], None]

    @property
    def error(self) -> str:
        return self._backend.error

    async def start(self, broken: Callable[[str], None]) -> None:
        """EngineError when vLLM cannot load the model. The event loop stands still until it has."""
        self._broken = broken
        await self._backend.start()
        self.weight_device = self._backend.weight_device
        if self.abilities.lora:
            self._adapter_folder = tempfile.TemporaryDirectory(prefix="envsdk-adapter-", dir=_MEMORY)
            await self._use_adapter(no_adapter(self._expected))

    def why_refused(self, request: GenerationRequest) -> EngineFailure | None:
        return why_refused(request, vocab_size=self._backend.vocab_size, end_token=self._end_token)

    async def sample(self, reply: Reply) -> None:
        request = reply.request
        self._in_vllm.add(reply)
        try:
            output = await self._backend.generate(
                request.request_id,
                request.prompt_ids.tolist(),
                sampling_options(
                    request.sampling,
                    room=self._sequence_length - len(request.prompt_ids),
                    experts_from=request.experts_from,
                ),
                priority=request.priority,
                # A prefix computed under older weights has another salt, so it is not found.
                cache_salt=str(self._version) if self._settings.kv_after_update == "keep" else None,
            )
            result = read_output(request.request_id, output)
            if request.experts_from is not None:
                told = output.outputs[0].routed_experts
                result = replace(result, experts=experts_of(request, len(result.token_ids), told))
            reply.answer(result)
        finally:
            self._in_vllm.discard(reply)

    def failure_of(self, reply: Reply, error: Exception) -> EngineFailure:
        if self.error:
            self._broken(self.error)
            return EngineFailure(self.error)
        if reply.request.sampling.structure is not None and isinstance(error, ValueError):
            return bad_structure(str(error))
        return super().failure_of(reply, error)

    def abort(self, replies: Collection[Reply]) -> None:
        for reply in replies:
            if reply not in self._in_vllm:
                reply.end(FinishReason.ABORT)
        if doomed := [reply.request.request_id for reply in replies if reply in self._in_vllm]:
            self.in_background(self._backend.abort(doomed))

    async def progress(self, num_known: Mapping[Reply, int]) -> list[TokenDelta]:
        found = []
        for reply, known in num_known.items():
            request_id = reply.request.request_id
            completion = self._backend.sampled_so_far(request_id)
            if completion is not None and (delta := read_progress(request_id, completion, known)):
                found.append(delta)
        return found

    async def freeze(self) -> None:
        await self._backend.freeze(forget=False)

    async def thaw(self) -> None:
        await self._backend.thaw()

    async def prepare(self, weights: WeightReference) -> _NewWeights:
        return await asyncio.to_thread(self._read, weights)

    def _read(self, weights: WeightReference) -> _NewWeights:
        if not self.abilities.lora:
            return _NewWeights(self._staged(weights))
        if isinstance(weights, Path):
            return _NewWeights(self._staged(weights), no_adapter(self._expected))
        stream = weights.items() if isinstance(weights, Mapping) else weights
        is_adapter, stream = told_apart(stream)
        if not is_adapter:
            return _NewWeights(self._staged(stream), no_adapter(self._expected))
        adapter = Adapter.read(as_tensors(stream), self._expected)
        if problem := self._settings.update_problem(stored_model_type(self._model), adapter.rank):
            raise EngineError(str(problem))
        base = self._staged(self._model) if self._has_other_weights else None
        return _NewWeights(base, adapter, is_for_the_folders=True)

    def _staged(self, weights: WeightReference) -> StagedWeights | WeightsOnCard:
        if why := why_not_renewed(stored_model_type(self._model)):
            raise EngineError(why)
        return stage(weights, self._expected, optional=self._optional, device=self.weight_device)

    async def _use_adapter(self, adapter: Adapter) -> None:
        assert self._adapter_folder is not None
        folder = Path(self._adapter_folder.name)
        # In place of the earlier one, which vLLM is not reading.
        await asyncio.to_thread(write_adapter, adapter, folder)
        await self._backend.load_adapter(folder)

    async def swap(self, prepared: _NewWeights, version: int, *, is_frozen: bool) -> None:
        await self._backend.freeze(forget=self._settings.kv_after_update == "recompute")
        if isinstance(prepared.staged, WeightsOnCard):
            await self._backend.transfer(prepared.staged.update_info())
        elif prepared.staged is not None:
            await self._backend.load(prepared.staged.handle)
        if prepared.staged is not None:
            self._has_other_weights = not prepared.is_for_the_folders
        if prepared.adapter is not None:
            await self._use_adapter(prepared.adapter)
        await self._backend.set_version(version)
        self._version = version
        if not is_frozen:
            await self._backend.thaw()

    async def hold(self, held: Held) -> None:
        if held is Held.NOTHING:
            self._version, self._has_other_weights = _DROPPED, True
        elif held is Held.ALL and self._version == _DROPPED:
            raise EngineError(NO_WEIGHTS)
        await self._backend.hold(held)

    def discard(self, prepared: _NewWeights) -> None:
        if prepared.staged is not None:
            prepared.staged.close()

    def counters(self) -> Counters:
        counters = self._backend.counters
        return Counters(
            num_tokens_sampled=counters.num_tokens_sampled,
            num_prefilled_tokens=counters.num_prefilled_tokens,
            kv_usage=counters.kv_usage if self.tasks else 0.0,
        )

    async def close(self) -> None:
        self.abort([reply for reply in self.tasks if reply.is_open])
        await self.end_tasks()
        await self._backend.close()
        if self._adapter_folder is not None:
            self._adapter_folder.cleanup()


class VLLMEngine(EngineFront):
    """vLLM behind the engine contract."""

    core: VLLMCore

    @classmethod
    def create(cls, config: EngineConfig) -> Self:
        settings = settings_of(VLLMSettings, config, "vllm")
        folder = model_of(config, "vllm")
        backend = AsyncLLMBackend.open(config, settings)
        try:
            return cls.on(backend, config=config, settings=settings)
        except EngineError as error:
            raise ConfigurationError(f"cannot load the model in {folder}: {error}") from error

    @classmethod
    def on(cls, backend: AsyncLLMBackend, *, config: EngineConfig, settings: VLLMSettings) -> Self:
        """Around a vLLM that is not started."""
        core = VLLMCore(backend, config=config, settings=settings)
        return cls(core, name="vllm", sequence_length=config.sequence_length)


_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
_ADAPTED = ("q_proj.weight", "qkv_proj.weight", "query_key_value.weight", "o_proj.weight")
"""Some of what vLLM adapts in every architecture that it adapts at all."""


def no_adapter(expected: Shapes) -> Adapter:
    """One that adds nothing: of the first matrix among a model's weights that vLLM is able to adapt."""
    import torch

    for name, shape in expected.items():
        if name.endswith(_ADAPTED) and len(shape) == 2:
            halves = torch.zeros(1, shape[1]), torch.zeros(shape[0], 1)
            return Adapter({name.removesuffix(".weight"): halves})
    raise EngineError("enable_lora: the model has no matrix that is known to be adapted; leave it out")
