"""Versions come from a trainer to readers, by each method."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from envsdk.buffer.contract import PublishedVersion
from envsdk.config.loading import load_config
from envsdk.contracts.failures import ConfigurationError, EngineError, StorageError
from envsdk.contracts.trainer import TrainerConfig, TrainerRank
from envsdk.explorers import weight_outlets, weights
from envsdk.explorers.weights import FetchedVersion, VersionPublisher, VersionReader
from envsdk.runs.trainer_group import TrainerHost
from envsdk.weights import folders
from envsdk.weights.source import GivenWeights, OutletReport, WeightOutlet
from envsdk.weights.versions import VersionGone
from tests.trainers.toy_trainers import ToyTrainer

EACH = pytest.mark.parametrize("method", ["checkpoint", "memory", "nccl"])


@pytest.fixture(autouse=True)
def _no_server_stays() -> Iterator[None]:
    yield
    for server in weight_outlets._servers.values():
        server.close()
    weight_outlets._servers.clear()


class ScalingTrainer(ToyTrainer):
    """The weights of its folder, times the steps that it took."""

    num_steps = 1
    model: Path

    def weights(self) -> Iterable[tuple[str, NDArray[Any]]]:
        for name, tensor in load_file(self.model / "model.safetensors").items():
            yield name, tensor.numpy() * np.float32(self.num_steps)


class Ranks:
    """A trainer's first rank, in this process."""

    def __init__(self, model: Path) -> None:
        self._host = TrainerHost("", TrainerConfig(model=model, sequence_length=8, seed=0))
        self._host._rank = TrainerRank()
        self._host._trainer = self.trainer = ScalingTrainer(self._host._config)
        self.trainer.model = model

    async def give_weights(self, outlet: WeightOutlet) -> OutletReport:
        report = self._host.give_weights(outlet)
        assert report is not None
        return report


class Job:
    """A trainer and what its buffer knows of versions."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, model: Path, method: str, *overrides: str
    ) -> None:
        self.shm = folder / "shm"
        self.shm.mkdir()
        monkeypatch.setattr(weights, "SHARED_MEMORY", self.shm)
        self.said: list[str] = []
        self.model = model
        self.ranks = Ranks(model)
        keys = {
            "output_dir": folder / "runs",
            "mode": "train",
            "synchronizer.sync_method": method,
            "synchronizer.sync_interval": 2,
            "model_update_buffer_size_mb": 1,
        }
        given = [f"{key}={value}" for key, value in keys.items()]
        self.config = load_config("agentic_async.yaml", [*given, *overrides]).config
        self.publisher = VersionPublisher(self.config, self.ranks, model=model, say=self.said.append)

    async def publish(self, version: int) -> PublishedVersion:
        """The weights are those of the folder, times `version`."""
        self.ranks.trainer.num_steps = version
        location = await self.publisher.publish(version)
        kept = json.loads(json.dumps(location))
        return PublishedVersion(version=version, step=version * 2, location=kept, published_at=0.0)

    def reader(self, name: str = "a") -> VersionReader:
        """An explorer's."""
        folder = self.config.run_folder / "explorers" / name
        return VersionReader(self.config, folder, self.model, say=self.said.append)

    def assert_holds(self, fetched: FetchedVersion, version: int) -> None:
        """Engines get these weights from it."""
        assert (fetched.version, fetched.step) == (version, version * 2)
        source = GivenWeights(self.model)
        source.hold(fetched.weights)
        found = {name: tensor.clone() for name, tensor in source._weights()}
        expected = load_file(self.model / "model.safetensors")
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            assert torch.equal(found[name], tensor * version)


@EACH
async def test_a_late_reader_gets_the_newest_and_what_was_fetched_outlives_what_was_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_folder: Path, method: str
) -> None:
    job = Job(tmp_path, monkeypatch, model_folder, method)
    early, late = job.reader("early"), job.reader("late")
    first = await early.fetch(await job.publish(1))
    for version in range(2, 7):
        newest = await job.publish(version)
    job.assert_holds(await late.fetch(newest), 6)
    job.assert_holds(first, 1)
    job.assert_holds(await early.fetch(newest), 6)
    await job.publisher.close()
    assert list(job.shm.iterdir()) == []
    job.assert_holds(first, 1)
    for reader in (early, late):
        await reader.close()
    assert list((job.config.run_folder / "explorers").rglob("version_*")) == []
    assert job.said == []


@pytest.mark.parametrize("method", ["checkpoint", "memory"])
async def test_a_version_that_is_gone_is_said_to_be_and_only_the_newest_few_take_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_folder: Path, method: str
) -> None:
    job = Job(tmp_path, monkeypatch, model_folder, method)
    reader = job.reader()
    rows = [await job.publish(version) for version in range(1, 6)]
    with pytest.raises(VersionGone, match="only the newest few are kept"):
        await reader.fetch(rows[0])
    for row in rows[-2:]:
        job.assert_holds(await reader.fetch(row), row.version)
    assert len(list(Path(rows[0].location["folder"]).parent.glob("*"))) == 3 - (method == "memory")
    job.assert_holds(await reader.fetch(await job.publish(6)), 6)
    held = list((job.config.run_folder / "explorers" / "a").rglob("version_*"))
    assert len(held) == (2 if method == "checkpoint" else 0)
    await job.publisher.close()


