"""What advantages are computed from and what comes out, one trajectory at a time. Pure NumPy.

Shapes: K turns, T tokens of one sequence, n of them sampled by the policy, S steps. A step is what
returns are discounted over: a turn, an unbroken run of sampled tokens (segment), or one sampled token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from envsdk.contracts.trajectory import Outcome, Trajectory, Turn

Floats = NDArray[np.float64]
StepLevel = Literal["turn", "reply", "segment", "token"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageSample:
    """What the advantages of one trajectory are computed from."""

    group_id: int
    response_mask: NDArray[np.int8]
    """`[T]`, 1 where the policy sampled the token."""
    turn_rewards: Sequence[float]
    """`[K]`, as far as they are normalized and clipped; `turns` have them as the environment gave them."""
    turn_spans: Sequence[tuple[int, int]]
    """`[K]`: first token of each reply and one past its last; equal when the reply is empty."""
    valid: bool = True
    """False when the episode failed."""
    learns: bool = True
    """False when a mask leaves it out of the loss: its reward counts in its group, its tokens nowhere."""
    tag: str = ""
    success: bool = False
    """Whether the task was solved; counts towards the difficulty of its group."""
    turns: Sequence[Turn] = ()
    """`[K]`, as they were played; `Turn.metrics` has the numbers of the step's `info["metrics"]`."""
    state_hashes: Sequence[str] | None = None
    """`[K]`: of the state each turn was played in, where the estimator needs them."""
    logprobs: NDArray[np.float32] | None = None
    """`[T]` under the policy; needed for a KL penalty (`init_kl_coef`)."""
    reference_logprobs: NDArray[np.float32] | None = None
    """`[T]` under the frozen reference; needed for a KL penalty."""
    values: NDArray[np.float32] | None = None
    """`[T]`, as `Trainer.values` gives them: entry t is the value before token t. There where the estimator
    needs them."""
    last_value: float = 0.0
    """Value after the last token, for an episode that was cut off rather than ended."""
    token_rewards: NDArray[np.float64] | None = None
    """`[T]`, 0 where the mask is 0: what single tokens earn in addition to the turns' rewards. An
    estimator finds the KL penalty here."""

    @classmethod
    def of(
        cls,
        trajectory: Trajectory,
        *,
        logprobs: NDArray[np.float32] | None = None,
        reference_logprobs: NDArray[np.float32] | None = None,
        values: NDArray[np.float32] | None = None,
    ) -> Self:
        """A trajectory and the scores that models gave its tokens.

        `logprobs` and `reference_logprobs` are `[T]`; `values` are `[T + 1]`: entry t is the value of the
        tokens before t, the last one that of them all. A trajectory without tokens counts as one token per
        turn. It is not valid when its episode failed, or when the policy wrote nothing.
        """
        turns, tokens = trajectory.turns, trajectory.tokens
        hashes = [turn.state_hash for turn in turns if turn.state_hash is not None]
        wrote_something = bool(turns) if tokens is None else tokens.oldest_version is not None
        was_cut_off = trajectory.outcome is Outcome.TRUNCATED
        return cls(
            group_id=trajectory.group_id,
            response_mask=np.ones(len(turns), np.int8) if tokens is None else tokens.response_mask,
            turn_rewards=[turn.reward if trajectory.is_own(turn.role) else 0.0 for turn in turns],
            turn_spans=[
                (index, index + 1) if tokens is None else (turn.response_start, turn.response_end)
                for index, turn in enumerate(turns)
            ],
            valid=trajectory.failure is None and wrote_something,
            tag=trajectory.task.tag,
            success=trajectory.success,
            turns=turns,
            state_hashes=hashes if len(hashes) == len(turns) else None,
            logprobs=logprobs,
            reference_logprobs=reference_logprobs,
            values=None if values is None else values[:-1],
            last_value=float(values[-1]) if values is not None and was_cut_off else 0.0,
        )

    @property
    def total_reward(self) -> float:
        """Sum of everything the trajectory earned."""
        penalty = 0.0 if self.token_rewards is None else float(self.token_rewards.sum())
        return float(sum(self.turn_rewards)) + penalty


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenAdvantages:
    """The result for one trajectory."""

    advantages: NDArray[np.float32]
    """`[T]`, 0 where the mask is 0."""
    returns: NDArray[np.float32] | None = None
    """`[T]`, targets of the value head (`gae`), 0 where the mask is 0; otherwise None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """A trajectory cut into the steps that returns are discounted over."""

    rewards_S: Floats
    tokens_n: NDArray[np.int64]
    """The sampled tokens of all turns, as indices into the sequence."""
    step_of_token_n: NDArray[np.int64]
    num_tokens: int
    """T"""

    @property
    def first_tokens_S(self) -> NDArray[np.int64]:
        """First token of each step; every step must have one, as at all levels but `turn`."""
        return self.tokens_n[np.searchsorted(self.step_of_token_n, np.arange(len(self.rewards_S)))]

    def spread(self, per_step: ArrayLike) -> NDArray[np.float32]:
        """Give every sampled token of step s the number `per_step[s]`: `[S]` to `[T]`, 0 elsewhere."""
        tokens_T = np.zeros(self.num_tokens, np.float32)
        tokens_T[self.tokens_n] = np.asarray(per_step, np.float64)[self.step_of_token_n]
        return tokens_T


def steps_of(sample: AdvantageSample, level: StepLevel) -> Steps:
    """The trajectory's steps, and what each earned.

    A turn is a step at level `turn` even when its reply is empty; at the other levels such a turn has no
    step of its own, and its reward falls to the step sampled before it. Before the first sampled token
    there is none: no token led to that reward, so it is in no step's return, as at level `turn`, where it
    stays with a step that has no token. `reply` is a turn with tokens, `segment` an unbroken run of sampled
    tokens, however many turns it is of. A turn's reward is earned by the last of its steps.
    """
    turns_T = _turns_of(sample)
    tokens_n = np.flatnonzero((sample.response_mask == 1) & (turns_T >= 0))
    turn_of_token_n = turns_T[tokens_n]
    turn_rewards_K = np.asarray(sample.turn_rewards, np.float64)
    if level == "turn":
        step_of_token_n, rewards_S = turn_of_token_n, turn_rewards_K.copy()
    else:
        step_of_token_n = _step_numbers(tokens_n, turn_of_token_n, level)
        rewards_S = np.zeros(int(step_of_token_n[-1]) + 1 if len(tokens_n) else 0)
        num_sampled_K = np.searchsorted(turn_of_token_n, np.arange(len(turn_rewards_K)), side="right")
        has_step_K = num_sampled_K > 0
        earning_K = step_of_token_n[num_sampled_K[has_step_K] - 1]
        np.add.at(rewards_S, earning_K, turn_rewards_K[has_step_K])
    if sample.token_rewards is not None:
        np.add.at(rewards_S, step_of_token_n, sample.token_rewards[tokens_n])
    return Steps(
        rewards_S=rewards_S,
        tokens_n=tokens_n,
        step_of_token_n=step_of_token_n,
        num_tokens=len(sample.response_mask),
    )


def _turns_of(sample: AdvantageSample) -> NDArray[np.int64]:
    """The turn each token was sampled in, `[T]`; -1 elsewhere."""
    turns_T = np.full(len(sample.response_mask), -1, np.int64)
    for turn, (start, end) in enumerate(sample.turn_spans):
        turns_T[start:end] = turn
    return turns_T


def _step_numbers(
    tokens_n: NDArray[np.int64], turn_of_token_n: NDArray[np.int64], level: StepLevel
) -> NDArray[np.int64]:
    """0, 0, 1, ...: the step of each sampled token."""
    if level == "token":
        return np.arange(len(tokens_n))
    labels_n = turn_of_token_n if level == "reply" else tokens_n - np.arange(len(tokens_n))
    return np.cumsum(np.diff(labels_n, prepend=labels_n[:1]) != 0)
