"""The engine contract: token ids in; token ids, log-probabilities and weight versions out.

    submit -> (queued -> running -> ) future resolves with a GenerationResult, exactly once

An engine lives on one asyncio event loop. It may compute on threads or in other processes; the
futures it returns are resolved on the loop. Engines register under the entry-point group
`envsdk.engines` and are built by `Engine.create(EngineConfig)`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envsdk.contracts.held import Held
from envsdk.contracts.support import Support
from envsdk.contracts.trajectory import FinishReason, VersionSpan
from envsdk.engines.sampling import SamplingParams


class ErrorKind(StrEnum):
    """What an error of a reply is, for programs; also the kind of the episode's `Failure`."""

    REQUEST_FAILED = "request_failed"
    """The engine failed, or cannot run such a request."""
    STRUCTURED_OUTPUT = "structured_output"
    """The request's `OutputStructure` is at fault, not the engine."""
    UNSUPPORTED_SAMPLING = "unsupported_sampling"
    """The request needs an ability that the engine lacks; the message begins with the ability's name."""
    TURN_TIMEOUT = "turn_timeout"
    """No engine answered in time."""
    SCRIPT_ENDED = "script_ended"
    """A scripted engine has no further reply for this conversation."""


@dataclass(frozen=True, slots=True)
class EngineFailure:
    """Why the reply is not complete."""

    message: str
    """For a person: what is wrong and, where it is known, what to do."""
    kind: ErrorKind = ErrorKind.REQUEST_FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One reply to sample."""

    request_id: str
    """Unique among the requests an engine has not answered yet."""
    prompt_ids: NDArray[np.int32]
    """`[num_prompt_tokens]`, at least one."""
    sampling: SamplingParams
    session_id: str = ""
    """Requests of one session extend each other's prompts: the key of prefix reuse and affinity."""
    prompt_group: int | None = None
    """Requests of one group have the same prompt. The router sends them to one engine, and an engine with
    prefix reuse computes that prompt once; None: each request is routed alone."""
    priority: int = 0
    """Lower runs earlier, where the engine is able."""
    stream: bool = False
    """Its tokens are delivered as they come. Engines need not read this: the link to the engine does."""
    experts_from: int | None = None
    """Tell the experts that were chosen for the tokens from this one on, of an engine with the ability
    `routed_experts`; None: of none."""
    survives_weight_update: bool = False
    """A pause in mode `abort` does not end it: it could only restart, and has done so too often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopTokens:
    """The likeliest tokens at some positions, the likeliest first."""

    token_ids: NDArray[np.int32]
    """`[num_positions, num_top]`"""
    logprobs: NDArray[np.float32]
    """`[num_positions, num_top]`, nats; -inf where a token cannot be drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptScores:
    """How likely a prompt is, at temperature 1 and before everything that a request does to the logits."""

    logprobs: NDArray[np.float32]
    """`[num_prompt_tokens - 1]`, of each token but the first, given those before it."""
    top: TopTokens | None = None
    """At the same positions, where `top_logprobs` are asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens:
    """Tokens of one reply."""

    request_id: str
    token_ids: NDArray[np.int32]
    """`[num_sampled]`, a stop token included."""
    logprobs: NDArray[np.float32]
    """`[num_sampled]`, nats, under the sampling distribution (after `LogitChanges`, structure and
    `SamplingShape`), as far as the abilities `logprobs` and `processed_logprobs` go."""
    version_spans: tuple[VersionSpan, ...]
    """Cover `[0, num_sampled)` in order."""
    top: TopTokens | None = None
    """At the sampled positions, under the distribution of `logprobs`, where `top_logprobs` are asked for."""
    support: Support | None = None
    """At the sampled positions, where it is asked for and tokens were left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDelta(SampledTokens):
    """Some more tokens of a reply, at least one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult(SampledTokens):
    """All tokens of a reply."""

    finish_reason: FinishReason
    error: str = ""
    """Why the reply is not complete; empty unless the finish reason is `error`."""
    error_kind: ErrorKind = ErrorKind.REQUEST_FAILED
    """Kind of `error`, where there is one."""
    prompt_scores: PromptScores | None = None
    """Where `prompt_logprobs` are asked for and the reply is complete."""
    experts: NDArray[np.int16] | None = None
    """`[num_tokens, num_routers, num_chosen]`: of the prompt's and the sampled tokens from the request's
    `experts_from` to the one before the last, which was no input."""


class PauseMode(StrEnum):
    """What `pause` does to running requests. Queued requests always stay queued."""

    KEEP = "keep"
    """Freeze them where they are; `resume` continues them."""
    ABORT = "abort"
    """Return them with their tokens, finish reason `abort`. Those with `survives_weight_update` are
    frozen, or end first where the engine cannot freeze them."""
    WAIT = "wait"
    """Let them finish first, also those that an earlier pause froze."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAbilities:
    """What an engine can do: checked before a feature is used, and tested by the suite."""

    weight_updates: bool = True
    """Takes new weights at all. An engine that does not can collect and evaluate, not train."""
    inflight_update: bool = False
    """Takes new weights between two tokens of running requests."""
    priority: bool = False
    prefix_reuse: bool = False
    structured_output: bool = False
    """Keeps a reply to its `OutputStructure`; an engine that cannot answers such a request with an error."""
    logit_changes: bool = False
    """Samples under `LogitChanges`; an engine that cannot answers such a request with an error."""
    top_logprobs: bool = False
    """Tells the likeliest tokens of each position; an engine that cannot answers with an error."""
    prompt_logprobs: bool = False
    """Scores prompts; an engine that cannot answers with an error."""
    routed_experts: bool = False
    """Tells the experts that a mixture chose; an engine that cannot answers with an error."""
    support: bool = False
    """Tells which tokens could be drawn; an engine that cannot answers with an error."""
    lora: bool = False
    """Takes weights that are a LoRA adapter; see `WeightReference`."""
    logprobs: bool = True
    """Gives log-probabilities; those of an engine that does not are NaN."""
    processed_logprobs: bool = True
    """Log-probabilities are those of the sampling distribution, not of the raw one."""
    progress: bool = False
    """Reports what running requests have sampled so far: for streaming, and to continue on another engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHealth:
    """One look at an engine; cheap enough to ride on every reply."""

    version: int
    num_running: int
    num_queued: int
    num_tokens_sampled: int
    """Since start, those of running replies included: an engine whose count stands still is taken to hang."""
    num_prompt_tokens: int = 0
    """Since start, as submitted."""
    num_prefilled_tokens: int = 0
    """Since start, really computed; smaller than `num_prompt_tokens` by what prefix reuse saved."""
    kv_usage: float = 0.0
    """Share of the KV cache in use, 0 to 1."""
    error: str = ""
    """Why the engine cannot answer any more; empty when it is well."""


WeightReference = Path | Mapping[str, NDArray[Any]] | Iterable[tuple[str, Any]]
"""New weights under Hugging Face names: a checkpoint folder, a mapping or a stream.

