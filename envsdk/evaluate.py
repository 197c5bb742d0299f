"""`envsdk evaluate ENV_OR_YAML`: play a frozen task list, print a table, write JSON.

evaluation = evaluate("envsdk/FrozenLake-v1", policy="oracle", num_episodes=100)
evaluation.total.success_rate
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich.box
from rich.table import Table

from envsdk.base.display.console import TerminalConsole
from envsdk.base.display.episode_progress import EpisodeProgress
from envsdk.base.display.model_command import command_of
from envsdk.base.display.terminal import say
from envsdk.base.store.atomic import make_folder, write_json_atomically
from envsdk.base.store.tally import Tally, wilson_interval
from envsdk.contracts.env import AnyTextEnv, EnvSpec
from envsdk.contracts.failures import ConfigurationError, RolloutStalled
from envsdk.contracts.trajectory import Trajectory
from envsdk.rollouts.play import evaluation
from envsdk.rollouts.play.evaluation import EvaluateOptions, Evaluation
from envsdk.rollouts.play.own_policies import form_or_name
from envsdk.rollouts.play.pass_at_k import shown_ks
from envsdk.rollouts.play.rollout_arguments import own_environment
from envsdk.tracking.learning_signs import no_action_read
from envsdk.trainers.warm_start import make_tiny_policy

if TYPE_CHECKING:
    from envsdk.config import RunConfig

__all__ = ["EvaluateOptions", "Evaluation", "evaluate"]


def evaluate(
    source: str | Path | RunConfig | EnvSpec | Callable[..., AnyTextEnv],
    *,
    supervised: bool = False,
    on_start: Callable[[int, int], None] | None = None,
    on_played: Callable[[Trajectory], None] | None = None,
    **options: Any,
) -> Evaluation:
    """Play the first tasks of a split, over all tags.

    `source` may also be an environment's class, or a function that makes one, which play in this process.
    `options` are the fields of `EvaluateOptions`; `policy` may also be a function or a Policy object, as for
    `envsdk.rollout`, which plays in this process. The rest is as in
    `envsdk.rollouts.play.evaluation.evaluate`.
    """
    form = form_or_name(options.get("policy"))
    if form is not None:
        del options["policy"]
    with own_environment(source) as known:
        return evaluation.evaluate(
            EvaluateOptions.of(source=known, **options),
            form=form,
            supervised=supervised,
            on_start=on_start,
            on_played=on_played,
            make_tiny_policy=make_tiny_policy,
        )


def command(options: EvaluateOptions) -> None:
    """Play a frozen task list and print success, reward and failures by tag.

    The same seed gives every policy the same tasks: compare two policies by evaluating both.
    """
    json_file = options.json_file
    if json_file is not None:
        # An evaluation may take long: that its result cannot be written should be known before.
        make_folder(json_file.absolute().parent)
        if json_file.is_dir():
            raise ConfigurationError(f"--json: {json_file} is a folder: name a file")
    with EpisodeProgress("evaluating", total=options.num_episodes or 0) as progress:
        evaluated = evaluation.evaluate(
            options,
            supervised=True,
            on_start=progress.start,
            on_played=lambda trajectory: progress.played(
                1, int(trajectory.success), int(trajectory.failure is not None)
            ),
            make_tiny_policy=make_tiny_policy,
        )
    # In a file or a pipe a row of the table stays one line.
    console = TerminalConsole(width=None if sys.stdout.isatty() else 240)
    console.print(results_table(evaluated))
    if evaluated.samples_per_task > 1:
        console.print(passes_table(evaluated))
    if json_file is not None:
        write_json_atomically(json_file, evaluated.to_json())
    total = evaluated.total
    if total.num_failed and total.num_scored:
        say(f"failures: {total.describe_failures()}")
    if unread := no_action_read(evaluated.trajectories):
        say(f"warning: {unread}", err=True)
    if not total.num_scored:
        raise RolloutStalled(f"all {total.num_episodes} episodes failed: {total.describe_failures()}")
    if problem := evaluated.problem:
        raise RolloutStalled(problem)


def results_table(evaluation: Evaluation) -> Table:
    """Results by tag, and their total where there are several tags."""
    config = evaluation.config
    table = Table(
        title=f"{config['policy']}, split {config['split']}, seed {config['seed']}",
        box=rich.box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("tag", overflow="fold")
    for header in ("episodes", "success", "95% interval", "reward", "turns", "failed"):
        table.add_column(header, justify="right", no_wrap=True)
    by_tag = evaluation.by_tag
    for tag, tally in by_tag.items():
        table.add_row(tag, *_row(tally, _interval(evaluation, tally, tag)))
    if len(by_tag) > 1:
        table.add_section()
        table.add_row("all", *_row(evaluation.total, _interval(evaluation, evaluation.total, None)))
    return table


def passes_table(evaluation: Evaluation) -> Table:
    """pass@k by tag, for tasks that were played several times."""
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("tag", overflow="fold")
    for header in ("k", "pass@k", "95% interval", "tasks", "left out"):
        table.add_column(header, justify="right", no_wrap=True)
    tags = list(evaluation.by_tag)
    for tag in [*tags, None] if len(tags) > 1 else tags:
        for k in shown_ks(evaluation.samples_per_task):
            found = evaluation.pass_at(k, tag)
            low, high = found.interval
            table.add_row(
                "all" if tag is None else tag,
                str(k),
                "-" if found.rate is None else f"{found.rate:.1%}",
                f"{100 * low:.1f}-{high:.1%}" if found.num_tasks else "-",
                str(found.num_tasks),
                str(found.num_left_out),
            )
    return table


def _interval(evaluation: Evaluation, tally: Tally, tag: str | None) -> tuple[float, float]:
    """Interval of the success rate; tasks are the units where each was played several times."""
    if evaluation.samples_per_task > 1:
        return evaluation.pass_at(1, tag).interval
    return wilson_interval(tally.num_successes, tally.num_scored)


def _row(tally: Tally, interval: tuple[float, float]) -> list[str]:
    low, high = interval

    def shown(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    return [
        str(tally.num_episodes),
        # The columns beside it say of how many, unless some failed.
        shown(tally.success_rate, ".1%") + (f" of {tally.num_scored}" if tally.num_failed else ""),
        f"{100 * low:.1f}-{high:.1%}" if tally.num_scored else "-",
        shown(tally.mean_reward, ".3f"),
        shown(tally.mean_turns, ".1f"),
        str(tally.num_failed),
    ]


app, main = command_of(EvaluateOptions, command, name="envsdk evaluate")

if __name__ == "__main__":
    sys.exit(main())
