"""One reply while it is sampled. Pure."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np

from envsdk.inference.continuation import spans_within
from envsdk.inference.engine import GenerationRequest, TokenDelta
from envsdk.inference.engine_support.failures import ReplyRefused
from envsdk.inference.engine_support.requests import Answer
from envsdk.inference.sglang.wire import Delta
from envsdk.trajectory import VersionSpan


@dataclass(slots=True, eq=False)
class Reply:
    """What the engine knows of a request between its first token and its answer."""

    request: GenerationRequest
    answer: Answer
    task: asyncio.Task[None] | None = None
    rid: str = ""
    """Its name on the server; empty while it is held."""
    is_ending: bool = False
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)

    @property
    def is_bound(self) -> bool:
        """It has a structure, of which the server knows nothing but what it is asked for at once."""
        return self.request.sampling.structure is not None

    @property
    def may_be_told(self) -> bool:
        """Whether its tokens so far are of use: nobody goes on from those of a reply with a structure."""
        return not self.is_bound or self.request.stream

    def begin_anew_if_bound(self, failure: Exception) -> None:
        """The server broke it off. ReplyRefused for one with a structure that was read."""
        if not self.is_bound or not self.token_ids:
            return
        if self.request.stream:
            raise ReplyRefused(f"a reply with a structure that was partly read cannot go on: {failure}")
        self.token_ids.clear()
        self.logprobs.clear()
        self.spans.clear()

    def take(self, delta: Delta, version: int) -> None:
        """Some more tokens, all of one version."""
        if not delta.token_ids:
            return
        start = len(self.token_ids)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        if self.spans and self.spans[-1].version == version:
            start = self.spans.pop().start
        self.spans.append(VersionSpan(version=version, start=start, end=len(self.token_ids)))

    def since(self, start: int) -> TokenDelta:
        """The tokens from the `start`-th on."""
        end = len(self.token_ids)
        return TokenDelta(
            request_id=self.request.request_id,
            token_ids=np.array(self.token_ids[start:], np.int32),
            logprobs=np.array(self.logprobs[start:], np.float32),
            version_spans=spans_within(self.spans, start, end),
        )
