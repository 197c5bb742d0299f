"""Values that tests send, and what operators say of them: what Python says of the values themselves."""

from __future__ import annotations

import collections
import datetime
import operator
import pathlib
import types
import zoneinfo
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.envs.swe.evaluator.kit.probes import MAX_CHARACTERS, encode
from envsdk.envs.swe.evaluator.sealing.values import (
    fields_of,
    holds,
    is_opaque,
    range_length,
    search,
    with_fields,
)

numbers = st.one_of(
    st.booleans(),
    st.integers(-5, 5),
    st.integers(),
    st.floats(allow_nan=False),
    st.sampled_from([0.0, 1.0, 2.5]),
    st.fractions(max_denominator=4),
    st.decimals(allow_nan=False, places=1),
)
leaves = st.one_of(
    st.none(), numbers, st.text(max_size=3), st.binary(max_size=2), st.text(alphabet="\ud800a")
)
keys = st.one_of(
    st.integers(-2, 2), st.booleans(), st.text(max_size=1), st.none(), st.sampled_from([1.0, 2.5])
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.frozensets(keys, max_size=3),
        st.sets(keys, max_size=3),
        st.dictionaries(keys, inner, max_size=3),
    ),
    max_leaves=6,
)
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda left, right: left in right,
    "not in": lambda left, right: left not in right,
}


def agrees(name: str, left: Any, right: Any) -> None:
    try:
        wanted = bool(OPERATORS[name](left, right))
    except (TypeError, ValueError):
        wanted = False
    assert holds(name, encode(left), encode(right)) is wanted


@given(st.sampled_from(["==", "!="]), values, values)
def test_equality_is_pythons(name: str, left: Any, right: Any) -> None:
    agrees(name, left, right)
    agrees(name, left, left)


@given(st.sampled_from(["<", "<=", ">", ">="]), numbers, numbers)
def test_the_order_of_numbers_is_pythons(name: str, left: Any, right: Any) -> None:
    agrees(name, left, right)


texts = st.text(alphabet="ab", max_size=3)
ordered = st.one_of(
    st.tuples(texts, texts),
    st.tuples(st.lists(st.integers(0, 2), max_size=3), st.lists(st.integers(0, 2), max_size=3)),
    st.tuples(st.frozensets(st.integers(0, 2)), st.frozensets(st.integers(0, 2))),
    st.tuples(st.binary(max_size=2), st.binary(max_size=2)),
)


@given(st.sampled_from(["<", "<=", ">", ">="]), ordered)
def test_the_order_of_others_is_pythons(name: str, pair: tuple[Any, Any]) -> None:
    agrees(name, *pair)


@given(
    st.sampled_from(["in", "not in"]),
    keys,
    st.one_of(st.lists(keys), st.sets(keys), st.dictionaries(keys, keys)),
)
def test_containers_hold_what_pythons_do(name: str, left: Any, right: Any) -> None:
    agrees(name, left, right)


@given(st.sampled_from(["in", "not in"]), texts, texts)
def test_texts_hold_what_pythons_do(name: str, left: str, right: str) -> None:
    agrees(name, left, right)


scalars = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e6, max_value=1e6)


@given(scalars, scalars, st.none() | st.floats(0, 1), st.none() | st.floats(0, 1))
def test_approximate_numbers_are_pytests(
    left: float, right: float, rel: float | None, absolute: float | None
) -> None:
    for near in (left, right, right * (1 + 1e-7), right + 1e-13, right + (absolute or 0)):
        expected = pytest.approx(right, rel=rel, abs=absolute)
        assert holds("==", encode(near), encode(expected)) is (near == expected)


def test_approximate_collections_are_pytests() -> None:
    for value, expected in [
        ([1.0, 2.0], [1.0, 2.0000001]),
        ([1.0], [1.0, 2.0]),
        ({"a": 1.0}, {"a": 1.0000001}),
        ({"a": 1.0}, {"b": 1.0}),
        ((1, "x"), (1, "x")),
    ]:
        approximate = pytest.approx(expected)
        assert holds("==", encode(value), encode(approximate)) is (value == approximate)


@dataclass
class Point:
    x: int
    y: int = 0


