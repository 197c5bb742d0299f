from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from envsdk.base.display.progress import ProgressDisplay, StepSummary, Validation
from envsdk.base.display.scores import Score
from envsdk.contracts.failures import EnvsdkError

METRICS = {
    "reward/mean": 0.5,
    "success/FrozenLake": 0.62,
    "success/mean": 0.6,
    "rollout/num_scored/FrozenLake": 62.0,
    "rollout/num_failed/FrozenLake": 2.0,
    "staleness/mean": 0.42,
    "staleness/max": 1.0,
    "rollout/tokens_per_s": 5321.4,
    "time/step_s": 8.0,
    "time/wait_batch_s": 2.0,
    "time/engine_idle_share": 0.08,
    "failures/environment/step_timeout": 2.0,
    "failures/engine/raised": 0.0,
}


def lake(rate: float, num_scored: int = 100, num_failed: int = 0) -> Score:
    return Score(rate=rate, num_scored=num_scored, num_failed=num_failed)


def show(width: int, *, is_terminal: bool, metrics: dict[str, float] | None = None) -> str:
    output = io.StringIO()
    console = Console(file=output, width=width, force_terminal=is_terminal, color_system=None)
    with ProgressDisplay("my-run", max_steps=40, console=console) as display:
        display.validation(Validation(step=0, score_by_tag={"FrozenLake": lake(0.31)}))
        display.phase("waiting for rollouts")
        display.rollouts(ready=24, needed=64)
        values = METRICS if metrics is None else metrics
        display.step(StepSummary.from_metrics(values, step=9, max_steps=40, eta_s=240.0))
        if not is_terminal:
            display.phase("training")
        display.validation(Validation(step=10, score_by_tag={"FrozenLake": lake(0.61)}))
        if is_terminal:
            console.print(display)
    return output.getvalue()


def test_a_summary_takes_its_values_from_the_metrics() -> None:
    summary = StepSummary.from_metrics(METRICS, step=9, max_steps=40)
    assert summary.score_by_tag == {"FrozenLake": Score(rate=0.62, num_scored=62, num_failed=2)}
    assert summary.trainer_wait_share == 0.25
    assert summary.failures == {"environment/step_timeout": 2}


def test_metrics_without_a_validation_give_none() -> None:
    assert Validation.from_metrics(METRICS, step=3) is None
    found = Validation.from_metrics({"val/success/mean": 0.5, "val/success/Sokoban": 0.4}, step=3)
    assert found == Validation(step=3, score_by_tag={"Sokoban": Score(rate=0.4, num_scored=None)})


def test_without_a_terminal_what_comes_before_the_first_step_and_each_step_are_plain_lines() -> None:
    lines = show(80, is_terminal=False).splitlines()
    assert lines == [
        "held-out after 0 steps: FrozenLake 31.0% of 100",
        "waiting for rollouts",
        "step 10/40 | reward 0.50 | FrozenLake 62% of 62, 2 of 64 failed | staleness 0.42/1 | 5,321 tokens/s"
        " | waited: trainer 25%, engines 8% | 8.0s | failed: 2 environment/step_timeout | 4m00s left",
        "held-out after 10 steps: FrozenLake 61.0% of 100",
    ]


def test_what_was_dropped_of_the_sampled_tokens_stands_in_line_and_panel_as_soon_as_there_is_any() -> None:
    dropped = METRICS | {f"dropped_share/{tag}": share for tag, share in (("FrozenLake", 0.125), ("sums", 0))}
    expected = "dropped of sampled tokens: FrozenLake 12.5%, sums 0.0%"
    assert f" | {expected} | " in show(240, is_terminal=False, metrics=dropped)
    assert expected.replace(":", "") in show(80, is_terminal=True, metrics=dropped)
    nothing = METRICS | {"dropped_share/FrozenLake": 0.0}
    assert "dropped" not in show(240, is_terminal=False, metrics=nothing)


def test_the_panel_shows_everything_within_80_columns() -> None:
    output = show(80, is_terminal=True)
    expected = (
        "my-run",
        "10/40",
        "4m00s left",
        "FrozenLake",
        "62% of 62",
        "31.0% → 61.0% of 100  +30.0 points",
        "5,321",
        "trainer waited 25%",
        "engines waited 8%",
        "0.42 (max 1)",
        "2 environment/step_timeout",
        "24/64 trajectories",
        "finished",
    )
    assert [text for text in expected if text not in output] == []
    assert "…" not in output
    panel = [line for line in output.splitlines() if line.startswith(("╭", "│", "╰"))]
    assert panel
    assert {len(line) for line in panel} == {80}


@pytest.mark.parametrize("is_terminal", [True, False])
def test_an_evaluation_that_lost_episodes_says_how_many_and_states_no_gain(is_terminal: bool) -> None:
    output = io.StringIO()
    console = Console(file=output, width=100, force_terminal=is_terminal, color_system=None)
    with ProgressDisplay("my-run", max_steps=40, console=console) as display:
        display.validation(Validation(step=0, score_by_tag={"Lake": lake(0.5, 256)}))
        after = {"Lake": lake(1.0, 97, 159), "Room": Score(rate=None, num_scored=0, num_failed=256)}
        display.validation(Validation(step=160, score_by_tag=after, failed="415 engine/turn_timeout"))
        if is_terminal:
            console.print(display)
    text = " ".join(output.getvalue().replace("│", " ").split())
    assert "100.0% of 97, 159 of 256 failed" in text
    assert "all 256 failed" in text
    assert "points" not in text
    assert "nan" not in text
    assert is_terminal or "failed: 415 engine/turn_timeout" in text


@given(name=st.sampled_from(sorted(METRICS)), width=st.integers(20, 120))
def test_a_missing_metric_never_stops_the_display(name: str, width: int) -> None:
    show(width, is_terminal=True, metrics={key: value for key, value in METRICS.items() if key != name})


@pytest.mark.parametrize("is_terminal", [True, False])
def test_names_that_look_like_markup_are_shown_as_they_are(is_terminal: bool) -> None:
    metrics = {"success/[bold]x[/nope]": 0.5}
    assert "[bold]x[/nope]" in show(100, is_terminal=is_terminal, metrics=metrics)


class Stopped(EnvsdkError):
    exit_code = 130


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (KeyboardInterrupt(), "interrupted after "),
        (Stopped("by the user"), "stopped after "),
        (EnvsdkError("no engine"), "failed after "),
    ],
)
def test_the_panel_says_how_the_run_ended(error: BaseException, says: str) -> None:
    output = io.StringIO()
    console = Console(file=output, width=80, force_terminal=True, color_system=None)
    with pytest.raises(type(error)), ProgressDisplay("my-run", max_steps=4, console=console):
        raise error
    assert says in output.getvalue()
