"""The one boundary where errors become messages and exit codes: `run_app` runs a command line in it.

Exit codes: 0 done, 1 failed, 2 wrong input, 130 interrupted (Ctrl-C), 141 the reader of the output went away,
143 interrupted by SIGTERM.
No failed run exits 0.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import signal
import sqlite3
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from types import FrameType
from typing import ParamSpec

import typer

from envsdk.base.display.terminal import say, visible
from envsdk.base.settings.extras import missing_package
from envsdk.contracts.failures import INTERRUPTED, ConfigurationError, EnvsdkError, without_lone_surrogates

P = ParamSpec("P")

PIPE_CLOSED, TOLD_TO_END = 141, 143

_ANOTHER_DISK = "write to another disk (`output_dir`, `--out`, ENVSDK_CACHE)"
_ADVICE = {
    errno.ENOSPC: f"the disk is full: free some space, or {_ANOTHER_DISK}",
    errno.EDQUOT: f"the disk quota is used up: free space, or {_ANOTHER_DISK}",
    errno.EROFS: "the file system is read-only: choose another folder",
    errno.EACCES: "permission denied: change the permissions, or choose another folder",
    errno.EPERM: "not permitted: change the permissions, or choose another folder",
    errno.ENAMETOOLONG: "the name is too long for the file system: choose a shorter one",
    errno.ENOTDIR: "a part of this path is a file, not a folder: choose another folder",
    errno.EISDIR: "is a folder: name a file",
    errno.ELOOP: "symbolic links go in a circle: mend them, or choose another path",
    errno.EIO: "the disk reports an error: look at the system's log, or choose another disk",
    errno.EFBIG: "the file is larger than is allowed here: raise `ulimit -f`, or choose another disk",
    errno.ENOMEM: "out of memory: free some, or use fewer environments",
    errno.EMFILE: "too many open files: raise the limit with `ulimit -n 65536`",
    errno.ENFILE: "the system has too many open files: close some programs",
    errno.EADDRNOTAVAIL: "is no address of this machine: choose another host",
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

    `tells_interrupt`: it forwards to no other app, which would have reported a Ctrl-C already.
    """
    # Typer's tables cut long options off where the terminal is narrow, and give flags a value, `<bool>`.
    app.rich_markup_mode = None

    _open_standard_streams()
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Visible())

    @run_command
    def run() -> int | None:
        for each in sys.argv[1:] if argv is None else argv:
            if each != without_lone_surrogates(each):
                encoding = sys.getfilesystemencoding()
                raise ConfigurationError(
                    f"{each} is no {encoding} text: set LC_ALL=C.UTF-8, or use ASCII alone"
                )
        result = app(args=argv, prog_name=name, standalone_mode=False)
        if result == INTERRUPTED and tells_interrupt:
            # What Typer makes of a KeyboardInterrupt.
            raise KeyboardInterrupt
        return result if isinstance(result, int) else None

    told = _heed_sigterm()
    code = run()
    return TOLD_TO_END if code == INTERRUPTED and told else code


def _heed_sigterm() -> Sequence[int]:
    """Make SIGTERM end this process as Ctrl-C does, unless something else is done about it; lists it then."""
    told: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        told.append(number)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell has started it in its background
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)

    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end)
    return told


def _open_standard_streams() -> None:
    """Open the null device where one was closed (`>&-`): the next file to be opened would take its number."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - until the process ends


class _Visible(logging.Formatter):
    """What libraries log may quote anybody."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def report_error(error: BaseException) -> int:
    """Say on stderr what went wrong; returns the exit code.

    One message for what the user can mend; a traceback and a request to report it for the rest.
    """
    if isinstance(error, BrokenPipeError):
        # Nobody reads the output any more; without this the interpreter complains at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        say("interrupted", err=True)
        return INTERRUPTED
    known = next((link for link in _chain(error) if isinstance(link, EnvsdkError)), None)
    if known is not None:
        if known.exit_code == INTERRUPTED:
            say(_first_hand(known), err=True)
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
    say("".join(traceback.format_exception(error)), end="", err=True)
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
    takes_keys = any("KEY=VALUE" in (parameter.metavar or "") for parameter in context.command.params)
    is_key = option and takes_keys and not getattr(error, "possibilities", None)
    keys = f". A key is written without dashes: {option.lstrip('-')}=VALUE" if is_key else ""
    return f"{format_message()}{keys}\nTry `{context.command_path} --help`."


def _print_error(message: str) -> None:
    say(f"error: {message}", err=True, flush=True)


def canonical_command(name: str, argv: Sequence[str]) -> list[str]:
    """`envsdk collect ...` for the process's own `argv`, however the command was started.

    With `python -m envsdk.collect` the arguments follow at once, with `envsdk collect` after the name.
    """
    arguments = list(argv[1:])
    return ["envsdk", name, *(arguments[1:] if arguments[:1] == [name] else arguments)]
