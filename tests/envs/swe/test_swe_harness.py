"""Agent programs inside a task's sandbox: what they sampled is the trajectory, what they leave is graded."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from envsdk.contracts.failures import Boundary, ConfigurationError
from envsdk.contracts.trajectory import Outcome
from envsdk.envs.swe.env import SWEEnv
from envsdk.envs.swe.harness import read_harness
from envsdk.envs.swe.observations import read_ending
from envsdk.managers.harness_env_manager import failed_programs
from tests.by_day import by_day
from tests.envs.swe.harness_episodes import GOLD, TASK, agent, bash, play, train

SUBMIT = "SUBMIT"


async def test_what_a_program_leaves_is_graded_and_what_it_was_answered_is_the_trajectory(
    tmp_path: Path,
) -> None:
    (episode,) = await play(tmp_path, agent(tmp_path / "toy"), [bash("git ls-files"), GOLD, SUBMIT])
    assert (episode.outcome, episode.success, episode.failure) == (Outcome.TERMINATED, True, None)
    assert [turn.reward for turn in episode.turns] == [0.0, 0.0, 1.0]
    assert episode.turns[0].observation == TASK.problem_statement.strip()
    assert "spanset/spans.py" in episode.turns[1].observation
    assert episode.turns[-1].metrics["harness_succeeded"] == 1.0
    assert episode.generate_s + episode.env_s <= episode.ended_at - episode.started_at
    assert episode.task_name == TASK.instance_id
    (line,) = episode.segments()
    assert [turn.reply for turn in line.turns] == [bash("git ls-files"), GOLD, SUBMIT]


@pytest.mark.slow
async def test_a_wrong_patch_is_paid_nothing(tmp_path: Path) -> None:
    (episode,) = await play(tmp_path, agent(tmp_path / "toy"), [bash("echo x=1 >> spanset/spans.py"), SUBMIT])
    assert (episode.outcome, episode.success, episode.total_reward) == (Outcome.TERMINATED, False, 0.0)


@pytest.mark.parametrize(("how", "lines"), [("forgets", [1, 1, 1]), ("delegates", [3, 1, 1])])
async def test_compaction_and_helpers_are_lines_of_their_own(
    tmp_path: Path, how: str, lines: list[int]
) -> None:
    script = [GOLD, {"content": "yes", "match": "safe?"}, bash("ls"), SUBMIT]
    if how == "forgets":  # each of its conversations begins the script anew
        script = [
            {"content": SUBMIT, "match": "SEEN"},
            {"content": bash("git ls-files; echo SEEN"), "match": "(nothing)"},
            GOLD,
        ]
    (episode,) = await play(tmp_path, agent(tmp_path / "toy", how), script)
    assert episode.success, [(turn.observation[-90:], turn.reply[:40]) for turn in episode.turns]
    assert sorted((len(segment.turns) for segment in episode.segments()), reverse=True) == lines
    assert episode.tokens is not None
    assert episode.tokens.response_mask.sum() == sum(
        turn.response_end - turn.response_start for turn in episode.turns
    )


@pytest.mark.parametrize("submits", by_day([False], [False, True]))
async def test_a_program_that_fails_is_truncated_and_graded_only_where_the_limit_is(
    tmp_path: Path, submits: bool
) -> None:
    (episode,) = await play(
        tmp_path,
        agent(tmp_path / "toy", "fails"),
        [GOLD],
        submit_at_limit=submits,
    )
    assert (episode.outcome, episode.failure) == (Outcome.TRUNCATED, None)
    ending = read_ending(episode.final_observation)
    assert ending is not None
    assert "harness toy ended with exit code 1: I give up" in ending.detail
    assert ending.exit_status == "NonZeroExit"
    said = failed_programs([episode, episode])
    assert said.startswith("warning: the programs of 2 of 2 episodes ended with an exit code other than 0")
    assert "exit code 1: I give up" in said
    assert episode.success is False
    assert episode.turns[-1].metrics["harness_succeeded"] == 0.0


@pytest.mark.parametrize("code", [126, 127])
async def test_a_program_that_cannot_be_run_after_its_first_request_is_a_failure_and_no_zero(
    tmp_path: Path, code: int
) -> None:
    harness = agent(tmp_path / "toy")
    harness["command"] += f"; echo no such program; exit {code}"
    (episode,) = await play(tmp_path, harness, [GOLD, SUBMIT], submit_at_limit=True)
    assert (episode.outcome, len(episode.turns)) == (Outcome.FAILED, 2)
    assert episode.failure is not None
    assert (episode.failure.boundary, episode.failure.kind) == (Boundary.AGENT, "agent_failed")
    assert f"The harness toy ended with exit code {code}: no such program" in episode.failure.message


async def test_the_trajectory_holds_the_last_lines_that_a_program_printed(tmp_path: Path) -> None:
    harness = agent(tmp_path / "toy")
    harness["command"] += "; echo BEGIN; python -c \"print('x' * 300)\"; echo at last"
    (episode,) = await play(tmp_path, harness, [SUBMIT])
    assert (episode.outcome, episode.failure) == (Outcome.TERMINATED, None)
    ending = read_ending(episode.final_observation)
    assert ending is not None
    assert "The harness toy ended with exit code 0: BEGIN xxx" in ending.detail
    assert "xxx at last." in ending.detail
    assert failed_programs([episode]) == ""


async def test_the_turn_limit_refuses_the_next_request(tmp_path: Path) -> None:
    replies = [GOLD, bash("ls"), bash("ls"), SUBMIT]
    (episode,) = await play(tmp_path, agent(tmp_path / "toy"), replies, max_turns=2)
    assert (episode.outcome, len(episode.turns), episode.total_reward) == (Outcome.TRUNCATED, 2, 0.0)
    assert "this session's 2 replies are used up" in episode.final_observation
    (paid,) = await play(tmp_path, agent(tmp_path / "toy"), replies, max_turns=2, submit_at_limit=True)
    assert (paid.outcome, paid.success) == (Outcome.TRUNCATED, True)


async def test_the_time_limit_ends_a_program_with_all_its_processes(tmp_path: Path) -> None:
    (episode,) = await play(tmp_path, agent(tmp_path / "toy", "sleeps"), [GOLD], time_limit_s=3)
    assert (episode.outcome, episode.failure) == (Outcome.TRUNCATED, None)
    assert "The harness toy was killed: it took longer than 3 s" in episode.final_observation
    assert 'exit_status="LimitsExceeded"' in episode.final_observation
    assert not any(str(tmp_path / "toy") in " ".join(cmdline) for cmdline in cmdlines())


def cmdlines() -> list[list[str]]:
    return [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]


async def test_a_canceled_episode_ends_its_program(tmp_path: Path) -> None:
    playing = asyncio.create_task(play(tmp_path, agent(tmp_path / "toy", "sleeps"), [GOLD]))

    def runs() -> bool:
        return any(str(tmp_path / "toy") in " ".join(cmdline) for cmdline in cmdlines())

    while not runs():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert not runs()


async def test_a_program_that_never_asks_is_a_failure_and_no_zero(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    broken = {"name": "broken", "folder": str(tmp_path / "empty"), "command": "$HARNESS/bin/nothing"}
    (episode,) = await play(tmp_path, broken, [SUBMIT])
    assert episode.outcome is Outcome.FAILED
    assert episode.failure is not None
    assert (episode.failure.boundary, episode.failure.kind) == (Boundary.AGENT, "agent_failed")
    assert "bin/nothing: No such file or directory" in episode.failure.message


async def test_a_program_that_ends_well_without_asking_is_a_failure_and_no_zero(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    lazy = {"name": "lazy", "folder": str(tmp_path / "empty"), "command": "true"}
    (episode,) = await play(tmp_path, lazy, [SUBMIT])
    assert episode.failure is not None
    assert episode.failure.boundary is Boundary.AGENT
    assert "ended without a request" in episode.failure.message


async def test_a_program_whose_engine_fails_is_a_failure_of_the_engine(tmp_path: Path) -> None:
    engine = {"failure": {"rate": 1.0}}
    (episode,) = await play(tmp_path, agent(tmp_path / "toy"), [SUBMIT], engine=engine)
    assert episode.failure is not None
    assert episode.failure.boundary is Boundary.ENGINE


async def test_a_first_prompt_too_long_is_the_program_s_own_to_shorten(tmp_path: Path) -> None:
    (episode,) = await play(tmp_path, agent(tmp_path / "toy"), [SUBMIT], sequence_length=64)
    assert episode.failure is not None
    assert episode.failure.kind == "prompt_too_long"
    assert "raise sequence_length" in episode.failure.message
    assert "have the program send less, by its own settings" in episode.failure.message
    assert "agent_template" not in episode.failure.message


@pytest.mark.slow
async def test_a_patch_in_a_file_is_what_is_graded(tmp_path: Path) -> None:
    harness = {**agent(tmp_path / "toy"), "result": "/tmp/patch"}
    saves = bash("git diff > /tmp/patch && git checkout -q . && echo broken > spanset/spans.py")
    (episode,) = await play(tmp_path, harness, [GOLD, saves, SUBMIT])
    assert episode.success


async def test_files_and_variables_are_given_and_secrets_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_ORG_SECRET", "hush")
    harness = {**agent(tmp_path / "toy"), "variables": {"MINE": "1"}, "files": {"own.yaml": "a: 1"}}
    (episode,) = await play(tmp_path, harness, [bash("env; cat $HARNESS_FILES/own.yaml"), SUBMIT])
    shown = episode.turns[1].observation
    assert "MINE=1" in shown
    assert "a: 1" in shown
    assert "hush" not in shown


async def test_an_installation_with_a_copy_of_the_solution_is_refused(tmp_path: Path) -> None:
    harness = agent(tmp_path / "toy")
    solved = [line[1:] for line in TASK.gold_patch.splitlines() if line[:1] in " +" and line[:3] != "+++"]
    (tmp_path / "toy" / "notes.txt").write_text("\n".join(solved))
    (episode,) = await play(tmp_path, harness, [SUBMIT])
    assert episode.failure is not None
    assert "shows its solution" in episode.failure.message
    assert episode.failure.boundary is Boundary.CONFIGURATION


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("mini-swe-agnet", "Did you mean 'mini-swe-agent'?"),
        ({"name": "mine"}, "give its `command`"),
        (["mini-swe-agent"], "a name, or a mapping of its keys"),
        ({"command": "x", "comand": "y"}, "comand"),
        ({"command": "x", "files": {"../a": ""}}, "'../a' is not the name of a file"),
    ],
)
def test_a_harness_that_is_none_is_refused_with_what_to_write(given: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said.replace("?", r"\?")):
        read_harness(given)
    with pytest.raises((ConfigurationError, ValueError)):
        SWEEnv(harness=given)


def test_a_harness_plays_in_no_other_sandboxes() -> None:
    with pytest.raises(ValueError, match="plays in the sandboxes of `bubblewrap`, not of `docker`"):
        SWEEnv(harness="mini-swe-agent", backend="docker")


def test_entries_of_a_shipped_harness_are_overridden_one_by_one() -> None:
    harness = read_harness({"name": "mini-swe-agent", "variables": {"MSWEA_COST_TRACKING": "default"}})
    assert harness.variables["MSWEA_COST_TRACKING"] == "default"
    assert harness.variables["MSWEA_CONFIGURED"] == "true"


def test_what_is_not_installed_is_said_before_a_run_with_the_command_that_installs_it(
    tmp_path: Path,
) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "envsdk.train", "agentic_swe_harness_async.yaml", "--explain"],
        capture_output=True, text=True, check=True, env={**os.environ, "ENVSDK_CACHE": str(tmp_path)},
    ).stdout  # fmt: skip
    words = " ".join(said.split())
    assert "run `python -m envsdk.envs.swe.harness mini-swe-agent`, or name its `folder`" in words
    assert "custom_envs.SWE.env_manager_cls HarnessEnvManager the environment's own" in words


def test_a_harness_may_be_missing_in_a_tag_that_the_run_does_not_play(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "envsdk.train", "agentic_swe_harness_programs.yaml", "--explain"]
    said = subprocess.run(
        [*command, "train_env_manager.tags=[Codex]"],
        capture_output=True, text=True, check=True, env={**os.environ, "ENVSDK_CACHE": str(tmp_path)},
    ).stdout  # fmt: skip
    assert re.findall(r"harness ([\w-]+) is not installed", " ".join(said.split())) == ["codex"]


def test_a_harness_of_ones_own_is_installed_by_the_command_that_the_run_names(tmp_path: Path) -> None:
    env = {**os.environ, "ENVSDK_CACHE": str(tmp_path / "cache")}

    def run(module: str, *arguments: str) -> str:
        command = [sys.executable, "-m", module, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, check=True)
        return " ".join((done.stdout + done.stderr).split())

    tags = {
        tag: {"env_config": {"harness": {"name": "mine", "install": f"echo {tag} > made", "command": "true"}}}
        for tag in ("SWE", "SWEHeldOut")
    }
    keys = {"extends": "agentic_swe_harness_async.yaml", "custom_envs": tags}
    (tmp_path / "mine.yaml").write_text(json.dumps(keys))
    said = run("envsdk.train", "mine.yaml", "--explain")
    assert "run `python -m envsdk.envs.swe.harness CONFIG.yaml`, CONFIG.yaml being the run's file" in said
    run("envsdk.envs.swe.harness", "mine.yaml")
    made = (tmp_path / "cache" / "swe" / "harnesses").glob("mine-*/made")
    assert sorted(path.read_text() for path in made) == ["SWE\n", "SWEHeldOut\n"]
    assert "is not installed" not in run("envsdk.train", "mine.yaml", "--explain")


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.timeout(1200)
def test_a_run_learns_from_all_lines_of_programs_in_sandboxes(tmp_path: Path) -> None:
    harness = agent(tmp_path / "toy", "delegates")
    trained = train(tmp_path, {key: harness[key] for key in ("folder", "command")})
    assert len(trained) == 16
    assert not any(trajectory.failure for trajectory in trained)
    assert max(len(trajectory.segments()) for trajectory in trained) > 1
    for trajectory in trained:
        assert trajectory.tokens is not None
        learned = sum(turn.response_end - turn.response_start for turn in trajectory.turns)
        assert trajectory.tokens.response_mask.sum() == learned
