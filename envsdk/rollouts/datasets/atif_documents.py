"""ATIF, the Agent Trajectory Interchange Format of Harbor: from episodes to its documents and back. Pure.

    document = to_document(trajectory, agent="oracle")      # a JSON object, ATIF-v1.7
    trajectory = from_document(document)                    # the same trajectory

A document has a step per system prompt and user message, and one per reply: the agent's. What the environment
answered is the `observation` of the agent's step. The segment with the last reply is the document, others are
its `subagent_trajectories`; turns that another segment has are copied context. What ATIF has no field for
stands in `extra`, so that a trajectory of ours comes back as it was. Documents of others are read as far as
they go; see `from_document`.

Specification: RFC 0001 of harbor-framework/harbor, version 1.7 (April 2026). Version 1.8 adds audio alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from envsdk import __version__
from envsdk.base.store.trajectories import to_record_batch
from envsdk.contracts.failures import Boundary, ConfigurationError, Failure
from envsdk.contracts.players import POLICY, Seat
from envsdk.contracts.prompts import AgentPrompts, TagPrompts
from envsdk.contracts.segments import Segment, last_segment, prompt_lengths
from envsdk.contracts.support import Support
from envsdk.contracts.trajectory import (
    FinishReason,
    Outcome,
    Task,
    TokenArrays,
    TokenLog,
    Trajectory,
    Turn,
    VersionSpan,
)
from envsdk.engines.tool_calls.formats import CLOSING, OPENING
from envsdk.rollouts.datasets.tool_messages import with_tool_calls

VERSION = "ATIF-v1.7"
READABLE = "ATIF-v1."
"""How the versions begin that can be read."""
_OURS = "envsdk"
"""Key in `extra` of what only this package reads."""
_SOURCES = {"system": "system", "user": "user", "assistant": "agent"}
_ROLES = {source: role for role, source in _SOURCES.items()}
_ARRAYS = ("ids", "response_mask", "behavior_logprobs", "versions")
_PLAIN = (
    *("group_id", "seed", "success", "started_at", "ended_at"),
    *("generate_s", "env_s", "worker", "task_name"),
)


def to_document(trajectory: Trajectory, *, agent: str, model: str | None = None) -> dict[str, Any]:
    """An ATIF document. ConfigurationError when the trajectory does not know its prompts.

    Args:
        agent: Who played: the policy's name.
        model: Name of the model behind it, if there is one.
    """
    segments = trajectory.segments()
    last = last_segment(segments)
    segments = [last, *(segment for segment in segments if segment is not last)]
    lines = [_steps_of(trajectory, segment) for segment in segments]
    steps = lines[0]
    if steps:
        for step, at in ((steps[0], trajectory.started_at), (steps[-1], trajectory.ended_at)):
            step["timestamp"] = datetime.fromtimestamp(at, UTC).isoformat()
    _, final_observation = _played(steps)
    played = sorted(
        (number, *told)
        for segment, line in zip(segments, lines, strict=True)
        for number, told in zip(segment.numbers[segment.num_given_turns :], _played(line)[0], strict=True)
    )
    replies = [step for _, _, _, step in played]
    for (number, observation, reply, step), turn in zip(played, trajectory.turns, strict=True):
        step["extra"] = {"reward": _json_reward(turn.reward), _OURS: _turn_extra(turn, observation, reply)}
        if len(segments) > 1:
            step["extra"][_OURS]["number"] = number
    ours: dict[str, Any] = {
        **{name: getattr(trajectory, name) for name in _PLAIN},
        "outcome": trajectory.outcome.value,
        "task": asdict(trajectory.task),
        "failure": None if trajectory.failure is None else asdict(trajectory.failure),
        "prompts": None if trajectory.shown is None else _stored_prompts(trajectory.shown),
    }
    if final_observation != trajectory.final_observation:
        ours["final_observation"] = trajectory.final_observation
    if trajectory.tokens is not None:
        _add_tokens(replies, trajectory.turns, trajectory.tokens)
        if not _is_same(_token_log(replies), trajectory.tokens):
            log, support = trajectory.tokens, trajectory.tokens.support
            ours["token_log"] = {name: getattr(log, name).tolist() for name in _ARRAYS}
            if support is not None:
                ours["token_log"]["support"] = {
                    "counts": support.counts.tolist(),
                    "ids": support.ids.tolist(),
                }
    if trajectory.seats:
        ours["seats"] = {role: asdict(seat) for role, seat in trajectory.seats.items()}
    described: dict[str, Any] = {"name": agent, "version": __version__, "model_name": model}
    if trajectory.tools:
        described["tool_definitions"] = [dict(each) for each in trajectory.tools]
    players = [_player(trajectory, segment, described) for segment in segments]
    documents: list[dict[str, Any]] = [
        {
            "schema_version": VERSION,
            "session_id": trajectory.trajectory_id,
            "trajectory_id": f"{trajectory.trajectory_id}/{place}" if place else trajectory.trajectory_id,
            "agent": _known(player),
            "steps": line,
            "final_metrics": {"total_steps": len(line), **_totals([step for *_, step in _played(line)[0]])},
        }
        for place, (line, player) in enumerate(zip(lines, players, strict=True))
    ]
    success, reward = trajectory.score
    extra = {
        "reward": None if reward is None else _json_reward(reward),
        "success": success,
        _OURS: _known(ours),
    }
    others = {"subagent_trajectories": documents[1:]} if documents[1:] else {}
    return {**documents[0], **others, "extra": extra}


def _player(trajectory: Trajectory, segment: Segment, policy: Mapping[str, Any]) -> Mapping[str, Any]:
    """ATIF's agent of a line: one of several players, in its role, or the policy."""
    seat = trajectory.seats.get(segment.role)
    if seat is None:
        return policy
    own = policy if seat.player == POLICY else {"name": seat.player, "version": __version__}
    return {**own, "extra": {"role": segment.role}}


