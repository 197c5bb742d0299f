"""Pure: a trajectory as a page shows it, as JSON-ready values.

Texts are plain text: pages insert them as text, never as markup.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import groupby, zip_longest
from typing import Any

import numpy as np

from envsdk.contracts.prompts import PREFIX
from envsdk.contracts.trajectory import TokenArrays, Trajectory, Turn
from envsdk.engines.tool_calls.reading import ATTEMPT, attempt_of
from envsdk.view.columns import finite

TEXT_LIMIT = 100_000
"""Characters of one observation or reply; of longer ones the rest is counted, not shown."""
TURN_LIMIT = 1_000
TOKEN_LIMIT = 200_000
"""Tokens of one trajectory; a longer log is shown without tokens."""


def trajectory_view(
    trajectory: Trajectory, *, key: str, about: Mapping[str, Any], texts: Sequence[str] | None
) -> dict[str, Any]:
    """Everything a page shows of one trajectory.

    `about` is its row of the index; `texts` are its tokens' texts, `[num_tokens]`, None when unknown.
    """
    tokens = trajectory.tokens
    if tokens is not None and len(tokens) > TOKEN_LIMIT:
        tokens = texts = None
    turns = []
    behind = 0
    for number, turn in enumerate(trajectory.turns[:TURN_LIMIT]):
        turns.append(_turn_view(number, turn, behind, tokens, texts))
        behind = max(behind, turn.response_end)
    failure = trajectory.failure
    return {
        "key": key,
        "id": trajectory.trajectory_id,
        "tag": trajectory.task.tag,
        "split": trajectory.task.split,
        "task": trajectory.task.index,
        "task_name": trajectory.task_name,
        "seed": trajectory.seed,
        "group": f"{about['origin']}/{about['grp']}",
        "use": about["use"],
        "step": about["step"],
        "why": about["why"],
        "outcome": trajectory.outcome.value,
        "success": trajectory.score[0],
        "reward": finite(trajectory.score[1]),
        "failure": None
        if failure is None
        else {"boundary": failure.boundary.value, "kind": failure.kind, "message": failure.message},
        "final_observation": _cut(trajectory.final_observation),
        "started_at": finite(trajectory.started_at),
        "seconds": finite(trajectory.ended_at - trajectory.started_at),
        "generate_s": finite(trajectory.generate_s),
        "env_s": finite(trajectory.env_s),
        "worker": trajectory.worker,
        "num_tokens": about["tokens"],
        "num_sampled": about["sampled"],
        "oldest": about["oldest"],
        "newest": about["newest"],
        "logprob": finite(about["logprob"]),
        "has_tokens": tokens is not None,
        "has_token_texts": texts is not None,
        "turns": turns,
        "turns_left_out": max(0, len(trajectory.turns) - TURN_LIMIT),
        "segments": _segments_view(trajectory),
    }


def _segments_view(trajectory: Trajectory) -> list[dict[str, Any]]:
    """The turns of each segment that no earlier one has; nothing of an episode of one segment.

    `after` is the turn it branches off, None where it begins with a prompt of its own. Turns count from 1.
    """
    segments = trajectory.segments()
    if len(segments) == 1:
        return []
    return [
        {
            "role": segment.role,
            "turns": [number + 1 for number in segment.numbers[segment.num_given_turns :]],
            "after": segment.numbers[segment.num_given_turns - 1] + 1 if segment.num_given_turns else None,
            "tokens": len(segment.tokens or ()),
        }
        for segment in segments
    ]


def shortened(view: dict[str, Any], limit: int) -> dict[str, Any]:
    """A `trajectory_view` of about `limit` characters as JSON: first tokens are left out, then texts cut."""
    if _size(view) <= limit:
        return view
    turns = [
        {name: turn[name] for name in turn if name not in ("prompt", "tokens")} for turn in view["turns"]
    ]
    view = view | {"turns": turns, "has_tokens": False, "has_token_texts": False}
    if _size(view) <= limit:
        return view
    kept = turns[: max(1, limit // 2_000)]
    room = limit // (2 * len(kept) + 1)
    for turn in kept:
        turn |= {name: _cut(turn[name], room) for name in ("observation", "reply")}
        turn.pop("history", None)
        if "details" in turn:
            verdict = _cut(turn["details"]["verdict"], room)
            turn["details"] = {"verdict": verdict, "parts": {}, "fields": []}
    return view | {
        "turns": kept,
        "turns_left_out": view["turns_left_out"] + len(turns) - len(kept),
        "final_observation": _cut(view["final_observation"], room),
    }


def _size(view: Mapping[str, Any]) -> int:
    return len(json.dumps(view, ensure_ascii=False))


def row_view(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the index as a list shows it."""
    view = dict(row)
    view["key"] = f"{view.pop('file').removesuffix('.parquet')}:{row['row']}"
    view["success"] = None if row["success"] is None else bool(row["success"])
    view["group"] = f"{view.pop('origin')}/{view.pop('grp')}"
    del view["row"], view["id"], view["versions"]
    view["id"] = view.pop("trajectory_id")
    for name in ("reward", "logprob", "seconds"):
        view[name] = finite(view[name])
    return view


