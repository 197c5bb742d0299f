"""A small library, and tests of it in the manners in which people write tests."""

from __future__ import annotations

from pathlib import Path

from envsdk.envs.swe.tasks.patches import diff
from envsdk.envs.swe.tasks.task import Task
from tests.envs.swe.library_task import library_task

LIBRARY = '''
import enum
from collections import namedtuple
from dataclasses import dataclass, field
from decimal import Decimal


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


Pair = namedtuple("Pair", "name number")


@dataclass
class Node:
    name: str
    children: list = field(default_factory=list)


class Weight:
    """Compared by its grams."""

    def __init__(self, grams):
        self.grams = grams

    def __eq__(self, other):
        return isinstance(other, Weight) and self.grams == other.grams

    def __lt__(self, other):
        return self.grams < other.grams

    def __hash__(self):
        return hash(self.grams)


class Shouted(str):
    """Text that is written in capital letters, and equal to itself in any."""

    def __eq__(self, other):
        return str.__eq__(self.upper(), str(other).upper())

    def __hash__(self):
        return hash(self.upper())


class BadName(ValueError):
    pass


def words(text):
    """Words with their numbers of letters, in order."""
    return {word: len(word) for word in text.split()}


def parse(text):
    name, _, number = text.partition("=")
    if not name:
        raise BadName(f"no name in {text!r}")
    return Pair(name, int(number))


def tree(*names):
    return Node("root", [Node(name) for name in names])


def weigh(text):
    return Weight(int(text.rstrip("g")))


def color(text):
    return Color(text)


def shout(text):
    return Shouted(text)


def mean(numbers):
    return sum(numbers) / len(numbers)


def money(text):
    return Decimal(text)


def evens(limit):
    yield from range(0, limit, 2)


def report(rows, out):
    for name, number in rows:
        print(f"{name:<4}{number:>3}", file=out)


def notify(listener, names):
    for name in names:
        listener.heard(name, count=len(name))


async def later(value):
    return value + 1


def is_name(text):
    return text.isidentifier()


def first(items, number):
    return items[:number]


def extended(items, item):
    items.append(item)
    return items


def save(folder, text):
    path = folder / "saved.txt"
    path.write_text(text)
    return path
'''

