"""Shell: vLLM's asynchronous engine with the few verbs the adapter needs, and the process around it.

    open -> start -> (generate | abort | freeze .. load .. thaw)* -> close

The only module that imports vLLM in the engine's own process, and it does so inside functions. vLLM
computes in processes of its own: an engine core and its workers.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from envsdk.base.settings.nearest import suggest
from envsdk.contracts.failures import ConfigurationError, EngineError
from envsdk.contracts.held import Held
from envsdk.engines.core import Counters
from envsdk.engines.engine import EngineConfig
from envsdk.engines.vllm.settings import OWNER, VLLMSettings, engine_args
from envsdk.engines.vllm.staged_weights import ALLOW_HANDLES, CONFIG, Handle, begin, is_there, transfer

_INSTALL = (
    "engine `vllm` needs the package vllm, which cannot be imported here: `pip install 'envsdk[vllm]'` for "
    "GPUs, or see docs/vllm.md for a CPU"
)


_TAGS = ("weights", "kv_cache")
"""vLLM's names for the memory that each step of `Held` adds."""


class StatLogger(Counters):
    """Counts what vLLM reports after each step."""

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        if scheduler_stats is not None:
            self.kv_usage = float(scheduler_stats.kv_cache_usage)
        if iteration_stats is not None:
            self.num_tokens_sampled += iteration_stats.num_generation_tokens
            self.num_prefilled_tokens += iteration_stats.prompt_token_stats.computed

    def log_engine_initialized(self) -> None: ...

    def log(self) -> None: ...

    def record_sleep_state(self, is_awake: int, level: int) -> None: ...


