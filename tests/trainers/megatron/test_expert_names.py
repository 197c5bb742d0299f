"""One set of names for the experts of a mixture, on disk and between every trainer and engine."""

from __future__ import annotations

import pytest
import torch
from hf_models import write_model
from safetensors.torch import load_file

from envsdk.contracts.failures import EngineError
from envsdk.contracts.trainer import TrainerConfig
from envsdk.engines.embedded.generic import GenericDecoder, load_model
from envsdk.trainers.torch_trainer import TorchTrainer


def test_experts_have_the_same_names_on_disk_from_the_torch_trainer_and_for_the_engine(tmp_path) -> None:
    model = write_model(tmp_path, "qwen3_moe", num_hidden_layers=2)
    stored, in_memory = load_file(tmp_path / "model.safetensors"), model.state_dict()
    assert "model.layers.1.mlp.experts.3.up_proj.weight" in stored
    trainer = TorchTrainer.create(TrainerConfig(model=tmp_path, sequence_length=64, seed=0))
    weights = [(name, torch.from_numpy(weight)) for name, weight in trainer.weights()]
    assert {name for name, _ in weights} == set(stored)
    assert all(torch.equal(weight, stored[name]) for name, weight in weights)

    decoder = GenericDecoder(
        load_model(tmp_path, torch.float32),
        num_slots=1,
        max_prefill_tokens=64,
        device=torch.device("cpu"),
    )
    for given in (weights, weights[::-1], list(in_memory.items())):
        built = decoder.build(iter(given))
        assert built.keys() == in_memory.keys()
        assert all(torch.equal(built[name], in_memory[name]) for name in in_memory)
    without_one = [pair for pair in weights if pair[0] != "model.layers.1.mlp.experts.3.up_proj.weight"]
    with pytest.raises(EngineError, match=r"layers\.1\.mlp\.experts\.gate_up_proj.* is missing"):
        decoder.build(iter(without_one))
