"""Settings of the losses, typed. Imports neither torch nor the trainer."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from envsdk.algorithms.advantage_args import KLEstimator
from envsdk.algorithms.correction_args import TrainInferCorrection
from envsdk.base.settings.strict import StrictSettings


class LossKeys(StrictSettings):
    """What is minimized: top-level keys of the YAML."""

    pg_variant: str = "ppo"
    """Policy loss: entry point in `envsdk.policy_losses`, or `package.module:function`."""
    pg_args: dict[str, Any] = Field(default_factory=dict)
    """Settings of that loss alone, which checks them."""
    pg_clip_low: float = Field(default=0.2, ge=0.0, le=1.0)
    """`ppo`, `segment_ppo`, `decoupled_ppo`: the ratio is clipped from below at 1 - this."""
    pg_clip_high: float = Field(default=0.2, ge=0.0)
    """The same losses: the ratio is clipped from above at 1 + this."""
    dual_clip: float | None = Field(default=None, gt=1.0)
    """The same losses: bounds that of tokens with negative advantage at this x |advantage|; null is off."""
    train_infer_correction: TrainInferCorrection = Field(default_factory=TrainInferCorrection)
    """Weights and filters for samples of another policy than the one before the step."""
    ppo_epochs: int = Field(default=1, ge=1)
    """Passes over each batch."""
    ppo_mini_batch_size: int | None = Field(default=None, ge=1)
    """Trajectories per optimizer step; null makes one step per pass."""
    entropy_loss_coef: float = 0.0
    """Weight of the entropy bonus; positive keeps the policy more random."""

    kl_loss_coef: float = Field(default=0.0, ge=0.0)
    """Weight of the divergence from the reference model in the loss."""
    kl_loss_type: KLEstimator = "k3"
    """Estimator of that divergence. In a loss, `k2` and `k3` have a useful gradient, `k1` has not; that of
    `k3` is bounded."""

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
