"""Environments in processes of their own: what they start and leave behind, and how they start."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from envsdk.contracts.env import EnvSpec, Info, Isolation
from envsdk.managers.env_host import EnvBlueprint, EnvHost, EpisodeFailed
from envsdk.managers.hosts import open_host
from tests.managers.toy_envs import CountingEnv, SlowlyBuiltEnv


class ParentEnv(CountingEnv):
    """Starts a child, a daemon in a session of its own, and what a dead child leaves: an orphan.

    Its observation has their ids. `crash` ends the environment's own process.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        super().reset(seed=seed)
        child = subprocess.Popen(["sleep", "3600"])
        daemon = subprocess.Popen(["sleep", "3600"], start_new_session=True)
        shell = subprocess.run(
            ["sh", "-c", "setsid sleep 3600 >&- & echo $!"], stdout=subprocess.PIPE, check=True
        )
        return f"{os.getpid()} {child.pid} {daemon.pid} {int(shell.stdout)}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        if action == "crash":
            os.abort()
        if action == "sleep":
            time.sleep(3600)
        return super().step(action)


def process_host(env: type[CountingEnv], *, step_timeout_s: float = 30.0, **changes: Any) -> EnvHost:
    spec = EnvSpec(id="toy/Process-v0", entry_point=f"{env.__module__}:{env.__name__}")
    return open_host(
        EnvBlueprint(spec=spec, isolation=Isolation.PROCESS, step_timeout_s=step_timeout_s, **changes)
    )


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("end", ["close", "crash", "sleep"])
async def test_nothing_that_an_environment_started_outlives_its_process(end: str) -> None:
    host = process_host(ParentEnv, step_timeout_s=0.5)
    observation, _ = await host.reset(0)
    pids = [int(pid) for pid in observation.split()]
    assert len(pids) == 4
    assert all(map(is_running, pids))
    if end != "close":
        with pytest.raises(EpisodeFailed, match="process_died" if end == "crash" else "step_timeout"):
            await host.step(end)
    host.close()
    wait_until(lambda: not any(map(is_running, pids)))


PLAYS = """
import asyncio, sys
from tests.managers.test_env_processes import ParentEnv, process_host
async def main():
    observation, _ = await process_host(ParentEnv).reset(0)
    print(observation, flush=True)
    await process_host(ParentEnv).step("sleep")
asyncio.run(main())
"""


def test_nothing_outlives_a_killed_process_that_played(tmp_path: Path) -> None:
    played = subprocess.Popen(
        [sys.executable, "-c", PLAYS],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert played.stdout is not None
    with played, played.stdout:
        pids = [int(pid) for pid in played.stdout.readline().split()]
        pids += [child.pid for child in psutil.Process(played.pid).children(recursive=True)]
        assert len(set(pids)) >= 5, "the environment, its three children, and their parent"
        played.kill()
    wait_until(lambda: not any(map(is_running, pids)))
    assert not list(tmp_path.iterdir())


async def test_building_an_environment_has_a_limit_of_its_own() -> None:
    host = process_host(SlowlyBuiltEnv, env_config={"seconds": 1.0}, reset_timeout_s=0.9)
    late = process_host(SlowlyBuiltEnv, env_config={"seconds": 3600}, start_timeout_s=0.5)
    try:
        assert (await host.reset(0))[0] == "seed 0 turn 0"
        with pytest.raises(EpisodeFailed, match=r"start_timeout_s=0\.5") as caught:
            await late.reset(0)
        assert caught.value.failure.kind == "start_timeout"
    finally:
        host.close()
        late.close()


async def test_many_environments_that_start_at_once_all_start() -> None:
    hosts = [
        process_host(SlowlyBuiltEnv, env_config={"seconds": 0.05}, start_timeout_s=20.0, reset_timeout_s=5.0)
        for _ in range(16)
    ]
    try:
        observations = await asyncio.gather(*(host.reset(seed) for seed, host in enumerate(hosts)))
        assert [text for text, _ in observations] == [f"seed {seed} turn 0" for seed in range(16)]
    finally:
        for host in hosts:
            host.close()


async def test_a_killed_parent_of_environments_is_replaced() -> None:
    first, second = process_host(CountingEnv), process_host(CountingEnv)
    try:
        observation, _ = await first.reset(0)
        assert observation
        # Not the environments below it, which end with it and may be zombies when it is their turn.
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if "envsdk.base.processes.forked" in " ".join(child.cmdline()):
                    child.kill()
                    # The environments are told to end when it has, and could answer until then.
                    child.wait()
        with pytest.raises(EpisodeFailed, match="process_died"):
            await first.step("go")
        assert (await second.reset(1))[0] == "seed 1 turn 0"
    finally:
        first.close()
        second.close()
