"""`pg_args` of each policy loss, typed, and which policies the loss compares. Imports no torch.

A loss declares its model in its registration; a subclass of `PolicyLossArgs` says two things besides the
keys it takes, so that the configuration can refuse what makes no sense and the run can say what a ratio
is worth: `ratio` and `corrects_staleness`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from envsdk.base.settings.strict import StrictSettings

if TYPE_CHECKING:
    from envsdk.algorithms.args import AlgorithmKeys

RatioOver = Literal["proximal", "behavior"]


class ClipRange(NamedTuple):
    """A ratio is clipped at 1 - `low` and 1 + `high`; `dual` x |advantage| bounds losses of negative ones."""

    low: float
    high: float
    dual: float | None = None


class PolicyLossArgs(StrictSettings):
    """Settings of one policy loss. This one takes none: a loss without a ratio."""

    clips: ClassVar[bool] = False
    """Whether `pg_clip_low`, `pg_clip_high` and `dual_clip` mean something to the loss."""

    @property
    def ratio(self) -> RatioOver | None:
        """The policy that the current one is divided by: `ratio_over`; None for a loss without a ratio."""
        ratio_over: RatioOver | None = getattr(self, "ratio_over", None)
        return ratio_over

    @property
    def corrects_staleness(self) -> bool:
        """Whether the loss itself divides by the behavior policy: an importance weight in front of it
        would correct twice."""
        return self.ratio == "behavior"

    @property
    def moves_without_advantage(self) -> bool:
        """Whether a token whose advantage is 0 can have a gradient: a pull towards another policy. Without
        it sequences that have no advantage are left out of the computation."""
        return False

    def notes(self, keys: AlgorithmKeys) -> list[str]:
        """What a user of this loss should know about the other settings; one sentence each."""
        return []


class OverProximal(PolicyLossArgs):
    """A loss whose ratio has the proximal policy below, unless said otherwise."""

    ratio_over: RatioOver = "proximal"
    """The policy that the current one is divided by: `proximal` (before this batch) or `behavior`."""


class OverBehavior(PolicyLossArgs):
    """A loss whose ratio has the behavior policy below, unless said otherwise."""

    ratio_over: RatioOver = "behavior"
    """The policy that the current one is divided by: `behavior` (sampled the token) or `proximal`."""


class ClippedByKeys(PolicyLossArgs):
    """A loss whose clip range is `pg_clip_low`, `pg_clip_high`, `dual_clip`."""

    clips = True

    def clip_range(self, keys: AlgorithmKeys) -> ClipRange:
        return ClipRange(keys.pg_clip_low, keys.pg_clip_high, keys.dual_clip)


class OwnClipRange(PolicyLossArgs):
    """A loss with a clip range of its own."""

    clip_low: float = Field(default=0.2, ge=0.0, le=1.0)
    """The ratio is clipped from below at 1 - this."""
    clip_high: float = Field(default=0.28, ge=0.0)
    """The ratio is clipped from above at 1 + this."""

    def clip_range(self, keys: AlgorithmKeys) -> ClipRange:
        return ClipRange(self.clip_low, self.clip_high)


class VanillaArgs(PolicyLossArgs):
    """`vanilla` takes no settings."""


class PPOArgs(ClippedByKeys, OverProximal):
    """`ppo`, `segment_ppo`; the clip range is `pg_clip_low`, `pg_clip_high`, `dual_clip`."""


class DAPOArgs(OwnClipRange, OverProximal):
    """`dapo`."""

    def notes(self, keys: AlgorithmKeys) -> list[str]:
        said = f"dapo averages over tokens; loss_agg_mode={keys.loss_agg_mode} departs from it"
        return [] if keys.loss_agg_mode == "token-mean" else [said]


class DecoupledPPOArgs(ClippedByKeys):
    """`decoupled_ppo`; the clip range is `pg_clip_low`, `pg_clip_high`, `dual_clip`."""

    weight_cap: float | None = Field(default=5.0, gt=0.0)
    """Largest weight proximal / behavior that is taken as it is; null is none."""
    beyond_cap: Literal["mask", "truncate"] = "mask"
    """A larger weight: the token is left out, or the weight moved to the cap."""

    @property
    def ratio(self) -> RatioOver | None:
        return "proximal"

    @property
    def corrects_staleness(self) -> bool:
        return True


class GSPOArgs(OwnClipRange, OverProximal):
    """`gspo`."""

    clip_low: float = Field(default=3e-4, ge=0.0, le=1.0)
    """The sequence's ratio is clipped from below at 1 - this."""
    clip_high: float = Field(default=4e-4, ge=0.0)
    """The sequence's ratio is clipped from above at 1 + this."""

    def notes(self, keys: AlgorithmKeys) -> list[str]:
        if keys.loss_agg_mode == "seq-mean-token-mean":
            return []
        return [
            f"gspo is defined with loss_agg_mode=seq-mean-token-mean; with {keys.loss_agg_mode} "
            "long sequences weigh more"
        ]


class TISArgs(OverBehavior):
    """`tis`."""

    lower_bound: float = Field(default=0.0, ge=0.0)
    """A smaller ratio counts as this."""
    upper_bound: float = Field(default=1.0, gt=0.0)
    """The ratio is truncated at this."""

    @model_validator(mode="after")
    def _bounds_leave_room(self) -> Self:
        if self.lower_bound > self.upper_bound:
            raise ValueError(
                f"lower_bound: {self.lower_bound:g} is above upper_bound {self.upper_bound:g}; lower it"
            )
        return self


class CISPOArgs(OverBehavior):
    """`cispo`."""

    clip_low: float | None = Field(default=None, ge=0.0, le=1.0)
    """The weight is clipped from below at 1 - this; null is no bound, as in the paper's experiments."""
    clip_high: float = Field(default=1.0, ge=0.0)
    """The weight is clipped from above at 1 + this."""
    masks_clipped: bool = False
    """Whether a token beyond that range in the direction of its advantage has no gradient, as in PPO."""


class TOPRArgs(OverBehavior):
    """`topr`."""

    level: Literal["sequence", "token"] = "sequence"
    """Whether the ratio is that of the sequence, as in the paper, or of each token."""
    positive_weight: float = Field(default=1.0, ge=0.0)
    """Weight of tokens with an advantage of 0 or more."""
    negative_weight: float = Field(default=1.0, ge=0.0)
    """Weight of tokens with a negative advantage."""


class Kimi15Args(OverProximal):
    """`kimi15`."""

    tau: float = Field(default=0.1, ge=0.0)
    """Weight of the squared log-ratio."""
    level: Literal["sequence", "token"] = "sequence"
    """Whether the log-ratio of the sequence is squared, as in the paper, or that of each token."""

    @property
    def corrects_staleness(self) -> bool:
        # The square holds the policy near another one; it is no importance weight.
        return False

    @property
    def moves_without_advantage(self) -> bool:
        return self.tau > 0


class OPMDArgs(PolicyLossArgs):
    """`opmd`."""

    tau: float = Field(default=1.0, ge=0.0)
    """Weight of the divergence from the current policy: the gradient is divided by 1 + this."""


class RECArgs(OverBehavior):
    """`rec`."""

    sides: Literal["one", "two"] = "one"
    """Which tokens give no gradient: those beyond the range in the direction of their advantage, or on either
    side."""
    clip_low: float = Field(default=0.2, ge=0.0, le=1.0)
    """The range of the ratio begins at 1 - this."""
    clip_high: float = Field(default=0.2, ge=0.0)
    """It ends at 1 + this."""

    @property
    def corrects_staleness(self) -> bool:
        # A token's gradient is there or not: nothing weighs it.
        return False
