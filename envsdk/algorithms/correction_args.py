"""Settings of the train/inference correction, typed. Imports no torch."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from envsdk.base.settings.strict import StrictSettings

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