async def test_the_folder_is_a_model_that_transformers_loads_in_one_file_or_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_folder: Path, untied_model_folder: Path
) -> None:
    for model in (model_folder, untied_model_folder):
        for shard_bytes in (1 << 30, 1 << 14):
            folder = tmp_path / model.name / str(shard_bytes)
            folder.mkdir(parents=True)
            monkeypatch.setattr(folders, "SHARD_BYTES", shard_bytes)
            job = Job(folder, monkeypatch, model, "checkpoint")
            row = await job.publish(2)
            loaded = AutoModelForCausalLM.from_pretrained(row.location["folder"]).state_dict()
            expected = AutoModelForCausalLM.from_pretrained(model).state_dict()
            assert loaded.keys() == expected.keys()
            for name, tensor in expected.items():
                assert torch.equal(loaded[name], tensor * 2)
            job.assert_holds(await job.reader().fetch(row), 2)
    assert (Path(row.location["folder"]) / "config.json").read_text() == (model / "config.json").read_text()


async def test_a_folder_is_found_where_this_program_sees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_folder: Path
) -> None:
    job = Job(tmp_path, monkeypatch, model_folder, "checkpoint", f"synchronizer.path={tmp_path / 'there'}")
    row = await job.publish(1)
    shutil.move(tmp_path / "there", tmp_path / "here")
    job.config = load_config(
        "agentic_async.yaml",
        ["mode=explore", f"output_dir={tmp_path}", f"synchronizer.path={tmp_path / 'here'}"],
    ).config
    job.assert_holds(await job.reader().fetch(row), 1)


@pytest.mark.parametrize("method", ["checkpoint", "memory"])
async def test_a_full_disk_is_said_waited_for_and_in_the_end_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_folder: Path, method: str
) -> None:
    job = Job(tmp_path, monkeypatch, model_folder, method, "buffer.retry_s=0.01", "buffer.lease_s=0.01")
    monkeypatch.setattr(weights, "PAUSE_S", 0.0)
    num_writes = 0

    def no_room(tensors: Mapping[str, Any], file: Path, **options: Any) -> None:
        nonlocal num_writes
        num_writes += 1
        if num_writes == 1 or num_writes > 2:
            raise OSError(28, "No space left on device")
        save_file(dict(tensors), file, **options)

    monkeypatch.setattr("safetensors.torch.save_file", no_room)
    job.assert_holds(await job.reader().fetch(await job.publish(1)), 1)
    assert ["No space left on device" in line and "Trying for 0.01 s more" in line for line in job.said] == [
        True
    ]
    with pytest.raises(StorageError, match=r"version 2 of the weights is not published: .*No space left"):
        await job.publish(2)
    job.assert_holds(await job.reader().fetch(await _newest(job)), 1)
    await job.publisher.close()


async def test_weights_of_another_model_end_the_run_with_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_folder: Path, untied_model_folder: Path
) -> None:
    job = Job(tmp_path, monkeypatch, model_folder, "checkpoint")
    job.ranks.trainer.model = untied_model_folder
    with pytest.raises(EngineError, match=r"weight `.*` .*the model"):
        await job.publish(1)


async def test_shared_memory_is_for_one_machine_and_one_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_folder: Path
) -> None:
    job = Job(tmp_path, monkeypatch, model_folder, "memory")
    row = await job.publish(1)
    (folder,) = job.shm.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    elsewhere = {**row.location, "machine": "another"}
    with pytest.raises(ConfigurationError, match="this program is on another one: use checkpoint or nccl"):
        await job.reader().fetch(dataclasses.replace(row, location=elsewhere))
    await job.publisher.close()
    with pytest.raises(VersionGone, match="the trainer ended, or this container has"):
        await job.reader().fetch(row)
    folder.symlink_to(tmp_path)
    with pytest.raises(ConfigurationError, match="belongs to another user"):
        VersionPublisher(job.config, job.ranks, model=job.model, say=print)


async def test_a_trainer_that_is_gone_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_folder: Path
) -> None:
    job = Job(tmp_path, monkeypatch, model_folder, "nccl")
    row = await job.publish(1)
    await job.publisher.close()
    weight_outlets._servers.pop(row.location["key"]).close()
    with pytest.raises(VersionGone, match=r"the trainer at .* gave no weights"):
        await job.reader().fetch(row)


async def _newest(job: Job) -> PublishedVersion:
    location = {"method": job.config.synchronizer.sync_method, "machine": weight_outlets.machine_id()}
    folder = job.publisher._folder / "version_000001"
    return PublishedVersion(version=1, step=2, location=location | {"folder": str(folder)}, published_at=0.0)
