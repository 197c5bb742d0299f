"""Runs checks on a subject: examples are drawn and shrunk by Hypothesis, failures become scripts.

    report = examine("envsdk/FrozenLake-v1", {"size": 5})
    for outcome in report.failed:
        print(outcome.check.name, outcome.message, outcome.script)

A call that does not return is ended, and fails the check that met it. The checks after it are blocked: each
would have to wait as long.

All checks are tried with one set of examples, and those that only look at courses share the courses too. A
check that fails is then searched by itself, so that its example is shrunk to the least that shows the fault.
"""

from __future__ import annotations

import math
import time
import unittest
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import FlakyFailure

from envsdk.base.settings.nearest import did_you_mean
from envsdk.contracts.failures import ConfigurationError, describe_error
from envsdk.testing.checks import GROUPS, Check, NotApplicable, catalogue
from envsdk.testing.courses import Fault, build, watch
from envsdk.testing.reproduction import SLOWEST, call_check, printable, script_for
from envsdk.testing.strategies import histories, replies, scripts, seeds
from envsdk.testing.subject import Options, Subject, Target, options_from, subject_of
from envsdk.testing.time_limits import CallCosts, NeverReturned, ending_calls

EXAMPLES: Mapping[str, st.SearchStrategy[Any]] = {
    "seed": seeds,
    "other_seed": seeds,
    "script": scripts(),
    "other_script": scripts(),
    "then": scripts(6),
    "reply": replies(),
    "history": histories(),
}
"""What a check's parameter is drawn from, by its name."""

_SEARCH_EFFORT = 4.0
"""Examples of the search for a smaller failure, in terms of `max_examples`."""

_SHORTEST_WAIT_S = 0.25
_WAIT_OVER_SLOWEST = 20.0
"""In the search for a smaller example, a call is given up after so many times the slowest that returned."""
_LONGEST_SEARCH_S = 10.0
"""For a smaller example at which a call does not return; and no longer than its limit."""

CULPRITS: Mapping[str, tuple[str, ...]] = {
    "__init__": ("contract.can_be_built",),
    "reset": ("contract.reset_answers",),
    "step": (
        "text.any_reply_is_answered",
        "contract.step_returns_five_values",
        "text.awkward_replies_are_answered",
    ),
    "legal_actions": ("abilities.legal_actions_are_there",),
    "oracle": ("oracle.answers_anywhere",),
    "snapshot": ("abilities.declared_abilities_answer",),
    "state_hash": ("abilities.declared_abilities_answer",),
}
"""Checks that report a method that raises; others that fail for that reason are blocked."""


