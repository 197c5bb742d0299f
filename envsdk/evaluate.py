"""`envsdk eval NAME...`, or `envsdk evaluate`: play frozen task lists, print a table, write logs and JSON.

evaluation = evaluate("sums", model="models/smollm2", out="logs/sums")
evaluation.total.success_rate
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from envsdk.base.display.command_line import canonical_command
from envsdk.base.display.console import ResultTable, TerminalConsole
from envsdk.base.display.episode_progress import EpisodeProgress
from envsdk.base.display.model_command import command_of
from envsdk.base.display.terminal import say
from envsdk.base.plugins import plugin_names
from envsdk.base.settings.options import Argument, Option
from envsdk.base.store.atomic import make_folder, write_json_atomically
from envsdk.base.store.tally import Tally, unscorable, wilson_interval
from envsdk.config.plugins import environment_notes
from envsdk.config.start_checks import prompt_notes
from envsdk.contracts.env import AnyTextEnv, EnvSpec
from envsdk.contracts.failures import ConfigurationError, Interrupted, RolloutStalled
from envsdk.contracts.players import Result
from envsdk.contracts.trajectory import Trajectory
from envsdk.rollouts.play import evaluation
from envsdk.rollouts.play.eval_spec import (
    ENTRY_POINT_GROUP,
    EvalSpec,
    evaluations_named,
    registered_evaluation,
)
from envsdk.rollouts.play.evaluation import EvaluateOptions, Evaluation
from envsdk.rollouts.play.model import find_model_folder
from envsdk.rollouts.play.own_policies import form_or_name
from envsdk.rollouts.play.pass_at_k import shown_ks
from envsdk.rollouts.play.rollout_arguments import own_environment
from envsdk.tracking.learning_signs import no_action_read
from envsdk.trainers.warm_start import make_tiny_policy

if TYPE_CHECKING:
    from envsdk.config import RunConfig

__all__ = ["EvalSpec", "EvaluateOptions", "Evaluation", "evaluate"]

LOGS = Path("evaluations")
"""Folder of the logs of `envsdk eval`."""


def evaluate(
    source: str | Path | RunConfig | EvalSpec | EnvSpec | Callable[..., AnyTextEnv],
    *,
    supervised: bool = False,
    on_start: Callable[[int, int], None] | None = None,
    on_played: Callable[[Trajectory], None] | None = None,
    **options: Any,
) -> Evaluation:
    """Play the first tasks of a split, over all tags.

    `source` may also be an `EvalSpec`, or an environment's class, or a function that makes one, which play in
    this process. `options` are the fields of `EvaluateOptions`; `policy` may also be a function or a Policy
    object, as for `envsdk.rollout`, which plays in this process. With `out`, a folder, every episode is kept
    there and what was played before is not played again. The rest is as in
    `envsdk.rollouts.play.evaluation.evaluate`.
    """
    form = form_or_name(options.get("policy"))
    if form is not None:
        del options["policy"]
    spec = source if isinstance(source, EvalSpec) else None
    with own_environment(source if spec is None else spec.name) as known:
        return evaluation.evaluate(
            EvaluateOptions.of(source=known, **options),
            spec=spec,
            form=form,
            supervised=supervised,
            on_start=on_start,
            on_played=on_played,
            make_tiny_policy=make_tiny_policy,
        )


class CommandOptions(EvaluateOptions):
    """What `envsdk eval` takes."""

    shown = (
        "names", "list_all", "num_episodes", "samples_per_task", "policy", "epsilon", "models", "opponent",
        "greedy", "seed", "split", "tags", "reward", "endpoint", "endpoint_model", "api_key_env", "replies",
        "concurrency", "out", "json_file",
    )  # fmt: skip

    source: str = ""
    names: Annotated[tuple[str, ...], Argument("NAME|KEY=VALUE")] = ()
    """Evaluations (--list), YAML files that define some (or FILE.yaml:NAME), files of prompts (--reward),
    environments (`envsdk envs`), YAML files of runs and names of shipped examples. KEY=VALUE replaces single
    keys of the run, or arguments of the environment."""
    list_all: Annotated[bool, Option("--list")] = False
    """List the evaluations of the named files, or those of installed packages."""
    models: Annotated[tuple[Path, ...], Option("--model", metavar="FOLDER_OR_CHECKPOINT")] = ()
    """For --policy model: a Hugging Face folder, a run, its checkpoints/best or step_N. The YAML's `pretrain`
    when absent. Repeat the option to compare models on the same tasks."""

    def asked(self) -> tuple[list[tuple[EvaluateOptions, EvalSpec | None]], list[str]]:
        """Each evaluation under each model, and which rows are not asked. ConfigurationError names the first
        that cannot be played."""
        own = self.model_fields_set & EvaluateOptions.model_fields.keys() - {"out"}
        values = {name: getattr(self, name) for name in own}
        values["overrides"] = tuple(each for each in self.names if "=" in each)
        found: list[tuple[EvaluateOptions, EvalSpec | None]] = []
        notes: list[str] = []
        for name in (each for each in self.names if "=" not in each):
            options = EvaluateOptions.of(**values | {"source": name})
            specs: Sequence[EvalSpec | None] = evaluations_named(name, reward=self.reward)
            for spec in specs or (None,):
                played = evaluation.source_of_evaluation(options, spec)
                num_tasks = options.num_episodes or played.config.val_batch_size
                tags = played.episodes_by_tag(num_tasks, split=options.split, tags=options.tags)
                notes += [*prompt_notes(played.config), *environment_notes(played.config, tags)]
                models = [options.model_copy(update={"model": model}) for model in self.models]
                found += [(each, spec) for each in models or [options]]
        if not found:
            raise ConfigurationError("name an evaluation, an environment or a YAML file; see --list")
        for model in self.models:
            find_model_folder(model)
        return found, notes


def command(options: CommandOptions) -> None:
    """Play evaluations, environments or a run's tasks; print success, reward and failures by tag.

    The same seed gives every policy the same tasks. A log keeps every episode, in the folder `evaluations`
    unless --out says otherwise: the same command continues where it stopped, and `envsdk view evaluations`
    shows the logs.
    """
    if options.list_all:
        _list(options.names)
        return
    asked, notes = options.asked()
    for note in dict.fromkeys(notes):
        say(f"note: {note}", err=True)
    json_file = options.json_file
    if json_file is not None:
        # An evaluation may take long: that its result cannot be written should be known before.
        make_folder(json_file.absolute().parent)
        if json_file.is_dir():
            raise ConfigurationError(f"--json: {json_file} is a folder: name a file")
    try:
        played = [_play(each, spec, options.out, is_only=len(asked) == 1) for each, spec in asked]
    except KeyboardInterrupt:
        raise Interrupted("interrupted: the same command continues where it stopped") from None
    _print(played)
    if json_file is not None:
        found = [each.to_json(_baseline(each, played)) for each in played]
        several = {"format": "envsdk.evaluations/1", "evaluations": found}
        write_json_atomically(json_file, found[0] if len(found) == 1 else several)
    problems = [
        each.problem
        if each.total.num_scored
        else f"all {each.total.num_episodes} episodes failed: {each.total.describe_failures()}"
        for each in played
    ]
    if any(problems):
        raise RolloutStalled("\n".join(filter(None, problems)))


def _play(options: EvaluateOptions, spec: EvalSpec | None, out: Path | None, *, is_only: bool) -> Evaluation:
    """Play one of the evaluations that were asked for; with several, `out` holds their logs."""
    title = "evaluating" if is_only else f"evaluating {options.source if spec is None else spec.name}"
    with EpisodeProgress(title, total=options.num_episodes or 0) as progress:
        return evaluation.evaluate(
            options.model_copy(update={"out": out if is_only else None}),
            spec=spec,
            logs=out or LOGS,
            command=canonical_command("eval" if sys.argv[1:2] == ["eval"] else "evaluate", sys.argv),
            supervised=True,
            on_start=progress.start,
            on_turns=progress.turns,
            on_played=lambda trajectory: progress.played(
                1, int(trajectory.success), int(trajectory.failure is not None)
            ),
            make_tiny_policy=make_tiny_policy,
        )


def _list(names: Sequence[str]) -> None:
    """Print the evaluations of files, or all registered ones."""
    if names:
        specs = [spec for name in names for spec in evaluations_named(name)]
        if not specs:
            raise ConfigurationError(f"--list: {', '.join(names)}: there is no evaluation")
    else:
        specs = [registered_evaluation(name) for name in plugin_names(ENTRY_POINT_GROUP)]
    table = ResultTable("name", "version", "tags", "about", num_left=4)
    for spec in specs:
        table.add_row(spec.name, str(spec.version), ", ".join(spec.custom_envs), spec.about)
    TerminalConsole().print(table)


def _print(played: Sequence[Evaluation]) -> None:
    """The tables, what failed, and where the episodes are."""
    console = TerminalConsole()
    console.print(results_table(*played))
    if any(each.by_role for each in played):
        console.print(wins_table(*played))
    if any(each.samples_per_task > 1 for each in played):
        console.print(passes_table(*played))
    for each in played:
        name = f"{each.name}: " if len(played) > 1 else ""
        for line in each.total.failed_tasks():
            say(f"{name}{line}")
        for warning in filter(None, (no_action_read(each.trajectories), unscorable(each.trajectories))):
            say(f"warning: {name}{warning}", err=True)
    log = played[0].log
    if log is not None:
        say(f"look at the episodes with: envsdk view {log if len(played) == 1 else log.parent}")


def _baseline(each: Evaluation, played: Sequence[Evaluation]) -> Evaluation:
    """The same evaluation under the first model."""
    return next(other for other in played if other.name == each.name)


def _players(played: Sequence[Evaluation]) -> list[str]:
    """Policies or, where there are several models, short names of their folders."""
    folders = [str((each.config["model"] or {}).get("folder", "")) for each in played]
    if len(set(folders)) == 1:
        return [each.config["policy"] for each in played]
    names = [Path(folder).name for folder in folders]
    if len(set(names)) == len(set(folders)):
        return names
    return [os.path.relpath(folder, os.path.commonpath(folders)) for folder in folders]


def _table(
    played: Sequence[Evaluation], *headers: str, title: str | None = None
) -> tuple[ResultTable, list[tuple[Evaluation, list[str]]]]:
    """With columns for tags and what differs between evaluations; each of these with its own cells."""
    columns = {"evaluation": [each.name for each in played], "model": _players(played)}
    shown = {header: cells for header, cells in columns.items() if len(set(cells)) > 1}
    num_left = len(shown) + 1 + (headers[0] == "role")
    table = ResultTable(*shown, "tag", *headers, num_left=num_left, title=title)
    return table, [(each, [cells[n] for cells in shown.values()]) for n, each in enumerate(played)]


def results_table(*played: Evaluation) -> ResultTable:
    """Results by evaluation, model and tag, with a total where there are several tags.

    Where there are several models, the total is compared with the first one's, task by task.
    """
    config = played[0].config
    title = f"{config['policy']}, split {config['split']}, seed {config['seed']}"
    headers = ["episodes", "success", "95% interval", "reward", "turns", "failed"]
    if any(_baseline(each, played) is not each for each in played):
        headers.append("points more")
    table, labelled = _table(played, *headers, title=title)
    for each, label in labelled:
        by_tag = each.by_tag
        difference = each.against(_baseline(each, played))
        more = "" if difference is None or _baseline(each, played) is each else str(difference)
        for tag, tally in by_tag.items():
            cells = tally.cells(_interval(each, tally, tag))
            table.add_row(*label, tag, *cells, *([more] if more and len(by_tag) == 1 else []))
        if len(by_tag) > 1:
            table.add_section()
            cells = each.total.cells(_interval(each, each.total, None))
            table.add_row(*label, "all", *cells, *([more] if more else []))
        table.add_section()
    return table


def passes_table(*played: Evaluation) -> ResultTable:
    """pass@k by evaluation, model and tag, for tasks that were played several times."""
    table, labelled = _table(played, "k", "pass@k", "95% interval", "tasks", "left out")
    for each, label in labelled:
        tags = list(each.by_tag)
        for tag in [*tags, None] if len(tags) > 1 else tags:
            for k in shown_ks(each.samples_per_task):
                found = each.pass_at(k, tag)
                low, high = found.interval
                table.add_row(
                    *label,
                    "all" if tag is None else tag,
                    str(k),
                    "-" if found.rate is None else f"{found.rate:.1%}",
                    f"{100 * low:.1f}-{high:.1%}" if found.num_tasks else "-",
                    str(found.num_tasks),
                    str(found.num_left_out),
                )
    return table


def wins_table(*played: Evaluation) -> ResultTable:
    """How games went for each role that the policy played, and for all its roles, which it takes in turn."""
    headers = ("role", "games", "wins", "95% interval", "draws", "losses", "unfinished")
    table, labelled = _table(played, *headers)
    for each, label in labelled:
        for tag in dict.fromkeys(tag for tag, _ in each.by_role):
            by_role = {role: found for (of_tag, role), found in each.by_role.items() if of_tag == tag}
            if len(by_role) > 1:
                by_role["all"] = sum(by_role.values(), Counter())
            for role, found in by_role.items():
                games = found.total()
                low, high = wilson_interval(found[Result.WIN], games)
                rates = {result: f"{found[result] / games:.1%}" for result in Result}
                interval = f"{100 * low:.1f}-{high:.1%}"
                others = (rates[each] for each in (Result.DRAW, Result.LOSS, Result.UNFINISHED))
                table.add_row(*label, tag, role, str(games), rates[Result.WIN], interval, *others)
            table.add_section()
    return table


def _interval(evaluation: Evaluation, tally: Tally, tag: str | None) -> tuple[float, float]:
    """Interval of the success rate; tasks are the units where each was played several times."""
    if evaluation.samples_per_task > 1:
        return evaluation.pass_at(1, tag).interval
    return wilson_interval(tally.num_successes, tally.num_scored)


app, main = command_of(CommandOptions, command, name="envsdk eval")

if __name__ == "__main__":
    sys.exit(main())
