"""Episodes as spans, by OpenTelemetry's semantic conventions for generative AI. Pure.

    invoke_agent TAG
      turn 1
        chat MODEL
        execute_tool NAME        (or `env.step`, where the reply calls no tools)

The conventions are all in development: the names here are those of release CONVENTIONS. What they lack stands
under `envsdk.`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envsdk.config.prices import Prices
from envsdk.contracts.trajectory import Trajectory, Turn
from envsdk.engines.tool_calls.formats import read_reply
from envsdk.tracking.cost import Usage, tokens_cost, turn_usages, usage_of

CONVENTIONS = "semantic-conventions-genai 0.1.0"
PROVIDER = "envsdk"

Attribute = str | bool | int | float | Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSpan:
    """One span of an episode; a parent comes before its children."""

    name: str
    parent: int | None
    """Index of the parent among the episode's spans; None for the first."""
    start_s: float
    """Unix time, seconds."""
    end_s: float
    is_client: bool = False
    """Whether it is a request to a model."""
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    evaluation: Mapping[str, Attribute] | None = None
    """Attributes of an event `gen_ai.evaluation.result`: the reward."""
    error: str | None = None
    """What went wrong."""


def is_sampled(trajectory_id: str, share: float) -> bool:
    """Whether an episode is among this share of all: the same answer for every process and step."""
    digest = hashlib.blake2b(trajectory_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


def episode_spans(
    trajectory: Trajectory, *, step: int, model: str, prices: Prices | None = None, content: bool = False
) -> list[EpisodeSpan]:
    """All spans of an episode.

    Turns of an episode that was read from a file have no times of their own: the episode's seconds are shared
    out evenly and its spans say `envsdk.times_are_estimates`.
    """
    times, are_estimates = _times(trajectory)
    spans = [_episode_span(trajectory, step, model, prices, are_estimates)]
    usages = turn_usages(trajectory.turns)
    for index, (turn, (start, replied, end)) in enumerate(zip(trajectory.turns, times, strict=True)):
        parent = len(spans)
        spans.append(
            EpisodeSpan(
                name=f"turn {index + 1}",
                parent=0,
                start_s=start,
                end_s=end,
                attributes={"envsdk.turn": index}
                | {f"envsdk.metrics.{name}": value for name, value in turn.metrics.items()},
                evaluation=_reward("reward", turn.reward),
            )
        )
        chat: dict[str, Attribute] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": model,
            "gen_ai.conversation.id": trajectory.trajectory_id,
            "gen_ai.response.finish_reasons": [str(turn.finish_reason)],
            **_tokens(usages[index], prices),
        }
        if content:
            chat["gen_ai.input.messages"] = _message("user", turn.observation)
            chat["gen_ai.output.messages"] = _message("assistant", turn.reply, str(turn.finish_reason))
        spans.append(
            EpisodeSpan(
                name=f"chat {model}",
                parent=parent,
                start_s=start,
                end_s=replied,
                is_client=True,
                attributes=chat,
            )
        )
        spans += _step_spans(turn, index, parent, replied, end, content=content)
    return spans


def _episode_span(
    trajectory: Trajectory, step: int, model: str, prices: Prices | None, are_estimates: bool
) -> EpisodeSpan:
    task, failure = trajectory.task, trajectory.failure
    attributes: dict[str, Attribute] = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.agent.name": task.tag,
        "gen_ai.conversation.id": trajectory.trajectory_id,
        "gen_ai.request.model": model,
        **_tokens(usage_of([trajectory]), prices),
        "envsdk.step": step,
        "envsdk.split": task.split,
        "envsdk.task": task.index,
        "envsdk.group": trajectory.group_id,
        "envsdk.outcome": str(trajectory.outcome),
        "envsdk.success": trajectory.success,
        "envsdk.num_turns": len(trajectory.turns),
        "envsdk.generate_s": trajectory.generate_s,
        "envsdk.env_s": trajectory.env_s,
    }
    if trajectory.worker:
        attributes["envsdk.worker"] = trajectory.worker
    if (version := trajectory.oldest_version) is not None:
        attributes["envsdk.weights_version"] = version
    if are_estimates:
        attributes["envsdk.times_are_estimates"] = True
    if failure is not None:
        attributes["error.type"] = f"{failure.boundary}/{failure.kind}"
    return EpisodeSpan(
        name=f"invoke_agent {task.tag}",
        parent=None,
        start_s=trajectory.started_at,
        end_s=trajectory.ended_at,
        attributes=attributes,
        evaluation=None
        if failure is not None
        else _reward("total_reward", trajectory.total_reward, "pass" if trajectory.success else "fail"),
        error=None if failure is None else f"{failure.boundary}/{failure.kind}",
    )


def _step_spans(
    turn: Turn, index: int, parent: int, start: float, end: float, *, content: bool
) -> Iterator[EpisodeSpan]:
    """The environment's step: a span per tool that the reply calls, each as long as the step, or one."""
    calls = read_reply(turn.reply).calls
    if not calls:
        yield EpisodeSpan(name="env.step", parent=parent, start_s=start, end_s=end)
    for place, call in enumerate(calls):
        attributes: dict[str, Attribute] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": f"call_{index}_{place}",
        }
        if content:
            attributes["gen_ai.tool.call.arguments"] = call.arguments
        yield EpisodeSpan(
            name=f"execute_tool {call.name}", parent=parent, start_s=start, end_s=end, attributes=attributes
        )


def _times(trajectory: Trajectory) -> tuple[list[tuple[float, float, float]], bool]:
    """Start, reply and end of each turn, in Unix seconds, and whether they are estimates."""
    turns = trajectory.turns
    lengths = [(turn.generate_s, turn.env_s) for turn in turns]
    are_estimates = bool(turns) and not any(map(any, lengths))
    if are_estimates:
        lengths = [(trajectory.generate_s / len(turns), trajectory.env_s / len(turns))] * len(turns)
    # What remains went into `reset` and, where the episode failed, into the turn that was not finished.
    reset_s = max(0.0, trajectory.env_s - sum(env_s for _, env_s in lengths))
    now, times = trajectory.started_at + reset_s, []
    for generate_s, env_s in lengths:
        times.append((now, now + generate_s, now + generate_s + env_s))
        now += generate_s + env_s
    return times, are_estimates


def _tokens(usage: Usage, prices: Prices | None) -> dict[str, Attribute]:
    found: dict[str, Attribute] = {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
    }
    if prices is not None:
        found["envsdk.cost"] = tokens_cost(usage, prices)
        found["envsdk.currency"] = prices.currency
    return found


def _reward(name: str, value: float, label: str | None = None) -> dict[str, Attribute]:
    found: dict[str, Attribute] = {
        "gen_ai.evaluation.name": name,
        "gen_ai.evaluation.score.value": float(value),
    }
    return found if label is None else found | {"gen_ai.evaluation.score.label": label}


def _message(role: str, text: str, finish_reason: str | None = None) -> str:
    message: dict[str, Any] = {"role": role, "parts": [{"type": "text", "content": text}]}
    if finish_reason is not None:
        message["finish_reason"] = finish_reason
    return json.dumps([message], ensure_ascii=False)
