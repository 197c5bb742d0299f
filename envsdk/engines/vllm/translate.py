"""Requests in vLLM's words, and vLLM's answers in the contract's. Pure; vLLM is not imported."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envsdk.contracts.support import Support
from envsdk.contracts.trajectory import FinishReason, VersionSpan
from envsdk.engines.continuation import spans_within
from envsdk.engines.engine import (
    EngineFailure,
    GenerationRequest,
    GenerationResult,
    PromptScores,
    TokenDelta,
    TopTokens,
)
from envsdk.engines.refusals import bad_structure, refused
from envsdk.engines.sampling import LogitChanges, OutputStructure, SamplingParams
from envsdk.engines.tagged_json import held_schema, lark_grammar

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 2.0
"""What vLLM samples at; it takes lower ones up to the first and refuses those beyond the second."""

_FINISH_REASONS = {str(reason): reason for reason in FinishReason if reason is not FinishReason.ERROR}


def sampling_options(
    sampling: SamplingParams, *, room: int, experts_from: int | None = None
) -> dict[str, Any]:
    """Arguments of vLLM's `SamplingParams`; `room` is what the context leaves for the reply, in tokens."""
    return {
        **({} if experts_from is None else {"routed_experts_prompt_start": experts_from}),
        "max_tokens": min(sampling.max_new_tokens, room),
        **sampling.shape(),
        **change_options(sampling.changes or LogitChanges()),
        "seed": sampling.seed,
        "stop_token_ids": list(sampling.stop_token_ids),
        # Only the request's own stop tokens end a reply, not those of the model's generation_config.json.
        "ignore_eos": True,
        "detokenize": False,
        "logprobs": 0,  # that of the sampled token alone
        "flat_logprobs": True,
        "prompt_logprobs": sampling.top_logprobs if sampling.prompt_logprobs else None,
        "structured_outputs": None if sampling.structure is None else structure_options(sampling.structure),
    }


def change_options(changes: LogitChanges) -> dict[str, Any]:
    """Arguments of vLLM's `SamplingParams` for what is done to the logits."""
    return {
        "logit_bias": dict(changes.bias) or None,
        "repetition_penalty": changes.repetition_penalty,
        "frequency_penalty": changes.frequency_penalty,
        "presence_penalty": changes.presence_penalty,
    }


def structure_options(structure: OutputStructure) -> dict[str, Any]:
    """Arguments of vLLM's `StructuredOutputsParams`."""
    if structure.regex is not None:
        return {"regex": structure.regex}
    if structure.json_schema is not None:
        return {"json": json.dumps(held_schema(structure.json_schema))}
    if structure.tagged:
        return {"grammar": lark_grammar(structure)}
    return {"choice": list(structure.choices)}


def why_refused(
    request: GenerationRequest, *, vocab_size: int, end_token: int | None
) -> EngineFailure | None:
    """Why vLLM cannot run this request; None when it can."""
    prompt, sampling = request.prompt_ids, request.sampling
    if int(prompt.min()) < 0 or int(prompt.max()) >= vocab_size:
        return EngineFailure(f"the prompt holds a token id outside the vocabulary of {vocab_size}")
    biased = [token for token, _ in sampling.changes.bias] if sampling.changes is not None else []
    if any(not 0 <= token < vocab_size for token in biased):
        return EngineFailure(f"the logit bias names a token id outside the vocabulary of {vocab_size}")
    if sampling.temperature != 0 and not MIN_TEMPERATURE <= sampling.temperature <= MAX_TEMPERATURE:
        return EngineFailure(
            f"temperature is {sampling.temperature:g}; vLLM samples at 0 and from {MIN_TEMPERATURE:g} "
            f"to {MAX_TEMPERATURE:g}"
        )
    if sampling.structure is not None and end_token not in sampling.stop_token_ids:
        return bad_structure(
            f"vLLM ends the text with the tokenizer's end token {end_token}, which is none of "
            f"the request's stop tokens {list(sampling.stop_token_ids)}"
        )
    return None


