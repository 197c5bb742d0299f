"""The settings of the algorithm, typed. Imports neither torch nor the trainer.

Every key of the YAML's algorithm section is a field here, with its default and its meaning; an
unknown key is refused. `docs/algorithms.md` has the formula and the source behind each name.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from envsdk.algorithms.advantage_args import AdvantageKeys
from envsdk.algorithms.loss_args import LossKeys

LossAggregation = Literal[
    "token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "seq-mean-token-mean",
    "trajectory-mean-token-sum",
    "trajectory-mean-token-mean",
]


class AlgorithmKeys(LossKeys, AdvantageKeys):
    """What is maximized, and how: top-level keys of the YAML (`RunConfig` inherits them)."""

    loss_agg_mode: LossAggregation = "token-mean"
    """How per-token losses become one number, over all trajectories of an optimizer step."""
    loss_agg_length: int | None = Field(default=None, ge=1)
    """Tokens that `seq-mean-token-sum-norm` divides by; the same in every step."""

    distill_as: Literal["advantage", "loss"] = "advantage"
    """Where the divergence from `teachers` counts: in the advantages, or as a term of the loss."""
    distill_top_k: int = Field(default=0, ge=0, le=1024)
    """With `distill_as: loss`: likeliest tokens of the teacher whose probabilities are compared; 0: that of
    the sampled token alone."""
    distill_reward_coef: float = Field(default=1.0, ge=0.0)
    """Weight of the rewards' advantages where a teacher scores; 0: the teacher alone counts."""

    @property
    def needs_reference(self) -> bool:
        """Whether the log-probabilities of a frozen reference model are needed."""
        return self.kl_loss_coef > 0 or self.init_kl_coef > 0


class AlgorithmArgs(AlgorithmKeys):
    """What a trainer gets: the keys, and what the pipeline adds."""

    temperature: float = Field(default=1.0, ge=0.0)
    """Temperature of the sampling distribution, whose log-probabilities the trainer recomputes. The pipeline
    sets it from `actor_infer.generating_args`; 0 (greedy) counts as 1, as in the engine."""

    @property
    def logprob_temperature(self) -> float:
        """The temperature that log-probabilities are taken at, never 0."""
        return self.temperature if self.temperature > 0 else 1.0
