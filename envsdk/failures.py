"""What can go wrong, and to which boundary it is put down.

A plug-in author raises plain Python errors; the boundary that called the plug-in turns them
into one `Failure`, once. A failed episode is data: it is recorded, masked out of its group's
baseline and never scored 0. What cannot be data (a wrong key, a full disk) is an `EnvsdkError`,
whose message says what is wrong, where, and what to do; a command line prints that message
alone and exits with `exit_code`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Boundary(StrEnum):
    """Who a failure is put down to."""

    ENVIRONMENT = "environment"
    ENGINE = "engine"
    AGENT = "agent"
    """A program of the user's that plays through the endpoint."""
    POLICY = "policy"
    """Code of the user's that plays in the process itself."""
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
    """Short and stable, for counting: `reset_timeout`, `raised`, `worker_died` ...."""
    message: str
    """One line for a person: the exception's type and text, or what was waited for and how long."""

    def __str__(self) -> str:
        return f"{self.boundary}/{self.kind}: {self.message}"

    @classmethod
    def from_exception(cls, boundary: Boundary, error: BaseException, *, kind: str = "raised") -> Failure:
        text = " ".join(str(error).split())
        return cls(boundary=boundary, kind=kind, message=f"{type(error).__name__}: {text}"[:500])


INTERRUPTED = 130
"""Exit code of what the user stopped."""


class EnvsdkError(Exception):
    """Ends a run. The message is for the user: what is wrong, where, what to do."""

    boundary = Boundary.SCHEDULER
    exit_code = 1


class Interrupted(EnvsdkError):
    """The user asked to stop; the message says what became of the work."""

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
    """The trainer cannot go on: a loss that is not finite, a rank that died."""

    boundary = Boundary.TRAINER


class RolloutStalled(EnvsdkError):
    """Every episode fails, goes stale or is filtered: no batch will ever be ready."""


def as_envsdk_error(error: BaseException, context: str) -> EnvsdkError:
    """The EnvsdkError inside what Ray raised, or a new one around it."""
    # Ray's own exception is of both classes, with a remote traceback for a message: its cause comes first.
    for candidate in (getattr(error, "cause", None), error, error.__cause__):
        if isinstance(candidate, EnvsdkError):
            return candidate
    return RolloutStalled(f"{context}: {type(error).__name__}: {error}")
