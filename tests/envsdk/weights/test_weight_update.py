"""Weights go from real trainer ranks to real engine processes, over each transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch

from envsdk.config import RayArgs
from envsdk.contracts.failures import ConfigurationError, EngineError, TrainerError
from envsdk.contracts.trainer import TrainBatch, TrainerConfig, TrainSequence
from envsdk.engines.engine import EngineConfig, GenerationRequest
from envsdk.engines.engine_host import EngineHost
from envsdk.engines.sampling import SamplingParams
from envsdk.engines.wire import pack_requests, unpack_results
from envsdk.managers.ray_runtime import ray_runtime
from envsdk.runs.trainer_group import TrainerGroup, TrainerSpec
from envsdk.weights.transports import Transport, choose_transport, device_transport
from envsdk.weights.update import TransferReport
from tests.trainers.toy_engines import read, start_engine, update
from tests.trainers.toy_trainers import WEIGHING, weights_at

system = [
    pytest.mark.system,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("cluster"),
]

REPOSITORY = Path(__file__).resolve().parents[3]
BUCKET_BYTES = 1 << 16


def one_of(*transports: Transport) -> pytest.MarkDecorator:
    """Each way a test of its own, of which all but the first run at night."""
    first, *others = transports
    return pytest.mark.parametrize(
        "transport", [first, *(pytest.param(each, marks=pytest.mark.slow) for each in others)]
    )


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(REPOSITORY), prepend=":")
        with ray_runtime(RayArgs(num_cpus=2)):
            yield


@asynccontextmanager
async def trainer(
    strategy: str = WEIGHING,
    *,
    ranks: list[int] | None = None,
    config: TrainerConfig | None = None,
    **deeds: str,
) -> AsyncIterator[TrainerGroup]:
    spec = TrainerSpec(
        key="actor_train",
        strategy_name=strategy,
        config=config or TrainerConfig(model=Path(), sequence_length=8, seed=0, strategy_config=deeds),
        device_mapping=ranks,
        uses_accelerators=ranks is not None,
    )
    group = TrainerGroup(spec, all_mappings=[ranks])
    try:
        await group.start()
        yield group
    finally:
        await group.close()


@asynccontextmanager
async def engines(folder: Path, **deeds: dict[str, str]) -> AsyncIterator[dict[str, Any]]:
    names = ["one", "two"]
    hosts = await asyncio.gather(*(start_engine(folder / name, **deeds.get(name, {})) for name in names))
    try:
        yield dict(zip(names, hosts, strict=True))
    finally:
        for host in hosts:
            ray.kill(host)


async def versions(hosts: dict[str, Any]) -> list[int]:
    return [(await host.health.remote()).version for host in hosts.values()]


def assert_has(folder: Path, version: int, *, step: int) -> None:
    found = read(folder, version)
    expected = dict(weights_at(step))
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


async def check_half_the_bytes(group: TrainerGroup, host: Any, folder: Path, step: int) -> None:
    """In bfloat16, also as differences; so many steps were trained, and so many versions sent."""
    whole = await update(group, {"one": host}, step + 1, Transport.SHARED_MEMORY)
    assert whole is not None
    for version, delta in ((step + 2, False), (step + 3, True)):
        half = await update(
            group, {"one": host}, version, Transport.SHARED_MEMORY, dtype="bfloat16", delta=delta
        )
        assert half is not None
        assert half.num_bytes < 0.52 * whole.num_bytes
        found, sent = read(folder, version), dict(weights_at(step))
        for name in (f"layer.{index}" for index in range(30)):
            expected = torch.from_numpy(sent[name]).bfloat16().float().numpy()
            np.testing.assert_array_equal(found[name], expected)
        # Whole numbers stay as they are.
        np.testing.assert_array_equal(found["last"], sent["last"])


class TestUpdates:
    pytestmark = system

    async def test_every_engine_gets_all_weights_whatever_the_way_and_in_half_the_bytes(
        self, tmp_path: Path
    ) -> None:
        async with trainer(ranks=[0, 1]) as group, engines(tmp_path) as hosts:
            for version, transport in enumerate([way for way in Transport for _ in range(2)], start=1):
                await group.train_step(TrainBatch(step=0, sequences=[]))
                report = await update(group, hosts, version, transport, bucket_bytes=BUCKET_BYTES)
                assert report is not None
                assert report.num_bytes == sum(array.nbytes for _, array in weights_at(version)), transport
                assert report.num_buckets > 5
                assert await versions(hosts) == [version, version]
                for name in hosts:
                    assert_has(tmp_path / name, version, step=version)
            await check_half_the_bytes(group, hosts["one"], tmp_path / "one", version)

    @one_of(
        Transport.BROADCAST,
        Transport.SHARED_MEMORY,
        Transport.OBJECT_STORE,
        Transport.CUDA_IPC,
        Transport.NCCL,
    )
    async def test_an_engine_that_dies_in_an_update_does_not_stop_the_others(
        self, transport: Transport, tmp_path: Path
    ) -> None:
        async with trainer() as group, engines(tmp_path, two={"1": "die"}) as hosts:
            report = await asyncio.wait_for(
                update(group, hosts, 1, transport, bucket_bytes=BUCKET_BYTES), timeout=60
            )
            assert report is not None
            assert report.interruption == ""
            assert await versions({"one": hosts["one"]}) == [1]
            assert_has(tmp_path / "one", 1, step=0)
            # With nobody left there is nothing to send.
            assert await update(group, {"two": hosts["two"]}, 2, transport) is None

    @one_of(
        Transport.SHARED_MEMORY,
        Transport.BROADCAST,
        Transport.OBJECT_STORE,
        Transport.CUDA_IPC,
        Transport.NCCL,
    )
    async def test_a_trainer_that_dies_in_an_update_leaves_the_old_weights_and_the_next_one_goes_on(
        self, transport: Transport, tmp_path: Path
    ) -> None:
        async with engines(tmp_path) as hosts:
            async with trainer(**{"0": "die"}) as group:
                await group.train_step(TrainBatch(step=0, sequences=[]))
                await update(group, hosts, 1, transport, bucket_bytes=BUCKET_BYTES)
                await group.train_step(TrainBatch(step=1, sequences=[]))
                with pytest.raises(TrainerError, match="rank 0 of 1 died"):
                    await asyncio.wait_for(
                        update(group, hosts, 2, transport, bucket_bytes=BUCKET_BYTES), timeout=60
                    )
            assert await versions(hosts) == [1, 1]
            assert not (tmp_path / "one" / "2.npz").exists()
            async with trainer() as group:
                await update(group, hosts, 3, transport, bucket_bytes=BUCKET_BYTES)
            assert await versions(hosts) == [3, 3]
            assert_has(tmp_path / "two", 3, step=0)

    async def test_an_engine_that_refuses_the_weights_says_why_and_keeps_its_own(
        self, tmp_path: Path
    ) -> None:
        ways = (Transport.SHARED_MEMORY, Transport.BROADCAST, Transport.CUDA_IPC, Transport.NCCL)
        deeds = {str(version): "refuse" for version in range(1, 2 * len(ways), 2)}
        async with trainer() as group, engines(tmp_path, one=deeds) as hosts:
            for version, transport in zip(range(1, 2 * len(ways), 2), ways, strict=True):
                with pytest.raises(EngineError, match=r"`layer\.2` is not one of the model's"):
                    await asyncio.wait_for(
                        update(group, hosts, version, transport, bucket_bytes=BUCKET_BYTES), timeout=60
                    )
                assert await versions({"one": hosts["one"]}) == [version - 1], transport
                await update(group, hosts, version + 1, transport, bucket_bytes=BUCKET_BYTES)
                assert await versions(hosts) == [version + 1, version + 1]

    @one_of(Transport.SHARED_MEMORY, Transport.BROADCAST)
    async def test_engines_that_have_the_update_before_get_differences(
        self, transport: Transport, tmp_path: Path
    ) -> None:
        async with trainer() as group, engines(tmp_path, two={"3": "refuse"}) as hosts:

            async def send(version: int) -> TransferReport:
                report = await asyncio.wait_for(
                    update(group, hosts, version, transport, bucket_bytes=BUCKET_BYTES, delta=True), 60
                )
                assert report is not None
                return report

            whole = await send(1)
            same = await send(2)
            assert (whole.is_delta, same.is_delta) == (False, True)
            assert same.num_bytes < whole.num_bytes / 20
            assert_has(tmp_path / "one", 2, step=0)

            await group.train_step(TrainBatch(step=0, sequences=[]))
            with pytest.raises(EngineError, match="is not one of the model's"):
                await send(3)
            # Both began to change what they have: nobody builds upon it.
            assert not (await send(4)).is_delta
            for name in hosts:
                assert_has(tmp_path / name, 4, step=1)

            ray.kill(hosts["two"])
            hosts["two"] = await start_engine(tmp_path / "new")
            assert not (await send(5)).is_delta
            await group.train_step(TrainBatch(step=1, sequences=[]))
            assert (await send(6)).is_delta
            for name in ("one", "new"):
                assert_has(tmp_path / name, 6, step=2)

    @pytest.mark.parametrize(
        "folder", ["model_folder", pytest.param("untied_model_folder", marks=pytest.mark.slow)]
    )
    async def test_the_embedded_engine_means_what_the_trainer_means_after_each_update(
        self,
        folder: str,
        make_sequences: Callable[..., list[TrainSequence]],
        request: pytest.FixtureRequest,
    ) -> None:
        model = request.getfixturevalue(folder)
        training = {"learning_rate": 3e-3}
        config = TrainerConfig(model=model, sequence_length=256, seed=3, training_args=training)
        host = ray.remote(num_cpus=0)(EngineHost).remote(
            "embedded", EngineConfig(model=model, sequence_length=256)
        )
        async with trainer("torch", config=config) as group:
            await host.start.remote()
            for version, transport in enumerate((Transport.SHARED_MEMORY, Transport.CUDA_IPC), start=1):
                await group.train_step(TrainBatch(step=version, sequences=make_sequences(4, seed=version)))
                await update(group, {"engine": host}, version, transport, bucket_bytes=20_000)
                prompts = [sequence.ids for sequence in make_sequences(6, seed=10 + version)]
                asked = [
                    GenerationRequest(
                        request_id=f"{version}-{index}",
                        prompt_ids=prompt,
                        sampling=SamplingParams(max_new_tokens=40, seed=index),
                    )
                    for index, prompt in enumerate(prompts)
                ]
                answers = {}
                call = host.exchange.remote(f"client-{version}", 0, pack_requests(asked), [])
                for number in range(1, 100):
                    answers |= {result.request_id: result for result in unpack_results(await call)}
                    if len(answers) == len(asked):
                        break
                    call = host.exchange.remote(f"client-{version}", number, pack_requests([]), [])
                results = [answers[one.request_id] for one in asked]
                whole = [
                    np.concatenate([prompt, result.token_ids])
                    for prompt, result in zip(prompts, results, strict=True)
                ]
                logprobs = await group.logprobs(whole)
                for prompt, result, expected in zip(prompts, results, logprobs, strict=True):
                    assert {span.version for span in result.version_spans} == {version}
                    np.testing.assert_allclose(expected[len(prompt) :], result.logprobs, atol=1e-4)
        ray.kill(host)


@pytest.mark.parametrize(
    ("asked_for", "engine_nodes", "can_share", "expected"),
    [
        ("auto", ["a", "a"], True, Transport.SHARED_MEMORY),
        ("auto", ["a", "a"], False, Transport.OBJECT_STORE),
        ("auto", ["a", "b"], True, Transport.BROADCAST),
        ("auto", ["a", "a", "b", "c"], True, Transport.BROADCAST),
        ("auto", ["a", "b", "c", "b"], True, Transport.OBJECT_STORE),
        ("object_store", ["a", "b"], True, Transport.OBJECT_STORE),
        ("broadcast", ["a"], True, Transport.BROADCAST),
    ],
)
def test_the_transport_follows_from_where_the_engines_are(
    asked_for: str, engine_nodes: list[str], can_share: bool, expected: Transport
) -> None:
    nodes = {f"engine-{index}": node for index, node in enumerate(engine_nodes)}
    found = choose_transport(asked_for, trainer_node="a", engine_nodes=nodes, can_share_memory=can_share)
    assert found is expected


@pytest.mark.parametrize(
    ("asked_for", "trainer", "engines", "expected"),
    [
        ("auto", "a", ["a", "a"], Transport.CUDA_IPC),
        ("cuda_ipc", "a", ["a"], Transport.CUDA_IPC),
        ("auto", "", ["a"], "the trainer has its weights in main memory"),
        ("auto", "a", ["a", ""], "engine-1 takes them in main memory"),
        ("auto", "a", ["b", "c"], Transport.NCCL),
        ("nccl", "a", ["b"], Transport.NCCL),
        ("cuda_ipc", "a", ["a", "b"], "engine-1 has another card than the trainer"),
        ("auto", "a", ["a", "b"], "two of the engines and the trainer share a card, which NCCL refuses"),
        ("nccl", "a", ["b", "b"], "two of the engines and the trainer share a card, which NCCL refuses"),
        ("shared_memory", "a", ["a"], "model_update_transport is shared_memory"),
    ],
)
def test_weights_stay_on_the_card_where_all_report_the_same(
    asked_for: str, trainer: str, engines: list[str], expected: Transport | str
) -> None:
    cards = {f"engine-{index}": card for index, card in enumerate(engines)}
    transport, why_not = device_transport(asked_for, trainer_card=trainer, engine_cards=cards)
    assert (transport or why_not) == expected


def test_shared_memory_between_nodes_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="shared_memory, but engine-0 is on another node"):
        choose_transport(
            "shared_memory", trainer_node="a", engine_nodes={"engine-0": "b"}, can_share_memory=True
        )