class Liar(str):
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0

    def __str__(self) -> str:
        return "anything"

    def __repr__(self) -> str:
        return "anything"


class Bag(dict[str, int]):
    def items(self) -> Any:
        return [("a", 2)]

    def __iter__(self) -> Any:
        return iter("a")


class Anything:
    def __eq__(self, other: object) -> bool:
        return True


def test_an_object_that_lies_is_sent_by_its_content() -> None:
    assert encode(Liar("x")) == encode("x")
    assert encode(Bag(a=1)) == encode({"a": 1})
    assert not holds("==", encode(Liar("x")), encode("y"))
    for name in ("==", "!=", "<", "is"):
        assert not holds(name, encode(Anything()), encode(3))


def test_data_classes_are_compared_by_the_fields_that_gold_has() -> None:
    gold, more = (
        encode(Point(1)),
        ["dataclass", "Point", [["z", encode(5)], ["x", encode(1)], ["y", encode(0)]]],
    )
    fields = fields_of(encode([Point(1)]))
    assert holds("==", gold, encode(Point(1, 0)))
    assert not holds("==", gold, encode(Point(1, 2)))
    assert not holds("==", more, gold)
    assert holds("==", with_fields(more, fields), gold)
    assert not holds("==", with_fields(["dataclass", "Point", [["x", encode(1)]]], fields), gold), (
        "one is missing"
    )
    assert not holds("==", ["dataclass", "Other", gold[2]], gold)


pairs = st.dictionaries(st.integers(0, 3), st.integers(0, 3), min_size=1, max_size=3)


@given(
    st.sampled_from(["dict", "ordered", "counter", "set"]),
    pairs,
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
    st.sampled_from(["==", "<=", ">=", "is", "almost:7"]),
    st.booleans(),
)
def test_a_container_with_a_key_twice_equals_nothing(
    tag: str, inner: dict[int, int], repeats: list[int], name: str, nested: bool
) -> None:
    items = [[encode(1), encode(number)] if tag != "set" else encode(number) for number in inner.values()]
    whole = [[encode(key), encode(item)] if tag != "set" else encode(key) for key, item in inner.items()]
    true: Any = [tag, whole]
    for forged in ([tag, whole + [whole[at % len(whole)] for at in repeats]], [tag, items + items[:1]]):
        for sent in (forged, ["list", [forged]] if nested else forged):
            for wanted in (true, ["list", [true]], ["approx", true, ["none"], ["none"]], sent):
                assert not holds(name, sent, wanted)
                assert not holds(name, wanted, sent)


def test_views_and_wrappers_of_collections_are_sent_as_those() -> None:
    inner = {"a": 1, "b": 2}
    assert encode(inner.keys()) == encode({"a", "b"}) or holds("==", encode(inner.keys()), encode({"a", "b"}))
    assert holds("==", encode(inner.items()), encode({("a", 1), ("b", 2)}))
    for wrapped in (types.MappingProxyType(inner), collections.UserDict(inner), collections.Counter(inner)):
        assert holds("==", encode(wrapped), encode(inner))
    assert holds("==", encode(collections.UserList([1])), encode([1]))
    assert holds("==", encode(collections.UserString("x")), encode("x"))


def test_identity_tells_kinds_apart() -> None:
    assert holds("is", encode(None), encode(None))
    assert holds("is not", encode(0), encode(False))
    assert not holds("is", encode(1), encode(True))
    assert holds("is not", encode(object()), encode(None))


def test_a_large_value_equals_only_itself() -> None:
    large = encode("x" * MAX_CHARACTERS)
    assert is_opaque(large)
    assert holds("==", large, encode("x" * MAX_CHARACTERS))
    assert not holds("==", large, encode("x" * (MAX_CHARACTERS - 1) + "y"))
    assert not holds("in", encode("x"), large)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=12,
)
tags = st.sampled_from(
    [
        *("none", "bool", "int", "float", "complex", "fraction", "decimal", "str", "bytes", "range", "enum"),
        *("tuple", "list", "set", "dict", "ordered", "counter", "printed", "dataclass", "approx", "digest"),
    ]
)
malformed = st.tuples(tags, st.lists(json_values, max_size=3)).map(lambda pair: [pair[0], *pair[1]])


