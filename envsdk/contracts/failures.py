"""Failures of episodes, and errors that end a run.

Plug-ins raise plain Python errors; the boundary that called the plug-in turns each into one `Failure`. A
failed episode is data: it is recorded, left out of its group's baseline, and never scored 0. An error that
concerns the run (a wrong key, a full disk) is an `EnvsdkError`. Its message says what is wrong, where, and
what to do; a command prints only that message and exits with `exit_code`.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Self


class Boundary(StrEnum):
    """The part of the system in which a failure arose."""

    ENVIRONMENT = "environment"
    ENGINE = "engine"
    AGENT = "agent"
    """A user's program that plays through the endpoint."""
    POLICY = "policy"
    """A user's code that plays inside the process."""
    SANDBOX = "sandbox"
    REWARD = "reward"
    SCHEDULER = "scheduler"
    CONFIGURATION = "configuration"
    STORAGE = "storage"
    TRAINER = "trainer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why one episode has no outcome."""

    boundary: Boundary
    kind: str
    """A short, stable name for counting: `reset_timeout`, `raised`, `worker_died`."""
    message: str
    """One line for a person: the exception's type and text, or which limit was exceeded."""
    traceback: str = field(default="", repr=False, compare=False)
    """Where the exception was raised, as Python prints it, for a look at the episode in memory. Empty
    where no exception was. Not stored: it holds paths and lines of a program, and may be long."""

    def __str__(self) -> str:
        return f"{self.boundary}/{self.kind}: {self.message}"

    @classmethod
    def from_exception(cls, boundary: Boundary, error: BaseException, *, kind: str = "raised") -> Self:
        return cls(
            boundary=boundary, kind=kind, message=describe_error(error), traceback=_traceback_of(error)
        )


MAX_TEXT = 500
"""Maximum characters of the text of a plug-in's object."""
_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
_MAX_TRACEBACK = 32_000
"""Characters kept of a traceback, from both ends."""
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}


def describe_error(error: BaseException) -> str:
    """`Type: text` in one line of at most `MAX_TEXT` characters, from both ends.

    Safe for exceptions of plug-ins, whose `__str__` may raise or return megabytes, control characters or text
    that UTF-8 cannot encode.
    """
    name = _one_line(_name_of(type(error)))
    text = _one_line(_text_of(error, str))
    described = f"{name}: {text}" if text else name
    cut = len(described) > MAX_TEXT
    return f"{described[: MAX_TEXT // 2 - 5]} ... {described[-MAX_TEXT // 2 :]}" if cut else described


def raised_at(error: BaseException, most: int = 1) -> str:
    """`at FILE:LINE FUNCTION` of the `most` innermost calls: of the user's code, where there is any.

    The outermost call, which called a plug-in, is left out.
    """
    called = traceback.extract_tb(error.__traceback__)
    frames = called[1:] or called
    frames = ([each for each in frames if not each.filename.startswith(_PACKAGE)] or frames)[-most:]
    places = [f"{'/'.join(Path(each.filename).parts[-2:])}:{each.lineno} {each.name}" for each in frames]
    return f"at {' > '.join(places)}"


def _traceback_of(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001 - boundary: the exception is a plug-in's object
        return ""
    if len(text) > _MAX_TRACEBACK:
        half = _MAX_TRACEBACK // 2
        text = f"{text[:half]}\n...\n{text[-half:]}"
    return without_lone_surrogates(text)


def show_object(value: object, show: Callable[[Any], str] = repr) -> str:
    """`show(value)` in one line, for objects of plug-ins; if `show` raises, the name of that error."""
    return _one_line(_text_of(value, show))[:MAX_TEXT]


def _text_of(value: object, show: Callable[[Any], str]) -> str:
    try:
        text = show(value)
        # A subclass of str may override methods, which must not run outside this block.
        text = str.__str__(text)
        return text if len(text) <= 4 * MAX_TEXT else text[: 2 * MAX_TEXT] + text[-2 * MAX_TEXT :]
    except BaseException as error:  # noqa: BLE001 - boundary: a plug-in's `__str__`
        return f"<no text: asking for it raised {_name_of(type(error))}>"


def _name_of(kind: type) -> str:
    """The type's name. `kind.__name__` is not safe: a metaclass may define it."""
    name: str = vars(type)["__name__"].__get__(kind)
    return name


def without_lone_surrogates(text: str) -> str:
    """`text` as UTF-8 can hold it: U+FFFD for each lone surrogate, each pair as the character it encodes."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _one_line(text: str) -> str:
    return without_lone_surrogates(" ".join(text.split()).translate(_CONTROL))


INTERRUPTED = 130
"""Exit code of a command that the user stopped."""


class EnvsdkError(Exception):
    """Ends a run. The message tells the user what is wrong, where, and what to do."""

    boundary = Boundary.SCHEDULER
    exit_code = 1


class Interrupted(EnvsdkError):
    """The user asked to stop. The message says which work was kept."""

    exit_code = INTERRUPTED


class ConfigurationError(EnvsdkError):
    """The user's YAML, an override or a command-line argument is wrong; nothing was started."""

    boundary = Boundary.CONFIGURATION
    exit_code = 2


class EngineError(EnvsdkError):
    """No engine can answer."""

    boundary = Boundary.ENGINE


class StorageError(EnvsdkError):
    """Something could not be written or read back: a full disk, a damaged checkpoint."""

    boundary = Boundary.STORAGE


class TrainerError(EnvsdkError):
    """The trainer cannot continue: a loss is not finite, or a rank died."""

    boundary = Boundary.TRAINER


class RolloutStalled(EnvsdkError):
    """Every episode fails, goes stale or is filtered: no batch will ever be ready."""


def as_envsdk_error(error: BaseException, context: str) -> EnvsdkError:
    """The EnvsdkError inside an error of Ray's, or else a RolloutStalled that begins with `context`."""
    # Ray's exception derives from both classes and has a remote traceback as message: use its cause.
    for candidate in (getattr(error, "cause", None), error, error.__cause__):
        if isinstance(candidate, EnvsdkError):
            return candidate
    return RolloutStalled(f"{context}: {type(error).__name__}: {error}")