A stream is read once, and blocks while its sender fills the next bucket: read it on a thread, never on the
event loop. Each of its arrays (NumPy arrays, or tensors where NumPy lacks the type, as bfloat16, and on a
card) is valid until the next one is asked for. It ends when all weights have come; it raises when they will
not.

For an engine with the ability `lora` a mapping or stream may be a LoRA adapter instead, its halves under
names that end with `.lora_A.weight` and `.lora_B.weight` (`envsdk.weights.lora`). It is added to the
weights of the model's folder, whatever was loaded before; full weights replace it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What every engine is built from."""

    model: Path | None
    """Hugging Face folder; None for engines without weights (mock)."""
    sequence_length: int
    """Longest prompt plus reply, tokens."""
    max_running: int = 128
    """Requests decoded together."""
    strategy_config: Mapping[str, Any] = field(default_factory=dict)
    """The engine's own settings; an unknown one is a ConfigurationError naming the nearest known one."""
    seed: int = 0
    reproducible: bool = False
    """A reply is the same bit for bit whatever other requests run, if the engine can do that: for
    synchronous training. It costs speed."""
    takes_turns: bool = False
    """`hold` will be called."""


class Engine(ABC):
    """Samples replies. Methods are called from one event loop, never concurrently from threads."""

    abilities: EngineAbilities
    weight_device: str = "cpu"
    """Where weights of a stream may be, as PyTorch names it: on a card they come as tensors there, which the
    thread that reads them copies on its current stream."""

    @classmethod
    @abstractmethod
    def create(cls, config: EngineConfig) -> Engine:
        """Build and load. Raises ConfigurationError for bad settings or a missing model folder."""

    @abstractmethod
    async def start(self) -> None:
        """Begin answering; called once, on the loop that will call everything else."""

    @abstractmethod
    def submit(self, request: GenerationRequest) -> asyncio.Future[GenerationResult]:
        """Queue one request; the future always resolves with a result, never an exception.

        A request that cannot be run (longer than the context, say) resolves with `error`.
        """

    @abstractmethod
    def abort(self, request_ids: Sequence[str]) -> None:
        """End these requests with finish reason `abort`; unknown ids are ignored."""

    async def progress(self, num_known: Mapping[str, int]) -> list[TokenDelta]:
        """Tokens that running requests have sampled beyond their first `num_known[request_id]` tokens.

        Called only on an engine with the ability `progress`, several times a second. Requests that have no
        more, that wait, or that do not run any more are left out. The result begins with
        the reported tokens; log-probabilities are finite.
        """
        return []

    @abstractmethod
    async def pause(self, mode: PauseMode) -> None:
        """Stop dispatching; returns when nothing more will be sampled until `resume`."""

    @abstractmethod
    async def resume(self) -> None:
        """Continue. Idempotent."""

    @abstractmethod
    async def load_weights(self, weights: WeightReference, version: int) -> None:
        """Swap in new weights between two steps, all of them or, when the stream or a weight fails, none.

        EngineError from an engine without the ability `weight_updates`.

        With the ability `inflight_update` replies continue under the old weights while a stream is read, and
        the swap comes after its end. An engine without it is paused meanwhile, and may write over the old
        weights as the new ones come; a stream that fails then ends the engine (`health().error`).

        Running requests continue: tokens sampled after this returns carry `version`, those before keep
        theirs, and cached keys and values of unfinished and finished sessions are recomputed under the new
        weights before they are used again.
        """

    @abstractmethod
    async def hold(self, held: Held) -> None:
        """Hold so much of the device from now on, where engine and trainer take turns. Called while paused;
        `resume` follows `ALL` alone. Idempotent.

        `NOTHING` drops weights, keys and values: running requests continue later, their keys and values
        computed again. `load_weights` needs `WEIGHTS`, and comes before `ALL` is asked for: EngineError else.
        """

    @abstractmethod
    def health(self) -> EngineHealth:
        """Counters now. Does not block."""

    @abstractmethod
    async def close(self) -> None:
        """End running requests with `abort` and free everything. Idempotent."""
