"""The settings of the algorithm, typed. Imports neither torch nor the trainer.

Every key of the YAML's algorithm section is a field here, with its default and its meaning; an
unknown key is refused. `docs/algorithms.md` has the formula and the source behind each name.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

AdvantageEstimator = Literal["grpo", "reinforce", "gae"]
PolicyGradientVariant = Literal["ppo", "vanilla"]
RatioBase = Literal["proximal", "behavior"]
BehaviorWeight = Literal["truncate", "none"]
LossAggregation = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"]
KLEstimator = Literal["k1", "k2", "k3"]
ReinforceBaseline = Literal["none", "batch"]
GAELevel = Literal["token", "turn"]


class AlgorithmKeys(BaseModel):
    """What is maximized, and how: top-level keys of the YAML (`RunConfig` inherits them)."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    adv_estimator: AdvantageEstimator = "grpo"
    """`grpo`: return minus the group's mean; `reinforce`: discounted return; `gae`: with a value head."""
    grpo_normalize_std: bool = True
    """Divide a group's advantages by the sample standard deviation of its returns."""
    reinforce_baseline: ReinforceBaseline = "batch"
    """`batch` subtracts the mean return of all turns in the batch."""
    gamma: float = Field(default=1.0, ge=0.0, le=1.0)
    """Discount per turn (`reinforce`, `gae` with `gae_level: turn`) or per token (`gae_level: token`)."""
    lambd: float = Field(default=1.0, ge=0.0, le=1.0)
    """GAE's lambda, per turn or per token as `gamma`."""
    gae_level: GAELevel = "token"
    """Whether a step of GAE is one sampled token or one turn."""
    whiten_advantages: bool = False
    """Shift and scale advantages to mean 0, variance 1 over all sampled tokens of the batch."""

    pg_variant: PolicyGradientVariant = "ppo"
    """Name of the policy loss."""
    pg_ratio: RatioBase = "proximal"
    """What `ppo` compares the current policy with, hence the center of its trust region."""
    pg_clip_low: float = Field(default=0.2, ge=0.0, le=1.0)
    """The ratio is clipped from below at 1 - `pg_clip_low`."""
    pg_clip_high: float = Field(default=0.2, ge=0.0)
    """The ratio is clipped from above at 1 + `pg_clip_high`."""
    dual_clip: float | None = Field(default=None, gt=1.0)
    """Bounds the loss of tokens with negative advantage at `dual_clip` x |advantage|; null is off."""
    behavior_weight: BehaviorWeight = "truncate"
    """Whether stale tokens are weighted by proximal / behavior. Not used with `pg_ratio: behavior`."""
    behavior_weight_cap: float | None = Field(default=2.0, gt=0.0)
    """That weight is at most this; null does not truncate."""
    ppo_epochs: int = Field(default=1, ge=1)
    """Passes over each batch."""
    ppo_mini_batch_size: int | None = Field(default=None, ge=1)
    """Sequences per optimizer step; null makes one step per pass."""
    loss_agg_mode: LossAggregation = "token-mean"
    """How per-token losses become one number, over all sequences of an optimizer step."""
    entropy_loss_coef: float = 0.0
    """Weight of the entropy bonus; positive keeps the policy more random."""

    kl_loss_coef: float = Field(default=0.0, ge=0.0)
    """Weight of the divergence from the reference model in the loss."""
    kl_loss_type: KLEstimator = "k3"
    """Estimator of that divergence. In a loss, `k2` and `k3` have a useful gradient, `k1` has not."""
    init_kl_coef: float = Field(default=0.0, ge=0.0)
    """Weight of the divergence from the reference model taken off each token's reward."""
    kl_reward_type: KLEstimator = "k1"
    """Estimator of that divergence."""

    value_loss_coef: float = Field(default=0.5, ge=0.0)
    """Weight of the value head's loss (`gae`)."""
    value_clip: float | None = Field(default=0.2, gt=0.0)
    """Predictions may move this far from the old ones within a batch; null is off."""

    @model_validator(mode="after")
    def _k1_has_no_gradient(self) -> Self:
        if self.kl_loss_coef > 0 and self.kl_loss_type == "k1":
            raise ValueError(
                "kl_loss_type: k1 has a gradient that is zero on average, so kl_loss_coef would only add "
                "noise; use k2 or k3, or put k1 into the reward with init_kl_coef and kl_reward_type"
            )
        return self

    @property
    def needs_reference(self) -> bool:
        """Whether the log-probabilities of a frozen reference model are needed."""
        return self.kl_loss_coef > 0 or self.init_kl_coef > 0

    @property
    def needs_values(self) -> bool:
        """Whether the trainer must have a value head."""
        return self.adv_estimator == "gae"


class AlgorithmArgs(AlgorithmKeys):
    """What a trainer gets: the keys, and what the pipeline adds."""

    temperature: float = Field(default=1.0, ge=0.0)
    """Of the sampling distribution, whose log-probabilities the trainer recomputes. The pipeline sets it
    from `actor_infer.generating_args`; 0 (greedy) counts as 1, as in the engine."""

    @property
    def logprob_temperature(self) -> float:
        """The temperature that log-probabilities are taken at, never 0."""
        return self.temperature if self.temperature > 0 else 1.0
