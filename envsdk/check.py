"""`envsdk check ENV_ID`: check that an environment keeps the contract that training relies on."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import time
from collections import Counter
from dataclasses import replace
from textwrap import indent
from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

from envsdk.base import registry
from envsdk.base.display.console import ResultTable, StatusLine, TerminalConsole
from envsdk.base.display.model_command import command_of
from envsdk.base.display.terminal import say
from envsdk.base.settings.options import Argument, Option, Options
from envsdk.config.env_arguments import EnvArguments, env_config_from, spec_named, whole_id
from envsdk.contracts.failures import ConfigurationError

if TYPE_CHECKING:
    from envsdk.testing import Outcome, Report
    from envsdk.testing.subject import Subject


class CheckOptions(Options):
    """What `envsdk check` takes."""

    environment: Annotated[str | None, Argument("ENV_ID")] = None
    """A registered environment id (`envsdk envs` lists them), or package.module:Class."""
    arguments: EnvArguments = ()
    as_json: Annotated[bool, Option("--json")] = False
    """Print the report as JSON."""
    only: Annotated[tuple[str, ...], Option(metavar="CHECK")] = ()
    """Run this check or group of checks; repeat the option for more."""
    examples: Annotated[int | None, Option("--examples", "-n"), Field(ge=1)] = None
    """Examples per check: seeds and scripts of replies; when absent 50, within --budget."""
    budget: Annotated[float, Option(metavar="SECONDS"), Field(ge=1)] = 60.0
    """About how long all may take when --examples is absent; at least 5 are tried."""
    max_turns: Annotated[int, Field(ge=1)] = 1000
    """Turns within which the oracle must have solved a task."""
    timeout: Annotated[float | None, Option(metavar="SECONDS"), Field(ge=0.001)] = None
    """When a call that has not returned is ended; the spec's limits, at least 10, when absent."""
    luck: bool = False
    """Luck decides too: the oracle need not solve every task."""
    one_task: bool = False
    """There is only one task, whatever the seed."""
    observations_show_state: bool = False
    """Observations are a function of the state alone: state hashes must agree with them."""
    list_checks: Annotated[bool, Option("--list")] = False
    """List the checks and what they demand."""
    verbose: Annotated[bool, Option("--verbose", "-v")] = False
    """Report every check, not only failures."""


def command(options: CheckOptions) -> int:
    """Check that an environment keeps the contract that training relies on.

    Examples are the same in every run. A failure is printed with the smallest script found that shows it.
    The exit code is 0 when no check fails, 1 when one does, 2 for wrong input.
    """
    _need_the_kit()
    from envsdk.testing import subject as subjects
    from envsdk.testing.runner import chosen, examine, seconds_per_example
    from envsdk.testing.time_limits import NeverReturned, call, ending_calls

    checks = chosen(options.only)
    if options.list_checks:
        for check in checks:
            say(f"{check.name}\n    {check.demand}")
        return 0
    if options.environment is None:
        raise ConfigurationError(
            "name an environment: an id (`envsdk envs` lists them), or package.module:Class"
        )
    env_config = env_config_from(options.arguments)
    limits = subjects.Options(
        max_examples=options.examples or MAX_EXAMPLES,
        max_turns=options.max_turns,
        oracle_always_solves=not options.luck,
        seeds_give_tasks=not options.one_task,
        observations_show_state=options.observations_show_state,
        timeout_s=options.timeout,
        derandomize=True,
    )
    spec = spec_named(options.environment)
    subject = subjects.subject_of(whole_id(options.environment), env_config, limits)
    # Wrong arguments are no fault of the environment; never finishing its construction is.
    with contextlib.suppress(NeverReturned), ending_calls(subject.call_limits):
        with call("__init__", lambda: "building it"):
            env = registry.make(spec, **env_config)
        env.close()
    began = time.perf_counter()
    # What an environment prints must not get into the JSON.
    redirect = contextlib.redirect_stdout(sys.stderr) if options.as_json else contextlib.nullcontext()
    with redirect:
        if options.examples is None and not options.only:
            subject = _within(options.budget, subject, seconds_per_example(subject))
        ended = itertools.count(1)
        with StatusLine(TerminalConsole(stderr=True)) as line:

            def show(outcome: Outcome) -> None:
                done = f"{next(ended)} of {len(checks)} checks, {outcome.check.name}"
                line.show(f"{options.environment}: {done}")

            report = examine(subject, only=options.only, on_outcome=show)
    if options.as_json:
        say(json.dumps(report.to_json(), indent=2))
    else:
        _print(report, time.perf_counter() - began, options.verbose)
    return 0 if report.is_sound else 1


