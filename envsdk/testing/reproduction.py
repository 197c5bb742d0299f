"""A failing check as a Python script that its reader can run: each call, and what it answered."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from envsdk.contracts.env import TextEnv
from envsdk.testing.checks import Check
from envsdk.testing.courses import Factory, short, watch
from envsdk.testing.subject import Options, Subject
from envsdk.testing.time_limits import ending_calls

_METHODS = ("reset", "step", "snapshot", "restore", "oracle", "legal_actions", "state_hash", "close")
_MOST_CALLS = 60
_ANSWER_LENGTH = 100
SLOWEST = "slowest call, in seconds"
"""In a subject's memory: the longest time of a call that returned."""


@dataclass(slots=True)
class Tape:
    """Builds environments that write down the calls they get."""

    expression: str
    """How a script builds one."""
    make: Factory
    lines: list[str] = field(default_factory=list)
    _num_environments: int = 0
    _num_snapshots: int = 0
    _is_inside: bool = False

    def recording(self) -> TextEnv:
        env = self.make()
        self._num_environments += 1
        name = f"env_{self._num_environments}"
        self.lines.append(f"{name} = {self.expression}")
        for method in _METHODS:
            if method not in ("reset", "step", "close") and method not in env.abilities():
                continue
            try:
                setattr(env, method, self._recorded(name, method, getattr(env, method)))
            except AttributeError:
                continue  # Its class has slots: the script goes without these calls.
        return env

    def _recorded(self, env: str, method: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if self._is_inside:
                return call(*args, **kwargs)
            self._is_inside = True
            line = f"{env}.{method}({self._arguments(method, args, kwargs)})"
            try:
                answer = call(*args, **kwargs)
            except Exception as error:
                self.lines.append(f"# {line} raises {type(error).__name__}: {one_line(str(error))}")
                raise
            except BaseException:
                self.lines.append(f"# {line} does not return")
                raise
            finally:
                self._is_inside = False
            if method == "snapshot":
                self._num_snapshots += 1
                self.lines.append(f"snapshot_{self._num_snapshots} = {line}")
            elif method == "close":
                self.lines.append(line)
            else:
                self.lines.append(f"print({line})  # {one_line(short(answer, _ANSWER_LENGTH))}")
            return answer

        return recorded

    def _arguments(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        if method == "restore":
            return f"snapshot_{self._num_snapshots}"
        return ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())])


def script_for(
    check: Check,
    subject: Subject,
    example: Mapping[str, Any],
    message: str,
    timeout_s: float | None,
) -> str:
    """A script that shows what went wrong and ends with the same AssertionError.

    Args:
        timeout_s: When a call that does not return is given up while the script is made.
    """
    played = subject if timeout_s is None else subject.with_timeout(timeout_s)
    calls = _calls(check, played, example) if example else []
    config = f", {dict(subject.env_config)!r}" if subject.env_config else ""
    given = "".join(f", {name}={value!r}" for name, value in {**_options(subject), **example}.items())
    comment = [f"# {line}" for line in f"{check.name}: {message}".splitlines()[:12]]
    lines = [*map(printable, comment), ""]
    if any("envsdk." in line for line in calls):
        lines.append("import envsdk")
    lines.append("from envsdk.testing import run_check")
    if subject.imports:
        lines.append(subject.imports)
    lines.append("")
    if calls:
        lines += [*map(printable, calls), ""]
    lines.append(f'run_check("{check.name}", {subject.target}{config}{given})')
    return "\n".join(lines) + "\n"


def _calls(check: Check, subject: Subject, example: Mapping[str, Any]) -> list[str]:
    tape = Tape(subject.expression, subject.make)
    # That it fails is what is being shown.
    with contextlib.suppress(Exception):
        call_check(check, replace(subject, make=tape.recording), example)
    if len(tape.lines) > _MOST_CALLS:
        left = len(tape.lines) - _MOST_CALLS
        return [*tape.lines[:_MOST_CALLS], f"# and {left} more calls"]
    return tape.lines


def call_check(check: Check, subject: Subject, example: Mapping[str, Any]) -> None:
    """Call it once. Raises what it raises, and NeverReturned for a call that does not."""
    with ending_calls(subject.call_limits, subject.costs) as clock:
        if check.looks_on:
            check.function(subject, watch(subject.make, example["seed"], example["script"]))
        else:
            check.function(subject, **example)
    slowest_s = subject.memory.get(SLOWEST, 0.0)
    subject.memory[SLOWEST] = max(slowest_s, clock.slowest_s)


def _options(subject: Subject) -> dict[str, Any]:
    """Options that decide whether a check fails, where they are not the default."""
    default = Options()
    return {
        name: getattr(subject.options, name)
        for name in Options.names()
        if name not in ("max_examples", "derandomize")
        and getattr(subject.options, name) != getattr(default, name)
    }


def one_line(text: str) -> str:
    return " ".join(text.split())


def printable(text: str) -> str:
    """Without lone surrogates, which no terminal can show."""
    return text.encode("utf-8", "backslashreplace").decode()
