"""Pure: failures between an engine and its server, and how long to wait before a retry."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from envsdk.contracts.failures import EngineError, describe_error
from envsdk.engines.core import CoreFailure
from envsdk.engines.engine import ErrorKind

TRANSIENT_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
MAX_BACKOFF_S = 30.0


class ReplyRefused(CoreFailure):
    """There is no usable reply, and asking again would not help."""

    def __init__(
        self, message: str, *, status: int | None = None, kind: ErrorKind = ErrorKind.REQUEST_FAILED
    ) -> None:
        """`status`: of the server's answer, where it refused."""
        super().__init__(message, kind)
        self.status = status


class Unavailable(Exception):
    """The reply did not come complete; the same request may be sent again."""

    def __init__(self, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unreachable(Unavailable):
    """No connection to the server came about: it is not there, or its name or port is wrong."""


_NO_CONNECTION = frozenset({"ConnectError", "ConnectTimeout", "ConnectionRefusedError", "gaierror"})
"""Names of exceptions of the HTTP libraries that clients use."""


def is_no_connection(error: BaseException | None) -> bool:
    """Whether a client raised this because no connection came about."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if type(error).__name__ in _NO_CONNECTION:
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def no_server(place: str, error: BaseException) -> EngineError:
    """What ends a rollout whose server was never reached."""
    cause = error.__cause__ or error.__context__ or error
    return EngineError(
        f"no server answers {place}: {describe_error(cause)}. "
        "Start it, or mend the address; nothing was played"
    )


def error_text(error: Any) -> str:
    """The message in an `error` object, on one line."""
    message = error.get("message", error) if isinstance(error, Mapping) else error
    return " ".join(str(message).split())[:300]


def retry_after_s(header: str | None) -> float:
    """Seconds of a `Retry-After`; 0 when there is none, or a date."""
    try:
        seconds = float(header or 0)
    except ValueError:
        return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0


def wait_s(attempt: int, *, backoff_s: float, at_least_s: float, uniform: float) -> float:
    """Before retry number `attempt` (from 0): exponential, the upper half of it drawn by `uniform`."""
    longest_s = min(MAX_BACKOFF_S, backoff_s * 2.0 ** min(attempt, 60))
    return max(at_least_s, longest_s * (1 + uniform) / 2)
