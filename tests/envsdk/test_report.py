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
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsdk.failures import Boundary, ConfigurationError, Failure
from envsdk.report import main, write_report
from envsdk.report.charts import (
    MIDDLE,
    Series,
    bar_chart,
    lane_chart,
    line_chart,
    nice_ticks,
    short_number,
    smoothed,
    stack_chart,
    time_ticks,
)
from envsdk.store.trajectories import write_trajectories
from envsdk.tracking import JsonlTracker
from envsdk.tracking.timeline import Timeline, TimelineEvent, Track
from envsdk.trajectory import Outcome, Task, TokenLog, Trajectory, Turn, VersionSpan

ATTACK = "</pre><script>alert('x')</script><img src=https://example.org/x>"
TAGS = ("FrozenLake", "SimpleSokoban")
FINITE = st.floats(-1e9, 1e9)


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
    """Collects what a browser would load and run, and the text it would show."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.scripts: list[str] = []
        self.shown: list[str] = []
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._open.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "data", "action")]
        assert not [name for name, _ in attrs if name.startswith("on")], "no inline handlers"

    def handle_endtag(self, tag: str) -> None:
        self._open.append(f"/{tag}")

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            self.scripts.append(data)
        else:
            self.shown.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.shown).split())


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("runs") / "night"
    folder.mkdir()
    for write in PIECES.values():
        write(folder)
    path = write_report(folder)
    assert path == folder / "report.html"
    return path.read_text()


def test_the_report_says_what_was_learned(html: str) -> None:
    text = Reader(html).text
    assert "night & day" in text
    assert "25% → 45% +20 points" in text
    assert "30 of 30" in text
    assert "25% trainer waited" in text
    assert "12% engines waited" in text
    assert "the bound is 1" in text
    assert "environment/step_timeout 60 100.0%" in text
    assert "delivered 1,920 97.0%" in text
    assert "not complete" not in text


@pytest.mark.parametrize(("counts", "shown"), [((0, 2, 2, 0, 1), 3), ((1, 1), 1), ((0, 0), None)])
def test_engine_restarts_are_counted_over_a_run_that_was_continued(
    counts: tuple[int, ...], shown: int | None, tmp_path: Path
) -> None:
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    for step, count in enumerate(counts):
        tracker.log(step, {"engine/restarts": float(count), "reward/mean": 0.0}, time_unix_s=1000.0 + step)
    tracker.close()
    text = Reader(write_report(tmp_path).read_text()).text
    assert ("engine restarts" in text) == (shown is not None)
    assert shown is None or f"engine restarts {shown} " in text or f"{shown} engine restarts" in text


def test_the_report_shows_each_tag_s_best_worst_and_failed_trajectory(html: str) -> None:
    text = Reader(html).text
    for tag in TAGS:
        for why in ("best", "worst", "failed"):
            assert f"{why} {tag} train task" in text
    assert "versions 4 to 5" in text
    assert "waited 30 s" in text


def test_what_a_model_wrote_is_shown_as_text_and_never_run(html: str) -> None:
    page = Reader(html)
    assert ATTACK in page.text
    assert "img" not in page.tags
    assert len(page.scripts) == 1


def test_the_report_loads_nothing_and_runs_only_its_own_script(html: str) -> None:
    page = Reader(html)
    assert all(link.startswith("#") for link in page.links)
    assert not {"link", "iframe", "object", "embed", "form", "base"} & set(page.tags)
    assert "url(" not in html
    digest = base64.b64encode(hashlib.sha256(page.scripts[0].encode()).digest()).decode()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy


def test_every_chart_is_well_formed_and_keeps_within_its_frame(html: str) -> None:
    charts = re.findall(r"<svg class=\"chart\".*?</svg>", html, re.DOTALL)
    assert len(charts) >= 8
    for chart in charts:
        root = ElementTree.fromstring(chart.replace(" data-lanes>", ">"))
        width, height = map(float, root.attrib["viewBox"].split()[2:])
        for element in root.iter():
            for name, limit in (("x", width), ("x1", width), ("cx", width), ("y", height), ("cy", height)):
                assert 0 <= float(element.get(name, 0)) <= limit
            assert "nan" not in element.get("d", "").lower()


@settings(max_examples=16)
@given(present=st.sets(st.sampled_from(sorted(PIECES)), min_size=1))
def test_a_run_with_missing_pieces_gets_a_report_that_names_them(
    present: set[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("runs") / "partial"
    folder.mkdir()
    for name in present:
        PIECES[name](folder)
    text = Reader(write_report(folder).read_text()).text
    assert ("This report is not complete." in text) == (present != set(PIECES))
    notice = text.partition("not complete.")[2].partition("Learning")[0]
    assert [name for name in PIECES if name in notice] == [name for name in PIECES if name not in present]


def test_a_damaged_piece_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    for write in PIECES.values():
        write(tmp_path)
    (tmp_path / "trajectories" / "step_10.parquet").write_bytes(b"PAR1 not really")
    (tmp_path / "config.yaml").write_text("exp_name: [unclosed")
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 30, "rew')
    text = Reader(write_report(tmp_path).read_text()).text
    assert "trajectories/step_10.parquet cannot be read" in text
    assert "config.yaml cannot be read" in text
    assert "best FrozenLake" in text
    assert "+20 points" in text


def test_long_texts_are_cut_so_that_the_file_stays_small(tmp_path: Path) -> None:
    (tmp_path / "trajectories").mkdir()
    episodes = [
        make_trajectory(i, f"tag {i}", num_turns=80, observation="<&" * 10_000, reply="é" * 20_000)
        for i in range(12)
    ]
    write_trajectories(tmp_path / "trajectories" / "step_0.parquet", episodes)
    path = write_report(tmp_path)
    assert path.stat().st_size < 5_000_000
    text = Reader(path.read_text()).text
    assert "more characters" in text
    assert "20 more turns are not shown" in text


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


@given(low=FINITE, width=st.floats(1e-6, 1e9), most=st.integers(2, 10))
def test_ticks_are_in_order_within_the_range_and_few(low: float, width: float, most: int) -> None:
    high = low + width
    ticks = nice_ticks(low, high, most)
    slack = width * 1e-6 + abs(low) * 1e-9
    assert ticks == sorted(ticks)
    assert len(ticks) <= most + 1
    assert all(low - slack <= tick <= high + slack for tick in ticks)


@given(seconds=st.floats(0.001, 1e7))
def test_time_ticks_begin_at_zero_and_are_few(seconds: float) -> None:
    ticks = time_ticks(seconds, 8)
    assert ticks[0] == 0
    assert len(ticks) <= 9
    assert ticks[-1] <= seconds * (1 + 1e-9)


@given(value=st.floats(-1e12, 1e12))
def test_a_short_number_is_short_and_close(value: float) -> None:
    text = short_number(value)
    assert len(text) <= len("-4.5e-117")
    units = {"k": 1e3, "M": 1e6, "G": 1e9}
    number = float(text[:-1]) * units[text[-1]] if text[-1] in units else float(text)
    assert math.isclose(number, value, rel_tol=0.06, abs_tol=1e-300)


@given(ys=st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=400))
def test_a_line_chart_places_any_values_within_its_frame_or_is_none(ys: list[float]) -> None:
    chart = line_chart("any", [Series(name="a", points=list(enumerate(ys)), color=0)])
    if chart is None:
        assert not any(map(math.isfinite, ys))
        return
    numbers = [tuple(map(float, pair.split(","))) for pair in re.split("[ML]", chart.lines[0].path)[1:]]
    assert numbers
    assert all(chart.left <= x <= chart.right and chart.top <= y <= chart.bottom for x, y in numbers)
    json.dumps(chart.hover, allow_nan=False)


@given(constant=FINITE, count=st.integers(1, 50))
def test_smoothing_leaves_a_constant_as_it_is(constant: float, count: int) -> None:
    points = [(float(x), constant) for x in range(count)]
    assert all(math.isclose(y, constant, rel_tol=1e-9, abs_tol=1e-12) for _, y in smoothed(points))


def test_the_layers_of_a_stack_add_up() -> None:
    train = Series(name="train", points=[(0, 3.0), (1, 3.0)], color=0)
    wait = Series(name="wait", points=[(0, 1.0)], color=1)
    chart = stack_chart("time", [train, wait])
    assert chart is not None
    bars = [re.findall(r"M[\d.]+,([\d.]+)V([\d.]+)h", layer.path) for layer in chart.layers]
    assert [len(layer) for layer in bars] == [2, 1]
    (_, top_of_train), (bottom_of_wait, top_of_wait) = bars[0][0], bars[1][0]
    assert top_of_train == bottom_of_wait
    height = chart.bottom - float(top_of_train)
    assert math.isclose((float(bottom_of_wait) - float(top_of_wait)) * 3, height, abs_tol=0.5)


def test_the_bars_of_a_histogram_are_in_proportion() -> None:
    chart = bar_chart("staleness", {"0": 30, "1": 10})
    assert chart is not None
    assert [bar.share_label for bar in chart.bars] == ["75.0%", "25.0%"]
    assert math.isclose(chart.bars[0].height, 3 * chart.bars[1].height, abs_tol=0.3)
    assert bar_chart("staleness", {"0": 0}) is None


def test_a_long_run_has_no_more_spans_than_can_be_seen() -> None:
    events = [
        TimelineEvent(track="trainer", name=name, start_s=start_s, end_s=start_s + 0.1)
        for step in range(20_000)
        for name, start_s in (("wait", step * 0.3), ("train", step * 0.3 + 0.1))
    ]
    chart = lane_chart(
        "all", events, ["trainer"], {"wait": -1, "train": 0}, start_s=0.0, end_s=events[-1].end_s
    )
    assert chart is not None
    assert len(chart.lanes[0].spans) < 2 * MIDDLE.width * 3
    assert chart.lanes[0].busy_label == "33% busy"
    assert all(0 < span.opacity <= 1 for span in chart.lanes[0].spans)
