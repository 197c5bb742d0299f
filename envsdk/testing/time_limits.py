"""Ends calls of an environment that do not return.

    with ending_calls(CallLimits(build_s=300, reset_s=60, step_s=30)):
        with call("step", lambda: "step('left')"):
            env.step("left")  # NeverReturned after 30 s

The interval timer of the process interrupts the main thread wherever the interpreter is: in a loop, asleep,
waiting for a lock or a child. It cannot interrupt C code that does not come back to the interpreter. On
Windows, and when checks do not run in the main thread, calls are not limited.
"""

from __future__ import annotations

import signal
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

REPEATED_AFTER_S = 1.0
"""An interruption that the environment swallowed comes again."""


class NeverReturned(AssertionError):
    """A call of the environment had not returned when its time was over."""


class _Interruption(BaseException):
    """Raised inside the call. No Exception: environments catch those."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """Seconds within which a call has to return."""

    build_s: float
    """Seconds of the constructor, which may fill caches."""
    reset_s: float
    step_s: float
    """Seconds of every other call."""

    def of(self, method: str) -> float:
        return {"__init__": self.build_s, "reset": self.reset_s}.get(method, self.step_s)


@dataclass(slots=True)
class CallCosts:
    """What the calls of one method took, those that raised included."""

    num_calls: int = 0
    seconds: float = 0.0

    @property
    def mean_s(self) -> float:
        return self.seconds / self.num_calls if self.num_calls else 0.0


@dataclass(slots=True, kw_only=True)
class CallClock:
    """Armed anew by each call; what takes place between calls has the rest of the time."""

    limits: CallLimits
    limit_s: float = 0.0
    """What it was armed with last."""
    slowest_s: float = 0.0
    """Seconds of the calls that returned."""
    costs: dict[str, CallCosts]
    """Costs by method; the constructor is `__init__`."""
    place: str = ""
    """Where the first interruption found the interpreter."""

    def arm(self, limit_s: float) -> None:
        self.limit_s, self.place = limit_s, ""
        signal.setitimer(signal.ITIMER_REAL, limit_s, REPEATED_AFTER_S)

    def interrupt(self, _: int, frame: FrameType | None) -> None:
        self.place = self.place or _place_of(frame)
        raise _Interruption

    def late(self, what: str) -> NeverReturned:
        return NeverReturned(f"{what} after {self.limit_s:g} s{self.place}")


_clock: CallClock | None = None


@contextmanager
def ending_calls(limits: CallLimits, costs: dict[str, CallCosts] | None = None) -> Iterator[CallClock]:
    """Limit the calls in the block, and what comes between them, which has the longer of a turn's limits.

    What the calls took is added to `costs`.

    Raises:
        NeverReturned: A call did not return, or nothing else came to an end.
    """
    global _clock
    clock = CallClock(limits=limits, costs={} if costs is None else costs)
    if _clock is not None or not _can_interrupt():
        yield clock
        return
    began = time.monotonic()
    others_s, others_interval_s = signal.getitimer(signal.ITIMER_REAL)
    others_handler = signal.signal(signal.SIGALRM, clock.interrupt)
    _clock = clock
    try:
        clock.arm(max(limits.reset_s, limits.step_s))
        yield clock
    except _Interruption:
        raise clock.late("it had not come to an end") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, others_handler)
        _clock = None
        if others_s:
            left_s = others_s - (time.monotonic() - began)
            signal.setitimer(signal.ITIMER_REAL, max(left_s, 0.001), others_interval_s)


class call:
    """One call of the environment; `describe` says which, should it not return."""

    __slots__ = ("_began", "_clock", "_describe", "_method")

    def __init__(self, method: str, describe: Callable[[], str]) -> None:
        self._method, self._describe = method, describe
        self._clock = _clock
        self._began = 0.0

    def __enter__(self) -> None:
        if self._clock is not None:
            self._clock.arm(self._clock.limits.of(self._method))
            self._began = time.perf_counter()

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        if self._clock is None:
            return
        if isinstance(error, _Interruption):
            late = self._clock.late(f"{self._describe()} had not returned")
            self._clock.arm(max(self._clock.limits.reset_s, self._clock.limits.step_s))
            raise late from None
        took_s = time.perf_counter() - self._began
        self._clock.slowest_s = max(self._clock.slowest_s, took_s)
        costs = self._clock.costs.setdefault(self._method, CallCosts())
        costs.num_calls += 1
        costs.seconds += took_s


def allow(seconds: float) -> None:
    """Give what follows, until the next call, so much time: it is no call of the environment."""
    if _clock is not None:
        _clock.arm(seconds)


def _can_interrupt() -> bool:
    return hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()


def _place_of(frame: FrameType | None) -> str:
    """The innermost line that is not the standard library's."""
    library = sysconfig.get_path("stdlib")
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((library, "<frozen")) or "site-packages" in file:
            return f", in {frame.f_code.co_name} ({Path(file).name}, line {frame.f_lineno})"
        frame = frame.f_back
    return ""
