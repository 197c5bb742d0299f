"""Live progress of a training run: a panel on a terminal, one line per step elsewhere.

with -> (phase | rollouts | step | validation | note)* -> leave

with ProgressDisplay("my-run", max_steps=100) as display:
    display.phase("waiting for rollouts")
    display.rollouts(ready=24, needed=64)
    display.step(StepSummary.from_metrics(metrics, step=0, max_steps=100, eta_s=420.0))
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from envsdk.base.display.console import TerminalConsole
from envsdk.base.display.scores import MEAN, Score, change, failed_kinds, gain, held_out, in_one_line, scores
from envsdk.contracts.failures import INTERRUPTED, EnvsdkError

_SPARK = "▁▂▃▄▅▆▇█"
_HISTORY = 24
_GOOD = "green"
_QUIET = "bright_black"


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """One evaluation on the frozen held-out tasks."""

    step: int
    """Steps trained before it; 0 is the policy the run began with."""
    score_by_tag: Mapping[str, Score]
    failed: str = ""
    """What failed, by kind."""

    @classmethod
    def from_metrics(cls, metrics: Mapping[str, float], *, step: int) -> Self | None:
        """Scores from the metrics `val/...`; None when the metrics hold no validation."""
        by_tag = {tag: score for tag, score in held_out(metrics).items() if tag != MEAN}
        return cls(step=step, score_by_tag=by_tag, failed=failed_kinds(metrics)) if by_tag else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary:
    """What the display shows of one finished step."""

    step: int
    """Number of the step, from 0."""
    max_steps: int
    reward_mean: float
    score_by_tag: Mapping[str, Score]
    """Scores of the batch's episodes."""
    staleness_mean: float
    staleness_max: float
    tokens_per_s: float
    """Sampled tokens per second of the whole step."""
    trainer_wait_share: float
    """Share of the step in which the trainer waited for rollouts, 0 to 1."""
    rollout_wait_share: float
    """Share of the step in which the engines had nothing to sample, 0 to 1."""
    num_workers: float = math.nan
    """Environment workers, where their number changes."""
    step_s: float = math.nan
    eta_s: float | None = None
    """Time left, seconds; None when unknown."""
    dropped_by_tag: Mapping[str, float] = field(default_factory=dict)
    """Share of the sampled tokens that was dropped, over the latest steps, 0 to 1."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Failed episodes since the last step, by `boundary/kind`."""

    @classmethod
    def from_metrics(
        cls, metrics: Mapping[str, float], *, step: int, max_steps: int, eta_s: float | None = None
    ) -> Self:
        """A state from a run's metrics by their names; what is missing shows as unknown."""
        step_s = metrics.get("time/step_s", math.nan)
        waited_s = metrics.get("time/wait_batch_s", math.nan)
        return cls(
            step=step,
            max_steps=max_steps,
            reward_mean=metrics.get("reward/mean", math.nan),
            score_by_tag={
                tag: score
                for tag, score in scores(metrics, success="success", counts="rollout").items()
                if tag != MEAN
            },
            staleness_mean=metrics.get("staleness/mean", math.nan),
            staleness_max=metrics.get("staleness/max", math.nan),
            tokens_per_s=metrics.get("rollout/tokens_per_s", math.nan),
            trainer_wait_share=waited_s / step_s if step_s > 0 else math.nan,
            rollout_wait_share=metrics.get("time/engine_idle_share", math.nan),
            num_workers=metrics.get("workers/playing", math.nan),
            step_s=step_s,
            eta_s=eta_s,
            dropped_by_tag=_by_tag(metrics, "dropped_share/"),
            failures={name: int(count) for name, count in _by_tag(metrics, "failures/").items() if count},
        )


