"""Groups of real rank processes on a real Ray of two CPUs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from safetensors.numpy import load_file

from envsdk.config import RayArgs
from envsdk.contracts.failures import ConfigurationError, StorageError, TrainerError
from envsdk.contracts.trainer import TrainBatch, TrainerConfig, TrainSequence
from envsdk.explorers.weight_outlets import BroadcastOutlet, FolderOutlet
from envsdk.managers.ray_runtime import ray_runtime
from envsdk.runs.trainer_group import TrainerGroup, TrainerSpec
from envsdk.trainers.torch_trainer import TorchTrainer
from envsdk.weights.server import WeightReader
from tests.trainers import toy_trainers
from tests.trainers.counted_gpus import REPOSITORY, counted_gpus
from tests.trainers.toy_engines import weights_of

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

BATCH = TrainBatch(step=7, sequences=[])


@pytest.fixture(scope="module")
def two_cpus() -> Iterator[None]:
    """Ranks import the toy trainer from the repository."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(REPOSITORY), prepend=":")
        with ray_runtime(RayArgs(num_cpus=2)):
            yield


def spec(
    strategy: str = toy_trainers.NAME,
    *,
    ranks: list[int] | None,
    config: TrainerConfig | None = None,
    **deeds: str,
) -> TrainerSpec:
    return TrainerSpec(
        key="actor_train",
        strategy_name=strategy,
        config=config or TrainerConfig(model=Path(), sequence_length=8, seed=0, strategy_config={**deeds}),
        device_mapping=ranks,
        uses_accelerators=True,
    )


@asynccontextmanager
async def running(spec: TrainerSpec, **options: Any) -> AsyncIterator[TrainerGroup]:
    group = TrainerGroup(spec, all_mappings=[spec.device_mapping], **options)
    try:
        await group.start()
        yield group
    finally:
        await group.close()
        wait_until(lambda: not ranks_alive())


def ranks_alive() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "TrainerHost" in process.cmdline()[0]:
                found.append(process)
        except (psutil.Error, IndexError):
            continue
    return found


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


@pytest.mark.usefixtures("two_cpus")
async def test_every_call_goes_to_all_ranks_and_the_first_answers(tmp_path: Path) -> None:
    async with running(spec(ranks=[0, 1])) as group:
        assert group.world_size == 2
        assert len(ranks_alive()) == 2
        metrics = await group.train_step(BATCH)
        assert (metrics["rank"], metrics["batch"]) == (0, 7)
        (logprobs,) = await group.logprobs([np.zeros(5, np.int32)])
        np.testing.assert_array_equal(logprobs, np.zeros(5))
        np.testing.assert_array_equal((await weights_of(group, tmp_path))["weight"], np.zeros(3))
        await group.save(tmp_path)
        names = [f"rank_{rank}" for rank in range(2)]
        assert sorted(path.name for path in (tmp_path / "trainer").iterdir()) == names
        assert sorted(path.name for path in (tmp_path / "model").iterdir()) == names
        await group.load(tmp_path)


@pytest.mark.usefixtures("two_cpus")
@pytest.mark.parametrize(
    ("deeds", "kind", "message"),
    [
        (
            {"0": "hang", "1": "die"},
            TrainerError,
            r"actor_train: rank 1 of 2 died: pid \d+: it was killed",
        ),
        pytest.param(
            {"0": "lose a peer", "1": "die late"}, TrainerError, "rank 1 of 2 died", marks=pytest.mark.slow
        ),
        pytest.param(
            {"0": "raise", "1": "hang"},
            TrainerError,
            "rank 0 of 2 failed with ValueError: .*a mistake in",
            marks=pytest.mark.slow,
        ),
        ({"0": "lose a peer", "1": "refuse"}, StorageError, "the disk is full"),
    ],
    ids=["dies", "dies after its peer noticed", "raises", "refuses"],
)
async def test_the_rank_that_is_the_cause_ends_the_call_and_the_others(
    deeds: dict[str, str], kind: type[Exception], message: str
) -> None:
    async with running(spec(ranks=[0, 1], **deeds)) as group:
        with pytest.raises(kind, match=f"(?s){message}"):
            await group.train_step(BATCH)
        wait_until(lambda: not ranks_alive())
        with pytest.raises(kind, match=f"(?s){message}"):
            await group.logprobs([])


