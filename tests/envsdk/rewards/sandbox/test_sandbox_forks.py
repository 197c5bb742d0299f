"""Forks of bubblewrap's sandboxes: the same files, each on its own way, and nothing left."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from envsdk.rewards.sandbox import SandboxError
from envsdk.rewards.sandbox.bubblewrap.sandbox import BubblewrapSandbox
from tests.envsdk.rewards.sandbox.boxes import Start, said

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="module")]

WRITE = "echo one > a; echo one > /tmp/b; rm lib.py; chmod 700 tests; mkdir -p d/e"
LOOK = "cat a /tmp/b; ls -A . d; stat -c %a tests"
SEEN = ["one", "one", ".:", ".git", "a", "d", "tests", "d:", "e", "700"]


def layers(sandbox: BubblewrapSandbox) -> list[Path]:
    return list(sandbox.folder.parent.glob("layer-*"))


async def test_a_fork_has_the_files_and_goes_its_own_way(start: Start) -> None:
    source = await start()
    await source.exec(WRITE, timeout_s=60)
    forks = [await source.fork(), await source.fork()]
    assert len(layers(source)) == 1
    await forks[0].exec("echo two > a; rm -rf d /tmp/b", timeout_s=60)
    await source.exec("echo three > a", timeout_s=60)
    assert said(await forks[1].exec(LOOK, timeout_s=60)).split() == SEEN
    assert said(await forks[0].exec("cat a; ls -A . /tmp", timeout_s=60)).split() == [
        *("two", ".:", ".git", "a", "tests", "/tmp:")
    ]
    assert "deleted file mode" in await forks[0].diff()
    for sandbox in (source, *forks):
        await sandbox.close()
    assert layers(source) == []


async def test_forks_outlive_their_source_and_have_forks_of_their_own(start: Start) -> None:
    source = await start()
    await source.exec(WRITE, timeout_s=60)
    child = await source.fork()
    await source.close()
    await child.exec("echo two > c", timeout_s=60)
    kept = await child.snapshot()
    grandchild = await child.fork()
    await child.exec("rm -rf a c", timeout_s=60)
    await child.restore(kept)
    for sandbox in child, grandchild:
        assert said(await sandbox.exec("cat a c", timeout_s=60)) == "one\ntwo"
    await child.close()
    assert said(await grandchild.exec("cat a c", timeout_s=60)) == "one\ntwo"
    await grandchild.close()
    assert layers(source) == []


async def test_a_group_of_forks_starts_at_once(start: Start) -> None:
    source = await start()
    await source.exec(WRITE, timeout_s=60)
    forks = await asyncio.gather(*(source.fork() for _ in range(16)))
    outputs = await asyncio.gather(*(fork.exec(LOOK, timeout_s=60) for fork in forks))
    assert [said(output).split() for output in outputs] == [SEEN] * 16
    assert len(layers(source)) == 1
    await asyncio.gather(*(sandbox.close() for sandbox in (source, *forks)))
    assert layers(source) == []


async def test_what_a_fork_began_with_counts_towards_its_disk(start: Start) -> None:
    source = await start()
    await source.exec("head -c 1M /dev/zero > a", timeout_s=60)
    fork = await source.fork()
    assert fork.state.usage() == source.state.usage()


async def test_a_closed_sandbox_has_no_forks(start: Start) -> None:
    source = await start()
    await source.close()
    with pytest.raises(SandboxError, match="is closed"):
        await source.fork()
