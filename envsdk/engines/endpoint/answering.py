"""Shell: from a checked request to a recorded reply.

prompt -> sampling parameters -> proxy -> tokens -> text -> record
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import time
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jinja2
import numpy as np
from numpy.typing import NDArray

from envsdk.contracts.chat import TooManyTokens
from envsdk.contracts.support import Support
from envsdk.contracts.trajectory import FinishReason, VersionSpan
from envsdk.engines.continuation import rows_of
from envsdk.engines.endpoint.errors import ApiError, invalid, unsupported
from envsdk.engines.endpoint.messages import (
    Messages,
    RecentMessages,
    history,
    observation,
    settled,
    spelled_out,
    takes_system,
)
from envsdk.engines.endpoint.protocol import Answer, OnPiece, Piece
from envsdk.engines.endpoint.record import Prompt, RecordedReply, message_keys, next_key
from envsdk.engines.endpoint.reply_text import ReplyReader, ReplyText
from envsdk.engines.endpoint.sampling import ContextFull, RepliesUsedUp, SamplingRules, sampling_params
from envsdk.engines.endpoint.sessions import Session
from envsdk.engines.endpoint.wire import NOT_HELD, ChatFields, CompletionFields, SamplingFields
from envsdk.engines.engine import (
    ErrorKind,
    GenerationRequest,
    GenerationResult,
    PromptScores,
    TokenDelta,
    TopTokens,
)
from envsdk.engines.proxy import InferenceProxy
from envsdk.engines.sampling import SamplingParams
from envsdk.engines.tool_calls.formats import CLOSING, HERMES, OPENING
from envsdk.engines.tool_calls.reading import THOUGHT, Reading, ToolCall, split_thought

LONG_REQUEST_BYTES = 1 << 14
"""Requests above this are rendered and tokenized beside the event loop: a millisecond or more."""
NUM_PROMPT_THREADS = 2
Found = tuple[RecordedReply, int] | None
_logger = logging.getLogger(__name__)


_FAULTS_OF_REQUESTS = (ErrorKind.STRUCTURED_OUTPUT, ErrorKind.UNSUPPORTED_SAMPLING, ErrorKind.SCRIPT_ENDED)
_STATUSES = {ErrorKind.TURN_TIMEOUT: 504, ErrorKind.SCRIPT_ENDED: 400}  # after a 400 clients do not try again


class Answerer:
    """Answers requests of one endpoint. Owner: the `Endpoint`, which closes it.

    Prompts of long requests are made on threads of its own, so that short requests overtake them.
    """

    def __init__(self, proxy: InferenceProxy, reader: ReplyReader, *, sequence_length: int) -> None:
        self.chat = reader.chat
        self.sequence_length = sequence_length
        self._reader = reader
        self._takes_system = takes_system(self.chat)
        self._recent = RecentMessages(self.chat)
        self._proxy = proxy
        self.ignored: Counter[str] = Counter()
        """Fields that requests gave and that changed nothing: how often, by their names."""
        marks = "".join((*THOUGHT, OPENING, CLOSING))
        self._holds_calls = reader.calls is HERMES and self.chat.without_markup(marks) == marks
        """Whether calls can be held to grammars, as far as is known: text is free of special tokens then."""
        self._numbers = itertools.count()
        self._prefix = f"http.{os.getpid():x}.{id(self):x}."
        self._threads = ThreadPoolExecutor(NUM_PROMPT_THREADS, thread_name_prefix="prompts")

    def close(self) -> None:
        """What is being tokenized is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def count_ignored(self, session: Session | None, names: Sequence[str]) -> None:
        """Fields of a request that changed nothing. The log names each once."""
        for name in set(names) - self.ignored.keys():
            _logger.info(
                "`%s` of a request is ignored, as unknown or without effect: counted from here on", name
            )
        self.ignored.update(names)
        if session is not None:
            session.ignored.update(names)

    async def _prepare(self, session: Session | None, num_bytes: int, make: Callable[[], Prompt]) -> Prompt:
        """What `make` returns. The refusal of a far too long prompt is remembered in the session."""
        try:
            if num_bytes <= LONG_REQUEST_BYTES:
                return make()
            return await asyncio.get_running_loop().run_in_executor(self._threads, make)
        except TooManyTokens as too_many:
            num_tokens = too_many.num_tokens
            told = f"the {num_tokens} of the prompt's beginning"
            raise self.too_long(session, told, num_tokens=num_tokens) from too_many

    async def prompts(
        self, session: Session | None, num_bytes: int, fields: ChatFields | CompletionFields
    ) -> list[Prompt]:
        """The prompts of a request of so many bytes. Raises ApiError."""
        if isinstance(fields, ChatFields):
            messages, key, found = self._line(session, fields)
            if found is not None and self._recent.are_enough:
                num_bytes = sum(len(each["content"]) for each in messages[found[1] :])
            make = partial(self._chat_prompt, fields, messages, key, found)
            return [await self._prepare(session, num_bytes, make)]
        return [
            await self._prepare(
                session, num_bytes, partial(self.completion_prompt, session, prompt, fields.prompt_field)
            )
            for prompt in fields.prompts
        ]

    def too_long(self, session: Session | None, told: str, *, num_tokens: int) -> ContextFull:
        """The refusal of a request whose prompt was not tokenized, remembered in the session."""
        full = ContextFull(
            told, num_prompt_tokens=num_tokens, longest_reply=1, sequence_length=self.sequence_length
        )
        if session is not None:
            session.full = full
        return full

    def _line(self, session: Session | None, fields: ChatFields) -> tuple[Messages, str, Found]:
        """The messages, their key, and what `continued_by_messages` finds."""
        messages = settled(fields.conversation, takes_system=self._takes_system)
        if session is None:
            return messages, message_keys(messages, fields.tools)[-1], None
        keys = session.message_keys(messages, fields.tools)
        return messages, keys[-1], session.record.continued_by_messages(keys, messages)

    def _chat_prompt(self, fields: ChatFields, messages: Messages, key: str, found: Found) -> Prompt:
        if found is not None:
            parent, count = found
            recent, at = self._recent.of(messages, count - 1)
            shown = self._shown(recent, fields.tools)
            new_ids = self._behind(parent, shown, at + len(shown) - len(recent), fields.tools)
            if new_ids is not None:
                return Prompt(
                    ids=parent.ids + array("i", new_ids),
                    new_ids=new_ids,
                    parent=parent,
                    observation=observation(messages, behind=count),
                    key=key,
                )
        try:
            text = self.chat.render(self._shown(messages, fields.tools), tools=fields.tools)
            ids = self.chat.encode(text, room=self.sequence_length)
        except jinja2.TemplateError as error:
            raise invalid("messages", f"the model's chat template refuses these messages: {error}") from error
        told, before = observation(messages), history(messages, fields.tools)
        return Prompt(ids=ids, new_ids=ids, parent=None, observation=told, history=before, key=key)

    def _shown(self, messages: Messages, tools: Messages | None) -> Messages:
        return messages if self._reader.writes_tools else spelled_out(messages, tools)

    def _behind(
        self, parent: RecordedReply, messages: Messages, at: int, tools: Messages | None
    ) -> list[int] | None:
        """Tokens behind the recorded reply `messages[at]`; None where the template cannot be cut."""
        closed = self.chat.is_closed(parent.token_ids)
        try:
            return self.chat.behind_reply(
                messages,
                at,
                reply_closed=closed,
                closing=parent.token_ids[-1] if closed else None,
                tools=tools,
                room=self.sequence_length,
            )
        except jinja2.TemplateError:
            return None

    def completion_prompt(
        self, session: Session | None, prompt: str | Sequence[int], field: str = "prompt"
    ) -> Prompt:
        """Raises ApiError, naming `field`, for token ids that the model does not have, and TooManyTokens."""
        if isinstance(prompt, str):
            found = session.record.continued_by_text(prompt) if session is not None else None
            parent, start = found or (None, 0)
            new_text = prompt[start:]
            new_ids = self.chat.encode(new_text, room=self.sequence_length)
            before = parent.ids if parent is not None else []
            return Prompt(
                ids=[*before, *new_ids],
                new_ids=new_ids,
                parent=parent,
                observation=new_text,
                new_text=new_text,
                text=prompt,
            )
        outside = next((token for token in prompt if not 0 <= token < self.chat.vocab_size), None)
        if outside is not None:
            raise invalid(field, f"token id {outside} is outside [0, {self.chat.vocab_size})")
        found = session.record.continued_by_ids(prompt) if session is not None else None
        parent, start = found or (None, 0)
        new_ids = list(prompt[start:])
        return Prompt(
            ids=prompt,
            new_ids=new_ids,
            parent=parent,
            observation=self.chat.decode(new_ids),
            text=self.chat.decode(prompt, skip_special_tokens=False),
        )

    def sampling(
        self,
        session: Session | None,
        rules: SamplingRules,
        fields: SamplingFields,
        prompt: Prompt,
        choice: int,
    ) -> SamplingParams:
        """Raises ApiError; one for want of room is remembered in the session."""
        outside = next((id for id in fields.logit_bias or () if int(id) >= self.chat.vocab_size), None)
        if outside is not None:
            raise invalid("logit_bias", f"token id {outside} is outside [0, {self.chat.vocab_size})")
        if isinstance(fields, ChatFields) and fields.callable_tools and self._reader.calls is not HERMES:
            raise unsupported(
                "tool_choice",
                f"cannot be forced on a model that calls as `{self._reader.calls.name}`: use `auto`",
            )
        try:
            if session is not None and 0 < rules.max_replies <= session.num_begun:
                raise RepliesUsedUp(rules.max_replies)
            if session is not None and 0 < rules.max_session_tokens <= session.record.num_tokens:
                raise ContextFull(
                    f"the {session.record.num_tokens} of this episode",
                    num_prompt_tokens=len(prompt.ids),
                    longest_reply=1,
                    sequence_length=rules.max_session_tokens,
                )
            params = sampling_params(
                fields,
                rules,
                num_prompt_tokens=len(prompt.ids),
                sequence_length=self.sequence_length,
                stop_token_ids=self.chat.stop_token_ids,
                default_max_tokens=fields.default_max_tokens,
                number=session.next_number() if session is not None else 0,
                choice=choice,
            )
        except ContextFull as full:
            if session is not None:
                session.full = full
            raise
        if session is not None:
            session.num_begun += 1
        calls = fields.call_structure if isinstance(fields, ChatFields) else None
        if calls is None or params.structure is not None:
            return params
        if self._holds_calls and (params.tells_support or not rules.is_fixed):
            return replace(params, structure=calls)
        self.count_ignored(session, [NOT_HELD])
        return params

    async def answer(
        self,
        session: Session | None,
        fields: SamplingFields,
        prompt: Prompt,
        sampling: SamplingParams,
        on_piece: OnPiece | None = None,
        *,
        unique: str,
    ) -> Answer:
        """Sample one reply and record it. Canceling this ends the request, and nothing is recorded.

        `unique` is part of the ids of its calls.

        Raises ApiError when the engines fail or the session ends meanwhile.
        """
        text = self._reader.text(fields)
        is_without_reply = isinstance(fields, CompletionFields) and fields.is_without_reply
        if is_without_reply:
            on_piece = None
        reply = _Reply(text, frozenset(sampling.stop_token_ids), on_piece, sampling.prompt_logprobs)
        state_hash = session.state_hash if session is not None else None
        began = time.perf_counter()
        finish_reason = await self._sample(session, prompt, sampling, reply, fields)
        generate_s = time.perf_counter() - began
        if is_without_reply:
            return Answer(finish_reason=FinishReason.LENGTH, prompt_scores=reply.prompt_scores)
        held_back = text.finish()
        read = self._reader.read(fields, text.whole)
        calls = tuple(replace(call, id=f"call_{unique}_{number}") for number, call in enumerate(read.calls))
        if session is not None:
            raw = self.chat.decode(reply.token_ids)
            recorded = RecordedReply(
                number=len(session.record.replies),
                parent=prompt.parent,
                prompt_ids=prompt.new_ids,
                token_ids=reply.token_ids,
                logprobs=reply.logprobs,
                version_spans=reply.version_spans(),
                finish_reason=finish_reason,
                text=raw,
                observation=prompt.observation,
                history=prompt.history,
                state_hash=state_hash,
                asked_at=began,
                generate_s=generate_s,
                attempt=read.status if isinstance(fields, ChatFields) and fields.reads_tool_calls else None,
                thought=split_thought(read.shown)[0],
                segment=None if prompt.new_text is None else prompt.new_text + raw,
                role=prompt.role,
                support=Support.of(reply.sets) if reply.sets else None,
            )
            session.calls |= {call.id: _function(call) for call in calls}
            key = None if prompt.key is None else next_key(prompt.key, _assistant_message(read))
            session.record.add(recorded, key=key)
            session.engine_error = ""
        num_shown = len(text.whole) - len(held_back)
        return Answer(
            content=read.shown,
            tool_calls=calls,
            rest=read.shown[num_shown:],
            token_ids=reply.token_ids,
            logprobs=reply.logprobs,
            version_spans=reply.version_spans(),
            finish_reason="tool_calls" if calls else finish_reason,
            stop=text.stop,
            fills_context=len(prompt.ids) + len(reply.token_ids) >= self.sequence_length,
            top=reply.top,
            prompt_scores=reply.prompt_scores,
        )

    async def _sample(
        self,
        session: Session | None,
        prompt: Prompt,
        sampling: SamplingParams,
        reply: _Reply,
        fields: SamplingFields,
    ) -> FinishReason:
        """Fill `reply`; returns the finish reason."""
        if session is not None and session.is_over:
            raise _session_over(session)
        running = session.running if session is not None else set()
        # A cache belongs to one request at a time: another one of the same session does without.
        session_id = session.session_id if session is not None and not running else ""
        request = GenerationRequest(
            request_id=f"{self._prefix}{next(self._numbers)}",
            prompt_ids=np.array(prompt.ids, np.int32),
            sampling=sampling,
            session_id=session_id,
        )
        future = self._proxy.generate(request, on_tokens=reply.take)
        running.add(future)
        future.add_done_callback(reply.end)
        try:
            await reply.ended
        finally:
            running.discard(future)
            if not future.done():
                future.cancel()
        if session is not None and session.is_over:
            raise _session_over(session)
        if reply.text.is_stopped and not sampling.prompt_logprobs:
            return FinishReason.STOP
        if future.cancelled():
            raise ApiError(503, "the endpoint is closing", code="closing")
        result = future.result()
        is_unable = (
            result.error_kind is ErrorKind.UNSUPPORTED_SAMPLING
            and result.error.startswith("structured_output")
            and fields.structure is None
        )
        if is_unable and sampling.structure is not None and isinstance(fields, ChatFields):
            self._holds_calls = False
            self.count_ignored(session, [NOT_HELD])
            reply.ended = asyncio.get_running_loop().create_future()
            return await self._sample(session, prompt, replace(sampling, structure=None), reply, fields)
        reply.prompt_scores = result.prompt_scores
        if session is not None:
            session.engine_error = "" if result.error_kind in _FAULTS_OF_REQUESTS else result.error
        reason = _finish_reason(result, fields)
        return FinishReason.STOP if reply.text.is_stopped else reason


