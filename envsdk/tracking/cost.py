"""What rollouts use and what that costs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from envsdk.config.prices import Prices
from envsdk.contracts.segments import prompt_lengths
from envsdk.contracts.trajectory import Trajectory, Turn

TOTAL = "cost/total"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What was used; usages add up."""

    input_tokens: int = 0
    """Prompt tokens of all requests: each prompt counts in full, also where an engine computed it before."""
    output_tokens: int = 0
    env_s: float = 0.0
    """In environments' `reset` and `step`."""
    sandbox_s: float = 0.0
    judge_input_tokens: int = 0
    judge_output_tokens: int = 0
    judge_cost: float = 0.0
    """Cost by the judge's own prices."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            **{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(Usage)}
        )


def turn_usages(turns: Sequence[Turn]) -> list[Usage]:
    """Usage of each turn: one request and the step after it."""
    return list(map(_turn_usage, turns, prompt_lengths(turns)))


def _turn_usage(turn: Turn, num_prompt_tokens: int) -> Usage:
    return Usage(
        input_tokens=num_prompt_tokens,
        output_tokens=turn.response_end - turn.response_start,
        env_s=turn.env_s,
        sandbox_s=turn.metrics.get("sandbox_s", 0.0),
        judge_input_tokens=round(turn.metrics.get("judge_input_tokens", 0.0)),
        judge_output_tokens=round(turn.metrics.get("judge_output_tokens", 0.0)),
        judge_cost=turn.metrics.get("judge_cost", 0.0),
    )


def usage_of(trajectories: Iterable[Trajectory]) -> Usage:
    """Usage of episodes, failed ones included. Tokens of a turn that was not finished are not known."""
    found = Usage()
    for trajectory in trajectories:
        own = sum(turn_usages(trajectory.turns), start=Usage())
        found += own + Usage(env_s=trajectory.env_s - own.env_s)
    return found


def tokens_cost(usage: Usage, prices: Prices) -> float:
    """Money for the policy's tokens."""
    return (usage.input_tokens * prices.policy.input + usage.output_tokens * prices.policy.output) / 1e6


class CostMeter:
    """Adds up a run's usage: (add)* -> step, again for every step.

    Owner: the step log.
    """

    def __init__(self, prices: Prices | None, *, num_gpus: int, num_cpus: int, total: float = 0.0) -> None:
        self._prices = prices
        self._num_gpus = num_gpus
        self._num_cpus = num_cpus
        self._total = total
        """Money since the start of the run, by earlier processes too."""
        self._usage = Usage()

    def add(self, usage: Usage) -> None:
        """Count what was used since the step before."""
        self._usage += usage

    def step(self, seconds: float) -> dict[str, float]:
        """Metrics of what was used since the step before, which is `seconds` ago."""
        usage, self._usage, prices = self._usage, Usage(), self._prices
        gpu_hours, cpu_hours = (count * seconds / 3600 for count in (self._num_gpus, self._num_cpus))
        used = {each.name: float(getattr(usage, each.name)) for each in fields(Usage)}
        metrics = {
            f"cost/{name}": value
            for name, value in used.items()
            if value or name in ("input_tokens", "output_tokens", "env_s")
        } | {"cost/gpu_hours": gpu_hours, "cost/cpu_hours": cpu_hours}
        if prices is None:
            return metrics
        money = {
            "policy": tokens_cost(usage, prices),
            "judges": usage.judge_cost,
            "gpus": gpu_hours * prices.gpu_hour,
            "cpus": cpu_hours * prices.cpu_hour,
            "sandboxes": usage.sandbox_s / 3600 * prices.sandbox_hour,
        }
        step = sum(money.values())
        self._total += step
        metrics.pop("cost/judge_cost", None)
        return (
            metrics
            | {f"cost/{name}": value for name, value in money.items()}
            | {"cost/step": step, TOTAL: self._total}
        )
