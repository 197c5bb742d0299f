"""`envsdk eval NAME...`: what names stand for, one table for several, and logs that survive a kill."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tests.system.toy_envs  # noqa: F401 - registers the environments
from envsdk.base.store.shards import fingerprint
from envsdk.base.store.trajectories import SCHEMA, read_trajectories
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.trajectory import Trajectory
from envsdk.evaluate import EvalSpec, evaluate, main
from envsdk.rollouts.play.evaluation_log import EPISODES, appended_episodes
from envsdk.trainers.warm_start.tiny_policy import build_tokenizer, write_random_model, write_tokenizer
from envsdk.view.library import Library
from tests.system.conftest import REPOSITORY, RunHere
from tests.system.test_collect import wait_until

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("here")]

RUN = [sys.executable, "-c", "from tests.system.toy_envs import run; run('evaluate')"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two small models with different random weights."""
    tokenizer = build_tokenizer(["What is 1 plus 2 minus 3? 0 4 5 6 7 8 9 \\boxed{}"])
    folders = []
    for seed in range(2):
        folder = tmp_path_factory.mktemp(f"model_{seed}_")
        write_tokenizer(folder, tokenizer, sequence_length=512)
        write_random_model(
            folder, tokenizer, hidden_size=32, num_layers=1, num_heads=2, sequence_length=512, seed=seed
        )
        folders.append(folder)
    return folders[0], folders[1]


def the_log(folder: Path) -> Path:
    (found,) = (folder / "evaluations").iterdir()
    return found