def _finish_reason(result: GenerationResult, fields: SamplingFields) -> FinishReason:
    if result.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
        return result.finish_reason
    if status := _STATUSES.get(result.error_kind):
        raise ApiError(status, result.error, code=result.error_kind.value)
    if result.error_kind is ErrorKind.STRUCTURED_OUTPUT:
        raise invalid(fields.structure_field, f"`{fields.structure_field}`: {result.error}")
    if result.error_kind is ErrorKind.UNSUPPORTED_SAMPLING:
        ability, _, why = result.error.partition(": ")
        asked = {
            "logit_changes": ", ".join(fields.change_fields),
            "top_logprobs": fields.top_field,
            "prompt_logprobs": "echo",
            "structured_output": fields.structure_field,
        }
        raise unsupported(asked.get(ability, ability), f"is not possible here: {why}")
    why = result.error or f"it was ended ({result.finish_reason})"
    raise ApiError(503, f"no engine could finish the reply: {why}", code="engine_error")


def _session_over(session: Session) -> ApiError:
    return ApiError(409, f"session `{session.session_id}` ended", code="session_ended")


@dataclass(slots=True)
class _Reply:
    """One reply while it is sampled."""

    text: ReplyText
    stop_token_ids: frozenset[int]
    on_piece: OnPiece | None
    is_scored: bool
    """Whether log-probabilities of the prompt come too, when the engine has finished."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    top: list[TopTokens] = field(default_factory=list)
    sets: list[NDArray[np.int32]] = field(default_factory=list)
    prompt_scores: PromptScores | None = None
    ended: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Done when the engine has finished, or the text has ended the reply."""

    def end(self, _: object = None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def take(self, delta: TokenDelta) -> None:
        """Called by the proxy."""
        first = len(self.token_ids)
        shown = ""
        versions = [span.version for span in delta.version_spans for _ in range(span.start, span.end)]
        for index, (token, logprob, version) in enumerate(
            zip(delta.token_ids.tolist(), delta.logprobs.tolist(), versions, strict=True)
        ):
            if self.text.is_stopped:
                break
            self.token_ids.append(token)
            self.logprobs.append(logprob)
            self.versions.append(version)
            if delta.top is not None:
                self.top.append(rows_of(delta.top, index, index + 1))
            if delta.support is not None:
                self.sets.append(delta.support.take(slice(index, index + 1)).ids)
            if token not in self.stop_token_ids:
                shown += self.text.push(token)
        if self.on_piece is not None and len(self.token_ids) > first:
            self.on_piece(
                Piece(
                    text=shown,
                    token_ids=self.token_ids[first:],
                    logprobs=self.logprobs[first:],
                    top=self.top[first:],
                    version=self.versions[-1],
                )
            )
        if self.text.is_stopped and not self.is_scored:
            self.end()

    def version_spans(self) -> list[VersionSpan]:
        spans: list[VersionSpan] = []
        start = 0
        for version, run in itertools.groupby(self.versions):
            end = start + len(list(run))
            spans.append(VersionSpan(version=version, start=start, end=end))
            start = end
        return spans


def _assistant_message(reply: Reading) -> dict[str, Any]:
    """The reply as the client will repeat it."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.shown}
    if reply.calls:
        message["tool_calls"] = [{"function": _function(call)} for call in reply.calls]
    return message


def _function(call: ToolCall) -> dict[str, Any]:
    return {"name": call.name, "arguments": json.loads(call.arguments)}
