"""Log-probabilities, entropies and values where ranks shard the vocabulary and the sequence.

Shapes: T inputs that this rank holds, S of them scored, N scored tokens of all context-parallel ranks,
H hidden size, V columns of the vocabulary that this rank holds.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor, nn

from envsdk.algorithms.logits import held_to
from envsdk.contracts.support import Support

Group = Any
"""A process group of `torch.distributed`."""


def vocab_parallel_logprobs_and_entropy(
    logits_SV: Tensor,
    ids_S: Tensor,
    *,
    vocab_size: int,
    group: Group,
    temperature: float = 1.0,
    entropy_gradient: bool = False,
    support: Support | None = None,
) -> tuple[Tensor, Tensor]:
    """`token_logprobs_and_entropy` of a vocabulary of which each rank of `group` holds the next V columns.

    Columns from `vocab_size` on only pad the vocabulary and have probability 0. In float32; every rank gets
    the same result. The entropy is detached unless `entropy_gradient`.
    """
    first = group.rank() * logits_SV.shape[-1]
    logprobs_S, entropy_S = _VocabParallel.apply(  # type: ignore[no-untyped-call]
        logits_SV, ids_S - first, vocab_size - first, temperature, group, support
    )
    return logprobs_S, entropy_S if entropy_gradient else entropy_S.detach()


class _VocabParallel(torch.autograd.Function):
    """With z = logits / temperature and p = softmax(z) over all ranks:

    log p_i = z_i - log Z             d log p_i / d z_v = [v = i] - p_v
    H = log Z - sum_v p_v z_v         d H / d z_v = p_v (sum_u p_u z_u - z_v)
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits_SV: Tensor,
        local_S: Tensor,
        num_real: int,
        temperature: float,
        group: Group,
        support: Support | None,
    ) -> tuple[Tensor, Tensor]:
        width = logits_SV.shape[-1]
        scaled_SV = held_to(logits_SV.float() / temperature, support, first=group.rank() * width)
        if num_real < width:
            # Finite, so that 0 times it is 0.
            scaled_SV[:, max(0, num_real) :] = torch.finfo(torch.float32).min
        largest_S = scaled_SV.amax(-1)
        dist.all_reduce(largest_S, dist.ReduceOp.MAX, group=group)
        shares_SV = (scaled_SV - largest_S.unsqueeze(-1)).exp_()
        is_mine_S = (local_S >= 0) & (local_S < width)
        column_S = local_S.clamp(0, width - 1)
        own_S = scaled_SV.gather(-1, column_S.unsqueeze(-1)).squeeze(-1).masked_fill(~is_mine_S, 0.0)
        # sum_v exp(z_v - max) (z_v - max) would cancel less, but z_v is what the backward pass needs.
        sums_3S = torch.stack([shares_SV.sum(-1), (shares_SV * scaled_SV).sum(-1), own_S])
        dist.all_reduce(sums_3S, group=group)
        mass_S, weighted_S, target_S = sums_3S
        normalizer_S = largest_S + mass_S.log()
        mean_S = weighted_S / mass_S
        ctx.save_for_backward(scaled_SV, shares_SV.div_(mass_S.unsqueeze(-1)), mean_S, column_S, is_mine_S)
        ctx.temperature, ctx.dtype = temperature, logits_SV.dtype
        ctx.set_materialize_grads(False)
        return target_S - normalizer_S, normalizer_S - mean_S

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        scaled_SV, probability_SV, mean_S, column_S, is_mine_S = ctx.saved_tensors
        of_logprobs_S, of_entropy_S = gradients
        gradient_SV = torch.zeros_like(probability_SV)
        if of_logprobs_S is not None:
            gradient_SV -= of_logprobs_S.unsqueeze(-1) * probability_SV
            own_S = (of_logprobs_S * is_mine_S).unsqueeze(-1)
            gradient_SV.scatter_add_(-1, column_S.unsqueeze(-1), own_S)
        if of_entropy_S is not None:
            gradient_SV += of_entropy_S.unsqueeze(-1) * probability_SV * (mean_S.unsqueeze(-1) - scaled_SV)
        return (gradient_SV / ctx.temperature).to(ctx.dtype), None, None, None, None, None


def over_context(parts_KS: Tensor, places_S: Tensor, num_scored: int, group: Group) -> Tensor:
    """K numbers of all N scored tokens `[K, N]` on every rank of `group`, from each rank's own S.

    The gradient of a token flows to the rank that holds it and to no other: every rank computes the same
    loss from the result, and their gradients are added up later.
    """
    whole_KN: Tensor = _OverContext.apply(parts_KS, places_S, num_scored, group)  # type: ignore[no-untyped-call]
    return whole_KN


class _OverContext(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parts_KS: Tensor, places_S: Tensor, num_scored: int, group: Group) -> Tensor:
        ctx.save_for_backward(places_S)
        whole_KN = parts_KS.new_zeros(len(parts_KS), num_scored)
        whole_KN[:, places_S] = parts_KS
        dist.all_reduce(whole_KN, group=group)
        return whole_KN

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (places_S,) = ctx.saved_tensors
        return gradients[0][:, places_S], None, None, None


def add_value_head(gpt: nn.Module, hidden_size: int, device: torch.device) -> None:
    """Give a last stage its `value_head`, float32 and zero, the same on all tensor-parallel ranks."""
    head = nn.Linear(hidden_size, 1, device=device)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    gpt.add_module("value_head", head)


class ScoredHead:
    """Narrows what enters the output layer: ask -> the model's forward pass -> take_values.

    Under sequence parallelism the positions are gathered before they are chosen from, by the hook and
    not by the layer; the layer then adds up the gradients of the few chosen ones only.

    Shapes: T inputs that this rank holds, S of them scored, H hidden size.
    """

    def __init__(self, gpt: nn.Module) -> None:
        self._gpt: Any = gpt
        self._scored_S: Tensor | None = None
        self._values_S: Tensor | None = None
        layer: Any = self._gpt.output_layer
        self._gathers = layer.sequence_parallel
        if self._gathers:
            layer.sequence_parallel, layer.allreduce_dgrad = False, True
        layer.register_forward_pre_hook(self._narrow)

    def ask(self, scored_S: Tensor) -> None:
        """The positions, as indices into T, whose logits the next forward pass gives."""
        self._scored_S = scored_S

    def take_values(self) -> Tensor | None:
        """The value head's predictions `[S]` of the last forward pass, where there is a head."""
        values_S, self._values_S = self._values_S, None
        return values_S

    def _narrow(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden_T1H = inputs[0]
        assert self._scored_S is not None
        if self._gathers:
            # Every rank computes the full gradient of the chosen positions and takes its own part.
            hidden_T1H = gather_from_sequence_parallel_region(
                hidden_T1H,
                tensor_parallel_output_grad=False,
                group=parallel_state.get_tensor_model_parallel_group(),
            )
        hidden_S1H = hidden_T1H[self._scored_S]
        if hasattr(self._gpt, "value_head"):
            self._values_S = self._gpt.value_head(hidden_S1H[:, 0].float()).squeeze(-1)
        self._scored_S = None
        return (hidden_S1H, *inputs[1:])
