"""Which trajectories to show: a filter, from the parameters of a URL to SQL. Pure.

    filter = Filter.from_params({"tag": "Sokoban", "success": "no", "q": "push box", "sort": "-reward"})
    where, values = filter.where()

`assets/filters.js` does the same on the trajectories of an exported page.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from envsdk.view.columns import COLUMNS

SORTS = {"id": "t.id"} | {each.sort: f"t.{each.name}" for each in COLUMNS if each.sort}
"""Name in the URL and the column; a leading `-` reverses the order."""

RESULTS = ("yes", "no", "failed")
"""`success`: solved, not solved, or without an outcome."""

MAX_LIMIT = 500

MIN_PREFIX = 3
"""Characters that a word needs to match longer words: shorter ones match too many."""

_RANGES = {"reward": "t.reward", "turns": "t.turns", "tokens": "t.sampled", "step": "t.step"}


class FilterError(ValueError):
    """A parameter makes no sense; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """The conditions; empty fields are none."""

    text: str = ""
    """Words that must all occur, phrases in double quotes; the last may be the beginning of a longer one."""
    tag: str = ""
    use: str = ""
    success: str = ""
    """One of `RESULTS`."""
    failure: str = ""
    """`boundary` or `boundary/kind`."""
    version: int | None = None
    """A version that sampled at least one of its tokens."""
    task: str = ""
    """`split/index`."""
    group: str = ""
    """`origin/number`."""
    ranges: tuple[tuple[str, float, float], ...] = ()
    """`(name, least, most)`, both included."""
    sort: str = "id"
    offset: int = 0
    limit: int = 50

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> Self:
        """Filters from a URL's parameters, unknown ones ignored. Raises FilterError."""
        sort = params.get("sort") or "id"
        if sort.removeprefix("-") not in SORTS:
            raise FilterError(f"sort: {sort!r} is not one of {', '.join(SORTS)}")
        success = params.get("success", "")
        if success and success not in RESULTS:
            raise FilterError(f"success: {success!r} is not one of {', '.join(RESULTS)}")
        version = params.get("version", "").strip()
        ranges = []
        for name in _RANGES:
            least, most = params.get(f"{name}_min", ""), params.get(f"{name}_max", "")
            if least.strip() or most.strip():
                low, high = _number(f"{name}_min", least, -math.inf), _number(f"{name}_max", most, math.inf)
                ranges.append((name, low, high))
        return cls(
            text=params.get("q", "").strip(),
            tag=params.get("tag", ""),
            use=params.get("use", ""),
            success=success,
            failure=params.get("failure", ""),
            version=_whole("version", version) if version else None,
            task=params.get("task", ""),
            group=params.get("group", ""),
            ranges=tuple(ranges),
            sort=sort,
            offset=max(0, _whole("offset", params.get("offset") or "0")),
            limit=min(MAX_LIMIT, max(1, _whole("limit", params.get("limit") or "50"))),
        )

    @property
    def match(self) -> str:
        """`text` as an FTS5 expression; empty when it holds no word."""
        return match_expression(self.text)

    def where(self, *, without: str = "") -> tuple[str, list[Any]]:
        """A condition on table `t` and its values; `without` leaves one field out, for counting by it.

        The text is not in it: see `match`.
        """
        conditions: list[str] = []
        values: list[Any] = []

        def add(name: str, condition: str, *found: Any) -> None:
            if name != without:
                conditions.append(condition)
                values.extend(found)

        if self.tag:
            add("tag", "t.tag = ?", self.tag)
        if self.use:
            add("use", "t.use = ?", self.use)
        if self.success == "failed":
            add("success", "t.outcome = 'failed'")
        elif self.success:
            add("success", "t.outcome <> 'failed' AND t.success = ?", int(self.success == "yes"))
        if self.failure:
            boundary, _, kind = self.failure.partition("/")
            add("failure", "t.boundary = ?", boundary)
            if kind:
                add("failure", "t.failure = ?", kind)
        if self.version is not None:
            between = "? BETWEEN t.oldest AND t.newest AND instr(t.versions, ?) > 0"
            add("version", between, self.version, f",{self.version},")
        if self.task:
            split, _, index = self.task.rpartition("/")
            add("task", "t.split = ? AND t.task = ?", split, _whole("task", index))
        if self.group:
            origin, _, number = self.group.rpartition("/")
            add("group", "t.origin = ? AND t.grp = ?", origin, _whole("group", number))
        for name, low, high in self.ranges:
            if low > -math.inf:
                add(name, f"{_RANGES[name]} >= ?", low)
            if high < math.inf:
                add(name, f"{_RANGES[name]} <= ?", high)
        return " AND ".join(conditions) or "1", values

    def order(self) -> str:
        """The ORDER BY clause; ties are in the order of writing."""
        column = SORTS[self.sort.removeprefix("-")]
        direction = "DESC" if self.sort.startswith("-") else "ASC"
        return f"{column} {direction} NULLS LAST, t.id {direction}"


def match_expression(text: str) -> str:
    """The typed text as an FTS5 expression without operators.

    `push "the box" lef` becomes `"push" AND "the box" AND "lef"*`.
    """
    text = text.replace("\0", " ")  # ends a string in C
    terms = [quoted or word for quoted, word in re.findall(r'"([^"]*)"|([^\s"]+)', text)]
    kept = [term for term in terms if re.search(r"\w", term)]
    if not kept:
        return ""
    is_open = not text.rstrip().endswith('"') and len(terms[-1]) >= MIN_PREFIX and kept[-1] is terms[-1]
    return " AND ".join(f'"{term}"' for term in kept) + ("*" if is_open else "")


def _number(name: str, text: str, default: float) -> float:
    if not text.strip():
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise FilterError(f"{name}: {text!r} is not a number")
    return value


def _whole(name: str, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise FilterError(f"{name}: {text!r} is not a whole number") from None
    if abs(value) >= 2**63:
        raise FilterError(f"{name}: {text!r} is too large")
    return value