def _steps_of(trajectory: Trajectory, segment: Segment) -> list[dict[str, Any]]:
    """The steps of a line, without what is known of each turn besides its texts."""
    messages = trajectory.to_messages(segment)
    num_opening = len(messages) - 2 * len(segment.turns)
    steps: list[dict[str, Any]] = []
    for opening in messages[:num_opening]:
        step: dict[str, Any] = {"source": _SOURCES[opening["role"]], "message": opening["content"]}
        if step["source"] != "system":
            # Examples: a policy did not write them in this episode, and nobody may learn them as its own.
            step["is_copied_context"] = True
        steps.append(step)
    for message in with_tool_calls(messages[num_opening:]):
        content = message["content"]
        if message["role"] == "assistant":
            calls = [
                {
                    "tool_call_id": call["id"],
                    "function_name": call["function"]["name"],
                    "arguments": json.loads(call["function"]["arguments"]),
                }
                for call in message.get("tool_calls", ())
            ]
            steps.append({"source": "agent", "message": content, **({"tool_calls": calls} if calls else {})})
        elif len(steps) == num_opening:
            steps.append({"source": "user", "message": content})
        else:
            call_id = message.get("tool_call_id")
            _add_result(
                steps[-1],
                {"source_call_id": call_id, "content": content} if call_id else {"content": content},
            )
    if segment.num_given_turns:
        for step in steps[num_opening : num_opening + 1 + segment.num_given_turns]:
            step["is_copied_context"] = True
    is_last = len(trajectory.turns) - 1 in segment.numbers
    if is_last and trajectory.final_observation:
        _add_result(steps[-1], {"content": trajectory.final_observation})
    return [{"step_id": number, **step} for number, step in enumerate(steps, start=1)]


