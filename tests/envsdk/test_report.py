"""`report.html`: the viewer's page of a run, written by the run, readable with scripts off."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import random
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsdk.base.store.trajectories import write_trajectories
from envsdk.contracts.failures import Boundary, ConfigurationError, Failure
from envsdk.contracts.trajectory import Outcome, Task, TokenLog, Trajectory, Turn, VersionSpan
from envsdk.report import main
from envsdk.runs import lost_runtime
from envsdk.tracking import JsonlTracker
from envsdk.tracking.timeline import Timeline, Track
from envsdk.view.export import write_report, write_report_of_job

ATTACK = "</pre><script>alert('x')</script><img src=https://example.org/x>"
TAGS = ("FrozenLake", "SimpleSokoban")


def make_trajectory(
    number: int,
    tag: str,
    outcome: Outcome = Outcome.TERMINATED,
    *,
    success: bool = False,
    num_turns: int = 3,
    observation: str = ". @\n# G",
    reply: str = "Right",
) -> Trajectory:
    log = TokenLog()
    turns = []
    for turn in range(num_turns):
        log.append_prompt([1, 2, 3])
        start = len(log)
        spans = [VersionSpan(version=4, start=0, end=1), VersionSpan(version=5, start=1, end=2)]
        log.append_sampled([4, 5], [-0.1, -0.2], spans)
        reward = 1.0 if success and turn == num_turns - 1 else -0.1
        turns.append(
            Turn(
                observation=observation,
                reply=reply,
                reward=reward,
                response_start=start,
                response_end=len(log),
                metrics={"action_is_valid": 1.0},
            )
        )
    failed = outcome is Outcome.FAILED
    failure = Failure(boundary=Boundary.ENVIRONMENT, kind="step_timeout", message="waited 30 s")
    return Trajectory(
        trajectory_id=f"{tag}-{number}",
        group_id=number,
        task=Task(tag=tag, split="train", index=number),
        seed=number,
        outcome=outcome,
        success=success,
        turns=turns,
        tokens=log.arrays(),
        failure=failure if failed else None,
        started_at=1000.0,
        ended_at=1002.5,
    )


def write_config(folder: Path) -> None:
    (folder / "config.yaml").write_text(
        "exp_name: night & day\nmax_steps: 30\nasync_generation_ratio: 1\npretrain: ${oc.env:HOME}/model\n"
    )


def write_metrics(folder: Path) -> None:
    tracker = JsonlTracker(folder / "metrics.jsonl")
    rng = random.Random(0)
    for step in range(30):
        metrics = {f"success/{tag}": step / 40 + rng.random() / 10 for tag in TAGS}
        metrics |= {f"reward/{tag}": rng.gauss(0, 1) for tag in TAGS}
        metrics |= {
            "reward/mean": 0.1,
            "staleness/max": 1.0,
            "staleness/count_0": 40.0,
            "staleness/count_1": 24.0,
            "rollout/tokens_per_s": 5000.0,
            "time/step_s": 8.0,
            "time/wait_batch_s": 2.0,
            "time/train_s": 5.0,
            "time/engine_idle_share": 0.125,
            "ledger/started": 70.0 * (step + 1),
            "ledger/delivered": 64.0 * (step + 1),
            "ledger/failed": 2.0 * (step + 1),
            "failures/environment/step_timeout": 2.0,
            "waste/tokens": 100.0 + step,
            "actor/loss": math.nan if step == 7 else rng.gauss(0, 1),
            "actor/entropy": 1.0 / (step + 1),
        }
        if step % 10 == 0:
            metrics |= {f"val/success/{tag}": 0.25 + step / 100 for tag in TAGS}
        tracker.log(step, metrics, time_unix_s=1000.0 + 8 * step)
    tracker.close()


def write_timeline(folder: Path) -> None:
    timeline = Timeline(folder / "timeline.json")
    for step in range(30):
        start_s = 1000.0 + 8 * step
        timeline.span(Track.TRAINER, "wait", start_s, start_s + 2, step=step)
        timeline.span(Track.TRAINER, "train", start_s + 2, start_s + 7, step=step)
        timeline.span(Track.GENERATION, "generate", start_s, start_s + 7.5)
        timeline.span(Track.PUBLISH, "publish", start_s + 7.5, start_s + 8, version=step + 1)


def write_episodes(folder: Path) -> None:
    (folder / "trajectories").mkdir()
    episodes = [
        episode
        for tag in TAGS
        for episode in (
            make_trajectory(0, tag, success=True, reply=ATTACK),
            make_trajectory(1, tag, Outcome.TRUNCATED, observation=ATTACK),
            make_trajectory(2, tag, Outcome.FAILED, num_turns=1),
        )
    ]
    write_trajectories(folder / "trajectories" / "step_9.parquet", episodes[:3])
    write_trajectories(folder / "trajectories" / "step_10.parquet", episodes[3:])


PIECES: dict[str, Callable[[Path], None]] = {
    "config.yaml": write_config,
    "metrics.jsonl": write_metrics,
    "timeline.json": write_timeline,
    "trajectories": write_episodes,
}


class Reader(HTMLParser):
    """What a browser would load and run, and the text it would show with scripts off."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.scripts: list[str] = []
        self.shown: list[str] = []
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._open = tag
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "data", "action")]
        assert not [name for name, _ in attrs if name.startswith("on")], "no inline handlers"

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open == "script":
            self.scripts.append(data)
        elif self._open != "style":
            self.shown.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.shown).split())

    @property
    def data(self) -> Any:
        """What the scripts draw the pages from."""
        return json.loads(self.scripts[0])


