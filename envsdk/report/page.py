"""Puts the report together: `read_run` -> sections -> one HTML file."""

from __future__ import annotations

import base64
import hashlib
import itertools
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from envsdk import __version__
from envsdk.report.charts import (
    LARGE,
    MIDDLE,
    SMALL,
    BarChart,
    LaneChart,
    Series,
    StepChart,
    bar_chart,
    label_precisely,
    lane_chart,
    line_chart,
    stack_chart,
)
from envsdk.report.run_data import Example, RunData, read_run
from envsdk.store.atomic import write_atomically
from envsdk.tracking.timeline import Track
from envsdk.trajectory import Trajectory, Turn

FILE_NAME = "report.html"

_TEXT_LIMIT = 6_000
"""Characters of one observation or reply; the rest is counted, not shown."""
_PAGE_TEXT_LIMIT = 1_000_000
"""Characters of all observations and replies together: keeps the file within a few megabytes."""
_TURN_LIMIT = 60
_HEADLINES = (
    ("async_generation_ratio", "alpha"),
    ("adv_estimator", "advantages"),
    ("pg_variant", "policy gradient"),
    ("rollout_batch_size", "batch"),
    ("ppo_epochs", "epochs per batch"),
    ("sequence_length", "sequence length"),
    ("pretrain", "model"),
    ("seed", "seed"),
)
"""Settings shown in the header: key of the YAML and the word for it."""

_OPTIMIZATION_FIRST = ("loss", "entropy", "clip", "kl", "logprob", "ratio", "grad", "lr", "learning_rate")
"""Order of the charts of `actor/...`: the first word that a name contains."""


_ENGINE_COUNTERS = {
    "engine/tokens_sampled",
    "engine/prompt_tokens",
    "engine/prefilled_tokens",
    "engine/restarts",
}
"""Counted from a start: a curve of these shows nothing but time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Held-out success of one tag."""

    tag: str
    color: int
    before: float
    after: float
    num_validations: int
    is_mean: bool = False

    @property
    def gain(self) -> float:
        return self.after - self.before


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One row of a table of counts."""

    name: str
    count: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnView:
    """One turn as shown."""

    number: int
    observation: str
    reply: str
    reward: float
    versions: str
    num_tokens: int
    finish_reason: str
    metrics: list[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryView:
    """One trajectory as shown."""

    why: str
    trajectory: Trajectory
    duration_s: float
    num_tokens: int
    turns: list[TurnView]
    num_turns_left_out: int
    final_observation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Everything the template shows."""

    name: str
    version: str
    written_at: str
    facts: list[tuple[str, str]]
    missing: list[str]
    scores: list[Score]
    learning: list[StepChart]
    waits: list[tuple[str, str, str]]
    """Value, what it is, how it reads."""
    staleness: BarChart | None
    overlap: list[LaneChart]
    pace: list[StepChart]
    optimization: list[StepChart]
    rollouts: list[StepChart]
    constants: list[tuple[str, str]]
    """Metrics that never changed, with their value."""
    outcomes: list[Share]
    failures: list[Share]
    waste: StepChart | None
    wasted_tokens: float
    trajectories: list[TrajectoryView]
    config: str


def write_report(run_dir: Path) -> Path:
    """Write `run_dir/report.html` and return its path; a run that is not over gets what there is so far.

    Raises ConfigurationError when `run_dir` is not a run folder, StorageError when it cannot be written.
    """
    path = run_dir / FILE_NAME
    write_atomically(path, render(build_page(read_run(run_dir))).encode("utf-8", "replace"))
    return path