def _add_result(step: dict[str, Any], result: Mapping[str, Any]) -> None:
    step.setdefault("observation", {"results": []})["results"].append(result)


def _turn_extra(turn: Turn, observation: str, reply: str) -> dict[str, Any]:
    """All of a turn but its reward, and its texts only where the steps do not give them back."""
    return _known(
        {
            "observation": turn.observation if turn.observation != observation else None,
            "reply": turn.reply if turn.reply != reply else None,
            "response_start": turn.response_start,
            "response_end": turn.response_end,
            "finish_reason": turn.finish_reason.value,
            "metrics": dict(turn.metrics) or None,
            "state_hash": turn.state_hash,
            "details": turn.details,
            "follows": turn.follows,
            "role": turn.role or None,
        }
    )


def _add_tokens(replies: Sequence[dict[str, Any]], turns: Sequence[Turn], tokens: TokenArrays) -> None:
    """The token log, cut at the replies: ATIF's `prompt_token_ids` would repeat all before in each step."""
    position = 0
    for step, turn, num_before in zip(replies, turns, prompt_lengths(turns), strict=True):
        reply = slice(turn.response_start, turn.response_end)
        versions = tokens.versions[reply]
        starts = [0, *(np.flatnonzero(np.diff(versions)) + 1).tolist(), len(versions)]
        step["metrics"] = {
            "prompt_tokens": num_before,
            "completion_tokens": turn.response_end - turn.response_start,
            "completion_token_ids": tokens.ids[reply].tolist(),
            "logprobs": tokens.behavior_logprobs[reply].tolist(),
            "extra": {
                "appended_token_ids": tokens.ids[position : turn.response_start].tolist(),
                "versions": [
                    [int(versions[start]), start, end] for start, end in pairwise(starts) if end > start
                ],
            },
        }
        position = turn.response_end


def _totals(replies: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    if not any("metrics" in step for step in replies):
        return {}
    return {
        f"total_{name}": sum(step["metrics"][name] for step in replies)
        for name in ("prompt_tokens", "completion_tokens")
    }


def _is_same(one: TokenArrays | None, other: TokenArrays) -> bool:
    is_known = one is not None and other.support is None
    return is_known and all(np.array_equal(getattr(one, name), getattr(other, name)) for name in _ARRAYS)


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def from_document(document: Any, *, index: int = 0, name: str = "atif") -> Trajectory:
    """A trajectory of an ATIF document of version 1.x.

    Of a document that another program wrote: a turn is a step of the agent that a model wrote; its
    observation are the user messages and results before it. Reasoning becomes `<think>`, and tool calls and
    their results `<tool_call>` and `<tool_response>` in the texts. Copied context is history. The reward is
    `extra.reward` of the document, or NaN: not known. It has tokens if each of these steps has
    `completion_token_ids`, `logprobs` and `prompt_token_ids` that continue those before. Subagents are left
    out. ConfigurationError names what is missing or cannot be read, such as an image.

    Args:
        index: Of the task, and number of the group, where the document names none.
        name: Id of the trajectory where the document has none.
    """
    version = document.get("schema_version") if isinstance(document, Mapping) else None
    if not isinstance(version, str) or not version.startswith(READABLE):
        raise ConfigurationError(f"not an ATIF document of version 1: its schema_version is {version!r}")
    try:
        trajectory = _trajectory(document, index, name)
        # Columns have types: what can be stored has no number where a text belongs.
        to_record_batch([trajectory])
        return trajectory
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, pa.ArrowException) as error:
        raise ConfigurationError(
            f"not a complete {version} document: {type(error).__name__}: {error}"
        ) from error


