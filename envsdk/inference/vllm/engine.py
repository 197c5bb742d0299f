"""The `vllm` engine: vLLM behind the contract.

    submit -> (queued while paused, updated or full ->) in vLLM -> resolved, exactly once
    load_weights: copied to shared memory, replies go on
                  -> frozen -> loaded -> version -> thawed, some milliseconds

The queue is the adapter's: vLLM gets no more than `max_running` requests, so a pause holds the others
back, and the lowest priority number goes first. vLLM computes in processes of its own and says itself
which weights sampled which token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envsdk.failures import Boundary, ConfigurationError, EngineError, Failure
from envsdk.inference.engine import (
    Engine,
    EngineAbilities,
    EngineConfig,
    EngineFailure,
    EngineHealth,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    PauseMode,
    TokenDelta,
    WeightReference,
)
from envsdk.inference.engine_support.requests import Answer, WaitingRequests, result_of
from envsdk.inference.lora import Adapter, told_apart
from envsdk.inference.refusals import bad_structure, in_use, refused
from envsdk.inference.vllm.adapter_folder import AdapterFolder, no_adapter
from envsdk.inference.vllm.core import AsyncLLMCore, Core
from envsdk.inference.vllm.settings import DEFAULT_MAX_LORA_RANK, VLLMSettings, end_token
from envsdk.inference.vllm.staged_weights import StagedWeights, stage
from envsdk.inference.vllm.translate import (
    read_output,
    read_progress,
    refusal,
    sampling_options,
)
from envsdk.inference.weight_folder import optional_head
from envsdk.inference.weight_shapes import shapes_in
from envsdk.inference.weight_tensors import as_tensors
from envsdk.settings.validation import validated
from envsdk.store.model_files import require_model_folder


@dataclass(slots=True)
class _Running:
    request: GenerationRequest
    future: Answer
    task: asyncio.Task[None] | None = None
    is_submitted: bool = False
    """vLLM has it, and can be asked to abort it."""


@dataclass(frozen=True, slots=True)
class _NewWeights:
    """What vLLM is to load."""

    staged: StagedWeights | None
    """Whole weights; None leaves those that it has."""
    adapter: Adapter | None = None
    """None where it takes none."""
    is_for_the_folders: bool = False
    """The adapter is one to the weights of the model's folder."""


