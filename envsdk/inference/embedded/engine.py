"""The embedded engine: a batch of sequences on one compute thread, behind the asyncio contract.

    loop:    submit, abort, pause, load_weights ... -> job -> inbox
    thread:  jobs -> Batch.step -> ended replies -> one call_soon_threadsafe -> futures resolve

Only the compute thread touches the batch and the decoder. Weights are built on another thread
while decoding goes on, and swapped between two steps. An exception in the compute thread ends
every request with `error` and is `health().error` from then on.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from pathlib import Path
from typing import Any, TypeVar

import torch

from envsdk.failures import Boundary, ConfigurationError, EngineError, Failure
from envsdk.inference.embedded.batch import Batch, empty_result
from envsdk.inference.embedded.decoder import Decoder, as_tensors, read_folder
from envsdk.inference.embedded.fast import Architecture, FastDecoder
from envsdk.inference.embedded.generic import GenericDecoder, load_model
from envsdk.inference.embedded.guide import Guides
from envsdk.inference.embedded.settings import EmbeddedSettings
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
from envsdk.inference.lora import Adapter, told_apart
from envsdk.inference.refusals import in_use, refused, why_impossible
from envsdk.settings.validation import validated
from envsdk.store.model_files import require_model_folder

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_DEFAULT_CACHE_BYTES = 1 << 30

ResultT = TypeVar("ResultT")
Job = Callable[[], Sequence[GenerationResult]]
"""Runs on the compute thread; returns what it ended."""


class _Gate(Enum):
    OPEN = auto()
    DRAINING = auto()
    """Rows run on, nothing is admitted: `pause(WAIT)`."""
    CLOSED = auto()


class EmbeddedEngine(Engine):
    """See the module's text; settings in `EmbeddedSettings`."""

    def __init__(
        self,
        decoder: Decoder[Any],
        *,
        config: EngineConfig,
        settings: EmbeddedSettings,
        guides: Guides | None = None,
    ) -> None:
        self.abilities = EngineAbilities(
            inflight_update=True,
            priority=True,
            prefix_reuse=settings.prefix_reuse and decoder.caches,
            structured_output=guides is not None,
            lora=True,
            progress=True,
        )
        self._decoder = decoder
        self._guides = guides
        assert config.model is not None
        self._folder = config.model
        self._num_threads = settings.num_threads
        self._sequence_length = config.sequence_length
        self._batch = Batch(
            decoder,
            sequence_length=config.sequence_length,
            max_running=settings.max_running or config.max_running,
            max_prefill_tokens=settings.max_prefill_tokens,
            prefix_reuse=settings.prefix_reuse,
            seed=config.seed,
            guides=guides,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._futures: dict[str, asyncio.Future[GenerationResult]] = {}
        self._update_lock = asyncio.Lock()
        self._error = ""
        # Written by the compute thread alone.
        self._gate = _Gate.OPEN
        self._drained: list[Callable[[], None]] = []

    @classmethod
    def create(cls, config: EngineConfig) -> EmbeddedEngine:
        settings = validated(EmbeddedSettings, config.strategy_config, "strategy_config of engine `embedded`")
        folder = config.model
        if folder is None:
            raise ConfigurationError("engine `embedded` needs a model: give a Hugging Face folder")
        require_model_folder(folder)
        try:
            decoder = _load(folder, config, settings)
        except EngineError as error:
            raise ConfigurationError(f"cannot load the model in {folder}: {error}") from error
        return cls(decoder, config=config, settings=settings, guides=Guides.of(folder, decoder.vocab_size))

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, name="envsdk-embedded-engine", daemon=True)
        self._thread.start()

    def submit(self, request: GenerationRequest) -> asyncio.Future[GenerationResult]:
        future: asyncio.Future[GenerationResult] = asyncio.get_running_loop().create_future()
        request_id = request.request_id
        if refusal := self._refusal(request):
            future.set_result(refused(request_id, refusal))
            return future
        self._futures[request_id] = future
        future.add_done_callback(lambda _: self._drop_if_canceled(request_id, future))

        def job() -> Sequence[GenerationResult]:
            self._batch.submit(request)
            return ()

        self._inbox.put(job)
        return future

    def abort(self, request_ids: Sequence[str]) -> None:
        doomed = [request_id for request_id in request_ids if request_id in self._futures]
        if doomed:
            self._inbox.put(lambda: self._batch.abort(doomed))

    async def progress(self, num_known: Mapping[str, int]) -> list[TokenDelta]:
        loop = asyncio.get_running_loop()
        told: asyncio.Future[list[TokenDelta]] = loop.create_future()

        def job() -> Sequence[GenerationResult]:
            loop.call_soon_threadsafe(_tell, told, self._batch.progress(num_known))
            return ()

        if not self._alive:
            return []
        self._inbox.put(job)
        return await told

    async def pause(self, mode: PauseMode) -> None:
        loop = asyncio.get_running_loop()
        paused: asyncio.Future[None] = loop.create_future()

        def done() -> None:
            loop.call_soon_threadsafe(_set_done, paused)

        def job() -> Sequence[GenerationResult]:
            ended: Sequence[GenerationResult] = ()
            if mode is PauseMode.WAIT and self._batch.num_running:
                self._gate = _Gate.DRAINING
                self._drained.append(done)
                return ()
            if mode is PauseMode.ABORT:
                ended = self._batch.abort_running()
            self._close_gate()
            # After the results: whoever waits for the pause sees the replies it ended.
            self._deliver_soon(ended)
            done()
            return ()

        if self._alive:
            self._inbox.put(job)
            await paused

    async def resume(self) -> None:
        def job() -> Sequence[GenerationResult]:
            self._close_gate()  # ends a drain that is still waited for
            self._gate = _Gate.OPEN
            return ()

        if self._alive:
            self._inbox.put(job)

    async def load_weights(self, weights: WeightReference, version: int) -> None:
        async with self._update_lock:
            if not self._alive:
                raise EngineError(
                    f"engine `embedded` cannot take weights: {self._error or 'it is not started'}"
                )
            loop = asyncio.get_running_loop()
            built = await asyncio.to_thread(self._build, weights)
            if not self._alive:
                raise EngineError(f"engine `embedded` ended while weights were loaded: {self._error}")
            swapped: asyncio.Future[None] = loop.create_future()

            def job() -> Sequence[GenerationResult]:
                self._batch.swap(built, version)
                loop.call_soon_threadsafe(_set_done, swapped)
                return ()

            self._inbox.put(job)
            await swapped

    def health(self) -> EngineHealth:
        batch = self._batch
        num_running = batch.num_running
        return EngineHealth(
            version=batch.version,
            num_running=num_running,
            num_queued=max(0, len(self._futures) - num_running),
            num_tokens_sampled=batch.num_tokens_sampled,
            num_prompt_tokens=batch.num_prompt_tokens,
            num_prefilled_tokens=batch.num_prefilled_tokens,
            kv_usage=batch.kv_usage,
            error=self._error,
        )

    async def close(self) -> None:
        self._error = self._error or "the engine is closed"
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._inbox.put(lambda: self._batch.abort(list(self._futures)))
        self._inbox.put(None)
        await asyncio.to_thread(thread.join)
        await asyncio.sleep(0)  # the last replies are on their way to the loop
        for request_id in list(self._futures):
            self._resolve(empty_result(request_id, FinishReason.ABORT))

    @property
    def _alive(self) -> bool:
        return self._thread is not None and not self._error

    def _refusal(self, request: GenerationRequest) -> EngineFailure | None:
        """Why this request cannot be run; None when it can."""
        if self._error:
            return EngineFailure(self._error)
        if request.request_id in self._futures:
            return in_use(request.request_id)
        impossible = why_impossible(request, sequence_length=self._sequence_length, abilities=self.abilities)
        if impossible is not None:
            return impossible
        prompt, sampling = request.prompt_ids, request.sampling
        if int(prompt.min()) < 0 or int(prompt.max()) >= self._decoder.vocab_size:
            return EngineFailure(
                f"the prompt holds a token id outside the vocabulary of {self._decoder.vocab_size}"
            )
        if sampling.structure is not None and self._guides is not None:
            return self._guides.problem(sampling.structure, sampling.stop_token_ids)
        return None

    def _drop_if_canceled(self, request_id: str, future: asyncio.Future[GenerationResult]) -> None:
        if future.cancelled():  # nobody waits for it: free its place
            self.abort([request_id])

    def _deliver(self, results: Sequence[GenerationResult]) -> None:
        for result in results:
            self._resolve(result)

    def _resolve(self, result: GenerationResult) -> None:
        future = self._futures.pop(result.request_id, None)
        if future is not None and not future.done():
            future.set_result(result)

    def _build(self, weights: WeightReference) -> Any:
        """On a thread of its own, beside decoding."""
        torch.set_num_threads(self._num_threads)
        if isinstance(weights, Path):
            return self._decoder.build(self._tensors_in(weights))
        is_adapter, tensors = told_apart(as_tensors(weights))
        if is_adapter:
            base = dict(self._tensors_in(self._folder))
            adapter = Adapter.read(tensors, {name: tuple(tensor.shape) for name, tensor in base.items()})
            tensors = adapter.merged(base.items())
        return self._decoder.build(tensors)

    def _tensors_in(self, folder: Path) -> Iterable[tuple[str, torch.Tensor]]:
        if isinstance(self._decoder, GenericDecoder):
            # transformers knows how each architecture's file names map to its own.
            state: dict[str, torch.Tensor] = load_model(folder, torch.float32).state_dict()
            return state.items()
        return read_folder(folder).items()

    def _work(self) -> None:
        """The compute thread, on which all methods below run."""
        torch.set_num_threads(self._num_threads)
        try:
            with torch.inference_mode():
                self._run_until_closed()
        except Exception as error:  # noqa: BLE001 - the engine's boundary: it becomes every reply's error
            self._fail(error)

    def _run_until_closed(self) -> None:
        batch, inbox = self._batch, self._inbox
        while True:
            works = batch.has_work if self._gate is _Gate.OPEN else self._gate is _Gate.DRAINING
            try:
                while True:
                    job = inbox.get(block=not works)
                    if job is None:
                        self._close_gate()
                        return
                    self._deliver_soon(job())
                    works = True  # take what else is there, then look again
            except queue.Empty:
                pass
            if self._gate is _Gate.DRAINING and not batch.num_running:
                self._close_gate()
            if self._gate is not _Gate.CLOSED and batch.has_work:
                self._deliver_soon(batch.step(admit=self._gate is _Gate.OPEN))

    def _close_gate(self) -> None:
        self._gate = _Gate.CLOSED
        for done in self._drained:
            done()
        self._drained.clear()

    def _deliver_soon(self, results: Sequence[GenerationResult]) -> None:
        if results:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._deliver, results)

    def _fail(self, error: Exception) -> None:
        message = str(Failure.from_exception(Boundary.ENGINE, error))
        self._error = message
        self._deliver_soon(self._batch.fail(message))
        self._close_gate()
        # Jobs that were already under way: requests must still be answered.
        while True:
            job = self._inbox.get()
            if job is None:
                return
            job()
            self._deliver_soon(self._batch.fail(message))


