"""Who waited for whom: every recorded moment has one cause, and the causes add up."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.tracking.timeline import TimelineEvent, Track
from envsdk.view.run_view import (
    RunFiles,
    curves_view,
    facts_view,
    headline_view,
    headlines_view,
    progress_view,
    thinned,
)
from envsdk.view.waiting import CAUSES, segments, timeline_view, union


def span(track: str, start: float, end: float, name: str = "", step: int = 0) -> TimelineEvent:
    return TimelineEvent(track=track, name=name or track, start_s=start, end_s=end, args={"step": step})


def train(start: float, end: float) -> TimelineEvent:
    return span(Track.TRAINER, start, end, "train")


def wait(start: float, end: float) -> TimelineEvent:
    return span(Track.TRAINER, start, end, "wait")


def generate(start: float, end: float) -> TimelineEvent:
    return span(Track.GENERATION, start, end, "generate")


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([wait(0, 4), generate(0, 4)], {"trainer_waits": 4}),
        ([train(0, 4), generate(1, 3)], {"both": 2, "engines_wait": 2}),
        ([wait(0, 4), generate(0, 1)], {"trainer_waits": 1, "environments": 3}),
        ([span(Track.PUBLISH, 0, 2)], {"publish": 2}),
        ([span(Track.VALIDATION, 0, 5), generate(1, 2)], {"validate": 5}),
        ([train(0, 1), train(11, 12)], {"engines_wait": 2}),
        ([generate(0, 3), generate(1, 5), wait(0, 5)], {"trainer_waits": 5}),
    ],
)
def test_a_moment_is_put_down_to_its_cause(events: list[TimelineEvent], expected: dict[str, float]) -> None:
    view = timeline_view(events)
    assert {name: value for name, value in view["waits"].items() if value} == pytest.approx(expected)


times = st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda pair: (pair[0], pair[0] + pair[1]))
events_strategy = st.lists(
    st.tuples(
        st.sampled_from([*Track, "worker 0"]), times, st.sampled_from(["wait", "train"]), st.integers(0, 5)
    ),
    max_size=25,
).map(lambda found: [span(track, *both, name, step) for track, both, name, step in found])


@given(events_strategy)
def test_the_causes_add_up_to_the_recorded_time(events: list[TimelineEvent]) -> None:
    known = [e for e in events if e.track in list(Track)]
    recorded = sum(end - start for start, end in union((e.start_s, e.end_s) for e in known))
    parts = list(segments(events))
    assert sum(end - start for start, end, _ in parts) == pytest.approx(recorded)
    assert all(start < end for start, end, _ in parts)
    assert all(one[1] <= other[0] for one, other in pairwise(parts))
    view = timeline_view(events)
    assert sum(view["waits"].values()) == pytest.approx(recorded)
    json.dumps(view, allow_nan=False)


@given(events_strategy)
def test_steps_share_out_what_is_on_record_until_the_last_training(events: list[TimelineEvent]) -> None:
    view = timeline_view(events)
    ends = [step["end"] for step in view["steps"]]
    assert ends == sorted(ends)
    until = (view["start"] or 0.0) + (ends[-1] if ends else 0.0)
    recorded = dict.fromkeys(CAUSES, 0.0)
    for start, end, cause in segments(events):
        recorded[cause] += max(0.0, min(end, until) - start) if ends else 0.0
    for cause, seconds in recorded.items():
        assert sum(step["waits"][cause] for step in view["steps"]) == pytest.approx(seconds, abs=1e-9)


def test_a_lane_of_very_many_spans_is_thinned_without_losing_its_ends() -> None:
    events = [generate(at * 0.001, at * 0.001 + 0.0005) for at in range(50_000)]
    (lane,) = timeline_view(events)["lanes"]
    assert len(lane["spans"]) <= 10_000
    assert lane["spans"][0][0] == 0
    last = lane["spans"][-1]
    assert last[0] + last[1] == pytest.approx(49.9995, abs=0.01)
    assert lane["busy_s"] == pytest.approx(25, rel=0.01)


def run_files(**changes: object) -> RunFiles:
    rows = [{"step": step, "time/step_s": 2.0, "reward/mean": 0.1, "success/mean": 0.5} for step in range(3)]
    base: dict[str, object] = {
        "config": {"max_steps": 10},
        "metrics": rows,
        "timeline": [train(90, 100)],
        "is_closed": False,
        "written_at": 100.0,
    }
    return RunFiles(**(base | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "now", "state"),
    [
        ({}, 110, "running"),
        ({}, 100 + 3600, "silent"),
        ({"is_closed": True}, 110, "stopped"),
        ({"is_closed": True, "config": {"max_steps": 3}}, 110, "finished"),
        ({"metrics": [{"step": 0, "time/step_s": 3600.0}]}, 100 + 7200, "running"),
        ({"metrics": [], "timeline": [], "config": {}}, 100 + 1200, "running"),
        ({"metrics": [], "timeline": [], "config": {}}, 100 + 3600, "silent"),
    ],
)
def test_a_run_says_whether_it_goes_on(changes: dict[str, object], now: float, state: str) -> None:
    view = progress_view(run_files(**changes), now)
    assert view["state"] == state
    json.dumps(view, allow_nan=False)


def test_the_kernels_of_each_trainer_are_facts_of_the_run() -> None:
    kernels = {"actor_train": {"attention": "sdpa (flash)"}, "reference": {"attention": "eager"}}
    facts = facts_view(run_files(kernels=kernels))
    assert {("attention of actor_train", "sdpa (flash)"), ("attention of reference", "eager")} <= set(facts)
    assert facts_view(run_files()) == [fact for fact in facts if "attention" not in fact[0]]


def test_a_batch_is_counted_in_what_the_configuration_counts_it() -> None:
    config: dict[str, object] = {"rollout_batch_size": 16}
    assert ("batch size", "16 trajectories") in facts_view(run_files(config=config))
    config |= {"num_return_sequences_in_group": 8}
    assert ("batch size", "16 prompts, 8 responses each") in facts_view(run_files(config=config))


def test_the_time_left_is_that_of_the_steps_left() -> None:
    view = progress_view(run_files(), 110)
    assert (view["steps"], view["step_s"], view["eta_s"]) == (3, 2.0, 14.0)
    assert view["last_event"] == {"name": "train", "ago_s": 10}


points = st.lists(st.floats(-1e6, 1e6), max_size=200).map(lambda ys: [[x, y] for x, y in enumerate(ys)])


@given(points, st.integers(1, 50))
def test_thinning_keeps_the_mean_and_the_last_step(found: list[list[float]], limit: int) -> None:
    kept = thinned(found, limit)
    assert len(kept) <= max(limit, 0) or len(found) <= limit
    if found:
        assert kept[-1][0] == found[-1][0]
        assert min(y for _, y in found) - 1e-6 <= kept[0][1] <= max(y for _, y in found) + 1e-6


def test_curves_leave_unknown_values_out() -> None:
    metrics = [{"step": 0, "time_unix_s": 1.0, "a": 1.0, "b": math.nan}, {"step": 1, "a": math.inf, "c": 2.0}]
    assert curves_view(metrics) == {"a": [[0, 1.0]], "c": [[1, 2.0]]}


def test_a_headline_compares_the_first_and_the_last_validation() -> None:
    rows = [
        {"step": 0, "val/success/mean": 0.2},
        {"step": 5, "val/success/mean": 0.6, "reward/mean": math.nan},
    ]
    view = headline_view(rows)
    assert (view["before"], view["after"], view["reward"]) == (0.2, 0.6, None)
    assert view["held_out"] == ["20.0%", "60.0%"]
    assert headline_view(rows[:1])["after"] is None


def test_a_headline_of_an_evaluation_says_what_failed_and_states_no_gain_over_other_tasks() -> None:
    rows: list[dict[str, float]] = [
        {"step": 0, "val/success/mean": 0.5, "val/success/Lake": 0.5, "val/num_scored/Lake": 512.0},
        {
            "step": 5,
            "val/success/mean": 1.0,
            "val/success/Lake": 1.0,
            "val/num_scored/Lake": 97.0,
            "val/num_failed/Lake": 415.0,
        },
    ]
    (shown,) = [one for one in headlines_view(run_files(metrics=rows)) if one["name"].startswith("held out")]
    assert shown["value"] == "100.0%"
    assert shown["about"].startswith("of 97, 415 of 512 failed, 50.0% of 512 before, no gain is stated")
    assert headline_view(rows)["held_out"] == ["50.0% of 512", "100.0% of 97, 415 of 512 failed"]
    gone = [rows[0], {"step": 5, "val/num_scored/Lake": 0.0, "val/num_failed/Lake": 512.0}]
    (shown,) = [one for one in headlines_view(run_files(metrics=gone)) if one["name"].startswith("held out")]
    assert (shown["value"], shown["about"][:14]) == ("–", "all 512 failed")
