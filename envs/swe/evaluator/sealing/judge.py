"""What a seal says of the claims of a run. Pure; claims are an untrusted process's, and are only compared."""

from __future__ import annotations

import builtins
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envsdk.envs.swe.evaluator.kit.probes import MAX_HITS
from envsdk.envs.swe.evaluator.sealing.claims import Claim
from envsdk.envs.swe.evaluator.sealing.strength import ENOUGH_BITS
from envsdk.envs.swe.evaluator.sealing.values import (
    holds,
    is_approximate,
    is_opaque,
    range_length,
    search,
    with_fields,
)

_TIMES_LONGER, _MAX_LONGER = 4, 2000
"""How many times as long as gold's a value may be in which something is looked for, and so much more."""
_MAX_OWN_CLASSES = 8
"""Bases of one exception that are not Python's."""
Sent = tuple[str, str]
"""Kind and JSON, as a report has it."""


@dataclass(slots=True)
class Expected:
    """What one claim of one test must come to."""

    hits: list[Any]
    """What is expected each time, or once where it is always the same. Of values the operands (None for those
    that are sent), of truths the pattern, of what must be raised the names of classes and a pattern."""
    size: int
    """Characters, or numbers of a range, of the longest that gold sent. Far more is refused where something
    is looked for: what holds everything would meet each `in`."""
    each_time: bool
    """It differs from time to time, so the claim must be sent as often as there are `hits`."""

    @property
    def allowed(self) -> int:
        """Characters, or elements, of a value in which something is looked for."""
        return _TIMES_LONGER * self.size + _MAX_LONGER


@dataclass(slots=True)
class Seal:
    """What is known of a task's sealed tests, and the process that runs them must not know."""

    problem: str = ""
    """Why the tests run as they are; "" where they are sealed."""
    claims: dict[str, Claim] = field(default_factory=dict)
    expected: dict[str, dict[str, Expected]] = field(default_factory=dict)
    """What is expected, by node id and the name of the claim."""
    fields: dict[str, list[str]] = field(default_factory=dict)
    """The fields that count of the data classes that gold sent, by class."""
    ids: dict[str, str] = field(default_factory=dict)
    """Node ids by those that sealed tests have, where parameters are hidden."""
    tests: list[str] = field(default_factory=list)
    """Node ids of all tests that ran with gold: other names in a report are made up."""
    aliases: dict[str, list[str]] = field(default_factory=dict)
    """Node ids by other names, as gold's run had them."""
    hidden_bits: float = 0.0
    """How many bits a patch that solves nothing has to guess to be rewarded (`strength`)."""
    gold_s: float = 0.0
    """How long the tests took with the gold patch."""

    @property
    def is_weak(self) -> bool:
        """Whether a guess may well be rewarded."""
        return self.hidden_bits < ENOUGH_BITS


def failures(seal: Seal, sent: Mapping[str, Mapping[str, Sequence[Sent]]]) -> dict[str, str]:
    """Why tests with claims did not come out well, by node id; `sent` is by sealed node id and name."""
    own = {seal.ids.get(test, test): claims for test, claims in sent.items()}
    found = {}
    for test, expected in seal.expected.items():
        for name, wanted in expected.items():
            problem = _problem(seal, name, wanted, own.get(test, {}).get(name, ()))
            if problem:
                found[test] = problem
                break
    return found


def unmet(seal: Seal, test: str, sent: Mapping[str, Sequence[Sent]]) -> set[str]:
    """The claims of one test that `sent`, by name, does not meet."""
    return {
        name
        for name, wanted in seal.expected.get(test, {}).items()
        if _problem(seal, name, wanted, sent.get(name, ()))
    }


def _problem(seal: Seal, name: str, expected: Expected, sent: Sequence[Sent]) -> str:
    claim = seal.claims[name]
    if expected.each_time and len(sent) != len(expected.hits):
        return f"an assertion was reached {len(sent)} times, not {len(expected.hits)}"
    if not sent:
        return "" if claim.optional else "an assertion was not reached"
    if len(sent) > MAX_HITS:
        return "an assertion was reached more often than is sent"
    if _searches(claim, expected) and max(map(_places, sent)) > expected.allowed:
        return "a value is far longer than the gold patch has it"
    seen: dict[Sent, str] = {}
    for number, hit in enumerate(sent):
        wanted = expected.hits[number if expected.each_time else 0]
        problem = seen.get(hit) if not expected.each_time else None
        if problem is None:
            problem = seen[hit] = _problem_of(claim, seal.fields, wanted, hit)
        if problem:
            return problem
    return ""


