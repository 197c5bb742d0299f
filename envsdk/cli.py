"""The console command `envsdk`, and the one boundary where errors become messages and exit codes.

Every command-line module (`envsdk/train.py`, `envsdk/collect.py` ...) has a Typer app and

    def main(argv: list[str] | None = None) -> int:
        return run_app(app, argv, name="envsdk collect")

    if __name__ == "__main__":
        sys.exit(main())

so `envsdk collect X` and `python -m envsdk.collect X` are the same. Exit codes: 0 done, 1 failed,
2 wrong input, 130 interrupted (Ctrl-C), 141 the reader of the output went away. No failed run
exits 0.
"""

from __future__ import annotations

import errno
import functools
import os
import sqlite3
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, ParamSpec

import typer

from envsdk.extras import missing_package
from envsdk.failures import INTERRUPTED, ConfigurationError, EnvsdkError

P = ParamSpec("P")

PIPE_CLOSED = 141

_ANOTHER_DISK = "write to another disk (`output_dir`, `--out`, ENVSDK_CACHE)"
_ADVICE = {
    errno.ENOSPC: f"the disk is full: free some space, or {_ANOTHER_DISK}",
    errno.EDQUOT: f"the disk quota is used up: free space, or {_ANOTHER_DISK}",
    errno.EROFS: "the file system is read-only: choose another folder",
    errno.EACCES: "permission denied: change the permissions, or choose another folder",
    errno.EMFILE: "too many open files: raise the limit with `ulimit -n 65536`",
    errno.EADDRINUSE: "the port is in use: stop the process that holds it, or choose another port",
}
"""What to do about operating system errors that are nobody's bug."""

_NO_ROOM = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}
"""SQLite's words for the same: indices are in the cache folder."""


def run_command(function: Callable[P, int | None]) -> Callable[P, int]:
    """Make `function` return an exit code, whatever happens in it: the error boundary as a decorator."""

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            code = function(*args, **kwargs) or 0
            sys.stdout.flush()
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the named boundary
            return report_error(error)
        return code

    return guarded


def run_app(
    app: typer.Typer, argv: list[str] | None = None, *, name: str, tells_interrupt: bool = True
) -> int:
    """Run a Typer app on `argv` (the process's own arguments when None) inside the error boundary.

    `tells_interrupt`: it forwards to no other app, which would have told of a Ctrl-C already.
    """
    # Typer's tables cut long options off where the terminal is narrow, and give flags a value, `<bool>`.
    app.rich_markup_mode = None

    @run_command
    def run() -> int | None:
        result = app(args=argv, prog_name=name, standalone_mode=False)
        if result == INTERRUPTED and tells_interrupt:
            # What Typer makes of a KeyboardInterrupt.
            raise KeyboardInterrupt
        return result if isinstance(result, int) else None

    return run()


def report_error(error: BaseException) -> int:
    """Say on stderr what went wrong; returns the exit code.

    One message for what the user can mend; a traceback and a request to report it for the rest.
    """
    if isinstance(error, BrokenPipeError):
        # Nobody reads the output any more; without this the interpreter complains at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        _print_error("interrupted")
        return INTERRUPTED
    known = next((link for link in _chain(error) if isinstance(link, EnvsdkError)), None)
    if known is not None:
        if known.exit_code == INTERRUPTED:
            print(_first_hand(known), file=sys.stderr)
        else:
            _print_error(_first_hand(known))
        return known.exit_code
    usage = _usage_error(error)
    if usage is not None:
        if usage:
            _print_error(usage)
        return ConfigurationError.exit_code
    for link in _chain(error):
        if isinstance(link, OSError) and link.errno in _ADVICE:
            where = f"{link.filename}: " if link.filename else ""
            _print_error(f"{where}{_ADVICE[link.errno]}")
            return 1
        missing = missing_package(link) if isinstance(link, ModuleNotFoundError) else None
        if missing is not None:
            _print_error(missing)
            return ConfigurationError.exit_code
        if isinstance(link, sqlite3.Error) and getattr(link, "sqlite_errorcode", 0) & 0xFF in _NO_ROOM:
            _print_error(f"{link}: free some space, or set ENVSDK_CACHE to a folder on another disk")
            return 1
        if isinstance(link, MemoryError):
            _print_error("out of memory: use fewer environments (`num_env_groups`) or a smaller batch")
            return 1
    traceback.print_exception(error)
    _print_error(
        f"this is a bug in envsdk or in a plug-in; please report the lines above ({type(error).__name__})"
    )
    return 1


