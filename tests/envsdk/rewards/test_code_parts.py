"""The parts of the reward `code` that need no sandbox."""

from __future__ import annotations

import contextlib
import json
from collections import Counter, deque
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.rewards.answer_text import program_in
from envsdk.rewards.code import compare
from envsdk.rewards.code.compare import same_output, same_value
from envsdk.rewards.code.inside import values
from envsdk.rewards.code.rows import RowError, task_of

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
KEYS = st.integers() | st.text() | st.tuples(st.integers(), st.text())
VALUES = st.recursive(
    SCALARS
    | st.complex_numbers(allow_nan=False)
    | st.decimals(allow_nan=False)
    | st.fractions()
    | st.dates(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(KEYS, inner)
        | st.sets(st.integers())
        | st.frozensets(st.text())
    ),
    max_leaves=10,
)


@given(VALUES)
def test_values_arrive_as_they_were(value: Any) -> None:
    arrived = values.decode(json.loads(json.dumps(values.encode(value))))
    assert (arrived, repr(type(arrived))) == (value, repr(type(value)))


@given(st.recursive(st.integers() | st.text() | st.none(), st.lists, max_leaves=10))
def test_what_nobody_encoded_is_refused_by_an_ordinary_error(sent: Any) -> None:
    with contextlib.suppress(ValueError, TypeError, LookupError, values.NotPlain):
        values.decode(sent)


HUGE = [
    ["c", ["fractions.Fraction", ["1e6000000"]]],
    ["c", ["collections.deque", [["r", [0, 30_000_000, 1]], None]]],
    ["n", ["float64", ["r", [0, 10_000_000, 1]]]],
    ["n", ["float64", ["l", [["r", [0, 10_000_000, 1]]]]]],
]


@pytest.mark.parametrize("sent", HUGE, ids=str)
def test_a_short_text_does_not_stand_for_a_large_value(sent: Any) -> None:
    with pytest.raises((values.NotPlain, ImportError)):
        values.decode(sent)


@given(VALUES)
def test_what_is_returned_arrives_as_the_json_next_to_it(value: Any) -> None:
    try:
        sent = values.as_json(value)
    except (values.NotPlain, OverflowError):
        assert _has(value, set, frozenset, bytes, complex, date, Decimal, Fraction)
        return
    assert same_value(compare.read_value(json.dumps(sent).encode()), _as_data_sets_have_it(value), 1e-6)


def _has(value: Any, *kinds: type) -> bool:
    if isinstance(value, dict):
        value = [*value, *value.values()]
    return isinstance(value, kinds) or (
        isinstance(value, list | tuple) and any(_has(item, *kinds) for item in value)
    )


def _as_data_sets_have_it(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_as_data_sets_have_it(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _as_data_sets_have_it(item) for key, item in value.items()}
    if isinstance(value, complex) and not value.imag:
        return value.real
    return float(value) if isinstance(value, Decimal | Fraction) else value


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (Counter("aab"), {"a": 2, "b": 1}),
        (deque([1, (2,)]), [1, [2]]),
        ({(1, ("a", 2.5)): 3, None: 4, True: 5}, {"(1, ('a', 2.5))": 3, "None": 4, "True": 5}),
        (type("Name", (str,), {})("x"), "x"),
        (2 + 0j, 2.0),
    ],
)
def test_the_json_next_to_a_value_is_what_data_sets_have(value: Any, sent: Any) -> None:
    assert values.as_json(value) == sent


@pytest.mark.parametrize("value", [{1}, [frozenset("a")], b"x", range(3), {frozenset("a"): 1}, 1j, object()])
def test_what_no_json_equals_is_refused(value: Any) -> None:
    with pytest.raises(values.NotPlain):
        values.as_json(value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000, "levels"),
        ("9" * 5000, "digits"),
        ('"' + "a" * compare.MOST_BYTES + '"', "16 MB"),
        ("no json", "no value"),
    ],
    ids=lambda value: value[:30],
)
def test_a_text_beyond_the_bounds_is_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(compare.Unreadable, match=reason):
        compare.read_value(text.encode())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(JSON)
def test_a_value_is_the_same_as_itself_and_as_its_json(value: Any) -> None:
    assert same_value(value, json.loads(json.dumps(value)), 1e-6)


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        ("1  2\n3\n", "1 2 3", True),
        ("1 2", "1 2 3", False),
        ("0.3333333", "0.33333333333", True),
        ("0.3334", "0.33333333333", False),
        ("5.0", "5", True),
        ("5", "5.0", True),
        ("5.0000001", "5", False),
        ("1e999", "1" + "0" * 400, False),
        ("1.2345678901234567e+17", "123456789012345678", False),
        ("nan", "1", False),
        ("inf", "1e999", False),
        ("Yes", "YES", False),
        ("", "", True),
    ],
)
def test_outputs_are_compared_word_by_word(ours: str, theirs: str, same: bool) -> None:
    assert same_output(ours, theirs, 1e-6) is same


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        ((1, 2), [1, 2], True),
        ({1: "a"}, {"1": "a"}, True),
        ([1, 2], [[1, 2]], True),
        (1, True, False),
        (0.1 + 0.2, 0.3, True),
        (1e308 * 10, 1, False),
        ("1", 1, False),
        (None, [], False),
    ],
)
def test_values_are_compared_as_json_has_them(ours: Any, theirs: Any, same: bool) -> None:
    assert same_value(ours, theirs, 1e-6) is same


FENCE = "```"


@pytest.mark.parametrize(
    ("response", "needs", "program"),
    [
        ("x = 1", "", "x = 1"),
        (f"{FENCE}python\nx = 1\n{FENCE}\nthen {FENCE}\n", "", "x = 1"),
        (f"{FENCE}\na\n{FENCE}\n{FENCE}py\nb\n{FENCE}\n{FENCE}\nc\n{FENCE}", "", "b"),
        (f"{FENCE}\na\n{FENCE}\n{FENCE}\nc\n{FENCE}", "", "c"),
        (f"{FENCE}python\ndef f(): 1\n{FENCE}\n{FENCE}python\nprint(f())\n{FENCE}", "f", "def f(): 1"),
        (f"{FENCE}python\ncut off", "", "cut off"),
        (f"{FENCE}cpp\nint main() {{}}\n{FENCE}", "", None),
        (f"<think>{FENCE}python\nno\n{FENCE}</think>yes()", "", "yes()"),
        (f"<think>{FENCE}python\nno\n{FENCE}", "", None),
        (" \n", "", None),
    ],
)
def test_the_program_is_the_last_block_marked_as_python(
    response: str, needs: str, program: str | None
) -> None:
    assert program_in(response, needs) == program


@given(st.text(alphabet="`python \nx~", max_size=300))
def test_any_text_has_a_program_or_none(text: str) -> None:
    program = program_in(text)
    assert program is None or program in text


@given(
    st.dictionaries(
        st.sampled_from(["test_cases", "inputs", "outputs", "test", "test_list", "fn_name"]), JSON
    )
)
def test_a_row_of_any_content_is_a_task_or_is_named(row: dict[str, Any]) -> None:
    try:
        task = task_of(row)
    except RowError:
        return
    assert task.cases or task.tests