TESTS = '''
"""The documentation says 12, which nobody must read."""
import asyncio
import io
import math
import unittest
from decimal import Decimal
from unittest import mock
from unittest.mock import call

import pytest

import lib
from lib import BadName, Color, Node, Pair, Weight

CASES = [("a bb", 2), pytest.param("a bb ccc", 3, id="three words")]
TABLE = {"x=1": 1, "yy=22": 22}
LENGTHS = {"a": 1, "bb": 2}


@pytest.fixture
def out():
    return io.StringIO()


@pytest.fixture(params=[10, 20])
def limit(request):
    return request.param


def check(text, number, name="x"):
    parsed = lib.parse(text)
    assert parsed.number == number
    assert parsed.name == name


@pytest.mark.parametrize("text, expected", CASES)
def test_number_of_words(text, expected):
    assert len(lib.words(text)) == expected


@pytest.mark.parametrize(("numbers", "expected"), [([1, 2], 1.5), ([2, 2, 5], 3.0)], ids=["is 1.5", "three"])
@pytest.mark.parametrize("factor", [1, 10])
def test_mean(numbers, expected, factor):
    found = lib.mean([number * factor for number in numbers]) / factor
    assert found == pytest.approx(expected)
    assert found == pytest.approx(expected, abs=0.1), f"not {expected}"


def test_lengths():
    assert lib.words("a bb") == LENGTHS
    wanted = {"ccc": 3}
    assert lib.words("ccc") == wanted
    assert list(lib.words("b a")) == ["b", "a"]
    assert "a" in lib.words("a b") and "c" not in lib.words("a b")
    assert 1 <= len(lib.words("a b")) < 3


def test_table():
    for text, number in TABLE.items():
        assert lib.parse(text).number == number
    for text, name in (("x=1", "x"), ("yy=2", "yy")):
        assert lib.parse(text).name == name, name


def test_helper():
    check("x=12", 12)
    check("key=7", 7, name="key")


def test_tuples_with_names():
    assert lib.parse("x=3") == Pair("x", 3)
    assert lib.parse("x=3") == ("x", 3)


def test_errors():
    pair = lib.parse("k=1")
    assert pair.number == 1
    with pytest.raises(BadName, match="no name"):
        lib.parse("=3")
    with pytest.raises(ValueError) as caught:
        lib.parse("=3")
    assert "=3" in str(caught.value)
    text = lib.parse("k=2").name
    lib.words(text)
    pytest.raises(ValueError, lib.color, "green")


def test_data_classes():
    assert lib.tree("a", "b") == Node("root", [Node("a"), Node("b")])
    assert lib.tree() != Node("leaf")


def test_own_equality():
    assert lib.weigh("12g") == Weight(12)
    assert lib.weigh("3g") < Weight(4)
    assert not lib.weigh("3g") == Weight(4)
    assert lib.shout("hello") == "HELLO"


def test_enumerations():
    assert lib.color("red") is Color.RED
    assert lib.color("blue") == Color.BLUE
    assert isinstance(lib.color("red"), Color)


def test_numbers():
    assert lib.money("1.50") == Decimal("1.5")
    assert lib.mean([1, 2, 4]) == 7 / 3
    assert math.isclose(lib.mean([1]), 1)


def test_generators():
    assert list(lib.evens(6)) == [0, 2, 4]
    assert sum(lib.evens(6)) == 6
    for number in lib.evens(6):
        assert number % 2 == 0


def test_limits(limit):
    assert max(lib.evens(limit)) == limit - 2


def test_output(out, capsys):
    lib.report([("a", 1)], out)
    assert out.getvalue() == "a     1\\n"
    lib.report([("b", 2)], None)
    assert capsys.readouterr().out.split() == ["b", "2"]


def test_mocks(monkeypatch):
    listener = mock.Mock()
    lib.notify(listener, ["a", "bb"])
    assert listener.heard.call_args_list == [call("a", count=1), call("bb", count=2)]
    listener.heard.assert_called_with("bb", count=2)
    monkeypatch.setattr(lib, "mean", lambda numbers: 5)
    assert lib.mean([1]) == 5


def test_coroutines():
    async def play():
        assert await lib.later(1) == 2
        return await lib.later(5)

    assert asyncio.run(play()) == 6


def test_truths():
    assert lib.is_name("abc")
    assert not lib.is_name("1a")
    assert lib.is_name("b2") and not lib.is_name("")


def test_inputs_that_are_answers_too():
    names = ["anna", "ben", "clara"]
    assert lib.first(names, 2) == names[:2]
    assert lib.first(names[0], 1) == names[0][0]
    assert lib.extended(names, "dan") == names
    assert names[-1] == "dan"


def test_files(tmp_path):
    path = lib.save(tmp_path, "hello")
    assert path.read_text() == "hello"
    assert path == tmp_path / "saved.txt"


def test_that_catches():
    with pytest.raises(AssertionError):
        assert lib.mean([1]) == 2
    try:
        assert lib.mean([3]) == 2
    except AssertionError:
        pass
    else:
        pytest.fail("it is 3")


@pytest.mark.xfail
def test_that_is_expected_to_fail():
    assert lib.mean([1]) == 2


class WordsTest(unittest.TestCase):
    def setUp(self):
        self.found = lib.words("a bb")

    def test_methods(self):
        self.assertEqual(self.found, {"a": 1, "bb": 2})
        self.assertTrue(lib.is_name("x"))
        self.assertFalse(lib.is_name("-"), "a sign")
        self.assertIsNone(self.found.get("c"))
        self.assertIn("a", self.found)
        self.assertAlmostEqual(lib.mean([1, 2]), 1.5000001, places=5)
        self.assertCountEqual(lib.evens(5), [4, 2, 0])
        self.assertRegex(str(lib.parse("a=1")), r"number=\\d")
        self.assertIsInstance(lib.parse("a=1"), tuple)

    def test_errors(self):
        with self.assertRaises(BadName) as caught:
            lib.parse("")
        self.assertIn("no name", str(caught.exception))
        with self.assertRaisesRegex(ValueError, "green"):
            lib.color("green")
        self.assertRaises(ZeroDivisionError, lib.mean, [])

    def test_parts(self):
        for text, number in [("a", 1), ("a b", 2)]:
            with self.subTest(text=text, number=number):
                self.assertEqual(len(lib.words(text)), number)
'''

