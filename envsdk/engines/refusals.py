"""Why a request cannot run on an engine, and whether a server refused one for a full context. Pure."""

from __future__ import annotations

import re

from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.core import result_of
from envsdk.engines.engine import (
    EngineAbilities,
    EngineFailure,
    ErrorKind,
    GenerationRequest,
    GenerationResult,
)
from envsdk.engines.sampling import SamplingParams, out_of_range


def why_impossible(
    request: GenerationRequest, *, sequence_length: int, abilities: EngineAbilities
) -> EngineFailure | None:
    """Why no engine of this context and these abilities can run the request; None when one can."""
    num_prompt = len(request.prompt_ids)
    if num_prompt == 0:
        return EngineFailure("the prompt is empty")
    if num_prompt >= sequence_length:
        return EngineFailure(
            f"a prompt of {num_prompt} tokens leaves no room for a reply: "
            f"sequence_length is {sequence_length}"
        )
    if request.sampling.max_new_tokens < 1:
        return EngineFailure(f"max_new_tokens is {request.sampling.max_new_tokens}; it must be at least 1")
    if problem := out_of_range(request.sampling):
        return EngineFailure(problem)
    if request.experts_from is not None and not abilities.routed_experts:
        return lacks("routed_experts", "does not tell which experts a mixture chose, or its model is none")
    return _why_unable(request.sampling, abilities) or _why_unstructured(request.sampling, abilities)


def _why_unable(sampling: SamplingParams, abilities: EngineAbilities) -> EngineFailure | None:
    if sampling.changes is not None and not abilities.logit_changes:
        return lacks("logit_changes", "cannot sample with a logit bias or penalties")
    is_scored = sampling.prompt_logprobs and abilities.prompt_logprobs
    if sampling.top_logprobs and not (abilities.top_logprobs or is_scored):
        return lacks("top_logprobs", "does not tell the likeliest tokens")
    if sampling.prompt_logprobs and not abilities.prompt_logprobs:
        return lacks("prompt_logprobs", "does not score prompts")
    if sampling.tells_support and not abilities.support:
        return lacks("support", "does not tell which tokens top_k, top_p and min_p leave")
    return None


def lacks(ability: str, what: str) -> EngineFailure:
    """The engine is unable to do what is asked for: it `what`."""
    return EngineFailure(
        f"{ability}: the engine {what}; docs/choosing-an-engine.md lists those that do",
        ErrorKind.UNSUPPORTED_SAMPLING,
    )


def _why_unstructured(sampling: SamplingParams, abilities: EngineAbilities) -> EngineFailure | None:
    if sampling.structure is None:
        return None
    if not abilities.structured_output:
        return lacks(
            "structured_output",
            "cannot hold replies to a structure, or has no tokenizer for it: take `embedded` or `vllm` and a "
            "model folder with a tokenizer.json, or set `structured_output` of `sglang` or `openai`",
        )
    if not sampling.stop_token_ids:
        return bad_structure("a reply with a structure needs a stop token to end with")
    return None


def bad_structure(reason: str) -> EngineFailure:
    """The request's `OutputStructure` is at fault, not the engine."""
    return EngineFailure(f"structured_output: {reason}", ErrorKind.STRUCTURED_OUTPUT)


def in_use(request_id: str) -> EngineFailure:
    """Another request of this id is not answered yet."""
    return EngineFailure(f"request id {request_id!r} is not answered yet")


def refused(request_id: str, failure: EngineFailure) -> GenerationResult:
    """The result of a request of which nothing was sampled."""
    return result_of(request_id, FinishReason.ERROR, failure=failure)


_STATUSES = frozenset({400, 413, 422})
_CODE = "context_length_exceeded"
_WORDS = re.compile(
    "|".join(
        (
            _CODE,
            "exceed_context_size_error",
            r"maximum (context|model|prompt) (length|limit)",
            r"(longer|greater|larger) than the (model's )?(maximum )?context (length|size|window)",
            r"exceeds? the (model's )?(available )?context (length|size|window|limit)",
            r"(input|requested|prompt) tokens? count[^.]{0,40} exceeds",
            r"maximum allowed (input )?(length|number of tokens)",
            r"context window exceed",
            r"exceed context limit",
            r"(prompt|input) is too long",
            r"`inputs` tokens \+ `max_new_tokens` must be",
            r"context holds \d+ tokens",
        )
    ),
    re.IGNORECASE,
)


def says_context_is_full(text: str, *, status: int | None, code: object = None) -> bool:
    """Whether an answer with this status, code and text means that prompt and reply do not fit."""
    return code == _CODE or (status in _STATUSES and _WORDS.search(text) is not None)


def is_full_context(error: BaseException) -> bool:
    """The same of a client's exception, which has a `status_code` or `status`, and perhaps a `code`.

    Servers of the OpenAI protocol name a code or only use words: those of OpenAI, vLLM, SGLang, llama.cpp,
    TGI, xAI, the compatible endpoints of Anthropic and Google, and of proxies before them.
    """
    status = getattr(error, "status_code", getattr(error, "status", None))
    try:
        text = str(error)[:10_000]
    except Exception:  # noqa: BLE001 - boundary: a plug-in's object
        return False
    return says_context_is_full(
        text, status=status if isinstance(status, int) else None, code=getattr(error, "code", None)
    )