def _set_done(future: asyncio.Future[None]) -> None:
    _tell(future, None)


def _tell(future: asyncio.Future[ResultT], result: ResultT) -> None:
    if not future.done():
        future.set_result(result)


def _load(folder: Path, config: EngineConfig, settings: EmbeddedSettings) -> Decoder[Any]:
    """The decoder for the model in `folder`, with its weights."""
    from transformers import AutoConfig

    try:
        model_config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise EngineError(f"config.json: {error}") from error
    limit = getattr(model_config, "max_position_embeddings", None)
    if limit is not None and config.sequence_length > limit:
        raise ConfigurationError(
            f"sequence_length is {config.sequence_length}, but the model in {folder} was made for at most "
            f"{limit} positions (max_position_embeddings); lower sequence_length"
        )
    try:
        device = torch.device(settings.device)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigurationError(
            f"strategy_config.device {settings.device!r} cannot be used: {error}"
        ) from error
    dtype = _DTYPES[settings.dtype]
    max_running = settings.max_running or config.max_running
    if settings.kv_slots is not None and settings.kv_slots < max_running:
        raise ConfigurationError(
            f"strategy_config.kv_slots is {settings.kv_slots}, but max_running is {max_running}: "
            f"every running request needs a slot; raise kv_slots or lower max_running"
        )
    architecture = None if settings.force_generic else Architecture.of(model_config)
    if architecture is None:
        model = load_model(folder, dtype)
        generic = GenericDecoder(
            model, num_slots=max_running, max_prefill_tokens=settings.max_prefill_tokens, device=device
        )
        generic.use(generic.build(model.state_dict().items()))
        return generic
    slot_bytes = 2 * dtype.itemsize * architecture.num_layers * architecture.num_kv_heads
    slot_bytes *= architecture.head_dim * config.sequence_length
    affordable = max(max_running, min(4 * max_running, _DEFAULT_CACHE_BYTES // slot_bytes))
    fast = FastDecoder(
        architecture,
        num_slots=settings.kv_slots or affordable,
        sequence_length=config.sequence_length,
        max_prefill_tokens=settings.max_prefill_tokens,
        dtype=dtype,
        device=device,
        reproducible=config.reproducible,
    )
    fast.use(fast.build(read_folder(folder).items()))
    return fast
