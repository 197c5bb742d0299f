"""Calls on a thread that are interrupted when nobody waits for them any more."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from envsdk.base.processes.interruptible import interruptible
from envsdk.base.registry import registered
from envsdk.contracts.env import EnvSpec, Info, TextEnv
from envsdk.contracts.trajectory import Task
from envsdk.rollouts.play.options import PlayOptions, TaskOptions
from envsdk.rollouts.play.player import make_player
from envsdk.rollouts.play.source import resolve_source


async def test_it_returns_and_raises_what_the_call_does() -> None:
    assert await interruptible(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await interruptible(divmod, 7, 0)


class Endless(TextEnv):
    """Whoever plays it stays in `step`."""

    began = threading.Event()
    ended = threading.Event()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        super().reset(seed=seed, options=options)
        return "go", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        type(self).began.set()
        try:
            while True:
                pass
        finally:
            type(self).ended.set()

    def oracle(self) -> str:
        return "on"


def _play() -> None:
    task = Task(tag="test/Endless-v0", split="train", index=0)
    source = resolve_source(task.tag)
    make_player(source, TaskOptions(source=task.tag), PlayOptions(), tags=[task.tag]).play(
        [(0, task)], lambda position, trajectory: pytest.fail("the interrupt failed one episode alone")
    )


async def test_cancelling_interrupts_also_the_code_of_a_plug_in(caplog: pytest.LogCaptureFixture) -> None:
    with registered(EnvSpec(id="test/Endless-v0", entry_point=Endless)):
        call = asyncio.create_task(interruptible(_play))
        await asyncio.to_thread(Endless.began.wait)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert Endless.ended.is_set()
    gc.collect()  # tasks whose exception nobody looked at say so when they go
    assert not caplog.records
    for thread in threading.enumerate():
        if thread.name == "envsdk-interruptible":
            thread.join(timeout=60)  # its function has returned
            assert not thread.is_alive()


@pytest.mark.slow
@pytest.mark.system
def test_ctrl_c_ends_rollouts_that_make_the_tiny_policy(tmp_path: Path) -> None:
    small = ["num_episodes=40", "hidden_size=16", "num_layers=1", "epochs=10000000"]
    code = f"""if True:
        import signal, envsdk
        signal.signal(signal.SIGINT, signal.default_int_handler)
        envsdk.Rollouts("agentic_async.yaml", {[f"warm_start.{each}" for each in small]}).start()"""
    program = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "ENVSDK_CACHE": str(tmp_path / "cache")},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stderr is not None
    try:
        assert any("imitating, step " in line for line in program.stderr)
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=120)
    finally:
        program.kill()
    assert program.returncode not in (0, -signal.SIGKILL)
    assert errors.endswith("KeyboardInterrupt\n")
