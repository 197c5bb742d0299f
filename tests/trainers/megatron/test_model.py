"""Megatron's logits against those of transformers, and weights in and out, under every layout of 4 ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_models import MODELS, VOCAB_SIZE, is_mixture, write_logits, write_model
from ranks import need_gpus, run_ranks, run_ranks_on_gpus
from safetensors.torch import load_file

from envsdk.contracts.trainer import TrainerRank
from envsdk.trainers.megatron.args import MegatronStrategyConfig
from tests.by_day import by_day
from tests.trainers.megatron import cpu_shim

Layout = dict[str, Any]

MICRO_BATCHES = (((3, 8), (17, 24), (16, 16)), ((48, 48),), ((40, 40), (1, 8)), ((9, 16),) * 3)
"""Of each sequence its length and what it is padded to."""
SEQUENCES = [
    torch.randint(0, VOCAB_SIZE, (length,), generator=torch.Generator().manual_seed(index))
    for index, (length, _) in enumerate(itertools.chain(*MICRO_BATCHES))
]


def layouts(num_ranks: int, *, has_experts: bool) -> Iterator[Layout]:
    """All that fit, but what a model of four layers, four key-value heads or four experts does not allow."""
    sizes = [size for size in (1, 2, 4) if num_ranks % size == 0]
    for tp, pp, cp, ep, etp in itertools.product(sizes, repeat=5):
        if (not has_experts and ep * etp > 1) or (num_ranks % (tp * pp * cp) or num_ranks % (etp * ep * pp)):
            continue
        for sequence_parallel in (False, True) if tp > 1 else (False,):
            if has_experts and tp > 1 and not sequence_parallel:
                continue
            for virtual in (None, 2) if pp == 2 else (None,):
                yield {
                    "tensor_model_parallel_size": tp,
                    "pipeline_model_parallel_size": pp,
                    "virtual_pipeline_model_parallel_size": virtual,
                    "context_parallel_size": cp,
                    "expert_model_parallel_size": ep,
                    "expert_tensor_parallel_size": etp if has_experts else None,
                    "sequence_parallel": sequence_parallel,
                }


def check_layouts(rank: TrainerRank, folder: Path, cases: list[Layout], tolerance: float = 1e-4) -> int:
    """Load, compare logits, export and compare weights; returns how many layouts passed."""
    import torch.distributed as dist
    from megatron.core import parallel_state

    cpu_shim.install()
    from envsdk.trainers.megatron.hf_config import read_config
    from envsdk.trainers.megatron.hf_weights import FolderWeights, export, load
    from envsdk.trainers.megatron.model import build_model, initialize_parallelism, share_out_ranks

    expected = load_file(folder / "logits.safetensors")
    stored = load_file(folder / "model.safetensors")
    hf_config = read_config(folder)
    for index, case in enumerate(cases):
        strategy = MegatronStrategyConfig(**case)
        if index == 0:
            initialize_parallelism(strategy, rank, 0)
        else:
            parallel_state.destroy_model_parallel()
            share_out_ranks(strategy, 0)
        chunks = build_model(hf_config, strategy)
        load(chunks, FolderWeights(folder))
        try:
            for name, logits in logits_of(chunks, strategy).items():
                torch.testing.assert_close(logits.cpu(), expected[name], atol=tolerance, rtol=tolerance)
            exported = list(export(chunks, hf_config.vocab_size))
            assert sorted(name for name, _ in exported) == sorted(stored)
            for name, tensor in exported:
                assert torch.equal(tensor.cpu(), stored[name].to(tensor.dtype)), name
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from error
    dist.destroy_process_group()
    return len(cases)


@torch.no_grad()
def logits_of(chunks: list[Any], strategy: MegatronStrategyConfig) -> dict[str, torch.Tensor]:
    """Of each sequence on ranks of the last stage; nothing on others."""
    import torch.distributed as dist
    from megatron.core import parallel_state
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.pipeline_parallel import get_forward_backward_func

    from envsdk.trainers.megatron.device import device
    from envsdk.trainers.megatron.layer_spec import zigzag

    cp, tp = strategy.context_parallel_size, strategy.tensor_model_parallel_size
    context, tensor = (
        parallel_state.get_context_parallel_group(),
        parallel_state.get_tensor_model_parallel_group(),
    )
    found: dict[str, torch.Tensor] = {}
    numbers = iter(range(len(SEQUENCES)))
    batches = [[(next(numbers), padded) for _, padded in batch] for batch in MICRO_BATCHES]

    def forward_step(iterator: Iterator[list[tuple[int, int]]], chunk: Any) -> tuple[torch.Tensor, Any]:
        batch = next(iterator)
        ids, positions, ends = [], [], [0]
        for number, length in batch:
            padded = torch.nn.functional.pad(SEQUENCES[number], (0, length - len(SEQUENCES[number])))
            held = zigzag(length, cp)[context.rank()]
            ids.append(padded[held])
            positions.append(held)
            ends.append(ends[-1] + length)
        cumulative = torch.tensor(ends, dtype=torch.int32, device=device())
        longest = max(length for _, length in batch)
        packed = PackedSeqParams(
            qkv_format="thd",
            cu_seqlens_q=cumulative,
            cu_seqlens_kv=cumulative,
            max_seqlen_q=longest,
            max_seqlen_kv=longest,
        )
        output = chunk(
            torch.cat(ids)[None].to(device()),
            torch.cat(positions)[None].to(device()),
            None,
            packed_seq_params=packed,
        )

        def keep(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
            columns = [torch.empty_like(logits[0]) for _ in range(tp)]
            dist.all_gather(columns, logits[0].contiguous(), group=tensor)
            mine = torch.cat(columns, -1)[:, :VOCAB_SIZE]
            ranks = [torch.empty_like(mine) for _ in range(cp)]
            dist.all_gather(ranks, mine.contiguous(), group=context)
            at = 0
            for number, length in batch:
                parts = torch.cat([part[at : at + length // cp] for part in ranks])
                at += length // cp
                whole = torch.empty_like(parts)
                whole[zigzag(length, cp).flatten().to(parts.device)] = parts
                found[str(number)] = whole[: len(SEQUENCES[number])]
            return logits.sum(), torch.zeros((), dtype=torch.int, device=logits.device), None

        return output, keep

    for chunk in chunks:
        chunk.eval()
    iterators = [iter(batches) for _ in chunks]
    get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=iterators if len(iterators) > 1 else iterators[0],
        model=chunks if len(chunks) > 1 else chunks[0],
        num_microbatches=len(batches),
        seq_length=48,
        micro_batch_size=1,
        forward_only=True,
    )
    if parallel_state.is_pipeline_last_stage(ignore_virtual=True):
        assert found.keys() == {str(number) for number in range(len(SEQUENCES))}
    return found


EVERYWHERE = ("llama", "qwen2 tied", "qwen3", "qwen3_moe")
"""Under all layouts; the others where an embedding is shared out or is on two ranks."""


def num_parts(name: str) -> int:
    """Of how many layouts one belongs to a part; the parts of `make test` lack no kind of parallelism."""
    return (18 if is_mixture(name) else 7) if name in EVERYWHERE else 2


@pytest.mark.parametrize(
    ("name", "part"),
    by_day(
        [("qwen2 tied", 1), ("qwen3_moe", 10), ("glm4_moe", 0)],
        [(name, part) for name in MODELS for part in range(num_parts(name))],
    ),
)
def test_logits_and_weights_are_those_of_transformers_under_every_layout_of_four_ranks(
    name, part, tmp_path
) -> None:
    write_logits(tmp_path, write_model(tmp_path, name), SEQUENCES)
    cases = list(layouts(4, has_experts=is_mixture(name)))
    if name not in EVERYWHERE:
        cases = [case for case in cases if case["context_parallel_size"] == 1][-4:]
    cases = cases[part :: num_parts(name)]
    assert len(cases) >= 2
    assert run_ranks(4, check_layouts, tmp_path, cases) == [len(cases)] * 4


def test_in_bfloat16_weights_are_rounded_once_and_logits_are_near(tmp_path) -> None:
    write_logits(tmp_path, write_model(tmp_path, "qwen3", initializer_range=0.05), SEQUENCES)
    cases = [
        {"dtype": "bfloat16"},
        {"dtype": "bfloat16", "tensor_model_parallel_size": 2, "sequence_parallel": True},
        {
            "dtype": "bfloat16",
            "pipeline_model_parallel_size": 2,
            "virtual_pipeline_model_parallel_size": 2,
        },
    ]
    assert run_ranks(2, check_layouts, tmp_path, cases, tolerance=5e-2) == [3] * 2


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*EVERYWHERE, "mixtral", "glm4_moe"])
def test_logits_and_weights_are_those_of_transformers_on_gpus(name, tmp_path) -> None:
    num_gpus = need_gpus()
    num_ranks = max(size for size in (1, 2, 4) if size <= num_gpus)
    write_logits(tmp_path, write_model(tmp_path, name), SEQUENCES)
    cases = list(layouts(num_ranks, has_experts=is_mixture(name)))
    assert run_ranks_on_gpus(num_ranks, check_layouts, tmp_path, cases) == [len(cases)] * num_ranks
