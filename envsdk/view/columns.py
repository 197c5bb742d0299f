"""The columns of the index and of the viewer's list, each in one place. Pure.

A column with a `head` is shown in the list, in the order in which they stand here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from envsdk.view.sources import FileRole


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStats:
    """Statistics of one trajectory's token log."""

    num_tokens: int
    num_sampled: int
    versions: tuple[int, ...]
    """Versions that sampled its tokens, oldest first."""
    mean_logprob: float | None
    """Nats per sampled token; None when nothing was sampled."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One trajectory as its file has it."""

    row: int
    """In the file."""
    role: FileRole
    """Role of the file."""
    why: str
    """It was not used."""
    plain: Mapping[str, Any]
    """The file's columns that are neither turns nor tokens."""
    tokens: TokenStats | None

    @property
    def failure(self) -> Mapping[str, str]:
        """Empty texts where it did not fail."""
        if (failure := self.plain["failure"]) and failure["boundary"]:
            return failure  # type: ignore[no-any-return]
        unknown = "unknown" if self.plain["outcome"] == "failed" else ""
        return {"boundary": unknown, "kind": unknown, "message": ""}


@dataclass(frozen=True, slots=True)
class IndexColumn:
    """One column."""

    name: str
    """In the index, and in what the pages get."""
    get: Callable[[Stored], Any]
    head: str = ""
    form: str = "text"
    """How the list writes it: a name of `FORMS` in `assets/trajectories.js`."""
    sort: str = ""
    """Name in the URL of the order by this column."""
    of: str = ""
    """`runs`: not shown for data sets. `tokens`: only where some trajectory has tokens."""


def finite(value: float | None) -> float | None:
    """JSON has neither NaN nor infinity."""
    return value if value is not None and math.isfinite(value) else None


def _plain(name: str) -> Callable[[Stored], Any]:
    return lambda stored: stored.plain[name]


def _of_tokens(get: Callable[[TokenStats], Any]) -> Callable[[Stored], Any]:
    return lambda stored: None if stored.tokens is None else get(stored.tokens)


def _seconds(stored: Stored) -> float | None:
    return finite(stored.plain["ended_at"] - stored.plain["started_at"])


COLUMNS = (
    IndexColumn("outcome", _plain("outcome"), "Result", "result"),
    IndexColumn("tag", _plain("tag"), "Tag"),
    IndexColumn("task", _plain("index"), "Task", "task"),
    IndexColumn("use", lambda stored: stored.role.use.value, "Use", "use", of="runs"),
    IndexColumn("step", lambda stored: stored.role.step, "Step", "count", of="runs"),
    IndexColumn("reward", lambda stored: finite(stored.plain["total_reward"]), "Reward", "reward", "reward"),
    IndexColumn("turns", _plain("num_turns"), "Turns", "count", "turns"),
    IndexColumn("sampled", _of_tokens(lambda t: t.num_sampled), "Tokens", "count", "tokens", "tokens"),
    IndexColumn("logprob", _of_tokens(lambda t: t.mean_logprob), "Log-prob.", "short", "logprob", "tokens"),
    IndexColumn(
        "newest",
        _of_tokens(lambda t: max(t.versions, default=None)),
        "Versions",
        "versions",
        "version",
        "tokens",
    ),
    IndexColumn("seconds", _seconds, "Time", "seconds", "seconds"),
    IndexColumn("oldest", _of_tokens(lambda t: min(t.versions, default=None))),
    # `,3,4,`: a version is found by its commas.
    IndexColumn("versions", _of_tokens(lambda t: f",{','.join(map(str, t.versions))},")),
    IndexColumn("tokens", _of_tokens(lambda t: t.num_tokens)),
    IndexColumn("row", lambda stored: stored.row),
    IndexColumn("origin", lambda stored: stored.role.origin),
    IndexColumn("why", lambda stored: stored.why),
    IndexColumn("trajectory_id", _plain("trajectory_id")),
    IndexColumn("grp", _plain("group_id")),  # `group` is a word of SQL
    IndexColumn("split", _plain("split")),
    IndexColumn("task_name", lambda stored: stored.plain.get("task_name") or ""),
    IndexColumn("success", _plain("success")),
    IndexColumn("boundary", lambda stored: stored.failure["boundary"]),
    IndexColumn("failure", lambda stored: stored.failure["kind"]),
    IndexColumn("message", lambda stored: stored.failure["message"]),
)
"""Columns of the index's table, besides the id and the file."""


def list_columns() -> list[dict[str, str]]:
    """What the page needs to draw the list."""
    names = ("name", "head", "form", "sort", "of")
    return [{name: getattr(each, name) for name in names} for each in COLUMNS if each.head]
