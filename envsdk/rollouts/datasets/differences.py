"""Pure: the first difference between a replayed episode and its record."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from envsdk.contracts.trajectory import Outcome, Trajectory

SCORES = frozenset({"reward", "metrics", "success"})
"""Fields that differ when only rewards were changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first difference of an episode."""

    trajectory_id: str
    tag: str
    index: int
    seed: int
    turn: int | None
    """Number of the turn, from 0; None for a difference of the episode."""
    field: str
    """`observation`, `state_hash`, `reward`, `metrics`, `outcome`, `success` or `final_observation`."""
    expected: Any
    """As recorded."""
    got: Any

    def __str__(self) -> str:
        where = "" if self.turn is None else f", turn {self.turn}"
        return (
            f"episode {self.trajectory_id} ({self.tag}, index {self.index}, seed {self.seed}){where}: "
            f"{self.field}\n  recorded: {_shown(self.expected)}\n  replayed: {_shown(self.got)}"
        )


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def first_difference(
    recorded: Trajectory,
    replayed: Trajectory,
    *,
    tolerance: float = 0.0,
    ignored: frozenset[str] = frozenset(),
) -> Difference | None:
    """None when both are equal.

    Numbers differ when they are more than `tolerance` apart; NaN equals NaN. Fields in `ignored` are not
    compared. A state's hash is compared where both have one.
    """
    for turn, field, expected, got in _pairs(recorded, replayed):
        if field not in ignored and not _same(expected, got, tolerance):
            return Difference(
                trajectory_id=recorded.trajectory_id,
                tag=recorded.task.tag,
                index=recorded.task.index,
                seed=recorded.seed,
                turn=turn,
                field=field,
                expected=expected,
                got=got,
            )
    return None


def _pairs(recorded: Trajectory, replayed: Trajectory) -> Iterator[tuple[int | None, str, Any, Any]]:
    """`(turn, field, recorded, replayed)` in the order in which they happen."""
    for number, (one, other) in enumerate(zip(recorded.turns, replayed.turns, strict=False)):
        yield number, "observation", one.observation, other.observation
        if one.state_hash is not None and other.state_hash is not None:
            yield number, "state_hash", one.state_hash, other.state_hash
        yield number, "reward", one.reward, other.reward
        yield number, "metrics", dict(one.metrics), dict(other.metrics)
    num_played = len(replayed.turns)
    if num_played != len(recorded.turns) or replayed.outcome is not recorded.outcome:
        # What was seen instead of the next turn, if there is no better word for it.
        if replayed.outcome is not Outcome.FAILED and num_played < len(recorded.turns):
            expected = f"goes on to turn {num_played}"
        else:
            expected = recorded.outcome.value
        ending = replayed.outcome.value if replayed.failure is None else str(replayed.failure)
        yield max(num_played - 1, 0) if num_played else None, "outcome", expected, ending
    yield None, "final_observation", recorded.final_observation, replayed.final_observation
    yield None, "success", recorded.success, replayed.success


def _same(expected: Any, got: Any, tolerance: float) -> bool:
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        return expected.keys() == got.keys() and all(
            _same(value, got[name], tolerance) for name, value in expected.items()
        )
    if isinstance(expected, float) and isinstance(got, float):
        if math.isnan(expected) or math.isnan(got):
            return math.isnan(expected) and math.isnan(got)
        return expected == got or abs(expected - got) <= tolerance
    return bool(expected == got)
