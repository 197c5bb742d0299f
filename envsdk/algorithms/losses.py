"""The contract of a policy loss, and the value loss. Pure: no masks, no reduction, no state.

Three policies meet in one token of an asynchronous run, and every loss takes their log-probabilities
by name:

    behavior   sampled the token; its log-probability came with the sample. Older by the staleness.
    proximal   the trainer's weights before the first optimizer step on this batch.
    current    the weights being optimized, with gradient; equal to proximal in the first step.

With one optimizer step per batch current / proximal is exactly 1: clipping that ratio says nothing about
staleness, which lives in proximal / behavior. Shapes: N sampled tokens, those of one sequence side by
side; callers pass sampled tokens only and reduce with `aggregation.sequence_weights`.

The losses that ship are in `envsdk.algorithms.policy_losses`; docs/algorithms.md shows how to add one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from envsdk.algorithms.args import AlgorithmArgs
from envsdk.algorithms.loss_settings import own_args, registered
from envsdk.algorithms.policy_loss_args import PolicyLossArgs, RatioOver
from envsdk.contracts.failures import ConfigurationError

Own = TypeVar("Own", bound=PolicyLossArgs)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTokens:
    """The sampled tokens of complete sequences, one sequence after the other; tensors are `[N]`.

    A sequence is never split: a loss may compare sequences or replies, and the result does
    not depend on which sequences share a micro-batch.
    """

    logprobs: Tensor
    """Under the current policy, the only one with gradient."""
    proximal_logprobs: Tensor
    behavior_logprobs: Tensor
    advantages: Tensor
    sequence_ids: Tensor
    """int64: 0, 0, ..., 1, 1, ...; the sequence each token is of."""
    segment_ids: Tensor
    """int64: counts replies through all sequences; a segment is an unbroken run of sampled tokens."""

    @property
    def frozen_logprobs(self) -> Tensor:
        """Under the current policy, without gradient: what coefficients are computed from. A loss reads this
        and never calls `logprobs.detach()`: the test suite replaces it to compare the gradient with finite
        differences."""
        return self.logprobs.detach()

    def base_logprobs(self, policy: RatioOver) -> Tensor:
        """Under the policy that a ratio has below."""
        return self.proximal_logprobs if policy == "proximal" else self.behavior_logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """What a policy loss returns; tensors are `[N]`, one number per token."""

    loss: Tensor
    """To be minimized, with gradient. Its sum over a sequence is what the formula says of the sequence."""
    ratio: Tensor
    """Current policy over the policy it is compared with; current over proximal where the loss has no
    ratio. Without gradient."""
    clipped: Tensor
    """1 where clipping took the token's gradient away. Without gradient."""
    weight: Tensor | None = None
    """The loss's own importance weight, where it has one. Without gradient."""


class PolicyLossFunction(Protocol):
    """A policy loss with its settings bound."""

    def __call__(self, tokens: PolicyTokens, args: AlgorithmArgs) -> PolicyLoss:
        """Loss of each token."""
        ...


@dataclass(frozen=True, slots=True)
class PolicyLossPlugin(Generic[Own]):
    """What `pg_variant` names: a function, and the model of the `pg_args` it takes."""

    function: Callable[[PolicyTokens, AlgorithmArgs, Own], PolicyLoss]
    settings: type[Own]

    def bound(self, own: PolicyLossArgs) -> PolicyLossFunction:
        """The loss under `own` settings, an instance of `settings`."""
        if not isinstance(own, self.settings):
            raise TypeError(f"the loss takes {self.settings.__name__}, not {type(own).__name__}")
        checked = own

        def loss(tokens: PolicyTokens, args: AlgorithmArgs) -> PolicyLoss:
            return self.function(tokens, args, checked)

        return loss


def policy_loss(
    settings: type[Own],
) -> Callable[[Callable[[PolicyTokens, AlgorithmArgs, Own], PolicyLoss]], PolicyLossPlugin[Own]]:
    """Decorator: make a function a policy loss that takes `settings` as `pg_args`.

    `settings` also states which policies the loss compares (`PolicyLossArgs.ratio`).
    """

    def declare(function: Callable[[PolicyTokens, AlgorithmArgs, Own], PolicyLoss]) -> PolicyLossPlugin[Own]:
        return PolicyLossPlugin(function, settings)

    return declare


def load_policy_loss(args: AlgorithmArgs) -> PolicyLossFunction:
    """The loss that `args.pg_variant` names, with `args.pg_args` checked and bound.

    ConfigurationError for an unknown name, a plug-in that is no policy loss, and wrong settings.
    """
    plugin = registered(args.pg_variant)
    if not isinstance(plugin, PolicyLossPlugin):
        raise ConfigurationError(
            f"pg_variant: {args.pg_variant} is no policy loss but {type(plugin).__name__}; decorate the "
            "function with @policy_loss(...) of envsdk.algorithms.losses"
        )
    return plugin.bound(own_args(args))


def value_loss(*, values: Tensor, old_values: Tensor | None, returns: Tensor, clip: float | None) -> Tensor:
    """Squared error of the value head per token `[...]`, clipped around the old predictions.

        loss = 1/2 max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2)

    Plain 1/2 (V - R)^2 when `clip` or `old_values` is None. Source: the PPO code of OpenAI baselines;
    see "The 37 Implementation Details of PPO" (ICLR blog track 2022), detail 9.
    """
    error = (values - returns).square()
    if clip is not None and old_values is not None:
        near = old_values + (values - old_values).clamp(-clip, clip)
        error = torch.maximum(error, (near - returns).square())
    return error / 2