def render(page: Page) -> str:
    """The page as HTML. Everything in it is escaped, and it may neither load nor run anything else."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("envsdk.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = lambda value: label_precisely(value, False)
    environment.filters["percent"] = lambda value: f"{value:.0%}"
    assets = files("envsdk.report") / "assets"
    script = (assets / "report.js").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("report.html.j2").render(
        page=page, style=(assets / "report.css").read_text("utf-8"), script=script, script_hash=digest
    )


def build_page(run: RunData) -> Page:
    """Choose and place everything; pure but for the clock that dates the page."""
    tags = _tags(run)
    failures = _shares({n.removeprefix("failures/"): run.total(n) for n in run.names("failures/")})
    # The ledger counts from the start of the run; failures and waste are logged per step.
    ends = [name for name in run.names("ledger/") if name != "ledger/started"]
    outcomes = _shares({name.removeprefix("ledger/"): run.last(name) for name in ends})
    optimization = run.names("actor/") + run.names("critic/")
    # Without each engine's own, of which there may be dozens.
    engines = [n for n in run.names("engine/") if n not in _ENGINE_COUNTERS and n.count("/") == 1]
    rollouts = run.names("rollout/") + run.names("env/") + engines
    return Page(
        name=str(run.config.get("exp_name") or run.folder.resolve().name),
        version=__version__,
        written_at=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        facts=_facts(run),
        missing=run.missing,
        scores=_scores(run, tags),
        learning=_present([_success_chart(run, tags), _reward_chart(run, tags)]),
        waits=_waits(run),
        staleness=_staleness(run),
        overlap=_overlap(run),
        pace=_present([_step_time_chart(run), _wait_chart(run)]),
        optimization=_small_charts(run, _ordered(optimization)),
        rollouts=_small_charts(run, rollouts),
        constants=_constants(run, optimization + rollouts),
        outcomes=outcomes,
        failures=failures,
        waste=line_chart("Tokens thrown away, by step", [_series(run, "waste/tokens", 3)], size=MIDDLE),
        wasted_tokens=run.total("waste/tokens"),
        trajectories=_trajectory_views(run.examples),
        config=_config_text(run),
    )


def _facts(run: RunData) -> list[tuple[str, str]]:
    facts = []
    trained = [row for row in run.metrics if "time/step_s" in row or "reward/mean" in row]
    max_steps = run.config.get("max_steps")
    if trained:
        facts.append(("steps", f"{len(trained)} of {max_steps}" if max_steps else str(len(trained))))
    times = [row["time_unix_s"] for row in run.metrics if "time_unix_s" in row]
    begins = [event.start_s for event in run.timeline] or times
    if times and max(times) > min(begins):
        facts.append(("took", _duration(max(times) - min(begins))))
    episodes = run.last("ledger/delivered")
    if episodes:
        facts.append(("episodes trained on", f"{episodes:,.0f}"))
    for name in run.names("without_episodes/"):
        tag, count = name.removeprefix("without_episodes/"), run.total(name)
        facts.append((f"batches without {tag}", f"{count:.0f}: all of its episodes failed"))
    restarts = _increase([row.get("engine/restarts", 0.0) for row in run.metrics])
    if restarts:
        facts.append(("engine restarts", f"{restarts:,.0f}"))
    for key, word in _HEADLINES:
        value = run.config.get(key)
        if value is not None and not isinstance(value, dict | list):
            facts.append((word, str(value)))
    return facts


def _increase(counts: Sequence[float]) -> float:
    """Of a counter over the whole run, which begins at 0 again where the run was continued."""
    return sum(max(0.0, after - before) for before, after in itertools.pairwise([0.0, *counts]))


def _tags(run: RunData) -> list[str]:
    """Tags with a success rate, in training or held out; the position of each gives its color."""
    names = [n.removeprefix("val/") for n in run.names("success/") + run.names("val/success/")]
    return sorted({name.removeprefix("success/") for name in names if name != "success/mean"})


def _scores(run: RunData, tags: Sequence[str]) -> list[Score]:
    scores = []
    for name in run.names("val/success/"):
        values = [value for _, value in run.series(name) if math.isfinite(value)]
        if values:
            tag = name.removeprefix("val/success/")
            scores.append(
                Score(
                    tag="all tags" if tag == "mean" else tag,
                    color=tags.index(tag) if tag in tags else -1,
                    before=values[0],
                    after=values[-1],
                    num_validations=len(values),
                    is_mean=tag == "mean",
                )
            )
    scores.sort(key=lambda score: (score.is_mean, score.tag))
    # With one tag its mean says the same twice.
    return scores[:1] if len(scores) == 2 and scores[1].is_mean else scores


def _success_chart(run: RunData, tags: Sequence[str]) -> StepChart | None:
    series = []
    for color, tag in enumerate(tags):
        series.append(_series(run, f"success/{tag}", color, name=tag))
        series.append(_series(run, f"val/success/{tag}", color, name=f"{tag}, held out", is_sparse=True))
    return line_chart(
        "Success", [s for s in series if s.points], y_range=(0.0, 1.0), as_percent=True, size=LARGE
    )


def _reward_chart(run: RunData, tags: Sequence[str]) -> StepChart | None:
    series = [_series(run, f"reward/{tag}", color, name=tag) for color, tag in enumerate(tags)]
    if not any(one.points for one in series):
        series = [_series(run, "reward/mean", 0, name="mean")]
    return line_chart("Reward per episode", [s for s in series if s.points], size=LARGE)


def _waits(run: RunData) -> list[tuple[str, str, str]]:
    waits = []
    step_s = run.total("time/step_s")
    if step_s > 0 and run.series("time/wait_batch_s"):
        share = run.total("time/wait_batch_s") / step_s
        waits.append((f"{share:.0%}", "trainer waited", "share of all steps in which it had no batch"))
    idle = [
        (row["time/engine_idle_share"], row.get("time/step_s", 1.0))
        for row in run.metrics
        if math.isfinite(row.get("time/engine_idle_share", math.nan))
    ]
    weight = math.fsum(w for _, w in idle)
    if weight > 0:
        share = math.fsum(value * w for value, w in idle) / weight
        waits.append((f"{share:.0%}", "engines waited", "share in which they had nothing to sample"))
    tokens = [v for _, v in run.series("rollout/tokens_per_s") if math.isfinite(v)]
    if tokens:
        mean = math.fsum(tokens) / len(tokens)
        waits.append((f"{mean:,.0f}", "tokens per second", "sampled, mean over steps"))
    prompt_tokens = run.last("engine/prompt_tokens")
    if prompt_tokens > 0:
        share = 1 - run.last("engine/prefilled_tokens") / prompt_tokens
        waits.append((f"{share:.0%}", "prefixes reused", "prompt tokens that engines did not compute again"))
    stale = [v for _, v in run.series("staleness/max") if math.isfinite(v)]
    if stale:
        bound = run.config.get("async_generation_ratio")
        limit = (
            f"the bound is {math.ceil(bound)}" if isinstance(bound, int | float) else "largest of all samples"
        )
        waits.append((f"{max(stale):.0f}", "versions stale at most", limit))
    return waits


def _staleness(run: RunData) -> BarChart | None:
    prefix = "staleness/count_"
    counts = {int(n.removeprefix(prefix)): run.total(n) for n in run.names(prefix)}
    return bar_chart("Staleness when trained on", {str(k): counts[k] for k in sorted(counts)}, size=MIDDLE)


def _overlap(run: RunData) -> list[LaneChart]:
    tracks = [track.value for track in Track if any(event.track == track for event in run.timeline)]
    events = [event for event in run.timeline if event.track in tracks and event.end_s > event.start_s]
    if not events:
        return []
    names = dict.fromkeys(event.name for track in tracks for event in events if event.track == track)
    # Waiting is drawn in the palette's quiet color, so that work stands out.
    colors = {name: index for index, name in enumerate(n for n in names if n != "wait")} | {"wait": -1}
    start_s, end_s = min(e.start_s for e in events), max(e.end_s for e in events)
    charts = [lane_chart("The whole run", events, tracks, colors, start_s=start_s, end_s=end_s)]
    trains = sorted((e.start_s, e.end_s) for e in events if e.track == Track.TRAINER and e.name == "train")
    if len(trains) >= 8:
        middle = len(trains) // 2
        near, far = trains[middle - 1][0], trains[middle + 3][1] if middle + 3 < len(trains) else end_s
        charts.append(
            lane_chart("A few steps from the middle", events, tracks, colors, start_s=near, end_s=far)
        )
    return _present(charts)


def _step_time_chart(run: RunData) -> StepChart | None:
    names = (("train", 0), ("publish", 3), ("validate", 4), ("checkpoint", 1), ("wait_batch", -1))
    series = [_series(run, f"time/{name}_s", color, name=name.replace("_batch", "")) for name, color in names]
    return stack_chart("The trainer's seconds, by step", [s for s in series if s.points], size=MIDDLE)


def _wait_chart(run: RunData) -> StepChart | None:
    trainer = [
        (row["step"], row["time/wait_batch_s"] / row["time/step_s"])
        for row in run.metrics
        if row.get("time/step_s", 0) > 0 and "time/wait_batch_s" in row
    ]
    series = [
        Series(name="trainer waits", points=trainer, color=0),
        _series(run, "time/engine_idle_share", 1, name="engines wait"),
    ]
    return line_chart(
        "Share spent waiting, by step",
        [s for s in series if s.points],
        y_range=(0.0, 1.0),
        as_percent=True,
        size=MIDDLE,
    )


def _small_charts(run: RunData, names: Iterable[str]) -> list[StepChart]:
    """One chart for each metric that changes."""
    charts = [line_chart(n, [_series(run, n, 0)], size=SMALL) for n in names if not _is_constant(run, n)]
    return _present(charts)


def _constants(run: RunData, names: Iterable[str]) -> list[tuple[str, str]]:
    return [(n, label_precisely(run.last(n), False)) for n in sorted(names) if _is_constant(run, n)]


def _is_constant(run: RunData, name: str) -> bool:
    return len({value for _, value in run.series(name) if math.isfinite(value)}) == 1


def _ordered(names: Iterable[str]) -> list[str]:
    def rank(name: str) -> tuple[int, str]:
        ranks = [i for i, word in enumerate(_OPTIMIZATION_FIRST) if word in name.rpartition("/")[2]]
        return (min(ranks, default=len(_OPTIMIZATION_FIRST)), name)

    return sorted(names, key=rank)


def _series(
    run: RunData, metric: str, color: int, *, name: str | None = None, is_sparse: bool = False
) -> Series:
    return Series(name=name or metric, points=run.series(metric), color=color, is_sparse=is_sparse)


def _shares(counts: Mapping[str, float]) -> list[Share]:
    total = math.fsum(counts.values())
    kept = [Share(name=n, count=c, share=c / total) for n, c in counts.items() if c > 0]
    return sorted(kept, key=lambda share: -share.count)


def _trajectory_views(examples: Sequence[Example]) -> list[TrajectoryView]:
    num_texts = 2 * sum(min(len(example.trajectory.turns), _TURN_LIMIT) for example in examples)
    limit = min(_TEXT_LIMIT, _PAGE_TEXT_LIMIT // max(num_texts, 1))
    return [_trajectory_view(example.why, example.trajectory, limit) for example in examples]


def _trajectory_view(why: str, trajectory: Trajectory, limit: int) -> TrajectoryView:
    turns = [_turn_view(i, turn, trajectory, limit) for i, turn in enumerate(trajectory.turns[:_TURN_LIMIT])]
    tokens = trajectory.tokens
    return TrajectoryView(
        why=why,
        trajectory=trajectory,
        duration_s=trajectory.ended_at - trajectory.started_at,
        num_tokens=0 if tokens is None else len(tokens),
        turns=turns,
        num_turns_left_out=len(trajectory.turns) - len(turns),
        final_observation=_cut(trajectory.final_observation, limit),
    )


def _turn_view(index: int, turn: Turn, trajectory: Trajectory, limit: int) -> TurnView:
    versions = ""
    if trajectory.tokens is not None and turn.response_end > turn.response_start:
        sampled = trajectory.tokens.versions[turn.response_start : turn.response_end]
        low, high = int(sampled.min()), int(sampled.max())
        versions = f"version {low}" if low == high else f"versions {low} to {high}"
    return TurnView(
        number=index + 1,
        observation=_cut(turn.observation, limit),
        reply=_cut(turn.reply, limit),
        reward=turn.reward,
        versions=versions,
        num_tokens=turn.response_end - turn.response_start,
        finish_reason=turn.finish_reason,
        metrics=[(name, label_precisely(value, False)) for name, value in turn.metrics.items()],
    )


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}\n\n… {len(text) - limit:,} more characters"


def _config_text(run: RunData) -> str:
    if not run.config:
        return ""
    from omegaconf import OmegaConf

    return str(OmegaConf.to_yaml(OmegaConf.create(dict(run.config))))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _present(charts: Iterable[Any]) -> list[Any]:
    return [chart for chart in charts if chart is not None]