@given(st.sampled_from([*OPERATORS, "is", "is not", "count", "search", "almost:7"]), malformed, values)
def test_whatever_is_sent_comparing_it_raises_nothing(name: str, sent: Any, expected: Any) -> None:
    holds(name, sent, encode(expected))
    holds(name, encode(expected), sent)


@pytest.mark.parametrize(
    "sent",
    [
        ["int", "f" * 300_000],
        ["decimal", "1E+999999999"],
        ["decimal", "9" * 300_000],
        ["fraction", "1", "0"],
        ["set", [["int", format(k * (2**61 - 1), "x")] for k in range(8000)]],
        ["float", "nan"],
        ["range", "0", "f" * 1000, "0"],
    ],
    ids=["long", "exponent", "digits", "zero", "collisions", "nan", "range"],
)
def test_numbers_that_cost_much_are_not_worked_out(sent: Any) -> None:
    for name in OPERATORS:
        assert not holds(name, sent, encode(3)) or name in {">", ">=", "!=", "not in"}
        holds(name, encode(Decimal(3)), sent)


def test_a_pattern_is_searched_as_re_does() -> None:
    for pattern, text, wanted in [
        ("no name", "there is no name", True),
        (r"no name\.", "no name!", False),
        (r"^line (\d+): .*bad", "line 12: very bad", True),
        (r"a+b", "xaab", True),
        (r"(a|b)+c$", "ababc", True),
    ]:
        assert search(pattern, text) is wanted


def test_a_pattern_that_takes_for_ever_on_a_text_is_not_found_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envsdk.envs.swe.evaluator.sealing.values._SEARCH_TIMEOUT_S", 0.5)
    assert not search(r"(a+)+$", "a" * 40 + "b")


HOUR = datetime.timedelta(hours=1)
NOON = datetime.datetime(2020, 1, 1, 12, tzinfo=datetime.UTC)


class Moment(datetime.datetime):
    pass


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (NOON, NOON.astimezone(datetime.timezone(HOUR))),
        (NOON, NOON.astimezone(zoneinfo.ZoneInfo("Asia/Tokyo"))),
        (NOON, Moment(2020, 1, 1, 12, tzinfo=datetime.UTC)),
        (NOON, NOON.replace(tzinfo=None)),
        (NOON, NOON + HOUR),
        (datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1)),
        (pathlib.PurePosixPath("/a"), pathlib.Path("/a")),
        (pathlib.PureWindowsPath("a"), pathlib.PurePosixPath("a")),
        (collections.OrderedDict(a=1, b=2), collections.OrderedDict(b=2, a=1)),
        (collections.OrderedDict(a=1, b=2), {"b": 2, "a": 1}),
        ([collections.OrderedDict(a=1, b=2)], [collections.OrderedDict(b=2, a=1)]),
        (collections.Counter(a=1), collections.Counter(a=1, b=0)),
        (collections.Counter(a=1), {"a": 1, "b": 0}),
        (collections.Counter(a=1, b=2), {"b": 2, "a": 1}),
    ],
)
def test_equal_values_of_the_library_need_not_look_alike(left: Any, right: Any) -> None:
    agrees("==", left, right)
    agrees("!=", left, right)
    agrees("==", left, left)


@dataclass
class Linked:
    name: str
    parent: Any = None
    children: Any = ()


def test_objects_that_refer_to_each_other_are_opaque() -> None:
    root = Linked("root")
    root.children = [Linked(name, root) for name in "abcd"]
    assert encode(root) == ["opaque", "Linked"]


@given(st.integers(-9, 9), st.integers(-9, 9), st.integers(-9, 9).filter(bool))
def test_the_length_of_a_range_is_pythons(start: int, stop: int, step: int) -> None:
    assert range_length(encode(range(start, stop, step))) == len(range(start, stop, step))


def test_a_range_is_not_gone_through() -> None:
    assert not holds("in", encode(2.5), encode(range(10**18)))
    assert holds("in", encode(2.0), encode(range(10**18)))


def test_a_long_text_is_searched_to_its_end() -> None:
    assert search(r"total: \d", "x" * 5000 + " total: 3")
