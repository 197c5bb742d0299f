"""What SWE episodes cost: 64 scripted ones at once, against the same commands without a sandbox.

    python benchmarks/swe_episodes.py [--episodes 128] [--slots 64] [--json FILE]

Played in one run: as SWE episodes whose submission is empty and so not graded, as SWE episodes
that each submit a patch of their own, and, before and after, as plain `bash` processes in copies of the same
repositories, as many at once as the sandbox runs. Then as many environments as slots are left idle in
mid-episode, and what they hold is counted. The exit code is 1 when an episode was lost or an idle one holds a
process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from envsdk.contracts.policy import Policy, Reply, TurnContext
from envsdk.contracts.trajectory import Outcome, Task, Trajectory
from envsdk.envs.shell.replies import format_reply
from envsdk.envs.swe import SPEC
from envsdk.envs.swe.observations import SUBMIT_COMMAND
from envsdk.envs.swe.policies import ROUNDS
from envsdk.envs.swe.tasks.runtime import runtime_python
from envsdk.envs.swe.tasks.shipped import shipped_tasks
from envsdk.envs.swe.tasks.trees import base_tree
from envsdk.managers.env_host import EnvBlueprint
from envsdk.managers.traj_env_manager import TagSetup
from envsdk.rollouts.play.local_runner import play_tasks

COMMANDS_AT_ONCE = 2 * (os.cpu_count() or 1)
TAG = "SWE"
UNDO = "git checkout -q ."


class Scripted(Policy):
    """The rounds of `swe_looker`; then the change is undone, or made the episode's own, and submitted."""

    name = "scripted"

    def __init__(self, *, submits_nothing: bool) -> None:
        self._submits_nothing = submits_nothing

    async def act(self, turn: TurnContext) -> Reply:
        commands = rounds(turn.session_id if not self._submits_nothing else None)
        return Reply(text=format_reply(commands[turn.turn_index], "bash"))


def rounds(mark: str | None) -> list[str]:
    """The commands of one episode. `mark` makes its patch unlike all others; None submits nothing."""
    last = UNDO if mark is None else f"sed -i 's/# looked at/# looked at by {mark}/' $(git diff --name-only)"
    return [*ROUNDS[:-1], last, SUBMIT_COMMAND]


def play(num_episodes: int, num_slots: int, *, submits_nothing: bool) -> dict[str, float]:
    played: list[Trajectory] = []
    setup = TagSetup(
        tag=TAG,
        blueprint=EnvBlueprint(
            spec=SPEC,
            env_config={"split": "all", "instructions": False},
            isolation=SPEC.isolation,
            reset_timeout_s=SPEC.reset_timeout_s,
            step_timeout_s=SPEC.step_timeout_s,
        ),
        max_turns=SPEC.max_steps or 0,
    )
    began = time.perf_counter()
    asyncio.run(
        play_tasks(
            [(number, Task(tag=TAG, split="bench", index=number)) for number in range(num_episodes)],
            setups={TAG: setup},
            policy=lambda _: Scripted(submits_nothing=submits_nothing),
            run_seed=0,
            num_slots_per_tag=num_slots,
            on_trajectory=lambda _, trajectory: played.append(trajectory),
        )
    )
    seconds = time.perf_counter() - began
    lost = [t for t in played if t.outcome is not Outcome.TERMINATED]
    for trajectory in lost[:3]:
        print(f"lost: {trajectory.failure or trajectory.final_observation[-300:]}", file=sys.stderr)
    num_commands = sum(len(trajectory.turns) for trajectory in played)
    return {
        "episodes_per_s": num_episodes / seconds,
        "commands_per_s": num_commands / seconds,
        "lost": float(len(lost) + num_episodes - len(played)),
    }


def play_plainly(num_episodes: int, num_slots: int) -> dict[str, float]:
    """The same commands by `bash` in copies of the repositories."""
    trees = [base_tree(task) for task in shipped_tasks()]
    env = {"PATH": f"{runtime_python().parent}:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}

    async def one(number: int, slots: asyncio.Semaphore, cores: asyncio.Semaphore, folder: Path) -> int:
        async with slots:
            copy = folder / str(number)
            await asyncio.to_thread(shutil.copytree, trees[number % len(trees)], copy, symlinks=True)
            for command in rounds(None):
                async with cores:
                    process = await asyncio.create_subprocess_exec(
                        "bash",
                        "-c",
                        command,
                        cwd=copy,
                        env={**env, "HOME": str(folder)},
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT,
                    )
                    await process.communicate()
            await asyncio.to_thread(shutil.rmtree, copy)
            return len(rounds(None))

    async def everything(folder: Path) -> int:
        slots, cores = asyncio.Semaphore(num_slots), asyncio.Semaphore(COMMANDS_AT_ONCE)
        return sum(await asyncio.gather(*(one(n, slots, cores, folder) for n in range(num_episodes))))

    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        num_commands = asyncio.run(everything(Path(folder)))
        seconds = time.perf_counter() - began
    return {"episodes_per_s": num_episodes / seconds, "commands_per_s": num_commands / seconds}


def rest(num_envs: int) -> dict[str, float]:
    """What idle episodes hold, apart from files."""
    process = psutil.Process()
    blueprint = EnvBlueprint(spec=SPEC, env_config={"split": "all"})
    envs = [blueprint.build() for _ in range(num_envs)]
    before_mb = process.memory_info().rss / 2**20
    began = time.perf_counter()
    for number, env in enumerate(envs):
        env.reset(seed=number)
        env.step(format_reply("echo here > new.txt", "bash"))
    started_s = (time.perf_counter() - began) / num_envs
    held = {
        "first_command_ms": 1000 * started_s,
        "processes_per_idle_episode": len(process.children(recursive=True)) / num_envs,
        "mb_per_idle_episode": (process.memory_info().rss / 2**20 - before_mb) / num_envs,
    }
    for env in envs:
        env.close()
    return held


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    num_tasks = len(shipped_tasks())
    play(num_tasks, num_tasks, submits_nothing=False)  # repositories and the runtime are made once
    # Plain ones before and after: other work on the machine comes and goes.
    before = play_plainly(arguments.episodes, arguments.slots)
    figures: dict[str, Any] = {
        "sandboxed": play(arguments.episodes, arguments.slots, submits_nothing=True),
        "graded": play(arguments.episodes, arguments.slots, submits_nothing=False),
    }
    after = play_plainly(arguments.episodes, arguments.slots)
    figures["plain"] = {name: 2 / (1 / before[name] + 1 / after[name]) for name in before}
    figures["plain_before"], figures["plain_after"] = before, after
    figures["idle"] = rest(arguments.slots)
    sandboxed, plain = figures["sandboxed"], figures["plain"]
    figures["ratio"] = plain["episodes_per_s"] / sandboxed["episodes_per_s"]
    print(f"{arguments.episodes} episodes, {arguments.slots} at once, {COMMANDS_AT_ONCE} commands at once")
    for name in ("plain_before", "sandboxed", "graded", "plain_after"):
        row = figures[name]
        lost = f", {row['lost']:.0f} lost" if "lost" in row else ""
        print(
            f"{name:12} {row['episodes_per_s']:6.2f} episodes/s {row['commands_per_s']:7.1f} commands/s{lost}"
        )
    print(f"plain over sandboxed: {figures['ratio']:.2f}")
    for name, value in figures["idle"].items():
        print(f"{name}: {value:.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2))
    lost = sandboxed["lost"] + figures["graded"]["lost"]
    return 1 if lost or figures["idle"]["processes_per_idle_episode"] else 0


if __name__ == "__main__":
    sys.exit(main())