def _chain(error: BaseException) -> list[BaseException]:
    """The error and what it was raised from, outermost first.

    Ray wraps what an actor raised and keeps the original in `cause`.
    """
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in links:
        links.append(link)
        cause = getattr(link, "cause", None)
        link = cause if isinstance(cause, BaseException) else link.__cause__
    return links


def _first_hand(error: EnvsdkError) -> str:
    """The message as it was raised. Ray's copy of an actor's error has the remote traceback as its text."""
    cause = getattr(error, "cause", None)
    return str(cause if isinstance(cause, EnvsdkError) else error)


def _usage_error(error: BaseException) -> str | None:
    """The message of a wrong command line; None when `error` is something else.

    Typer brings its own copy of Click, hence no class to name.
    """
    format_message = getattr(error, "format_message", None)
    if format_message is None:
        return None
    context = getattr(error, "ctx", None)
    if not str(error):
        # No arguments: the help is on the screen already.
        return ""
    if context is None:
        return str(format_message())
    option = str(getattr(error, "option_name", ""))
    takes_keys = any(parameter.metavar == "KEY=VALUE" for parameter in context.command.params)
    is_key = option and takes_keys and not getattr(error, "possibilities", None)
    keys = f". A key is written without dashes: {option.lstrip('-')}=VALUE" if is_key else ""
    return f"{format_message()}{keys}\nTry `{context.command_path} --help`."


def _print_error(message: str) -> None:
    print(f"error: {message}", file=sys.stderr, flush=True)


app = typer.Typer(
    name="envsdk",
    no_args_is_help=True,
    add_completion=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"envsdk {version('envsdk')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Gym-style environments and asynchronous agentic rollouts for training LLM agents."""


_FORWARD = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


def _forward(module: str, context: typer.Context) -> None:
    code = import_module(module).main(list(context.args))
    raise typer.Exit(code)


@app.command(add_help_option=False, context_settings=_FORWARD)
def train(context: typer.Context) -> None:
    """Train a policy: `envsdk train agentic_async.yaml`."""
    _forward("envsdk.train", context)


@app.command(add_help_option=False, context_settings=_FORWARD)
def collect(context: typer.Context) -> None:
    """Play episodes with no trainer and write them as a data set."""
    _forward("envsdk.collect", context)


@app.command(add_help_option=False, context_settings=_FORWARD)
def evaluate(context: typer.Context) -> None:
    """Play a frozen task list and print a table of results."""
    _forward("envsdk.evaluate", context)


@app.command(add_help_option=False, context_settings=_FORWARD)
def replay(context: typer.Context) -> None:
    """Play a data set again, or give it other rewards."""
    _forward("envsdk.replay", context)


@app.command(add_help_option=False, context_settings=_FORWARD)
def sft(context: typer.Context) -> None:
    """Fine-tune a policy on a data set."""
    _forward("envsdk.sft", context)


@app.command(add_help_option=False, context_settings=_FORWARD)
def serve(context: typer.Context) -> None:
    """Serve a model over OpenAI's HTTP protocol; record sessions."""
    _forward("envsdk.serve", context)


@app.command(add_help_option=False, context_settings=_FORWARD)
def serve_env(context: typer.Context) -> None:
    """Serve an environment over OpenEnv's protocol."""
    _forward("envsdk.serve_env", context)


@app.command(add_help_option=False, context_settings=_FORWARD)
def init(context: typer.Context) -> None:
    """Make a package with an environment of your own."""
    _forward("envsdk.init", context)


@app.command(add_help_option=False, context_settings=_FORWARD)
def check(context: typer.Context) -> None:
    """Check that an environment keeps its contract."""
    _forward("envsdk.check", context)


@app.command(add_help_option=False, context_settings=_FORWARD)
def report(context: typer.Context) -> None:
    """Write a run's report.html."""
    _forward("envsdk.report", context)


@app.command(add_help_option=False, context_settings=_FORWARD)
def view(context: typer.Context) -> None:
    """Look at runs and data sets in a browser."""
    _forward("envsdk.view", context)


@app.command()
def explain(
    source: Annotated[str, typer.Argument(metavar="FILE", help="YAML file, or a shipped example's name.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Replace single keys.")
    ] = None,
) -> None:
    """Print every key of a configuration and where it comes from."""
    from envsdk.config import explain as explain_config
    from envsdk.config import load_config

    print(explain_config(load_config(source, overrides or [])))


@app.command(add_help_option=False, context_settings=_FORWARD)
def envs(context: typer.Context) -> None:
    """List the environments that are installed, or play one by hand."""
    _forward("envsdk.envs.__main__", context)


def main(argv: list[str] | None = None) -> int:
    return run_app(app, argv, name="envsdk", tells_interrupt=False)


if __name__ == "__main__":
    sys.exit(main())
