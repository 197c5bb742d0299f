"""The base of rewards that ask a server: requests with retries, and whose fault it is when there is no score.

asked -> scored
  |-> refused: the row's reference answer is asked about; when that is scored, the response is at fault
  |-> unavailable after the last retry: the same, and once more about the response before it is at fault
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from abc import abstractmethod
from collections.abc import Coroutine, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from envsdk.base.settings.extras import require
from envsdk.base.settings.strict import StrictSettings
from envsdk.contracts.failures import without_lone_surrogates
from envsdk.engines.engine_support.failures import ReplyRefused, Unavailable
from envsdk.engines.settings import api_key_of
from envsdk.rewards.reward import AsyncRewardFunction, Reward, RewardError, Sample

AnswerT = TypeVar("AnswerT")

_PROBE_S = 60.0
"""How long a server may take to show that it is there, by scoring a row's reference answer."""

# No user name, and no query: both may hold a key, and addresses stand in messages.
Address = Annotated[str, Field(pattern=r"^https?://[^\s@?#]+$")]


class ServerArgs(StrictSettings):
    """How a server is asked."""

    api_key_env: str | None = None
    """Name of the environment variable that holds the server's key, sent as `Authorization: Bearer`."""
    max_concurrent: PositiveInt = 16
    """Most requests at once, of each process that plays."""
    max_retries: NonNegativeInt = 5
    """How often a request is sent again after a broken connection, silence, or status 408, 429 or 5xx."""
    backoff_s: PositiveFloat = 0.5
    """Longest wait before the first retry; doubles with each, up to 30 s. A `Retry-After` is respected."""
    connect_timeout_s: PositiveFloat = 10.0
    """How long opening a connection may take."""
    silence_timeout_s: PositiveFloat = 60.0
    """How long the server may send nothing before a request is sent again."""
    give_up_after_s: PositiveFloat = 600.0
    """How long one response may take: retries count, and the wait for a place among `max_concurrent` does
    not."""


class ServerReward(AsyncRewardFunction):
    """One server, asked for one response at a time. Derived classes say what, and read the answer."""

    keeps_deadline = True

    def __init__(self, args: ServerArgs, *, url: str, name: str) -> None:
        """ConfigurationError when the variable of the key is not set. `name` is the reward's."""
        require(f"reward `{name}`", "httpx2")
        from envsdk.engines.engine_support.http import http_client

        self._name = name
        self._url = url
        self._server = args
        self._api_key = api_key_of(args.api_key_env, where=f"api_key_env of reward `{name}`")
        self._draw = random.Random()
        self._slots = asyncio.Semaphore(args.max_concurrent)
        self._http = http_client(
            api_key=self._api_key,
            connect_timeout_s=args.connect_timeout_s,
            silence_timeout_s=args.silence_timeout_s,
        )

    @abstractmethod
    async def ask(self, sample: Sample, *, afresh: bool = False) -> Reward:
        """The server's score. Raises Unavailable, or ReplyRefused where the answer holds none.

        `afresh`: the server is asked, whatever it said before.
        """

    async def score_async(self, sample: Sample) -> Reward:
        # A request cannot hold them, and no server would score them.
        sample = dataclasses.replace(sample, response=without_lone_surrogates(sample.response))
        try:
            return await self.ask(sample)
        except ReplyRefused as error:
            problem = self._safe(error)
            is_at_fault = await self._scores_reference(sample)
        except Unavailable as error:
            # The server may be away, or the response may be what it breaks or takes too long on.
            problem = self._safe(error)
            if is_at_fault := await self._scores_reference(sample, afresh=True):
                try:
                    return await self.ask(sample, afresh=True)
                except (ReplyRefused, Unavailable) as again:
                    problem = self._safe(again)
        if is_at_fault:
            return self.unscorable(f"not scored, though the reference answer is: {problem}")
        raise RewardError(f"reward `{self._name}`: {problem}")

    async def _scores_reference(self, sample: Sample, *, afresh: bool = False) -> bool:
        """Or an empty response, where the row has no reference answer."""
        reference = self.reference(sample) or ""
        if reference == sample.response:
            return False
        try:
            async with asyncio.timeout(_PROBE_S if afresh else None):
                await self.ask(dataclasses.replace(sample, response=reference), afresh=afresh)
        except (ReplyRefused, Unavailable, TimeoutError):
            return False
        return True

    async def post(self, body: Mapping[str, Any]) -> str:
        """The text of the answer. Raises Unavailable after the last retry, or ReplyRefused."""
        from envsdk.engines.engine_support.http import post_json, with_retries

        return await self.within_limits(
            with_retries(
                lambda: post_json(self._http, self._url, body),
                max_retries=self._server.max_retries,
                backoff_s=self._server.backoff_s,
                draw=self._draw,
            )
        )

    async def within_limits(self, answer: Coroutine[Any, Any, AnswerT]) -> AnswerT:
        """The answer, once there is a place for its request. Raises Unavailable at the deadline."""
        limit_s = self._server.give_up_after_s
        try:
            async with self._slots, asyncio.timeout(limit_s):
                return await answer
        except TimeoutError:
            raise Unavailable(f"{self._url}: no answer within give_up_after_s={limit_s:g}") from None
        finally:
            answer.close()  # where it was cancelled before its turn

    def _safe(self, error: Exception) -> str:
        """The error's text without the key, which some servers repeat."""
        text = str(error)
        return text.replace(self._api_key, "***") if self._api_key else text

    async def close(self) -> None:
        await self._http.aclose()
