"""Episodes or turns as the rows of a table, and episodes as rows to learn from. Pure Arrow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import pyarrow as pa

from envsdk.base.settings.extras import require
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.segments import given_and_masked_replies
from envsdk.contracts.trajectory import Trajectory, Turn
from envsdk.rollouts.datasets.formats import EPISODE_COLUMNS, MESSAGES, episode_columns
from envsdk.rollouts.results.arrays import segments_of

FrameLibrary = Literal["pandas", "arrow"]
FrameRow = Literal["episode", "turn"]

_EPISODE: Sequence[tuple[str, pa.DataType, Callable[[Trajectory], Any]]] = (
    ("trajectory_id", pa.string(), lambda each: each.trajectory_id),
    ("group_id", pa.int64(), lambda each: each.group_id),
    ("tag", pa.string(), lambda each: each.task.tag),
    ("split", pa.string(), lambda each: each.task.split),
    ("index", pa.int64(), lambda each: each.task.index),
    ("seed", pa.int64(), lambda each: each.seed),
    ("task_name", pa.string(), lambda each: each.task_name),
    ("outcome", pa.string(), lambda each: each.outcome.value),
    ("success", pa.bool_(), lambda each: each.score[0]),
    ("total_reward", pa.float64(), lambda each: each.score[1]),
    ("num_turns", pa.int64(), lambda each: len(each.turns)),
    ("num_tokens", pa.int64(), lambda each: None if each.tokens is None else len(each.tokens)),
    ("num_sampled_tokens", pa.int64(), lambda each: _num_sampled(each)),
    ("oldest_version", pa.int64(), lambda each: each.oldest_version),
    ("failure", pa.string(), lambda each: None if each.failure is None else str(each.failure)),
    ("final_observation", pa.string(), lambda each: each.final_observation),
    ("started_at", pa.float64(), lambda each: each.started_at),
    ("ended_at", pa.float64(), lambda each: each.ended_at),
    ("generate_s", pa.float64(), lambda each: each.generate_s),
    ("env_s", pa.float64(), lambda each: each.env_s),
    ("worker", pa.string(), lambda each: each.worker),
)
_OF_EPISODE = ("trajectory_id", "group_id", "tag", "split", "index", "seed", "task_name")
"""Columns of an episode that each of its turns repeats."""
_TURN: Sequence[tuple[str, pa.DataType, Callable[[Turn], Any]]] = (
    ("observation", pa.string(), lambda turn: turn.observation),
    ("reply", pa.string(), lambda turn: turn.reply),
    ("reward", pa.float64(), lambda turn: turn.reward),
    ("finish_reason", pa.string(), lambda turn: turn.finish_reason.value),
    ("response_start", pa.int64(), lambda turn: turn.response_start),
    ("response_end", pa.int64(), lambda turn: turn.response_end),
    ("follows", pa.int64(), lambda turn: turn.follows),
    ("role", pa.string(), lambda turn: turn.role),
)
_ROWS = pa.schema(
    [
        *((name, MESSAGES) for name in ("prompt", "completion", "messages")),
        *EPISODE_COLUMNS,
        ("group", pa.int64()),
        ("trajectory_id", pa.string()),
        ("masked_replies", pa.list_(pa.int64())),
    ]
)


def to_frame(
    episodes: Sequence[Trajectory], groups: Sequence[int], *, library: FrameLibrary, per: FrameRow
) -> Any:
    """See `Trajectories.to_frame`."""
    for name, value, known in (("library", library, FrameLibrary), ("per", per, FrameRow)):
        if value not in get_args(known):
            raise ConfigurationError(f"{name}: must be one of {', '.join(get_args(known))}, not {value!r}")
    if library == "pandas":
        require("to_frame('pandas')", "pandas")
    table = _episode_table(episodes, groups) if per == "episode" else _turn_table(episodes, groups)
    return table.to_pandas() if library == "pandas" else table


def _episode_table(episodes: Sequence[Trajectory], groups: Sequence[int]) -> pa.Table:
    columns = {name: pa.array(map(of, episodes), kind) for name, kind, of in _EPISODE}
    return pa.table({**columns, "group": pa.array(groups, pa.int64())})


def _turn_table(episodes: Sequence[Trajectory], groups: Sequence[int]) -> pa.Table:
    turns = [turn for episode in episodes for turn in episode.turns]
    row_of_turn = [row for row, episode in enumerate(episodes) for _ in episode.turns]
    repeated = (
        _episode_table(episodes, groups)
        .select([*_OF_EPISODE, "group"])
        .take(pa.array(row_of_turn, pa.int64()))
    )
    columns = dict(zip(repeated.column_names, repeated.columns, strict=True))
    columns["turn"] = pa.array([n for each in episodes for n in range(len(each.turns))], pa.int64())
    columns |= {name: pa.array(map(of, turns), kind) for name, kind, of in _TURN}
    for name in sorted({name for turn in turns for name in turn.metrics}):
        columns[f"metrics.{name}"] = pa.array([turn.metrics.get(name) for turn in turns], pa.float64())
    return pa.table(columns)


def _num_sampled(episode: Trajectory) -> int | None:
    return None if episode.tokens is None else int(episode.tokens.response_mask.sum())


def to_dataset(episodes: Sequence[Trajectory], groups: Sequence[int]) -> Any:
    """See `Trajectories.to_dataset`."""
    require("to_dataset()", "datasets")
    import datasets

    table = pa.Table.from_pylist(training_rows(episodes, groups), schema=_ROWS)
    return datasets.Dataset(datasets.table.InMemoryTable(table))


def training_rows(episodes: Sequence[Trajectory], groups: Sequence[int]) -> list[dict[str, Any]]:
    """One row per segment of what did not fail and has a turn; the columns of `Trajectories.to_dataset`."""
    rows = []
    for number, segment in segments_of(episodes):
        episode, group = episodes[number], groups[number]
        if episode.failure is not None or not episode.turns:
            continue
        messages = episode.to_messages(segment)
        # Counted from the end: examples before the first observation may hold replies of an assistant's.
        first_reply = len(messages) - 2 * (len(segment.turns) - segment.num_given_turns) + 1
        rows.append(
            {
                "prompt": messages[:first_reply],
                "completion": messages[first_reply:],
                "messages": messages,
                **episode_columns(episode),
                "group": group,
                "trajectory_id": episode.trajectory_id,
                "masked_replies": given_and_masked_replies(messages, segment)[1],
            }
        )
    return rows