def read_report(folder: Path) -> Reader:
    return Reader(write_report(folder).read_text())


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("runs") / "night & day"
    folder.mkdir()
    for write in PIECES.values():
        write(folder)
    path = write_report(folder)
    assert path == folder / "report.html"
    return path.read_text()


def test_the_report_says_without_scripts_what_was_learned(html: str) -> None:
    text = Reader(html).text
    assert "night & day" in text
    for figures in (
        "held out: FrozenLake 45.0% 25.0% before, +20.0 points",
        "trainer waited 25.0%",
        "engines waited 12.5%",
        "versions behind at most 1 age of the oldest weights that a trained token is from; the bound is 1",
        "Step 30 of 30",
        "environment/step_timeout 60",
        "delivered 1,920",
        "actor/entropy 1 0.03333 0.03333 1",
    ):
        assert figures in text, figures
    assert "Not everything is here" not in text


def test_the_report_has_the_charts_of_staleness_and_of_the_trainer_s_time(html: str) -> None:
    data = Reader(html).data
    assert data["source"]["staleness"] == [[0, 1200.0], [1, 720.0]]
    assert data["source"]["curves"]["time/train_s"][0] == [0, 5.0]
    assert data["failures"]["curves"]["waste/tokens"][0] == [0, 100.0]
    assert data["failures"]["totals"] == [["environment/step_timeout", 60.0]]


@pytest.mark.parametrize(("counts", "shown"), [((0, 2, 2, 0, 1), 3), ((1, 1), 1), ((0, 0), None)])
def test_engine_restarts_are_counted_over_a_run_that_was_continued(
    counts: tuple[int, ...], shown: int | None, tmp_path: Path
) -> None:
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    for step, count in enumerate(counts):
        tracker.log(step, {"engine/restarts": float(count), "reward/mean": 0.0}, time_unix_s=1000.0 + step)
    tracker.close()
    text = read_report(tmp_path).text
    assert ("engine restarts" in text) == (shown is not None)
    assert shown is None or f"engine restarts {shown} " in text


def test_the_report_has_each_tag_s_best_worst_and_failed_trajectory(html: str) -> None:
    data = Reader(html).data
    found = {(one["tag"], one["why"]): data["trajectories"][one["key"]] for one in data["source"]["examples"]}
    assert set(found) == {(tag, why) for tag in TAGS for why in ("best", "worst", "failed")}
    for tag in TAGS:
        assert found[tag, "best"]["success"]
        assert not found[tag, "worst"]["success"]
        assert found[tag, "failed"]["failure"]["message"] == "waited 30 s"


def test_what_a_model_wrote_is_shown_as_text_and_never_run(html: str) -> None:
    page = Reader(html)
    assert ATTACK in [turn["reply"] for one in page.data["trajectories"].values() for turn in one["turns"]]
    assert "img" not in page.tags
    assert len(page.scripts) == 2


def test_names_of_metrics_tags_and_folders_are_text_without_scripts(tmp_path: Path) -> None:
    folder = tmp_path / "<img src=x>"
    folder.mkdir()
    tracker = JsonlTracker(folder / "metrics.jsonl")
    tracker.log(0, {ATTACK: 1.0, f"val/success/{ATTACK}": 0.5, f"failures/{ATTACK}": 1.0}, time_unix_s=1.0)
    tracker.close()
    (folder / "config.yaml").write_text(f"pretrain: {json.dumps(ATTACK)}\n")
    page = read_report(folder)
    assert "img" not in page.tags
    assert len(page.scripts) == 2
    assert page.text.count(ATTACK) >= 5


