"""The shim that lets Megatron run where there is no CUDA: what it changes, and what it leaves alone."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks

from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.trainer import TrainerConfig, TrainerRank

needs_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="the shim is for machines without CUDA")

WITH_CUDA = """
import importlib, sys, torch
torch.cuda.is_available = lambda: True
from tests.trainers.megatron import cpu_shim as cpu
before = list(sys.meta_path)
assert cpu.install() is False
assert sys.meta_path == before
assert not any(name.startswith("megatron.core") for name in sys.modules)
"""


def _what_is_seen(rank: TrainerRank) -> dict[str, Any]:
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tests.trainers.megatron.cpu_shim").addHandler(handler)
    from tests.trainers.megatron import cpu_shim as cpu

    answers = [cpu.install(), cpu.install()]
    import megatron.core.models.bert.bert_model as imported_later
    import megatron.core.tensor_parallel.random as random
    from megatron.core import parallel_state

    from envsdk.trainers.megatron.device import device

    torch.manual_seed(5)
    state = random._get_cuda_rng_state()
    first = torch.rand(3)
    random._set_cuda_rng_state(state)
    return {
        "answers": answers,
        "messages": messages,
        "device": str(device()),
        "made": str(parallel_state.torch.zeros(2, device="cuda").device),
        "current": str(parallel_state.torch.cuda.current_device()),
        "later": imported_later.torch is parallel_state.torch,
        "repeated": torch.equal(first, torch.rand(3)),
        "torch is itself": torch.zeros.__module__ != cpu.__name__ and not torch.cuda.is_available(),
        "numpy-like": parallel_state.torch.float32 is torch.float32,
    }


@needs_cpu
def test_megatron_is_answered_by_the_cpu_and_says_so_once() -> None:
    (seen,) = run_ranks(1, _what_is_seen)
    (message,) = seen.pop("messages")
    assert "Megatron runs on the CPU through a shim" in message
    assert seen == {
        "answers": [True, True],
        "device": "cpu",
        "made": "cpu",
        "current": "cpu",
        "later": True,
        "repeated": True,
        "torch is itself": True,
        "numpy-like": True,
    }


def _real_torch(rank: TrainerRank) -> str:
    from tests.trainers.megatron import cpu_shim as cpu

    cpu.install()
    try:
        torch.zeros(1, device="cuda")
    except (AssertionError, RuntimeError) as error:
        return type(error).__name__
    return "made"


@needs_cpu
def test_other_libraries_still_cannot_have_what_is_not_there() -> None:
    (found,) = run_ranks(1, _real_torch)
    assert found != "made"


def test_nothing_is_installed_where_cuda_is_present() -> None:
    result = subprocess.run([sys.executable, "-c", WITH_CUDA], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


def _refusal(rank: TrainerRank) -> str:
    from envsdk.trainers.megatron.trainer import MegatronTrainer

    with pytest.raises(ConfigurationError) as refused:
        MegatronTrainer.create(TrainerConfig(model=Path(), sequence_length=8, seed=0, rank=rank))
    return str(refused.value)


@needs_cpu
def test_the_trainer_itself_needs_a_gpu_and_says_so() -> None:
    (message,) = run_ranks(1, _refusal)
    assert "megatron_train needs a CUDA GPU" in message
    assert "fsdp2_train or torch" in message


def test_settings_can_be_checked_without_torch_or_megatron() -> None:
    program = (
        "import sys, envsdk.trainers.megatron.args; "
        "sys.exit(any(name.split('.')[0] in ('torch', 'megatron') for name in sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
