"""`envsdk envs`: what is installed, one line each, and `--play ENV_ID` to play one by hand."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from envsdk.base import registry
from envsdk.base.display.model_command import command_of
from envsdk.base.display.terminal import say
from envsdk.base.settings.options import Argument, Option, Options
from envsdk.config.env_arguments import env_config_from, spec_named
from envsdk.config.env_defaults import turn_limit
from envsdk.contracts.env import EnvSpec, TextEnv
from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.play import HELP, play


class EnvsOptions(Options):
    """What `envsdk envs` takes."""

    arguments: Annotated[tuple[str, ...], Argument("KEY=VALUE")] = ()
    """With --play: arguments of the environment, such as size=6."""
    environment: Annotated[str | None, Option("--play", "-p", metavar="ENV_ID")] = None
    """Play this one in the terminal; package.module:Class works too."""
    seed: Annotated[int, Field(ge=0)] = 0
    """With --play: which task."""
    as_json: Annotated[bool, Option("--json")] = False
    """Print the list as JSON."""


def command(options: EnvsOptions) -> None:
    """List the environments that are installed, or play one of them by hand."""
    if options.environment is not None:
        _play(options.environment, env_config_from(options.arguments), options.seed)
    elif options.arguments:
        raise ConfigurationError(f"{options.arguments[0]!r}: to play an environment, write --play ENV_ID")
    elif options.as_json:
        say(json.dumps([described(spec) for spec in _installed()], indent=2))
    else:
        _print_table()


def described(spec: EnvSpec | ConfigurationError) -> dict[str, Any]:
    """What a line of the list says, as JSON; an installed package that does not load has an `error`."""
    if isinstance(spec, ConfigurationError):
        return {"error": str(spec)}
    return {
        "id": spec.id,
        "max_steps": _usual_limit(spec),
        "isolation": spec.isolation.value,
        "reset_timeout_s": spec.reset_timeout_s,
        "step_timeout_s": spec.step_timeout_s,
        "description": spec.description,
        "action_format": spec.action_format,
        "missing": registry.missing(spec),
    }


def _usual_limit(spec: EnvSpec) -> int | None:
    """Turns that an episode has at most without any argument, as far as that is known here."""
    if spec.max_steps is not None or registry.missing(spec):
        return spec.max_steps
    try:
        return turn_limit(spec, {})
    except ConfigurationError:
        return None


def _installed() -> Iterator[EnvSpec | ConfigurationError]:
    """Every spec; one that does not load is no reason to hide the others."""
    for id in registry.known_ids():
        try:
            yield registry.spec(id)
        except ConfigurationError as error:
            yield error


def _print_table() -> None:
    from envsdk.base.display.console import ResultTable, TerminalConsole

    table = ResultTable("id", "turns", "description", num_left=3, box=None, padding=(0, 1))
    table.columns[0].no_wrap = True
    problems = []
    for spec in _installed():
        if isinstance(spec, ConfigurationError):
            problems.append(spec)
            continue
        limit = _usual_limit(spec)
        turns = "any" if limit is None else str(limit)
        needs = "".join(f" (needs {command})" for command in registry.missing(spec))
        table.add_row(spec.id, turns, f"{spec.description}{needs}")
    TerminalConsole().print(table)
    for problem in problems:
        say(f"cannot be loaded: {problem}", err=True)


def _play(name: str, env_config: dict[str, Any], seed: int) -> None:
    spec = spec_named(name)
    env = registry.make(spec, **env_config)
    prompt = registry.system_prompt(spec, env_config).replace("{role}", "each role in its turn")
    _say(f"{spec.id}, seed {seed}. {prompt}\n{HELP}\n")
    lines = _typed()
    try:
        while True:
            played = play(env, lines, _say, seed=seed, max_turns=_turn_limit(spec, env))
            _say(str(played))
            answer = _again() if played.is_over and sys.stdin.isatty() else ""
            if answer not in ("y", "n"):
                break
            seed += answer == "n"
    finally:
        env.close()


def _again() -> str:
    try:
        return input("Again? y: the same task, n: the next one, Enter: stop. ").strip().lower()[:1]
    except EOFError:
        say("")
        return ""


def _turn_limit(spec: EnvSpec, env: TextEnv) -> int | None:
    """The spec's, unless the environment ends episodes by itself."""
    return None if isinstance(getattr(env, "max_steps", None), int) else spec.max_steps


def _say(text: str) -> None:
    """Lines too long for the terminal break between words."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        wrap = textwrap.TextWrapper(width, replace_whitespace=False, drop_whitespace=False).fill
        text = "\n".join(line if len(line) <= width else wrap(line) for line in text.split("\n"))
    say(text, flush=True)


def _typed() -> Iterator[str]:
    # Importing it gives `input` arrow keys and a history.
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401
    while True:
        try:
            yield input("> ")
        except EOFError:
            say()
            return


app, main = command_of(EnvsOptions, command, name="envsdk envs")

if __name__ == "__main__":
    sys.exit(main())