@pytest.mark.usefixtures("two_cpus")
async def test_ranks_that_find_no_room_say_what_they_asked_for_within_their_time() -> None:
    others = placement_group([{"CPU": 2}])
    assert others.wait(30)
    try:
        with pytest.raises(
            TrainerError,
            match=r"actor_train asked for 2 CPU \(2 ranks\) and got no room within 1 s\. Ray has 2 CPU, of "
            r"which are free 0 CPU: .* shorten actor_train\.device_mapping",
        ):
            async with running(spec(ranks=[0, 1]), placement_timeout_s=1):
                raise AssertionError("there was no room")
    finally:
        remove_placement_group(others)
    async with running(spec(ranks=[0, 1])) as group:
        assert (await group.train_step(BATCH))["rank"] == 0


@pytest.mark.usefixtures("two_cpus")
async def test_two_ranks_learn_what_one_learns_and_listen_on_loopback_alone(
    model_folder: Path, make_sequences: Callable[..., list[TrainSequence]], tmp_path: Path
) -> None:
    config = TrainerConfig(model=model_folder, sequence_length=256, seed=3)
    batches = [TrainBatch(step=step, sequences=make_sequences(6, seed=step)) for step in range(2)]
    ids = [sequence.ids for sequence in batches[0].sequences]

    one = TorchTrainer.create(config)
    _, alone = [one.train_step(batch) for batch in batches]
    async with running(spec("fsdp2_train", ranks=[0, 1], config=config)) as group:
        _, metrics = [await group.train_step(batch) for batch in batches]
        weights = await weights_of(group, tmp_path)
        for found in await given_to_programs(group, model_folder, tmp_path):
            assert found.keys() == weights.keys()
            for name, array in weights.items():
                np.testing.assert_array_equal(found[name], array)
        listening = {
            connection.laddr.ip
            for rank in ranks_alive()
            for connection in rank.net_connections(kind="tcp")
            if connection.status == psutil.CONN_LISTEN
        }
        assert listening
        assert listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
        await group.save(tmp_path)
        before = await group.logprobs(ids)
        await group.train_step(batches[0])
        await group.load(tmp_path)
        after = await group.logprobs(ids)

    for name in ("actor/loss", "actor/grad_norm"):
        assert metrics[name] == pytest.approx(alone[name], rel=1e-4, abs=1e-6)
    for name, array in one.weights():
        np.testing.assert_allclose(weights[name], array, atol=1e-5)
    for logprobs, again in zip(before, after, strict=True):
        np.testing.assert_array_equal(logprobs, again)


async def given_to_programs(group: TrainerGroup, model: Path, folder: Path) -> list[dict[str, Any]]:
    """The present weights as programs of their own get them: from a folder, and by a broadcast."""
    to_folder = FolderOutlet(folder=folder / "weights", model=model, version=1, step=2)
    written = (await group.give_weights(to_folder)).location
    broadcast = BroadcastOutlet(
        key="job", towards=None, version=1, step=2, bucket_bytes=1 << 16, timeout_s=30.0
    )
    at = (await group.give_weights(broadcast)).location
    assert written is not None
    assert at is not None
    read = WeightReader("a").read
    version, step, received = await asyncio.to_thread(
        read, at["address"], at["port"], at["key"], patience_s=30.0
    )
    assert (version, step) == (1, 2)
    return [load_file(Path(written["folder"]) / "model.safetensors"), received]


@pytest.fixture
def two_counted_gpus() -> Iterator[None]:
    with counted_gpus(2):
        yield


@pytest.mark.usefixtures("two_counted_gpus")
async def test_accelerators_are_shown_in_the_order_of_the_mapping_and_never_more_than_there_are() -> None:
    async with running(spec(ranks=[1, 0])) as group:
        assert "sees 1,0" in await group.train_step(BATCH)
        assert ray.available_resources().get("GPU", 0) == 0
    with pytest.raises(
        ConfigurationError,
        match=r"actor_train asked for 3 CPU and 3 GPU \(3 ranks\), and Ray has 2 CPU and 2 GPU: shorten "
        r"actor_train\.device_mapping",
    ):
        async with running(spec(ranks=[0, 1, 2])):
            raise AssertionError("there was no room")
