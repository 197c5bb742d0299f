"""`mode: serve`: the newest version of a job's weights behind OpenAI's HTTP protocol.

first version -> endpoint -> (newer version -> engine)* until SIGTERM

Weights are loaded while requests are answered: replies under way go on with them. After the trainer's end its
last version is served on.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from envsdk.base.display.terminal import say
from envsdk.base.settings.extras import require
from envsdk.buffer.contract import PublishedVersion
from envsdk.config.loading import LoadedConfig
from envsdk.config.models import RunConfig
from envsdk.config.start_checks import check_start
from envsdk.contracts.failures import ConfigurationError, EngineError
from envsdk.engines.engine import Engine
from envsdk.explorers.published import PublishedVersions, done_before
from envsdk.explorers.weights import VersionReader
from envsdk.rollouts.play.model import ModelSource, load_weights, model_source, open_engine
from envsdk.rollouts.play.model_server import announce, given_token, serve_proxy
from envsdk.rollouts.play.source import resolve_source
from envsdk.runs.run_folder import only_run_in
from envsdk.runs.run_origin import model_of_job

SERVE = "serve"
"""Folder of the programs that serve, in a run's."""


def run(loaded: LoadedConfig) -> None:
    """Serve until SIGTERM. Raises EnvsdkError."""
    config = loaded.config
    require("mode: serve", "starlette", "uvicorn")
    from envsdk.base.net.web_server import check_address

    check_start(config)
    given_token()  # before anything is loaded
    check_address(config.serve.host, config.serve.port)
    folder = config.run_folder / SERVE / config.serve.name
    with only_run_in(folder, taken="another process serves in", key="serve.name"):
        model = model_source(resolve_source(config), model_of_job(config), False, config.seed)
        asyncio.run(_serve(config, folder, model))


async def _serve(config: RunConfig, folder: Path, model: ModelSource) -> None:
    from envsdk.engines.endpoint.sampling import SamplingRules
    from envsdk.engines.endpoint.server import EndpointConfig

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    endpoint_config = EndpointConfig(
        model_name=config.serve.name,
        sequence_length=model.sequence_length,
        host=config.serve.host,
        port=config.serve.port,
        token=given_token(),
        rules=SamplingRules(**model.generating.shape()),
    )
    async with AsyncExitStack() as stack:
        engine, proxy, chat = await stack.enter_async_context(open_engine(model))
        versions = PublishedVersions(
            config, VersionReader(config, folder, model.folder, say=_note), say=_note, model=model.folder
        )
        stack.push_async_callback(versions.close)
        await versions.open()
        served = ServedVersion(engine, versions)
        _note("waiting for the trainer's first weights")
        if not await done_before(stop, served.first()):
            return
        endpoint = await stack.enter_async_context(
            serve_proxy(proxy, chat, endpoint_config, config.serve.out)
        )
        endpoint.tell_version(served.version)
        announce(endpoint, f"version {served.version}")
        await done_before(stop, served.follow(endpoint.tell_version))
        await stop.wait()


class ServedVersion:
    """The weights that one engine has: first -> follow."""

    def __init__(self, engine: Engine, versions: PublishedVersions) -> None:
        self._engine = engine
        self._versions = versions
        self.version = -1
        self._published_at = 0.0
        self._refused: PublishedVersion | None = None
        """The version that could not be loaded last."""

    async def first(self) -> None:
        """Load the newest version, as soon as there is one. EngineError when that fails."""
        while self.version < 0:
            newest = (await self._versions.look()).newest
            if newest is None:
                await self._versions.changed()
            else:
                await self._load(newest)

    async def follow(self, tell: Callable[[int], None]) -> None:
        """Load each version that is the newest when the engine can take one, until the job has ended.

        `tell` gets the version. What cannot be loaded is said, and the former version is served on.
        """
        while True:
            standing = await self._versions.look()
            newest = standing.newest
            is_news = newest is not None and newest.replaces(self.version, self._published_at)
            if newest is not None and is_news and newest != self._refused:
                began = time.monotonic()
                try:
                    await self._load(newest)
                except (ConfigurationError, EngineError) as error:
                    self._refused = newest
                    _note(f"still serving version {self.version}; {newest.version} does not load: {error}")
                    continue
                if self._published_at >= newest.published_at:
                    tell(self.version)
                    _note(f"version {self.version}, loaded in {time.monotonic() - began:.1f} s")
            elif standing.is_finished:
                _note(
                    f"the trainer has finished; version {self.version} is served until this program is ended"
                )
                return
            else:
                await self._versions.changed()

    async def _load(self, published: PublishedVersion) -> None:
        """Nothing when the weights are gone."""
        found = await self._versions.fetch(published)
        if found is not None:
            weights = found.weights
            given = weights.items() if isinstance(weights, dict) else weights
            await load_weights(self._engine, given, found.version)
            self.version, self._published_at = found.version, published.published_at


def _note(text: str) -> None:
    say(f"serve: {text}", flush=True)
