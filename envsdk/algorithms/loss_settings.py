"""What follows from the settings of the policy loss and its correction. Imports torch for no loss that
declares its settings as an entry point."""

from __future__ import annotations

from functools import cache
from typing import Any

from envsdk.algorithms.args import AlgorithmKeys, LossKeys
from envsdk.algorithms.policy_loss_args import PolicyLossArgs
from envsdk.base.plugins import load_plugin, plugin_names
from envsdk.base.settings.validation import validated
from envsdk.contracts.failures import ConfigurationError

POLICY_LOSSES = "envsdk.policy_losses"
"""Entry-point group whose names `pg_variant` takes."""


def registered(pg_variant: str) -> Any:
    """What `pg_variant` names; ConfigurationError names the nearest known one when there is none."""
    try:
        return load_plugin(POLICY_LOSSES, pg_variant)
    except ConfigurationError as error:
        raise ConfigurationError(f"pg_variant: {error}") from error


@cache
def settings_of(pg_variant: str) -> type[PolicyLossArgs]:
    """The model of a loss's `pg_args`: the one declared under `envsdk.settings`, else the one its
    registration holds. ConfigurationError when there is no such loss."""
    entry = f"policy_losses.{pg_variant}.pg_args"
    if entry in plugin_names("envsdk.settings"):
        model = load_plugin("envsdk.settings", entry)
    else:
        model = getattr(registered(pg_variant), "settings", None)
    if not (isinstance(model, type) and issubclass(model, PolicyLossArgs)):
        raise ConfigurationError(
            f"pg_variant: {pg_variant} declares no settings; decorate the function with "
            "@policy_loss(MODEL), MODEL a subclass of envsdk.algorithms.policy_loss_args.PolicyLossArgs"
        )
    return model


def own_args(args: LossKeys) -> PolicyLossArgs:
    """`pg_args` as the loss's model. ConfigurationError names what is wrong with them, or with their
    combination with `train_infer_correction`."""
    own = validated(settings_of(args.pg_variant), args.pg_args, "pg_args", owner=args.pg_variant)
    problem = corrected_twice(args, own)
    if problem is not None:
        raise ConfigurationError(f"train_infer_correction.is_weight.enabled: {problem}")
    return own


def corrected_twice(args: LossKeys, own: PolicyLossArgs) -> str | None:
    """What is wrong with asking for an importance weight in front of a loss that has its own."""
    if not (args.train_infer_correction.is_weight.enabled and own.corrects_staleness):
        return None
    otherwise = ", or pg_args.ratio_over to `proximal`" if "ratio_over" in type(own).model_fields else ""
    return (
        f"`{args.pg_variant}` divides by the behavior policy itself, so this weight would correct twice; "
        f"leave it out, or set it to false{otherwise}"
    )


def weighs(args: LossKeys, own: PolicyLossArgs) -> bool:
    """Whether the policy loss is multiplied by proximal / behavior."""
    enabled = args.train_infer_correction.is_weight.enabled
    return not own.corrects_staleness if enabled is None else enabled


def uses_proximal(args: LossKeys) -> bool:
    """Whether anything that is minimized reads the proximal log-probabilities."""
    own = own_args(args)
    return own.ratio == "proximal" or weighs(args, own) or bool(args.train_infer_correction.active_filters)


def uses_behavior(args: LossKeys) -> bool:
    """Whether anything that is minimized reads the log-probabilities that came with the samples."""
    own = own_args(args)
    return (
        own.ratio == "behavior"
        or own.corrects_staleness
        or weighs(args, own)
        or bool(args.train_infer_correction.active_filters)
    )


def notes(
    args: AlgorithmKeys, *, one_optimizer_step: bool, max_staleness: int, unknown_support: str = ""
) -> list[str]:
    """What the user of these settings may expect of them and will not get.

    `one_optimizer_step`: a batch makes one, which is said where it leaves the loss nothing to clip.
    `unknown_support`: what leaves out tokens that the trainer counts, if so, and what to do.
    """
    own = own_args(args)
    found: list[str] = []
    if own.ratio == "proximal" and one_optimizer_step:
        found.append(_unit_ratio(args, own))
    if max_staleness and not own.corrects_staleness and not weighs(args, own):
        found.append(
            f"pg_variant={args.pg_variant} without train_infer_correction.is_weight takes samples of up to "
            f"{max_staleness} versions ago for fresh ones"
        )
    if unknown_support:
        effect = (
            "ratios to the behavior policy compare two distributions"
            if uses_behavior(args)
            else "the gradient is of another distribution than was sampled from"
        )
        found.append(f"{unknown_support}: {effect}")
    if not own.clips:
        for name in ("pg_clip_low", "pg_clip_high", "dual_clip"):
            if getattr(args, name) != type(args).model_fields[name].default:
                found.append(f"{name} has no effect with pg_variant={args.pg_variant}")
    return found + own.notes(args)


def _unit_ratio(args: AlgorithmKeys, own: PolicyLossArgs) -> str:
    corrected = (
        "staleness is corrected by its own weight"
        if own.corrects_staleness
        else "staleness is corrected by train_infer_correction.is_weight"
        if weighs(args, own)
        else "it corrects nothing"
    )
    instead = (
        ", or pg_args.ratio_over=behavior to compare with the policy that sampled"
        if "ratio_over" in type(own).model_fields
        else ""
    )
    return (
        f"pg_variant={args.pg_variant} compares the current with the proximal policy, and with one "
        f"optimizer step per batch they are the same: the ratio is 1 by construction and limits nothing; "
        f"{corrected}. Set ppo_epochs or ppo_mini_batch_size for several steps{instead}"
    )
