"""One request while a batch samples its reply."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from envsdk.contracts.support import Support
from envsdk.contracts.trajectory import VersionSpan
from envsdk.engines.embedded.guide import Guide
from envsdk.engines.embedded.sampling import stacked
from envsdk.engines.engine import GenerationRequest, PromptScores, TopTokens


@dataclass(slots=True)
class Row:
    """A running request; its row number is its place in `Batch._rows`."""

    request: GenerationRequest
    prompt_length: int
    stops: frozenset[int]
    end: int
    """Length, prompt included, at which the reply is as long as it may be."""
    guide: Guide | None
    """Where the reply is in its structure, when it has one."""
    spans: list[VersionSpan] = field(default_factory=list)
    """Closed ones; the open span started where the last of these ends."""
    prompt_scores: PromptScores | None = None
    experts: list[NDArray[np.int16]] = field(default_factory=list)
    """What a mixture's routers chose for its tokens, as they were computed first."""
    tops: list[TopTokens] = field(default_factory=list)
    """Likeliest tokens at the place of each sampled token, where the request asks for the likeliest ones."""
    sets: list[NDArray[np.int32]] = field(default_factory=list)
    """Tokens that could be drawn at each place, where the request asks for them."""

    @property
    def is_special(self) -> bool:
        """Whether each of its steps is more than drawing a token."""
        sampling = self.request.sampling
        tells_more = sampling.top_logprobs > 0 or sampling.tells_support
        return self.guide is not None or sampling.changes is not None or tells_more

    def routed(self, end: int) -> NDArray[np.int16] | None:
        """The experts of the tokens before the `end`-th that the request asks for."""
        start = self.request.experts_from
        return None if start is None or not self.experts else np.concatenate(self.experts)[start:end]

    def top(self, start: int) -> TopTokens | None:
        """At the sampled positions from the `start`-th on."""
        return stacked(self.tops[start:], self.request.sampling.top_logprobs)

    def support(self, start: int) -> Support | None:
        """At the sampled positions from the `start`-th on."""
        return Support.of(self.sets[start:]) if self.request.sampling.tells_support else None
