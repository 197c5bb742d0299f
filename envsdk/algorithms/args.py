"""The settings of the algorithm, typed. Imports neither torch nor the trainer.

Every key of the YAML's algorithm section is a field here, with its default and its meaning; an
unknown key is refused. `docs/algorithms.md` has the formula and the source behind each name.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from envsdk.algorithms.advantage_args import AdvantageKeys, KLEstimator
from envsdk.base.settings.strict import StrictSettings

LossAggregation = Literal[
    "token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "seq-mean-token-mean",
    "trajectory-mean-token-sum",
    "trajectory-mean-token-mean",
]


RatioLevel = Literal["token", "segment", "geometric", "sequence"]
BeyondBounds = Literal["truncate", "mask"]


class ISWeightArgs(StrictSettings):
    """Importance weight proximal / behavior in front of the policy loss."""

    enabled: bool | None = None
    """Whether the policy loss is multiplied by it; null: yes, unless the loss compares with the behavior
    policy itself (see `pg_variant`)."""
    weight_type: RatioLevel = "token"
    """Ratio of each token; per-token geometric mean over its `segment` (one reply) or over the sequence
    (`geometric`); or the product over the `sequence`."""
    lower_bound: float | None = Field(default=None, ge=0.0)
    """Smallest weight that is taken as it is; null is none."""
    upper_bound: float | None = Field(default=2.0, gt=0.0)
    """Largest weight that is taken as it is; null is none."""
    beyond_bounds: BeyondBounds = "truncate"
    """A weight beyond a bound: moved to the bound, or set to 0."""

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        low, high = self.lower_bound, self.upper_bound
        if low is not None and high is not None and low > high:
            raise ValueError(f"lower_bound={low:g} is above upper_bound={high:g}; swap them")
        return self


class CorrectionFilter(StrictSettings):
    """Leaves tokens out of the policy loss whose proximal and behavior policies are too far apart."""

    enabled: bool = True
    """False keeps the rule in the file and off."""
    agg_type: RatioLevel = "token"
    """What is judged, and left out, as one: a `token`, a `segment` (one reply), or a sequence by its
    per-token mean (`geometric`) or by its product (`sequence`)."""
    ratio_enabled: bool = True
    """Judge proximal / behavior."""
    ratio_low: float = Field(default=0.8, ge=0.0)
    """Smallest ratio that stays."""
    ratio_high: float = Field(default=1.2, gt=0.0)
    """Largest ratio that stays."""
    diff_enabled: bool = False
    """Judge the difference of probabilities, proximal - behavior: of a token, the mean over a `segment` or
    sequence (`geometric`), the sum over a `sequence`."""
    diff_low: float = -0.2
    """Smallest difference that stays."""
    diff_high: float = 0.2
    """Largest difference that stays."""

    @model_validator(mode="after")
    def _judges_something(self) -> Self:
        if not (self.ratio_enabled or self.diff_enabled):
            raise ValueError("judges neither ratio nor diff; set one of the two, or `enabled: false`")
        for name in ("ratio", "diff"):
            low, high = getattr(self, f"{name}_low"), getattr(self, f"{name}_high")
            if low > high:
                raise ValueError(f"{name}_low={low:g} is above {name}_high={high:g}: nothing would stay")
        return self


class TrainInferCorrection(StrictSettings):
    """Correction for samples that another policy drew than the one before the step."""

    is_weight: ISWeightArgs = Field(default_factory=ISWeightArgs)
    """Importance weight in front of the policy loss."""
    filters: list[CorrectionFilter] = Field(default_factory=list)
    """Rules that leave tokens out of the policy loss; a token stays if all let it."""

    routing_replay: bool = False
    """In a mixture of experts, the trainer's routers choose for each token the experts that were chosen while
    it was sampled, and weigh them by its own logits."""

    @property
    def active_filters(self) -> list[CorrectionFilter]:
        """Those that are on."""
        return [each for each in self.filters if each.enabled]


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
