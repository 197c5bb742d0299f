"""A run goes on with the model and the seed it began with, or says why not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from envsdk.config import RunConfig, load_config
from envsdk.contracts.failures import ConfigurationError, StorageError
from envsdk.runs import run_origin
from envsdk.runs.run_origin import FILE_NAME, model_of_run


def model_folder(path: Path, weights: bytes = b"weights") -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}" + weights)
    return path


def run_config(tmp_path: Path, *overrides: str) -> RunConfig:
    (tmp_path / "runs" / "run").mkdir(parents=True, exist_ok=True)
    models = [each.partition("=")[2] for each in overrides if each.startswith("pretrain=")]
    others = [each for each in overrides if not each.startswith("pretrain=")]
    run = [f"output_dir={tmp_path / 'runs'}", "exp_name=run", *others]
    config = load_config("agentic_async.yaml", run).config
    # Set afterwards: the folders here are no models that a configuration would be taken with.
    return config.model_copy(update={"pretrain": models[0]}) if models else config


def begun(tmp_path: Path, *overrides: str) -> RunConfig:
    config = run_config(tmp_path, *overrides)
    model_of_run(config, has_begun=False)
    return config


def test_a_run_goes_on_with_its_model_wherever_that_lies_now(tmp_path: Path) -> None:
    model = model_folder(tmp_path / "model")
    config = begun(tmp_path, f"pretrain={model}")
    assert model_of_run(config, has_begun=True) == model
    moved = tmp_path / "moved"
    shutil.move(model, moved)
    assert model_of_run(run_config(tmp_path, f"pretrain={moved}"), has_begun=True) == moved


def test_another_model_is_refused_with_the_one_that_the_run_began_with(tmp_path: Path) -> None:
    model, other = model_folder(tmp_path / "model"), model_folder(tmp_path / "other", b"others")
    begun(tmp_path, f"pretrain={model}")
    changed = run_config(tmp_path, f"pretrain={other}")
    with pytest.raises(ConfigurationError, match=rf"pretrain: {other}.*another model, {model}; .*exp_name"):
        model_of_run(changed, has_begun=True)
    # What has played nothing may begin anew.
    assert model_of_run(changed, has_begun=False) == other


def test_a_model_that_changed_in_its_folder_is_noticed(tmp_path: Path) -> None:
    model = model_folder(tmp_path / "model")
    config = begun(tmp_path, f"pretrain={model}")
    model_folder(model, b"trained on")
    with pytest.raises(ConfigurationError, match="is not what it was when the run in"):
        model_of_run(config, has_begun=True)


def test_another_seed_is_refused_before_there_is_a_checkpoint(tmp_path: Path) -> None:
    model = model_folder(tmp_path / "model")
    begun(tmp_path, f"pretrain={model}", "seed=1")
    with pytest.raises(ConfigurationError, match=r"seed: 2, but the run in .* has seed 1"):
        model_of_run(run_config(tmp_path, f"pretrain={model}", "seed=2"), has_begun=True)


def test_the_tiny_policy_of_a_run_is_kept_and_never_made_anew_while_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [model_folder(tmp_path / "tiny")]
    monkeypatch.setattr(run_origin, "initial_model", lambda config: made[-1])
    config = begun(tmp_path)
    made.append(model_folder(tmp_path / "tiny 2", b"made by other code"))
    assert model_of_run(config, has_begun=True) == made[0]
    with pytest.raises(ConfigurationError, match=r"warm_start\.epochs: 2, but .* was made with 1"):
        model_of_run(run_config(tmp_path, "warm_start.epochs=2"), has_begun=True)
    shutil.rmtree(made[0])
    with pytest.raises(ConfigurationError, match="made anew by other code"):
        model_of_run(config, has_begun=True)
    shutil.copytree(made[1], tmp_path / "tiny 3")
    made.append(model_folder(tmp_path / "tiny 3"))
    assert model_of_run(config, has_begun=True) == made[-1]


def test_the_tiny_policy_does_not_take_the_place_of_a_model(tmp_path: Path) -> None:
    model = model_folder(tmp_path / "model")
    begun(tmp_path, f"pretrain={model}")
    with pytest.raises(ConfigurationError, match="pretrain: embedded_default, but"):
        model_of_run(run_config(tmp_path), has_begun=True)


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    model = model_folder(tmp_path / "model")
    config = begun(tmp_path, f"pretrain={model}")
    file = config.run_folder / FILE_NAME
    assert json.loads(file.read_text())["pretrain"] == str(model)
    file.write_text("{")
    with pytest.raises(StorageError, match=r"origin\.json is damaged"):
        model_of_run(config, has_begun=True)