def _trajectory(document: Mapping[str, Any], index: int, name: str) -> Trajectory:
    steps: list[dict[str, Any]] = [dict(step) for step in document["steps"]]
    extra = document.get("extra") or {}
    ours = extra.get(_OURS) or {}
    played, final_observation = _played(steps)
    if ours:
        for other in document.get("subagent_trajectories") or ():
            played += _played(other["steps"])[0]
        played.sort(key=lambda told: told[2]["extra"][_OURS].get("number", 0))
    tokens = _token_log([step for _, _, step in played])
    if (arrays := ours.get("token_log")) is not None:
        tokens = TokenArrays(
            ids=np.array(arrays["ids"], np.int32),
            response_mask=np.array(arrays["response_mask"], np.int8),
            behavior_logprobs=np.array(arrays["behavior_logprobs"], np.float32),
            versions=np.array(arrays["versions"], np.int32),
            support=None if (sets := arrays.get("support")) is None else Support.stored(**sets),
        )
    turns = _turns(played, total_reward=_reward(extra.get("reward")), has_tokens=tokens is not None)
    opening = [step for step in steps if step["source"] == "system" or step.get("is_copied_context")]
    history = [{"role": _ROLES[each["source"]], "content": _text(each["message"])} for each in opening]
    if turns and not ours and len(history) > 0:
        turns[0] = replace(turns[0], details=json.dumps({"history": history}, ensure_ascii=False))
    stamps = (datetime.fromisoformat(step["timestamp"]) for step in steps if step.get("timestamp"))
    times = [stamp.timestamp() for stamp in stamps]
    if ours:
        failure = ours.get("failure")
        known = {each: ours[each] for each in _PLAIN if each in ours} | {
            "success": bool(ours["success"]),
            "outcome": Outcome(ours["outcome"]),
            "task": Task(**ours["task"]),
            "failure": failure and Failure(**failure | {"boundary": Boundary(failure["boundary"])}),
            "seats": {role: Seat(**seat) for role, seat in ours.get("seats", {}).items()},
        }
    else:
        known = {
            "group_id": index,
            "seed": 0,
            "success": bool(extra.get("success", False)),
            "started_at": times[0] if times else 0.0,
            "ended_at": times[-1] if times else 0.0,
            "outcome": Outcome.TERMINATED,
            "task": Task(tag=str(document["agent"]["name"]), split="train", index=index),
        }
    prompts = ours.get("prompts")
    return Trajectory(
        trajectory_id=document.get("trajectory_id") or document.get("session_id") or name,
        turns=tuple(turns),
        tokens=tokens,
        final_observation=ours.get("final_observation", final_observation),
        shown=_shown(prompts) if prompts else TagPrompts(max_turns=max(1, len(turns))),
        tools=document["agent"].get("tool_definitions") or (),
        **known,
    )


def _stored_prompts(shown: TagPrompts) -> dict[str, Any]:
    """What `_shown` reads. Arguments of an environment may be of any type."""
    names = ("max_turns", "max_new_tokens", "window")
    return {"prompts": asdict(shown.prompts), **{name: getattr(shown, name) for name in names}}


def _shown(prompts: Mapping[str, Any]) -> TagPrompts:
    templates = prompts["prompts"]
    if not (isinstance(templates["system"], str) and isinstance(templates["template"], str)):
        raise TypeError("a template is no text")
    return TagPrompts(
        prompts=AgentPrompts(system=templates["system"], template=templates["template"]),
        max_turns=int(prompts["max_turns"]),
        max_new_tokens=int(prompts["max_new_tokens"]),
        window=int(prompts.get("window", 0)),
    )


