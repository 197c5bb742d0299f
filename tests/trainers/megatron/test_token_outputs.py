"""Log-probabilities and entropy of a shared-out vocabulary, and token outputs over context ranks."""

from __future__ import annotations

from typing import Any

import torch
from ranks import run_ranks

from envsdk.contracts.support import Support
from envsdk.contracts.trainer import TrainerRank

VOCAB_SIZE, TEMPERATURE = 11, 0.7
SUPPORT = Support.of([[], [5, 1, 10], [6], [7, 10], [], [7, 0, 2, 9]])


def of_a_rank(rank: TrainerRank) -> dict[str, Any]:
    import torch.distributed as dist

    from envsdk.trainers.megatron.token_outputs import over_context, vocab_parallel_logprobs_and_entropy
    from envsdk.trainers.process_group import join_process_group

    join_process_group(rank)
    logits, ids, weights = drawn()
    padded = torch.nn.functional.pad(logits, (0, 1), value=50.0)
    mine = padded.chunk(2, -1)[rank.rank].clone().requires_grad_()
    logprobs, entropy = vocab_parallel_logprobs_and_entropy(
        mine,
        ids,
        vocab_size=VOCAB_SIZE,
        group=dist.group.WORLD,
        temperature=TEMPERATURE,
        entropy_gradient=True,
        support=SUPPORT,
    )
    (weights[0] * logprobs + weights[1] * entropy).sum().backward()
    parts = torch.full((2, 2), float(rank.rank + 1), requires_grad=True)
    places = torch.tensor([[0, 3], [1, 2]][rank.rank])
    whole = over_context(parts, places, 4, dist.group.WORLD)
    (whole * torch.arange(8.0).view(2, 4)).sum().backward()
    empty = over_context(parts[:, :0], places[:0], 0, dist.group.WORLD)
    dist.destroy_process_group()
    return {
        "logprobs": logprobs.tolist(),
        "entropy": entropy.tolist(),
        "gradient": mine.grad.tolist(),
        "whole": whole.tolist(),
        "of_parts": parts.grad.tolist(),
        "empty": empty.shape,
    }


def drawn() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(6, VOCAB_SIZE, generator=generator)
    return logits, torch.tensor([0, 5, 6, 10, 3, 7]), torch.randn(2, 6, generator=generator)


def test_they_are_those_of_the_whole_vocabulary_and_each_rank_gets_its_own_gradient() -> None:
    from envsdk.algorithms.logits import token_logprobs_and_entropy

    logits, ids, weights = drawn()
    logits.requires_grad_()
    logprobs, entropy = token_logprobs_and_entropy(
        logits, ids, temperature=TEMPERATURE, entropy_gradient=True, support=SUPPORT
    )
    (weights[0] * logprobs + weights[1] * entropy).sum().backward()
    found = run_ranks(2, of_a_rank)
    gradient = torch.cat([torch.tensor(rank["gradient"]) for rank in found], -1)
    assert logits.grad is not None
    torch.testing.assert_close(gradient[:, :VOCAB_SIZE], logits.grad, atol=1e-6, rtol=1e-6)
    assert torch.equal(gradient[:, VOCAB_SIZE:], torch.zeros(6, 1))
    for rank in found:
        torch.testing.assert_close(torch.tensor(rank["logprobs"]), logprobs.detach(), atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(torch.tensor(rank["entropy"]), entropy.detach(), atol=1e-6, rtol=1e-6)
        assert rank["whole"] == [[1.0, 2.0, 2.0, 1.0]] * 2
        assert rank["empty"] == (2, 0)
    assert [rank["of_parts"] for rank in found] == [
        [[0.0, 3.0], [4.0, 7.0]],
        [[1.0, 2.0], [5.0, 6.0]],
    ]
