"""Counting how episodes went, by tag: what `collect` writes into its manifest and `evaluate` prints."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from envsdk.base.display.scores import Score
from envsdk.contracts.players import Result
from envsdk.contracts.trajectory import Outcome, Trajectory

UNSCORABLE = "unscorable"
"""Metric of a turn: 1 where the reward function failed on the response, which counts as wrong."""
MAX_NAMED = 500
"""Tasks that are named of those that fail in one way."""
Z_95 = 1.959963984540054
"""97.5th percentile of the normal distribution."""


def wilson_interval(num_successes: float, num_trials: float) -> tuple[float, float]:
    """The 95% confidence interval of a success rate.

    Wilson (1927), "Probable inference, the law of succession, and statistical inference": with
    p = successes / n, (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n). Unlike the normal
    interval it stays within [0, 1] and has a width at p = 0 and p = 1. (0, 1) without a trial.
    """
    if num_trials == 0:
        return 0.0, 1.0
    rate = num_successes / num_trials
    z2_n = Z_95**2 / num_trials
    center = rate + z2_n / 2
    spread = Z_95 * math.sqrt(rate * (1 - rate) / num_trials + z2_n / (4 * num_trials))
    low, high = (center - spread) / (1 + z2_n), (center + spread) / (1 + z2_n)
    # At the ends the formula is exact and floating point is not.
    return 0.0 if num_successes == 0 else low, 1.0 if num_successes == num_trials else high


def unscorable(trajectories: Iterable[Trajectory]) -> str:
    """A sentence where responses count as wrong because scoring them failed, with one reason; or empty."""
    turns = [turn for each in trajectories for turn in each.turns if UNSCORABLE in turn.metrics]
    failed = [turn for turn in turns if turn.metrics[UNSCORABLE]]
    if not failed:
        return ""
    why = json.loads(failed[0].details or "{}").get("verdict", "")
    count = f"{len(failed)} of {len(turns)} responses"
    return f"{count} count as wrong because scoring them failed; the first: {why}"


def results_by_role(trajectories: Iterable[Trajectory]) -> dict[tuple[str, str], Counter[Result]]:
    """How episodes with an outcome went for the roles that the policy plays, by tag and role."""
    found: dict[tuple[str, str], Counter[Result]] = {}
    for trajectory in trajectories:
        for role in trajectory.own_roles if trajectory.failure is None else ():
            found.setdefault((trajectory.task.tag, role), Counter())[trajectory.result_of(role)] += 1
    return found


@dataclass(slots=True)
class Tally:
    """Counts of some episodes. Failed episodes have no outcome: they count in nothing but `failures`.

    add* -> merge* -> to_json
    """

    num_episodes: int = 0
    """Failed ones included."""
    num_successes: int = 0
    num_failed: int = 0
    num_turns: int = 0
    """Turns of episodes with an outcome."""
    total_reward: float = 0.0
    """Reward of episodes with an outcome."""
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    """Failures by `boundary/kind`."""
    messages: dict[str, dict[str, str]] = field(default_factory=dict)
    """First message of each task that failed, by kind and label; MAX_NAMED tasks of a kind at most."""

    def add(self, trajectory: Trajectory) -> None:
        self.num_episodes += 1
        self.outcomes[trajectory.outcome.value] += 1
        failure = trajectory.failure
        if trajectory.outcome is Outcome.FAILED:
            self.num_failed += 1
            kind = "unknown/unknown" if failure is None else f"{failure.boundary}/{failure.kind}"
            self.failures[kind] += 1
            self._name(kind, {trajectory.label: "" if failure is None else failure.message})
            return
        self.num_successes += trajectory.success
        self.num_turns += len(trajectory.turns)
        self.total_reward += trajectory.total_reward

    def merge(self, other: Tally) -> None:
        self.num_episodes += other.num_episodes
        self.num_successes += other.num_successes
        self.num_failed += other.num_failed
        self.num_turns += other.num_turns
        self.total_reward += other.total_reward
        self.outcomes.update(other.outcomes)
        self.failures.update(other.failures)
        for kind, messages in other.messages.items():
            self._name(kind, messages)

    def _name(self, kind: str, messages: Mapping[str, str]) -> None:
        known = self.messages.setdefault(kind, {})
        for label, message in messages.items():
            if len(known) < MAX_NAMED:
                known.setdefault(label, message)

    @property
    def num_scored(self) -> int:
        """Episodes with an outcome."""
        return self.num_episodes - self.num_failed

    @property
    def success_rate(self) -> float | None:
        """Among episodes with an outcome; None when there is none."""
        return self.num_successes / self.num_scored if self.num_scored else None

    @property
    def score(self) -> Score:
        """The success rate with what it is of, for a person."""
        return Score.counted(self.num_successes, self.num_episodes, self.num_failed)

    @property
    def mean_reward(self) -> float | None:
        """Mean total reward of episodes with an outcome; None when there is none."""
        return self.total_reward / self.num_scored if self.num_scored else None

    @property
    def mean_turns(self) -> float | None:
        """Mean number of turns of episodes with an outcome; None when there is none."""
        return self.num_turns / self.num_scored if self.num_scored else None

    def cells(self, interval: tuple[float, float], *, thousands: str = "") -> list[str]:
        """What tables show: episodes, success, its interval, reward, turns, failures."""
        low, high = interval
        rate, reward, turns = self.success_rate, self.mean_reward, self.mean_turns
        # The columns beside it say of how many, unless some failed.
        of = f" of {self.num_scored:{thousands}}" if self.num_failed else ""
        return [
            f"{self.num_episodes:{thousands}}",
            ("-" if rate is None else f"{rate:.1%}") + of,
            "-" if rate is None else f"{100 * low:.1f}-{high:.1%}",
            "-" if reward is None else f"{reward:.3f}",
            "-" if turns is None else f"{turns:.1f}",
            f"{self.num_failed:{thousands}}",
        ]

    def to_json(self) -> dict[str, Any]:
        """For a manifest or a results file; `from_json` reads it back."""
        return {
            "episodes": self.num_episodes,
            "successes": self.num_successes,
            "failed": self.num_failed,
            "turns": self.num_turns,
            "total_reward": self.total_reward,
            "success_rate": self.success_rate,
            "outcomes": dict(sorted(self.outcomes.items())),
            "failures": {
                kind: {"count": count, "tasks": self.messages[kind]}
                for kind, count in sorted(self.failures.items())
            },
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Tally:
        return cls(
            num_episodes=value["episodes"],
            num_successes=value["successes"],
            num_failed=value["failed"],
            num_turns=value["turns"],
            total_reward=value["total_reward"],
            outcomes=Counter(value["outcomes"]),
            failures=Counter({kind: entry["count"] for kind, entry in value["failures"].items()}),
            messages={
                kind: entry.get("tasks") or {"": entry["example"]}
                for kind, entry in value["failures"].items()
            },
        )

    @classmethod
    def of(cls, trajectories: Iterable[Trajectory]) -> Tally:
        tally = cls()
        for trajectory in trajectories:
            tally.add(trajectory)
        return tally

    @classmethod
    def sum(cls, tallies: Iterable[Tally]) -> Tally:
        total = cls()
        for tally in tallies:
            total.merge(tally)
        return total

    def describe_failures(self) -> str:
        """For a message: `3 x environment/step_raised (ValueError: ...)`, the most frequent first."""
        return "; ".join(
            f"{count} x {kind} ({next(iter(self.messages[kind].values()))})"
            for kind, count in self.failures.most_common(3)
        )

    def failed_tasks(self) -> Iterator[str]:
        """Lines that name every task that failed, by kind and message, the most frequent kind first."""
        for kind, count in self.failures.most_common():
            tasks = self.messages[kind]
            yield f"failed: {count} x {kind}"
            for message in dict.fromkeys(tasks.values()):
                yield f"  {', '.join(label for label in tasks if tasks[label] == message)}: {message}"
            if len(tasks) == MAX_NAMED:
                yield f"  further tasks are not named: look for {kind} with envsdk view"
