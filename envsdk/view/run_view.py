"""Pure: the state of a run, its headlines and its curves, as JSON-ready values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from envsdk.base.display.scores import MEAN, Score, change, held_out, scores
from envsdk.tracking.timeline import TimelineEvent
from envsdk.view.columns import finite

MAX_POINTS = 1_000
"""Points of one curve; of longer ones, neighbors are averaged."""

QUIET_S = 120.0
_QUIET_STEPS = 5.0
"""A run that wrote nothing for this long, and for as many of its steps, is taken to have been killed."""
_FIRST_QUIET_S = 1800.0
"""The same before its first step is over: how long one takes is not known yet."""

_SETTINGS = {
    "async_generation_ratio": "batches ahead",
    "rollout_batch_size": "batch size",
    "adv_estimator": "advantages",
    "pg_variant": "policy loss",
    "ppo_epochs": "epochs per batch",
    "sequence_length": "sequence length",
    "pretrain": "model",
    "seed": "seed",
}
"""Settings shown at the top: key of the YAML and the word for it."""
_NO_METRICS = {"step", "time_unix_s"}
"""Keys of a row of metrics.jsonl that say which row it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """What was read of a run's folder."""

    config: Mapping[str, Any]
    metrics: Sequence[Mapping[str, float]]
    """One row per step, in order."""
    timeline: Sequence[TimelineEvent]
    is_closed: bool
    """Whether the timeline was closed, as a run does however it ends, unless it is killed."""
    written_at: float
    """When anything in the folder was last written, Unix time."""
    kernels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Kernels of each trainer, in words, by what they compute."""
    missing: Sequence[str] = ()
    """One sentence for each file that is missing or cannot be read."""

    def known(self, name: str) -> list[float]:
        """The finite values of a metric, in order of the steps."""
        return [row[name] for row in self.metrics if name in row and math.isfinite(row[name])]

    def names(self, prefix: str) -> list[str]:
        """Names of metrics that begin with `prefix`, sorted."""
        return sorted(name for name in set[str]().union(*self.metrics) if name.startswith(prefix))


def progress_view(run: RunFiles, now: float) -> dict[str, Any]:
    """How far a run is: `state` is `running`, `finished`, `stopped` or `silent` (killed, it seems)."""
    trained = [row for row in run.metrics if "reward/mean" in row or "time/step_s" in row]
    max_steps = run.config.get("max_steps")
    max_steps = max_steps if isinstance(max_steps, int) else None
    step_s = _recent_mean([row.get("time/step_s", math.nan) for row in trained])
    done = int(trained[-1]["step"]) + 1 if trained else 0
    quiet_s = max(0.0, now - run.written_at)
    if max_steps is not None and done >= max_steps and run.is_closed:
        state = "finished"
    elif run.is_closed:
        state = "stopped"
    elif quiet_s <= (_FIRST_QUIET_S if step_s is None else max(QUIET_S, _QUIET_STEPS * step_s)):
        state = "running"
    else:
        state = "silent"
    last = max(run.timeline, key=lambda event: event.end_s, default=None)
    left = max_steps - done if max_steps is not None else None
    return {
        "state": state,
        "steps": done,
        "max_steps": max_steps,
        "step_s": step_s,
        "eta_s": left * step_s if state == "running" and left and step_s else None,
        "quiet_s": quiet_s,
        "last_event": None if last is None else {"name": last.name, "ago_s": max(0.0, now - last.end_s)},
        "started_at": min((event.start_s for event in run.timeline), default=None),
        "written_at": run.written_at,
    }


def facts_view(run: RunFiles) -> list[tuple[str, str]]:
    """What happened to a run, and its main settings, in words."""
    facts = []
    times = [row["time_unix_s"] for row in run.metrics if "time_unix_s" in row]
    begins = [event.start_s for event in run.timeline] or times
    if times and max(times) > min(begins):
        facts.append(("took", _duration(max(times) - min(begins))))
    if delivered := run.known("ledger/delivered"):
        facts.append(("episodes trained on", f"{delivered[-1]:,.0f}"))
    for name in run.names("without_episodes/"):
        tag, count = name.removeprefix("without_episodes/"), math.fsum(run.known(name))
        facts.append((f"batches without {tag}", f"{count:.0f}: all of its episodes failed"))
    # The counter begins at 0 again in every process of a run.
    restarts = sum(
        max(0.0, after - before) for before, after in pairwise([0.0, *run.known("engine/restarts")])
    )
    if restarts:
        facts.append(("engine restarts", f"{restarts:,.0f}"))
    for role, kernels in run.kernels.items():
        facts += [(f"{what} of {role}", kernel) for what, kernel in kernels.items()]
    return facts + [
        (word, f"{run.config[name]} {_unit(name, run.config)}".rstrip())
        for name, word in _SETTINGS.items()
        if run.config.get(name) is not None and not isinstance(run.config[name], dict | list)
    ]


def _unit(name: str, config: Mapping[str, Any]) -> str:
    if name != "rollout_batch_size":
        return ""
    responses = config.get("num_return_sequences_in_group")
    return "trajectories" if responses is None else f"prompts, {responses} responses each"


def headline(value: str, name: str, about: str = "") -> dict[str, str]:
    """One figure as all pages show it."""
    return {"value": value, "name": name, "about": about}


def headlines_view(run: RunFiles) -> list[dict[str, str]]:
    """The figures that a run is judged by at first sight, each with what it covers."""
    found = _held_out_headlines(run)
    if run.known("success/mean"):
        newest = _finite(next(row for row in reversed(run.metrics) if "success/mean" in _finite(row)))
        score, rewards = scores(newest, success="success", counts="rollout")[MEAN], run.known("reward/mean")
        parts = [score.of, f"reward {number(rewards[-1])}" if rewards else ""]
        found.append(headline(_rate(score), "success in the newest batch", _joined(parts)))
    if (step_s := math.fsum(run.known("time/step_s"))) and run.known("time/wait_batch_s"):
        share = math.fsum(run.known("time/wait_batch_s")) / step_s
        found.append(
            headline(percent(share), "trainer waited", "share of all steps in which it had no batch")
        )
    idle = [
        (row["time/engine_idle_share"], row.get("time/step_s", 1.0))
        for row in run.metrics
        if math.isfinite(row.get("time/engine_idle_share", math.nan))
    ]
    if weight := math.fsum(seconds for _, seconds in idle):
        share = math.fsum(share * seconds for share, seconds in idle) / weight
        found.append(headline(percent(share), "engines waited", "share in which they had nothing to sample"))
    if speeds := run.known("rollout/tokens_per_s"):
        mean = math.fsum(speeds) / len(speeds)
        found.append(
            headline(
                f"{speeds[-1]:,.0f}", "tokens per second", f"sampled, newest step; {mean:,.0f} on average"
            )
        )
    prompts, computed = run.known("engine/prompt_tokens"), run.known("engine/prefilled_tokens")
    if prompts and computed and prompts[-1] > 0:
        about = "prompt tokens that engines did not compute again"
        # Replies that go on under newer weights are computed once more, which can be more than the prompts.
        reused = max(0.0, 1 - computed[-1] / prompts[-1])
        found.append(headline(percent(reused), "prompts reused", about))
    if stale := run.known("staleness/max"):
        given, alpha = run.config.get("max_staleness"), run.config.get("async_generation_ratio")
        bound = given if given is not None else alpha
        about = "age of the oldest weights that a trained token is from"
        if isinstance(bound, int | float):
            about += f"; the bound is {math.ceil(bound)}"
        found.append(headline(number(max(stale)), "versions behind at most", about))
    if wasted := math.fsum(run.known("waste/tokens")):
        found.append(
            headline(f"{wasted:,.0f}", "tokens thrown away", "sampled, of episodes that were not used")
        )
    if shares := run.known("dropped_share/mean"):
        tags = run.names("dropped_share/")
        by_tag = [
            f"{name.removeprefix('dropped_share/')} {percent(run.known(name)[-1])}"
            for name in tags
            if name != "dropped_share/mean"
        ]
        about = f"the newest 20 steps; {', '.join(by_tag)}" if by_tag else "the newest 20 steps"
        found.append(headline(percent(shares[-1]), "of sampled tokens dropped", about))
    if spent := run.known("cost/total"):
        prices = run.config.get("prices")
        currency = prices.get("currency", "") if isinstance(prices, Mapping) else ""
        about = "of tokens, machines and judges, by the configuration's prices"
        found.append(headline(f"{spent[-1]:,.2f} {currency}".strip(), "spent", about))
    return found


def _held_out_headlines(run: RunFiles) -> list[dict[str, str]]:
    """Headlines of all tags first; with one tag its mean would say the same twice."""
    evaluations = [scored for row in run.metrics if (scored := held_out(_finite(row)))]
    tags = list(dict.fromkeys(tag for by_tag in evaluations for tag in by_tag))
    if len(tags) == 2 and MEAN in tags:
        tags.remove(MEAN)
    found = []
    for tag in tags:
        history = [by_tag[tag] for by_tag in evaluations if tag in by_tag]
        word = "held-out success" if tag == MEAN else f"held out: {tag}"
        about = [history[-1].of]
        if len(history) == 1:
            about.append("one validation so far")
        else:
            about += [f"{history[0]} before", change(history[0], history[-1])]
        found.append(headline(_rate(history[-1]), word, _joined(about)))
    return found


def _rate(score: Score) -> str:
    return "–" if score.rate is None else percent(score.rate)


def _joined(texts: Sequence[str]) -> str:
    return ", ".join(text for text in texts if text).replace("-", "−")


def _finite(row: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in row.items() if math.isfinite(value)}


def percent(share: float) -> str:
    """`45.0%`."""
    return f"{share:.1%}"


def number(value: float) -> str:
    """Four digits, or all of an integer: `0.03125`, `-1.5`, `12,345`."""
    return (f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}").replace("-", "−")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def ended_view(run: RunFiles) -> list[tuple[str, float]]:
    """How the episodes of a run ended, and how many so: the ledger counts from its start."""
    names = [name for name in run.names("ledger/") if name != "ledger/started" and run.known(name)]
    return [(name.removeprefix("ledger/"), run.known(name)[-1]) for name in names]


def failed_view(run: RunFiles) -> list[tuple[str, float]]:
    """Failed episodes of a run by `boundary/kind`, the most frequent first: logged step by step."""
    counts = [(name.removeprefix("failures/"), math.fsum(run.known(name))) for name in run.names("failures/")]
    return sorted((one for one in counts if one[1]), key=lambda one: -one[1])


def staleness_view(run: RunFiles) -> list[list[float]]:
    """`[staleness, trajectories]` over the run, in order."""
    prefix = "staleness/count_"
    counts = {int(name.removeprefix(prefix)): math.fsum(run.known(name)) for name in run.names(prefix)}
    return [[staleness, counts[staleness]] for staleness in sorted(counts)]


def metrics_view(run: RunFiles) -> list[tuple[str, float, float, float, float]]:
    """Each metric's name and its first, last, lowest and highest value.

    Left out are values that are not finite, and each engine's own metrics, of which there may be hundreds.
    """
    names = [name for name in run.names("") if name not in _NO_METRICS and not is_of_one_engine(name)]
    known = ((name, run.known(name)) for name in names)
    return [(name, values[0], values[-1], min(values), max(values)) for name, values in known if values]


def is_of_one_engine(name: str) -> bool:
    """Whether a metric is `engine/<name>/...`."""
    return name.startswith("engine/") and name.count("/") > 1


def curves_view(
    metrics: Sequence[Mapping[str, float]], prefixes: tuple[str, ...] = ("",)
) -> dict[str, list[list[float]]]:
    """`{name: [[step, value], ...]}` of metrics with a prefix: at most `MAX_POINTS`, all finite."""
    curves = {}
    for name in sorted(set[str]().union(*metrics) - _NO_METRICS):
        if name.startswith(prefixes):
            known = [row for row in metrics if name in row and math.isfinite(row[name])]
            curves[name] = thinned([[row["step"], row[name]] for row in known], MAX_POINTS)
    return {name: points for name, points in curves.items() if points}


def thinned(points: Sequence[Sequence[float]], limit: int) -> list[list[float]]:
    """At most `limit` points: means of equally many neighbors; the last point keeps its own step."""
    if len(points) <= limit:
        return [list(point) for point in points]
    size = math.ceil(len(points) / limit)
    chunks = [points[start : start + size] for start in range(0, len(points), size)]
    return [[chunk[-1][0], math.fsum(value for _, value in chunk) / len(chunk)] for chunk in chunks]


def headline_view(metrics: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """What a list of runs shows: newest reward and success, held-out success at first and last."""
    evaluations = [found[MEAN] for row in metrics if (found := held_out(_finite(row)))]
    shown = evaluations[:1] + evaluations[1:][-1:]
    success = [[row["step"], row["success/mean"]] for row in metrics if "success/mean" in row]
    known = [point for point in success if math.isfinite(point[1])]
    rewards = [row["reward/mean"] for row in metrics if "reward/mean" in row]
    return {
        "success": thinned(known, 60),
        "reward": finite(rewards[-1]) if rewards else None,
        "before": shown[0].rate if shown else None,
        "after": shown[1].rate if len(shown) > 1 else None,
        "held_out": [str(score) for score in shown],
        "held_out_change": change(*shown) if len(shown) == 2 else "",
    }


def _recent_mean(values: Sequence[float]) -> float | None:
    known = [value for value in values[-10:] if math.isfinite(value)]
    return math.fsum(known) / len(known) if known else None
