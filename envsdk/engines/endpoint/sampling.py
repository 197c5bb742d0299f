"""Pure: how a reply is sampled, from what the client asks for and what the session allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from envsdk.contracts.seeds import stable_seed
from envsdk.engines.endpoint.errors import ApiError, unsupported
from envsdk.engines.endpoint.wire import CompletionFields, SamplingFields
from envsdk.engines.sampling import SHAPE, OutputStructure, SamplingParams, SamplingShape


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRules(SamplingShape):
    """How replies are sampled where a request says nothing."""

    max_new_tokens: int | None = None
    """Longest reply; a request that asks for more gets this. None leaves it to the context."""
    structure: OutputStructure | None = None
    """What the text of a reply must be, where a request names nothing else."""
    is_fixed: bool = False
    """Requests may not ask for another distribution or seed: the replies are to be trained on."""
    seed: int | None = None
    """Seed of the session: each reply gets a seed from it unless the request names one."""
    support: bool = False
    """Record which tokens could be drawn."""
    max_session_tokens: int = 0
    """Tokens of all lines, each counted once, from which on no reply is sampled; 0: no limit."""
    max_replies: int = 0
    """Replies from which on none is sampled; 0: no limit."""


class RepliesUsedUp(ApiError):
    """The session may not ask again. Clients do not repeat a request that is forbidden."""

    def __init__(self, max_replies: int) -> None:
        message = f"this session's {max_replies} replies are used up: its episode is over"
        super().__init__(403, message, code="turn_limit_reached")


class ContextFull(ApiError):
    """No room is left for a reply."""

    def __init__(
        self, what: str, *, num_prompt_tokens: int, longest_reply: int, sequence_length: int
    ) -> None:
        """`what` fills the context, as in "the 300 of the prompt"."""
        super().__init__(
            400,
            f"this model's context holds {sequence_length} tokens: {what} leave no room for a reply of "
            f"{longest_reply}",
            code="context_length_exceeded",
            param="messages",
        )
        self.num_prompt_tokens = num_prompt_tokens


def sampling_params(
    asked: SamplingFields,
    rules: SamplingRules,
    *,
    num_prompt_tokens: int,
    sequence_length: int,
    stop_token_ids: Sequence[int],
    default_max_tokens: int | None,
    number: int,
    choice: int,
) -> SamplingParams:
    """Raises ApiError: ContextFull, or what the session does not allow.

    `number` counts the replies that the session asked for, `choice` those to one request: for their seeds.
    """
    if rules.is_fixed:
        _check_fixed(asked, rules)
    stops = [*(() if asked.ignore_eos else stop_token_ids), *(asked.stop_token_ids or ())]
    seed = asked.seed
    if seed is not None:
        seed = (seed + choice) % 2**63
    elif rules.seed is not None:
        seed = stable_seed(rules.seed, number)
    return SamplingParams(
        **{**rules.shape(), **_asked_shape(asked)},
        max_new_tokens=_longest_reply(asked, rules, num_prompt_tokens, sequence_length, default_max_tokens),
        stop_token_ids=tuple(dict.fromkeys(stops)),
        seed=seed,
        structure=asked.structure or rules.structure,
        changes=asked.changes,
        top_logprobs=asked.num_top,
        support=rules.support,
        prompt_logprobs=isinstance(asked, CompletionFields) and asked.scores_prompt,
    )


def _asked_shape(asked: SamplingFields) -> dict[str, Any]:
    return {name: value for name in SHAPE if (value := getattr(asked, name)) is not None}


def _check_fixed(asked: SamplingFields, rules: SamplingRules) -> None:
    for name, value in _asked_shape(asked).items():
        fixed = getattr(rules, name)
        if value != fixed:
            raise unsupported(
                name, f"is {value:g}, but this session is trained on and samples at {fixed:g}: leave it out"
            )
    for name in asked.change_fields:
        raise unsupported(name, "would change the distribution that this session is trained on: leave it out")
    if asked.structure is not None:
        raise unsupported(
            asked.structure_field,
            "would change what this session is trained on: leave it out, or set structured_output in its run",
        )
    if asked.seed is not None:
        raise unsupported("seed", "is set by this session, which is trained on: leave it out")


def _longest_reply(
    asked: SamplingFields,
    rules: SamplingRules,
    num_prompt_tokens: int,
    sequence_length: int,
    default: int | None,
) -> int:
    room = sequence_length - num_prompt_tokens
    limits = [limit for limit in (asked.longest_reply or default, rules.max_new_tokens) if limit is not None]
    longest = min(limits, default=room)
    if (asked.longest_reply is None or asked.is_cut_to_room) and not rules.is_fixed:
        longest = min(longest, room)
    if longest < 1 or room < longest:
        raise ContextFull(
            f"the {num_prompt_tokens} of the prompt",
            num_prompt_tokens=num_prompt_tokens,
            longest_reply=max(longest, 1),
            sequence_length=sequence_length,
        )
    return longest