def _need_the_kit() -> None:
    try:
        import envsdk.testing  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(f"the checks need {error.name}: pip install 'envsdk[testing]'") from error


MAX_EXAMPLES, MIN_EXAMPLES = 50, 5
"""Per check, where the user names no number."""


def _within(budget_s: float, subject: Subject, per_example_s: float) -> Subject:
    """With as many examples as the budget allows; says so when they are fewer."""
    affordable = max(MIN_EXAMPLES, int(budget_s / per_example_s)) if per_example_s else MAX_EXAMPLES
    if affordable >= MAX_EXAMPLES:
        return subject
    say(
        f"{subject.name} is slow: {MAX_EXAMPLES} examples per check would take about "
        f"{per_example_s * MAX_EXAMPLES:.0f} s, so {affordable} are tried, which take about "
        f"{per_example_s * affordable:.0f} s (--budget, --examples)",
        err=True,
        flush=True,
    )
    return replace(subject, options=replace(subject.options, max_examples=affordable))


def _print(report: Report, took_s: float, verbose: bool) -> None:
    from envsdk.testing import Status

    console = TerminalConsole()
    colors = {"passed": "green", "failed": "bold red", "blocked": "yellow", "skipped": "bright_black"}
    config = " ".join(f"{key}={value}" for key, value in report.env_config.items())
    console.print(Text(f"{report.name} {config}".rstrip(), style="bold"))
    table = ResultTable("group", *Status, num_left=1 + len(Status), box=None, show_header=False)
    for group in dict.fromkeys(outcome.check.group for outcome in report.outcomes):
        counts = [
            Text(f"{count} {status.value}", style=colors[status.value]) if count else Text()
            for status in Status
            if (count := sum(o.status is status and o.check.group == group for o in report.outcomes)) >= 0
        ]
        table.add_row(f"  {group}", *counts)
    console.print(table)
    for outcome in report.outcomes:
        if outcome.status is Status.FAILED:
            _print_failure(console, outcome)
        elif verbose:
            reason = f"  ({outcome.message})" if outcome.message else ""
            line = Text(f"{outcome.status.value:8}", style=colors[outcome.status.value])
            console.print(line.append(f"{outcome.check.name}{reason}", style="default"))
            console.print(Text(f"        {outcome.check.demand}", style="bright_black"))
    for culprit, number in Counter(outcome.message for outcome in report.having(Status.BLOCKED)).items():
        console.print(Text(f"\n{number} checks are blocked: {culprit}", style=colors["blocked"]))
    counted = ", ".join(
        f"{len(report.having(status))} {status.value}" for status in Status if report.having(status)
    )
    verdict = "sound" if report.is_sound else "not sound"
    console.print(
        Text(f"\n{verdict}: {counted} in {took_s:.1f} s", style="green" if report.is_sound else "red")
    )
    if spent := _spent(report):
        told = f"{report.num_examples} examples per check; the environment took {spent}"
        console.print(told, soft_wrap=True)


def _spent(report: Report) -> str:
    """What its dearest calls took; empty where none took a noticeable time."""
    dearest = sorted(report.costs.items(), key=lambda item: item[1].seconds, reverse=True)[:3]
    return ", ".join(
        f"{each.seconds:.1f} s for {each.num_calls} x {method} ({_duration(each.mean_s)} each)"
        for method, each in dearest
        if each.seconds >= _NOTICEABLE_S
    )


_NOTICEABLE_S = 0.5


def _duration(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds >= 1 else f"{seconds * 1000:.2g} ms"


def _print_failure(console: Console, outcome: Outcome) -> None:
    console.print(Text("\nFAILED ", style="bold red").append(outcome.check.name, style="bold"))
    console.print(Text(indent(outcome.message, "  ")))
    console.print(Text(f"  Demanded: {outcome.check.demand}\n", style="bright_black"))
    # The terminal breaks long lines by itself, so that what is copied can be run.
    console.print(Syntax("", "python", background_color="default").highlight(outcome.script), soft_wrap=True)


app, main = command_of(CheckOptions, command, name="envsdk check")

if __name__ == "__main__":
    sys.exit(main())
