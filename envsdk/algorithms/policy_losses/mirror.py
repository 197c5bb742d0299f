"""Mirror descent: REINFORCE held near another policy by a penalty, with no importance ratio.

Below, A is a token's advantage. Tensors are `[N]`.
"""

from __future__ import annotations

import torch

from envsdk.algorithms.args import AlgorithmArgs
from envsdk.algorithms.losses import PolicyLoss, PolicyTokens, policy_loss
from envsdk.algorithms.policy_loss_args import Kimi15Args, OPMDArgs
from envsdk.algorithms.ratios import bounded_exp, log_ratio, sum_by


@policy_loss(Kimi15Args)
def kimi15(tokens: PolicyTokens, args: AlgorithmArgs, own: Kimi15Args) -> PolicyLoss:
    """Kimi k1.5's policy optimization: REINFORCE and a squared log-ratio.

        loss of a sequence y = -sum of A log pi_current + tau / 2 D^2
        D = log(pi_current(y) / pi_base(y)) = sum of d over y

    given as -A log pi_current + tau / 2 D d per token; `level: token` has d^2 in place of D d. The gradient
    tau D of the square is each token's own, so that what the correction weighs or leaves out of a token is
    all that it has. Compares current with proximal (the paper's pi_i, the policy at the start of the
    iteration), or with behavior. In the first step D is 0 over proximal, and so is the penalty's gradient.
    The square pulls back and does not weigh: staleness is the correction's business. The paper's baseline
    is the group's mean reward: `adv_estimator: grpo` with `grpo_normalize_std: false`. ROLL's `kimi15` has
    the token's square.

    Source: Kimi k1.5, arXiv:2501.12599, eq. 3.
    """
    base = tokens.base_logprobs(own.ratio_over)
    # Not held to a range: a square does not overflow, and a pull must not end where it is needed most.
    d = tokens.frozen_logprobs - base
    pull = sum_by(tokens.sequence_ids, d) if own.level == "sequence" else d
    squared = pull * (2 * (tokens.logprobs - base) - d)
    return PolicyLoss(
        loss=-tokens.advantages * tokens.logprobs + own.tau / 2 * squared,
        ratio=bounded_exp(d),
        clipped=torch.zeros_like(d),
    )


@policy_loss(OPMDArgs)
def opmd(tokens: PolicyTokens, args: AlgorithmArgs, own: OPMDArgs) -> PolicyLoss:
    """Online policy mirror descent in its simplest form.

        loss = -A log pi_current / (1 + tau)

    Compares no policies: the penalty is taken at the current policy, where it only scales the gradient. A is
    the reward less the group's mean: `adv_estimator: grpo` with `grpo_normalize_std: false`. Under Adam,
    which undoes the scale of a gradient, tau acts only against the other terms of the loss.

    Source: `opmd` of Trinity-RFT, arXiv:2505.17826, which simplifies Kimi k1.5, arXiv:2501.12599.
    """
    frozen = bounded_exp(log_ratio(tokens.frozen_logprobs, tokens.proximal_logprobs))
    return PolicyLoss(
        loss=-tokens.advantages * tokens.logprobs / (1 + own.tau),
        ratio=frozen,
        clipped=torch.zeros_like(frozen),
    )