BROKEN = {
    "words": ("len(word) for word", "1 for word"),
    "parse": ("if not name:", "if not text:"),
    "number": ("int(number))", "int(number) + 1)"),
    "tree": ("[Node(name) for name in names]", "[Node(name.upper()) for name in names]"),
    "weigh": ('int(text.rstrip("g"))', 'int(text.rstrip("g")) + 1'),
    "color": ("return Color(text)", "return Color.RED"),
    "shout": ("return Shouted(text)", "return Shouted(text + '!')"),
    "mean": ("/ len(numbers)", "/ 2"),
    "money": ("return Decimal(text)", "return Decimal(text) * 2"),
    "evens": ("range(0, limit, 2)", "range(0, limit + 1, 2)"),
    "report": ("{number:>3}", "{number:>4}"),
    "notify": ("count=len(name)", "count=0"),
    "later": ("value + 1", "value"),
    "is_name": ("text.isidentifier()", "bool(text)"),
    "first": ("return items[:number]", "return items[: number + 1]"),
    "extended": ("    items.append(item)\n    return items", "    return [*items, item]"),
    "save": ("path.write_text(text)", "path.write_text(text.upper())"),
}
"""What to replace in the library, and by what."""

HONEST = {
    "subclasses of built-in classes": (
        "return {word: len(word) for word in text.split()}",
        "import collections\n    found = collections.OrderedDict()\n    for word in text.split():\n"
        "        found[word] = len(word)\n    return found",
    ),
    "a whole number in place of a fraction": (
        "return sum(numbers) / len(numbers)",
        "found = sum(numbers) / len(numbers)\n    return int(found) if found == int(found) else found",
    ),
    "another class of error, with more text": (
        'raise BadName(f"no name in {text!r}")',
        'raise type("EmptyName", (BadName,), {})(f"there is no name in {text!r}: write NAME=NUMBER")',
    ),
    "a class of error by an alias": (
        "class BadName(ValueError):\n    pass",
        "class MissingName(ValueError):\n    pass\n\n\nBadName = MissingName",
    ),
    "a class of error that a function defines": (
        "class BadName(ValueError):\n    pass",
        "def _error():\n    class BadName(ValueError):\n        pass\n\n    return BadName\n\n\n"
        "BadName = _error()",
    ),
    "a list in place of a generator": ("yield from range(0, limit, 2)", "return list(range(0, limit, 2))"),
    "a field more": (
        "children: list = field(default_factory=list)",
        "children: list = field(default_factory=list)\n    parent: object = None",
    ),
    "other inner values": (
        "self.grams = grams",
        "self.kilograms = grams / 1000\n\n    @property\n    def grams(self):\n"
        "        return round(self.kilograms * 1000)",
    ),
    "numbers with more digits": ("return Decimal(text)", 'return Decimal(text).quantize(Decimal("0.0001"))'),
    "words that a checker of words would refuse": (
        "def is_name(text):",
        'def is_name(text):\n    """See conftest.py, sys.modules, __eq__ and pytest."""',
    ),
}


def changed(old: str, new: str) -> str:
    assert LIBRARY.count(old) == 1, old
    return diff({"lib.py": BASE}, {"lib.py": LIBRARY.replace(old, new)})


BASE = LIBRARY.replace("len(word) for word", "1 for word").replace("if not name:", "if not text:")
"""The library with two bugs."""


def make_task(folder: Path) -> Task:
    return library_task(
        folder,
        "lib",
        base=BASE,
        solved=LIBRARY,
        tests=TESTS,
        fail_to_pass=(
            "test_lengths",
            "test_errors",
            "WordsTest::test_methods",
        ),
        pass_to_pass=(
            *(f"test_{name}" for name in PASSING),
            *(f"test_mean[{factor}-{case}]" for factor in (1, 10) for case in MEANS),
            "test_number_of_words[a bb-2]",
            "test_number_of_words[three words]",
            "test_limits[10]",
            "WordsTest::test_errors",
            "WordsTest::test_parts",
        ),
    )


MEANS = ("is 1.5", "three")
PASSING = (
    *("table", "helper", "tuples_with_names", "data_classes", "own_equality", "enumerations", "numbers"),
    *("generators", "output", "mocks", "coroutines", "truths", "inputs_that_are_answers_too"),
    *("files", "that_catches"),
)