def test_the_report_loads_nothing_and_runs_only_its_own_script(html: str) -> None:
    page = Reader(html)
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert page.tags.count("link") == 1, "the empty icon"
    assert not {"iframe", "object", "embed", "form", "base"} & set(page.tags)
    assert "url(" not in html
    digest = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy


@settings(max_examples=16)
@given(present=st.sets(st.sampled_from(sorted(PIECES)), min_size=1))
def test_a_run_with_missing_pieces_gets_a_report_that_names_them(
    present: set[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("runs") / "partial"
    folder.mkdir()
    for name in present:
        PIECES[name](folder)
    page = read_report(folder)
    assert ("Not everything is here" in page.text) == (present != set(PIECES))
    named = [
        name
        for name in PIECES
        if any(problem.startswith(name) for problem in page.data["source"]["problems"])
    ]
    assert named == [name for name in PIECES if name not in present]


def test_a_damaged_piece_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    for write in PIECES.values():
        write(tmp_path)
    (tmp_path / "trajectories" / "step_10.parquet").write_bytes(b"PAR1 not really")
    (tmp_path / "config.yaml").write_text("exp_name: [unclosed")
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 30, "rew')
    page = read_report(tmp_path)
    assert "step_10.parquet" in page.text
    assert "config.yaml cannot be read" in page.text
    assert "+20.0 points" in page.text
    assert [one["tag"] for one in page.data["source"]["examples"]] == [TAGS[0]] * 3


def test_long_texts_are_cut_so_that_the_file_stays_small(tmp_path: Path) -> None:
    (tmp_path / "trajectories").mkdir()
    episodes = [
        make_trajectory(i, f"tag {i}", num_turns=80, observation="<&" * 10_000, reply="é" * 20_000)
        for i in range(12)
    ]
    write_trajectories(tmp_path / "trajectories" / "step_0.parquet", episodes)
    path = write_report(tmp_path)
    assert path.stat().st_size < 12_000_000
    shown = list(Reader(path.read_text()).data["trajectories"].values())
    assert len(shown) == 12
    for one in shown:
        assert "more characters" in one["turns"][0]["observation"]
        assert len(one["turns"]) + one["turns_left_out"] == 80


def test_a_long_run_has_a_small_page_and_reads_files_of_all_of_it(tmp_path: Path) -> None:
    (tmp_path / "trajectories").mkdir()
    for step in range(350):
        write_trajectories(
            tmp_path / "trajectories" / f"step_{step:06d}.parquet", [make_trajectory(step, TAGS[0])]
        )
    rows = [
        json.dumps({"step": step, "time_unix_s": 1000.0 + step} | {f"actor/{i}": step / 7 for i in range(20)})
        for step in range(5_000)
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    with Timeline(tmp_path / "timeline.json") as timeline:
        for step in range(6_000):
            timeline.span(
                Track.TRAINER, "wait" if step % 2 else "train", 1000.0 + step, 1000.9 + step, step=step
            )
    page = read_report(tmp_path)
    data = page.data
    assert all(len(points) <= 300 for points in data["source"]["curves"].values())
    assert data["source"]["files_left_out"] == 150
    assert "150 of the files were left out" in page.text
    assert (data["rows"][0]["step"], data["rows"][-1]["step"]) == (0, 349)
    (lane,) = data["timeline"]["lanes"]
    assert len(lane["spans"]) <= 2_000
    assert len(data["timeline"]["steps"]) <= 500
    assert "actor/0 0 714.1 0 714.1" in page.text


def test_a_report_that_cannot_be_written_costs_a_run_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert write_report_of_job(tmp_path) is None, "before the first step"
    write_metrics(tmp_path)
    (tmp_path / "report.html").mkdir()
    assert write_report_of_job(tmp_path) is None
    assert "report.html" in capsys.readouterr().err
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    (tmp_path / "report.html").rmdir()
    assert write_report_of_job(tmp_path) is None
    assert "was not written" in capsys.readouterr().err


def test_a_run_whose_runtime_died_gets_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_metrics(tmp_path)
    assert lost_runtime.main([str(tmp_path), "Go on", "Ray died"]) == 1
    assert (tmp_path / "report.html").is_file()
    assert "Ray died" in capsys.readouterr().err


def test_the_command_prints_where_the_report_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_metrics(tmp_path)
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "report.html")


def test_the_command_refuses_a_folder_that_is_not_a_run_and_names_those_that_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "night").mkdir()
    write_config(tmp_path / "night")
    assert main([str(tmp_path / "nigth")]) == ConfigurationError.exit_code
    message = capsys.readouterr().err
    assert "there is no run folder" in message
    assert "night" in message.partition("Runs in")[2]
    assert main([str(tmp_path)]) == ConfigurationError.exit_code
    assert "is not a run folder" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()