def episodes_in(log: Path) -> dict[str, Trajectory]:
    shards = [each for path in log.glob("part-*.parquet") for each in read_trajectories(path)]
    config = json.loads((log / "manifest.json").read_text())["config"]
    stamp = SCHEMA.with_metadata({"envsdk.collection": fingerprint(config)})
    appended = (log / EPISODES).read_bytes() if (log / EPISODES).exists() else b""
    return {each.trajectory_id: each for each in [*shards, *appended_episodes(appended, stamp)[0]]}


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_the_same_command_continues_and_plays_no_episode_twice(here: Path, how: signal.Signals) -> None:
    command = [*RUN, "toys/Slow-v1", "--policy", "random", "-n", "60", "-k", "2", "sleep_s=0.01"]
    environment = {"PYTHONPATH": f"{REPOSITORY}", "PATH": "/usr/bin:/bin"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    wait_until(lambda: process.poll() is not None or _has_episodes(here, 40))
    process.send_signal(how)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == (-how if how is signal.SIGKILL else 130), stderr
    assert "Traceback" not in stderr
    before = episodes_in(the_log(here))
    assert 40 <= len(before) < 120

    done = subprocess.run(
        [*command, "--json", "result.json"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"{len(before)} of 120 episodes were there before" in done.stderr
    log = the_log(here)
    assert not (log / EPISODES).exists()
    after = episodes_in(log)
    # Times of playing are among what is compared.
    assert before.items() <= after.items()
    assert len(after) == 120
    straight = evaluate(
        "toys/Slow-v1", policy="random", num_episodes=60, samples_per_task=2, overrides=["sleep_s=0.0"]
    )
    assert [(each.seed, each.success) for each in straight.trajectories] == [
        (each["seed"], each["success"]) for each in json.loads(Path("result.json").read_text())["episodes"]
    ]


def _has_episodes(here: Path, number: int) -> bool:
    logs = [*here.glob("evaluations/*/manifest.json")]
    return bool(logs) and len(episodes_in(logs[0].parent)) >= number


def test_a_finished_evaluation_is_read_and_not_played(run_here: RunHere, here: Path) -> None:
    first = run_here(main, "sokoban", "--policy", "random", "-n", 20)
    before = episodes_in(the_log(here))
    second = run_here(main, "sokoban", "--policy", "random", "-n", 20)
    assert first.stdout == second.stdout
    assert "20 of 20 episodes were there before" in second.stderr
    assert episodes_in(the_log(here)) == before
    # What decides the episodes has a log of its own.
    run_here(main, "sokoban", "--policy", "random", "-n", 20, "--seed", 7)
    assert len(list((here / "evaluations").iterdir())) == 2


def test_a_prompt_file_is_evaluated_by_its_reward_and_other_rows_are_another_evaluation(
    run_here: RunHere, here: Path
) -> None:
    rows = [{"prompt": f"{number} + 1 =", "ground_truth": str(number + 1)} for number in range(9)]
    Path("my rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = run_here(main, "my rows.jsonl", "--reward", "math", "--policy", "oracle", "--json", "result.json")
    assert done.returncode == 0, done.stderr
    result = json.loads(Path("result.json").read_text())
    assert result["total"]["episodes"] == result["total"]["successes"] == 9
    assert list(result["by_tag"]) == ["my-rows"]
    Path("my rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:5]))
    assert run_here(main, "my rows.jsonl", "--reward", "math", "--policy", "oracle").returncode == 0
    assert len(list((here / "evaluations").iterdir())) == 2
    Path("a folder").mkdir()
    Path("my rows.jsonl").rename("a folder/my rows.jsonl")
    done = run_here(main, "a folder", "--reward", "math", "--policy", "oracle")
    assert done.returncode == 0
    assert "a folder" in done.stdout or "a-folder" in done.stdout
    Path("a folder/my rows.jsonl").rename("my rows.jsonl")
    assert "say by --reward" in run_here(main, "my rows.jsonl", "--policy", "oracle").stderr
    assert "--reward is for files and folders of prompts" in run_here(main, "sums", "--reward", "math").stderr


def test_rows_of_a_prompt_file_that_are_not_asked_are_counted_with_reasons(
    run_here: RunHere, here: Path
) -> None:
    Path("rows.jsonl").write_text('{"prompt": "1=", "ground_truth": "1"}\n{torn\n{"other": 1}\n')
    done = run_here(main, "rows.jsonl", "--reward", "exact", "--policy", "oracle")
    assert done.returncode == 0, done.stderr
    assert "note: 2 of 3 rows of rows.jsonl cannot be used or asked: rows.jsonl:2 is no JSON" in done.stderr
    Path("rows.jsonl").write_text("{torn\n")
    for name in (["rows.jsonl", "--reward", "exact"], ["Prompts", "files=rows.jsonl", "reward=exact"]):
        done = run_here(main, *name, "--policy", "oracle")
        assert done.returncode == 2
        assert done.stderr.startswith(
            ("error: evaluation rows: 1 problem", "error: envsdk/Prompts-v1: 1 problem")
        )
        assert "none of the 1 rows of rows.jsonl can be used" in done.stderr


EVALS = """
evals:
  easy_lakes:
    about: Small ice.
    version: 3
    samples_per_task: 2
    num_tasks: 8
    solved_at: 0.0
    custom_envs:
      lake: {env_type: envsdk/FrozenLake-v1, env_config: {size: 3}}
      pond: {env_type: envsdk/FrozenLake-v1, env_config: {size: 2, p: 1.0}, max_steps: 3}
  steps:
    num_tasks: 3
    max_failed_share: 0.9
    custom_envs:
      flaky: {env_type: toys/Flaky-v1}
"""


def test_a_yaml_file_defines_evaluations_which_are_played_together(
    run_here: RunHere, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # an xdist worker has 80
    Path("mine.yaml").write_text(EVALS)
    done = run_here(main, "mine.yaml", "--policy", "random", "--json", "result.json")
    assert done.returncode == 0, done.stderr
    result = json.loads(Path("result.json").read_text())
    lakes, steps = result["evaluations"]
    assert lakes["config"]["evaluation"] == {"name": "easy_lakes", "version": 3}
    assert {tag: each["episodes"] for tag, each in lakes["by_tag"].items()} == {"lake": 8, "pond": 8}
    # Any reward counts as solved.
    assert lakes["total"]["success_rate"] == 1.0
    assert list(lakes["total"]["pass_at"]) == ["1", "2"]
    assert steps["config"]["evaluation"] == {"name": "steps", "version": 1}
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["easy_lakes", "pond", "8"] in [row[:3] for row in rows]
    assert ["easy_lakes", "all", "16"] in [row[:3] for row in rows]
    assert "look at the episodes with: envsdk view evaluations\n" in done.stdout
    # One of them; its log is the one that is there.
    done = run_here(main, "mine.yaml:easy_lakes", "--policy", "random")
    assert "16 of 16 episodes were there before" in done.stderr
    assert "Small ice." in run_here(main, "--list", "mine.yaml").stdout


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (EVALS, "mine.yaml:stepz", "mine.yaml defines no evaluation 'stepz'; did you mean `steps`?"),
        ("evals: {a: {}}", "mine.yaml", "custom_envs: is required and missing"),
        ("evals: {a: {custom_envs: {t: {}}, task: 3}}", "mine.yaml", "did you mean `num_tasks`?"),
        ("evals: {}", "mine.yaml", "must have at least 1 entry"),
        ("evals: {a/b: {custom_envs: {t: {}}}}", "mine.yaml", "'a/b' holds characters"),
        ("evals: {a: {custom_envs: {t: {env_type: Nope-v1}}}}", "mine.yaml", "env_type"),
        ("evals: [", "mine.yaml", "mine.yaml"),
        ("", "summs", "did you mean `sums`?"),
        ("", "frozen_lakes", "`envsdk eval --list`"),
        ("", "qqqqq", "sokoban"),
        ("", "sums nproc=3", "evaluation sums reads no `nproc=3`"),
        ("", "--seed 1", "name an evaluation"),
        ("", "--list qqqqq", "--list: qqqqq: there is no evaluation"),
        ("", "sums --model nowhere", "--model: there is no folder nowhere"),
        ("", "sokoban qqqqq --policy oracle", "no environment 'qqqqq'"),
    ],
)
def test_a_wrong_name_or_definition_is_told_before_anything_is_played(
    run_here: RunHere, here: Path, content: str, name: str, message: str
) -> None:
    Path("mine.yaml").write_text(content)
    done = run_here(main, *name.split())
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (here / "evaluations").exists()


def test_models_are_compared_on_the_same_tasks(run_here: RunHere, models: tuple[Path, Path]) -> None:
    first, second = models
    asked = ("sums", "-n", 6, "actor_infer.generating_args.max_new_tokens=8", "--json", "result.json")
    done = run_here(main, *asked, "--model", first, "--model", second)
    assert done.returncode == 0, done.stderr
    result = json.loads(Path("result.json").read_text())
    digests = {each["config"]["model"]["content"] for each in result["evaluations"]}
    assert len(digests) == 2
    assert {each["config"]["model"]["generating"]["temperature"] for each in result["evaluations"]} == {0.0}
    assert "difference" not in result["evaluations"][0]
    difference = result["evaluations"][1]["difference"]
    assert difference["tasks"] == 6
    low, high = difference["mean_95"]
    assert -1 < low < difference["mean"] < high < 1
    assert second.name in done.stdout
    assert "points more" in done.stdout


def test_an_installed_package_brings_evaluations(
    monkeypatch: pytest.MonkeyPatch, run_here: RunHere, here: Path
) -> None:
    package = here / "brought-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        "[envsdk.evals]\nbrought = brought:EVAL\nother = brought:EVAL\n"
    )
    (here / "brought.py").write_text(
        "from envsdk.evaluate import EvalSpec\n"
        "EVAL = EvalSpec(name='brought', about='From elsewhere.', num_tasks=4,\n"
        "                custom_envs={'lake': {'env_type': 'envsdk/FrozenLake-v1'}})\n"
    )
    done = _envsdk("eval", "brought", "--policy", "oracle", path=here)
    assert done.returncode == 0, done.stderr
    assert "lake" in done.stdout
    done = _envsdk("eval", "other", "--policy", "oracle", path=here)
    assert "'other' of envsdk.evals: is no EvalSpec of that name" in done.stderr


def _envsdk(*arguments: str, path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "envsdk", *arguments]
    places = ":".join([str(path), *filter(None, sys.path)])
    environment = {"PYTHONPATH": places, "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_the_viewer_shows_every_episode(run_here: RunHere, here: Path, tmp_path: Path) -> None:
    assert run_here(main, "frozen_lake", "sokoban", "--policy", "random", "-n", 12).returncode == 0
    library = Library(here / "evaluations", index_folder=tmp_path / "index")
    counts = {}
    for source in library.sources():
        source.refresh()
        counts[source.source.name.split("-")[0]] = source.index().count()
    assert counts == {"frozen_lake": 12, "sokoban": 12}


def test_a_spec_of_a_program_is_evaluated() -> None:
    lake: dict[str, Any] = {"env_type": "envsdk/FrozenLake-v1", "env_config": {"size": 2, "p": 1.0}}
    spec = EvalSpec(name="tiny", custom_envs={"lake": lake}, num_tasks=5, samples_per_task=2)
    found = evaluate(spec, policy="oracle")
    assert (found.name, len(found.trajectories), found.log) == ("tiny", 10, None)
    assert len(evaluate(spec, policy="oracle", samples_per_task=1).trajectories) == 5
    Path("mine.yaml").write_text(EVALS)
    with pytest.raises(ConfigurationError, match="several evaluations: name one of easy_lakes, steps"):
        evaluate("mine.yaml", policy="oracle")
