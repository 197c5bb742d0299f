"""The embedded engine: a batch of sequences on one compute thread.

    loop:    begin, abort, freeze, swap ... -> job -> inbox
    thread:  jobs -> Batch.step -> ended replies -> one call_soon_threadsafe -> replies are answered

Only the compute thread touches the batch and the decoder. Weights are built on another thread
while decoding continues, and swapped between two steps. An exception in the compute thread ends
every request with `error` and is `health().error` from then on.
"""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

import torch

from envsdk.base.processes.attention_kernels import leave_out_cudnn
from envsdk.base.processes.memory import give_back, give_back_freed, keep_few_kernels
from envsdk.base.store.model_files import hf_config, stored_dtype
from envsdk.contracts.failures import Boundary, ConfigurationError, EngineError, Failure
from envsdk.contracts.held import Held
from envsdk.engines.core import Core, Counters, Reply
from envsdk.engines.embedded.architecture import Architecture
from envsdk.engines.embedded.batch import Batch
from envsdk.engines.embedded.decoder import Decoder, as_tensors, read_folder
from envsdk.engines.embedded.fast import FastDecoder
from envsdk.engines.embedded.generic import GenericDecoder, load_model
from envsdk.engines.embedded.guide import Guides
from envsdk.engines.embedded.recorded import CudaGraphs, Recorder
from envsdk.engines.embedded.settings import EmbeddedSettings
from envsdk.engines.engine import (
    EngineAbilities,
    EngineConfig,
    EngineFailure,
    GenerationRequest,
    GenerationResult,
    TokenDelta,
    WeightReference,
)
from envsdk.engines.front import EngineFront, model_of, settings_of
from envsdk.weights.lora import Adapter, told_apart

_KERNELS = 256
"""Some 40 sizes of a batch, six kernels each."""
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

ResultT = TypeVar("ResultT")
Job = Callable[[], Sequence[GenerationResult]]
"""Runs on the compute thread; returns what it ended."""