def group_view(members: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Members of one group, as `trajectory_view` made them, side by side.

    `fork` is the first turn, from 0, in which their replies are not all the same, None when there is none;
    `advantage` is a member's reward less the group's mean, over members with an outcome.
    """
    scored = [one["reward"] for one in members if one["outcome"] != "failed" and one["reward"] is not None]
    mean = math.fsum(scored) / len(scored) if scored else None
    spread = statistics.pstdev(scored) if scored else None
    replies = [[turn["reply"] for turn in one["turns"]] for one in members]
    fork = next((n for n, each in enumerate(zip_longest(*replies)) if len(set(each)) > 1), None)
    advantages = [
        None if mean is None or one["reward"] is None or one["outcome"] == "failed" else one["reward"] - mean
        for one in members
    ]
    return {
        "members": [dict(one, advantage=each) for one, each in zip(members, advantages, strict=True)],
        "mean": mean,
        "spread": spread,
        "fork": fork,
        "num_turns": max(map(len, replies), default=0),
    }


def _turn_view(
    number: int, turn: Turn, behind: int, tokens: TokenArrays | None, texts: Sequence[str] | None
) -> dict[str, Any]:
    view: dict[str, Any] = {
        "number": number + 1,
        "observation": _cut(turn.observation),
        "reply": _cut(turn.reply),
        "reward": finite(turn.reward),
        "finish_reason": turn.finish_reason,
        "is_replayed": turn.role == PREFIX,
        "metrics": {name: finite(value) for name, value in turn.metrics.items() if ATTEMPT not in name},
        "calls": attempt_of(turn),
    }
    view |= _details_view(turn.details)
    start, end = turn.response_start, turn.response_end
    if tokens is None or not 0 <= start <= end <= len(tokens):
        return view
    if behind < start:
        view["prompt"] = _tokens(tokens, texts, behind, start)
    if start == end:
        return view
    logprobs = tokens.behavior_logprobs[start:end]
    versions = tokens.versions[start:end].tolist()
    view["tokens"] = _tokens(tokens, texts, start, end) | {
        "logprobs": [round(each, 4) if math.isfinite(each) else None for each in logprobs.tolist()],
        "versions": [[version, len([*each])] for version, each in groupby(versions)],
    }
    known = logprobs[np.isfinite(logprobs)]
    view["logprob"] = float(known.mean(dtype=np.float64)) if len(known) else None
    return view


def _details_view(details: str | None) -> dict[str, Any]:
    """What an environment says of a turn: the verdict and its parts, then all else by name, as texts.

    And the messages with which its conversation begins.
    """
    found = json.loads(details) if details else None
    if not isinstance(found, dict):
        return {}
    parts, history = found.pop("parts", {}), found.pop("history", [])
    if not (isinstance(parts, dict) and all(isinstance(value, int | float) for value in parts.values())):
        found["parts"], parts = parts, {}
    if not (isinstance(history, list) and all(isinstance(message, dict) for message in history)):
        found["history"], history = history, []
    begins = [
        [_text(message.get("role", "")), _cut(_text(message.get("content", "")))] for message in history
    ]
    verdict = {
        "verdict": _cut(_text(found.pop("verdict", ""))),
        "parts": {name: finite(value) for name, value in parts.items()},
        "fields": [[name, _cut(_text(found[name]))] for name in sorted(found, key=_rank)],
    }
    return {"history": begins, **({"details": verdict} if any(verdict.values()) else {})}


def _rank(name: str) -> int:
    return {"ground_truth": 0, "place": 2}.get(name, 1)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _tokens(tokens: TokenArrays, texts: Sequence[str] | None, start: int, end: int) -> dict[str, Any]:
    view: dict[str, Any] = {"ids": tokens.ids[start:end].tolist()}
    if texts is not None:
        view["texts"] = list(texts[start:end])
    return view


def _cut(text: str, limit: int = TEXT_LIMIT) -> str:
    rest = len(text) - limit
    return text if rest <= 0 else f"{text[:limit]}\n… {rest:,} more characters"
