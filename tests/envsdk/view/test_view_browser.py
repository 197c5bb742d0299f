"""The pages in a real browser: what a person sees and does, served and exported."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from envsdk.base.store.trajectories import write_trajectories
from envsdk.tracking import JsonlTracker
from envsdk.tracking.timeline import Timeline, Track
from envsdk.view import main
from envsdk.view.export import write_report
from envsdk.view.library import Library
from tests.envsdk.view.conftest import find_browser
from tests.envsdk.view.view_runs import (
    ATTACK,
    STEPS,
    branched,
    encode,
    make_trajectory,
    write_run,
    write_step,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.browser

Open = Callable[..., "Page"]
Serve = Callable[[Path], str]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # The sandbox of Chromium does not work for root, as whom containers run tests.
        opened = playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        yield opened
        opened.close()


@contextmanager
def serving(folder: Path, cache: Path) -> Iterator[str]:
    """The address that `envsdk view` prints; all that is in `folder` already is in its index."""
    for source in Library(folder, index_folder=cache / "view").sources():
        source.refresh()
    command = [sys.executable, "-m", "envsdk.view", str(folder)]
    environment = {**os.environ, "ENVSDK_CACHE": str(cache), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found
        yield found[0]
    finally:
        process.terminate()
        process.communicate()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("browser") / "runs" / "tiny")
    write_trajectories(
        folder.parent / "part-00000.parquet", [make_trajectory(1, with_tokens=False, replies=("Up",))]
    )
    (folder.parent / "data").mkdir()
    (folder.parent / "part-00000.parquet").rename(folder.parent / "data" / "part-00000.parquet")
    return folder


@pytest.fixture(scope="module")
def address(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(run, tmp_path_factory.mktemp("cache")) as served:
        yield served


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Serves a folder at the address it returns, until the pages that `watch` opened are closed."""
    with ExitStack() as stack:
        yield lambda folder: stack.enter_context(serving(folder, tmp_path / "cache"))


@pytest.fixture
def watch(browser: Browser, serve: Serve) -> Iterator[Open]:
    """Opens a page, and afterwards wants no error, no attack that worked and no request elsewhere."""
    seen: list[tuple[Page, list[str], str]] = []

    def open_page(url: str, fragment: str = "", **options: Any) -> Page:
        page = browser.new_context(**options).new_page()
        problems: list[str] = []
        origin = url.partition("/?")[0]
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on(
            "request",
            lambda request: (
                problems.append(f"asked for {request.url}")
                if not request.url.startswith((origin, "data:"))
                else None
            ),
        )
        page.goto(url)
        settled(page)
        if fragment:
            go(page, fragment)
        seen.append((page, problems, origin))
        return page

    yield open_page
    for page, problems, _ in seen:
        assert page.evaluate("window.attacked") is None
        assert problems == []
        page.context.close()


def settled(page: Page) -> None:
    page.wait_for_selector("main:not([aria-busy]) > :not(noscript, #summary)")


def go(page: Page, fragment: str) -> None:
    """To a page of the only source: `trajectories?tag=x`, `t/step_000000:0` ..."""
    page.wait_for_selector(".tabs")
    source = page.evaluate("location.hash.split('/')[2]")
    page.evaluate(
        """([before, hash]) => new Promise((shown) => {
            new MutationObserver(shown).observe(before, { childList: true });
            location.hash = hash;
        })""",
        [page.locator("main").element_handle(), f"#/s/{source}/{fragment}"],
    )
    settled(page)


def expect(found: Locator | Page) -> Any:
    from playwright.sync_api import expect as expect_that

    expect_that.set_options(timeout=20_000)
    return expect_that(found)


def test_the_overview_shows_where_the_run_stands(watch: Open, address: str) -> None:
    page = watch(address)
    expect(page).to_have_title("Overview · tiny · envsdk")
    assert "token" not in page.url
    expect(page.get_by_text(f"Step {STEPS} of {STEPS}")).to_be_visible()
    expect(page.get_by_text("25.0% before, +50.0 points")).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("^Success: FrozenLake 50%"))).to_be_visible()
    expect(page.locator("figure path.line").first).to_be_visible()


