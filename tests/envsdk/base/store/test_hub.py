"""A model's name on the hub: taken from the cache without the network, downloaded, or refused in one message.

The hub's variables are read when its package is imported, so each case is a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.envsdk.base.store.hub_server import hub
from tests.tiny_policies import write_tiny_policy

NAME = "someone/Tiny-0.1M"
NOBODY = "http://127.0.0.1:1"
READ = "from envsdk.base.store.hub import hub_folder; import sys; print(hub_folder(sys.argv[1]))"
LOAD = (
    "import sys; from envsdk.config import load_config\n"
    "c = load_config(sys.argv[1], ['pretrain=' + sys.argv[2], 'sequence_length=256']).config\n"
    "from envsdk.runs.run_origin import initial_model\n"
    "print(c.pretrain, initial_model(c))"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_tiny_policy(folder, ["one two three"])
    (folder / "pytorch_model.bin").write_bytes(b"the same weights once more")
    return folder


class Machine:
    """Processes with a hub's cache of their own."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def run(self, program: str, *args: str, endpoint: str = NOBODY, **variables: str) -> tuple[str, str]:
        """What it printed, and its last error."""
        own = {"HF_HOME": str(self.home), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        environ = {name: each for name, each in os.environ.items() if not name.startswith("HF_")}
        done = subprocess.run(
            [sys.executable, "-c", program, *args],
            env={**environ, **own, **variables},
            capture_output=True,
            text=True,
            timeout=300,
        )
        return done.stdout.strip(), done.stderr.strip()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "home")


def test_a_name_is_downloaded_once_and_then_taken_without_the_network(machine: Machine, model: Path) -> None:
    with hub({NAME: model}) as (address, asked):
        first, _ = machine.run(READ, NAME, endpoint=address)
        assert (Path(first) / "config.json").read_bytes() == (model / "config.json").read_bytes()
        assert (Path(first) / "model.safetensors").is_file()
        assert not (Path(first) / "pytorch_model.bin").exists()
        asked.clear()
        assert machine.run(READ, NAME, endpoint=address)[0] == first
        assert asked == []
    assert machine.run(READ, NAME)[0] == first
    assert machine.run(READ, NAME, HF_HUB_OFFLINE="1")[0] == first


def test_a_copy_without_its_weights_is_completed(machine: Machine, model: Path) -> None:
    with hub({NAME: model}) as (address, _):
        first, _ = machine.run(READ, NAME, endpoint=address)
        weights = Path(first) / "model.safetensors"
        weights.resolve().unlink()
        weights.unlink()
        assert machine.run(READ, NAME, endpoint=address)[0] == first
        assert weights.is_file()


@pytest.mark.parametrize(
    ("variables", "why"),
    [({"HF_HUB_OFFLINE": "1"}, "offline"), ({"HF_HUB_ETAG_TIMEOUT": "2"}, "the hub says")],
    ids=["forbidden", "unreachable"],
)
def test_without_the_network_one_message_says_what_to_do(
    machine: Machine, variables: dict[str, str], why: str
) -> None:
    _, said = machine.run(READ, NAME, **variables)
    assert (
        f"ConfigurationError: {NAME} is no folder, not in the hub's cache, and cannot be downloaded" in said
    )
    assert why in said
    assert f"hf download {NAME}" in said
    assert "HF_HOME" in said


def test_a_name_that_the_hub_does_not_know_is_refused_with_its_words(machine: Machine, model: Path) -> None:
    with hub({NAME: model}) as (address, _):
        _, said = machine.run(READ, "someone/else", endpoint=address)
    assert "someone/else is no folder" in said
    assert "404" in said


def test_a_run_keeps_the_name_and_begins_with_the_downloaded_folder(
    machine: Machine, model: Path, tmp_path: Path
) -> None:
    with hub({NAME: model}) as (address, _):
        printed, said = machine.run(LOAD, "agentic_async.yaml", NAME, endpoint=address)
    name, _, folder = printed.partition(" ")
    assert name == NAME, said
    assert (Path(folder) / "tokenizer.json").is_file()
    assert Path(folder).is_relative_to(machine.home)


def test_a_run_without_the_network_lists_the_model_among_its_problems(machine: Machine) -> None:
    _, said = machine.run(LOAD, "agentic_async.yaml", NAME, HF_HUB_OFFLINE="1")
    assert "1 problem" in said
    assert f"pretrain (override): {NAME} is no folder, not in the hub's cache" in said


TRINITY = """
mode: both
project: p
name: n
model: {model_path: "/no/model"}
algorithm: {algorithm_type: grpo, repeat_times: 4}
buffer:
  batch_size: 4
  total_epochs: 1
  explorer_input:
    taskset:
      storage_type: file
      path: someone/sums
      subset_name: main
      split: train
      format: {prompt_key: question, response_key: answer}
    default_workflow_type: math_workflow
"""
ASK = (
    "import sys; from envsdk.config import load_config\n"
    "c = load_config(sys.argv[1], ['pretrain=embedded_default', 'sequence_length=256']).config\n"
    "print(c.max_steps, *c.actor_train.data_args.file_name)"
)


def test_a_data_set_of_a_file_of_trinitys_is_downloaded_and_its_rows_counted(
    machine: Machine, tmp_path: Path
) -> None:
    (tmp_path / "sums" / "main").mkdir(parents=True)
    rows = [{"question": f"{n}+1=", "answer": f"#### {n + 1}"} for n in range(12)]
    (tmp_path / "sums" / "main" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "trinity.yaml").write_text(TRINITY)
    with hub({"datasets/someone/sums": tmp_path / "sums"}) as (address, _):
        printed, said = machine.run(ASK, str(tmp_path / "trinity.yaml"), endpoint=address)
    steps, _, file = printed.partition(" ")
    assert steps == "3", said
    assert file.endswith("main/train.jsonl")
    assert Path(file).is_relative_to(machine.home)
    _, said = Machine(tmp_path / "other").run(ASK, str(tmp_path / "trinity.yaml"), HF_HUB_OFFLINE="1")
    assert "someone/sums is no folder, not in the hub's cache" in said
    assert "hf download someone/sums --repo-type dataset" in said


def test_a_file_is_explained_without_a_download(machine: Machine, model: Path) -> None:
    explain = LOAD.partition("\n")[0] + (
        "\nprint(load_config(sys.argv[1], ['pretrain=' + sys.argv[2]], to_explain=True).machine_notes)"
    )
    with hub({NAME: model}) as (address, asked):
        printed, _ = machine.run(explain, "agentic_async.yaml", NAME, endpoint=address)
    assert "it is downloaded when the run starts" in printed
    assert asked == []
