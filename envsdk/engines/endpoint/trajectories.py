"""Pure: an ended session as a trajectory, in the format that training and data sets share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from envsdk.contracts.trajectory import TokenLog, Trajectory, Turn
from envsdk.engines.endpoint.record import ConversationRecord, RecordedReply
from envsdk.engines.tool_calls.reading import ATTEMPT, as_ended, attempt_metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """What came of a session's replies so far."""

    num_replies: int
    """Replies there were; the last of them is rewarded."""
    reward: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    details: str | None = None
    """What the environment says of it, a JSON object."""


def trajectory(record: ConversationRecord, rewards: Sequence[Reward], head: Trajectory) -> Trajectory:
    """`head` with what the session sampled: a turn for each reply, in the order they ended.

    A reward goes to the last reply before it, or to the first one when it came before that.
    """
    paid = [0.0] * len(record.replies)
    metrics: list[dict[str, float]] = [{} for _ in record.replies]
    details: list[str | None] = [None for _ in record.replies]
    for reward in rewards if record.replies else ():
        number = max(0, reward.num_replies - 1)
        paid[number] += reward.reward
        metrics[number].update(reward.metrics)
        details[number] = reward.details or details[number]
    log, turns = TokenLog(), list[Turn]()
    for reply, earned, measured, said in zip(record.replies, paid, metrics, details, strict=True):
        log.append_prompt(reply.prompt_ids)
        start = len(log)
        log.append_sampled(reply.token_ids, reply.logprobs, reply.version_spans, support=reply.support)
        if reply.attempt is not None:  # it knows better than an environment that was given the text alone
            measured = {name: value for name, value in measured.items() if ATTEMPT not in name}
        before = -1 if reply.parent is None else reply.parent.number
        turns.append(
            Turn(
                observation=reply.observation,
                reply=reply.text,
                reward=earned,
                response_start=start,
                response_end=len(log),
                finish_reason=reply.finish_reason,
                metrics=as_ended({**measured, **attempt_metric(reply.attempt)}, reply.finish_reason),
                state_hash=reply.state_hash,
                details=_details(reply, said),
                follows=None if before == reply.number - 1 else before,
                role=reply.role,
            )
        )
    tokens = log.arrays() if turns else None
    return replace(head, turns=tuple(turns), tokens=tokens, generate_s=record.generate_s)


def _details(reply: RecordedReply, said: str | None) -> str | None:
    """What the environment said, and with what the conversation of a line begins.

    Lines of one session may have different system prompts.
    """
    if reply.parent is not None or not (reply.history or reply.number):
        return said
    return json.dumps({**json.loads(said or "{}"), "history": list(reply.history)}, ensure_ascii=False)