class AsyncLLMBackend:
    """What `VLLMCore` needs of vLLM. All on one event loop."""

    def __init__(self, vllm_config: Any, environment: dict[str, str], weight_device: str) -> None:
        self.weight_device = weight_device
        """The card whose memory `transfer` takes weights in, as PyTorch names it; `cpu`: none."""
        self.vocab_size: int = vllm_config.model_config.get_vocab_size()
        self.counters = StatLogger()
        self._vllm_config = vllm_config
        self._environment = environment
        self._llm: Any = None
        self._lora_request: Any = None
        self._held = Held.ALL

    @classmethod
    def open(cls, config: EngineConfig, settings: VLLMSettings) -> AsyncLLMBackend:
        """Check everything that can be checked without loading the model. ConfigurationError."""
        with _own_environment(dict(os.environ)):
            os.environ[OWNER] = str(os.getpid())
            os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
            os.environ.setdefault("VLLM_LOGGING_LEVEL", settings.log_level)
            try:
                from vllm.engine.arg_utils import AsyncEngineArgs
                from vllm.platforms import current_platform
                from vllm.v1.engine.async_llm import AsyncLLM
            except ImportError as error:
                raise ConfigurationError(f"{_INSTALL} ({error})") from error

            on_cpu = current_platform.is_cpu()
            if on_cpu:
                # Several processes share this machine's cores: none is bound to one.
                os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
                os.environ["OMP_NUM_THREADS"] = str(settings.num_threads)
                if settings.enforce_eager is not False:
                    # The sampler would still be compiled, for most of a minute, at the first reply.
                    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
            if current_platform.is_cuda():
                # A forked process cannot use CUDA once this one has so much as counted the cards.
                os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
            args = engine_args(config, settings, on_cpu=on_cpu)
            weight_device = "cpu"
            if (
                current_platform.is_cuda()
                and settings.uses_one_device
                and is_there(AsyncEngineArgs, AsyncLLM)
            ):
                weight_device = "cuda:0"
                args["weight_transfer_config"] = CONFIG
                os.environ[ALLOW_HANDLES] = "1"
            known = AsyncEngineArgs.__dataclass_fields__.keys()
            for name in args.keys() - known:
                raise ConfigurationError(
                    f"strategy_config of engine `vllm`: the vLLM installed here has no argument `{name}`; "
                    f"{suggest(name, known, known='arguments')}"
                )
            try:
                vllm_config = AsyncEngineArgs(**args).create_engine_config()
            except (ValueError, TypeError, OSError, NotImplementedError) as error:
                raise ConfigurationError(f"engine `vllm` refuses its settings: {error}") from error
            if on_cpu:
                _check_heads(vllm_config.model_config)
            return cls(vllm_config, dict(os.environ), weight_device)

    @property
    def error(self) -> str:
        """Why it cannot answer any more; empty when it is well."""
        if self._llm is not None and self._llm.errored:
            return "vLLM's engine core died; its own messages say why"
        return ""

    async def start(self) -> None:
        from vllm.v1.engine.async_llm import AsyncLLM

        with _own_environment(self._environment):
            try:
                self._llm = AsyncLLM.from_vllm_config(
                    self._vllm_config, stat_loggers=[lambda *_: self.counters], disable_log_stats=True
                )
            except (RuntimeError, ValueError, OSError) as error:
                raise EngineError(f"vLLM does not start: {error}; its own messages say why") from error
        if self.weight_device != "cpu":
            os.environ[ALLOW_HANDLES] = "1"  # as in vLLM's processes, whose answers are not read otherwise
        await self._llm.get_supported_tasks()  # asked once; `generate` then registers without waiting
        if self.weight_device != "cpu":
            await begin(self._llm)
        await self.set_version(0)

    async def generate(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        options: Mapping[str, Any],
        *,
        priority: int,
        cache_salt: str | None,
    ) -> Any:
        """The finished `RequestOutput`. Registers the request before it first waits.

        ValueError for options that vLLM refuses.
        """
        from vllm import SamplingParams
        from vllm.exceptions import VLLMValidationError
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        structure = options["structured_outputs"]
        if structure is not None:
            options = {**options, "structured_outputs": StructuredOutputsParams(**structure)}
        final = None
        try:
            async for output in self._llm.generate(
                tokens_input(list(prompt_ids), cache_salt=cache_salt),
                SamplingParams(**options, output_kind=RequestOutputKind.FINAL_ONLY),
                request_id,
                lora_request=self._lora_request,
                priority=priority,
            ):
                final = output
        except VLLMValidationError as error:
            raise ValueError(str(error)) from error
        return final

    def sampled_so_far(self, request_id: str) -> Any | None:
        """The unfinished `CompletionOutput` of a request; None when it does not run."""
        # Replies come complete, so that no token costs a task switch; tokens so far are in vLLM's own
        # bookkeeping.
        processor = self._llm.output_processor
        names = processor.external_req_ids.get(request_id)
        state = processor.request_states.get(names[0]) if names else None
        if state is None:
            return None
        return SimpleNamespace(
            token_ids=state.detokenizer.output_token_ids,
            logprobs=state.logprobs_processor.logprobs,
            weight_versions=state._weight_version_spans(),
            sampling_mask=_sampling_mask(state.sampling_mask_chunks),
        )

    async def abort(self, request_ids: Sequence[str]) -> None:
        """`generate` then returns what was sampled, while frozen, too."""
        await self._llm.abort(request_ids)

    async def freeze(self, *, forget: bool) -> None:
        """Sample nothing more until `thaw`; with `forget`, drop all keys and values.

        Returns when every token sampled so far is in `counters`.
        """
        core = self._llm.engine_core
        await core.pause_scheduler_async(mode="keep", clear_cache=forget)
        # The outputs of the last step came before this answer; another task is still to count them.
        while not core.outputs_queue.empty():  # noqa: ASYNC110 - vLLM's task empties it
            await asyncio.sleep(0)
        for _ in range(3):
            await asyncio.sleep(0)

    async def thaw(self) -> None:
        await self._llm.resume_generation()

    async def load(self, handle: Handle) -> None:
        """Take these weights, frozen; when it raises the old ones may be damaged."""
        await self._llm.collective_rpc("envsdk_load_weights", args=(handle,))

    async def transfer(self, info: dict[str, Any]) -> None:
        """Take the weights in memory of the card that `WeightsOnCard` tells of, as `load`."""
        await transfer(self._llm, info)

    async def load_adapter(self, folder: Path) -> None:
        """Compute with the adapter in this folder, always the same one, from now on; frozen.

        Running requests do so too, if one was loaded before they came. `load` takes it away.
        """
        from vllm.lora.request import LoRARequest

        await self._llm.add_lora(LoRARequest("adapter", 1, str(folder), load_inplace=True))
        self._lora_request = LoRARequest("adapter", 1, str(folder))

    async def set_version(self, version: int) -> None:
        """Tokens sampled from now on are of `version`."""
        await self._llm.update_weight_version(str(version))

    async def hold(self, held: Held) -> None:
        """Go to sleep, or wake up as far as that; frozen. Weights are loaded before more is asked for."""
        if held is Held.NOTHING and self._held:
            await self._llm.sleep(level=2, mode="keep")
        for tag in _TAGS[self._held : held]:
            await self._llm.wake_up([tag])
        self._held = held if held is Held.NOTHING else max(self._held, held)

    async def close(self) -> None:
        llm, self._llm = self._llm, None
        if llm is not None:
            if llm.output_handler is not None:
                llm.output_handler.cancel()  # or it takes the end of its processes for a failure
            await asyncio.to_thread(llm.shutdown)


def _sampling_mask(chunks: Sequence[Any]) -> Any | None:
    """As a finished `CompletionOutput` has it."""
    sets = [kept for chunk in chunks for kept in chunk.to_nested_list()]
    return SimpleNamespace(token_ids=sets) if sets else None


def _check_heads(model: Any) -> None:
    """ConfigurationError for heads that vLLM would only meet in the first reply, and die of."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    if model.use_mla:
        raise ConfigurationError(
            "on a CPU vLLM 0.32 computes this model's latent attention otherwise than transformers, and "
            "log-probabilities would be off by tenths; take the engine `embedded`"
        )
    size, known = model.get_head_size(), CPUAttentionBackend.get_supported_head_sizes()
    if size not in known:
        raise ConfigurationError(
            f"the model's attention heads have {size} dimensions; on a CPU vLLM takes "
            f"{', '.join(map(str, known))}. Take another model, or the engine `embedded`"
        )


@contextmanager
def _own_environment(environment: dict[str, str]) -> Iterator[None]:
    """The process's variables are `environment` inside, and as they were afterwards.

    vLLM tells its processes how to run by them, and leaves them changed.
    """
    before = dict(os.environ)
    try:
        _replace_environment(environment)
        yield
    finally:
        _replace_environment(before)


def _replace_environment(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
