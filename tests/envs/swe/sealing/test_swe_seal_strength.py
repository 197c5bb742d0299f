"""How many bits claims are taken to hide."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.envs.swe.evaluator.kit.probes import encode
from envsdk.envs.swe.evaluator.sealing.claims import Claim
from envsdk.envs.swe.evaluator.sealing.strength import ENOUGH_BITS, Sight, Unmet, hidden_bits
from tests.envs.swe.sealing.test_swe_seal_values import values

NOWHERE = Sight()
ABSENT = object()


def equals(expected: Any, base: Any = ABSENT, **changes: Any) -> Unmet:
    """`assert SENT == expected`, where the base tree sends `base`."""
    claim = Claim("a", "values", **{"operators": ["=="], "cut": [False, True], **changes})
    sent = [] if base is ABSENT else [[encode(base)]]
    known = encode(expected) if any(claim.cut) else None
    return Unmet(claim, [[None, known]], 2000, sent)


def truth(*, negated: bool = False, order: tuple[int, ...] = (0,), hidden: Any = None) -> Unmet:
    claim = Claim("a", "truths", negated=negated, order=list(order), hidden=hidden)
    return Unmet(claim, [[(place == 0) is not negated for place in order]], 2000)


def raised(pattern: str | None) -> Unmet:
    return Unmet(Claim("a", "raised"), [[["KeyError"], pattern]], 2000)


def holds(needle: Any, allowed: int = 2000) -> Unmet:
    return Unmet(Claim("a", "values", operators=["in"], cut=[True, False]), [[encode(needle), None]], allowed)


def bits(*claims: Unmet, sight: Sight = NOWHERE) -> float:
    return hidden_bits(claims, sight)


def test_a_value_with_more_in_it_takes_more_bits_to_guess() -> None:
    assert bits(equals(True)) == bits(equals(None)) == 1
    assert bits(equals(7)) < bits(equals(7000)) < bits(equals([7000, 8111])) < bits(equals([7000, 8111, 9]))
    assert bits(equals("a text")) < bits(equals("a longer text")) < bits(equals("x" * 500)) == 64
    assert bits() == 0


@pytest.mark.parametrize(
    ("expected", "base"),
    [
        (False, True),
        (1235, 1234),
        ([3, 1, 4, 1, 5], [1, 1, 3, 4, 5]),
        (["b", "c"], ["a", "b", "c"]),
        ("first--second".replace("--", "-"), "first--second"),
        ((3, "word"), [3, "word"]),
        ({"name": "a long value", "flag": True}, {"name": "a long value", "flag": False}),
        ("the only one", ["the only one", "and another"]),
    ],
)
def test_what_differs_little_from_what_base_sends_hides_little(expected: Any, base: Any) -> None:
    assert 0 < bits(equals(expected, base)) < min(ENOUGH_BITS, bits(equals(expected)) + 0.01)


def test_what_base_sends_itself_hides_nothing() -> None:
    assert bits(equals([1, "a long text"], [1, "a long text"])) == 0


def test_what_holds_for_many_claims_is_guessed_once() -> None:
    assert bits(*[equals(False, True)] * 30) == 1
    assert bits(*[equals(number + 1, number) for number in range(100, 130)]) == bits(equals(101, 100))
    assert bits(*[truth()] * 30) == 1
    assert bits(*[equals("a text")] * 9) == bits(equals("a text"))


def test_which_of_two_answers_is_where_must_be_guessed() -> None:
    assert bits(*[truth()] * 10, *[truth(negated=True)] * 10) > 16


def test_a_variant_is_one_of_several() -> None:
    assert bits(truth(order=(2, 0, 1, 3), hidden=17)) == 2
    assert bits(*(truth(order=(2, 0, 1, 3), hidden=17) for _ in range(3))) == 6
    assert bits(truth(order=(2, 0, 1, 3), hidden="hammer")) == 1


def test_an_exception_hides_its_text_at_most() -> None:
    assert bits(*[raised(None)] * 20) == 0
    assert bits(raised("no")) == 0
    assert bits(raised("there is no row of that name")) > ENOUGH_BITS


def test_what_is_looked_for_in_a_value_hides_less_the_more_that_value_may_hold() -> None:
    assert bits(holds(404)) == 0
    assert 0 < bits(holds("4096")) < 4
    assert bits(holds("a whole sentence of them")) > bits(holds("a whole sentence of them", 200_000)) > 0


@pytest.mark.parametrize("operator", ["!=", "is not", "not in"])
def test_that_something_is_not_so_hides_nothing(operator: str) -> None:
    assert bits(equals("a long text", operators=[operator])) == 0
    assert bits(equals("a long text", negated=True)) == 0


def test_what_the_process_compares_or_may_pass_over_hides_nothing() -> None:
    assert bits(equals(12345, cut=[False, False])) == 0
    assert bits(equals(12345, optional=True)) == 0


def test_what_stands_elsewhere_in_the_sealed_files_hides_nothing() -> None:
    sight = Sight.of(
        ["def test_a():\n    _sealed.claim('5f0e', clock(3661))\n    f('0:01:05 and more', -12.5)\n"]
    )
    for value in (3661, "0:01:05 and more", 12.5):
        assert bits(equals(value), sight=sight) == 0 < bits(equals(value))
    assert (
        0
        < bits(equals("0:01:05"), sight=sight)
        < bits(equals(":01:05"), sight=sight)
        < bits(equals(":01:05"))
    )
    assert bits(equals(66), sight=sight) > 0
    assert bits(truth(order=(1, 0), hidden=3661), sight=sight) == 0


def test_what_stands_in_variants_is_not_in_sight() -> None:
    text = "_sealed.truths('77b2', f(3), lambda _value: _value == P(17), lambda _value: _value == P(18))\n"
    assert bits(truth(order=(1, 0), hidden=17), sight=Sight.of([text])) == 1


def test_a_row_of_numbers_is_told_by_its_beginning_and_end() -> None:
    assert bits(equals(list(range(100)))) < bits(equals([3, 14, 15, 92, 65, 35]))


@given(st.lists(st.tuples(values, values), max_size=4))
def test_more_claims_do_not_hide_less_and_nothing_is_below_zero(pairs: list[tuple[Any, Any]]) -> None:
    claims = [equals(expected, base) for expected, base in pairs]
    assert 0 <= bits(*claims[:-1]) <= bits(*claims) + 1e-9
    assert bits(*claims) <= sum(bits(claim) for claim in claims) + 1e-9
