"""The harnesses that ship, unchanged, in real sandboxes: `make test-clients` installs them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from envsdk.config.reading import examples_folder
from envsdk.contracts.trajectory import Outcome
from envsdk.envs.swe.env import gold_command
from envsdk.envs.swe.harness import read_harness
from envsdk.envs.swe.harness.record import INSTALLED
from envsdk.tracking import read_metrics
from tests.envs.swe.harness_episodes import TASK, play, train
from tests.tiny_policies import write_tiny_policy

# By day, test_swe_harness.py has programs that ask as these do.
pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(600)]

# Of the user's cache: that of these tests is another folder.
PLACES = {name: read_harness(name).place for name in ("mini-swe-agent", "claude-code", "codex", "opencode")}
GOLD = gold_command(TASK.gold_patch)


def installed(name: str, **keys: Any) -> dict[str, Any]:
    if not (PLACES[name] / INSTALLED).is_file():
        pytest.skip(f"needs {name}: make test-clients")
    return {"name": name, "folder": str(PLACES[name]), **keys}


def call(name: str, **arguments: Any) -> Mapping[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


async def test_mini_swe_agent_repairs_a_repository_and_is_paid(tmp_path: Path) -> None:
    submit = call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    steps = [call("bash", command="git ls-files"), call("bash", command=GOLD), submit]
    (episode,) = await play(tmp_path, installed("mini-swe-agent"), steps)
    assert (episode.outcome, episode.success) == (Outcome.TERMINATED, True), episode.failure
    assert [len(segment.turns) for segment in episode.segments()] == [3]
    assert all(turn.metrics["call_attempt.ok"] == 1.0 for turn in episode.turns)


async def test_mini_swe_agent_is_truncated_at_the_limit_of_turns_without_asking_again(tmp_path: Path) -> None:
    steps = [call("bash", command="ls")] * 5
    (episode,) = await play(tmp_path, installed("mini-swe-agent"), steps, max_turns=2)
    assert (episode.outcome, len(episode.turns), episode.failure) == (Outcome.TRUNCATED, 2, None)
    assert "this session's 2 replies are used up" in episode.final_observation


async def test_claude_code_with_a_sub_agent_and_a_summary_is_one_episode_of_several_lines(
    tmp_path: Path,
) -> None:
    asks = call("Agent", description="look", prompt="Find the function", subagent_type="general-purpose")
    steps = [
        {"match": "<result>It is in spans.py.</result>", "content": "Done."},  # the sub-agent has answered
        {"match": "full subagent JSONL transcript", "content": "I wait."},
        {"match": "Find the function", "content": "It is in spans.py."},
        {"match": "detailed summary", "content": "<summary>HALFWAY</summary>"},
        {"match": "HALFWAY", **asks},
        call("Bash", command=GOLD, description="repair"),
        *[call("Bash", command="seq 1 6000", description="count")] * 8,  # fills its context
    ]
    (episode,) = await play(tmp_path, installed("claude-code"), steps, max_turns=40)
    assert (episode.outcome, episode.success) == (Outcome.TERMINATED, True), episode.final_observation
    said = [turn.reply for turn in episode.turns]
    assert {"It is in spans.py.", "<summary>HALFWAY</summary>", "Done."} <= set(said)
    assert len(episode.segments()) >= 3


async def test_codex_repairs_a_repository_by_responses(tmp_path: Path) -> None:
    steps = [call("exec_command", cmd=GOLD), "Done."]
    (episode,) = await play(tmp_path, installed("codex"), steps)
    assert (episode.outcome, episode.success) == (Outcome.TERMINATED, True), episode.failure
    assert [len(segment.turns) for segment in episode.segments()] == [2]


async def test_opencode_repairs_a_repository_by_the_agent_client_protocol(tmp_path: Path) -> None:
    steps = [call("bash", command=GOLD, description="repair"), "Done."]
    (episode,) = await play(tmp_path, installed("opencode"), steps)
    assert (episode.outcome, episode.success) == (Outcome.TERMINATED, True), episode.failure
    assert [len(segment.turns) for segment in episode.segments()] == [2]  # the policy is asked for no title


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.timeout(1200)
def test_the_example_trains_through_mini_swe_agent(tmp_path: Path) -> None:
    trained = train(tmp_path, {"folder": installed("mini-swe-agent")["folder"]})
    assert len(trained) == 16
    assert not any(trajectory.failure for trajectory in trained)


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("name", "tag"), [("claude-code", "Claude"), ("codex", "Codex"), ("opencode", "OpenCode")]
)
def test_a_policy_learns_through_a_program_which_edit_is_right(name: str, tag: str, tmp_path: Path) -> None:
    (seen,) = asyncio.run(play(tmp_path, installed(name), ["Done."]))
    texts = [turn.observation + (turn.details or "") for turn in seen.turns]
    settings = yaml.safe_load((examples_folder() / "agentic_swe_harness_programs.yaml").read_text())
    env = settings["custom_envs"][tag]
    given = env["env_config"]["harness"]
    env["env_config"]["harness"] = {**(given if isinstance(given, dict) else {}), **installed(name)}
    edit, *_, end = env["structured_output"]["choices"]
    env["structured_output"]["choices"] = [edit, end]
    write_tiny_policy(tmp_path / "tiny", [*texts, edit, end], sequence_length=65_536)
    (tmp_path / "run.yaml").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-m", "envsdk.train", "run.yaml", "max_steps=2", f"train_env_manager.tags=[{tag}]"],
        cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = list(read_metrics(tmp_path / "runs" / f"agentic_swe_harness_programs_{tag}" / "metrics.jsonl"))
    norms = [row["actor/grad_norm"] for row in rows if "actor/grad_norm" in row]
    gaps = [row["actor/logprob_gap_max"] for row in rows if "actor/logprob_gap_max" in row]
    assert len(norms) == 2
    assert max(norms) > 0
    assert max(gaps) < 1e-4