class ProgressDisplay:
    """Shows one run's progress. `phase` and `rollouts` may be called as often as one likes."""

    def __init__(self, run_name: str, *, max_steps: int, console: Console | None = None) -> None:
        self._run_name = run_name
        self._max_steps = max_steps
        self._console = console or TerminalConsole()
        self._started_s = time.monotonic()
        self._phase = "starting"
        self._phase_started_s = self._started_s
        self._ready = 0
        self._needed = 0
        self._summary: StepSummary | None = None
        self._rewards: list[float] = []
        self._scores_of: dict[str, list[Score]] = {}
        self._validations: list[Validation] = []
        self._failures: dict[str, int] = {}
        self._spinner = Spinner("dots", style="cyan")
        self._ended: str | None = None
        self._live: Live | None = None
        if self._console.is_terminal:
            self._live = Live(
                console=self._console, get_renderable=self.__rich__, refresh_per_second=5, transient=False
            )

    def phase(self, name: str) -> None:
        """What the run is doing from now on. Without a panel, it is a line until the first step has ended."""
        if name != self._phase:
            self._phase = name
            self._phase_started_s = time.monotonic()
            self._needed = 0
            if self._live is None and self._summary is None:
                self.note(name)

    def rollouts(self, *, ready: int, needed: int) -> None:
        """Trajectories that are ready for the next batch, of those it needs; shown until the next phase."""
        self._ready = ready
        self._needed = needed

    def step(self, summary: StepSummary) -> None:
        """A step has finished."""
        self._summary = summary
        self._rewards.append(summary.reward_mean)
        for tag, score in summary.score_by_tag.items():
            self._scores_of.setdefault(tag, []).append(score)
        for kind, count in summary.failures.items():
            self._failures[kind] = self._failures.get(kind, 0) + count
        if self._live is None:
            self.note(_step_line(summary))

    def validation(self, result: Validation) -> None:
        """A validation has finished."""
        self._validations.append(result)
        if self._live is None:
            line = in_one_line(result.score_by_tag, result.failed)
            self.note(f"held-out after {result.step} steps: {line}")

    def note(self, text: str) -> None:
        """A line for the user that stays above the panel."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        if self._live is not None:
            self._ended = _ending(error)
            self._live.stop()

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = [self._head()]
        if self._scores_of or self._validations:
            parts += [Text(), self._scores()]
        if self._summary is not None:
            parts += [Text(), self._flow(self._summary)]
        if self._failures:
            parts.append(_failure_line(self._failures))
        parts += [Text(), self._now()]
        return Panel(
            Group(*parts),
            title=Text(self._run_name, style="bold"),
            title_align="left",
            border_style=_QUIET,
            padding=(0, 1),
            width=min(self._console.width, 100),
        )

    def _head(self) -> RenderableType:
        done = 0 if self._summary is None else self._summary.step + 1
        eta_s = None if self._summary is None else self._summary.eta_s
        left = "" if eta_s is None else f"{_duration(eta_s)} left"
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(no_wrap=True)
        table.add_column(ratio=1)
        table.add_column(justify="right", no_wrap=True)
        table.add_row(
            Text.assemble(("step ", _QUIET), (f"{done}", "bold"), (f"/{self._max_steps}", _QUIET)),
            ProgressBar(total=max(self._max_steps, 1), completed=done, complete_style="cyan"),
            Text.assemble(_duration(time.monotonic() - self._started_s), (f"  {left}", _QUIET)),
        )
        return table

    def _scores(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True, overflow="ellipsis", max_width=24)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column()
        table.add_row("", Text("training", _QUIET), "", Text("held-out", _QUIET))
        if self._rewards:
            table.add_row("reward", _number(self._rewards[-1]), _sparkline(self._rewards), "")
        tags = [*self._scores_of, *(tag for v in self._validations for tag in v.score_by_tag)]
        for tag in dict.fromkeys(tags):
            history = self._scores_of.get(tag, [])
            table.add_row(
                Text(tag),
                replace(history[-1], num_failed=0).text(0) if history else "",
                _sparkline([_rate(score) for score in history], low=0.0, high=1.0),
                _before_and_after([v.score_by_tag[tag] for v in self._validations if tag in v.score_by_tag]),
            )
        return table

    def _flow(self, summary: StepSummary) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for _ in range(3):
            table.add_column(no_wrap=True)
        table.add_row(
            _labeled("tokens/s", _count(summary.tokens_per_s)),
            _labeled("trainer waited", _percent(summary.trainer_wait_share)),
            _labeled("staleness", f"{_number(summary.staleness_mean)} (max {_count(summary.staleness_max)})"),
        )
        table.add_row(
            _labeled("step", _duration(summary.step_s)),
            _labeled("engines waited", _percent(summary.rollout_wait_share)),
            "" if math.isnan(summary.num_workers) else _labeled("workers", _count(summary.num_workers)),
        )
        if dropped := _dropped(summary):
            return Group(table, _labeled("dropped of sampled tokens", dropped))
        return table

    def _now(self) -> RenderableType:
        if self._ended is not None:
            return Text(f"{self._ended} after {_duration(time.monotonic() - self._started_s)}")
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(no_wrap=True, overflow="ellipsis")
        table.add_column(ratio=1)
        table.add_column(justify="right", no_wrap=True)
        self._spinner.update(
            text=Text(f"{self._phase}  {_duration(time.monotonic() - self._phase_started_s)}")
        )
        if self._needed:
            bar: RenderableType = ProgressBar(
                total=self._needed, completed=min(self._ready, self._needed), complete_style=_GOOD
            )
            table.add_row(self._spinner, bar, Text(f"{self._ready}/{self._needed} trajectories", _QUIET))
        else:
            table.add_row(self._spinner, "", "")
        return table


def _ending(error: BaseException | None) -> str:
    """How a run ended that left its display with `error`."""
    if error is None:
        return "finished"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return "stopped" if isinstance(error, EnvsdkError) and error.exit_code == INTERRUPTED else "failed"


def _step_line(summary: StepSummary) -> str:
    parts = [
        f"step {summary.step + 1}/{summary.max_steps}",
        f"reward {_number(summary.reward_mean)}",
        *(f"{tag} {score.text(0)}" for tag, score in summary.score_by_tag.items()),
        f"staleness {_number(summary.staleness_mean)}/{_count(summary.staleness_max)}",
        f"{_count(summary.tokens_per_s)} tokens/s",
        f"waited: trainer {_percent(summary.trainer_wait_share)},"
        f" engines {_percent(summary.rollout_wait_share)}",
        _duration(summary.step_s),
    ]
    if not math.isnan(summary.num_workers):
        parts.append(f"{_count(summary.num_workers)} workers")
    if dropped := _dropped(summary):
        parts.append(f"dropped of sampled tokens: {dropped}")
    if summary.failures:
        parts.append("failed: " + ", ".join(f"{count} {kind}" for kind, count in summary.failures.items()))
    if summary.eta_s is not None:
        parts.append(f"{_duration(summary.eta_s)} left")
    return " | ".join(parts)


def _dropped(summary: StepSummary) -> str:
    """The share of each tag; empty when nothing was dropped."""
    shares = summary.dropped_by_tag
    return ", ".join(f"{tag} {share:.1%}" for tag, share in shares.items()) if any(shares.values()) else ""


def _failure_line(failures: Mapping[str, int]) -> RenderableType:
    kinds = sorted(failures.items(), key=lambda item: -item[1])
    text = Text("failed ", _QUIET, no_wrap=True, overflow="ellipsis")
    return text.append(",  ".join(f"{count} {kind}" for kind, count in kinds), "yellow")


def _before_and_after(history: Sequence[Score]) -> Text:
    if not history:
        return Text()
    before, after = history[0], history[-1]
    if len(history) == 1:
        return Text(str(after))
    gained = gain(before, after)
    if gained is None:
        return Text.assemble(f"{before} → {after}  ", ("not comparable", "yellow"))
    style = _GOOD if gained > 0 else "red" if gained < 0 else _QUIET
    rates = f"{_rate(before):.1%} → {after}  "
    return Text.assemble(rates, (change(before, after), style))


def _rate(score: Score) -> float:
    return math.nan if score.rate is None else score.rate


def _labeled(label: str, value: str) -> Text:
    return Text.assemble((f"{label} ", _QUIET), value)


def _sparkline(values: Sequence[float], *, low: float | None = None, high: float | None = None) -> Text:
    known = [value for value in values if not math.isnan(value)][-_HISTORY:]
    if not known:
        return Text()
    bottom = min(known) if low is None else low
    span = (max(known) if high is None else high) - bottom
    levels = [min(7, max(0, int((value - bottom) / span * 8))) if span > 0 else 0 for value in known]
    return Text("".join(_SPARK[level] for level in levels), "cyan")


def _by_tag(metrics: Mapping[str, float], prefix: str) -> dict[str, float]:
    names = (name for name in metrics if name.startswith(prefix))
    return {name[len(prefix) :]: metrics[name] for name in names if name != f"{prefix}mean"}


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{share:.0%}"


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


def _count(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:,.0f}"


def _duration(seconds: float) -> str:
    if math.isnan(seconds):
        return "–"
    if seconds < 10:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
