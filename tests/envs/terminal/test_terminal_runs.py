"""Whole runs with real sandboxes: evaluation by the oracle, and the training example."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harbor_folders import write_task

from envsdk.base.store.trajectories import read_trajectories
from envsdk.collect import command as collect_command
from envsdk.envs.terminal.task_list import task_list
from envsdk.evaluate import CommandOptions, evaluate
from envsdk.evaluate import command as evaluate_command
from envsdk.rollouts.play.collection import CollectOptions


@pytest.mark.slow
def test_the_oracle_solves_every_shipped_task() -> None:
    num_tasks = len(task_list(None, "all"))
    evaluation = evaluate("Terminal", policy="oracle", num_episodes=num_tasks, overrides=["split=all"])
    failed = [each.failure or each.final_observation for each in evaluation.trajectories if not each.success]
    assert failed == []
    assert len({each.final_observation.split('"')[1] for each in evaluation.trajectories}) == num_tasks


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.timeout(900)
def test_the_example_trains(tmp_path: Path) -> None:
    short = ("max_steps=2", "eval_steps=2", "warm_start.num_episodes=16", "warm_start.epochs=1")
    done = subprocess.run(
        [sys.executable, "-m", "envsdk.train", "agentic_terminal_async.yaml", *short],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    files = sorted((tmp_path / "runs/agentic_terminal_async/trajectories").glob("step_*.parquet"))
    trajectories = [each for file in files for each in read_trajectories(file)]
    assert len(trajectories) == 32
    assert not any(each.failure for each in trajectories)


def test_a_key_that_changes_nothing_is_said_before_episodes_are_played(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = write_task(tmp_path / "task", {"task.toml": '[verifier]\nenviroment_mode = "separate"'})
    arguments = (f"data={folder}", "validate=false", 'backend_settings={images: {"*": host}}')
    said = re.compile(r".* task.toml: verifier.enviroment_mode: is no key of Harbor's, .* \(task\)")
    _, notes = CommandOptions(names=("Terminal", *arguments)).asked()
    assert len([note for note in notes if said.fullmatch(note)]) == 1
    collect_command(
        CollectOptions(
            source="Terminal", out=tmp_path / "out", policy="oracle", num_episodes=1, overrides=arguments
        )
    )
    assert len(said.findall(capfd.readouterr().err.replace("\n", " "))) == 1


def test_each_task_that_fails_is_named_with_why_and_none_of_them_is_scored(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, dict[str, str | None]] = {
        "good": {"tests/test.sh": "[ -e /app/done ]; echo $((1 - $?)) > /logs/verifier/reward.txt"},
        "pays/nobody": {"tests/test.sh": "echo 0 > /logs/verifier/reward.txt"},
        "says/nothing": {"tests/test.sh": "exit 3"},
        "lacks/one": {"solution/solve.sh": None},
        "lacks/other": {"solution/solve.sh": None},
    }
    for name, files in given.items():
        write_task(tmp_path / "tasks" / name, {"solution/solve.sh": "touch /app/done", **files})
    arguments = (f"data={tmp_path / 'tasks'}", 'backend_settings={images: {"*": host}}', "split=all")
    options = {"policy": "oracle", "num_episodes": 5, "out": tmp_path / "log", "json_file": tmp_path / "json"}
    overrides = (*arguments, "max_failed_share=1")
    evaluate_command(CommandOptions(names=("Terminal", *overrides), **options))
    shown = capfd.readouterr().out
    assert "  lacks/one, lacks/other: NoSolution: the task has no solution/solve.sh" in shown
    assert "  pays/nobody: ConfigurationError: pays/nobody cannot be used: its own solution" in shown
    assert "  says/nothing: ConfigurationError: says/nothing cannot be used: " in shown
    stored = read_trajectories(tmp_path / "log/part-00000.parquet")
    for each, trajectory in zip(json.loads((tmp_path / "json").read_text())["episodes"], stored, strict=True):
        scored = (True, 1.0) if each["task"] == "good" else (None, None)
        assert (each["success"], each["reward"]) == scored == trajectory.score
        assert each["task"] == trajectory.task_name
    assert sorted(each.task_name for each in stored) == [
        *("good", "lacks/one", "lacks/other", "pays/nobody", "says/nothing"),
    ]


@pytest.mark.system
def test_sigterm_ends_a_run_with_its_sandboxes(tmp_path: Path) -> None:
    """As a job scheduler does, also where a script has started it in its background, deaf to Ctrl-C."""
    folder, state = write_task(tmp_path / "task", {"solution/solve.sh": "sleep 500"}), tmp_path / "state"
    settings = json.dumps({"images": {"*": "host"}, "state_dir": str(state)})
    arguments = (f"data={folder}", f"backend_settings={settings}", "validate=false", "command_timeout_s=600")
    patient = "import sys; from envsdk.base.processes import supervised; supervised.CLOSE_S = 50.0\n"
    run = f"{patient}from envsdk.collect import main; sys.exit(main())"
    argv = [sys.executable, "-c", run, "Terminal", *arguments, "--out", str(tmp_path / "out")]
    argv += ["--policy", "oracle", "-n", "1"]
    running = subprocess.Popen(
        argv,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    try:
        while not (runs := [*state.glob("*/*/fstab")]) and running.poll() is None:
            time.sleep(0.05)
        running.terminate()
        _, said = running.communicate(timeout=60)
    finally:
        running.kill()
    assert (running.returncode, bool(runs)) == (143, True), said
    assert "interrupted: the same command continues" in said
    assert {each.name for each in state.iterdir()} <= {"images"}


def test_a_folder_that_cannot_be_played_ends_a_run_before_it_plays(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks/one", {"task.toml": 'schema_version = "9.9"'})
    for name, more in (("evaluate", ()), ("collect", ("--out", str(tmp_path / "out")))):
        argv = ["envsdk", name, "Terminal", f"data={tmp_path / 'tasks'}", "--policy", "oracle", *more]
        done = subprocess.run([sys.executable, "-m", *argv], capture_output=True, text=True, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, ""), done
        assert done.stderr.count("schema_version") == 1
        assert "1 of 1 tasks cannot be played here" in done.stderr
