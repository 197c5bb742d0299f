"""Collections of which not everything is kept, and their other formats: exact after any kill."""

from __future__ import annotations

import gc
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import tests.system.toy_envs  # noqa: F401 - registers the environments
from envsdk.base.store.shards import MANIFEST, PLAYED
from envsdk.base.store.tally import Tally
from envsdk.base.store.trajectories import read_trajectories
from envsdk.collect import collect, main
from envsdk.contracts.failures import ConfigurationError, StorageError
from envsdk.contracts.trajectory import Trajectory
from envsdk.rollouts.datasets.card import CARD, License
from envsdk.rollouts.datasets.formats import RowFormat
from envsdk.rollouts.datasets.reading import open_dataset
from envsdk.rollouts.datasets.selection import Deduplicator, Duplicates, EpisodeFilters
from envsdk.rollouts.play.options import PlayOptions
from tests.system.conftest import Refused
from tests.system.test_collect import episodes_in, manifest_of, wait_until, what_was_played

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
RUN = [sys.executable, "-c", "from tests.system.toy_envs import run; run('collect')"]


PREDICTIONS = "tests.system.toy_formats:Predictions"


def contents(folder: Path) -> dict[str, bytes]:
    """What exports hold, byte for byte."""
    files = [path for name in ("messages", "predictions") for path in sorted((folder / name).iterdir())]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def wait_for_shards(process: subprocess.Popen[bytes], folder: Path, num_shards: int) -> None:
    """Until so many are there, or none will ever be."""
    wait_until(lambda: process.poll() is not None or len(list(folder.glob("part-*"))) >= num_shards)


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [1, 2])
def test_killed_again_and_again_it_ends_as_if_it_had_run_through(tmp_path: Path, num_workers: int) -> None:
    out = tmp_path / "out"
    arguments = [
        *("toys/Slow-v1", "--out", out, "-n", 200, "--epsilon", 0.5, "--shard-size", 10),
        *("--max-turns", 6, "--deduplicate", "episode", "--format", f"messages,{PREDICTIONS}"),
        *("--workers", num_workers),
    ]
    moments = random.Random(num_workers)
    for num_shards_before in (1, 12):
        process = subprocess.Popen([*RUN, *map(str, arguments)], cwd=ROOT, stderr=subprocess.DEVNULL)
        wait_for_shards(process, out / PLAYED, num_shards_before)
        time.sleep(moments.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert manifest_of(out)["complete"] is False
    done = subprocess.run([*RUN, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert "were there before" in done.stderr

    straight = tmp_path / "straight"
    collect(
        "toys/Slow-v1", straight, num_episodes=200, epsilon=0.5, shard_size=10,
        filters=EpisodeFilters(max_turns=6), deduplicate=Duplicates.EPISODE,
        formats=["messages", PREDICTIONS],
    )  # fmt: skip
    assert what_was_played(episodes_in(out)) == what_was_played(episodes_in(straight))
    assert contents(out) == contents(straight)
    one, other = manifest_of(out), manifest_of(straight)
    for name in ("config", "counts", "played", "dropped", "license"):
        assert one[name] == other[name], name
    assert not (out / PLAYED).exists()


@pytest.mark.slow
def test_a_model_s_episodes_are_the_same_after_a_kill(tmp_path: Path, model: Path) -> None:
    arguments = [
        *("envsdk/FrozenLake-v1", "-n", 60, "--policy", "model", "--model", model, "--shard-size", 5),
        *("--concurrency", 8, "actor_infer.generating_args.max_new_tokens=3", "sequence_length=256"),
    ]
    out, straight = tmp_path / "out", tmp_path / "straight"
    command = [*RUN, *map(str, arguments), "--out"]
    process = subprocess.Popen([*command, str(out)], cwd=ROOT, stderr=subprocess.DEVNULL)
    wait_for_shards(process, out, 3)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert manifest_of(out)["complete"] is False
    for folder in (out, straight):
        subprocess.run([*command, str(folder)], cwd=ROOT, check=True, capture_output=True)
    for one, other in zip(episodes_in(out), episodes_in(straight), strict=True):
        assert [turn.reply for turn in one.turns] == [turn.reply for turn in other.turns]
        assert one.tokens is not None
        assert other.tokens is not None
        assert np.array_equal(one.tokens.ids, other.tokens.ids)
        np.testing.assert_allclose(one.tokens.behavior_logprobs, other.tokens.behavior_logprobs, atol=1e-4)


class Killed(BaseException):
    """Ends the process's work where it stands, as SIGKILL would."""


@pytest.mark.parametrize("where", ["record", "unlink", "export", "rename", "card"])
def test_a_kill_while_finishing_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    from envsdk.base.store import shards
    from envsdk.rollouts.datasets import finishing, formats

    def collected(out: Path) -> Path:
        collect(
            "toys/Fast-v1", out, num_episodes=80, epsilon=0.5, shard_size=20,
            deduplicate=Duplicates.EPISODE, formats=["messages", PREDICTIONS],
        )  # fmt: skip
        return out

    def kill(*_: object, **__: object) -> None:
        raise Killed

    def after(function: Any, num_calls: int) -> Any:
        calls = iter(range(num_calls))

        def call(*args: Any, **kwargs: Any) -> Any:
            if next(calls, None) is None:
                raise Killed
            return function(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        if where == "record":
            patch.setattr(shards, "record_shard", after(shards.record_shard, 2))
        elif where == "unlink":
            patch.setattr(Path, "unlink", after(Path.unlink, 1))
        elif where == "export":
            patch.setattr(RowFormat, "_write", after(RowFormat._write, 2))
        elif where == "rename":
            patch.setattr(formats.os, "replace", after(formats.os.replace, 12))
        else:
            patch.setattr(finishing, "write_atomically", kill)
        with pytest.raises(Killed):
            collected(tmp_path / "out")
    collected(tmp_path / "out")
    collected(tmp_path / "straight")
    assert what_was_played(episodes_in(tmp_path / "out")) == what_was_played(
        episodes_in(tmp_path / "straight")
    )
    assert contents(tmp_path / "out") == contents(tmp_path / "straight")
    assert (tmp_path / "out" / CARD).is_file()


def test_what_is_kept_and_what_was_dropped_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    everything = collect("toys/Fast-v1", tmp_path / "all", num_episodes=90, epsilon=0.6, shard_size=20)
    played = episodes_in(everything.folder)
    arguments = ["toys/Fast-v1", "--out", str(tmp_path / "some"), "-n", "90", "--epsilon", "0.6"]
    arguments += ["--shard-size", "20", "--success-only", "--max-turns", "5", "--deduplicate", "episode"]
    assert main(arguments) == 0
    filters = EpisodeFilters(success_only=True, max_turns=5)
    passing = [t for t in played if filters.reason_to_drop(t) is None]
    seen = Deduplicator(Duplicates.EPISODE)
    kept = [t for t in passing if seen.is_new(t)]
    assert 0 < len(kept) < len(passing) < len(played)
    assert what_was_played(episodes_in(tmp_path / "some")) == what_was_played(kept)
    manifest = manifest_of(tmp_path / "some")
    assert manifest["played"] == Tally.of(played).to_json()
    assert manifest["dropped"]["duplicate"] == len(passing) - len(kept)
    assert sum(manifest["dropped"].values()) == len(played) - len(kept)
    assert {k: v for k, v in manifest["counts"].items() if k != "by_tag"} == Tally.of(kept).to_json()
    told = capsys.readouterr().out
    assert f"dropped {len(played) - len(kept)} of 90 episodes played: duplicate" in told


def test_filters_are_part_of_what_a_collection_is(tmp_path: Path) -> None:
    collect("toys/Fast-v1", tmp_path, num_episodes=20)
    with pytest.raises(ConfigurationError, match="filters: absent there"):
        collect("toys/Fast-v1", tmp_path, num_episodes=20, filters=EpisodeFilters(max_turns=3))


def test_filters_that_nothing_passes_end_with_a_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "toys/Fast-v1",
        "--out",
        str(tmp_path),
        "-n",
        "20",
        "--min-turns",
        "7",
        "--format",
        "messages",
    ]
    assert main(arguments) == 1
    assert "none of the 20 episodes passed the filters" in capsys.readouterr().err
    assert manifest_of(tmp_path)["dropped"] == {"too_short": 20}


def test_another_format_may_be_asked_for_later_and_nothing_is_played_again(tmp_path: Path) -> None:
    collect("toys/Fast-v1", tmp_path, num_episodes=40, shard_size=20)
    shards = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("part-*")}
    played: list[object] = []
    collect(
        "toys/Fast-v1", tmp_path, num_episodes=40, shard_size=20, formats=["messages", "messages-parquet"],
        license=License(id="mit"), on_played=played.append,
    )  # fmt: skip
    assert played == []
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("part-*")} == shards
    lines = [json.loads(line) for path in sorted(tmp_path.glob("messages/*")) for line in path.open()]
    table = pq.read_table(tmp_path / "messages-parquet")
    assert table.to_pylist() == lines
    assert len(lines) == 40
    assert lines[0]["messages"][-1] == {"role": "assistant", "content": "go"}
    assert "license: mit" in (tmp_path / CARD).read_text()
    # Asked for once, they follow the shards.
    (tmp_path / "part-00001.parquet").unlink()
    (tmp_path / "messages" / "part-00001.jsonl").unlink()
    collect("toys/Fast-v1", tmp_path, num_episodes=40, shard_size=20)
    again = [json.loads(line) for path in sorted(tmp_path.glob("messages/*")) for line in path.open()]
    assert again == lines


def test_messages_are_what_the_policy_was_shown(tmp_path: Path) -> None:
    template = "{turn_idx}/{actions_left} {max_response_length}:{observation}"
    collect(
        "agentic_async.yaml", tmp_path, num_episodes=20, tags=["FrozenLake"], formats=["messages"],
        overrides=[f"custom_envs.FrozenLake.agent_template='{template}'"],
    )  # fmt: skip
    dataset = open_dataset(tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "messages" / "part-00000.jsonl").open()]
    for trajectory, row in zip(dataset.episodes(), rows, strict=True):
        system, first, reply, *_ = row["messages"]
        assert system["role"] == "system"
        assert system["content"].startswith("Walk (P) over the ice")
        assert first["content"] == f"1/8 4:{trajectory.turns[0].observation}"
        assert reply == {"role": "assistant", "content": trajectory.turns[0].reply}
        assert len(row["messages"]) == 1 + 2 * len(trajectory.turns)


