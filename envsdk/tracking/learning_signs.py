"""Signs in a run's metrics that it does not learn, in words and with what to try. Pure.

signs = LearningSigns()
for row in metrics:
    notes += signs.step(row)         # each sign is reported once
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import fmean, median

from envsdk.contracts.trajectory import Trajectory

STREAK = 2
"""Steps in a row without anything to learn, after which that is reported."""
WINDOW = 10
"""Steps over which most groups teach nothing."""
MOST_GROUPS = 0.8
"""Mean share of groups with equal rewards over the window."""
ENTROPY_STEPS = 5
"""The entropy at the start, and now, is the median of so many steps."""
ENTROPY_KEPT = 0.2
"""An entropy that fell to less than this part of what it was has collapsed ..."""
LOW_ENTROPY = 0.3
"""... if it is below so many nats."""
SOLVED = 0.95
"""With so much success there is little left to learn, and nothing wrong with a sure policy."""

MOSTLY_SOLVED = 0.7
"""With so much success, groups are equal because they succeed, not because they fail."""

_ZERO = 1e-6
_EQUAL = "rollout/zero_variance_groups_share"
_ENTROPY = "actor/behavior_entropy"
_VALID = ("env/action_is_valid", "val/env/action_is_valid")

_RAISE_VARIETY = (
    "easier tasks, larger groups (train_env_manager.group_size), a higher temperature "
    "(actor_infer.generating_args.temperature), more demonstrations for the tiny policy "
    "(warm_start.num_episodes), or a stronger model (pretrain)"
)
_UNREAD = (
    "say in custom_envs.TAG.agent_system_template what a reply looks like, give more tokens "
    "(max_tokens_per_step), more demonstrations (warm_start.num_episodes), or a stronger model (pretrain)"
)


class LearningSigns:
    """Reads the rows of a run's metrics in order: step*. Each sign is reported once."""

    def __init__(self) -> None:
        self._reported: set[str] = set()
        self._shares: deque[float] = deque(maxlen=WINDOW)
        """Share of each step's groups with equal rewards, where their advantages are 0."""
        self._entropies: list[float] = []
        """The first few, from which it fell."""
        self._newest: deque[float] = deque(maxlen=ENTROPY_STEPS)

    def step(self, metrics: Mapping[str, float]) -> list[str]:
        """Signs that are seen for the first time, in sentences."""
        known = {name: value for name, value in metrics.items() if math.isfinite(value)}
        signs = {
            "equal": self._equal_rewards(known),
            "entropy": self._entropy(known),
            "unread": _no_action(known),
        }
        found = {name: text for name, text in signs.items() if text and name not in self._reported}
        self._reported |= found.keys()
        return list(found.values())

    def _equal_rewards(self, known: Mapping[str, float]) -> str:
        if _EQUAL not in known:
            return ""
        share = known[_EQUAL] if _teaches_by_groups(known) else 0.0
        self._shares.append(min(max(share, 0.0), 1.0))
        shares = list(self._shares)
        num_empty, mean = shares.count(1.0), fmean(shares)
        if shares[-STREAK:] == [1.0] * STREAK:
            mean_reward = f" (mean {known['reward/mean']:.2f})" if "reward/mean" in known else ""
            found = f"in the last {STREAK} steps every group had equal rewards{mean_reward}"
        elif len(shares) == WINDOW and (mean >= MOST_GROUPS or 2 * num_empty > WINDOW):
            found = f"over the last {WINDOW} steps {mean:.0%} of the groups had equal rewards"
        else:
            return ""
        if known.get("success/mean", 0.0) >= MOSTLY_SOLVED:
            return (
                f"most episodes are solved, and {found}, so there is little left to learn: end the run here, "
                "take harder tasks, or let a task_sampler such as learnability choose them"
            )
        return (
            f"{found}: nothing can be learned from those. Try {_RAISE_VARIETY}; "
            "`group_filters: [zero_variance]` plays others in their place"
        )

    def _entropy(self, known: Mapping[str, float]) -> str:
        if _ENTROPY not in known:
            return ""
        self._newest.append(known[_ENTROPY])
        if len(self._entropies) < ENTROPY_STEPS:
            self._entropies.append(known[_ENTROPY])
            return ""
        before, now = median(self._entropies), median(self._newest)
        is_done = known.get("success/mean", 0.0) >= SOLVED
        if is_done or not now < min(LOW_ENTROPY, ENTROPY_KEPT * before):
            return ""
        return (
            f"the entropy of sampled tokens fell from {before:.2f} to {now:.2f} nats: the policy hardly "
            "varies its replies, and finds nothing new. Try a checkpoint from before with a lower "
            "learning_rate, entropy_loss_coef above 0, a higher temperature "
            "(actor_infer.generating_args.temperature), pg_variant: dapo, or use_kl_loss"
        )


def _teaches_by_groups(known: Mapping[str, float]) -> bool:
    """Whether equal rewards in a group mean no advantages: not with a critic, nor without a baseline."""
    largest = max(abs(known.get("advantage/min", 0.0)), abs(known.get("advantage/max", 0.0)))
    if known[_EQUAL] == 1.0:
        return largest <= _ZERO
    return known.get("advantage/zero_share", 1.0) > 0.0


def _no_action(known: Mapping[str, float]) -> str:
    for name in _VALID:
        if known.get(name) == 0.0:
            where = "of the evaluation" if name.startswith("val/") else "of the batch"
            return f"no reply {where} held an action that its environment could read: {_UNREAD}"
    return ""


def no_action_read(trajectories: Sequence[Trajectory]) -> str:
    """A sentence when no reply held an action that its environment could read; else, or unknown, empty."""
    turns = [turn for each in trajectories for turn in each.turns if "action_is_valid" in turn.metrics]
    if not turns or any(turn.metrics["action_is_valid"] for turn in turns):
        return ""
    shown = " ".join(turns[0].reply.split())
    example = shown if len(shown) <= 80 else f"{shown[:80]}..."
    return (
        f"none of {len(turns)} replies held an action that its environment could read, such as {example!r}: "
        f"{_UNREAD}"
    )


def signs_of(metrics: Sequence[Mapping[str, float]]) -> list[tuple[int, str]]:
    """All signs of a run, each with the step (from 1) after which it was seen."""
    signs = LearningSigns()
    return [(int(row["step"]) + 1, text) for row in metrics for text in signs.step(row)]