def read_output(request_id: str, output: Any) -> GenerationResult:
    """The reply in a finished `RequestOutput`.

    Log-probabilities that are not finite, as diverged weights give, make it an error.
    """
    completion = output.outputs[0]
    token_ids, logprobs = _tokens(completion)
    if not np.isfinite(logprobs).all():
        diverged = EngineFailure("log-probabilities are not finite: the weights have diverged")
        return refused(request_id, diverged)
    reason = _FINISH_REASONS.get(completion.finish_reason, FinishReason.ERROR)
    return GenerationResult(
        request_id=request_id,
        token_ids=token_ids,
        logprobs=logprobs,
        version_spans=version_spans(completion.weight_versions or (), len(token_ids)),
        finish_reason=reason,
        error=f"vLLM ended the reply: {completion.finish_reason}" if reason is FinishReason.ERROR else "",
        support=_support(completion, 0),
        prompt_scores=_prompt_scores(getattr(output, "prompt_logprobs", None)),
    )


def read_progress(request_id: str, completion: Any, num_known: int) -> TokenDelta | None:
    """What an unfinished `CompletionOutput` has beyond its first `num_known` tokens; None when nothing."""
    token_ids, logprobs = _tokens(completion)
    count = len(token_ids)
    if count <= num_known or not np.isfinite(logprobs).all():
        return None
    return TokenDelta(
        request_id=request_id,
        token_ids=token_ids[num_known:],
        logprobs=logprobs[num_known:],
        version_spans=spans_within(version_spans(completion.weight_versions, count), num_known, count),
        support=_support(completion, num_known),
    )


def _prompt_scores(flat: Any) -> PromptScores | None:
    """vLLM tells the prompt's token of each position but the first, then the likeliest ones."""
    if flat is None:
        return None
    starts, ends = flat.start_indices[1:], flat.end_indices[1:]
    num_top = ends[0] - starts[0] - 1 if starts else 0
    places = np.array(starts, np.int64)[:, None] + np.arange(1 + num_top)
    logprobs = np.array(flat.logprobs, np.float32)[places]
    top = TopTokens(token_ids=np.array(flat.token_ids, np.int32)[places[:, 1:]], logprobs=logprobs[:, 1:])
    return PromptScores(logprobs=logprobs[:, 0], top=top if num_top else None)


def _support(completion: Any, start: int) -> Support | None:
    mask = getattr(completion, "sampling_mask", None)
    return None if mask is None else Support.of(mask.token_ids[start : len(completion.token_ids)])


def _tokens(completion: Any) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Ids and log-probabilities; the sampled token is the first of those that vLLM tells of a position."""
    token_ids = np.array(completion.token_ids, np.int32)
    flat = completion.logprobs
    logprobs = np.array([flat.logprobs[first] for first in flat.start_indices], np.float32)
    if len(logprobs) != len(token_ids):
        raise ValueError(f"vLLM gave {len(logprobs)} log-probabilities for {len(token_ids)} tokens")
    return token_ids, np.minimum(logprobs, 0.0)  # rounding may leave a certain token a hair above 0


def version_spans(spans: Any, num_tokens: int) -> tuple[VersionSpan, ...]:
    """The labels of vLLM's spans are the versions they were published under. ValueError."""
    found = tuple(
        VersionSpan(version=_version(span.version), start=span.start, end=span.end)
        for span in spans
        if span.end > span.start
    )
    covered = sum(span.end - span.start for span in found)
    if covered != num_tokens:
        raise ValueError(f"vLLM's weight versions cover {covered} of {num_tokens} tokens")
    return found


def _version(label: str) -> int:
    if label == "default":  # nobody has labeled the weights yet
        return 0
    if not re.fullmatch(r"\d{1,18}", label):
        raise ValueError(
            f"vLLM's weights have the label `{label}`: label them with the number of their version"
        )
    return int(label)