class Status(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    BLOCKED = "blocked"
    """It failed because of a fault that another check reports."""
    SKIPPED = "skipped"
    """It does not apply: an ability is not declared, or an option is off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one check."""

    check: Check
    status: Status
    message: str = ""
    """What is wrong, or why it does not apply."""
    example: Mapping[str, Any] | None = None
    """The smallest found at which it fails; empty for a check that takes none."""
    script: str = ""
    """Runnable Python that fails in the same way."""
    faulty_method: str = ""
    """The environment's method that raised, where that is what went wrong."""
    duration_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """An entry of `checks` in `Report.to_json`."""
        return {
            "check": self.check.name,
            "demand": self.check.demand,
            "status": self.status.value,
            "message": self.message,
            "example": None
            if self.example is None
            else {key: repr(value) for key, value in self.example.items()},
            "script": self.script,
            "duration_s": round(self.duration_s, 4),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The results of all checks."""

    name: str
    """Name of the environment."""
    env_config: Mapping[str, Any]
    outcomes: tuple[Outcome, ...]
    num_examples: int
    """Per check."""
    costs: Mapping[str, CallCosts] = field(default_factory=dict)
    """What the environment's calls took, by method; the constructor is `__init__`."""

    def having(self, status: Status) -> list[Outcome]:
        """The outcomes with this status, in the order of the checks."""
        return [outcome for outcome in self.outcomes if outcome.status is status]

    @property
    def failed(self) -> list[Outcome]:
        return self.having(Status.FAILED)

    @property
    def is_sound(self) -> bool:
        """At least one check ran, and none failed."""
        return bool(self.having(Status.PASSED)) and not self.failed and not self.having(Status.BLOCKED)

    def to_json(self) -> dict[str, Any]:
        """What `envsdk check --json` prints."""
        return {
            "format": "envsdk.check/1",
            "environment": self.name,
            "env_config": {key: repr(value) for key, value in self.env_config.items()},
            "sound": self.is_sound,
            "examples": self.num_examples,
            "costs": {
                method: {"calls": each.num_calls, "seconds": round(each.seconds, 4)}
                for method, each in self.costs.items()
            },
            "counts": {status.value: len(self.having(status)) for status in Status},
            "checks": [outcome.to_json() for outcome in self.outcomes],
        }


def examine(
    target: Target | Subject,
    env_config: Mapping[str, Any] | None = None,
    *,
    only: Sequence[str] = (),
    on_outcome: Callable[[Outcome], None] | None = None,
    **options: Any,
) -> Report:
    """Run the checks, or those of `only`: names of checks or groups.

    Args:
        target: A registered id, `package.module:Class`, an EnvSpec, a class or a function that builds one.
        env_config: Keyword arguments of the constructor.
        on_outcome: Called after each check.
        options: Fields of `Options`, such as `max_examples=5`.

    Raises:
        ConfigurationError: Nothing is registered under that name, or no check is called so.
    """
    subject = target if isinstance(target, Subject) else subject_of(target, env_config, options_from(options))
    checks = chosen(only)
    # First the checks that name a fault, so that it is searched and reported once.
    naming = ["contract.calls_return", *(name for names in CULPRITS.values() for name in names)]
    outcomes: dict[str, Outcome] = {}
    faulty: dict[str, str] = {}
    for check in sorted(checks, key=lambda check: check.name not in naming):
        outcome = outcomes[check.name] = run(check, subject, faulty)
        if outcome.status is Status.FAILED and check.name in CULPRITS.get(outcome.faulty_method, ()):
            faulty.setdefault(outcome.faulty_method, check.name)
        if on_outcome is not None:
            on_outcome(outcome)
    return Report(
        name=subject.name,
        env_config=subject.env_config,
        outcomes=tuple(outcomes[check.name] for check in checks),
        num_examples=subject.options.max_examples,
        costs=subject.costs,
    )


def seconds_per_example(subject: Subject) -> float:
    """About what all checks take for each example, going by what a course of this environment takes.

    A course that cannot be played counts as taking no time: checks will say why.
    """
    examples = _pool(_PROBES, subject.options.derandomize)
    try:
        with ending_calls(subject.call_limits, subject.costs):
            # The first one built may fill caches.
            build(subject.make).close()
            began = time.perf_counter()
            for example in examples:
                watch(subject.make, example["seed"], example["script"])
    except (Fault, NeverReturned):
        return 0.0
    course_s = (time.perf_counter() - began) / len(examples)
    players = (check for check in catalogue().values() if check.parameters and not check.looks_on)
    return course_s * (1 + _COURSES_PER_EXAMPLE * sum(check.effort for check in players))


_PROBES = 3
_COURSES_PER_EXAMPLE = 2.5
"""About, of a check that plays by itself; those that look on share one."""


def chosen(only: Iterable[str]) -> list[Check]:
    """Checks by the names of checks or groups; all of them when nothing is named."""
    known = catalogue()
    names = list(only)
    for name in names:
        if name not in known and name not in GROUPS:
            hint = did_you_mean(name, [*GROUPS, *known])
            raise ConfigurationError(
                f"there is no check or group {name!r}.{hint} Groups: {', '.join(GROUPS)}."
            )
    return [check for check in known.values() if not names or check.name in names or check.group in names]


def run(check: Check, subject: Subject, faulty: Mapping[str, str] | None = None) -> Outcome:
    """One check, with its failing example as small as it could be made.

    `faulty` has the methods that raise and the checks that report them: other checks are blocked by these.
    """
    began = time.perf_counter()
    try:
        if _STUCK in subject.memory:
            raise _Blocked(subject.memory[_STUCK])
        outcome = _run(check, subject, faulty or {})
    except _Blocked as blocked:
        outcome = Outcome(check=check, status=Status.BLOCKED, message=f"see {blocked}")
    return replace(outcome, duration_s=time.perf_counter() - began)


def run_check(
    name: str, target: Target, env_config: Mapping[str, Any] | None = None, **example_or_options: Any
) -> None:
    """Run one check at the example given, or search for one when none is given.

    Raises:
        AssertionError: The check's demand is not met.
        unittest.SkipTest: The check does not apply.
    """
    (check,) = chosen([name]) if name in catalogue() else chosen([f"{name}."])
    example = {key: value for key, value in example_or_options.items() if key in EXAMPLES}
    options = {key: value for key, value in example_or_options.items() if key not in EXAMPLES}
    subject = subject_of(target, env_config, options_from(options))
    if example:
        try:
            call_check(check, subject, example)
        except NotApplicable as reason:
            raise unittest.SkipTest(str(reason)) from None
        return
    demand_of(run(check, subject))


def demand_of(outcome: Outcome) -> None:
    """Raise what an outcome stands for: AssertionError, SkipTest or nothing."""
    if outcome.status is Status.SKIPPED:
        raise unittest.SkipTest(outcome.message)
    if outcome.status is not Status.PASSED:
        raise AssertionError(described(outcome))


def described(outcome: Outcome) -> str:
    """A failure for a person: the demand, what is wrong, and a script that shows it."""
    parts = [f"{outcome.check.name}: {outcome.message}", f"Demanded: {outcome.check.demand}"]
    if outcome.script:
        parts.append(outcome.script)
    return "\n\n".join(parts)


_STUCK = "stuck"
"""In a subject's memory: the check that met a call which never returned."""


class _Blocked(Exception):
    """The check that names the fault."""


def _run(check: Check, subject: Subject, faulty: Mapping[str, str]) -> Outcome:
    try:
        with ending_calls(subject.call_limits, subject.costs):
            missing = sorted(set(check.needs) - subject.abilities)
    except Exception as error:  # noqa: BLE001 - an environment that cannot be built may raise anything
        if check.name != "contract.can_be_built" or isinstance(error, NeverReturned):
            _blame(check, error, faulty)
            if isinstance(error, NeverReturned):
                subject.memory[_STUCK] = check.name
            return _failure(check, subject, {}, error)
        missing = []
    if missing:
        return Outcome(check=check, status=Status.SKIPPED, message=f"does not declare {', '.join(missing)}")
    try:
        found = _seen(check, subject) if check.looks_on else _first_failure(check, subject)
        if found is None:
            return Outcome(check=check, status=Status.PASSED)
        _blame(check, found[1], faulty)
        if isinstance(found[1], NeverReturned):
            return _stuck(check, subject, found)
        if check.parameters:
            found = _shrunk(check, subject) or found
    except NotApplicable as reason:
        return Outcome(check=check, status=Status.SKIPPED, message=str(reason))
    return _failure(check, subject, *found)


def _blame(check: Check, error: BaseException, faulty: Mapping[str, str]) -> None:
    """Raise _Blocked when another check has named this fault."""
    if isinstance(error, Fault) and error.method in faulty and check.name not in CULPRITS[error.method]:
        raise _Blocked(faulty[error.method])


Found = tuple[Mapping[str, Any], BaseException]
"""A failing example and what it raised."""


def _first_failure(check: Check, subject: Subject) -> Found | None:
    """The first of the examples drawn for all checks at which this one fails."""
    if not check.parameters:
        return _tried(check, subject, {})
    for example in _examples(subject.options, check.effort):
        found = _tried(check, subject, {name: example[name] for name in check.parameters})
        if found is not None:
            return found
    return None


def _tried(check: Check, subject: Subject, example: Mapping[str, Any]) -> Found | None:
    try:
        call_check(check, subject, example)
    except NotApplicable:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, the demand is not met
        return example, error
    return None


def _seen(check: Check, subject: Subject) -> Found | None:
    """What it sees in the courses that all onlookers share."""
    shared: dict[str, Found | NotApplicable] | None = subject.memory.get("shared")
    if shared is None:
        shared = subject.memory["shared"] = _look_together(subject)
    found = shared.get(check.name)
    if isinstance(found, NotApplicable):
        raise found
    return found


def _look_together(subject: Subject) -> dict[str, Found | NotApplicable]:
    abilities = subject.abilities
    pending = {c.name: c for c in catalogue().values() if c.looks_on and abilities.issuperset(c.needs)}
    found: dict[str, Found | NotApplicable] = {}
    for example in _examples(subject.options, 1.0):
        seed, script = example["seed"], example["script"]
        try:
            with ending_calls(subject.call_limits, subject.costs):
                course = watch(subject.make, seed, script)
        except (Fault, NeverReturned) as error:
            # There is no course: it cannot be built this time, or a call never returned.
            return found | dict.fromkeys(pending, ({"seed": seed, "script": script}, error))
        for check in list(pending.values()):
            try:
                check.function(subject, course)
            except NotApplicable as reason:
                found[pending.pop(check.name).name] = reason
            except Exception as error:  # noqa: BLE001 - whatever it is, the demand is not met
                found[pending.pop(check.name).name] = {"seed": seed, "script": script}, error
    return found


def _stuck(check: Check, subject: Subject, found: Found) -> Outcome:
    """A check met a call which never returned. Its example is made smaller where that is found soon."""
    subject.memory[_STUCK] = check.name
    limits = subject.call_limits
    limit_s = max(limits.reset_s, limits.step_s)
    wait_s = min(limit_s, max(_SHORTEST_WAIT_S, _WAIT_OVER_SLOWEST * subject.memory.get(SLOWEST, 0.0)))
    if check.parameters:
        search_s = min(limit_s, _LONGEST_SEARCH_S)
        smaller = _shrunk(check, subject.with_timeout(wait_s), search_s)
        if smaller is not None and smaller[0] != found[0]:
            # In the search a call may have been given up too early.
            confirmed = _tried(check, subject, smaller[0])
            if confirmed is not None and isinstance(confirmed[1], NeverReturned):
                found = confirmed
    return _failure(check, subject, *found, timeout_s=wait_s)


def _shrunk(check: Check, subject: Subject, search_s: float = math.inf) -> Found | None:
    """The smallest failing example that Hypothesis finds within the time; None when it finds none."""
    names = ("seed", "script") if check.looks_on else check.parameters
    last: list[Found] = []
    until = time.monotonic() + search_s

    def holds(**example: Any) -> None:
        if time.monotonic() > until:
            return
        found = _tried(check, subject, example)
        if found is not None:
            last[:] = [found]
            raise found[1]

    try:
        _drive(holds, {name: EXAMPLES[name] for name in names}, subject.options, _SEARCH_EFFORT)
    except FlakyFailure:
        # The environment, not the check, answered differently when the example was tried again.
        pass
    except Exception:
        if not last:
            raise
    return last[0] if last else None


def _examples(options: Options, effort: float) -> Sequence[Mapping[str, Any]]:
    """The first of the examples that every check of this process is tried with."""
    return _pool(options.max_examples, options.derandomize)[: max(1, round(options.max_examples * effort))]


@cache
def _pool(max_examples: int, derandomize: bool) -> Sequence[Mapping[str, Any]]:
    """Drawing takes longer than playing: it is done once, not once per check."""
    pool: list[Mapping[str, Any]] = []
    options = Options(max_examples=max_examples, derandomize=derandomize)
    _drive(lambda **example: pool.append(example), EXAMPLES, options, 1.0)
    return tuple(pool)


def _drive(
    function: Callable[..., None],
    strategies: Mapping[str, st.SearchStrategy[Any]],
    options: Options,
    effort: float,
) -> None:
    """Call `function` with drawn examples until it raises, then with smaller ones."""

    @settings(
        max_examples=max(1, round(options.max_examples * effort)),
        derandomize=options.derandomize,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(**strategies)
    def driven(**example: Any) -> None:
        function(**example)

    driven()


def _failure(
    check: Check,
    subject: Subject,
    example: Mapping[str, Any],
    error: BaseException,
    timeout_s: float | None = None,
) -> Outcome:
    message = str(error) if isinstance(error, AssertionError) else describe_error(error)
    message = printable(message)
    return Outcome(
        check=check,
        status=Status.FAILED,
        message=message,
        example=dict(example),
        script=script_for(check, subject, example, message, timeout_s),
        faulty_method=error.method if isinstance(error, Fault) else "",
    )
