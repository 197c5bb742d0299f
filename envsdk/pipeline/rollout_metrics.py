"""Metrics of one batch of rollouts. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from envsdk.display.scores import failed_kinds, too_many_failed
from envsdk.managers.rollout_batch import RolloutBatch
from envsdk.trajectory import Trajectory


def rollout_metrics(batch: RolloutBatch) -> dict[str, float]:
    """Rewards, success, staleness, lengths and discarded tokens. Failed episodes have no reward."""
    played = [trajectory for trajectory in batch.trajectories if trajectory.failure is None]
    metrics = _scores(played) | _counts(batch.trajectories, "rollout")
    metrics |= _staleness(played, batch.version)
    metrics |= {
        "rollout/num_turns_mean": _mean(len(trajectory.turns) for trajectory in played),
        "rollout/response_tokens_mean": _mean(map(num_sampled_tokens, played)),
        "rollout/sequence_tokens_mean": _mean(len(t.tokens) for t in played if t.tokens is not None),
        "rollout/valid_share": len(played) / max(1, len(batch.trajectories)),
        "rollout/zero_variance_groups_share": _mean(map(_has_no_variance, batch.groups)),
        "waste/tokens": float(batch.discarded_tokens),
    }
    if batch.depth is not None:
        metrics["rollout/depth"] = batch.depth
    metrics |= _turn_metrics(played)
    metrics |= {f"ledger/{name}": float(count) for name, count in batch.ledger_counts.items()}
    metrics |= {f"filter/{name}": float(count) for name, count in batch.filtered.items()}
    metrics |= {f"failures/{kind}": float(count) for kind, count in batch.failures.items()}
    metrics |= {f"workers/{name}": float(count) for name, count in batch.workers.items()}
    metrics |= {f"without_episodes/{tag}": 1.0 for tag in batch.failing_tags}
    return metrics


def validation_metrics(batch: RolloutBatch) -> dict[str, float]:
    """`val/...` over the frozen task list."""
    played = [trajectory for trajectory in batch.trajectories if trajectory.failure is None]
    metrics = {f"val/{name}": value for name, value in _scores(played).items()}
    metrics |= _counts(batch.trajectories, "val")
    metrics["val/episodes"] = float(len(played))
    metrics["val/failed"] = float(len(batch.trajectories) - len(played))
    metrics["val/num_turns_mean"] = _mean(len(trajectory.turns) for trajectory in played)
    kinds = Counter(
        f"{failure.boundary}/{failure.kind}" for t in batch.trajectories if (failure := t.failure) is not None
    )
    metrics |= {f"val/failures/{kind}": float(count) for kind, count in kinds.items()}
    metrics |= {f"val/{name}": value for name, value in _turn_metrics(played).items()}
    return metrics


def validation_problem(metrics: Mapping[str, float], max_failed_share: float) -> str:
    """Why an evaluation with these `val/...` counts for nothing; empty where it does count."""
    num_failed = int(metrics["val/failed"])
    num_episodes = int(metrics["val/episodes"]) + num_failed
    return too_many_failed(num_failed, num_episodes, max_failed_share, failed_kinds(metrics))


def num_sampled_tokens(trajectory: Trajectory) -> int:
    """Tokens the policy wrote."""
    return 0 if trajectory.tokens is None else int(trajectory.tokens.response_mask.sum())


def _scores(played: Sequence[Trajectory]) -> dict[str, float]:
    """`reward/...` and `success/...`; the mean over tags weighs each tag the same."""
    by_tag: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in played:
        by_tag[trajectory.task.tag].append(trajectory)
    metrics: dict[str, float] = {}
    for tag, members in sorted(by_tag.items()):
        metrics[f"reward/{tag}"] = _mean(member.total_reward for member in members)
        metrics[f"success/{tag}"] = _mean(member.success for member in members)
    for name in ("reward", "success") if by_tag else ():
        metrics[f"{name}/mean"] = _mean(metrics[f"{name}/{tag}"] for tag in by_tag)
    return metrics


def _counts(trajectories: Sequence[Trajectory], prefix: str) -> dict[str, float]:
    """Of each tag the episodes with an outcome, and those without: what a rate is of."""
    scored, failed = Counter[str](), Counter[str]()
    for trajectory in trajectories:
        (scored if trajectory.failure is None else failed)[trajectory.task.tag] += 1
    return {
        f"{prefix}/{name}/{tag}": float(counts[tag])
        for tag in sorted({*scored, *failed})
        for name, counts in (("num_scored", scored), ("num_failed", failed))
    }


def _staleness(played: Sequence[Trajectory], version: int) -> dict[str, float]:
    ages = [version - oldest for t in played if (oldest := t.oldest_version) is not None]
    if not ages:
        return {}
    counts = {f"staleness/count_{age}": float(count) for age, count in sorted(Counter(ages).items())}
    return {"staleness/mean": float(np.mean(ages)), "staleness/max": float(max(ages)), **counts}


def _turn_metrics(played: Sequence[Trajectory]) -> dict[str, float]:
    """Means over turns of the numbers that environments report in `info["metrics"]`."""
    values: dict[str, list[float]] = defaultdict(list)
    for trajectory in played:
        for turn in trajectory.turns:
            for name, value in turn.metrics.items():
                values[name].append(value)
    return {f"env/{name}": _mean(found) for name, found in sorted(values.items())}


def _has_no_variance(group: Sequence[Trajectory]) -> bool:
    return len({member.total_reward for member in group if member.failure is None}) <= 1


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return float(np.mean(found)) if found else 0.0
