"""The `openai` engine: a fixed model behind a server that speaks the completions protocol.

    begun -> streaming -> ended
                 |-> connection lost: asked again, from the start

For collecting and evaluating: weights cannot be loaded. Tokens go and come as ids. A pause in mode
`keep` stops reading: the server may sample ahead. With `protocol: generate` the server may get weights from
elsewhere: it tells each token's version at the end of a reply. Tokens of a reply that is cut off before have
the version that was known when it was asked for.

    engine = OpenAIEngine.create(EngineConfig(model=None, sequence_length=4096, strategy_config={
        "base_url": "http://127.0.0.1:8000/v1", "model": "Qwen/Qwen3-0.6B"}))
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Self

import httpx2
import numpy as np

from envsdk.contracts.failures import ConfigurationError, EngineError
from envsdk.engines.core import CoreFailure, Counters, Reply, TaskCore
from envsdk.engines.engine import (
    EngineAbilities,
    EngineConfig,
    EngineFailure,
    ErrorKind,
    GenerationRequest,
    GenerationResult,
    WeightReference,
)
from envsdk.engines.engine_support.experts import from_npy, read_experts
from envsdk.engines.engine_support.failures import ReplyRefused, Unavailable
from envsdk.engines.engine_support.http import back_off, events, http_client
from envsdk.engines.front import EngineFront, settings_of
from envsdk.engines.openai.settings import OpenAISettings
from envsdk.engines.openai.wire import VersionLabel, completion_body, read_event, why_inexpressible
from envsdk.engines.refusals import bad_structure
from envsdk.engines.sampling import LogitChanges, OutputStructure, SamplingParams
from envsdk.engines.settings import api_key_of
from envsdk.engines.vllm.translate import version_spans

_BAD_REQUEST = {400, 422}
"""Statuses with which servers refuse a structure; everything else in a request was checked before."""
_CERTAIN = -1e-4
"""Log-probability above which a token was the only one to choose from."""


class OpenAICore(TaskCore):
    """See the module's text; settings in `OpenAISettings`."""

    def __init__(self, config: EngineConfig, settings: OpenAISettings, api_key: str | None) -> None:
        super().__init__()
        self.abilities = EngineAbilities(
            weight_updates=OpenAISettings.takes_new_weights,
            priority=True,
            structured_output=settings.structured_output != "none",
            logit_changes=True,
            logprobs=settings.logprobs != "none",
            processed_logprobs=settings.logprobs == "sampling",
        )
        self.max_open = config.max_running
        self._settings = settings
        self._http = http_client(
            api_key=api_key,
            connect_timeout_s=settings.connect_timeout_s,
            silence_timeout_s=settings.silence_timeout_s,
        )
        self._sequence_length = config.sequence_length
        self._draw = random.Random(config.seed)
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._heeds_biases: bool | None = None
        """Known after the first request that needs it."""
        self._checking_biases = asyncio.Lock()
        self._tells_experts = False
        """With the last reply."""
        self._version = 0
        """Newest one that a reply was sampled under, as far as the server tells."""
        self._num_ended_tokens = 0
        self._num_prompt_tokens = 0

    async def start(self, broken: Callable[[str], None]) -> None:
        """Ask the server for a few tokens, to see that it gives what the contract promises.

        Raises EngineError when it does not answer, ConfigurationError when it answers something else.
        """
        first = await self._probe(max_new_tokens=1)
        if len(first.token_ids) == 0:
            return  # an empty reply to this prompt shows nothing
        self.abilities = replace(self.abilities, routed_experts=self._tells_experts)
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

    async def _check_biases(self) -> bool:
        """Whether a large one decides which token the server gives, whatever that token is."""
        for token in (0, 1):
            try:
                pushed = await self._probe(max_new_tokens=1, changes=LogitChanges(bias=((token, 100.0),)))
            except EngineError:  # it refuses the field
                return False
            if pushed.token_ids.tolist() != [token]:
                return False
        return True

    async def _check_structures(self) -> None:
        """A server that ignores structures gives the same reply to two that contradict each other."""
        replies = [
            await self._probe(
                max_new_tokens=1, structure=OutputStructure(json_schema=f'{{"enum": [{digit}]}}')
            )
            for digit in (1, 2)
        ]
        if replies[0].token_ids.tolist() == replies[1].token_ids.tolist():
            way = self._settings.structured_output
            raise ConfigurationError(
                f"{self._settings.base_url} does not keep replies to the structure in "
                f"`structured_output: {way}`; set what the server understands, or `none`"
            )

    async def _probe(
        self,
        *,
        max_new_tokens: int,
        stop_token_ids: tuple[int, ...] = (),
        structure: OutputStructure | None = None,
        changes: LogitChanges | None = None,
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
                changes=changes,
            ),
        )
        reply = Reply(request, asyncio.get_running_loop().create_future())
        try:
            await self._ask_until_answered(reply)
        except ReplyRefused as error:
            hint = ""
            if error.status == httpx2.codes.NOT_FOUND and self._settings.protocol == "generate":
                hint = "; vLLM serves this path with `--enable-scale-out`, else set `protocol: completions`"
            raise EngineError(f"engine `openai` cannot use its server: {error}{hint}") from error
        return reply.future.result()

    def why_refused(self, request: GenerationRequest) -> EngineFailure | None:
        structure = request.sampling.structure
        return why_inexpressible(self._settings, structure) if structure is not None else None

    async def sample(self, reply: Reply) -> None:
        self._num_prompt_tokens += len(reply.request.prompt_ids)
        if reply.request.sampling.changes is not None:
            async with self._checking_biases:
                if self._heeds_biases is None:
                    self._heeds_biases = await self._check_biases()
            if not self._heeds_biases:
                raise CoreFailure(
                    f"logit_changes: {self._settings.base_url} does not heed `logit_bias`",
                    ErrorKind.UNSUPPORTED_SAMPLING,
                )
        await self._ask_until_answered(reply)

    def failure_of(self, reply: Reply, error: Exception) -> EngineFailure:
        is_bound = reply.request.sampling.structure is not None
        if is_bound and isinstance(error, ReplyRefused) and error.status in _BAD_REQUEST:
            return bad_structure(str(error))
        return super().failure_of(reply, error)

    async def _ask_until_answered(self, reply: Reply) -> None:
        settings = self._settings
        for attempt in itertools.count():
            await self._flowing.wait()
            try:
                await self._ask(reply)
                return
            except Unavailable as error:
                if not reply.is_open:
                    return  # it broke after the last token
                if attempt == settings.max_retries:
                    raise ReplyRefused(f"{error} (asked {attempt + 1} times)") from error
                # The server forgets a request whose connection broke, so the reply cannot continue under
                # the same seed.
                reply.forget()
                await back_off(error, attempt, backoff_s=settings.backoff_s, draw=self._draw)

    async def _ask(self, reply: Reply) -> None:
        """One request to the server. Ends `reply`, or raises Unavailable or ReplyRefused."""
        request, version = reply.request, self._version
        prompt_ids = request.prompt_ids.tolist()
        room = self._sequence_length - len(prompt_ids)
        body = completion_body(
            self._settings,
            request,
            min(request.sampling.max_new_tokens, room),
            tells_experts=self.abilities.routed_experts,
        )
        async with aclosing(events(self._http, self._settings.url, body)) as messages:
            async for data in messages:
                await self._flowing.wait()
                if not reply.is_open:
                    continue
                delta = read_event(data, prompt_ids=prompt_ids, with_logprobs=self.abilities.logprobs)
                reply.take(delta.token_ids, delta.logprobs, version, delta.sets)
                if delta.weight_versions:
                    self._learn_versions(reply, delta.weight_versions)
                if delta.finish_reason is not None:
                    self._tells_experts = delta.experts is not None
                    reply.experts = read_experts(reply, delta.experts, from_npy)
                    reply.end(delta.finish_reason)
        if reply.is_open:
            raise Unavailable("the reply ended without a finish_reason")

    def _learn_versions(self, reply: Reply, labels: Sequence[VersionLabel]) -> None:
        try:
            reply.spans[:] = version_spans(labels, len(reply.token_ids))
        except ValueError as error:
            raise ReplyRefused(str(error)) from error
        self._version = max(self._version, *(span.version for span in reply.spans))

    def ended(self, reply: Reply) -> None:
        self._num_ended_tokens += len(reply.token_ids)
        super().ended(reply)

    async def freeze(self) -> None:
        self._flowing.clear()

    async def thaw(self) -> None:
        self._flowing.set()

    async def prepare(self, weights: WeightReference) -> None:
        raise EngineError(
            "engine `openai` cannot load weights: its model is the server's. It is for collecting and "
            "evaluating; train with another engine"
        )

    async def swap(self, prepared: None, version: int, *, is_frozen: bool) -> None:
        raise AssertionError("nothing can be prepared")

    def counters(self) -> Counters:
        num_in_progress = sum(len(reply.token_ids) for reply in self.tasks if reply.is_open)
        return Counters(
            num_tokens_sampled=self._num_ended_tokens + num_in_progress,
            num_prefilled_tokens=self._num_prompt_tokens,
        )

    async def close(self) -> None:
        self.abort(list(self.tasks))
        await self.end_tasks()
        await self._http.aclose()


class OpenAIEngine(EngineFront):
    """The server behind the engine contract."""

    core: OpenAICore

    @classmethod
    def create(cls, config: EngineConfig) -> Self:
        settings = settings_of(OpenAISettings, config, "openai")
        api_key = api_key_of(settings.api_key_env, where="strategy_config.api_key_env of engine `openai`")
        core = OpenAICore(config, settings, api_key)
        return cls(core, name="openai", sequence_length=config.sequence_length)
