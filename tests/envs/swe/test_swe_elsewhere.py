"""SWE played and graded in the sandboxes of another program, by E2B's protocol."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import envsdk
from envsdk.collect import collect
from envsdk.envs.shell.replies import format_reply
from envsdk.envs.swe.tasks.runtime import runtime_python

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]

TOKEN = "e2b_" + "0" * 40
SETTINGS = """
state_dir = "{folder}/server"
tokens.me.token = "{token}"
[backend_settings]
state_dir = "{folder}/sandboxes"
python = "{python}"
"""


def test_an_oracle_solves_a_task_and_an_empty_patch_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = runtime_python(("pytest",))
    (tmp_path / "sandboxd.toml").write_text(SETTINGS.format(folder=tmp_path, token=TOKEN, python=python))
    monkeypatch.setenv("E2B_API_KEY", TOKEN)
    command = [sys.executable, "-m", "envsdk.cli", "sandboxd", str(tmp_path / "sandboxd.toml"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        url = program.stdout.readline().split()[-1]
        arguments = {"backend": "e2b", "backend_settings": {"api_url": url}}
        overrides = ("backend=e2b", f"backend_settings={{api_url: '{url}'}}")
        played = collect("envsdk/SWE-v1", tmp_path / "played", num_episodes=1, overrides=overrides)
        assert played.manifest.tally.success_rate == 1.0
        env = envsdk.make("envsdk/SWE-v1", **arguments)
        env.reset(seed=0)
        submit = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
        *_, reward, terminated, _, info = env.step(format_reply(submit, "bash"))
        assert (reward, terminated, info["success"]) == (0.0, True, False)
        env.close()
        program.terminate()
        assert program.wait(60) == 0
    assert [*(tmp_path / "sandboxes").iterdir()] in ([], [tmp_path / "sandboxes/images"])
