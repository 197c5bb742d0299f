"""The `openai` engine: a fixed model behind a server that speaks the completions protocol.

    submit -> (queued while paused or full ->) streaming -> resolved, exactly once
                                                  |-> broken off: asked again, from the start

For collecting and evaluating: weights cannot be loaded. Tokens go and come as ids. A pause in mode
`keep` stops reading: the server may sample ahead, which changes nothing, as its weights stay the same.

    engine = OpenAIEngine.create(EngineConfig(model=None, sequence_length=4096, strategy_config={
        "base_url": "http://127.0.0.1:8000/v1", "model": "Qwen/Qwen3-0.6B"}))
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import numpy as np

from envsdk.failures import ConfigurationError, EngineError
from envsdk.inference.engine import (
    Engine,
    EngineAbilities,
    EngineConfig,
    EngineFailure,
    EngineHealth,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    OutputStructure,
    PauseMode,
    SamplingParams,
    WeightReference,
)
from envsdk.inference.engine_support.failures import ReplyRefused, Unavailable, wait_s
from envsdk.inference.engine_support.requests import Answer, WaitingRequests, result_of
from envsdk.inference.openai.client import CompletionsClient
from envsdk.inference.openai.settings import OpenAISettings
from envsdk.inference.openai.wire import Delta, completion_body, read_event, why_inexpressible
from envsdk.inference.refusals import bad_structure, in_use, refused, why_impossible
from envsdk.inference.settings import api_key_of
from envsdk.settings.validation import validated
from envsdk.trajectory import VersionSpan

VERSION = 0
"""Of the weights: there is only one."""
_BAD_REQUEST = {400, 422}
"""Statuses with which servers refuse a structure; everything else in a request was checked before."""
_CERTAIN = -1e-4
"""Log-probability above which a token was the only one to choose from."""


@dataclass(slots=True)
class _Running:
    request: GenerationRequest
    future: Answer
    task: asyncio.Task[None] | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def take(self, delta: Delta) -> None:
        self.token_ids.extend(delta.token_ids)
        self.logprobs.extend(delta.logprobs)


class OpenAIEngine(Engine):
    """See the module's text; settings in `OpenAISettings`."""

    def __init__(self, config: EngineConfig, settings: OpenAISettings, api_key: str | None) -> None:
        self.abilities = EngineAbilities(
            weight_updates=OpenAISettings.takes_new_weights,
            priority=True,
            structured_output=settings.structured_output != "none",
            logprobs=settings.logprobs != "none",
            processed_logprobs=settings.logprobs == "sampling",
        )
        self._settings = settings
        self._client = CompletionsClient(settings, api_key)
        self._sequence_length = config.sequence_length
        self._max_running = config.max_running
        self._draw = random.Random(config.seed)
        self._waiting = WaitingRequests()
        self._running: dict[str, _Running] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = False
        self._paused = False
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._idle = asyncio.Event()
        self._error = ""
        self._num_tokens_sampled = 0
        self._num_prompt_tokens = 0

    @classmethod
    def create(cls, config: EngineConfig) -> OpenAIEngine:
        if config.sequence_length < 2:
            raise ConfigurationError(f"sequence_length is {config.sequence_length}; it must be at least 2")
        settings = validated(OpenAISettings, config.strategy_config, "strategy_config of engine `openai`")
        return cls(
            config,
            settings,
            api_key_of(settings.api_key_env, where="strategy_config.api_key_env of engine `openai`"),
        )

    async def start(self) -> None:
        """Ask the server for a few tokens, to see that it gives what the contract promises.

        Raises EngineError when it does not answer, ConfigurationError when it answers something else.
        """
        try:
            await self._check_server()
        except BaseException:
            await self.close()
            raise
        self._num_tokens_sampled = self._num_prompt_tokens = 0
        self._started = True
        self._dispatch()

    async def _check_server(self) -> None:
        first = await self._probe(max_new_tokens=1)
        if len(first.token_ids) == 0:
            return  # it has nothing to say to this prompt, which tells nothing
        if self.abilities.processed_logprobs and first.logprobs[0] < _CERTAIN:
            raise ConfigurationError(
                f"{self._settings.base_url} gives log-probability {first.logprobs[0]:.4g} to the only token "
                "that top_k=1 leaves: it does not give those of the sampling distribution. Start vLLM with "
                "`--logprobs-mode processed_logprobs`, or set `logprobs: raw`"
            )
        token = int(first.token_ids[0])
        stopped = (await self._probe(max_new_tokens=2, stop_token_ids=(token,))).token_ids.tolist()
        if not stopped or token in stopped[:-1]:
            did = "does not heed `stop_token_ids`" if stopped else "leaves the stop token out of the reply"
            raise ConfigurationError(
                f"{self._settings.base_url} {did}; replies could not be continued exactly"
            )

        if self.abilities.structured_output:
            await self._check_structures()

    async def _check_structures(self) -> None:
        """A server that does not keep to them replies to two that have nothing in common alike."""
        replies = [
            await self._probe(
                max_new_tokens=1, structure=OutputStructure(json_schema=f'{{"enum": [{digit}]}}')
            )
            for digit in (1, 2)
        ]
        if replies[0].token_ids.tolist() == replies[1].token_ids.tolist():
            way = self._settings.structured_output
            raise ConfigurationError(
                f"{self._settings.base_url} does not keep replies to the structure it is told of by "
                f"`structured_output: {way}`; set what the server understands, or `none`"
            )

    async def _probe(
        self,
        *,
        max_new_tokens: int,
        stop_token_ids: tuple[int, ...] = (),
        structure: OutputStructure | None = None,
    ) -> GenerationResult:
        request = GenerationRequest(
            request_id="probe",
            prompt_ids=np.zeros(1, np.int32),
            sampling=SamplingParams(
                max_new_tokens=min(max_new_tokens, self._sequence_length - 1),
                top_k=1,
                stop_token_ids=stop_token_ids,
                seed=0,
                structure=structure,
            ),
        )
        future: Answer = asyncio.get_running_loop().create_future()
        self._run(request, future)
        result = await future
        if result.finish_reason is FinishReason.ERROR:
            raise EngineError(f"engine `openai` cannot use its server: {result.error}")
        return result

    def submit(self, request: GenerationRequest) -> asyncio.Future[GenerationResult]:
        future: Answer = asyncio.get_running_loop().create_future()
        if refusal := self._refusal(request):
            future.set_result(refused(request.request_id, refusal))
            return future
        self._num_prompt_tokens += len(request.prompt_ids)
        self._waiting.push(request, future)
        future.add_done_callback(lambda done: self.abort([request.request_id]) if done.cancelled() else None)
        self._dispatch()
        return future

    def _refusal(self, request: GenerationRequest) -> EngineFailure | None:
        """Why this request cannot be run; None when it can."""
        if self._error:
            return EngineFailure(self._error)
        if request.request_id in self._running or request.request_id in self._waiting:
            return in_use(request.request_id)
        impossible = why_impossible(request, sequence_length=self._sequence_length, abilities=self.abilities)
        if impossible is None and request.sampling.structure is not None:
            return why_inexpressible(self._settings, request.sampling.structure)
        return impossible

    def _dispatch(self) -> None:
        while (
            self._waiting
            and len(self._running) < self._max_running
            and self._started
            and not (self._paused or self._error)
        ):
            self._run(*self._waiting.pop())

    def _run(self, request: GenerationRequest, future: Answer) -> None:
        running = self._running[request.request_id] = _Running(request, future)
        running.task = asyncio.ensure_future(self._answer(running))
        self._tasks.add(running.task)
        running.task.add_done_callback(self._tasks.discard)

    async def _answer(self, running: _Running) -> None:
        try:
            await self._ask_until_answered(running)
        except ReplyRefused as error:
            is_bound = running.request.sampling.structure is not None
            is_at_fault = is_bound and error.status in _BAD_REQUEST
            failure = bad_structure(str(error)) if is_at_fault else error.failure
            self._end(running, FinishReason.ERROR, failure)
        except Exception as error:  # noqa: BLE001 - every request is answered, whatever went wrong
            self._end(running, FinishReason.ERROR, EngineFailure(f"{type(error).__name__}: {error}"))

    async def _ask_until_answered(self, running: _Running) -> None:
        settings = self._settings
        for attempt in itertools.count():
            await self._flowing.wait()
            try:
                await self._ask(running)
                return
            except Unavailable as error:
                if running.future.done():
                    return  # it broke after the last token
                if attempt == settings.max_retries:
                    raise ReplyRefused(f"{error} (asked {attempt + 1} times)") from error
                # The server forgets a request whose connection broke: its tokens cannot be gone on from
                # under the same seed.
                running.token_ids.clear()
                running.logprobs.clear()
                await asyncio.sleep(
                    wait_s(
                        attempt,
                        backoff_s=settings.backoff_s,
                        at_least_s=error.retry_after_s,
                        uniform=self._draw.random(),
                    )
                )

    async def _ask(self, running: _Running) -> None:
        """One request to the server. Answers `running`, or raises Unavailable or ReplyRefused."""
        request = running.request
        prompt_ids = request.prompt_ids.tolist()
        room = self._sequence_length - len(prompt_ids)
        body = completion_body(self._settings, request, min(request.sampling.max_new_tokens, room))
        async with aclosing(self._client.events(body)) as events:
            async for data in events:
                await self._flowing.wait()
                if running.future.done():
                    continue
                delta = read_event(data, prompt_ids=prompt_ids, with_logprobs=self.abilities.logprobs)
                running.take(delta)
                if delta.finish_reason is not None:
                    self._end(running, delta.finish_reason)
        if not running.future.done():
            raise Unavailable("the reply ended without a finish_reason")

    def _end(self, running: _Running, reason: FinishReason, failure: EngineFailure | None = None) -> None:
        """Answer with the tokens so far. Does nothing when it was answered before."""
        if self._running.get(running.request.request_id) is not running:
            return
        del self._running[running.request.request_id]
        if running.task is not None and running.task is not asyncio.current_task():
            running.task.cancel()
        self._num_tokens_sampled += len(running.token_ids)
        if not running.future.done():
            running.future.set_result(
                _result(running.request.request_id, reason, running.token_ids, running.logprobs, failure)
            )
        if not self._running:
            self._idle.set()
        self._dispatch()

    def abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            if running := self._running.get(request_id):
                self._end(running, FinishReason.ABORT)
        for request, future in self._waiting.remove(request_ids):
            if not future.done():
                future.set_result(_result(request.request_id, FinishReason.ABORT))

    async def pause(self, mode: PauseMode) -> None:
        self._paused = True
        if mode is PauseMode.KEEP:
            self._flowing.clear()
            return
        self._flowing.set()
        if mode is PauseMode.ABORT:
            lasting = {
                name for name, running in self._running.items() if running.request.survives_weight_update
            }
            self.abort([name for name in self._running if name not in lasting])
            if lasting:
                self._flowing.clear()
                return
        while self._running and self._paused:
            self._idle.clear()
            await self._idle.wait()

    async def resume(self) -> None:
        self._paused = False
        self._flowing.set()
        self._idle.set()
        self._dispatch()

    async def load_weights(self, weights: WeightReference, version: int) -> None:
        raise EngineError(
            "engine `openai` cannot load weights: its model is the server's. It is for collecting and "
            "evaluating; train with another engine"
        )

    def health(self) -> EngineHealth:
        num_in_progress = sum(len(running.token_ids) for running in self._running.values())
        return EngineHealth(
            version=VERSION,
            num_running=len(self._running),
            num_queued=len(self._waiting),
            num_tokens_sampled=self._num_tokens_sampled + num_in_progress,
            num_prompt_tokens=self._num_prompt_tokens,
            num_prefilled_tokens=self._num_prompt_tokens,
            error=self._error,
        )

    async def close(self) -> None:
        self._error = self._error or "the engine is closed"
        self.abort([*self._running, *self._waiting.ids])
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()


def _result(
    request_id: str,
    reason: FinishReason,
    token_ids: Sequence[int] = (),
    logprobs: Sequence[float] = (),
    failure: EngineFailure | None = None,
) -> GenerationResult:
    count = len(token_ids)
    spans = (VersionSpan(version=VERSION, start=0, end=count),) if count else ()
    return result_of(request_id, reason, token_ids, logprobs, spans, failure)