def test_a_format_of_a_plug_in_is_one_file_where_it_says_so(tmp_path: Path) -> None:
    collection = collect(
        "toys/Fast-v1", tmp_path, num_episodes=40, epsilon=0.9, shard_size=20, formats=[PREDICTIONS]
    )
    rows = [json.loads(line) for line in (tmp_path / "predictions" / "predictions.jsonl").open()]
    assert len(rows) == collection.manifest.tally.num_successes < 40
    assert rows[0].keys() == {"instance_id", "model_name_or_path", "model_patch"}


def test_a_format_that_does_not_fit_is_refused_before_anything_is_played(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is no toy"):
        collect("envsdk/FrozenLake-v1", tmp_path / "out", num_episodes=5, formats=[PREDICTIONS])
    assert not (tmp_path / "out").exists()


def test_a_folder_of_somebody_else_is_not_replaced_by_a_format(tmp_path: Path) -> None:
    (tmp_path / "messages").mkdir()
    (tmp_path / "messages" / "mine.txt").touch()
    with pytest.raises(StorageError, match="no export of this data set"):
        collect("toys/Fast-v1", tmp_path, num_episodes=5, formats=["messages"])
    assert (tmp_path / "messages" / "mine.txt").exists()


def test_an_episode_that_failed_is_played_again_as_often_as_was_said(tmp_path: Path) -> None:
    once = collect("toys/Moody-v1", tmp_path / "once", num_episodes=40)
    assert 0 < once.manifest.tally.num_failed < 40
    twice = collect("toys/Moody-v1", tmp_path / "twice", num_episodes=40, options=PlayOptions(retries=1))
    assert twice.manifest.tally.num_failed == 0
    broken = collect("toys/Broken-v1", tmp_path / "broken", num_episodes=20, options=PlayOptions(retries=2))
    assert broken.manifest.tally.num_failed == 20


@pytest.mark.parametrize("deduplicate", [None, Duplicates.EPISODE])
def test_no_more_episodes_are_in_memory_than_the_files_being_filled_hold(
    tmp_path: Path, deduplicate: Duplicates | None
) -> None:
    most = 0

    def look(_: object) -> None:
        nonlocal most
        most = max(most, sum(issubclass(type(each), Trajectory) for each in gc.get_objects()))

    # What was there before is not looked through each time: a session of tests holds millions of objects.
    gc.freeze()
    collect(
        "toys/Fast-v1", tmp_path, num_episodes=100, epsilon=0.5, shard_size=10, on_played=look,
        deduplicate=deduplicate,
    )  # fmt: skip
    assert 0 < most <= 2 * 10


def test_a_script_is_played(tmp_path: Path) -> None:
    script = tmp_path / "replies.txt"
    script.write_text("wait\ngo\n")
    assert main(["toys/Fast-v1", "--out", str(tmp_path / "out"), "-n", "5", "--policy", "scripted",
                 "--replies", str(script)]) == 0  # fmt: skip
    for trajectory in read_trajectories(tmp_path / "out" / "part-00000.parquet"):
        replies = [turn.reply for turn in trajectory.turns]
        assert replies == (["wait", "go"] * 4)[: len(replies)]
    assert manifest_of(tmp_path / "out")["config"]["replies"] == ["wait", "go"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--format", "mesages"], "did you mean `messages`"),
        (["--format", "pathlib:Path"], "no subclass of envsdk.rollouts.datasets.formats.ExportFormat"),
        (["--min-reward", "2", "--max-reward", "1"], "--min-reward=2 is above max-reward=1"),
        (["--max-tokens", "9"], "--max-tokens: the policy oracle keeps no tokens"),
        (["--requests-per-minute", "0"], "--requests-per-minute: must be greater than 0"),
        (["--retries", "-1"], "--retries: must be at least 0"),
        (["--concurrency", "0"], "--concurrency: must be at least 1"),
        (["--policy", "scripted"], "--policy scripted needs --replies FILE"),
        (["--replies", "nowhere.txt"], "--replies: cannot read nowhere.txt"),
        (["--policy", "endpoint"], "--policy endpoint needs --endpoint URL"),
        (["--endpoint", "http://x"], "--endpoint is for --policy endpoint, not oracle"),
        (
            ["--policy", "endpoint", "--endpoint", "localhost", "--endpoint-model", "m"],
            "'localhost' is no URL",
        ),
        (
            [
                "--policy",
                "endpoint",
                "--endpoint",
                "http://x",
                "--endpoint-model",
                "m",
                "--api-key-env",
                "sk-1",
            ],
            "give the name of an environment variable, not the key",
        ),
        (
            [
                "--policy",
                "endpoint",
                "--endpoint",
                "http://x",
                "--endpoint-model",
                "m",
                "--api-key-env",
                "NO_KEY",
            ],
            "the environment variable NO_KEY is not set",
        ),
        (["--endpoint-body", "{"], "--endpoint-body: not JSON"),
        (["--license", "Apache 2"], "no license id of the hub"),
        (["--license-link", "http://x"], "need --license"),
    ],
)
def test_a_wrong_argument_is_named_and_nothing_is_written(
    tmp_path: Path, refused: Refused, arguments: list[str], expected: str
) -> None:
    refused(main, ["toys/Fast-v1", "--out", "out", *arguments], expected)
    assert not (tmp_path / "out").exists()


def test_a_readme_that_is_there_is_not_taken_for_a_card(tmp_path: Path) -> None:
    (tmp_path / CARD).write_text("mine")
    with pytest.raises(StorageError, match=r"holds a README\.md"):
        collect("toys/Fast-v1", tmp_path, num_episodes=5)
    assert not (tmp_path / MANIFEST).exists()
