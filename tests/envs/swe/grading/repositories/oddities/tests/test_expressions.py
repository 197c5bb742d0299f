"""Assertions whose expressions bind, take or wait."""
from __future__ import annotations

import asyncio
import math
import re
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from fractions import Fraction
from unittest.mock import ANY

import pytest

from oddities import Point, Shade, Stack, chunks, count_down, guess, later, mean, parse, slug

from .tools import assert_slug, unchanged


def test_a_name_that_the_assertion_binds():
    assert (found := re.match(r"(\w+)-(\w+)", slug("Two words")))
    assert found[1] == "two" and (second := found[2]) == "words"
    assert second.upper() == "WORDS"


def test_what_is_taken_is_gone():
    stack = Stack([1, 2, 3])
    assert stack.pop() == 3
    assert stack.pop() == 2 and len(stack) == 1
    numbers = count_down(3)
    assert next(numbers) == 3
    assert (next(numbers), next(numbers)) == (2, 1)
    assert next(numbers, None) is None
    assert stack.push(7).push(8).pop() > 7
    assert not (stack.pop() != 7)
    assert len(stack) == 1


def test_waiting():
    async def main():
        assert await later(3) == 3
        assert [await later(n) for n in (1, 2)] == [1, 2]
        assert (await later("x")).upper() in {"X", "Y"}
        with pytest.raises(KeyError):
            assert await later({})["a"]
        return await asyncio.gather(later(1), later(2))

    with pytest.raises(TypeError, match="subscriptable"):
        asyncio.run(main_with_error())
    assert asyncio.run(main_without()) == [1, 2]
    assert asyncio.iscoroutinefunction(main)


async def main_with_error():
    assert await later({})["a"]


async def main_without():
    assert await later(3) == 3
    assert [await later(n) for n in (1, 2)] == [1, 2]
    assert (await later("x")).upper() in {"X", "Y"}
    return list(await asyncio.gather(later(1), later(2)))


def test_chains():
    number, how = guess(10)
    assert 0 <= number < 10
    assert 0 < len(how) <= 3 != number - 100
    assert slug("A") == slug("a") == "a"
    assert slug("a") is not None is not True


def test_one_of_several():
    number, _ = guess(4)
    assert number in (0, 1, 2, 3)
    assert number == 0 or number == 1 or number == 2 or number == 3
    assert (number < 2) or (number >= 2)
    assert number if number else not number
    assert type(number) in (int, bool)
    assert not number < 0, f"{number} is below {0}"
    assert isinstance(number, int) and not isinstance(number, str), "a number"


def test_any_and_all():
    parts = list(chunks("abcdefg", 3))
    assert all(len(part) <= 3 for part in parts)
    assert any("g" in part for part in parts)
    assert all(part for part in parts) and not any(len(part) > 3 for part in parts)
    assert sum(len(part) for part in parts) == 7
    assert [*map(len, parts)] == [3, 3, 1]
    assert {len(part): part for part in parts}.keys() == {3, 1}


def test_in_loops():
    for part in chunks(range(10), 4):
        assert 1 <= len(part) <= 4
    for number, part in enumerate(chunks(range(5000), 1)):
        assert part == [number]
    else:
        assert number == 4999
    left = 5
    while left:
        left -= 1
        if left == 2:
            continue
        assert left != 2


def test_close_ones():
    assert mean([0.1, 0.2, 0.3]) == pytest.approx(0.2)
    assert pytest.approx(0.2) == mean([0.1, 0.3])
    assert abs(mean([0.1, 0.2]) - 0.15) < 1e-12
    assert math.isclose(mean([1, 2]), 1.5)
    assert [mean([1, 2]), mean([3])] == pytest.approx([1.5, 3])
    assert {"m": mean([1, 2])} == {"m": pytest.approx(1.5)}
    assert mean([Fraction(1, 3), Fraction(2, 3)]) == Fraction(1, 2)
    assert mean([Decimal("1.1"), Decimal("2.2")]) == Decimal("1.65")
    assert math.isnan(mean([math.nan])) and mean([math.inf]) == math.inf
    assert mean([1, 3]) == 2 == 2.0


def test_equal_things_of_other_kinds():
    found = parse("a=1, b=x")
    assert found == {"b": "x", "a": 1} == OrderedDict([("a", 1), ("b", "x")])
    assert found == {"a": True, "b": ANY}
    assert found.items() >= {("a", 1)}
    assert list(found) == ["a", "b"] and tuple(found.values()) == (1, "x")
    assert Counter(slug("a b a")) == {"a": 2, "b": 1, "-": 2}
    assert defaultdict(int, found) == found
    assert deque(count_down(2)) == deque([2, 1])
    assert Shade("dark") is Shade.DARK and Shade.LIGHT.value == "light"
    assert bytearray(slug("A").encode()) == b"a"


def test_equality_of_ones_own():
    point = Point(0.1 + 0.2, 1)
    assert point == Point(0.3, 1)
    assert point.moved(1) == Point(1.3, 1) != Point(1.4, 1)
    assert [point] == [Point(0.3, 1.0)] and point != (0.3, 1)
    assert point.moved() is not point
    assert "Point" in repr(point) and f"{id(point):x}" in repr(point)


def test_helpers():
    assert_slug("A b", "a-b")
    assert assert_slug("x") == "x"
    with unchanged([1, 2]) as before:
        assert before == [1, 2]
    things = Stack([1])
    with pytest.raises(AssertionError), unchanged(things):
        things.push(2)


@pytest.mark.parametrize(("text", "wanted"), [("A", "a"), ("a b", "a-b"), ("--", ""), ("é", ""), ("x\n", "x")])
@pytest.mark.parametrize("sep", ["-", "_"], ids=repr)
def test_parameters_name_the_test(text, wanted, sep):
    assert slug(text, sep=sep) == wanted.replace("-", sep)


TABLE = {"one": ("One", "one"), "two": ("Two words", "two-words")}


@pytest.mark.parametrize("name", sorted(TABLE))
def test_a_table(name):
    text, wanted = TABLE[name]
    assert slug(text) == wanted
    assert wanted.startswith(name)


@pytest.mark.parametrize("text", [pytest.param("a", marks=pytest.mark.xfail(strict=True)), "A B"])
def test_some_fail_as_they_must(text):
    assert slug(text) != text
    assert " " not in slug(text)


@pytest.mark.skipif(math.pi > 4, reason="not here")
def test_skipped_elsewhere():
    if slug("a") != "a":
        pytest.skip("cannot be")
    pytest.importorskip("json")
    assert slug("b") == "b"


assert slug("module level") == "module-level"
