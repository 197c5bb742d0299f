"""EnginePolicy: plays turns with a language model behind an InferenceProxy."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from http import HTTPStatus
from typing import Any

import numpy as np

from envsdk.contracts.chat import ChatTokenizer, TooManyTokens
from envsdk.contracts.failures import Boundary, Failure
from envsdk.contracts.policy import ContextFull, Policy, PolicyFailed, Reply, SequenceFull, TurnContext
from envsdk.contracts.prompts import Message, opening
from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.endpoint.messages import spelled_out
from envsdk.engines.engine import GenerationRequest
from envsdk.engines.proxy import InferenceProxy
from envsdk.engines.refusals import says_context_is_full
from envsdk.engines.sampling import OutputStructure, SamplingParams
from envsdk.engines.tool_calls.formats import writes_tools

KEPT_PROMPTS = 64
"""First prompts whose tokens are kept for the next members of their groups."""
LONG_TEXT = 1 << 14
"""Characters above which a text is tokenized off the event loop: a millisecond or more."""


class EnginePolicy(Policy):
    """Token in, token out: appends the prompt and exactly what was sampled to the episode's log.

    Its proxy, tokenizer and settings are for managers that ask the engines in another way.
    """

    name = "model"

    def __init__(
        self,
        proxy: InferenceProxy,
        chat: ChatTokenizer,
        generating: SamplingParams,
        *,
        sequence_length: int,
        max_new_tokens: int | None = None,
        structure: OutputStructure | None = None,
        shares_prompts: bool = False,
        records_experts: bool = False,
    ) -> None:
        """`shares_prompts`: the members of a group go to one engine, which computes their prompt once.

        `records_experts`: the log gets the experts that the engine's mixture chose.
        """
        self.proxy = proxy
        self.chat = chat
        self.generating = generating
        self.sequence_length = sequence_length
        self.max_new_tokens = min(max_new_tokens or generating.max_new_tokens, generating.max_new_tokens)
        self.structure = structure
        self.shares_prompts = shares_prompts
        self.records_experts = records_experts
        self._sampling = replace(
            generating,
            max_new_tokens=self.max_new_tokens,
            stop_token_ids=chat.stop_token_ids,
            structure=structure,
        )
        self._stop = frozenset(chat.stop_token_ids)
        # The members of a group begin with the same prompt, at about the same time.
        self._first_prompt = lru_cache(maxsize=KEPT_PROMPTS)(self._encoded)
        self._reserved = lru_cache(maxsize=KEPT_PROMPTS)(self._reserved_tokens)
        self._ids = itertools.count()
        self._prefix = f"{os.getpid():x}.{id(self):x}."

    async def act(self, turn: TurnContext) -> Reply:
        log = turn.log
        try:
            length = len(turn.system) + len(turn.prompt)
            if turn.history:
                length += sum(len(each["content"]) for each in turn.history)
            if length > LONG_TEXT:
                ids = await asyncio.to_thread(self._prompt_ids, turn)
            else:
                ids = self._prompt_ids(turn)
            num_tokens = len(log) + len(ids)
        except TooManyTokens as too_many:
            num_tokens = len(log) + too_many.num_tokens
        reserved = self._reserved(turn.system, turn.reserved_prompt) if turn.reserved_prompt else 0
        if num_tokens + self.max_new_tokens + reserved > self.sequence_length:
            raise SequenceFull(
                num_tokens=num_tokens,
                max_new_tokens=self.max_new_tokens,
                sequence_length=self.sequence_length,
            )
        result = await self.proxy.generate(
            GenerationRequest(
                request_id=f"{self._prefix}{next(self._ids)}",
                prompt_ids=np.array([*log.ids, *ids], np.int32),
                sampling=self._sampling.with_seed(turn.seed),
                # An only turn: the engine need not keep its prefix.
                session_id=turn.session_id if turn.turn_index or turn.num_actions_left > 1 else "",
                prompt_group=turn.prompt_group if self.shares_prompts else None,
                experts_from=log.num_routed if self.records_experts else None,
            )
        )
        is_refused = result.finish_reason is FinishReason.ERROR
        if is_refused and says_context_is_full(result.error, status=HTTPStatus.BAD_REQUEST):
            raise ContextFull(result.error)
        log.append_prompt(ids)
        if is_refused:
            failure = Failure(boundary=Boundary.ENGINE, kind=result.error_kind.value, message=result.error)
            raise PolicyFailed(failure)
        token_ids = result.token_ids.tolist()
        start = len(log)
        log.append_sampled(
            token_ids,
            result.logprobs.tolist(),
            result.version_spans,
            experts=result.experts,
            support=result.support,
        )
        return Reply(
            text=self.chat.decode(token_ids),
            finish_reason=result.finish_reason,
            response_start=start,
            response_end=len(log),
        )

    def _prompt_ids(self, turn: TurnContext) -> Sequence[int]:
        """What is new of the prompt. Raises TooManyTokens."""
        log, room = turn.log, self.sequence_length - len(turn.log)
        if len(log) == 0 and not turn.tools:
            history = tuple((each["role"], each["content"]) for each in turn.history)
            return self._first_prompt(turn.system, turn.prompt, history)
        if len(log) == 0:
            return first_prompt(
                self.chat, turn.prompt, system=turn.system, history=turn.history, tools=turn.tools, room=room
            )
        return self.chat.next_prompt(user=turn.prompt, reply_closed=log.ids[-1] in self._stop, room=room)

    def _reserved_tokens(self, system: str, summary_prompt: str) -> int:
        """Tokens that this prompt and its reply take at most behind another reply.

        PolicyFailed where a segment that a summary begins would have no room to end with another.
        """
        chat, limit = self.chat, self.max_new_tokens
        reserved = len(chat.next_prompt(user=summary_prompt, reply_closed=False)) + limit
        begin = len(chat.first_prompt(system=system, user=summary_prompt)) + limit
        least = begin + len(chat.next_prompt(user="", reply_closed=False)) + limit + reserved
        if least > self.sequence_length:
            message = (
                f"sequence_length={self.sequence_length} leaves no room for compact_prompt: a segment "
                f"with it at both ends ({reserved - limit} tokens each), the system prompt, a turn and "
                f"replies of {limit} has at least {least} tokens: raise sequence_length or shorten the prompt"
            )
            raise PolicyFailed(
                Failure(boundary=Boundary.CONFIGURATION, kind="compact_prompt_too_long", message=message)
            )
        return reserved

    def _encoded(self, system: str, user: str, history: tuple[tuple[str, str], ...]) -> Sequence[int]:
        messages = [Message(role=role, content=content) for role, content in history]
        return self.chat.first_prompt(system=system, user=user, history=messages, room=self.sequence_length)


def first_prompt(
    chat: ChatTokenizer,
    user: str,
    *,
    system: str = "",
    history: Sequence[Message] = (),
    tools: Sequence[Mapping[str, Any]] = (),
    room: int | None = None,
) -> list[int]:
    """`ChatTokenizer.first_prompt`; where the chat template shows no tools, the system message does."""
    if tools and not writes_tools(chat):
        history, system, tools = spelled_out(opening(system, history), tools), "", ()
    return chat.first_prompt(system=system, user=user, tools=tools, history=history, room=room)
