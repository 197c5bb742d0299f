"""Metrics of one batch of rollouts. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from envsdk.algorithms.units import as_roles
from envsdk.base.display.scores import failed_kinds, too_many_failed
from envsdk.base.store.tally import results_by_role
from envsdk.contracts.players import Result
from envsdk.contracts.segments import Segment
from envsdk.contracts.trajectory import RolloutBatch, Trajectory
from envsdk.engines.tool_calls.reading import ATTEMPT, AttemptStatus, attempt_of

LATEST = 20
"""Batches over which the share of dropped tokens is taken."""
MUCH = 0.1
"""A share of dropped tokens from which a run warns."""


class DroppedTokens:
    """The share of the sampled tokens that was dropped, by tag, over the latest batches: (add)*

    Sampled are those that were dropped and those that were trained. What a group filter rejects and spare
    episodes are neither: the configuration asks for them.
    """

    def __init__(self) -> None:
        self._latest: deque[tuple[Counter[str], Mapping[str, int]]] = deque(maxlen=LATEST)
        self._is_much = False

    def add(self, batch: RolloutBatch) -> dict[str, float]:
        """The shares with this batch: `dropped_share/TAG`, and `dropped_share/mean` of all tokens."""
        trained: Counter[str] = Counter()
        for trajectory in batch.trajectories:
            trained[trajectory.task.tag] += trajectory.num_sampled_tokens
        self._latest.append((trained, batch.dropped_tokens))
        return {f"dropped_share/{tag}": share for tag, share in self._shares().items()}

    def warning(self) -> str | None:
        """A sentence when a tag's share has come to be high, once until it is low again."""
        was_much = self._is_much
        shares = self._shares()
        self._is_much = max(shares.values(), default=0.0) > MUCH and len(self._latest) >= LATEST // 2
        if was_much or not self._is_much:
            return None
        total = shares.pop("mean")
        by_tag = ", ".join(f"{tag} {share:.0%}" for tag, share in shares.items())
        return (
            f"{total:.0%} of the tokens sampled for the last {len(self._latest)} batches were dropped, most "
            f"often as too old ({by_tag}): a tag that loses more is trained on less, and within a tag long "
            "episodes are. A larger max_staleness, shorter episodes, or quicker weights for explorers help"
        )

    def _shares(self) -> dict[str, float]:
        trained: Counter[str] = Counter()
        dropped: Counter[str] = Counter()
        for of_batch, lost in self._latest:
            trained.update(of_batch)
            dropped.update(lost)
        shares = {
            tag: dropped[tag] / sampled
            for tag in sorted(trained | dropped)
            if (sampled := trained[tag] + dropped[tag])
        }
        return {**shares, "mean": dropped.total() / max(1, trained.total() + dropped.total())}


def rollout_metrics(batch: RolloutBatch) -> dict[str, float]:
    """Rewards, success, staleness, lengths and discarded tokens. Failed episodes have no reward."""
    played = [trajectory for trajectory in batch.trajectories if trajectory.failure is None]
    metrics = _scores(played) | _counts(batch.trajectories, "rollout")
    metrics |= _staleness(played, batch.version)
    metrics |= {
        "rollout/num_turns_mean": _mean(len(trajectory.turns) for trajectory in played),
        "rollout/response_tokens_mean": _mean(each.num_sampled_tokens for each in played),
        "rollout/sequence_tokens_mean": _mean(len(t.tokens) for t in played if t.tokens is not None),
        "rollout/valid_share": len(played) / max(1, len(batch.trajectories)),
        "rollout/zero_variance_groups_share": _mean(map(_has_no_variance, batch.groups)),
        "waste/tokens": float(batch.discarded_tokens),
    }
    segments = [trajectory.segments() for trajectory in played]
    if any(len(each) > 1 for each in segments):
        metrics["rollout/num_segments_mean"] = _mean(map(len, segments))
        metrics["rollout/merged_share"] = _merged_share(segments)
    if replayed := [trajectory for trajectory in played if trajectory.num_replayed]:
        metrics["prefix/episodes_share"] = len(replayed) / len(played)
        metrics["prefix/turns_mean"] = _mean(trajectory.num_replayed for trajectory in replayed)
        metrics["prefix/success"] = _mean(trajectory.success for trajectory in replayed)
    if batch.depth is not None:
        metrics["rollout/depth"] = batch.depth
    metrics |= batch.sampling
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
    for (tag, role), results in results_by_role(played).items():
        for result in Result:
            metrics[f"players/{result}/{tag}/{role}"] = results[result] / results.total()
    return metrics


def _counts(trajectories: Sequence[Trajectory], prefix: str) -> dict[str, float]:
    """Episodes with an outcome, and those without, of each tag: the numbers that a rate is of."""
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
    """Means over turns of the numbers that environments report in `info["metrics"]`, and shares of calls."""
    values: dict[str, list[float]] = defaultdict(list)
    for trajectory in played:
        for turn in (each for each in trajectory.turns if trajectory.is_own(each.role)):
            for name, value in turn.metrics.items():
                values[name].append(value)
    means = {f"env/{name}": _mean(found) for name, found in sorted(values.items()) if ATTEMPT not in name}
    return means | _call_metrics(played)


def _call_metrics(played: Sequence[Trajectory]) -> dict[str, float]:
    """Shares by tag of the turns in which calls were looked for: that tried some, and by status of these."""
    statuses: dict[str, list[AttemptStatus]] = defaultdict(list)
    for trajectory in played:
        statuses[trajectory.task.tag] += filter(None, map(attempt_of, trajectory.turns))
    metrics: dict[str, float] = {}
    for tag, found in sorted(statuses.items()):
        counts = Counter(found)
        num_tried = len(found) - counts.pop(AttemptStatus.NONE, 0)
        metrics |= {f"calls/tried/{tag}": num_tried / len(found)} if found else {}
        tried = [status for status in AttemptStatus if num_tried and status is not AttemptStatus.NONE]
        metrics |= {f"calls/{status}/{tag}": counts[status] / num_tried for status in tried}
    return metrics


def _merged_share(segments: Sequence[Sequence[Segment]]) -> float:
    """The share of the segments' tokens that another one has as well, so that they are computed once."""
    flat = [segment for each in segments for segment in each if segment.tokens is not None]
    num_tokens = sum(len(segment.tokens or ()) for segment in flat)
    return sum(segment.num_given_tokens for segment in flat) / max(1, num_tokens)


def _has_no_variance(group: Sequence[Trajectory]) -> bool:
    return all(
        len({member.total_reward for member in lived if member.failure is None}) <= 1
        for lived in as_roles(group)
    )


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return float(np.mean(found)) if found else 0.0
