"""`envsdk plan`: a table, a plot, and errors that say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from envsdk.plan import main

PLAN = """
rollout_batch_size: 16
group_size: 4
episodes: {num_turns: 2, reply_tokens: {kind: lognormal, mean: 100, sigma: 0.6}}
timings: {engine: {token_s: 0.01}, train: {token_s: 0.01}}
search: {async_generation_ratio: [0, 1]}
"""


def write(folder: Path, text: str) -> str:
    path = folder / "mine.yaml"
    path.write_text(text)
    return str(path)


def test_a_plan_prints_a_table_and_writes_a_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([write(tmp_path, PLAN), "--devices", "4", "--cost", "2", "--steps", "3"]) == 0
    printed = capsys.readouterr().out
    assert "7 configurations" in printed
    assert "\nin turns on all 4 devices: " in printed
    assert "\ndivided, " in printed
    assert printed.count("times as fast") == 1
    assert "\n*" in printed
    assert "per M tokens" in printed
    assert (tmp_path / "mine.svg").read_text().startswith("<svg")


def test_a_plan_starts_from_the_one_it_extends_and_leaves_turns_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, PLAN)
    (tmp_path / "divided.yaml").write_text("extends: mine.yaml\nsearch: {shared_devices: false}\n")
    assert main(["divided.yaml", "--devices", "4", "--steps", "3"]) == 0
    printed = capsys.readouterr().out
    assert "6 configurations" in printed
    assert "\n\n\n" not in printed


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_page_shows_what_the_shipped_plan_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[4] / "docs" / "planner.md").read_text()
    assert main(["plan.yaml", "--devices", "40", "--cost", "2.5", "--steps", "8", "--rows", "2"]) == 0
    _, *lines = capsys.readouterr().out.splitlines()  # the first says how long it took
    assert "\n".join(lines[: lines.index("and 49 more") + 1]) in page
    assert next(line for line in lines if line.startswith("dividing them: ")) in page


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (PLAN, ["--devices", "1"], "--devices: must be at least 2"),
        (PLAN.replace("group_size: 4\n", ""), ["--devices", "4"], "group_size is missing"),
        (PLAN.replace("sigma", "sigmas"), ["--devices", "4"], "sigmas"),
        (PLAN.replace("timings", "#"), ["--devices", "4"], "--measured runs/NAME"),
        (PLAN + "  sampling_devices: [4]", ["--devices", "4"], "mine.yaml"),
        ("- 1", ["--devices", "4"], "must be a mapping of keys"),
        (PLAN + "rollout_size: 3", ["--devices", "4"], "rollout_size (mine.yaml:7): unknown key"),
        (
            "extends: plan.yaml\nrollout_size: 3",
            ["--devices", "4"],
            "(mine.yaml:2): unknown key",
        ),
        (PLAN, ["--devices", "4", "--measured", "nowhere"], "there is no config.yaml"),
        # The configuration of a run, of which nothing says how long it takes.
        ("extends: agentic_trainer.yaml", ["--devices", "4"], "--measured runs/NAME"),
        (PLAN, ["--devices", "4", "--cost", "-1"], "--cost"),
    ],
)
def test_bad_input_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str,
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([write(tmp_path, text), *options]) != 0
    captured = capsys.readouterr()
    assert message in " ".join((captured.err + captured.out).split())
