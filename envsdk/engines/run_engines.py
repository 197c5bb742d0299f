"""The engines of a run, for code that is awaited in the event loop that plays, such as a reward.

offer(RunEngines(proxy, chat, sequence_length=4096))        # once, by the process that plays
reply = await engines_of_this_loop().reply(system="", user="Is 7 prime?", max_new_tokens=8)
"""

from __future__ import annotations

import asyncio
import itertools
import os
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

import numpy as np

from envsdk.contracts.chat import ChatTokenizer, TooManyTokens
from envsdk.contracts.failures import EngineError
from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.engine import GenerationRequest
from envsdk.engines.proxy import InferenceProxy
from envsdk.engines.sampling import SamplingParams


class PromptTooLong(Exception):
    """Prompt and reply do not fit into the engines' `sequence_length`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReply:
    """What an engine answered."""

    text: str
    finish_reason: FinishReason
    num_prompt_tokens: int
    num_reply_tokens: int


@dataclass(frozen=True, slots=True)
class RunEngines:
    """Asks the policy under training, with its weights of the moment."""

    proxy: InferenceProxy
    chat: ChatTokenizer
    sequence_length: int
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    async def reply(self, *, system: str, user: str, sampling: SamplingParams) -> RunReply:
        """Raises PromptTooLong, and EngineError when no engine answers."""
        max_new_tokens = sampling.max_new_tokens
        room = self.sequence_length - max_new_tokens
        try:
            ids = await asyncio.to_thread(self.chat.first_prompt, system=system, user=user, room=max(0, room))
        except TooManyTokens as error:
            raise PromptTooLong(f"the prompt does not fit: {error}") from error
        if len(ids) > room:
            raise PromptTooLong(
                f"{len(ids)} tokens of prompt and {max_new_tokens} of reply exceed "
                f"sequence_length={self.sequence_length}"
            )
        result = await self.proxy.generate(
            GenerationRequest(
                request_id=f"run.{os.getpid():x}.{id(self):x}.{next(self._numbers)}",
                prompt_ids=np.array(ids, np.int32),
                sampling=replace(sampling, stop_token_ids=self.chat.stop_token_ids),
            )
        )
        if result.finish_reason is FinishReason.ERROR:
            raise EngineError(f"{result.error_kind.value}: {result.error}")
        return RunReply(
            text=self.chat.decode(result.token_ids.tolist()),
            finish_reason=result.finish_reason,
            num_prompt_tokens=len(ids),
            num_reply_tokens=len(result.token_ids),
        )


_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, RunEngines] = WeakKeyDictionary()


def offer(engines: RunEngines) -> None:
    """Make these the engines of this event loop."""
    _of_loop[asyncio.get_running_loop()] = engines


def engines_of_this_loop() -> RunEngines | None:
    """None where nothing was offered: outside a run, or in a process that asks a chat endpoint."""
    return _of_loop.get(asyncio.get_running_loop())
