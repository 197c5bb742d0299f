"""Settings of rewards and advantages, typed. Imports neither torch nor the trainer."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from envsdk.algorithms.advantage_estimator import EstimatorArgs, estimator_args
from envsdk.settings.strict import StrictSettings

ReinforceBaseline = Literal["none", "batch"]
GAELevel = Literal["token", "turn"]
DiscountLevel = Literal["turn", "segment", "token"]
RewardGrouping = Literal["none", "group", "tag", "batch"]
DifficultyWeight = Literal["none", "learnability", "hard"]
KLEstimator = Literal["k1", "k2", "k3"]


class AdvantageKeys(StrictSettings):
    """From rewards to one advantage per token: top-level keys of the YAML."""

    adv_estimator: str = "grpo"
    """`grpo`, `rloo`, `reinforce`, `reinforce_plus_plus`, `gae` (value head), `gigpo` (state hashes); or an
    entry point in `envsdk.advantage_estimators`, or `package.module:function`."""
    adv_args: dict[str, Any] = Field(default_factory=dict)
    """Settings of that estimator alone, which checks them. Those that ship read the keys below."""
    grpo_normalize_std: bool = True
    """`grpo`, `gigpo`: divide a group's advantages by the sample standard deviation of its returns."""
    reinforce_baseline: ReinforceBaseline = "batch"
    """`reinforce`: `batch` subtracts the mean return of all steps in the batch."""
    gigpo_step_weight: float = Field(default=1.0, ge=0.0)
    """`gigpo`: weight of the advantage among equal states, added to that of the episode."""
    gamma: float = Field(default=1.0, ge=0.0, le=1.0)
    """Discount per step; what a step is, `discount_level` and `gae_level` say. Per turn for `gigpo`."""
    discount_level: DiscountLevel | None = None
    """`reinforce`, `reinforce_plus_plus`: a step is a turn, a segment (unbroken run of sampled tokens) or a
    token; null: `turn` for the first, `token` for the second."""
    lambd: float = Field(default=1.0, ge=0.0, le=1.0)
    """GAE's lambda, per step as `gamma`."""
    gae_level: GAELevel = "token"
    """Whether a step of GAE is one sampled token or one turn."""
    critic_warmup: int = Field(default=0, ge=0)
    """`gae`: training steps at the start of the run that move the value head alone."""

    reward_normalize_mean: RewardGrouping = "none"
    """Trajectories whose mean reward is taken off each one's reward."""
    reward_normalize_std: RewardGrouping = "none"
    """Trajectories by whose standard deviation each one's reward is divided."""
    reward_clip: float | None = Field(default=None, gt=0.0)
    """Each turn's reward, after normalization, is held within +- this; null is off."""
    whiten_advantages: bool = False
    """Shift and scale advantages to mean 0, variance 1 over all sampled tokens of the batch."""
    difficulty_weight: DifficultyWeight = "none"
    """Weight of a group by its success rate p: `learnability` 4 p (1 - p), `hard` 1 - p."""
    length_weight: float = Field(default=0.0, ge=0.0)
    """Weight of a trajectory: (mean length / its length) to this power, in sampled tokens; 0 is off."""
    advantage_clip: float | None = Field(default=None, gt=0.0)
    """Advantages are held within +- this, last of all; null is off."""

    init_kl_coef: float = Field(default=0.0, ge=0.0)
    """Weight of the divergence from the reference model taken off each token's reward."""
    kl_reward_type: KLEstimator = "k1"
    """Estimator of that divergence."""
    target_kl: float | None = Field(default=None, gt=0.0)
    """Divergence per sampled token that the weight is adapted to, from `init_kl_coef` on; null: fixed."""
    kl_horizon: int = Field(default=10_000, ge=1)
    """Trajectories over which that adaptation can change the weight by a fifth."""

    @property
    def estimator_args(self) -> EstimatorArgs:
        """`adv_args` as the estimator's own model, which says what it needs. Raises ConfigurationError."""
        return estimator_args(self.adv_estimator, self.adv_args)

    @property
    def needs_values(self) -> bool:
        """Whether the trainer must have a value head."""
        return self.estimator_args.needs_values

    @property
    def needs_state_hashes(self) -> bool:
        """Whether each turn must carry the hash of the state it was played in."""
        return self.estimator_args.needs_state_hashes
