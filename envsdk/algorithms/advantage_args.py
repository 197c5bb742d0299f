"""Settings of rewards and advantages, typed. Imports neither torch nor the trainer."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from envsdk.algorithms.estimator_contract import EstimatorArgs, estimator_args
from envsdk.base.settings.strict import StrictSettings

ReinforceBaseline = Literal["none", "batch"]
GAELevel = Literal["token", "turn"]
DiscountLevel = Literal["turn", "segment", "token"]
RewardGrouping = Literal["none", "group", "tag", "batch"]
RewardLevel = Literal["turn", "trajectory", "return"]
DifficultyWeight = Literal["none", "learnability", "hard"]
WhitenOver = Literal["batch", "tag"]
AdvantageUnit = Literal["episode", "segment", "role"]
KLEstimator = Literal["k1", "k2", "k3"]


class AdvantageKeys(StrictSettings):
    """Settings that turn rewards into one advantage per token: top-level keys of the YAML."""

    adv_estimator: str = "grpo"
    """`grpo`, `rloo`, `reinforce`, `reinforce_plus_plus`, `gae` (value head), `gigpo`, `graphgpo`,
    `hgpo` (state hashes), an entry point in `envsdk.advantage_estimators`, or `package.module:function`."""
    adv_args: dict[str, Any] = Field(default_factory=dict)
    """Settings of that estimator alone, which checks them: of `graphgpo` `omega` and `step_weight`, of `hgpo`
    `history_length` and `length_weight_alpha`. Those that ship read the keys below."""
    grpo_normalize_std: bool = True
    """`grpo` and those with state hashes: divide a group's advantages by the sample standard deviation of its
    returns."""
    reinforce_baseline: ReinforceBaseline = "batch"
    """`reinforce`: `batch` subtracts the mean return of all steps in the batch."""
    gigpo_step_weight: float = Field(default=1.0, ge=0.0)
    """`gigpo`: weight of the advantage among equal states, added to that of the episode."""
    gamma: float = Field(default=1.0, ge=0.0, le=1.0)
    """Discount per step; what a step is, `discount_level` and `gae_level` say. Per turn for `gigpo` and
    `hgpo`."""
    discount_level: DiscountLevel | None = None
    """`reinforce`, `reinforce_plus_plus`: a step is a turn, a segment (unbroken run of sampled tokens) or a
    token; null: `turn` for the first, `token` for the second."""
    lambd: float = Field(default=1.0, ge=0.0, le=1.0)
    """GAE's lambda, per step as `gamma`."""
    gae_level: GAELevel = "token"
    """Whether a step of GAE is one sampled token or one turn."""
    critic_warmup: int = Field(default=0, ge=0)
    """`gae`: training steps at the start of the run that move the value head alone."""

    advantage_unit: AdvantageUnit | None = None
    """What has one reward and is compared in its group: the `episode`; each `segment`, with all others; or
    with those of its `role`, a player's as one. When absent, `role` with several players, else `episode`."""
    reward_normalize_mean: RewardGrouping = "none"
    """Trajectories whose mean reward is taken off each one's reward."""
    reward_normalize_std: RewardGrouping = "none"
    """Trajectories by whose standard deviation each one's reward is divided."""
    reward_clip: float | None = Field(default=None, gt=0.0)
    """Each turn's reward, after normalization, is held within +- this, before the estimator; null is off."""
    reward_level: RewardLevel = "turn"
    """What is clipped and paid: the reward of each `turn`; the sum of a `trajectory`, at its last turn; or,
    for `reinforce`, the `return` of each step, normalized among all steps in place of the sums."""
    whiten_advantages: bool = False
    """Shift and scale advantages to mean 0, variance 1 over all sampled tokens that are learned from."""
    whiten_over: WhitenOver = "batch"
    """Whether that is over the batch or, tag by tag, over the trajectories of one tag."""
    difficulty_weight: DifficultyWeight = "none"
    """Weight of a group by its success rate p: `learnability` 4 p (1 - p), `hard` 1 - p."""
    length_weight: float = Field(default=0.0, ge=0.0)
    """Weight of a trajectory: (mean length / its length) to this power, in sampled tokens; 0 is off."""
    advantage_clip: float | None = Field(default=None, gt=0.0)
    """Advantages are held within +- this; null is off."""

    max_len_mask: bool = False
    """Leave trajectories with a reply that its length limit ended out of the loss."""
    difficulty_mask: bool = False
    """Leave groups out of the loss whose mean reward is not between the two thresholds."""
    difficulty_low_threshold: float = 0.0
    """`difficulty_mask`: a mean reward up to this is too hard."""
    difficulty_high_threshold: float = 1.0
    """`difficulty_mask`: a mean reward from this on is too easy."""
    error_max_len_clip: bool = False
    """Leave trajectories out of the loss unless their reward is 1, or 0 within `error_max_len_threshold`."""
    error_max_len_threshold: int | None = Field(default=None, ge=1)
    """`error_max_len_clip`: sampled tokens from which on a reward of 0 is left out too; null: none is."""
    difficulty_loss_weight: bool = False
    """Weight of a trajectory in the loss: 0.5 + 1.5 times its task's `difficulty` in the data (0 to 1)."""
    length_loss_weight: bool = False
    """Weight of a trajectory in the loss: from 1.5 for the shortest of the batch to 0.5 for the longest."""

    init_kl_coef: float = Field(default=0.0, ge=0.0)
    """Weight of the divergence from the reference model taken off each token's reward."""
    kl_reward_type: KLEstimator = "k1"
    """Estimator of that divergence."""
    target_kl: float | None = Field(default=None, gt=0.0)
    """Divergence per sampled token that the weight is adapted to, from `init_kl_coef` on; null: fixed."""
    kl_horizon: int = Field(default=10_000, ge=1)
    """Trajectories over which that adaptation can change the weight by a fifth."""

    @model_validator(mode="after")
    def _thresholds_leave_room(self) -> Self:
        if self.difficulty_mask and self.difficulty_low_threshold >= self.difficulty_high_threshold:
            raise ValueError(
                f"difficulty_low_threshold: {self.difficulty_low_threshold:g} is not below "
                f"difficulty_high_threshold {self.difficulty_high_threshold:g}, so difficulty_mask would "
                "leave out every group; lower the first or raise the second"
            )
        return self

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
