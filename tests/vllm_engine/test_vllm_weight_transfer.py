"""vLLM's own weight transfer: what it is told, and vLLM itself, on a CPU with handles to main memory."""

from __future__ import annotations

import asyncio
import base64
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cpu_weight_transfer
import numpy as np
import pytest
import torch
from scripted_backend import ScriptedBackend
from tiny_models import reference_logprobs
from vllm_models import ON_A_GPU, make_model, save_model

from envsdk.contracts.failures import EngineError
from envsdk.engines.engine import EngineConfig, GenerationRequest
from envsdk.engines.sampling import SamplingParams
from envsdk.engines.vllm import backend as backend_module
from envsdk.engines.vllm.backend import AsyncLLMBackend
from envsdk.engines.vllm.engine import VLLMEngine
from envsdk.engines.vllm.settings import VLLMSettings
from envsdk.engines.vllm.staged_weights import ALLOW_HANDLES, CONFIG, WeightsOnCard, is_there
from envsdk.weights.buckets import UpdateInterrupted

HERE = Path(__file__).parent
KIND = "qwen3"
ON_CARD = "cpu:0"
"""Stands for a card: `cpu` alone is main memory."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(KIND, tmp_path_factory.mktemp("model"))


def request(name: str, num_tokens: int) -> GenerationRequest:
    return GenerationRequest(
        request_id=name,
        prompt_ids=np.array([5, 1, 7], np.int32),
        sampling=SamplingParams(max_new_tokens=num_tokens, seed=0),
    )


def tensors_of(seed: int) -> Iterator[tuple[str, torch.Tensor]]:
    """As they come from a trainer's card: valid until the next one is asked for."""
    for name, tensor in make_model(KIND, seed=seed).state_dict().items():
        copied = tensor.clone()
        yield name, copied
        copied.fill_(float("nan"))


def test_weights_on_the_card_are_handed_over_as_handles(folder: Path) -> None:
    backend = ScriptedBackend()
    backend.weight_device = ON_CARD
    config = EngineConfig(model=folder, sequence_length=64)
    engine = VLLMEngine.on(backend, config=config, settings=VLLMSettings())

    async def test() -> None:
        await engine.start()
        assert engine.weight_device == ON_CARD
        with pytest.raises(EngineError, match="is missing"):
            await engine.load_weights(iter(list(tensors_of(1))[1:]), 1)
        await engine.load_weights(tensors_of(1), 1)
        await engine.load_weights(((name, tensor.numpy()) for name, tensor in tensors_of(2)), 2)
        await engine.load_weights(folder, 3)
        await engine.close()

    with cpu_weight_transfer.on_this_side():
        asyncio.run(test())
    [told] = backend.transferred
    assert len(backend.loaded) == 2  # what came in main memory
    expected = make_model(KIND, seed=1).state_dict()
    assert told["names"] == list(expected)
    assert set(told["dtype_names"]) == {"float32"}
    assert told["shapes"] == [list(tensor.shape) for tensor in expected.values()]
    handles = pickle.loads(base64.b64decode(told["ipc_handles_pickled"]))
    assert all(list(each) == [cpu_weight_transfer.CARD] for each in handles)


def test_a_card_without_room_breaks_the_update_off() -> None:
    class Huge:
        """A tensor for whose copy there is no room."""

        def detach(self) -> Any:
            return self

        def to(self, *args: Any, **options: Any) -> None:
            raise torch.OutOfMemoryError("2 GiB")

    weights = WeightsOnCard("cuda:0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "as_tensor", lambda weight: weight)
        with pytest.raises(UpdateInterrupted, match=r"has no room .* gpu_memory_utilization"):
            weights.fill([("a", Huge())])


@pytest.mark.vllm
def test_the_installed_vllm_has_the_interface() -> None:
    from vllm.config import WeightTransferConfig
    from vllm.distributed.weight_transfer import ipc_engine
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    assert is_there(AsyncEngineArgs, AsyncLLM)
    assert WeightTransferConfig(**CONFIG).backend == "ipc"
    assert ipc_engine.IPCWeightTransferInitInfo().packed is False
    assert not is_there(AsyncEngineArgs, object)


@pytest.mark.vllm
@pytest.mark.timeout(900)
@pytest.mark.skipif(ON_A_GPU, reason="handles are the card's own there, and every update goes by them")
def test_vllm_computes_with_the_weights_behind_handles(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_args = backend_module.engine_args

    def with_transfer(*args: Any, **options: Any) -> dict[str, Any]:
        extension = "cpu_weight_transfer.WorkerExtension"
        os.environ[ALLOW_HANDLES] = "1"  # for vLLM's processes; this one's own are put back
        return make_args(*args, **options) | {
            "weight_transfer_config": CONFIG,
            "worker_extension_cls": extension,
        }

    monkeypatch.setattr(backend_module, "engine_args", with_transfer)
    monkeypatch.setenv("PYTHONPATH", f"{HERE}:{HERE.parents[1]}")
    monkeypatch.delenv(ALLOW_HANDLES, raising=False)
    config = EngineConfig(model=folder, sequence_length=512, max_running=8)
    backend = AsyncLLMBackend.open(config, VLLMSettings())
    backend.weight_device = ON_CARD
    engine = VLLMEngine.on(backend, config=config, settings=VLLMSettings())
    told: list[int] = []
    hand_over = backend.transfer

    async def transfer(info: dict[str, Any]) -> None:
        told.append(len(info["names"]))
        await hand_over(info)

    monkeypatch.setattr(backend, "transfer", transfer)

    async def test() -> None:
        await engine.start()
        try:
            for version in (1, 2):
                running = engine.submit(request(f"running {version}", 300))
                await engine.load_weights(tensors_of(version), version)
                fresh = await engine.submit(request(f"fresh {version}", 20))
                model = make_model(KIND, seed=version)
                expected = reference_logprobs(model, np.array([5, 1, 7]), fresh.token_ids, 1.0)
                np.testing.assert_allclose(fresh.logprobs, expected, atol=1e-4)
                assert [span.version for span in fresh.version_spans] == [version]
                spans = (await running).version_spans
                assert spans[-1].version == version
            await engine.load_weights(folder, 3)  # through main memory
            model = make_model(KIND)
            fresh = await engine.submit(request("last", 20))
            expected = reference_logprobs(model, np.array([5, 1, 7]), fresh.token_ids, 1.0)
            np.testing.assert_allclose(fresh.logprobs, expected, atol=1e-4)
        finally:
            await engine.close()
        assert told == [len(make_model(KIND).state_dict())] * 2

    with cpu_weight_transfer.on_this_side():
        asyncio.run(asyncio.wait_for(test(), 600))
