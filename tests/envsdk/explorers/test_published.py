"""How programs follow the weights that a trainer publishes, and how they are served meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from envsdk.config import load_config
from envsdk.config.models import RunConfig
from envsdk.contracts.failures import EngineError
from envsdk.engines.endpoint.server import Endpoint, EndpointConfig
from envsdk.engines.engine import EngineConfig, WeightReference
from envsdk.engines.mock import MockEngine
from envsdk.engines.proxy import InferenceProxy, LocalLink
from envsdk.explorers.published import PublishedVersions
from envsdk.explorers.serving import ServedVersion
from envsdk.weights.versions import VersionGone
from tests.envsdk.engines.endpoint_models import CHATS
from tests.envsdk.explorers.trainer_stand_in import FolderReader, TrainerStandIn

CHAT = CHATS["qwen_like_chat"]
REPLY = CHAT.reply("hello " * 30)


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return load_config("agentic_trainer.yaml", [f"output_dir={tmp_path}", "exp_name=job"]).config


@pytest.fixture
def trainer(config: RunConfig) -> Iterator[TrainerStandIn]:
    stand_in = TrainerStandIn(config)
    yield stand_in
    stand_in.leave()


@asynccontextmanager
async def following(config: RunConfig) -> AsyncIterator[PublishedVersions]:
    versions = PublishedVersions(config, FolderReader(), say=print)
    await versions.open()
    yield versions
    await versions.close()


def weights(config: RunConfig, version: int) -> Path:
    folder = config.run_folder / "weights" / f"version_{version:06d}"
    folder.mkdir(parents=True)
    return folder


async def test_the_newest_version_is_seen_and_the_end_after_it(
    config: RunConfig, trainer: TrainerStandIn
) -> None:
    async with following(config) as versions:
        before = await versions.look()
        assert (before.newest, before.is_finished, before.has_trainer) == (None, False, True)
        for version in range(3):
            trainer.publish(version, weights(config, version))
        await versions.changed()
        newest = (await versions.look()).newest
        assert newest is not None
        assert (newest.version, newest.step) == (2, 2)
        trainer.finish()
        await versions.changed()
        after = await versions.look()
        assert (after.newest, after.is_finished, after.has_trainer) == (newest, True, False)


async def test_a_version_that_is_gone_is_waited_out(
    config: RunConfig, trainer: TrainerStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer.publish(0, config.run_folder / "gone")
    async with following(config) as versions:
        first = (await versions.look()).newest
        assert first is not None
        fetching = asyncio.ensure_future(versions.fetch(first))
        while "is gone; waiting" not in capsys.readouterr().out:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        trainer.publish(1, weights(config, 1))
        assert await fetching is None
        second = (await versions.look()).newest
        assert second is not None
        assert await versions.fetch(first) is None
        found = await versions.fetch(second)
        assert found is not None
        assert found.version == 1


async def test_the_last_version_of_a_trainer_that_ended_is_its_checkpoint(
    config: RunConfig, trainer: TrainerStandIn
) -> None:
    trainer.publish(8, config.run_folder / "gone")
    trainer.finish()
    async with following(config) as versions:
        last = (await versions.look()).newest
        assert last is not None
        with pytest.raises(VersionGone):
            await versions.fetch(last)
        model = config.run_folder / "checkpoints" / "step_000008" / "model"
        model.mkdir(parents=True)
        found = await versions.fetch(last)
        assert found is not None
        assert (found.step, found.weights) == (8, model.resolve())


class PickyEngine(MockEngine):
    """Refuses weights of folders that say so."""

    async def load_weights(self, weights: WeightReference, version: int) -> None:
        assert isinstance(weights, Path)
        if (weights / "damaged").exists():
            raise EngineError("model.safetensors is damaged")
        await super().load_weights(weights, version)


async def test_requests_go_on_while_versions_are_loaded_and_a_damaged_one_is_left_out(
    config: RunConfig, trainer: TrainerStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    script = {"reply": REPLY, "latency": {"kind": "per_token", "token_s": 0.01}}
    engine = PickyEngine.create(EngineConfig(model=None, sequence_length=300, strategy_config=script))
    await engine.start()
    proxy = InferenceProxy({"mock": LocalLink(engine)})
    proxy.start()
    endpoint = Endpoint(proxy, CHAT, EndpointConfig(model_name="policy", sequence_length=300))
    await endpoint.start()
    told: list[int] = []
    changes: asyncio.Queue[int] = asyncio.Queue()

    def tell(version: int) -> None:
        endpoint.tell_version(version)
        told.append(version)
        changes.put_nowait(version)

    async with (
        following(config) as versions,
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {endpoint.token}"}, timeout=60) as http,
    ):
        served = ServedVersion(engine, versions)
        first = asyncio.ensure_future(served.first())
        trainer.publish(0, weights(config, 0))
        await first
        follows = asyncio.ensure_future(served.follow(tell))
        body = {"model": "policy", "prompt": "a", "max_tokens": len(REPLY)}
        asked = asyncio.ensure_future(http.post(f"{endpoint.base_url()}/completions", json=body))
        while not engine.health().num_running:  # noqa: ASYNC110 - the engine calls nobody back
            await asyncio.sleep(0.001)
        trainer.publish(1, weights(config, 1))
        assert await changes.get() == 1
        reply = (await asked).json()
        damaged = weights(config, 2)
        (damaged / "damaged").touch()
        trainer.publish(2, damaged)
        while "model.safetensors is damaged" not in capsys.readouterr().out:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        trainer.publish(3, weights(config, 3))
        assert await changes.get() == 3
        card = (await http.get(f"{endpoint.base_url()}/models")).json()["data"][0]
        trainer.finish()
        await follows
    await endpoint.close()
    await proxy.close()
    await engine.close()
    assert reply["usage"]["completion_tokens"] == len(REPLY)
    assert reply["system_fingerprint"] == "version-1"
    assert (card["version"], told) == (3, [1, 3])