def _searches(claim: Claim, expected: Expected) -> bool:
    """Whether more text makes it easier to meet the claim."""
    if claim.kind == "raised":
        return claim.wanted and any(pattern is not None for _, pattern in expected.hits)
    return not {"in", "search", "<=", ">=", "<", ">"}.isdisjoint(claim.operators)


def _places(hit: Sent) -> int:
    """How much what was sent may hold: as much as it has characters, or as its ranges say."""
    try:
        return max([len(hit[1]), *map(range_length, json.loads(hit[1]))])
    except (ValueError, TypeError, ZeroDivisionError, RecursionError):
        return len(hit[1])


def _problem_of(claim: Claim, fields: Mapping[str, Sequence[str]], wanted: Any, hit: Sent) -> str:
    kind, text = hit
    try:
        seen = json.loads(text)
        if kind == "values":
            seen = [with_fields(operand, fields) for operand in seen]
        fine = kind == claim.kind and _MEETS[kind](claim, wanted, seen)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        fine = False
    return "" if fine else "an assertion does not hold"


def values_hold(claim: Claim, operands: Sequence[Any]) -> bool:
    """Whether a comparison of these values holds, as `assert` would say."""
    if claim.negated and any(map(is_opaque, operands)):
        return False
    pairs = zip(claim.operators, operands, operands[1:], strict=False)
    return all(holds(*pair) for pair in pairs) != claim.negated


def _values_meet(claim: Claim, wanted: Sequence[Any], seen: Sequence[Any]) -> bool:
    if len(seen) != sum(operand is None for operand in wanted):
        return False
    if any(claim.cut) and any(map(is_approximate, seen)):
        return False  # it would equal what it does not know
    own = iter(seen)
    return values_hold(claim, [next(own) if operand is None else operand for operand in wanted])


def _truths_meet(claim: Claim, wanted: Sequence[bool], seen: Sequence[Any]) -> bool:
    if len(wanted) == 1:
        return len(seen) == 1 and seen[0] is wanted[0]
    # A variant may raise: an object with another constant need not exist.
    return len(seen) == len(wanted) and all(
        (truth is True) == holds_there for truth, holds_there in zip(seen, wanted, strict=True)
    )


def _raised_meets(claim: Claim, wanted: Any, seen: Sequence[Any]) -> bool:
    names, text = seen[:2]
    if not may_be_classes(names):
        return False
    if not claim.wanted:
        return bool(names == [])
    classes, pattern = wanted
    return not set(classes).isdisjoint(names) and (pattern is None or search(pattern, text))


def may_be_classes(names: Sequence[str]) -> bool:
    """Whether these can be an exception's class and its bases, and are not the names of many. Names with a
    colon are the seal's own, of classes that these are subclasses of."""
    names = [name for name in names if not name.startswith(":")]
    known = [found for name in names if isinstance(found := getattr(builtins, name, None), type)]
    ends = [one for one in known if not any(one is not other and issubclass(other, one) for other in known)]
    return len(ends) <= 2 and len(names) - len(known) <= _MAX_OWN_CLASSES


_MEETS = {"values": _values_meet, "truths": _truths_meet, "raised": _raised_meets}


def expected_of(claim: Claim, sent: Sequence[Sent]) -> Expected:
    """What a claim must come to, by what gold sent with all expectations in place."""
    wanted = [_wanted(claim, json.loads(text)) for _, text in sent]
    size = max(map(_places, sent))
    if all(hit == wanted[0] for hit in wanted):
        return Expected([wanted[0]], size, each_time=False)
    return Expected(wanted, size, each_time=True)


def _wanted(claim: Claim, hit: Any) -> Any:
    if claim.kind == "values":
        return [operand if cut else None for operand, cut in zip(hit, claim.cut, strict=False)]
    if claim.kind == "truths":
        holds_itself = not claim.negated
        return [holds_itself if place == 0 else not holds_itself for place in claim.order]
    return [hit[2], hit[3]] if claim.wanted else None
