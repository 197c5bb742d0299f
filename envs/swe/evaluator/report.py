"""What a test run wrote, and whether it can be believed."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from envsdk.envs.swe.evaluator.canaries import Canary
from envsdk.envs.swe.tasks.task import Outcome

_PHASES = ["setup", "call", "teardown"]
_EXIT_STATUS = 1
"""How pytest ends where a test failed; the canaries see to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The records of one run, read."""

    outcomes: Mapping[str, Outcome]
    """The outcome of each test by node id, canaries included."""
    seconds: Mapping[str, float]
    messages: Mapping[str, str]
    """Ends of the failure messages, by node id."""
    collect_errors: Mapping[str, str]
    """Errors by the node id of what could not be collected."""
    end_status: int | None
    """What pytest returned; None where the run did not end."""
    flaws: tuple[str, ...]
    """What an untouched run does not write."""
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Node ids by another name under which a data set may list them."""
    claims: Mapping[str, Mapping[str, Sequence[tuple[str, str]]]] = field(default_factory=dict)
    """What sealed tests sent, by node id and name: kind and JSON."""


def read_report(data: bytes, key: bytes) -> Report:
    """Read the lines that the launcher wrote under `key`. Lines of others become flaws, whatever they say."""
    flaws: list[str] = []
    phases: dict[str, list[tuple[str, str]]] = {}
    seconds: dict[str, float] = {}
    messages: dict[str, str] = {}
    collect_errors: dict[str, str] = {}
    aliases: dict[str, tuple[str, ...]] = {}
    claims: dict[str, dict[str, list[tuple[str, str]]]] = {}
    end_status = None
    for number, line in enumerate(data.split(b"\n")[:-1]):
        record = _authentic(line, number, key)
        if record is None or end_status is not None:
            flaws.append("the report has a line that the runner did not write")
            break
        try:
            kind, test, when, outcome, duration, message = record
            elapsed, status = float(duration), int(outcome) if kind == "end" else None
        except ValueError:
            flaws.append("the report has a line that the runner does not write")
            break
        if kind == "end":
            end_status = status
        elif kind == "collect_error":
            collect_errors[test] = message
        elif kind == "claim":
            claims.setdefault(test, {}).setdefault(when, []).append((outcome, message))
        elif kind == "alias":
            aliases[when] = (*aliases.get(when, ()), test)
        else:
            phases.setdefault(test, []).append((when, outcome))
            seconds[test] = seconds.get(test, 0.0) + elapsed
            if message:
                messages[test] = message
    if end_status is None and not flaws:
        flaws.append("the run ended before its report did")
    for test, seen in phases.items():
        whens = [when for when, outcome in seen]
        if len(whens) != len(set(whens)) and all(outcome == "passed" for _, outcome in seen):
            flaws.append(f"{test} is reported twice")
    return Report(
        outcomes={test: _outcome(seen) for test, seen in phases.items()},
        seconds=seconds,
        messages=messages,
        collect_errors=collect_errors,
        end_status=end_status,
        flaws=tuple(flaws),
        aliases=aliases,
        claims=claims,
    )


def distrust(report: Report, canaries: Sequence[Canary], exit_status: int | None) -> str | None:
    """Why the run cannot be believed, or None where it can.

    `exit_status` is that of the process: 1 where tests failed, as the canaries that must fail see to.
    """
    if report.flaws:
        return f"{report.flaws[0]} (exit status {exit_status})"
    if exit_status != _EXIT_STATUS or report.end_status != _EXIT_STATUS:
        return f"exit status {exit_status} where failing canaries make it {_EXIT_STATUS}"
    for canary in canaries:
        for test in canary.must_pass:
            if report.outcomes.get(test) is not Outcome.PASSED:
                return "a canary that must pass did not"
        for test in canary.must_fail:
            if report.outcomes.get(test) is not Outcome.FAILED:
                return "a canary that must fail did not"
    return None


def uncollected(report: Report, canaries: Sequence[Canary]) -> bool:
    """Whether no canary could be collected: what is imported before any test is broken."""
    tests = {test for canary in canaries for test in (*canary.must_pass, *canary.must_fail)}
    return bool(report.collect_errors) and not report.flaws and tests.isdisjoint(report.outcomes)


def first_error(collect_errors: Mapping[str, str]) -> str:
    """What could not be collected, and the exception."""
    name, message = next(iter(collect_errors.items()))
    lines = [line for line in message.splitlines() if line.startswith("E ")]
    last = lines[-1].removeprefix("E ").strip() if lines else message.strip().rpartition("\n")[2]
    return f"{name} ({last[:300]})" if last else name


def look_up(
    outcomes: Mapping[str, Outcome], listed: str, aliases: Mapping[str, Sequence[str]] | None = None
) -> Outcome:
    """The outcome of the test `listed`: by its id, by one that was cut at the first space of its parameters,
    or by an alias. Where that means several tests, all must have passed."""
    if listed in outcomes:
        return outcomes[listed]
    found: list[Outcome] = []
    if "[" in listed and not listed.endswith("]"):
        found = [outcome for test, outcome in outcomes.items() if test.startswith(listed + " ")]
    elif aliases is not None:
        found = [outcomes.get(test, Outcome.MISSING) for test in aliases.get(listed, ())]
    if not found:
        return Outcome.MISSING
    return next((outcome for outcome in found if outcome is not Outcome.PASSED), Outcome.PASSED)


def _authentic(line: bytes, number: int, key: bytes) -> list[str] | None:
    """Kind, id, phase, outcome, seconds and message of a line that was written under `key` as that number."""
    mac, _, text = line.partition(b" ")
    expected = hashlib.blake2b(b"%d %s" % (number, text), key=key, digest_size=16).hexdigest()
    if not hmac.compare_digest(mac, expected.encode()):
        return None
    try:
        return [bytes.fromhex(field.decode()).decode() for field in text.split(b" ")]
    except ValueError:
        return None


def _outcome(phases: Sequence[tuple[str, str]]) -> Outcome:
    outcomes = {outcome for _, outcome in phases}
    if ("call", "failed") in phases:
        return Outcome.FAILED
    if "failed" in outcomes:
        return Outcome.ERROR
    for outcome in (Outcome.SKIPPED, Outcome.XFAILED, Outcome.XPASSED):
        if outcome in outcomes:
            return outcome
    complete = [when for when, _ in phases] == _PHASES and outcomes == {"passed"}
    return Outcome.PASSED if complete else Outcome.ERROR
