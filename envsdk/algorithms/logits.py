"""Log-probabilities and entropy of the sampling distribution.

Shapes: N tokens, V vocabulary.
"""

import torch
from torch import Tensor


def token_logprobs_and_entropy(
    logits_NV: Tensor, ids_N: Tensor, *, temperature: float = 1.0, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-probability `[N]` of each id and entropy `[N]`, nats, of softmax(logits / temperature).

        z = logits / temperature    log p(id) = z_id - logsumexp(z)    H = logsumexp(z) - sum_v p_v z_v

    Computed in float32. The entropy is detached unless `entropy_gradient`. `top_p` and `top_k` are not
    applied: with them on, these are not the sampler's log-probabilities.
    """
    scaled_NV = logits_NV.float() / temperature
    normalizer_N = torch.logsumexp(scaled_NV, dim=-1)
    logprobs_N = scaled_NV.gather(-1, ids_N.unsqueeze(-1)).squeeze(-1) - normalizer_N
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy_N = normalizer_N - (torch.softmax(scaled_NV, dim=-1) * scaled_NV).sum(-1)
    return logprobs_N, entropy_N
