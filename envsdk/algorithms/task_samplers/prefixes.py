"""Prefix sampling: groups that nearly always fail begin further on, those that always pass further off. Pure.

    prefix_of(group)* -> observe(the groups of a batch) -> state

A group's episodes begin with the same replayed turns: those of a successful episode give a head start, those
of a failed one a handicap. Each tag has a level in [-1, 1]: the share of that episode that is replayed,
negative for failed ones. It is steered towards a success rate of `target`, after each group that was replayed
so far and had success rate p:

    level <- clip(level + gain (target - p)), which does not cross 0

At 0 groups begin at the beginning, until the latest `window` episodes of the tag succeeded at a rate up to
`low`, or of at least `high`. Source: pass-rate control by prefix sampling, arXiv:2605.05112.

Owner: the scheduler. What a group replays is decided once: its members, and the run that is continued, share
it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from envsdk.algorithms.task_samplers.scored import Share
from envsdk.base.settings.strict import StrictSettings
from envsdk.contracts.trajectory import Task


class PrefixArgs(StrictSettings):
    """`prefix_sampling`."""

    source: Literal["own", "oracle"] = "own"
    """Whose episodes are replayed: the run's own latest ones of the task, for which a task sampler has to
    return to tasks; or the environment's oracle, which gives head starts alone."""
    target: Share = 0.5
    """Success rate that is steered to."""
    gain: PositiveFloat = 0.25
    """How far a group moves its tag's level: this times its distance to the target."""
    low: Share = 0.1
    """Success rate of a tag up to which its groups get head starts."""
    high: Share = 0.9
    """Success rate of a tag from which on they get handicaps."""
    window: PositiveInt = 32
    """Latest episodes of a tag from its beginning that must have been played before that is said."""
    kept: PositiveInt = Field(64, le=4096)
    """Tasks of each tag whose latest successful and latest failed episode are kept to be replayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """What the members of a group replay."""

    replies: Sequence[str] = ()
    """Replies of the turns, in order. Empty: the oracle's."""
    share: float = 0.0
    """Share of the oracle's turns that is replayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedEpisode:
    """A member of a group that has an outcome."""

    success: bool
    replies: Sequence[str]
    """Replies of all its turns, replayed ones included."""


class PrefixSampling:
    """See the module."""

    def __init__(self, args: PrefixArgs, state: Mapping[str, Any] | None = None) -> None:
        self.args = args
        saved = state or {}
        self.levels: dict[str, float] = dict(saved.get("levels", {}))
        """Levels by tag."""
        self._windows = {tag: deque(each, args.window) for tag, each in saved.get("windows", {}).items()}
        self._kept: dict[str, dict[str, list[str]]] = {
            key: dict(each) for key, each in saved.get("kept", {}).items()
        }
        """Replies by task, the latest task last, by tag and outcome."""
        self._decided: dict[int, Prefix | None] = {
            int(group): None if each is None else Prefix(replies=tuple(each["replies"]), share=each["share"])
            for group, each in saved.get("decided", {}).items()
        }
        """Prefixes of the groups that are not over."""

    def prefix_of(self, group_id: int, task: Task) -> Prefix | None:
        """What this group replays; None: it begins at the beginning."""
        if group_id not in self._decided:
            self._decided[group_id] = self._decide(task)
        return self._decided[group_id]

    def observe(self, group_id: int, task: Task, episodes: Sequence[EndedEpisode]) -> None:
        """A group is over. Groups of a batch come in the order of their ids."""
        prefix = self._decided.pop(group_id, None)
        if not episodes:
            return
        tag, args = task.tag, self.args
        rate, level = sum(each.success for each in episodes) / len(episodes), self.levels.get(tag, 0.0)
        if prefix is not None and level:
            moved = level + args.gain * (args.target - rate)
            self.levels[tag] = min(1.0, max(0.0, moved)) if level > 0 else max(-1.0, min(0.0, moved))
        elif prefix is None and not level:
            window = self._windows.setdefault(tag, deque(maxlen=args.window))
            window.extend(each.success for each in episodes)
            self.levels[tag] = self._first_level(window)
        if self.levels.get(tag):
            self._windows.pop(tag, None)  # what was played at another level says nothing later
        if args.source == "own":
            for each in episodes:
                self._keep(f"{tag}/{each.success}", str(task.index), each.replies)

    def drop(self, living: Sequence[int]) -> None:
        """Groups that are neither among `living` nor observed were dropped."""
        self._decided = {group: each for group, each in self._decided.items() if group in living}

    def state(self) -> dict[str, Any]:
        """Everything that it has learned, as plain JSON types."""
        return {
            "levels": self.levels,
            "windows": {tag: list(window) for tag, window in self._windows.items()},
            "kept": self._kept,
            "decided": {
                str(group): None if each is None else asdict(each) for group, each in self._decided.items()
            },
        }

    def _first_level(self, window: Sequence[bool]) -> float:
        args = self.args
        if len(window) < args.window:
            return 0.0
        rate = sum(window) / len(window)
        has_handicaps = args.source == "own"
        return args.gain if rate <= args.low else -args.gain if rate >= args.high and has_handicaps else 0.0

    def _decide(self, task: Task) -> Prefix | None:
        level = self.levels.get(task.tag, 0.0)
        if not level:
            return None
        if self.args.source == "oracle":
            return Prefix(share=level)
        replies = self._kept.get(f"{task.tag}/{level > 0}", {}).get(str(task.index), [])
        number = num_replayed(len(replies), abs(level))
        return Prefix(replies=tuple(replies[:number])) if number else None

    def _keep(self, key: str, task: str, replies: Sequence[str]) -> None:
        kept = self._kept.setdefault(key, {})
        kept.pop(task, None)
        kept[task] = list(replies)
        if len(kept) > self.args.kept:
            del kept[next(iter(kept))]


def num_replayed(num_turns: int, share: float) -> int:
    """How many of the turns of an episode are replayed: not the last one."""
    return max(0, min(num_turns - 1, round(share * num_turns)))
