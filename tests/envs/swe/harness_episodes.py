"""Episodes that a harness plays in real sandboxes, before an engine with a script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envsdk.base.registry import spec
from envsdk.base.store.trajectories import read_trajectories
from envsdk.contracts.env import Isolation
from envsdk.contracts.trajectory import Task, Trajectory
from envsdk.engines.engine import EngineConfig
from envsdk.engines.engine_policy import EnginePolicy
from envsdk.engines.mock import MockEngine
from envsdk.engines.proxy import InferenceProxy, LocalLink
from envsdk.engines.sampling import SamplingParams
from envsdk.engines.scripted import SCRIPTED_LENGTH, ScriptedEngine, scripted_chat
from envsdk.envs.swe.env import gold_command
from envsdk.envs.swe.tasks.shipped import shipped_tasks
from envsdk.managers.env_host import EnvBlueprint
from envsdk.managers.harness_env_manager import HarnessEnvManager
from envsdk.managers.traj_env_manager import TagSetup
from envsdk.rollouts.play.local_runner import play_tasks
from envsdk.tracking import read_metrics

TASK = next(task for task in shipped_tasks() if task.instance_id == "spanset__touching")
CHAT = scripted_chat()
Line = str | Mapping[str, Any]


def bash(command: str) -> str:
    """A reply that runs a command."""
    return f"```bash\n{command}\n```"


GOLD = bash(gold_command(TASK.gold_patch))


def agent(folder: Path, how: str = "") -> dict[str, Any]:
    """The harness that runs `harness_agent.py`, installed in `folder`."""
    folder.mkdir(exist_ok=True)
    program = folder / "agent.py"
    program.write_text(Path(__file__).with_name("harness_agent.py").read_text())
    return {"name": "toy", "folder": str(folder), "command": f'python "$HARNESS/agent.py" {how}'}


async def play(
    folder: Path,
    harness: str | Mapping[str, Any],
    replies: Sequence[Line],
    *,
    num_episodes: int = 1,
    max_turns: int = 10,
    engine: Mapping[str, Any] | None = None,
    sequence_length: int = SCRIPTED_LENGTH,
    **env_config: Any,
) -> list[Trajectory]:
    """The trajectories of episodes in each of which the policy gives these replies in turn.

    `engine`: settings of a mock engine that takes the script's place.
    """
    script = folder / "script.jsonl"
    lines = [{"content": reply} if isinstance(reply, str) else reply for reply in replies]
    script.write_text("".join(json.dumps(line) + "\n" for line in lines))
    config: Mapping[str, Any] = {"script": str(script)} if engine is None else engine
    served = (ScriptedEngine if engine is None else MockEngine).create(
        EngineConfig(model=None, sequence_length=SCRIPTED_LENGTH, strategy_config=config)
    )
    await served.start()
    proxy = InferenceProxy({"scripted": LocalLink(served)})
    proxy.start()
    sampling = SamplingParams(max_new_tokens=min(4096, sequence_length // 2))
    policy = EnginePolicy(proxy, CHAT, sampling, sequence_length=sequence_length)
    blueprint = EnvBlueprint(
        spec=spec("envsdk/SWE-v1"),
        env_config={"instance_ids": [TASK.instance_id], "split": "all", "harness": harness, **env_config},
        isolation=Isolation.ASYNC,
        step_timeout_s=600,
    )
    played: dict[int, Trajectory] = {}
    try:
        await play_tasks(
            [(number, Task(tag="SWE", split="train", index=0)) for number in range(num_episodes)],
            setups={"SWE": TagSetup(tag="SWE", blueprint=blueprint, max_turns=max_turns)},
            policy=lambda _: policy,
            run_seed=0,
            num_slots_per_tag=num_episodes,
            on_trajectory=played.__setitem__,
            manager_classes={"SWE": HarnessEnvManager},
        )
    finally:
        await proxy.close()
        await served.close()
    return [played[number] for number in range(num_episodes)]


def train(folder: Path, harness: Mapping[str, str]) -> list[Trajectory]:
    """What two steps of the example were trained on, with these keys of `harness` and a hasty warm start."""
    keys = [
        f"custom_envs.{tag}.env_config.harness.{key}={json.dumps(value)}"
        for tag in ("SWE", "SWEHeldOut")
        for key, value in harness.items()
    ]
    short = [
        "max_steps=2",
        "eval_steps=2",
        "save_steps=2",
        "warm_start.num_episodes=16",
        "warm_start.epochs=1",
    ]
    small = ["warm_start.num_layers=1", "val_env_manager.num_env_groups=1", "val_batch_size=1"]
    done = subprocess.run(
        [sys.executable, "-m", "envsdk.train", "agentic_swe_harness_async.yaml", *short, *small, *keys],
        cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    run = folder / "runs" / "agentic_swe_harness_async"
    rows = [row for row in read_metrics(run / "metrics.jsonl") if "actor/loss" in row]
    assert len(rows) == 2
    # What the trainer computes for the tokens is what the engine said when it sampled them.
    assert rows[0].get("actor/logprob_gap_max", 0.0) < 1e-4  # absent where all rewards are the same
    files = sorted((run / "trajectories").glob("step_*.parquet"))
    return [trajectory for file in files for trajectory in read_trajectories(file)]
