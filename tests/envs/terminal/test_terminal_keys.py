"""The terminal as it is: keys in, the screen out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harbor_folders import write_task
from terminal_episodes import make, solve

pytestmark = pytest.mark.asyncio

FILES = {
    "solution/solve.sh": "echo done > /app/x\n",
    "tests/test.sh": "#!/bin/bash\ngrep -q done /app/x; echo $((1 - $?)) > /logs/verifier/reward.txt\n",
}


def keys(*commands: str, wait_s: float = 5.0, done: bool = False) -> str:
    typed = [{"keystrokes": each, "duration": wait_s} for each in commands]
    return json.dumps({"commands": typed, "task_complete": done})


async def test_an_episode_is_played_by_keys(tmp_path: Path) -> None:
    env = make(write_task(tmp_path, FILES), action_format="keys")
    observation, _ = await env.reset(seed=0)
    assert '"keystrokes": "ls -la\\n"' in observation
    screen, *_ = await env.step(keys("x=3; cd /tmp\n", "echo $x $PWD\n"))
    assert "3 /tmp" in screen.split("\n")
    screen, *_ = await env.step(keys("cat\n", wait_s=0.5))
    screen, *_ = await env.step(keys("C-c", "echo again\n"))
    assert "^C" in screen
    assert "again" in screen.split("\n")
    screen, *_, info = await env.step("no keys")
    assert "Nothing was typed" in screen
    assert info["metrics"]["action_is_valid"] == 0.0
    screen, *_ = await env.step(keys("exit\n"))
    screen, *_ = await env.step(keys('echo "a new shell: $x"; echo done > /app/x\n'))
    assert "a new shell:" in screen.split("\n")
    _, reward, terminated, _, info = await env.step(keys(done=True))
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    await env.close()


async def test_the_oracle_types_its_solution(tmp_path: Path) -> None:
    env = make(write_task(tmp_path, FILES), action_format="keys")
    paid, _ = await solve_by_keys(env)
    assert paid == 1.0
    env = make(None, action_format="keys", instance_ids=["train/notes_in_steps"])
    paid, _ = await solve_by_keys(env)
    assert paid == 1.0


async def solve_by_keys(env):  # type: ignore[no-untyped-def]
    found = await solve(env, 0)
    await env.close()
    return found
