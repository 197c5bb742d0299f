"""SWE episodes on four real sandbox servers, of which one is killed, one hangs and one is slow."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

import envsdk
from envsdk.envs.swe.tasks.runtime import runtime_python
from tests.envsdk.rewards.sandbox.fake_hosts import SLOW

pytest.importorskip("e2b")
pytestmark = pytest.mark.system
KEY = "e2b_" + "0" * 40
NUM_EPISODES = 32


class Server:
    """A process of `envsdk sandboxd`."""

    def __init__(self, folder: Path, name: str, backend: str) -> None:
        self.name = name
        folder = folder / name
        folder.mkdir()
        (folder / "settings.toml").write_text(
            f"""
            backend = "{backend}"
            state_dir = "{folder}/server"
            backend_settings = {{state_dir = "{folder}/boxes", python = "{runtime_python()}"}}
            tokens.test = {{token = "{KEY}", sandboxes = 64}}
            """
        )
        argv = ["-m", "envsdk.rewards.sandbox.sandboxd", str(folder / "settings.toml"), "--port", "0"]
        self.process = subprocess.Popen([sys.executable, *argv], stdout=subprocess.PIPE, text=True)

    def host(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[-1]
        return {"name": self.name, "backend": "e2b", "settings": {"api_url": self.url, "api_key": KEY}}

    def num_sandboxes(self) -> int:
        with urlopen(Request(f"{self.url}/envsdk/places", headers={"X-API-KEY": KEY}), timeout=60) as answer:
            used: int = json.load(answer)["used"]
            return used

    async def met_by(self, what: int) -> None:
        """Send the process a signal while it has sandboxes."""
        while not await asyncio.to_thread(self.num_sandboxes):  # noqa: ASYNC110 - a process's own number
            await asyncio.sleep(0.05)
        self.process.send_signal(what)

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self.process.communicate(timeout=60)


@contextmanager
def four_servers(folder: Path) -> Iterator[list[Server]]:
    backends = ["bubblewrap", "bubblewrap", SLOW, "bubblewrap"]
    names = ["dies", "hangs", "slow", "well"]
    servers = [Server(folder, name, backend) for name, backend in zip(names, backends, strict=True)]
    try:
        yield servers
    finally:
        for server in servers:
            server.end()


@pytest.mark.slow  # by day, test_fleet_sandboxes.py has hosts that fail and hang
async def test_no_episode_is_lost_or_scored_where_one_server_dies_one_hangs_and_one_is_slow(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with four_servers(tmp_path) as servers:
        settings = {
            "hosts": [server.host() for server in servers],
            "attempt_timeout_s": 8.0,
            "silence_s": 4.0,
            "max_failures": 2,
        }
        faults: list[asyncio.Task[None]] = []
        episodes = []
        async for trajectory in envsdk.rollout(
            "envsdk/SWE-v1",
            policy="oracle",
            tasks=NUM_EPISODES,
            concurrency=8,
            retries=3,
            env_config={"backend": "fleet", "backend_settings": settings},
        ):
            episodes.append(trajectory)
            if len(episodes) == NUM_EPISODES // 4:
                faults = [
                    asyncio.create_task(servers[0].met_by(signal.SIGKILL)),
                    asyncio.create_task(servers[1].met_by(signal.SIGSTOP)),
                ]
        await asyncio.gather(*faults)
    assert len(episodes) == NUM_EPISODES
    assert [episode.failure for episode in episodes if episode.failure is not None] == []
    assert all(episode.success and episode.total_reward == 1.0 for episode in episodes)
    left_out = {
        name for name in ("dies", "hangs", "slow", "well") if f"host {name} is left out" in caplog.text
    }
    assert left_out == {"dies", "hangs"}
