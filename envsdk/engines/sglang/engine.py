"""The `sglang` engine: SGLang's HTTP server, driven by its own protocol.

    begun -> (held <-> on the server)* -> ended

A pause and an update clear the server: they abort the requests there, keep the tokens here, and ask for the
rest later with a longer prompt. So the version of each token is known when it is asked for, no update meets
a request on the server, and no key or value of older weights is used again. Seeds are not disturbed, since
SGLang draws a token from the request's seed and the token's position. A reply with a structure cannot
continue so, as SGLang takes the first token it samples for the structure's first: such replies end first.

    engine = SGLangEngine.create(EngineConfig(model=FOLDER, sequence_length=4096, strategy_config={
        "python": "sglang-env/bin/python", "tp_size": 2}))
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from envsdk.contracts.failures import ConfigurationError, EngineError
from envsdk.contracts.held import Held
from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.core import Counters, Reply, TaskCore
from envsdk.engines.engine import (
    EngineAbilities,
    EngineConfig,
    EngineFailure,
    GenerationRequest,
    TokenDelta,
    WeightReference,
)
from envsdk.engines.engine_support.experts import read_experts
from envsdk.engines.engine_support.failures import ReplyRefused, Unavailable
from envsdk.engines.engine_support.http import back_off
from envsdk.engines.front import EngineFront, model_of, settings_of
from envsdk.engines.settings import api_key_of
from envsdk.engines.sglang.connection import Connection, ServerRequests
from envsdk.engines.sglang.server_weights import NewWeights, ServerWeights
from envsdk.engines.sglang.settings import SGLangSettings
from envsdk.engines.sglang.wire import (
    Delta,
    generate_body,
    model_facts,
    read_message,
    why_unended,
    why_unsupported,
)
from envsdk.weights.shapes import shapes_in

LOOK_S = 2.0
"""Between two looks at the server."""
_CLOSE_GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class _Prepared:
    new: NewWeights
    folder: tempfile.TemporaryDirectory[str]


class SGLangCore(TaskCore):
    """See the module's text; settings in `SGLangSettings`."""

    def __init__(self, config: EngineConfig, settings: SGLangSettings, api_key: str | None) -> None:
        super().__init__()
        self.abilities = EngineAbilities(
            inflight_update=True,
            priority=True,
            prefix_reuse=not (settings.model_extra or {}).get("disable_radix_cache", False),
            structured_output=settings.structured_output,
            logit_changes=True,
            prompt_logprobs=settings.logprobs != "none",
            lora=settings.takes_adapters,
            logprobs=settings.logprobs != "none",
            processed_logprobs=settings.logprobs == "sampling",
            support=settings.logprobs == "sampling",
            progress=settings.logprobs != "none",
        )
        self.max_open = config.max_running
        self.connection = Connection(config, settings, api_key)
        self.requests = ServerRequests(self.connection)
        self._config = config
        self._settings = settings
        self._weights = ServerWeights(self.connection, config.model, settings)
        self._model = model_facts(config.model)
        self._broken: Callable[[str], None] = lambda why: None
        self._watching: asyncio.Task[None] | None = None
        self._draw = random.Random(config.seed)
        self._is_updating = False
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._counters = Counters()

    async def start(self, broken: Callable[[str], None]) -> None:
        """Start the server unless it runs already, wait until it answers, and check what it can do.

        Raises EngineError when it does not come up, ConfigurationError when it gives something else.
        """
        try:
            await self.connection.open()
            facts = await self.connection.check()
            model = self._config.model
            if self._settings.base_url and self._settings.load_at_start and model and shapes_in(model):
                await self._weights.swap(NewWeights(model.resolve()), 0)
        except (Unavailable, ReplyRefused) as error:
            raise EngineError(f"engine `sglang` cannot use its server: {error}") from error
        self.abilities = replace(
            self.abilities,
            prefix_reuse=facts.reuses_prefixes,
            structured_output=facts.keeps_structures,
            lora=facts.takes_adapters,
            routed_experts=facts.tells_experts and self._model.expert_shape is not None,
        )
        self._broken = broken
        self._watching = asyncio.ensure_future(self._watch())

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        for reply in self.requests.names:
            reply.is_ending = True
        if self.requests.names:
            with suppress(Unavailable, ReplyRefused, TimeoutError):
                await self.requests.clear(_CLOSE_GRACE_S)
        for reply in list(self.tasks):
            reply.end(FinishReason.ABORT)
        await self.end_tasks()
        await self.connection.close()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                self._counters.kv_usage = await self.connection.look()
            except EngineError as error:
                if not self._is_updating:  # it answers nothing while it reads weights
                    self._fail(str(error))
                    return

    def why_refused(self, request: GenerationRequest) -> EngineFailure | None:
        return why_unsupported(self._settings, request.sampling) or why_unended(
            request.sampling, self._model.end_tokens
        )

    async def sample(self, reply: Reply) -> None:
        """On the server, as often as it takes, until the reply is complete or to end."""
        num_failures = 0
        while True:
            while not (self._flowing.is_set() or reply.is_ending):
                await self._flowing.wait()  # it may be over again before this task continues
            if reply.is_ending:
                reply.end(FinishReason.ABORT)
                return
            if reason := self._why_complete(reply):
                reply.end(reason)
                return
            num_clearings = self.requests.num_clearings
            failure: Unavailable | None = None
            try:
                with self.requests.named(reply) as name:
                    last = await self._ask(reply, name)
            except Unavailable as error:
                failure = error
            else:
                if last.finish_reason is not FinishReason.ABORT:
                    assert last.finish_reason is not None
                    reply.end(last.finish_reason)
                    return
                if not reply.is_ending and num_clearings == self.requests.num_clearings:
                    failure = Unavailable(f"the server ended the request by itself: {last.told}")
            if failure is not None:
                _begin_again_if_bound(reply, failure)
                await self._back_off(failure, num_failures)
                num_failures += 1

    def _why_complete(self, reply: Reply) -> FinishReason | None:
        if reply.token_ids and reply.token_ids[-1] in reply.request.sampling.stop_token_ids:
            return FinishReason.STOP  # the server aborted it before it saw the stop token
        return FinishReason.LENGTH if self._room(reply) == 0 else None

    def _room(self, reply: Reply) -> int:
        """Tokens that may still be sampled."""
        request = reply.request
        context = self._config.sequence_length - len(request.prompt_ids)
        return min(request.sampling.max_new_tokens, context) - len(reply.token_ids)

    async def _ask(self, reply: Reply, name: str) -> Delta:
        """One request to the server; the last message of its answer."""
        version = self._weights.version
        stamp = self.connection.stamp(version)
        body = generate_body(
            self._settings,
            rid=name,
            input_ids=[*reply.request.prompt_ids.tolist(), *reply.token_ids],
            sampling=reply.request.sampling,
            max_new_tokens=self._room(reply),
            lora_name=self._weights.lora_name,
            experts_from=reply.request.experts_from,
        )
        last = Delta((), (), None)
        num_known = 0
        async with aclosing(self.connection.messages(body)) as messages:
            async for data in messages:
                last = read_message(data, body=body, num_known=num_known, stamp=stamp)
                num_known += len(last.token_ids)
                self._counters.num_tokens_sampled += len(last.token_ids)
                self._counters.num_prefilled_tokens += last.num_prefilled
                sets = last.sets if reply.request.sampling.tells_support else ()
                if reply.request.sampling.tells_support and len(sets) != len(last.token_ids):
                    raise ReplyRefused("the server gave no output_token_sampling_mask for some tokens")
                reply.prompt_scores = reply.prompt_scores or last.prompt_scores
                reply.take(last.token_ids, last.logprobs, version, sets)
        if last.finish_reason is None:
            raise Unavailable("the reply ended without a finish_reason")
        if last.experts is not None or last.finish_reason is not FinishReason.ABORT:
            reply.experts = read_experts(reply, last.experts, self._as_experts)
        return last

    def _as_experts(self, told: bytes) -> NDArray[np.int32]:
        assert self._model.expert_shape is not None
        return np.frombuffer(told, "<i4").reshape(-1, *self._model.expert_shape)

    async def _back_off(self, failure: Unavailable, num_before: int) -> None:
        settings = self._settings
        if num_before == settings.max_retries:
            raise ReplyRefused(f"{failure} (asked {num_before + 1} times)") from failure
        await back_off(failure, num_before, backoff_s=settings.backoff_s, draw=self._draw)

    def abort(self, replies: Collection[Reply]) -> None:
        for reply in replies:
            if reply not in self.requests.names:
                reply.end(FinishReason.ABORT)
            else:
                self.in_background(self._end_on_server(reply))

    async def _end_on_server(self, reply: Reply) -> None:
        await self.requests.end(reply)
        reply.end(FinishReason.ABORT)

    async def progress(self, num_known: Mapping[Reply, int]) -> list[TokenDelta]:
        # Nobody continues from the tokens of a reply with a structure.
        return await super().progress(
            {
                reply: known
                for reply, known in num_known.items()
                if reply.request.stream or not _is_bound(reply)
            }
        )

    async def freeze(self) -> None:
        self._flowing.clear()
        await self.requests.let_end(lambda reply: _is_bound(reply) and not reply.is_ending)
        try:
            await self.requests.clear(self._settings.silence_timeout_s)
        except (Unavailable, ReplyRefused, TimeoutError) as error:
            self._fail(f"SGLang's server does not end its requests: {error or 'it does not answer'}")

    async def thaw(self) -> None:
        self._flowing.set()

    def _fail(self, why: str) -> None:
        self._error = why
        self._broken(why)

    async def prepare(self, weights: WeightReference) -> _Prepared:
        folder = tempfile.TemporaryDirectory(prefix="envsdk-weights-", dir=self._settings.weights_folder)
        try:
            new = await asyncio.to_thread(
                self._weights.in_folder, weights, Path(folder.name), takes_adapters=self.abilities.lora
            )
            await self._weights.announce(new)
        except BaseException:
            folder.cleanup()
            raise
        return _Prepared(new, folder)

    async def swap(self, prepared: _Prepared, version: int, *, is_frozen: bool) -> None:
        self._is_updating = True
        try:
            if not is_frozen:
                await self.freeze()
            if self.error:
                raise EngineError(self.error)
            await self._weights.swap(prepared.new, version)
            if not is_frozen:
                await self.thaw()
        finally:
            self._is_updating = False

    async def hold(self, held: Held) -> None:
        try:
            await self._weights.hold(held)
        except (Unavailable, ReplyRefused) as error:
            raise EngineError(
                f"SGLang's server does not hold {held.name.lower()} of its memory: {error}; one at base_url "
                "must be started with --enable-memory-saver"
            ) from error

    def discard(self, prepared: _Prepared) -> None:
        prepared.folder.cleanup()

    def counters(self) -> Counters:
        return self._counters


class SGLangEngine(EngineFront):
    """The server behind the engine contract."""

    core: SGLangCore

    @classmethod
    def create(cls, config: EngineConfig) -> Self:
        settings = settings_of(SGLangSettings, config, "sglang")
        if config.model is not None or settings.base_url is None:
            model_of(config, "sglang")
        if settings.python is not None and shutil.which(settings.python) is None:
            raise ConfigurationError(
                f"strategy_config of engine `sglang`: `python` is {settings.python}, which cannot be run"
            )
        api_key = api_key_of(settings.api_key_env, where="strategy_config.api_key_env of engine `sglang`")
        core = SGLangCore(config, settings, api_key)
        return cls(core, name="sglang", sequence_length=config.sequence_length)


def _is_bound(reply: Reply) -> bool:
    """It has a structure or penalties, which the server follows within one request only."""
    return not reply.request.sampling.can_continue


def _begin_again_if_bound(reply: Reply, failure: Exception) -> None:
    """The server broke it off. ReplyRefused for a bound reply whose tokens were read."""
    if not _is_bound(reply) or not reply.token_ids:
        return
    if reply.request.stream:
        raise ReplyRefused(f"a reply with a structure that was partly read cannot continue: {failure}")
    reply.forget()
