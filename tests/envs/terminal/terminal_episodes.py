"""Episodes of the Terminal environment, played command by command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from envsdk.envs.terminal.env import HOST_IMAGES, SUBMIT_COMMAND, TerminalEnv
from envsdk.envs.terminal.replies import format_command


def make(data: Path | None, **arguments: Any) -> TerminalEnv:
    """An environment of a folder, whose images start from this machine's system."""
    of_folder = (
        {} if data is None else {"data": str(data), "backend_settings": HOST_IMAGES, "validate": False}
    )
    return TerminalEnv(**{"split": "all", **of_folder, **arguments})


async def play(env: TerminalEnv, *commands: str, task: int = 0) -> tuple[str, float, dict[str, Any]]:
    """The last observation, all that was paid and the last info after these commands and a submission."""
    await env.reset(seed=0, options={"task": task})
    paid = 0.0
    for command in (*commands, SUBMIT_COMMAND):
        observation, reward, terminated, truncated, info = await env.step(format_command(command, "bash"))
        paid += reward
        if terminated or truncated:
            break
    return observation, paid, info


async def solve(env: TerminalEnv, task: int, before: str = "") -> tuple[float, dict[str, Any]]:
    """What the task's own solution is paid, after a command that leaves things lying about."""
    await env.reset(seed=0, options={"task": task})
    if before:
        await env.step(format_command(before, "bash"))
    paid, done, info = 0.0, False, {}
    while not done:
        _, reward, terminated, truncated, info = await env.step(await env.oracle())
        paid, done = paid + reward, terminated or truncated
    return paid, info
