"""Attacks on the comparison by way of git: it executes nothing of the agent's and overlooks nothing."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from envsdk.rewards.sandbox import SandboxFileError
from tests.envsdk.rewards.sandbox.boxes import Start, git, said

pytestmark = pytest.mark.asyncio(loop_scope="module")

TRAP = (
    "mkdir -p /tmp/bin; printf '#!/bin/sh\\ntouch /tmp/executed /testbed/executed\\n' > /tmp/bin/trap;"
    "chmod +x /tmp/bin/trap;"
)
EDIT = "sed -i 's/return 1/return 2/' lib.py;"


async def applied(repository: Path, patch: str, target: Path) -> Path:
    """`repository` with `patch` applied, at `target`."""
    await asyncio.to_thread(git, repository, "clone", "-q", str(repository), str(target))
    command = ["git", "apply", "--whitespace=nowarn", "-"]
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=target, input=patch.encode(errors="surrogateescape"), capture_output=True
    )
    assert done.returncode == 0, done.stderr
    return target


async def nothing_was_executed(sandbox) -> bool:
    listing = await sandbox.exec("ls -d /tmp/executed /testbed/executed 2>/dev/null; echo end", timeout_s=30)
    return said(listing) == "end"


ATTACKS = {
    "hooks": "for hook in pre-commit post-index-change post-checkout reference-transaction; do"
    " mkdir -p .git/hooks; cp /tmp/bin/trap .git/hooks/$hook; done; git config core.hooksPath /tmp/bin",
    "fsmonitor": "git config core.fsmonitor /tmp/bin/trap; git update-index --fsmonitor",
    "clean filter": "git config filter.f.clean /tmp/bin/trap; git config filter.f.smudge /tmp/bin/trap;"
    " git config filter.f.required true; echo '* filter=f' | tee .git/info/attributes > .gitattributes",
    "process filter": "git config filter.f.process /tmp/bin/trap; echo '* filter=f' > .gitattributes",
    "external diff": "git config diff.external /tmp/bin/trap; git config diff.d.command /tmp/bin/trap;"
    " echo '* diff=d' > .gitattributes",
    "text conversion": "git config diff.d.textconv /tmp/bin/trap; echo '* diff=d' > .gitattributes",
    "user configuration": "printf '[core]\\n fsmonitor=/tmp/bin/trap\\n hooksPath=/tmp/bin\\n"
    " pager=/tmp/bin/trap\\n[diff]\\n external=/tmp/bin/trap\\n' > /tmp/.gitconfig;"
    " mkdir -p /tmp/.config/git; cp /tmp/.gitconfig /tmp/.config/git/config",
    "other commands": "for key in alternateRefsCommand sshCommand askPass gitProxy editor pager; do"
    " git config core.$key /tmp/bin/trap; done",
    "included configuration": "printf '[include]\\n path=/tmp/evil\\n' >> .git/config;"
    " printf '[core]\\n fsmonitor=/tmp/bin/trap\\n' > /tmp/evil",
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_no_command_of_the_agents_repository_is_executed(sandbox, attack: str) -> None:
    await sandbox.exec(TRAP + EDIT + ATTACKS[attack], timeout_s=30)
    # Git as the agent runs it may well have.
    await sandbox.exec("rm -f /tmp/executed /testbed/executed", timeout_s=30)
    patch = await sandbox.diff()
    assert "+    return 2" in patch
    assert await nothing_was_executed(sandbox)


DISGUISES = {
    "assume unchanged": "git update-index --assume-unchanged lib.py",
    "skip worktree": "git update-index --skip-worktree lib.py",
    "committed": "git -c user.name=a -c user.email=b commit -qam hidden",
    "new history": "rm -r .git; git init -q; git add .; git -c user.name=a -c user.email=b commit -qm 1",
    "no repository": "rm -rf .git",
    "repository is a file": "rm -rf .git; echo 'gitdir: /' > .git",
    "repository is a link": "rm -rf .git; ln -s / .git",
    "damaged objects": "find .git/objects -type f -exec sh -c 'chmod u+w {}; echo x > {}' ';'",
    "attributes hide it": "echo '* -diff' > .gitattributes; echo '* binary' > .git/info/attributes",
    "locks left": "touch .git/index.lock .git/HEAD.lock",
    "replaced objects": "git replace -f HEAD $(git commit-tree -m x $(git write-tree)); true",
}


@pytest.mark.parametrize("disguise", DISGUISES)
async def test_no_change_can_be_disguised(sandbox, disguise: str) -> None:
    await sandbox.exec(EDIT + DISGUISES[disguise], timeout_s=30)
    patch = await sandbox.diff()
    assert "-    return 1\n+    return 2\n" in patch


async def test_git_of_another_path_is_not_used(sandbox) -> None:
    await sandbox.exec(
        TRAP + EDIT + "cp /tmp/bin/trap git; cp /tmp/bin/trap /tmp/git; chmod +x git", timeout_s=30
    )
    assert "+    return 2" in await sandbox.diff()
    assert await nothing_was_executed(sandbox)


async def test_unchanged_is_an_empty_patch(sandbox) -> None:
    assert await sandbox.diff() == ""
    await sandbox.exec("touch lib.py; echo x > new; rm new; git gc -q", timeout_s=30)
    assert await sandbox.diff() == ""


async def test_a_patch_carries_every_kind_of_change(sandbox, repository: Path, tmp_path: Path) -> None:
    await sandbox.exec(
        EDIT + "rm tests/test_lib.py; mkdir -p 'a b/ü'; echo new > 'a b/ü/file'; chmod +x lib.py;"
        "ln -s lib.py link;"
        r"printf '\000\001\377' > binary; printf 'latin \344\n' > latin; printf 'no newline' > last;"
        r"printf 'x\r\ny\n' > crlf; : > empty; echo odd > $'odd\n\"name\377'; echo dash > -n",
        timeout_s=30,
    )  # fmt: skip
    patch = await sandbox.diff()
    tree = await applied(repository, patch, tmp_path / "applied")
    script = "find . -path ./.git -prune -o -type f -print0 | LC_ALL=C sort -z | xargs -0 sha1sum"
    inside = said(await sandbox.exec(script, timeout_s=30))
    outside = subprocess.run(["bash", "-c", script], cwd=tree, capture_output=True, check=True).stdout  # noqa: ASYNC221
    assert inside == outside.decode(errors="replace").strip()
    assert (tree / "link").readlink() == Path("lib.py")
    assert (tree / "latin").read_bytes() == b"latin \xe4\n"


async def test_ignored_files_are_left_out(sandbox) -> None:
    await sandbox.exec("echo '*.log' > .gitignore; echo x > a.log; echo y > b.txt", timeout_s=30)
    patch = await sandbox.diff()
    assert "a.log" not in patch
    assert "b.txt" in patch


async def test_a_nested_repository_does_not_break_the_comparison(sandbox) -> None:
    await sandbox.exec(EDIT + "git init -q sub; echo x > sub/file; git init -q tests", timeout_s=30)
    assert "+    return 2" in await sandbox.diff()


async def test_files_that_cannot_be_read_do_not_break_the_comparison(sandbox) -> None:
    await sandbox.exec(
        EDIT + "echo x > closed; chmod 000 closed; mkfifo pipe; mkdir dir; chmod 000 dir", timeout_s=30
    )
    assert "+    return 2" in await sandbox.diff()


async def test_a_patch_beyond_the_limit_is_an_error(sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envsdk.rewards.sandbox.shell_sandbox.MAX_PATCH_BYTES", 1 << 16)
    await sandbox.exec("yes | head -c 1M > large", timeout_s=30)
    with pytest.raises(SandboxFileError, match="output_limit"):
        await sandbox.diff()


async def test_a_tree_without_a_repository_cannot_be_compared(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    sandbox = await start(tree=tmp_path)
    with pytest.raises(SandboxFileError, match="no git repository"):
        await sandbox.diff()
