"""A registered model's name: made once, kept, made again when damaged, and taken wherever a folder is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import envsdk
from envsdk.base.store.hub import hub_folder, is_model_name, known_folder
from envsdk.base.store.named_models import RECORD
from envsdk.config import load_config
from envsdk.config.explanation import explain
from envsdk.contracts.failures import ConfigurationError
from envsdk.rollouts.play.model import find_model_folder
from envsdk.rollouts.play.model_server import find_model
from envsdk.runs.run_origin import model_of_run
from envsdk.view.token_text import load_decoder
from tests.envsdk.base.store.toy_model import Toy, registered

ASK = "from envsdk.base.store.hub import hub_folder; print(hub_folder('toy'))"


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Toy]:
    with registered(tmp_path, monkeypatch) as toy:
        monkeypatch.chdir(tmp_path)
        yield toy


def test_a_model_is_made_once_and_says_its_license_and_what_it_lacks(
    toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    assert is_model_name("toy")
    assert known_folder("toy") is None
    folder = hub_folder("toy")
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    for part in ("toy", "Toy-0M", "toy-weights 3.1", "CC0-1.0", "it is small", str(folder)):
        assert part in said
    assert hub_folder("toy") == known_folder("toy") == folder
    assert (toy.num_made, capsys.readouterr().err) == (1, "")
    record = json.loads((folder / RECORD).read_text())
    assert record["title"] == "Toy-0M"
    assert {*record["files"], RECORD} == {each.name for each in folder.iterdir()}
    assert {each.name for each in folder.parent.iterdir()} == {folder.name, f".{folder.name}.lock"}


def test_processes_that_want_it_at_once_get_it_from_one(toy: Toy) -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(toy.package), *sys.path])}
    asking = [
        subprocess.Popen([sys.executable, "-c", ASK], stdout=subprocess.PIPE, text=True, env=environ)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=120)[0].strip() for process in asking]
    assert answers == [str(known_folder("toy"))] * 2
    assert toy.num_made == 1


@pytest.mark.parametrize("damage", ["flipped", "gone", "record"])
def test_a_damaged_folder_is_made_again(toy: Toy, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    weights = hub_folder("toy") / "weights.txt"
    capsys.readouterr()
    if damage == "flipped":
        weights.write_text("0123456780")
    elif damage == "gone":
        weights.unlink()
    else:
        (weights.parent / RECORD).write_text("{")
    assert known_folder("toy") is None
    assert hub_folder("toy") == weights.parent
    assert (weights.read_text(), toy.num_made) == ("0123456789", 2)
    said = capsys.readouterr().err
    assert "again, because" in said
    assert damage != "flipped" or "weights.txt has 10 bytes" in said


def test_a_maker_that_fails_leaves_nothing(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_FAILS", "1")
    with pytest.raises(ConfigurationError, match=r"model toy cannot be made: .*no such weights"):
        hub_folder("toy")
    assert [each.name for each in (toy.cache / "models").iterdir() if each.is_dir()] == []
    monkeypatch.delenv("TOY_FAILS")
    assert (hub_folder("toy") / "config.json").is_file()


def test_an_entry_point_that_is_no_model_is_refused(toy: Toy) -> None:
    with pytest.raises(ConfigurationError, match=r"'no_model' in envsdk.models is a function, not a NamedM"):
        hub_folder("no_model")


def test_a_model_folder_of_that_name_comes_first_and_another_folder_does_not(toy: Toy) -> None:
    Path("toy").mkdir()
    assert hub_folder("toy").parent == toy.cache / "models"
    assert find_model_folder(Path("toy")).parent == toy.cache / "models"
    (Path("toy") / "config.json").write_text("{}")
    assert hub_folder("toy") == find_model_folder(Path("toy")) == known_folder("toy") == Path("toy")
    assert not is_model_name("toy")


def test_a_run_is_explained_without_the_model_and_loaded_with_it(toy: Toy) -> None:
    given = ["pretrain=toy", "exp_name=named", "sequence_length=64"]
    explained = load_config("agentic_async.yaml", given, to_explain=True)
    (note,) = [each for each in explained.machine_notes if "toy" in each]
    assert "made from toy-weights 3.1 (Toy-0M, license CC0-1.0)" in note
    assert "not estimated: the model is not on this machine yet" in explain(explained)
    assert toy.num_made == 0
    assert load_config("agentic_async.yaml", given).config.pretrain == "toy"
    assert toy.num_made == 1


def test_the_origin_of_a_run_has_the_name_and_the_folder(toy: Toy, tmp_path: Path) -> None:
    config = load_config("agentic_async.yaml", ["exp_name=named"]).config
    config = config.model_copy(update={"pretrain": "toy", "output_dir": tmp_path / "runs"})
    config.run_folder.mkdir(parents=True)
    folder = model_of_run(config, has_begun=False)
    origin = json.loads((config.run_folder / "origin.json").read_text())
    assert (origin["pretrain"], Path(origin["model"])) == ("toy", folder)
    assert model_of_run(config, has_begun=True) == folder == known_folder("toy")


def test_the_server_and_a_rollout_take_a_name_too(toy: Toy) -> None:
    model = find_model("toy")
    assert (model.folder, model.sequence_length) == (known_folder("toy"), 64)
    long = write_long(Path("long"), model.folder)
    assert find_model(str(long)).sequence_length == 8192
    assert find_model(str(long), ["sequence_length=512"]).sequence_length == 512
    envsdk.rollout("FrozenLake", policy="toy", tasks=1)
    with pytest.raises(ConfigurationError, match="there is no policy"):
        envsdk.rollout("FrozenLake", policy="toys", tasks=1)


def test_the_viewer_takes_the_tokenizer_of_a_name(toy: Toy) -> None:
    decode = load_decoder(Path("toy"))
    assert toy.num_made == 1
    assert decode([0, 1]) == load_decoder(hub_folder("toy"))([0, 1])


def write_long(folder: Path, toy: Path) -> Path:
    """The same model, made for 100,000 tokens."""
    shutil.copytree(toy, folder)
    (folder / "config.json").write_text('{"max_position_embeddings": 100000, "vocab_size": 1000}')
    return folder


@pytest.mark.parametrize("ask", [hub_folder, find_model, lambda name: find_model_folder(Path(name))])
def test_a_misspelt_name_is_answered_with_the_nearest(toy: Toy, ask: object) -> None:
    assert callable(ask)
    with pytest.raises(ConfigurationError, match=r"Did you mean 'smollm2'\?"):
        ask("smolm2")
    with pytest.raises(ConfigurationError, match=r"pretrain.*smolm2.*Did you mean 'smollm2'\?"):
        load_config("agentic_async.yaml", ["pretrain=smolm2"])
