"""Pure: what is asked of `/completions` or vLLM's `/inference/v1/generate`, and what their events say.

The fields are those of OpenAI's completions with vLLM's additions `return_token_ids`, `stop_token_ids`,
`top_k`, `min_p` and `repetition_penalty`; `generate` has those that shape the reply in `sampling_params`. A
prompt goes as token ids and comes back as token ids; text is never read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.engine import EngineFailure, GenerationRequest
from envsdk.engines.engine_support.failures import ReplyRefused, Unavailable, error_text
from envsdk.engines.openai.settings import OpenAISettings
from envsdk.engines.refusals import bad_structure, lacks
from envsdk.engines.sampling import OutputStructure
from envsdk.engines.tagged_json import change_fields, sglang_structure, structural_tag


@dataclass(frozen=True, slots=True)
class Delta:
    """What one event adds to a reply."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    """As many as `token_ids`; NaN when none were asked for."""
    finish_reason: FinishReason | None
    weight_versions: Sequence[VersionLabel] = ()
    """Spans of the complete reply, where the server tells them: with its end."""
    sets: Sequence[Sequence[int]] = ()
    """Tokens that could be drawn at the place of each of `token_ids`, where the server tells them."""
    experts: str | None = None
    """As the server tells them with the end of the reply; see `experts.from_npy`."""


class VersionLabel(BaseModel):
    """Tokens `[start, end)` of a reply were sampled by weights with this label."""

    version: str
    start: int
    end: int


class _TokenLogprob(BaseModel):
    logprob: float


class _Logprobs(BaseModel):
    token_logprobs: list[float | None] | None = None
    content: list[_TokenLogprob] | None = None
    """The same of `generate`."""

    @property
    def values(self) -> Sequence[float | None]:
        if self.content is not None:
            return [each.logprob for each in self.content]
        return self.token_logprobs or []


class _Choice(BaseModel):
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    text: str = ""
    weight_versions: list[VersionLabel] | None = None
    routed_experts: str | None = None
    sampling_mask: list[list[int]] | None = None


class _Event(BaseModel):
    choices: list[_Choice] = []
    prompt_token_ids: list[int] | None = None
    error: Any = None


_FINISH_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


def completion_body(
    settings: OpenAISettings, request: GenerationRequest, max_tokens: int, *, tells_experts: bool = False
) -> dict[str, Any]:
    """The request as JSON. `tells_experts`: the server adds experts to each reply, of no more than needed.

    Parameters that are off are sent too: servers take defaults from a model's `generation_config.json`, which
    would change the distribution without the run's knowledge.
    """
    sampling = request.sampling
    body = {
        **settings.extra_body,
        "max_tokens": max_tokens,
        **sampling.shape(),
        "top_k": sampling.top_k or -1,
        "repetition_penalty": 1.0,
        "stop_token_ids": list(sampling.stop_token_ids),
        "n": 1,
    }
    if sampling.structure is not None:
        body |= structure_fields(settings, sampling.structure)
    if sampling.changes is not None:
        body |= change_fields(sampling.changes)
    if sampling.seed is not None:
        body["seed"] = sampling.seed % 2**63
    if settings.logprobs != "none":
        body["logprobs"] = 0  # the sampled token's, and no alternatives
    prompt = request.prompt_ids.tolist()
    if tells_experts:
        start = len(prompt) if request.experts_from is None else request.experts_from
        body["routed_experts_prompt_start"] = start
    head = {"model": settings.model, "stream": True, "return_token_ids": True}
    if settings.protocol == "generate":
        return {**head, "token_ids": prompt, "sampling_params": {**body, "detokenize": False}}
    return {**head, "prompt": prompt, **body}


def why_inexpressible(settings: OpenAISettings, structure: OutputStructure) -> EngineFailure | None:
    """Why the structure cannot be expressed to the server; None when it can."""
    if structure.json_schema is None and settings.structured_output == "response_format":
        return lacks("structured_output", "takes `response_format`, which knows JSON schemas alone")
    try:
        json.loads(structure.json_schema or "null")
    except ValueError as error:
        return bad_structure(f"the schema is not JSON: {error}")
    return None


def structure_fields(settings: OpenAISettings, structure: OutputStructure) -> dict[str, Any]:
    """What tells the server of a structure that can be expressed."""
    if settings.structured_output == "sglang":
        return dict(sglang_structure(structure))
    kind: str = "choice"
    value: Any = list(structure.choices)
    if structure.regex is not None:
        kind, value = "regex", structure.regex
    if structure.json_schema is not None:
        kind, value = "json", json.loads(structure.json_schema)
    if structure.tagged:
        kind, value = "structural_tag", json.dumps(structural_tag(structure))
    if settings.structured_output == "response_format":
        named = {"name": "reply", "schema": value, "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": named}}
    return {"structured_outputs": {kind: value}}


def read_event(data: str, *, prompt_ids: Sequence[int], with_logprobs: bool) -> Delta:
    """The `data` of one server-sent event.

    Raises Unavailable when it tells of a failure, ReplyRefused when it lacks what was asked for.
    """
    try:
        event = _Event.model_validate_json(data)
    except ValidationError as error:
        raise ReplyRefused(f"the server sent no completion event but {data[:200]!r}") from error
    if event.error is not None:
        raise Unavailable(f"the server broke the reply off: {error_text(event.error)}")
    if not event.choices:
        return Delta((), (), None)
    choice = event.choices[0]
    returned = choice.prompt_token_ids if event.prompt_token_ids is None else event.prompt_token_ids
    if returned is not None and returned != list(prompt_ids):
        raise ReplyRefused("the server changed the prompt: the prompt_token_ids it returned are others")
    reason = None
    if choice.finish_reason is not None:
        reason = _FINISH_REASONS.get(choice.finish_reason)
        if reason is None:
            raise ReplyRefused(f"the server ended the reply with finish_reason `{choice.finish_reason}`")
    if choice.token_ids is None:
        if choice.text or reason is not None:
            raise ReplyRefused(
                "the server returned text without token ids; it must understand `return_token_ids`, as vLLM "
                "does: text cannot be turned back into the tokens that were sampled"
            )
        return Delta((), (), reason, experts=choice.routed_experts)
    logprobs = _logprobs(choice, len(choice.token_ids), with_logprobs)
    sets = choice.sampling_mask or ()
    labels = choice.weight_versions or ()
    return Delta(choice.token_ids, logprobs, reason, labels, sets, choice.routed_experts)


def _logprobs(choice: _Choice, count: int, with_logprobs: bool) -> Sequence[float]:
    if not with_logprobs:
        return [math.nan] * count
    given = choice.logprobs.values if choice.logprobs is not None else ()
    values = [value for value in given if value is not None and math.isfinite(value)]
    if len(values) != count:
        raise ReplyRefused(
            f"the server returned {len(values)} log-probabilities for {count} tokens; if it has none to "
            "give, set `logprobs: none`"
        )
    return [min(value, 0.0) for value in values]  # rounding may leave a certain token above 0