class VLLMEngine(Engine):
    """See the module's text; settings in `VLLMSettings`."""

    def __init__(self, core: Core, *, config: EngineConfig, settings: VLLMSettings) -> None:
        assert config.model is not None
        self._end_token = end_token(config.model)
        self.abilities = EngineAbilities(
            inflight_update=True,
            priority=True,
            prefix_reuse=settings.enable_prefix_caching,
            structured_output=self._end_token is not None,
            lora=settings.enable_lora,
            progress=True,
            processed_logprobs=settings.logprobs == "sampling",
        )
        self._core = core
        self._settings = settings
        self._sequence_length = config.sequence_length
        self._max_running = config.max_running
        self._model = config.model
        self._expected = shapes_in(config.model)
        self._optional = optional_head(config.model, self._expected)

        self._adapter_folder: AdapterFolder | None = None
        self._has_other_weights = False
        """Whole weights took the place of those in the model's folder."""

        self._waiting = WaitingRequests()
        self._running: dict[str, _Running] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        """A reply ended, or a pause."""

        self._version = 0
        self._is_started = False
        self._is_paused = False
        self._is_frozen = False
        """vLLM itself is held by a pause in mode `keep`."""
        self._is_swapping = False
        self._update_lock = asyncio.Lock()
        self._core_lock = asyncio.Lock()
        """Held by whoever freezes or thaws vLLM."""
        self._error = ""
        self._num_prompt_tokens = 0

    @classmethod
    def create(cls, config: EngineConfig) -> VLLMEngine:
        settings = validated(VLLMSettings, config.strategy_config, "strategy_config of engine `vllm`")
        folder = config.model
        if folder is None:
            raise ConfigurationError("engine `vllm` needs a model: give a Hugging Face folder")
        require_model_folder(folder)
        core = AsyncLLMCore.open(config, settings)
        try:
            return cls(core, config=config, settings=settings)
        except EngineError as error:
            raise ConfigurationError(f"cannot load the model in {folder}: {error}") from error

    async def start(self) -> None:
        """EngineError when vLLM cannot load the model. The event loop stands still until it has."""
        await self._core.start()
        if self.abilities.lora:
            self._adapter_folder = AdapterFolder()
            await self._use_adapter(no_adapter(self._expected))
        self._is_started = True
        self._dispatch()

    def submit(self, request: GenerationRequest) -> asyncio.Future[GenerationResult]:
        future: Answer = asyncio.get_running_loop().create_future()
        if error := self._refusal(request):
            future.set_result(refused(request.request_id, error))
            return future
        self._num_prompt_tokens += len(request.prompt_ids)
        self._waiting.push(request, future)
        future.add_done_callback(lambda done: self.abort([request.request_id]) if done.cancelled() else None)
        self._dispatch()
        return future

    def _refusal(self, request: GenerationRequest) -> EngineFailure | None:
        if error := self._error or self._core.error:
            return EngineFailure(error)
        if request.request_id in self._running or request.request_id in self._waiting:
            return in_use(request.request_id)
        return refusal(
            request,
            sequence_length=self._sequence_length,
            vocab_size=self._core.vocab_size,
            abilities=self.abilities,
            end_token=self._end_token,
        )

    def _dispatch(self) -> None:
        while (
            self._waiting
            and len(self._running) < self._max_running
            and self._is_started
            and not (self._is_paused or self._is_swapping or self._error)
        ):
            request, future = self._waiting.pop()
            running = self._running[request.request_id] = _Running(request, future)
            running.task = self._in_background(self._answer(running))

    async def _answer(self, running: _Running) -> None:
        request = running.request
        if running.future.done():  # aborted before it got here
            return
        running.is_submitted = True
        try:
            output = await self._core.generate(
                request.request_id,
                request.prompt_ids.tolist(),
                sampling_options(request.sampling, room=self._sequence_length - len(request.prompt_ids)),
                priority=request.priority,
                # A prefix computed under older weights has another salt, so it is not found.
                cache_salt=str(self._version) if self._settings.kv_after_update == "keep" else None,
            )
            result = read_output(request.request_id, output)
        except Exception as error:  # noqa: BLE001 - the engine's boundary: it becomes the reply's error
            if self._core.error:
                self._fail(self._core.error)
            if request.sampling.structure is not None and isinstance(error, ValueError):
                failure = bad_structure(str(error))
            else:
                failure = EngineFailure(self._error or str(Failure.from_exception(Boundary.ENGINE, error)))
            result = refused(request.request_id, failure)
        self._end(running, result)

    def _end(self, running: _Running, result: GenerationResult) -> None:
        """Answer. Does nothing when it was answered before."""
        request_id = running.request.request_id
        if not self._is_running(running):
            return
        del self._running[request_id]
        if not running.future.done():
            running.future.set_result(result)
        self._changed.set()
        self._dispatch()

    def abort(self, request_ids: Sequence[str]) -> None:
        submitted = []
        for request_id in request_ids:
            running = self._running.get(request_id)
            if running is None:
                continue
            if running.is_submitted:
                submitted.append(request_id)
            else:
                self._end(running, result_of(request_id, FinishReason.ABORT))
        if submitted:
            self._in_background(self._core.abort(submitted))
        for request, future in self._waiting.remove(request_ids):
            if not future.done():
                future.set_result(result_of(request.request_id, FinishReason.ABORT))

    async def progress(self, num_known: Mapping[str, int]) -> list[TokenDelta]:
        found = []
        for request_id, known in num_known.items():
            completion = self._core.sampled_so_far(request_id) if request_id in self._running else None
            if completion is not None and (delta := read_progress(request_id, completion, known)):
                found.append(delta)
        return found

    async def pause(self, mode: PauseMode) -> None:
        self._is_paused = True
        if mode is PauseMode.WAIT:
            await self._thaw()
            await self._until_ended(self._running.values())
            return
        if mode is PauseMode.ABORT:
            ending = [found for found in self._running.values() if not found.request.outlasts_updates]
            self.abort([found.request.request_id for found in ending])
            await self._until_ended(ending)
            if not self._running:
                return
        async with self._core_lock:
            if self._is_paused and self._is_alive:
                await self._core.freeze(forget=False)
                self._is_frozen = True

    async def _until_ended(self, replies: Iterable[_Running]) -> None:
        """Or until the pause is over."""
        left = list(replies)
        while self._is_paused and (left := [found for found in left if self._is_running(found)]):
            self._changed.clear()
            await self._changed.wait()

    def _is_running(self, reply: _Running) -> bool:
        return self._running.get(reply.request.request_id) is reply

    async def resume(self) -> None:
        self._is_paused = False
        self._changed.set()
        await self._thaw()
        self._dispatch()

    async def _thaw(self) -> None:
        async with self._core_lock:
            if self._is_frozen and self._is_alive:
                self._is_frozen = False
                await self._core.thaw()

    async def load_weights(self, weights: WeightReference, version: int) -> None:
        async with self._update_lock:
            self._check_alive("cannot take weights")
            new = await asyncio.to_thread(self._prepare, weights)
            try:
                async with self._core_lock:
                    self._check_alive("ended while weights were loaded")
                    self._is_swapping = True
                    await self._swap(new, version)
            finally:
                self._is_swapping = False
                if new.staged is not None:
                    new.staged.close()
            self._dispatch()

    def _prepare(self, weights: WeightReference) -> _NewWeights:
        if not self.abilities.lora:
            return _NewWeights(self._staged(weights))
        if isinstance(weights, Path):
            return _NewWeights(self._staged(weights), no_adapter(self._expected))
        stream = weights.items() if isinstance(weights, Mapping) else weights
        is_adapter, stream = told_apart(stream)
        if not is_adapter:
            return _NewWeights(self._staged(stream), no_adapter(self._expected))
        adapter = Adapter.read(as_tensors(stream), self._expected)
        most = self._settings.max_lora_rank or DEFAULT_MAX_LORA_RANK
        if adapter.rank > most:
            raise EngineError(
                f"the adapter has rank {adapter.rank}; set strategy_config.max_lora_rank, now {most}, to it"
            )
        base = self._staged(self._model) if self._has_other_weights else None
        return _NewWeights(base, adapter, is_for_the_folders=True)

    def _staged(self, weights: WeightReference) -> StagedWeights:
        return stage(weights, self._expected, optional=self._optional)

    async def _use_adapter(self, adapter: Adapter) -> None:
        assert self._adapter_folder is not None
        await asyncio.to_thread(self._adapter_folder.write, adapter)
        await self._core.load_adapter(self._adapter_folder.path)

    async def _swap(self, new: _NewWeights, version: int) -> None:
        try:
            await self._core.freeze(forget=self._settings.kv_after_update == "recompute")
            if new.staged is not None:
                await self._core.load(new.staged.handle)
                self._has_other_weights = not new.is_for_the_folders
            if new.adapter is not None:
                await self._use_adapter(new.adapter)
            await self._core.set_version(version)
            self._version = version
            if not self._is_frozen:
                await self._core.thaw()
        except Exception as error:
            # Part of the new weights may be in place: nothing can be sampled any more.
            self._fail(f"a weight update broke off: {Failure.from_exception(Boundary.ENGINE, error)}")
            raise EngineError(f"engine `vllm`: {self._error}") from error

    @property
    def _is_alive(self) -> bool:
        return self._is_started and not (self._error or self._core.error)

    def _check_alive(self, what: str) -> None:
        if not self._is_alive:
            why = self._error or self._core.error or "it is not started"
            raise EngineError(f"engine `vllm` {what}: {why}")

    def health(self) -> EngineHealth:
        counters = self._core.counters
        return EngineHealth(
            version=self._version,
            num_running=len(self._running),
            num_queued=len(self._waiting),
            num_tokens_sampled=counters.num_tokens_sampled,
            num_prompt_tokens=self._num_prompt_tokens,
            num_prefilled_tokens=counters.num_prefilled_tokens,
            kv_usage=counters.kv_usage if self._running else 0.0,
            error=self._error or self._core.error,
        )

    def _fail(self, message: str) -> None:
        """Answer everything with this error, now and from now on."""
        self._error = self._error or message
        for running in self._running.values():
            if running.task is not None and running.task is not asyncio.current_task():
                running.task.cancel()
        entries = [(running.request, running.future) for running in self._running.values()]
        entries += self._waiting.remove(self._waiting.ids)
        self._running.clear()
        self._changed.set()
        for request, future in entries:
            if not future.done():
                future.set_result(refused(request.request_id, EngineFailure(self._error)))

    async def close(self) -> None:
        if not self._error:
            self._error = "the engine is closed"
            self.abort([*self._running, *self._waiting.ids])
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._core.close()
        if self._adapter_folder is not None:
            self._adapter_folder.close()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