def _turns(
    played: Sequence[tuple[str, str, Mapping[str, Any]]], *, total_reward: float, has_tokens: bool
) -> list[Turn]:
    turns = []
    position = 0
    for number, (observation, reply, step) in enumerate(played, start=1):
        extra = step.get("extra") or {}
        ours = extra.get(_OURS) or {}
        metrics = step.get("metrics") or {}
        start, end = 0, 0
        if has_tokens:
            start = len(metrics.get("prompt_token_ids") or ()) or position
            end = start + len(metrics.get("completion_token_ids") or ())
            position = end
        last = total_reward if number == len(played) else 0.0
        turns.append(
            Turn(
                observation=ours.get("observation", observation),
                reply=ours.get("reply", reply),
                reward=_reward(extra.get("reward")) if ours else last,
                response_start=ours.get("response_start", start),
                response_end=ours.get("response_end", end),
                finish_reason=FinishReason(ours.get("finish_reason", FinishReason.STOP)),
                metrics=ours.get("metrics", {}),
                state_hash=ours.get("state_hash"),
                details=ours.get("details"),
                follows=ours.get("follows"),
                role=ours.get("role", ""),
            )
        )
    return turns


def _played(steps: Sequence[dict[str, Any]]) -> tuple[list[tuple[str, str, dict[str, Any]]], str]:
    """`(observation, reply, step)` of each reply of a model, and what came after the last one."""
    played: list[tuple[str, str, dict[str, Any]]] = []
    waiting: list[str] = []
    for step in steps:
        if step.get("is_copied_context") or (step["source"] == "system" and not played):
            continue
        is_reply = step["source"] == "agent" and step.get("llm_call_count") != 0
        if is_reply:
            played.append(("\n\n".join(waiting), _reply(step), step))
            waiting = []
        elif text := _text(step["message"]):
            waiting.append(text)
        if results := _results(step):
            waiting.append(results)
    return played, "\n\n".join(waiting)


def _reply(step: Mapping[str, Any]) -> str:
    thought = step.get("reasoning_content")
    calls = [
        json.dumps({"name": call["function_name"], "arguments": call["arguments"]}, ensure_ascii=False)
        for call in step.get("tool_calls") or ()
    ]
    parts = [
        *([f"<think>\n{thought}\n</think>\n"] if thought else []),
        *([text] if (text := _text(step["message"])) or not calls else []),
        *(f"{OPENING}\n{call}\n{CLOSING}" for call in calls),
    ]
    return "\n".join(parts)


def _results(step: Mapping[str, Any]) -> str:
    """What followed a step, as the policy was shown it."""
    texts = []
    for result in (step.get("observation") or {}).get("results", ()):
        text = _text(result.get("content") or "")
        texts.append(f"<tool_response>\n{text}\n</tool_response>" if result.get("source_call_id") else text)
    return "\n".join(texts)


def _text(content: Any) -> str:
    """A message, or its parts; ConfigurationError when one of them is not text."""
    if isinstance(content, str):
        return content
    if others := {part["type"] for part in content} - {"text"}:
        raise ConfigurationError(f"a message has parts that are not text: {', '.join(sorted(others))}")
    return "".join(part["text"] for part in content)


def _token_log(replies: Sequence[Mapping[str, Any]]) -> TokenArrays | None:
    """None unless every reply has its tokens, and each prompt continues the one before."""
    log = TokenLog()
    for step in replies:
        metrics = step.get("metrics") or {}
        extra = metrics.get("extra") or {}
        ids, logprobs = metrics.get("completion_token_ids"), metrics.get("logprobs")
        prompt, appended = metrics.get("prompt_token_ids"), extra.get("appended_token_ids")
        if ids is None or logprobs is None or len(ids) != len(logprobs):
            return None
        if appended is None:
            if prompt is None or list(log.ids) != prompt[: len(log)]:
                return None
            appended = prompt[len(log) :]
        log.append_prompt(appended)
        spans = extra.get("versions") or [[0, 0, len(ids)]]
        if any(end > len(ids) for _, _, end in spans):
            raise ValueError(f"versions of more tokens than the {len(ids)} of a reply")
        log.append_sampled(
            ids,
            logprobs,
            [VersionSpan(version=v, start=start, end=end) for v, start, end in spans if end > start],
        )
    return log.arrays() if replies else None


def _json_reward(reward: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(reward) else reward


def _reward(value: Any) -> float:
    return math.nan if value is None else float(value)
