"""Advantages, losses and divergences as pure functions; every trainer uses the same ones.

Public: estimators of advantages, policy losses, group filters, and what plug-ins of each kind build on.
Losses need torch and are imported at their first use; the rest needs NumPy only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envsdk.base.settings.public import public_names

if TYPE_CHECKING:
    from envsdk.algorithms.advantage_sample import AdvantageSample, Steps, TokenAdvantages, steps_of
    from envsdk.algorithms.advantages import token_advantages
    from envsdk.algorithms.aggregation import sequence_weights
    from envsdk.algorithms.args import AlgorithmArgs
    from envsdk.algorithms.estimator_contract import (
        AdvantageEstimator,
        EstimatorArgs,
        advantage_estimator,
        load_estimator,
    )
    from envsdk.algorithms.estimators import (
        discounted_returns,
        gigpo_step_advantages,
        group_advantages,
        rloo_advantages,
    )
    from envsdk.algorithms.group_filters import FilterArgs, group_filter, load_filter
    from envsdk.algorithms.kl import adapted_kl_coef, kl_estimate
    from envsdk.algorithms.losses import PolicyLoss, PolicyTokens, load_policy_loss, policy_loss, value_loss
    from envsdk.algorithms.policy_loss_args import OverBehavior, OverProximal, PolicyLossArgs
    from envsdk.algorithms.ratios import bounded_exp, log_ratio

_LAZY = {
    "AdvantageEstimator": "envsdk.algorithms.estimator_contract",
    "AdvantageSample": "envsdk.algorithms.advantage_sample",
    "AlgorithmArgs": "envsdk.algorithms.args",
    "EstimatorArgs": "envsdk.algorithms.estimator_contract",
    "FilterArgs": "envsdk.algorithms.group_filters",
    "OverBehavior": "envsdk.algorithms.policy_loss_args",
    "OverProximal": "envsdk.algorithms.policy_loss_args",
    "PolicyLoss": "envsdk.algorithms.losses",
    "PolicyLossArgs": "envsdk.algorithms.policy_loss_args",
    "PolicyTokens": "envsdk.algorithms.losses",
    "Steps": "envsdk.algorithms.advantage_sample",
    "TokenAdvantages": "envsdk.algorithms.advantage_sample",
    "adapted_kl_coef": "envsdk.algorithms.kl",
    "advantage_estimator": "envsdk.algorithms.estimator_contract",
    "bounded_exp": "envsdk.algorithms.ratios",
    "discounted_returns": "envsdk.algorithms.estimators",
    "gigpo_step_advantages": "envsdk.algorithms.estimators",
    "group_advantages": "envsdk.algorithms.estimators",
    "group_filter": "envsdk.algorithms.group_filters",
    "kl_estimate": "envsdk.algorithms.kl",
    "load_estimator": "envsdk.algorithms.estimator_contract",
    "load_filter": "envsdk.algorithms.group_filters",
    "load_policy_loss": "envsdk.algorithms.losses",
    "log_ratio": "envsdk.algorithms.ratios",
    "policy_loss": "envsdk.algorithms.losses",
    "rloo_advantages": "envsdk.algorithms.estimators",
    "sequence_weights": "envsdk.algorithms.aggregation",
    "steps_of": "envsdk.algorithms.advantage_sample",
    "token_advantages": "envsdk.algorithms.advantages",
    "value_loss": "envsdk.algorithms.losses",
}

__all__ = [
    "AdvantageEstimator",
    "AdvantageSample",
    "AlgorithmArgs",
    "EstimatorArgs",
    "FilterArgs",
    "OverBehavior",
    "OverProximal",
    "PolicyLoss",
    "PolicyLossArgs",
    "PolicyTokens",
    "Steps",
    "TokenAdvantages",
    "adapted_kl_coef",
    "advantage_estimator",
    "bounded_exp",
    "discounted_returns",
    "gigpo_step_advantages",
    "group_advantages",
    "group_filter",
    "kl_estimate",
    "load_estimator",
    "load_filter",
    "load_policy_loss",
    "log_ratio",
    "policy_loss",
    "rloo_advantages",
    "sequence_weights",
    "steps_of",
    "token_advantages",
    "value_loss",
]

__getattr__, __dir__ = public_names(__name__, _LAZY)
