"""`python -m envsdk.collect` as a process: what it writes, what it survives, what it refuses."""

from __future__ import annotations

import dataclasses
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import tests.system.toy_envs  # noqa: F401 - registers the environments
from envsdk.base.store.shards import MANIFEST, Manifest, file_sha256
from envsdk.base.store.tally import Tally
from envsdk.base.store.trajectories import read_trajectories
from envsdk.collect import collect, main
from envsdk.config import load_config
from envsdk.contracts.trajectory import Trajectory
from envsdk.rollouts.datasets.card import CARD
from tests.system.conftest import Refused, RunHere

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
RUN = [sys.executable, "-c", "from tests.system.toy_envs import run; run('collect')"]


def run_collect(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [*RUN, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < deadline, "waited for two minutes"
        time.sleep(0.005)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def manifest_of(folder: Path) -> dict:
    return json.loads((folder / MANIFEST).read_text())


def episodes_in(folder: Path) -> list[Trajectory]:
    return [t for path in sorted(folder.glob("part-*.parquet")) for t in read_trajectories(path)]


def what_was_played(trajectories: list[Trajectory]) -> list[Trajectory]:
    """The episodes without what a clock wrote into them."""
    return [
        dataclasses.replace(t, started_at=0.0, ended_at=0.0, generate_s=0.0, env_s=0.0) for t in trajectories
    ]


def assert_sound(folder: Path, num_episodes: int) -> None:
    """Complete, nothing twice, nothing left out, and the manifest says what the shards hold."""
    manifest = manifest_of(folder)
    assert manifest["complete"] is True
    episodes = episodes_in(folder)
    assert len(episodes) == num_episodes
    assert sorted(t.group_id for t in episodes) == list(range(num_episodes))
    assert len({t.trajectory_id for t in episodes}) == num_episodes
    assert len({t.task for t in episodes}) == num_episodes
    for tag in {t.task.tag for t in episodes}:
        indices = sorted(t.task.index for t in episodes if t.task.tag == tag)
        assert indices == list(range(len(indices)))
        assert (
            manifest["counts"]["by_tag"][tag] == Tally.of(t for t in episodes if t.task.tag == tag).to_json()
        )
    for shard in manifest["shards"]:
        path = folder / shard["file"]
        assert shard["sha256"] == file_sha256(path)
        assert Tally.from_json(shard["counts"]) == Tally.of(read_trajectories(path))
    names = {shard["file"] for shard in manifest["shards"]}
    assert {path.name for path in folder.iterdir()} == names | {MANIFEST, CARD, ".lock", ".workers.lock"}


@pytest.mark.parametrize("num_workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_killed_again_and_again_it_ends_with_every_episode_exactly_once(
    tmp_path: Path, num_workers: int
) -> None:
    out, num_episodes = tmp_path / "out", 140
    arguments = [
        *("toys/Slow-v1", "--out", out, "-n", num_episodes, "--epsilon", 0.3, "--shard-size", 10),
        *("--workers", num_workers),
    ]
    moments = random.Random(num_workers)
    num_killed = 0
    for num_shards_before in (1, 5, 10):
        process = subprocess.Popen([*RUN, *map(str, arguments)], cwd=ROOT, stderr=subprocess.DEVNULL)
        wait_until(lambda: len(list(out.glob("part-*.parquet"))) >= num_shards_before)  # noqa: B023
        time.sleep(moments.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        num_killed += process.wait() == -signal.SIGKILL
        assert manifest_of(out)["complete"] is False
    assert num_killed == 3

    done = run_collect(*arguments)
    assert done.returncode == 0, done.stderr
    assert "were there before" in done.stderr
    assert_sound(out, num_episodes)
    straight = collect(
        "toys/Slow-v1", tmp_path / "straight", num_episodes=num_episodes, epsilon=0.3, shard_size=10
    )
    assert what_was_played(episodes_in(out)) == what_was_played(episodes_in(straight.folder))


def test_a_shard_that_the_manifest_never_heard_of_is_counted_and_not_played_again(tmp_path: Path) -> None:
    collect("toys/Fast-v1", tmp_path, num_episodes=60, shard_size=20)
    manifest = Manifest.load(tmp_path)
    assert manifest is not None
    del manifest.shards[1]
    manifest.save(tmp_path)
    before = file_sha256(tmp_path / "part-00001.parquet")
    played: list[Tally] = []
    collect("toys/Fast-v1", tmp_path, num_episodes=60, shard_size=20, on_played=played.append)
    assert played == []
    assert file_sha256(tmp_path / "part-00001.parquet") == before
    assert_sound(tmp_path, 60)


def test_a_deleted_shard_is_collected_anew_with_the_same_episodes(tmp_path: Path) -> None:
    collect("toys/Fast-v1", tmp_path, num_episodes=60, shard_size=20, epsilon=0.5)
    before = what_was_played(episodes_in(tmp_path))
    (tmp_path / "part-00001.parquet").unlink()
    collect("toys/Fast-v1", tmp_path, num_episodes=60, shard_size=20, epsilon=0.5)
    assert what_was_played(episodes_in(tmp_path)) == before
    assert_sound(tmp_path, 60)


def test_a_shard_that_was_changed_is_named_and_left_alone(tmp_path: Path, run_here: RunHere) -> None:
    collect("toys/Fast-v1", tmp_path, num_episodes=40, shard_size=20)
    shard = tmp_path / "part-00001.parquet"
    shard.write_bytes(shard.read_bytes() + b"x")
    done = run_here(main, "toys/Fast-v1", "--out", tmp_path, "-n", 40, "--shard-size", 20)
    assert done.returncode == 1
    assert f"{shard} is not the file" in done.stderr
    assert "Delete it" in done.stderr


def test_a_shard_of_another_collection_is_named(tmp_path: Path, run_here: RunHere) -> None:
    collect("toys/Fast-v1", tmp_path / "one", num_episodes=40, shard_size=20)
    collect("toys/Fast-v1", tmp_path / "two", num_episodes=40, shard_size=20, seed=7)
    manifest = Manifest.load(tmp_path / "one")
    assert manifest is not None
    del manifest.shards[1]
    manifest.save(tmp_path / "one")
    (tmp_path / "two" / "part-00001.parquet").rename(tmp_path / "one" / "part-00001.parquet")
    done = run_here(main, "toys/Fast-v1", "--out", tmp_path / "one", "-n", 40, "--shard-size", 20)
    assert done.returncode == 1
    assert "part-00001.parquet belongs to another collection" in done.stderr


def test_another_configuration_in_the_same_folder_is_refused(tmp_path: Path, run_here: RunHere) -> None:
    collect("toys/Fast-v1", tmp_path, num_episodes=40)
    done = run_here(
        main, "toys/Fast-v1", "--out", tmp_path, "-n", 40, "--policy", "random", "--seed", 7, "sleep_s=0.001"
    )
    assert done.returncode == 2
    assert 'policy: "oracle" there, "random" now' in done.stderr
    assert "seed: 42 there, 7 now" in done.stderr
    assert "sleep_s" in done.stderr
    assert_sound(tmp_path, 40)


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    arguments = ("toys/Slow-v1", "--out", tmp_path, "-n", 5000)
    first = subprocess.Popen([*RUN, *map(str, arguments)], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        wait_until((tmp_path / MANIFEST).exists)
        second = run_collect(*arguments)
    finally:
        first.kill()
        first.wait()
    assert second.returncode == 1
    assert f"Another process is collecting into {tmp_path}" in second.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_at_once_and_it_can_be_continued(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    arguments = ("toys/Slow-v1", "--out", tmp_path, "-n", 400, "--shard-size", 10)
    process = subprocess.Popen(
        [*RUN, *map(str, arguments)], cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_until((tmp_path / "part-00001.parquet").exists)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == code
    assert "interrupted" in stderr
    assert "Traceback" not in stderr
    assert run_collect(*arguments).returncode == 0
    assert_sound(tmp_path, 400)


def test_worker_processes_collect_what_one_process_does(tmp_path: Path) -> None:
    one = collect("toys/Fast-v1", tmp_path / "one", num_episodes=90, epsilon=0.5, shard_size=10)
    three = run_collect(
        *("toys/Fast-v1", "--out", tmp_path / "three", "-n", 90, "--epsilon", 0.5, "--shard-size", 10),
        *("--workers", 3),
    )
    assert three.returncode == 0, three.stderr
    assert_sound(tmp_path / "three", 90)
    assert what_was_played(episodes_in(one.folder)) == what_was_played(episodes_in(tmp_path / "three"))


@pytest.mark.parametrize("num_workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_environment_that_takes_its_process_along_gets_one_of_its_own(
    tmp_path: Path, num_workers: int
) -> None:
    done = run_collect("toys/Deadly-v1", "--out", tmp_path, "-n", 90, "--workers", num_workers)
    assert done.returncode == 0, done.stderr
    assert (
        "a worker process died (exit code -9): its environments run in processes of their own" in done.stderr
    )
    assert_sound(tmp_path, 90)


@pytest.mark.parametrize(
    ("how", "where", "num_workers"),
    [
        pytest.param("sleep", "reset", 1, marks=pytest.mark.slow),
        pytest.param("count", "step", 1, marks=pytest.mark.slow),
        ("backtrack", "step", 2),
    ],
)
def test_an_environment_that_never_returns_costs_its_own_episodes_and_nothing_stays_behind(
    tmp_path: Path, how: str, where: str, num_workers: int
) -> None:
    out, child = tmp_path / "out", tmp_path / "child"
    done = run_collect(
        *("toys/Stuck-v1", f"how={how}", f"where={where}", f"child={child}"),
        *("--out", out, "-n", 12, "--shard-size", 6, "--workers", num_workers),
    )
    assert done.returncode == 0, done.stderr
    assert_sound(out, 12)
    failed = {t.seed % 4 == 0: t.failure and t.failure.kind for t in episodes_in(out)}
    assert failed == {True: f"{where}_timeout", False: None}
    assert "environments run in processes of their own" in done.stderr
    assert not is_alive(int(child.read_text()))


def test_ctrl_c_is_answered_while_an_environment_holds_the_interpreter_s_lock(tmp_path: Path) -> None:
    child = tmp_path / "child"
    command = [*RUN, "toys/Stuck-v1", "how=count", f"child={child}", "--out", str(tmp_path / "out")]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_until(lambda: child.exists() and child.read_text() != "")
    players = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted: the same command continues where it stopped" in stderr
    wait_until(lambda: not any(is_alive(player.pid) for player in players))


@pytest.mark.parametrize("num_workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_disk_that_takes_no_more_is_reported_and_nothing_is_half_written(
    tmp_path: Path, num_workers: int
) -> None:
    # The limit on file size makes write(2) fail within a shard, as a full disk does; manifests fit.
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (6000, resource.RLIM_INFINITY));"
        "from tests.system.toy_envs import run; run('collect')"
    )
    arguments = ["toys/Fast-v1", "--out", tmp_path, "-n", 1000, "--shard-size", 500, "--workers", num_workers]
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 1
    assert f"error: Cannot write {tmp_path}/part-0000" in done.stderr
    assert "Traceback" not in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {MANIFEST, ".lock", ".workers.lock"}
    assert run_collect(*arguments).returncode == 0
    assert_sound(tmp_path, 1000)


def test_a_configuration_in_hand_is_collected_for_its_training_tags(tmp_path: Path) -> None:
    config = load_config("agentic_async.yaml", ["train_env_manager.num_groups_partition=[12,4]"]).config
    collection = collect(config, tmp_path, num_episodes=40, split="demonstrations", seed=3, epsilon=0.3)
    assert_sound(tmp_path, 40)
    by_tag = collection.manifest.tally_by_tag
    assert {tag: tally.num_episodes for tag, tally in by_tag.items()} == {
        "FrozenLake": 30,
        "SimpleSokoban": 10,
    }
    assert all(t.seed == t.task.seed(3) and t.task.split == "demonstrations" for t in episodes_in(tmp_path))


def test_failed_episodes_are_data_and_counted_by_boundary_and_kind(tmp_path: Path, run_here: RunHere) -> None:
    done = run_here(main, "toys/Flaky-v1", "--out", tmp_path, "-n", 100)
    assert done.returncode == 0, done.stderr
    assert_sound(tmp_path, 100)
    counts = manifest_of(tmp_path)["counts"]
    failed = [t for t in episodes_in(tmp_path) if t.failure is not None]
    assert 0 < len(failed) < 100
    assert all(t.seed % 4 == 0 for t in failed)
    assert counts["failed"] == len(failed)
    assert counts["failures"]["environment/reset_raised"]["count"] == len(failed)
    tasks = counts["failures"]["environment/reset_raised"]["tasks"]
    assert {*tasks} == {t.label for t in failed}
    assert all("no such level" in message for message in tasks.values())
    assert all(label in done.stdout for label in tasks)
    assert "environment/reset_raised" in done.stdout


def test_when_every_episode_fails_the_exit_code_says_so(tmp_path: Path, run_here: RunHere) -> None:
    for _ in range(2):
        done = run_here(main, "toys/Broken-v1", "--out", tmp_path, "-n", 30)
        assert done.returncode == 1
        assert "all 30 episodes failed" in done.stderr
        assert "no such level" in done.stderr
        assert_sound(tmp_path, 30)


def test_hundreds_of_episodes_are_awaited_at_the_same_time(tmp_path: Path, run_here: RunHere) -> None:
    options = ("--policy", "oracle", "--concurrency", 200)
    done = run_here(main, "toys/Awaited-v1", "num_envs=200", "--out", tmp_path, "-n", 300, *options)
    assert done.returncode == 0, done.stderr
    assert_sound(tmp_path, 300)
    assert all(episode.success for episode in episodes_in(tmp_path))


def test_it_loads_neither_torch_nor_ray_nor_transformers(tmp_path: Path) -> None:
    script = (
        "import sys; from envsdk.collect import main; code = main(sys.argv[1:]);"
        "assert code == 0, code;"
        "heavy = {'torch', 'ray', 'transformers'} & set(sys.modules); assert not heavy, heavy"
    )
    arguments = ["envsdk/FrozenLake-v1", "--out", str(tmp_path), "-n", "5", "--epsilon", "0.3"]
    subprocess.run([sys.executable, "-c", script, *arguments], check=True, cwd=ROOT)


def test_a_turn_of_an_oracle_costs_less_than_a_millisecond_of_cpu(tmp_path: Path) -> None:
    before = time.process_time()
    collection = collect("envsdk/FrozenLake-v1", tmp_path, num_episodes=1000, epsilon=0.3)
    cpu_s = time.process_time() - before
    assert cpu_s / collection.manifest.tally.num_turns < 1e-3


def test_tags_of_a_yaml_are_played_in_the_parts_asked_for(tmp_path: Path, run_here: RunHere) -> None:
    done = run_here(
        main,
        *("agentic_async.yaml", "--out", tmp_path, "-n", 30, "--tags", "SimpleSokoban,FrozenLake"),
        *("custom_envs.FrozenLake.max_steps=3", "seed=5"),
    )
    assert done.returncode == 0, done.stderr
    assert_sound(tmp_path, 30)
    manifest = manifest_of(tmp_path)
    assert manifest["config"]["episodes"] == {"SimpleSokoban": 15, "FrozenLake": 15}
    assert manifest["config"]["seed"] == 5
    assert manifest["versions"]["python"]
    assert max(len(t.turns) for t in episodes_in(tmp_path) if t.task.tag == "FrozenLake") <= 3


def test_seeds_of_tasks_do_not_depend_on_how_many_are_collected(tmp_path: Path) -> None:
    few = collect("toys/Fast-v1", tmp_path / "few", num_episodes=20)
    many = collect("toys/Fast-v1", tmp_path / "many", num_episodes=50)
    assert [t.seed for t in episodes_in(few.folder)] == [t.seed for t in episodes_in(many.folder)][:20]
    other = collect("toys/Fast-v1", tmp_path / "other", num_episodes=20, split="val")
    assert not {t.seed for t in episodes_in(few.folder)} & {t.seed for t in episodes_in(other.folder)}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["envsdk/FrozenLak-v1"], "did you mean `envsdk/FrozenLake-v1`"),
        (["missing.yaml"], "missing.yaml"),
        (["toys/Fast-v1", "-n", "0"], "--episodes: must be at least 1"),
        (["toys/Fast-v1", "--workers", "0"], "--workers: must be at least 1"),
        (["toys/Fast-v1", "--shard-size", "-1"], "--shard-size: must be at least 1"),
        (["toys/Fast-v1", "--epsilon", "1.5"], "--epsilon: epsilon is a probability from 0 to 1"),
        (["toys/Fast-v1", "--policy", "orcale"], "there is no policy 'orcale'"),
        (["toys/Mute-v1"], "toys/Mute-v1 (tag toys/Mute-v1) has no `oracle()`"),
        (["envsdk/Gymnasium-v1", "id=CartPole-v1"], "has no `oracle()`; use --policy random, model"),
        (
            ["envsdk/Gymnasium-v1", "id=Pendulum-v1", "--policy", "random"],
            "has no `legal_actions()`; use --policy scripted, model",
        ),
        (["toys/Fast-v1", "--policy", "model"], "--policy model needs --model"),
        (["toys/Fast-v1", "--policy", "model", "--model", "nowhere"], "--model: there is no folder nowhere"),
        (
            ["toys/Fast-v1", "--policy", "model", "--model", "."],
            "neither a Hugging Face folder nor a checkpoint",
        ),
        (["toys/Fast-v1", "--model", "."], "--model is for --policy model"),
        (
            ["toys/Fast-v1", "--policy", "model", "--model", ".", "--epsilon", "0.1"],
            "--epsilon is for policies",
        ),
        (["toys/Fast-v1", "--tags", "Lake"], "has no tag `Lake`"),
        (["toys/Fast-v1", "sleep=1"], "did you mean `sleep_s`"),
        (["toys/Fast-v1", "sequence_length=x"], "sequence_length"),
        (["toys/Fast-v1", "nonsense"], "write key=value"),
        (["agentic_async.yaml", "custom_envs.FrozenLake.max_step=3"], "max_step"),
    ],
)
def test_a_wrong_argument_is_named_and_nothing_is_written(
    tmp_path: Path, refused: Refused, arguments: list[str], expected: str
) -> None:
    refused(main, [*arguments, "--out", "out"], expected)
    assert not (tmp_path / "out").exists()


def test_rows_of_a_prompt_file_that_are_not_asked_are_counted_with_reasons(
    tmp_path: Path, run_here: RunHere
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1=", "ground_truth": "1"}\n{torn\n{"other": 1}\n')
    done = run_here(
        main,
        "Prompts",
        f"files={rows}",
        "reward=exact",
        "--out",
        tmp_path / "out",
        "--policy",
        "oracle",
        "-n",
        1,
    )
    assert done.returncode == 0, done.stderr
    assert f"rows of {rows} cannot be used or asked: {rows}:2 is no JSON" in done.stderr


def test_the_name_of_an_environment_does_for_its_id_and_its_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["Sokoban", "--episodes", "20"]) == 0
    trajectories = episodes_in(tmp_path / "data" / "Sokoban")
    assert {trajectory.task.tag for trajectory in trajectories} == {"envsdk/Sokoban-v1"}
    assert len(trajectories) == 20


def test_an_out_that_is_a_file_is_refused(tmp_path: Path, run_here: RunHere) -> None:
    (tmp_path / "out").touch()
    done = run_here(main, "toys/Fast-v1", "--out", tmp_path / "out")
    assert done.returncode == 1
    assert f"Cannot write into {tmp_path / 'out'}: it is a file, not a folder" in done.stderr