def test_values_of_a_curve_show_under_the_pointer_and_by_the_arrow_keys(watch: Open, address: str) -> None:
    page = watch(address)
    chart = page.get_by_role("img", name=re.compile("^Reward per episode"))
    chart.hover()
    expect(page.locator("#tip")).to_contain_text("step")
    chart.focus()
    chart.press("Home")
    expect(page.locator("#tip")).to_contain_text("step 0")
    expect(page.locator("#tip")).to_contain_text("FrozenLake  −0.5")
    chart.press("ArrowRight")
    expect(page.locator("#tip")).to_contain_text("step 1")


def test_a_list_narrows_as_one_types_and_clicks_and_can_be_linked_to(watch: Open, address: str) -> None:
    page = watch(address, "trajectories")
    status = page.locator(".pager [role=status]")
    expect(status).to_have_text("1–38 of 38")
    page.keyboard.press("/")
    page.keyboard.type("eclai")
    expect(status).not_to_have_text("1–38 of 38")
    for name in ("SimpleSokoban", re.compile("^solved")):
        page.get_by_role("button", name=name).click()
        # Drawn together with what it found.
        expect(page.get_by_role("button", name=name)).to_have_attribute("aria-pressed", "true")
    expect(page.locator("tbody tr").first).to_contain_text("SimpleSokoban")
    assert "q=eclai" in page.url
    narrowed = status.inner_text()
    page.reload()
    expect(status).to_have_text(narrowed)
    expect(page.get_by_role("button", name="SimpleSokoban")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="Clear all").click()
    expect(status).to_have_text("1–38 of 38")
    page.get_by_label("Reward from").fill("5")
    expect(page.get_by_text("Nothing matches")).to_be_visible()
    page.get_by_label("Reward from").fill("")
    page.get_by_role("button", name="Turns").click()
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Turns ↓")


def test_the_keyboard_goes_from_the_list_to_a_trajectory_and_back(watch: Open, address: str) -> None:
    page = watch(address)
    page.keyboard.press("2")
    expect(page.get_by_role("search")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_text("2 of 38")).to_be_visible()
    page.keyboard.press("j")
    expect(page.get_by_text("3 of 38")).to_be_visible()
    page.keyboard.press("k")
    expect(page.get_by_text("2 of 38")).to_be_visible()
    page.keyboard.press("g")
    expect(page.get_by_role("heading", name="Group 0")).to_be_visible()
    page.keyboard.press("u")
    expect(page.locator("tbody tr").first).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("heading", name="Keys")).to_be_visible()


def test_tokens_are_colored_by_log_probability_or_version(watch: Open, address: str) -> None:
    page = watch(address, "t/step_000000:0")
    tokens = page.locator(".turn").first.locator(".tokens:not(.prompt) .t")
    expect(tokens.first).to_be_visible()

    def color(at: int) -> str:
        return str(tokens.nth(at).evaluate("one => getComputedStyle(one).backgroundColor"))

    last = tokens.count() - 1
    first_color, unlikely = color(0), color(last)
    assert first_color == "rgba(0, 0, 0, 0)"
    assert unlikely != first_color
    tokens.first.focus()
    expect(page.locator("#tip")).to_contain_text("log-probability 0.0000 (100.0%)")
    expect(page.locator("#tip")).to_contain_text("sampled under version 0")
    tokens.first.press("ArrowRight")
    expect(page.locator("#tip")).to_contain_text("−0.7000 (49.7%)")
    page.keyboard.press("c")
    expect(page.get_by_role("button", name="version", exact=True)).to_have_attribute("aria-pressed", "true")
    assert color(0) == color(last - 1) != color(last)
    page.keyboard.press("c")
    assert color(last) == "rgba(0, 0, 0, 0)"


def test_the_tokens_that_were_given_can_be_read_as_well(watch: Open, address: str) -> None:
    page = watch(address, "t/step_000000:0")
    expect(page.locator(".prompt").first).to_be_hidden()
    page.get_by_label("prompt tokens").check()
    prompt = page.locator(".prompt").first
    expect(prompt).to_be_visible()
    assert prompt.inner_text().replace("↵", "") == "<user>P _\n# G<reply>"
    assert prompt.locator(".t").count() == len(encode("<user>P _\n# G<reply>"))


