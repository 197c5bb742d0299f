"""What an untrusted process sends in place of what it saw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envsdk.envs.swe.evaluator.kit.probes import encode
from envsdk.envs.swe.evaluator.report import Report, look_up
from envsdk.envs.swe.evaluator.sealing import SealedTests
from envsdk.envs.swe.evaluator.sealing.claims import Claim
from envsdk.envs.swe.evaluator.sealing.judge import (
    Seal,
    Sent,
    expected_of,
    failures,
)
from envsdk.envs.swe.tasks.task import Outcome

TEST = "tests/test_a.py::test_a"


def values(*operands: Any) -> Sent:
    return "values", json.dumps([encode(operand) for operand in operands])


def raised(*seen: Any) -> Sent:
    return "raised", json.dumps(list(seen))


EQUALS = Claim("a", "values", operators=["=="], cut=[False, True])
HOLDS = Claim("a", "values", operators=["in"], cut=[True, False])
RAISES = Claim("a", "raised")
TRUTHS = Claim("a", "truths", order=[2, 0, 1], places=[0, 1, 1], hidden=12)


def seal(claim: Claim, *gold: Sent) -> Seal:
    return Seal(claims={"c": claim}, expected={TEST: {"c": expected_of(claim, gold)}})


def problem(seal: Seal, *sent: Sent) -> str | None:
    return failures(seal, {TEST: {"c": list(sent)}}).get(TEST)


def test_what_gold_sent_holds_and_another_value_does_not() -> None:
    sealed = seal(EQUALS, values(3, 3))
    assert problem(sealed, values(3)) is None
    assert problem(sealed, values(3.0)) is None
    assert problem(sealed, values(4)) == "an assertion does not hold"


def test_a_claim_that_is_not_sent_fails_its_test() -> None:
    assert problem(seal(EQUALS, values(3, 3))) == "an assertion was not reached"
    assert failures(seal(EQUALS, values(3, 3)), {}) == {TEST: "an assertion was not reached"}


def test_what_is_expected_each_time_must_be_met_as_often_and_in_order() -> None:
    sealed = seal(EQUALS, values(3, 3), values(4, 4))
    assert problem(sealed, values(3), values(4)) is None
    assert problem(sealed, values(4), values(3)) == "an assertion does not hold"
    assert problem(sealed, values(3)) == "an assertion was reached 1 times, not 2"


@pytest.mark.parametrize(
    "sent",
    [
        ("values", json.dumps([["approx", ["float", "0.0"], ["float", "inf"], ["float", "inf"]]])),
        ("values", json.dumps([["opaque", "Anything"]])),
        ("values", json.dumps([["float", "nan"]])),
        ("values", json.dumps([["int", "3"], ["int", "3"]])),
        ("values", json.dumps(["int", "3"])),
        ("values", "[" * 100_000),
        ("values", "not JSON"),
        ("truths", json.dumps([True])),
        ("raised", json.dumps([[], ""])),
    ],
    ids=["approximate", "opaque", "nan", "both", "malformed", "deep", "text", "truths", "raised"],
)
def test_nothing_else_that_can_be_sent_equals_a_number(sent: Sent) -> None:
    assert problem(seal(EQUALS, values(3, 3)), sent)


def test_a_text_that_holds_everything_is_refused() -> None:
    sealed = seal(HOLDS, values("wanted", "what is wanted"))
    assert problem(sealed, values("this is wanted")) is None
    everything = " ".join(f"word{number}" for number in range(6000)) + " wanted"
    for sent in (everything, range(-(10**9), 10**9), range(10**30)):
        assert problem(sealed, values(sent)) == "a value is far longer than the gold patch has it"


def test_a_range_as_long_as_golds_holds_what_it_holds() -> None:
    sealed = seal(HOLDS, values(404, range(10**9)))
    assert problem(sealed, values(range(2 * 10**9))) is None
    assert problem(sealed, values(range(0, 404))) == "an assertion does not hold"
    assert problem(sealed, ("values", json.dumps([["range", "0", "ff", "0"]])))


def test_an_exception_has_one_class_and_not_all() -> None:
    sealed = seal(RAISES, raised(["KeyError", "LookupError", "Exception"], "'x'", ["KeyError"], "x"))
    bases = ["LookupError", "Exception", "BaseException", "object"]
    assert problem(sealed, raised(["Missing", "KeyError", *bases], "no x here")) is None
    assert problem(sealed, raised(["KeyError", *bases], "no such thing"))
    assert problem(sealed, raised(["ValueError", "Exception"], "x"))
    assert problem(sealed, raised([], "x"))
    assert problem(sealed, raised(["ValueError", "TypeError", "KeyError", "OSError", *bases], "x"))


def test_truths_come_in_the_order_of_the_seal() -> None:
    sealed = seal(TRUTHS, ("truths", "[true, false, false]"))
    assert problem(sealed, ("truths", "[false, true, false]")) is None
    for sent in ("[true, false, false]", "[true, true, true]", "[0, 1, 0]", "[false, true]", "[]"):
        assert problem(sealed, ("truths", sent))


def test_a_seal_with_few_bits_is_weak() -> None:
    assert Seal(hidden_bits=3).is_weak
    assert not Seal(hidden_bits=20).is_weak


def test_a_longer_value_that_is_not_searched_is_none_the_worse() -> None:
    sealed = seal(RAISES, raised(["KeyError", "LookupError", "Exception"], "no", ["KeyError"], None))
    assert problem(sealed, raised(["KeyError", "LookupError", "Exception"], "no" * 9000)) is None


def test_a_claim_that_is_sent_without_end_is_refused() -> None:
    sealed = seal(EQUALS, values(3, 3))
    assert problem(sealed, *[values(3)] * 2001) == "an assertion was reached more often than is sent"


def test_a_test_under_a_made_up_name_is_none() -> None:
    sealed = seal(EQUALS, values(3, 3))
    sealed.tests, sealed.aliases = [TEST], {"It adds.": [TEST]}
    report = Report(
        outcomes={"other.py::test_a": Outcome.PASSED, TEST + " b]": Outcome.PASSED},
        seconds={},
        messages={},
        collect_errors={},
        end_status=1,
        flaws=(),
        aliases={"It adds.": ("other.py::test_a",)},
    )
    judged = SealedTests(Path(), sealed).judged(report)
    assert judged.outcomes == {TEST: Outcome.FAILED}
    assert look_up(judged.outcomes, "It adds.", judged.aliases) is Outcome.FAILED
