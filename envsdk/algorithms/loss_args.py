"""Settings of the losses, typed. Imports neither torch nor the trainer."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from envsdk.algorithms.advantage_args import KLEstimator

PolicyGradientVariant = Literal["ppo", "vanilla"]
RatioBase = Literal["proximal", "behavior"]
BehaviorWeight = Literal["truncate", "none"]


class LossKeys(BaseModel):
    """What is minimized: top-level keys of the YAML."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

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
    entropy_loss_coef: float = 0.0
    """Weight of the entropy bonus; positive keeps the policy more random."""

    kl_loss_coef: float = Field(default=0.0, ge=0.0)
    """Weight of the divergence from the reference model in the loss."""
    kl_loss_type: KLEstimator = "k3"
    """Estimator of that divergence. In a loss, `k2` and `k3` have a useful gradient, `k1` has not."""

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