def test_an_episode_of_several_segments_is_a_tree_whose_lines_can_be_read_alone(
    watch: Open, serve: Serve, tmp_path: Path
) -> None:
    folder = write_run(tmp_path / "runs" / "tiny")
    episode = branched(make_trajectory(1, replies=("Left", "Right", "Up", "Down")))
    write_trajectories(folder / "trajectories" / "step_000000.parquet", [episode])
    page = watch(serve(folder), "t/step_000000:0")
    tree = page.get_by_role("navigation", name="Segments")
    expect(tree.locator("circle")).to_have_count(4)
    expect(page.locator("#turn-3")).to_contain_text("Segment 2 (helper), a line of its own")
    expect(page.locator("#turn-4")).to_contain_text("Segment 3 (main), goes on from turn 1")
    tree.get_by_role("button", name="Segment 3 (main)").click()
    shown = [turn.get_attribute("id") for turn in page.locator(".turn:visible").all()]
    assert shown[:2] == ["turn-1", "turn-4"]
    expect(page.locator("#turn-2")).to_be_hidden()
    tree.get_by_role("button", name="All turns").click()
    expect(page.locator("#turn-2")).to_be_visible()
    if target := os.environ.get("ENVSDK_SCREENSHOT"):
        page.screenshot(path=target, full_page=True)


def test_a_group_is_shown_side_by_side_with_its_advantages(watch: Open, address: str) -> None:
    page = watch(address, "group/train/3")
    expect(page.locator(".head")).to_have_count(4)
    expect(page.get_by_text(re.compile("4 episodes of SimpleSokoban, task train 3"))).to_be_visible()
    expect(page.get_by_text("same observation as on the left").first).to_be_visible()
    tops = page.locator(".head").evaluate_all("all => all.map((one) => one.getBoundingClientRect().top)")
    assert len(set(tops)) == 1


@pytest.mark.parametrize(
    "fragment",
    [
        "t/discarded_step_000001:1",
        "t/discarded_step_000001:0",
        "trajectories?use=discarded",
        "failures",
        "group/train/1",
        "task/train/1",
    ],
)
def test_markup_of_a_model_is_text(watch: Open, address: str, fragment: str) -> None:
    page = watch(address, fragment)
    page.wait_for_load_state("networkidle")
    assert page.locator("main img, main script").count() == 0
    if not fragment.startswith("traj"):
        expect(page.get_by_text("</script></pre><script>window.attacked = 1").first).to_be_visible()


def test_an_attack_is_shown_letter_by_letter(watch: Open, address: str) -> None:
    page = watch(address, "t/discarded_step_000001:1")
    assert page.locator(".observation").first.inner_text() == ATTACK
    assert page.locator(".tokens:not(.prompt)").first.inner_text() == ATTACK


def test_the_timeline_says_who_waited_and_can_be_zoomed(watch: Open, address: str) -> None:
    page = watch(address, "timeline")
    expect(page.get_by_text("engines wait for the trainer").first).to_be_visible()
    canvas = page.locator("canvas")
    expect(canvas).to_be_visible()
    canvas.focus()
    whole = canvas.evaluate("one => one.toDataURL()")
    canvas.press("+")
    zoomed = canvas.evaluate("one => one.toDataURL()")
    canvas.press("ArrowRight")
    moved = canvas.evaluate("one => one.toDataURL()")
    assert len({whole, zoomed, moved}) == 3
    canvas.press("0")
    assert canvas.evaluate("one => one.toDataURL()") == whole


def test_labels_of_long_steps_are_not_cut_off(watch: Open, serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "slow" / "trajectories").mkdir(parents=True)
    with Timeline(tmp_path / "slow" / "timeline.json") as timeline:
        timeline.span(Track.TRAINER, "wait", 1000.0, 1125.0, step=0)
        timeline.span(Track.TRAINER, "train", 1125.0, 1130.0, step=0)
    served = serve(tmp_path / "slow")
    page = watch(served, "timeline")
    labels = page.locator("figure.chart svg text")
    expect(labels.get_by_text("1 min 40 s")).to_be_visible()
    assert min(labels.evaluate_all("(texts) => texts.map((text) => text.getBBox().x)")) >= 0


def test_failures_lead_to_their_trajectories(watch: Open, address: str) -> None:
    page = watch(address, "failures")
    page.get_by_role("link", name="step_timeout").click()
    expect(page.locator(".pager [role=status]")).to_have_text("1–1 of 1")
    page.locator("tbody a").click()
    expect(page.get_by_text("Failed: environment/step_timeout")).to_be_visible()


