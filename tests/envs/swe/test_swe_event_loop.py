"""One event loop serves many episodes: heavy work runs in threads, and a call ends after its thread."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envsdk.envs.swe import env as envs
from envsdk.envs.swe import workspace
from envsdk.envs.swe.env import SWEEnv
from envsdk.envs.swe.evaluator import grade, trial
from envsdk.envs.swe.evaluator.sealing import seal
from envsdk.envs.swe.observations import SUBMIT_COMMAND
from envsdk.envs.swe.replies import format_reply
from envsdk.envs.swe.tasks.task import Task
from envsdk.rewards.sandbox import Image, shell_sandbox, unsandboxed
from envsdk.rewards.sandbox.bubblewrap import backend, leases, trees
from envsdk.rewards.sandbox.bubblewrap.backend import BubblewrapBackend
from envsdk.rewards.sandbox.output import HeadTail
from envsdk.rewards.sandbox.threads import in_thread
from envsdk.rewards.sandbox.unsandboxed import UnsandboxedBackend

HEAVY: tuple[tuple[Any, str], ...] = (
    (HeadTail, "content"),
    (HeadTail, "text"),
    (shell_sandbox, "exact"),
    (backend, "this_system"),
    (trees, "owned_copy"),
    (leases, "delete"),
    (BubblewrapBackend, "_make"),
    (tempfile.TemporaryDirectory, "cleanup"),
    (Task, "content_hash"),
    (workspace, "_verdict_key"),
    (envs, "without_surrogates"),
    (grade, "strip"),
    (grade, "tests_folder"),
    (grade, "_judge"),
    (trial, "laid_paths"),
    (trial, "lay"),
    (seal, "strip"),
    (seal, "rewrite"),
    (seal, "_copy"),
    (seal, "_lay"),
    (seal._Maker, "_learn"),
    (seal._Maker, "_expect"),
    (seal._Maker, "_wrong"),
    (seal._Maker, "_hidden_bits"),
    (seal.SealedTests, "judged"),
)
"""What may take more than a few milliseconds, by where it is looked up."""
LARGE_BYTES = 1 << 16


def bash(command: str) -> str:
    return format_reply(command, "bash")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Each call of `HEAVY`, and of what fills large files in memory, with its thread."""
    made: list[tuple[str, int]] = []

    def record(owner: Any, name: str, counts: Callable[..., bool] = lambda *arguments: True) -> None:
        function = getattr(owner, name)

        def recorded(*arguments: Any, **named: Any) -> Any:
            if counts(*arguments):
                made.append((f"{owner.__name__}.{name}", threading.get_ident()))
            return function(*arguments, **named)

        monkeypatch.setattr(owner, name, recorded)

    for owner, name in HEAVY:
        record(owner, name)
    record(shell_sandbox, "_fill", lambda descriptor, content: len(content) > LARGE_BYTES)
    return made


def test_what_takes_long_is_called_in_threads(
    calls: list[tuple[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVSDK_CACHE", str(tmp_path / "cache"))

    async def episode() -> float:
        env = SWEEnv(
            instance_ids=["slotcache__recency"],
            submission="tree",
            backend_settings={"state_dir": str(tmp_path / "sandboxes")},
        )
        try:
            await env.reset(seed=0)
            await env.step(bash(f"head -c {2 * LARGE_BYTES} /dev/urandom > /tmp/random"))
            await env.restore(await env.snapshot())
            await env.step(await env.oracle())
            _, reward, _, _, _ = await env.step(bash(SUBMIT_COMMAND))
        finally:
            await env.close()
        return reward

    assert asyncio.run(episode()) == 1.0
    on_loop = {name for name, thread in calls if thread == threading.get_ident()}
    assert not on_loop
    never = {f"{owner.__name__}.{name}" for owner, name in HEAVY} - {name for name, _ in calls}
    assert not never
    assert f"{shell_sandbox.__name__}._fill" in {name for name, _ in calls}


class Held:
    """A call that waits for `let_go`, then makes `path` a file in a new folder."""

    def __init__(self) -> None:
        self.begun, self.let_go = threading.Event(), threading.Event()

    def write(self, path: Path) -> None:
        self.begun.set()
        self.let_go.wait()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    async def cancelled(self, call: asyncio.Task[Any]) -> None:
        """Cancel `call` while it writes; it ends only after the writing has."""
        await asyncio.to_thread(self.begun.wait)
        for _ in range(3):
            call.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not call.done()
        self.let_go.set()
        with pytest.raises(asyncio.CancelledError):
            await call


def test_a_cancelled_call_ends_after_its_thread(tmp_path: Path) -> None:
    held = Held()

    async def cancel() -> None:
        await held.cancelled(asyncio.create_task(in_thread(held.write, tmp_path / "made" / "file")))

    asyncio.run(cancel())
    assert (tmp_path / "made" / "file").exists()


def test_a_call_in_a_thread_returns_and_raises() -> None:
    assert asyncio.run(in_thread(int, "12", base=3)) == 5
    with pytest.raises(ValueError, match="invalid literal"):
        asyncio.run(in_thread(int, "x"))


def shown(state_dir: Path) -> set[Path]:
    """What the holders of a folder keep there, apart from trees for later sandboxes."""
    return {path for path in state_dir.glob("*/*") if not path.name.startswith("tree-")}


def test_a_bubblewrap_sandbox_that_is_cancelled_while_it_starts_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held()

    async def cancel() -> None:
        made = BubblewrapBackend({"state_dir": str(tmp_path)})
        await made.probe()
        before = shown(tmp_path)
        monkeypatch.setattr(
            BubblewrapBackend, "_make", lambda self, prepared, folder, *_: held.write(folder / "file")
        )
        await held.cancelled(asyncio.create_task(made.start(Image())))
        assert shown(tmp_path) == before
        await made.aclose()

    asyncio.run(cancel())


def test_an_unsandboxed_copy_that_is_cancelled_while_it_is_made_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(unsandboxed, "_lay_out", lambda image, folder: held.write(folder / "tree" / "file"))

    async def cancel() -> None:
        made = UnsandboxedBackend({"commands_may_do_anything_to_this_machine": True})
        await held.cancelled(asyncio.create_task(made.start(Image())))

    asyncio.run(cancel())
    assert not list(tmp_path.iterdir())


def test_trees_are_not_removed_while_they_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held()

    async def close() -> None:
        made = BubblewrapBackend({"state_dir": str(tmp_path / "sandboxes")})
        await made.probe()
        (tmp_path / "tree").mkdir()
        monkeypatch.setattr(trees, "owned_copy", lambda source, target, owner: held.write(target / "file"))
        start = asyncio.create_task(made.start(Image(tree=tmp_path / "tree")))
        await asyncio.to_thread(held.begun.wait)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        closing = asyncio.create_task(made.aclose())
        await asyncio.sleep(0)
        held.let_go.set()
        await closing

    asyncio.run(close())
    assert not list((tmp_path / "sandboxes").iterdir())
