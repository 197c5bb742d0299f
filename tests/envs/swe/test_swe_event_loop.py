"""One event loop serves many episodes: work on files runs in threads, and a call ends after its thread."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from envsdk.envs.shell.replies import format_reply
from envsdk.envs.swe.env import SWEEnv
from envsdk.envs.swe.observations import SUBMIT_COMMAND
from envsdk.rewards.sandbox import Image, SandboxBackend
from envsdk.rewards.sandbox.bubblewrap.backend import BubblewrapBackend
from envsdk.rewards.sandbox.threads import in_thread
from envsdk.rewards.sandbox.unsandboxed import UnsandboxedBackend

LARGE_BYTES = 1 << 16
NUM_TURNS = (0, 1, 2, 4, 8, 16, 64, 256)
"""Turns of the event loop after which a call is cancelled."""
_watched: list[Callable[[str, tuple[Any, ...]], None]] = []
"""An audit hook stays as long as its process: it calls these."""


def bash(command: str) -> str:
    return format_reply(command, "bash")


@contextmanager
def files_touched_below(folder: Path) -> Iterator[dict[int, set[tuple[str, str]]]]:
    """What each thread does to files and folders below `folder`, as Python's audit events name it."""
    touched: dict[int, set[tuple[str, str]]] = {}

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        paths = [os.fsdecode(each) for each in arguments if isinstance(each, str | bytes | Path)]
        if event.startswith(("open", "os.", "shutil.", "tempfile.")) and any(
            path.startswith(str(folder)) for path in paths
        ):
            touched.setdefault(threading.get_ident(), set()).add((event, Path(paths[0]).name))

    if not _watched:
        sys.addaudithook(lambda event, arguments: [watch(event, arguments) for watch in _watched] and None)
    _watched.append(note)
    try:
        yield touched
    finally:
        _watched.remove(note)


def test_work_on_files_is_done_in_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

    with files_touched_below(tmp_path) as touched:
        assert asyncio.run(episode()) == 1.0
    on_loop = touched.pop(threading.get_ident(), set())
    in_threads = set[tuple[str, str]]().union(*touched.values())
    assert {name for _, name in on_loop if name.endswith(".py")} == set()
    assert {event for event, _ in on_loop if event.startswith("shutil.")} == set()
    assert {name for _, name in in_threads if name.endswith(".py")}
    assert {"shutil.copytree", "shutil.rmtree"} & {event for event, _ in in_threads}


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


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """One that takes a while to copy."""
    folder = tmp_path / "tree"
    folder.mkdir()
    for number in range(300):
        (folder / str(number)).write_bytes(bytes(1000))
    return folder


async def cancelled_after(num_turns: int, call: Coroutine[Any, Any, Any]) -> None:
    """Cancel a call that starts a sandbox, unless it has ended; the sandbox is closed then."""
    running = asyncio.create_task(call)
    for _ in range(num_turns):
        await asyncio.sleep(0)
    running.cancel()
    try:
        sandbox = await running
    except asyncio.CancelledError:
        return
    await sandbox.close()


def test_a_bubblewrap_sandbox_that_is_cancelled_while_it_starts_leaves_no_files(
    tmp_path: Path, tree: Path
) -> None:
    async def cancel() -> None:
        made = BubblewrapBackend({"state_dir": str(tmp_path / "sandboxes")})
        await made.probe()
        before = shown(tmp_path / "sandboxes")
        for num_turns in NUM_TURNS:
            await cancelled_after(num_turns, made.start(Image(tree=tree)))
            assert shown(tmp_path / "sandboxes") == before
        await made.aclose()

    asyncio.run(cancel())


def test_an_unsandboxed_copy_that_is_cancelled_while_it_is_made_leaves_no_files(
    tmp_path: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = tmp_path / "copies"
    copies.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(copies))

    async def cancel() -> None:
        made = UnsandboxedBackend({"commands_may_do_anything_to_this_machine": True})
        for num_turns in NUM_TURNS:
            await cancelled_after(num_turns, made.start(Image(tree=tree)))
            assert not list(copies.iterdir())

    asyncio.run(cancel())


def test_trees_are_not_removed_while_they_are_copied(tmp_path: Path, tree: Path) -> None:
    async def close(num_turns: int) -> None:
        made: SandboxBackend = BubblewrapBackend({"state_dir": str(tmp_path / "sandboxes")})
        await made.probe()
        await cancelled_after(num_turns, made.start(Image(tree=tree)))
        await made.aclose()
        assert not list((tmp_path / "sandboxes").iterdir())

    for num_turns in NUM_TURNS[::2]:
        asyncio.run(close(num_turns))