def test_many_constant_metrics_fit_a_narrow_window(watch: Open, serve: Serve, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs" / "constant")
    constant = {f"actor/a_rather_long_name_of_a_metric_{number}": 128.0 for number in range(20)}
    tracker = JsonlTracker(folder / "metrics.jsonl")
    for step in range(100, 103):
        tracker.log(step, constant, time_unix_s=2000.0 + step)
    tracker.close()
    page = watch(serve(folder.parent), "metrics", viewport={"width": 390, "height": 800})
    expect(page.get_by_text("a_rather_long_name_of_a_metric_19")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_color_of_the_timeline_has_one_meaning_on_the_page(
    watch: Open, serve: Serve, tmp_path: Path
) -> None:
    folder = write_run(tmp_path / "runs" / "colors")
    names = ["publish", "validate", "generate", "train", "wait", "checkpoint"]
    tracks = [Track.PUBLISH, Track.VALIDATION, Track.GENERATION, Track.TRAINER, Track.TRAINER, Track.TRAINER]
    with Timeline(folder / "timeline.json") as timeline:
        for start, (track, name) in enumerate(zip(tracks, names, strict=True)):
            timeline.span(track, name, 1000.0 + start, 1001.0 + start, step=1)
    page = watch(serve(folder.parent), "timeline")
    legends = page.evaluate(
        """Array.from(document.querySelectorAll(".legend span")).map((entry) => [
            entry.textContent.trim(), getComputedStyle(entry.querySelector("i")).backgroundColor])"""
    )
    meanings: dict[str, set[str]] = {}
    for text, color in legends:
        meanings.setdefault(color, set()).add(_meaning(text))
    assert {text for text, _ in legends} >= set(names)
    assert all(len(found) == 1 for found in meanings.values()), meanings


_MEANINGS = {
    "both busy": "both busy",
    "trainer waits": "trainer waits",
    "engines wait": "engines wait",
    "both wait": "wait",
    "weights on their way": "publish",
    "validation": "validate",
}
"""What the causes call by more words, a span calls by one."""


def _meaning(legend: str) -> str:
    return next((meaning for words, meaning in _MEANINGS.items() if words in legend), legend)


def test_metrics_are_found_by_name(watch: Open, address: str) -> None:
    page = watch(address, "metrics")
    expect(page.locator("figcaption", has_text="actor/entropy")).to_be_visible()
    expect(page.get_by_text("Constant: actor/lr 0.001")).to_be_visible()
    page.get_by_label("Show metrics whose name contains").fill("nothing like that")
    expect(page.get_by_text("No metric of that name")).to_be_visible()


def test_a_page_keeps_up_with_a_run_that_goes_on(watch: Open, serve: Serve, tmp_path: Path) -> None:
    going_on = write_run(tmp_path / "going_on", is_over=False)
    served = serve(going_on)
    page = watch(served)
    expect(page.get_by_text(f"Step {STEPS} of {STEPS}")).to_be_visible()
    expect(page.get_by_text("running")).to_be_visible()
    tracker = JsonlTracker(going_on / "metrics.jsonl")
    with Timeline(going_on / "timeline.json") as timeline:
        write_step(going_on, STEPS, tracker=tracker, timeline=timeline)
    tracker.close()
    expect(page.get_by_text(f"Step {STEPS + 1} of {STEPS}")).to_be_visible()
    expect(page.get_by_text("finished")).to_be_visible()


def test_several_sources_are_listed_and_their_curves_laid_over_one_another(
    watch: Open, serve: Serve, run: Path
) -> None:
    served = serve(run.parent)
    page = watch(served)
    expect(page.get_by_role("link", name="tiny")).to_be_visible()
    expect(page.get_by_text("25.0% → 75.0%")).to_be_visible()
    expect(page.get_by_role("img", name="success/mean: tiny")).to_be_visible()
    page.get_by_role("combobox").select_option("actor/entropy")
    expect(page.get_by_role("img", name="actor/entropy: tiny")).to_be_visible()
    page.get_by_role("link", name="data").click()
    expect(page.get_by_role("link", name="Overview")).to_be_visible()
    expect(page.get_by_role("link", name="Timeline")).to_have_count(0)
    page.keyboard.press("2")
    page.get_by_role("link", name="Trajectory train-1").click()
    expect(page.locator(".reply")).to_have_text("Up")


def test_data_sets_are_listed_without_what_only_runs_have(watch: Open, serve: Serve, tmp_path: Path) -> None:
    for name in ("oracle", "random"):
        (tmp_path / "data" / name).mkdir(parents=True)
        write_trajectories(
            tmp_path / "data" / name / "part-00000.parquet",
            [make_trajectory(number, with_tokens=False, replies=("Up",)) for number in range(3)],
        )
    served = serve(tmp_path / "data")
    page = watch(served)
    expect(page.locator("thead th")).to_have_text(["Name", "State", "Episodes", "Success", "Last written"])
    page.get_by_role("link", name="oracle").click()
    go(page, "trajectories")
    expect(page.locator("thead th")).to_have_text(["Result", "Tag", "Task", "Reward", "Turns", "Time"])
    expect(page.locator(".filters legend:visible")).to_have_text(["Result", "Tag", "Reward", "Turns"])


def test_an_empty_run_says_what_will_be_there(watch: Open, serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "empty" / "trajectories").mkdir(parents=True)
    served = serve(tmp_path / "empty")
    page = watch(served)
    expect(page.get_by_text("No step has been logged yet")).to_be_visible()
    go(page, "trajectories")
    expect(page.get_by_text("No trajectories")).to_be_visible()
    go(page, "timeline")
    expect(page.get_by_text("Nothing has been recorded")).to_be_visible()
    go(page, "failures")
    expect(page.get_by_text("No episode failed")).to_be_visible()


def test_light_and_dark_follow_the_system(watch: Open, address: str) -> None:
    colors = {
        scheme: watch(address, color_scheme=scheme).evaluate(
            "getComputedStyle(document.body).backgroundColor"
        )
        for scheme in ("light", "dark")
    }
    assert colors == {"light": "rgb(247, 247, 245)", "dark": "rgb(18, 20, 22)"}


def test_a_narrow_window_needs_no_scrolling_sideways(watch: Open, address: str) -> None:
    page = watch(address, viewport={"width": 380, "height": 800})
    for fragment in ("trajectories", "t/step_000000:0", "timeline", "failures", "metrics"):
        go(page, fragment)
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") <= 380, fragment
    for tab in page.locator(".tabs a").all():
        place = tab.bounding_box()
        assert place is not None
        assert place["x"] + place["width"] <= 380, tab.inner_text()
    go(page, "trajectories")
    expect(page.get_by_role("button", name="FrozenLake")).to_be_hidden()
    page.get_by_role("button", name="Filters").click()
    page.get_by_role("button", name="FrozenLake").click()
    expect(page.locator(".pager [role=status]")).to_have_text("1–19 of 19")


FILTERS = (
    "",
    "q=eclai",
    "q=%22the+box%22",
    "q=push+lef",
    "q=waited+30",
    "q=%3F%3F",
    "tag=SimpleSokoban&success=yes",
    "success=failed",
    "use=validation&sort=-reward",
    "reward_min=0.5&turns_max=3&sort=turns",
    "version=4",
    "failure=environment",
    "step_min=2&sort=-logprob",
    "task=train/3",
    "sort=-tokens",
)


def test_an_exported_file_asks_for_nothing_and_filters_like_the_server(
    watch: Open, address: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVSDK_CACHE", str(tmp_path / "cache"))
    target = tmp_path / "tiny.html"
    assert main([str(run), "--export", str(target), "--trajectories", "1000"]) == 0
    served, exported = watch(address), watch(target.as_uri())
    expect(exported.get_by_text("exported")).to_be_visible()

    ask = """async (query) => {
        const source = location.hash.split("/")[2];
        const params = { ...Object.fromEntries(new URLSearchParams(query)), limit: 500 };
        const found = await View.data.get(`/sources/${source}/trajectories`, params);
        return [found.total, found.rows.map((row) => row.key), found.facets];
    }"""
    for query in FILTERS:
        assert exported.evaluate(ask, query) == served.evaluate(ask, query), query
    for fragment in ("t/step_000000:0", "group/train/3", "timeline", "failures", "metrics"):
        go(exported, fragment)
        go(served, fragment)
        served.wait_for_load_state("networkidle")
        shown, expected = exported.locator("main").inner_text(), served.locator("main").inner_text()
        assert shown == expected.replace("Other plays of this task\n", ""), fragment


def test_an_attack_in_an_exported_file_is_text(
    watch: Open, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVSDK_CACHE", str(tmp_path / "cache"))
    target = tmp_path / "tiny.html"
    assert main([str(run), "--export", str(target), "--trajectories", "1000"]) == 0
    page = watch(target.as_uri(), "t/discarded_step_000001:1")
    assert page.locator(".observation").first.inner_text() == ATTACK
    assert page.locator("main img, main script").count() == 0


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of the report of a run with staleness, the trainer's times and hostile names."""
    folder = write_run(tmp_path_factory.mktemp("reported") / "tiny")
    tracker = JsonlTracker(folder / "metrics.jsonl")
    times = {"time/train_s": 5.0, "time/publish_s": 1.0, "time/wait_batch_s": 4.0}
    counts = {"staleness/count_0": 3.0, "staleness/count_1": 1.0, f"failures/{ATTACK}": 1.0}
    for step in (STEPS + 1, STEPS + 2):
        tracker.log(step, {ATTACK: 1.0, **times, **counts}, time_unix_s=2000.0 + step)
    tracker.close()
    return write_report(folder).as_uri()


def test_a_report_shows_staleness_and_where_the_trainer_s_time_went(watch: Open, report: str) -> None:
    page = watch(report)
    expect(page.get_by_role("img", name="Staleness when trained on: 0: 75.0%, 1: 25.0%")).to_be_visible()
    seconds = page.get_by_role("img", name="The trainer’s seconds, by step")
    heights = seconds.locator("rect:not(.catch)").evaluate_all(
        "all => all.map((one) => Number(one.getAttribute('height')))"
    )
    assert len(heights) == 6
    assert heights[0] == pytest.approx(5 * heights[1]) == pytest.approx(heights[2] * 5 / 4)
    page.get_by_role("link", name="best of FrozenLake").click()
    expect(page.locator(".turn").first).to_be_visible()


def test_a_report_can_be_read_with_scripts_off(watch: Open, browser: Browser, report: str) -> None:
    for scheme, width in (("light", 1200), ("dark", 390)):
        context = browser.new_context(
            java_script_enabled=False, color_scheme=scheme, viewport={"width": width, "height": 900}
        )
        page = context.new_page()
        page.goto(report)
        expect(page.get_by_role("heading", name="tiny")).to_be_visible()
        expect(page.get_by_text("25.0% before, +50.0 points")).to_be_visible()
        expect(page.locator("noscript p")).to_be_visible()
        expect(page.get_by_role("row", name="actor/entropy 1 0.25 0.25 1")).to_be_visible()
        assert page.locator("main img, main script").count() == 0
        expect(page.get_by_text("</script></pre><script>window.attacked = 1").first).to_be_visible()
        context.close()


def test_the_pages_of_a_report_fit_a_narrow_window(watch: Open, report: str) -> None:
    page = watch(report, viewport={"width": 380, "height": 800})
    for fragment in ("", "failures", "metrics"):
        if fragment:
            go(page, fragment)
        assert page.evaluate("document.documentElement.scrollWidth") <= 380, fragment
        assert page.locator("main img, main script").count() == 0


def test_a_job_of_several_programs_has_a_page_for_them_served_and_in_its_report(
    watch: Open, serve: Serve, run: Path, tmp_path: Path
) -> None:
    from tests.envsdk.buffer.buffer_jobs import play

    folder = tmp_path / "runs" / "job"
    shutil.copytree(run, folder)
    play(str(folder / "buffer.db"))
    for address in (serve(folder), write_report(folder).as_uri()):
        page = watch(address)
        page.get_by_role("link", name="Programs").click()
        expect(page.get_by_role("heading", name="Explorers")).to_be_visible()
        expect(page.get_by_role("row", name=re.compile("^east silent .* 2 0 6 .* 0.5"))).to_be_visible()
        expect(page.get_by_role("row", name=re.compile("^west left"))).to_be_visible()
        for chart in ("Groups in the buffer", "Groups per minute", "Seconds that each program waited"):
            expect(page.get_by_role("img", name=re.compile(f"^{chart}"))).to_be_visible()
        page.get_by_role("img", name=re.compile("^Groups in the buffer")).locator(".catch").last.hover()
        expect(page.locator("#tip")).to_contain_text("being played  2")
    narrow = watch(serve(folder), "programs", viewport={"width": 390, "height": 800})
    expect(narrow.get_by_role("heading", name="Explorers")).to_be_visible()
    assert narrow.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_run_of_one_program_has_no_page_of_programs(watch: Open, address: str) -> None:
    page = watch(address)
    expect(page.get_by_role("link", name="Metrics")).to_be_visible()
    expect(page.get_by_role("link", name="Programs")).to_have_count(0)
