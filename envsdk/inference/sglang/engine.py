"""The `sglang` engine: SGLang's HTTP server, driven by its own protocol.

    submit -> (queued while paused or full ->) open: (held <-> on the server) -> resolved, exactly once

A pause and an update clear the server: what it samples is aborted there, kept here with its tokens, and
sampled on later as a longer prompt. So every token's version is known from when it was asked for, no update
meets a request on the server, and no key or value of older weights is used again. Seeds go on undisturbed,
since SGLang draws a token from the request's seed and the token's position. A reply with a structure cannot
go on so, as SGLang takes the first token it samples for the structure's first: such replies end first.

    engine = SGLangEngine.create(EngineConfig(model=FOLDER, sequence_length=4096, strategy_config={
        "python": "sglang-env/bin/python", "tp_size": 2}))
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from envsdk.failures import ConfigurationError, EngineError
from envsdk.inference.engine import (
    Engine,
    EngineAbilities,
    EngineConfig,
    EngineFailure,
    EngineHealth,
    FinishReason,
    GenerationRequest,
    PauseMode,
    TokenDelta,
    WeightReference,
)
from envsdk.inference.engine_support.failures import ReplyRefused, Unavailable, wait_s
from envsdk.inference.engine_support.requests import Answer, WaitingRequests, result_of
from envsdk.inference.refusals import in_use, refused, why_impossible
from envsdk.inference.settings import api_key_of
from envsdk.inference.sglang.connection import Connection
from envsdk.inference.sglang.reply import Reply
from envsdk.inference.sglang.server_weights import NewWeights, ServerWeights
from envsdk.inference.sglang.settings import SGLangSettings
from envsdk.inference.sglang.wire import (
    Delta,
    end_tokens,
    generate_body,
    read_message,
    why_unended,
    why_unsupported,
)
from envsdk.inference.weight_shapes import shapes_in
from envsdk.settings.validation import validated
from envsdk.store.model_files import require_model_folder

LOOK_S = 2.0
"""Between two looks at the server."""
_AGAIN_S = 0.1
"""Between two requests to abort: one that overtakes what it is to abort has no effect."""
_ABORT_GRACE_S = 5.0
"""For the server to end one request; then the connection is closed."""
_CLOSE_GRACE_S = 2.0


class SGLangEngine(Engine):
    """See the module's text; settings in `SGLangSettings`."""

    def __init__(self, config: EngineConfig, settings: SGLangSettings, api_key: str | None) -> None:
        self.abilities = EngineAbilities(
            inflight_update=True,
            priority=True,
            prefix_reuse=not (settings.model_extra or {}).get("disable_radix_cache", False),
            structured_output=settings.structured_output,
            lora=settings.takes_adapters,
            logprobs=settings.logprobs != "none",
            processed_logprobs=settings.logprobs == "sampling",
            progress=settings.logprobs != "none",
        )
        self._config = config
        self._settings = settings
        self._connection = Connection(config, settings, api_key)
        self._weights = ServerWeights(self._connection, config.model, settings)
        self._end_tokens = end_tokens(config.model)
        self._watching: asyncio.Task[None] | None = None
        self._draw = random.Random(config.seed)
        self._version = 0
        self._updates = asyncio.Lock()
        self._waiting = WaitingRequests()
        self._open: dict[str, Reply] = {}
        self._sampling: set[Reply] = set()
        """Those of `_open` that the server has."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_started = False
        self._is_paused = False
        self._is_frozen = False
        self._is_updating = False
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._changed = asyncio.Event()
        self._num_clearings = 0
        self._error = ""
        self._kv_usage = 0.0
        self._num_tokens_sampled = self._num_prompt_tokens = self._num_prefilled_tokens = 0

    @classmethod
    def create(cls, config: EngineConfig) -> SGLangEngine:
        if config.sequence_length < 2:
            raise ConfigurationError(f"sequence_length is {config.sequence_length}; it must be at least 2")
        settings = validated(SGLangSettings, config.strategy_config, "strategy_config of engine `sglang`")
        if config.model is None and settings.base_url is None:
            raise ConfigurationError("engine `sglang` needs a model: set `pretrain` to a Hugging Face folder")
        if settings.python is not None and shutil.which(settings.python) is None:
            raise ConfigurationError(
                f"strategy_config of engine `sglang`: `python` is {settings.python}, which cannot be run"
            )
        if config.model is not None:
            require_model_folder(config.model)
        return cls(
            config,
            settings,
            api_key_of(settings.api_key_env, where="strategy_config.api_key_env of engine `sglang`"),
        )

    async def start(self) -> None:
        """Start the server unless it runs already, wait until it answers, and see that it will do.

        Raises EngineError when it does not come up, ConfigurationError when it gives something else.
        """
        try:
            await self._connection.open()
            facts = await self._connection.check()
            model = self._config.model
            if self._settings.base_url and self._settings.load_at_start and model and shapes_in(model):
                await self._swap(NewWeights(model.resolve()), self._version)
        except BaseException as error:
            await self.close()
            if isinstance(error, Unavailable | ReplyRefused):
                raise EngineError(f"engine `sglang` cannot use its server: {error}") from error
            raise
        self.abilities = replace(
            self.abilities,
            prefix_reuse=facts.reuses_prefixes,
            structured_output=facts.keeps_structures,
            lora=facts.takes_adapters,
        )
        self._is_started = True
        self._watching = asyncio.ensure_future(self._watch())
        self._dispatch()

    async def close(self) -> None:
        self._error = self._error or "the engine is closed"
        if self._watching is not None:
            self._watching.cancel()
        for reply in self._sampling:
            reply.is_ending = True
        if self._sampling:
            with suppress(Unavailable, ReplyRefused, TimeoutError):
                await asyncio.wait_for(self._clear_server(), _CLOSE_GRACE_S)
        self._end_all(FinishReason.ABORT)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._connection.close()

    async def _watch(self) -> None:
        while not self._error:
            await asyncio.sleep(LOOK_S)
            try:
                self._kv_usage = await self._connection.look()
            except EngineError as error:
                if not self._is_updating:  # it answers nobody while it reads weights
                    self._fail(str(error))

    def _fail(self, error: str) -> None:
        """The engine is broken: everything, now and later, ends with this error."""
        self._error = self._error or error
        self._end_all(FinishReason.ERROR, EngineFailure(self._error))

    def _end_all(self, reason: FinishReason, failure: EngineFailure | None = None) -> None:
        for reply in list(self._open.values()):
            self._end(reply, reason, failure)
        for request, answer in self._waiting.remove(self._waiting.ids):
            _resolve(answer, request.request_id, reason, failure)

    def submit(self, request: GenerationRequest) -> Answer:
        answer: Answer = asyncio.get_running_loop().create_future()
        if refusal := self._refusal(request):
            answer.set_result(refused(request.request_id, refusal))
            return answer
        self._num_prompt_tokens += len(request.prompt_ids)
        self._waiting.push(request, answer)
        answer.add_done_callback(lambda done: self.abort([request.request_id]) if done.cancelled() else None)
        self._dispatch()
        return answer

    def _refusal(self, request: GenerationRequest) -> EngineFailure | None:
        """Why this request cannot be run; None when it can."""
        if self._error:
            return EngineFailure(self._error)
        if request.request_id in self._open or request.request_id in self._waiting:
            return in_use(request.request_id)
        impossible = why_impossible(
            request, sequence_length=self._config.sequence_length, abilities=self.abilities
        )
        return (
            impossible
            or why_unsupported(self._settings, request.sampling)
            or why_unended(request.sampling, self._end_tokens)
        )

    def _dispatch(self) -> None:
        while (
            self._waiting
            and len(self._open) < self._config.max_running
            and self._is_started
            and not (self._is_paused or self._error)
        ):
            request, answer = self._waiting.pop()
            reply = self._open[request.request_id] = Reply(request, answer)
            reply.task = self._in_background(self._answer(reply))

    async def _answer(self, reply: Reply) -> None:
        try:
            reason = await self._sample(reply)
        except ReplyRefused as error:
            self._end(reply, FinishReason.ERROR, error.failure)
        except Exception as error:  # noqa: BLE001 - every request is answered, whatever went wrong
            self._end(reply, FinishReason.ERROR, EngineFailure(f"{type(error).__name__}: {error}"))
        else:
            self._end(reply, reason)

    async def _sample(self, reply: Reply) -> FinishReason:
        """On the server, as often as it takes, until the reply is whole or to end."""
        num_failures = 0
        while True:
            while not (self._flowing.is_set() or reply.is_ending):
                await self._flowing.wait()  # it may be over again before this goes on
            if reply.is_ending:
                return FinishReason.ABORT
            if reason := self._why_whole(reply):
                return reason
            num_clearings = self._num_clearings
            failure: Unavailable | None = None
            self._sampling.add(reply)
            try:
                last = await self._ask(reply)
            except Unavailable as error:
                failure = error
            else:
                if last.finish_reason is not FinishReason.ABORT:
                    assert last.finish_reason is not None
                    return last.finish_reason
                if not reply.is_ending and num_clearings == self._num_clearings:
                    failure = Unavailable(f"the server ended the request by itself: {last.told}")
            finally:
                self._sampling.discard(reply)
                reply.rid = ""
                self._changed.set()
            if failure is not None:
                reply.begin_anew_if_bound(failure)
                await self._back_off(failure, num_failures)
                num_failures += 1

    def _why_whole(self, reply: Reply) -> FinishReason | None:
        if reply.token_ids and reply.token_ids[-1] in reply.request.sampling.stop_token_ids:
            return FinishReason.STOP  # it was aborted before it was seen to be whole
        return FinishReason.LENGTH if self._room(reply) == 0 else None

    def _room(self, reply: Reply) -> int:
        """Tokens that may still be sampled."""
        request = reply.request
        context = self._config.sequence_length - len(request.prompt_ids)
        return min(request.sampling.max_new_tokens, context) - len(reply.token_ids)

    async def _ask(self, reply: Reply) -> Delta:
        """One request to the server; the last of what it answers."""
        version = self._version
        stamp = self._connection.stamp(version)
        reply.rid = self._connection.new_name()
        body = generate_body(
            self._settings,
            rid=reply.rid,
            input_ids=[*reply.request.prompt_ids.tolist(), *reply.token_ids],
            sampling=reply.request.sampling,
            max_new_tokens=self._room(reply),
            lora_name=self._weights.lora_name,
        )
        last = Delta((), (), None)
        num_known = 0
        async with aclosing(self._connection.client.messages(body)) as messages:
            async for data in messages:
                last = read_message(data, body=body, num_known=num_known, stamp=stamp)
                num_known += len(last.token_ids)
                self._num_tokens_sampled += len(last.token_ids)
                self._num_prefilled_tokens += last.num_prefilled
                reply.take(last, version)
        if last.finish_reason is None:
            raise Unavailable("the reply ended without a finish_reason")
        return last

    async def _back_off(self, failure: Unavailable, num_before: int) -> None:
        settings = self._settings
        if num_before == settings.max_retries:
            raise ReplyRefused(f"{failure} (asked {num_before + 1} times)") from failure
        await asyncio.sleep(
            wait_s(
                num_before,
                backoff_s=settings.backoff_s,
                at_least_s=failure.retry_after_s,
                uniform=self._draw.random(),
            )
        )

    def _end(self, reply: Reply, reason: FinishReason, failure: EngineFailure | None = None) -> None:
        """Answer with the tokens so far. Does nothing when it was answered before."""
        request_id = reply.request.request_id
        if not self._is_open(reply):
            return
        del self._open[request_id]
        if reply.task is not None and reply.task is not asyncio.current_task():
            reply.task.cancel()
        _resolve(reply.answer, request_id, reason, failure, reply)
        self._changed.set()
        self._dispatch()

    def abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            reply = self._open.get(request_id)
            if reply is None or reply.is_ending:
                continue
            reply.is_ending = True
            if reply in self._sampling:
                self._in_background(self._end_on_server(reply))
            else:
                self._end(reply, FinishReason.ABORT)
        for request, answer in self._waiting.remove(request_ids):
            _resolve(answer, request.request_id, FinishReason.ABORT)

    async def _end_on_server(self, reply: Reply) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _ABORT_GRACE_S
        while reply in self._sampling and loop.time() < deadline:
            with suppress(Unavailable, ReplyRefused):
                await self._connection.client.post(
                    "/abort_request", {"rid": reply.rid}, timeout_s=_ABORT_GRACE_S
                )
            await self._until(lambda: reply not in self._sampling, _AGAIN_S)
        self._end(reply, FinishReason.ABORT)

    async def progress(self, num_known: Mapping[str, int]) -> list[TokenDelta]:
        open_replies = ((self._open.get(request_id), known) for request_id, known in num_known.items())
        return [
            reply.since(known)
            for reply, known in open_replies
            if reply and reply.may_be_told and len(reply.token_ids) > known
        ]

    async def pause(self, mode: PauseMode) -> None:
        self._is_paused = True
        staying = [reply for reply in self._open.values() if reply.request.survives_weight_update]
        self._is_frozen = mode is PauseMode.KEEP or (mode is PauseMode.ABORT and bool(staying))
        self._let_flow()
        ending = list(self._open.values()) if mode is not PauseMode.KEEP else []
        if mode is PauseMode.ABORT:
            ending = [reply for reply in ending if not reply.request.survives_weight_update]
            for reply in ending:
                reply.is_ending = True
                if reply not in self._sampling:
                    self._end(reply, FinishReason.ABORT)
                elif staying:
                    self._in_background(self._end_on_server(reply))
        if mode is not PauseMode.WAIT:
            await self._let_structures_end()
            await self._clear()
        await self._until(lambda: not self._is_paused or not any(map(self._is_open, ending)))

    def _is_open(self, reply: Reply) -> bool:
        return self._open.get(reply.request.request_id) is reply

    async def _let_structures_end(self) -> None:
        """Those on the server, while nothing more goes there."""
        bound = {reply for reply in self._sampling if reply.is_bound and not reply.is_ending}
        await self._until(lambda: self._flowing.is_set() or not bound & self._sampling)

    async def resume(self) -> None:
        self._is_paused = self._is_frozen = False
        self._let_flow()
        self._changed.set()
        self._dispatch()

    def _let_flow(self) -> None:
        if self._is_frozen or self._is_updating:
            self._flowing.clear()
        else:
            self._flowing.set()

    async def _clear(self) -> None:
        try:
            await asyncio.wait_for(self._clear_server(), self._settings.silence_timeout_s)
        except (Unavailable, ReplyRefused, TimeoutError) as error:
            self._fail(f"SGLang's server does not end its requests: {error or 'it does not answer'}")

    async def _clear_server(self) -> None:
        """Until the server samples nothing of what it was given before."""
        self._num_clearings += 1
        there = set(self._sampling)
        while there & self._sampling:
            await self._connection.client.post("/abort_request", {"abort_all": True})
            await self._until(lambda: not there & self._sampling, _AGAIN_S)

    async def load_weights(self, weights: WeightReference, version: int) -> None:
        if self._error:
            raise EngineError(self._error)
        async with self._updates:
            with tempfile.TemporaryDirectory(
                prefix="envsdk-weights-", dir=self._settings.weights_folder
            ) as temporary:
                new = await asyncio.to_thread(
                    self._weights.in_folder, weights, Path(temporary), takes_adapters=self.abilities.lora
                )
                await self._weights.announce(new)
                self._is_updating = True
                self._let_flow()
                try:
                    await self._let_structures_end()
                    await self._swap(new, version)
                except BaseException as error:
                    # Nobody knows which weights it has now.
                    self._fail(f"weights {version} did not arrive at SGLang's server: {error or 'canceled'}")
                    if isinstance(error, Unavailable | ReplyRefused):
                        raise EngineError(self._error) from error
                    raise
                finally:
                    self._is_updating = False
                    self._let_flow()

    async def _swap(self, new: NewWeights, version: int) -> None:
        await self._clear()
        if self._error:
            raise EngineError(self._error)
        await self._weights.swap(new, self._connection.stamp(version))
        self._version = version

    def health(self) -> EngineHealth:
        return EngineHealth(
            version=self._version,
            num_running=len(self._open),
            num_queued=len(self._waiting),
            num_tokens_sampled=self._num_tokens_sampled,
            num_prompt_tokens=self._num_prompt_tokens,
            num_prefilled_tokens=self._num_prefilled_tokens,
            kv_usage=self._kv_usage,
            error=self._error,
        )

    async def _until(self, is_so: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Returns when it is so, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not is_so():
                    self._changed.clear()
                    await self._changed.wait()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _resolve(
    answer: Answer,
    request_id: str,
    reason: FinishReason,
    failure: EngineFailure | None = None,
    reply: Reply | None = None,
) -> None:
    if answer.done():
        return
    if reply is None:
        answer.set_result(result_of(request_id, reason, failure=failure))
    else:
        sampled = reply.token_ids, reply.logprobs
        answer.set_result(result_of(request_id, reason, *sampled, reply.spans, failure))
