"""The precision that `dtype: auto` takes, and where it is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from envsdk.base.settings import precision as module
from envsdk.base.settings.precision import multiplies_bfloat16, precision
from envsdk.base.store.model_files import model_sizes, stored_dtype
from envsdk.contracts.trainer import TrainerConfig
from envsdk.engines.embedded import EmbeddedEngine, EmbeddedSettings
from envsdk.engines.engine import EngineConfig
from envsdk.trainers.torch_trainer import TorchTrainer
from envsdk.trainers.training_args import FSDP2StrategyConfig, TorchStrategyConfig


@pytest.fixture
def has_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_cpu_flags", lambda: frozenset({"avx512_bf16"}))
    multiplies_bfloat16.cache_clear()
    yield
    multiplies_bfloat16.cache_clear()


@pytest.fixture
def half_folder(model_folder: Path, tmp_path: Path) -> Path:
    """The model in a folder that says it is for bfloat16."""
    folder = tmp_path / "half"
    shutil.copytree(model_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    return folder


def test_auto_is_the_checkpoints_own_type_where_the_processor_multiplies_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def chosen(flags: set[str], stored: str, device: str = "cpu") -> str:
        monkeypatch.setattr(module, "_cpu_flags", lambda: frozenset(flags))
        multiplies_bfloat16.cache_clear()
        return precision("auto", stored=stored, device=device).dtype

    assert chosen({"avx2", "amx_bf16"}, "bfloat16") == "bfloat16"
    assert chosen({"avx2"}, "bfloat16") == "float32"
    assert chosen({"amx_bf16"}, "float32") == "float32"
    assert chosen({"amx_bf16"}, "float16") == "float32"
    assert chosen({"amx_bf16"}, "bfloat16", "mps") == "float32"
    multiplies_bfloat16.cache_clear()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_type_that_is_set_is_taken_on_any_machine(dtype) -> None:
    assert precision(dtype, stored="float16", device="mps").dtype == dtype


def test_a_folder_that_names_no_type_is_computed_in_float32(tmp_path: Path) -> None:
    for content in ("{}", "no JSON", "[]"):
        (tmp_path / "config.json").write_text(content)
        assert precision("auto", stored=stored_dtype(tmp_path), device="cpu").dtype == "float32"
    assert "no type" in precision("auto", stored=stored_dtype(tmp_path / "nowhere"), device="cpu").why


def test_trainer_and_engine_take_the_same_type_and_estimate_with_it(
    has_bfloat16, model_folder, half_folder
) -> None:
    for folder, dtype in ((model_folder, torch.float32), (half_folder, torch.bfloat16)):
        trainer = TorchTrainer.create(TrainerConfig(model=folder, sequence_length=64, seed=0))
        assert trainer.model.dtype is dtype
        assert trainer.kernels()["products"].startswith(str(dtype).removeprefix("torch."))
        engine = EmbeddedEngine.create(EngineConfig(model=folder, sequence_length=64))
        assert engine.core.decoder._dtype is dtype  # type: ignore[attr-defined]
        sizes = model_sizes(folder)
        sampling = EmbeddedSettings().sampling_memory(sizes, num_replies=1, num_tokens=64)
        assert sampling["weights"] == dtype.itemsize * sizes.num_parameters
        training = TorchStrategyConfig().training_memory(sizes, num_ranks=1, num_tokens=64)
        assert ("weights in bfloat16" in training) == (dtype is torch.bfloat16)
        sharded = FSDP2StrategyConfig().training_memory(sizes, num_ranks=2, num_tokens=64)
        assert sharded["gathered weights"] > 0
