"""The command `envsdk sandboxd` as a program."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from e2b import AsyncSandbox

from envsdk.rewards.sandbox.sandboxd.__main__ import main
from envsdk.rewards.sandbox.sandboxd.settings import ServerSettings
from tests.envsdk.rewards.sandbox.boxes import processes_of, until

TOKEN = "e2b_" + "0" * 40
SETTINGS = """
state_dir = "{folder}/server"
backend_settings.state_dir = "{folder}/sandboxes"
tokens.me.token = "{token}"
"""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "tokens"),
        ('[tokens.me]\ntoken = "hunter2"', "tokens.me.token"),
        ('[tokens.me]\ntoken = "e2b_0123456789abcdef"\n[limits]\nram = 1', "limits: there is no ram"),
        ("backend = 1", "backend: must be text"),
        ("=", "sandboxd.toml"),
    ],
)
def test_a_settings_file_is_told_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, problem: str
) -> None:
    (tmp_path / "sandboxd.toml").write_text(text)
    assert main([str(tmp_path / "sandboxd.toml")]) == 2
    said = capsys.readouterr().err
    assert problem in said
    assert "hunter2" not in said


def test_the_guide_s_settings_are_valid() -> None:
    text = (Path(__file__).parents[4] / "docs/remote-sandboxes.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    settings = ServerSettings(**tomllib.loads(block))
    assert settings.tokens["training"].sandboxes == 256
    assert settings.most().memory_mb == 2048


async def started(folder: Path) -> tuple[asyncio.subprocess.Process, str]:
    """A server as a program, and its URL."""
    (folder / "sandboxd.toml").write_text(SETTINGS.format(folder=folder, token=TOKEN))
    command = ["-m", "envsdk.cli", "sandboxd", str(folder / "sandboxd.toml"), "--port", "0"]
    program = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=subprocess.PIPE)
    assert program.stdout is not None
    return program, (await program.stdout.readline()).decode().split()[-1]


@pytest.mark.system
async def test_a_killed_server_leaves_nothing_that_the_next_one_does_not_remove(tmp_path: Path) -> None:
    program, url = await started(tmp_path)
    access = {"api_key": TOKEN, "api_url": url, "sandbox_url": url}
    for _ in range(3):
        sandbox = await AsyncSandbox.create(**access)
        await sandbox.commands.run("sleep 1000", background=True)
    await sandbox.commands.run("echo x > file")
    leases = os.listdir(tmp_path / "sandboxes")
    assert any(processes_of(lease) for lease in leases)
    program.send_signal(signal.SIGKILL)
    await program.wait()
    program, _ = await started(tmp_path)
    await until(lambda: not any(processes_of(lease) for lease in leases))
    assert not {*leases} & {*os.listdir(tmp_path / "sandboxes")}
    program.send_signal(signal.SIGTERM)
    assert await program.wait() == 0
    assert [*(tmp_path / "sandboxes").iterdir(), *(tmp_path / "server").iterdir()] == []


@pytest.mark.system
def test_a_taken_port_and_a_missing_backend_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sandboxd.toml").write_text(SETTINGS.format(folder=tmp_path, token=TOKEN))
    assert main([str(tmp_path / "sandboxd.toml"), "--host", "192.0.2.1"]) == 2
    assert "give another --host or --port" in capsys.readouterr().err
    assert main([str(tmp_path / "sandboxd.toml"), "--backend", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err