class EmbeddedCore(Core):
    """See the module's text; settings in `EmbeddedSettings`."""

    max_open = sys.maxsize
    """The batch has the queue, so that a place is taken again without asking the event loop."""

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
            logit_changes=True,
            top_logprobs=True,
            prompt_logprobs=True,
            routed_experts=decoder.routes,
            support=True,
            lora=True,
            progress=True,
        )
        self.decoder = decoder
        self.weight_device = str(decoder.device)
        self.batch = Batch(
            decoder,
            sequence_length=config.sequence_length,
            max_running=settings.max_running or config.max_running,
            max_prefill_tokens=settings.max_prefill_tokens,
            prefix_reuse=settings.prefix_reuse,
            seed=config.seed,
            guides=guides,
        )
        self._guides = guides
        assert config.model is not None
        self._folder = config.model
        self._num_threads = settings.num_threads
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._replies: dict[str, Reply] = {}
        # Written by the compute thread alone.
        self._error = ""
        self._is_frozen = False

    async def start(self, broken: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(
            target=self._work, args=(broken,), name="envsdk-embedded-engine", daemon=True
        )
        self._thread.start()

    def why_refused(self, request: GenerationRequest) -> EngineFailure | None:
        prompt, sampling = request.prompt_ids, request.sampling
        if int(prompt.min()) < 0 or int(prompt.max()) >= self.decoder.vocab_size:
            return EngineFailure(
                f"the prompt holds a token id outside the vocabulary of {self.decoder.vocab_size}"
            )
        biased = [token for token, _ in sampling.changes.bias] if sampling.changes is not None else []
        if any(not 0 <= token < self.decoder.vocab_size for token in biased):
            return EngineFailure(
                f"the logit bias names a token id outside the vocabulary of {self.decoder.vocab_size}"
            )
        if sampling.structure is not None and self._guides is not None:
            return self._guides.problem(sampling.structure, sampling.stop_token_ids)
        return None

    def begin(self, reply: Reply) -> None:
        self._replies[reply.request.request_id] = reply

        def job() -> Sequence[GenerationResult]:
            self.batch.submit(reply.request, reply.arrival)
            return ()

        self._inbox.put(job)

    def ended(self, reply: Reply) -> None:
        self._replies.pop(reply.request.request_id, None)

    def abort(self, replies: Collection[Reply]) -> None:
        doomed = [reply.request.request_id for reply in replies]
        self._inbox.put(lambda: self.batch.abort(doomed))

    async def recall(self) -> Collection[Reply]:
        recalled = await self._on_thread(lambda: self.batch.recall())
        return [self._replies.pop(request_id) for request_id in recalled if request_id in self._replies]

    async def progress(self, num_known: Mapping[Reply, int]) -> list[TokenDelta]:
        known = {reply.request.request_id: number for reply, number in num_known.items()}
        return await self._on_thread(lambda: self.batch.progress(known))

    async def freeze(self) -> None:
        await self._on_thread(lambda: self._set_frozen(True))

    async def thaw(self) -> None:
        await self._on_thread(lambda: self._set_frozen(False))

    async def prepare(self, weights: WeightReference) -> Any:
        return await asyncio.to_thread(self._build, weights)

    async def swap(self, prepared: Any, version: int, *, is_frozen: bool) -> None:
        await self._on_thread(lambda: self.batch.swap(prepared, version))
        await asyncio.to_thread(give_back_freed)  # the weights before

    async def hold(self, held: Held) -> None:
        await self._on_thread(lambda: self.decoder.hold(held))
        await asyncio.to_thread(give_back, self.weight_device)

    def counters(self) -> Counters:
        batch = self.batch
        return Counters(
            num_tokens_sampled=batch.num_tokens_sampled,
            num_prefilled_tokens=batch.num_prefilled_tokens,
            kv_usage=batch.kv_usage,
            num_waiting=max(0, len(self._replies) - batch.num_running),
        )

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._inbox.put(lambda: self.batch.abort(list(self._replies)))
        self._inbox.put(None)
        await asyncio.to_thread(thread.join)
        await asyncio.sleep(0)  # the last replies are on their way to the loop

    async def _on_thread(self, work: Callable[[], ResultT]) -> ResultT:
        """What `work` returns, done by the compute thread between two steps.

        It arrives after the replies that ended before it.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[ResultT] = loop.create_future()

        def job() -> Sequence[GenerationResult]:
            try:
                result = work()
            except Exception as error:
                loop.call_soon_threadsafe(_unless_done, done, done.set_exception, error)
                raise
            loop.call_soon_threadsafe(_unless_done, done, done.set_result, result)
            return ()

        self._inbox.put(job)
        return await done

    def _deliver(self, results: Sequence[GenerationResult]) -> None:
        for result in results:
            if (reply := self._replies.get(result.request_id)) is not None:
                reply.answer(result)

    def _build(self, weights: WeightReference) -> Any:
        """On a thread of its own, while the compute thread decodes."""
        torch.set_num_threads(self._num_threads)
        if isinstance(weights, Path):
            return self.decoder.build(self._tensors_in(weights))
        is_adapter, tensors = told_apart(as_tensors(weights))
        if is_adapter:
            base = dict(self._tensors_in(self._folder))
            adapter = Adapter.read(tensors, {name: tuple(tensor.shape) for name, tensor in base.items()})
            tensors = adapter.merged(base.items())
        return self.decoder.build(tensors)

    def _tensors_in(self, folder: Path) -> Iterable[tuple[str, torch.Tensor]]:
        if isinstance(self.decoder, GenericDecoder):
            # transformers knows how each architecture's file names map to its own.
            state: dict[str, torch.Tensor] = load_model(folder, torch.float32).state_dict()
            return state.items()
        return read_folder(folder).items()

    def _work(self, broken: Callable[[str], None]) -> None:
        """The compute thread, on which all methods below run."""
        torch.set_num_threads(self._num_threads)
        try:
            with torch.inference_mode():
                self._run_until_closed()
        except Exception as error:  # noqa: BLE001 - the engine's boundary: it becomes every reply's error
            self._fail(error, broken)

    def _run_until_closed(self) -> None:
        batch, inbox = self.batch, self._inbox
        while True:
            works = batch.has_work and not self._is_frozen
            try:
                while True:
                    job = inbox.get(block=not works)
                    if job is None:
                        return
                    self._deliver_soon(job())
                    works = True  # take what else is there, then look again
            except queue.Empty:
                pass
            if batch.has_work and not self._is_frozen:
                self._deliver_soon(batch.step())

    def _set_frozen(self, is_frozen: bool) -> None:
        self._is_frozen = is_frozen

    def _deliver_soon(self, results: Sequence[GenerationResult]) -> None:
        if results:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._deliver, results)

    def _fail(self, error: Exception, broken: Callable[[str], None]) -> None:
        message = str(Failure.from_exception(Boundary.ENGINE, error))
        self._error = message
        self._deliver_soon(self.batch.fail(message))
        assert self._loop is not None
        self._loop.call_soon_threadsafe(broken, message)
        # Jobs that were already under way: requests must still be answered, and coroutines resumed.
        while (job := self._inbox.get()) is not None:
            with suppress(Exception):
                job()
            self._deliver_soon(self.batch.fail(message))


class EmbeddedEngine(EngineFront):
    """The embedded engine behind the contract."""

    core: EmbeddedCore

    @classmethod
    def create(cls, config: EngineConfig) -> Self:
        settings = settings_of(EmbeddedSettings, config, "embedded")
        folder = model_of(config, "embedded")
        keep_few_kernels(_KERNELS)
        leave_out_cudnn()
        try:
            decoder = _load(folder, config, settings)
        except EngineError as error:
            raise ConfigurationError(f"cannot load the model in {folder}: {error}") from error
        guides = Guides.of(folder, decoder.vocab_size)
        core = EmbeddedCore(decoder, config=config, settings=settings, guides=guides)
        return cls(core, name="embedded", sequence_length=config.sequence_length)


def _unless_done(
    future: asyncio.Future[ResultT], settle: Callable[[Any], None], outcome: ResultT | Exception
) -> None:
    """The coroutine that waits may have been canceled."""
    if not future.done():
        settle(outcome)


def _load(folder: Path, config: EngineConfig, settings: EmbeddedSettings) -> Decoder[Any]:
    """The decoder for the model in `folder`, with its weights."""
    if problem := settings.start_problem(folder, config.sequence_length, config.max_running):
        raise ConfigurationError(str(problem))
    try:
        model_config = hf_config(folder)
    except (OSError, ValueError) as error:
        raise EngineError(f"config.json: {error}") from error
    try:
        device = torch.device(settings.device)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigurationError(
            f"strategy_config.device {settings.device!r} cannot be used: {error}"
        ) from error
    dtype = _DTYPES[settings.precision(stored_dtype(folder)).dtype]
    max_running = settings.max_running or config.max_running
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
    fast = FastDecoder(
        architecture,
        num_slots=settings.num_slots(slot_bytes, max_running),
        sequence_length=config.sequence_length,
        max_prefill_tokens=settings.max_prefill_tokens,
        dtype=dtype,
        device=device,
        reproducible=config.reproducible,
        recorder=_recorder(settings, config, device),
        max_rows=max_running,
    )
    fast.use(fast.build(read_folder(folder).items()))
    return fast


def _recorder(settings: EmbeddedSettings, config: EngineConfig, device: torch.device) -> Recorder | None:
    """What decoding steps are recorded with; None where each kernel is launched by itself."""
    if device.type != "cuda" or not settings.cuda_graphs or config.reproducible:
        return None
    return CudaGraphs(device)
