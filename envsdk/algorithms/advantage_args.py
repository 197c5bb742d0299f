"""Settings of rewards and advantages, typed. Imports neither torch nor the trainer."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

AdvantageEstimator = Literal["grpo", "reinforce", "gae"]
ReinforceBaseline = Literal["none", "batch"]
GAELevel = Literal["token", "turn"]
KLEstimator = Literal["k1", "k2", "k3"]


class AdvantageKeys(BaseModel):
    """From rewards to one advantage per token: top-level keys of the YAML."""

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

    init_kl_coef: float = Field(default=0.0, ge=0.0)
    """Weight of the divergence from the reference model taken off each token's reward."""
    kl_reward_type: KLEstimator = "k1"
    """Estimator of that divergence."""
