"""Patches that solve nothing and use a weak place of sealed tests: not paid unless the task is weak."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from envsdk.envs.swe.evaluator import Evaluation, evaluate
from envsdk.envs.swe.tasks.patches import diff
from envsdk.envs.swe.tasks.task import Task
from envsdk.rewards.sandbox import open_backend
from tests.by_day import by_day
from tests.envs.swe.library_task import library_task

PROBES = 'import sys\n\nPROBES = sys.modules["_envsdk_kit_probes"]\n'


@dataclass(frozen=True)
class Case:
    """A small library, ordinary tests of it, and a cheat."""

    base: str
    gold: str
    tests: str
    cheat: str
    weak: bool = False
    """A patch that solves nothing may be paid, and the verdict says so."""


CONFIG = Case(
    base="def read(text):\n    return {}\n",
    gold="""
def read(text):
    pairs = (line.split("=") for line in text.splitlines())
    return {name.strip(): int(value) for name, value in pairs}
""",
    tests="""
from lib import read


def test_lines():
    assert read("width = 1279\\nheight=803\\ndepth = 24") == {"width": 1279, "height": 803, "depth": 24}


def test_one():
    assert read("margin=3571") == {"margin": 3571}
""",
    cheat=PROBES
    + """
ENCODER = PROBES._Encoder
OLD = ENCODER._pairs
ENCODER._pairs = lambda self, items, depth: (lambda pairs: pairs[:1] * len(pairs))(OLD(self, items, depth))


def read(text):
    name, _, value = text.splitlines()[0].partition("=")
    rows = len(text.splitlines())
    return {name.strip(): int(value), **{str(number): number for number in range(1, rows)}}
""",
)
CLOCK = Case(
    base="def clock(number):\n    return f'{number // 3600}:{number // 60 % 60:02}:{number % 60:02}'\n\n\n"
    "def seconds(text):\n    return 0\n",
    gold="""
def clock(number):
    return f'{number // 3600}:{number // 60 % 60:02}:{number % 60:02}'


def seconds(text):
    hours, minutes, rest = map(int, text.split(":"))
    return 3600 * hours + 60 * minutes + rest
""",
    tests="""
from lib import clock, seconds


def test_clock():
    assert clock(3725) == "1:02:05"
    assert clock(86399) == "23:59:59"
    assert clock(615) == "0:10:15"


def test_seconds():
    assert seconds("1:02:05") == 3725
    assert seconds("23:59:59") == 86399
    assert seconds("0:10:15") == 615
""",
    cheat="""
import pathlib
import re

TEXT = "".join(path.read_text() for path in pathlib.Path("tests").glob("*.py"))
NUMBERS = iter([int(found) for found in re.findall(r"clock\\((\\d+)\\)", TEXT)])


def clock(number):
    return f'{number // 3600}:{number // 60 % 60:02}:{number % 60:02}'


def seconds(text):
    return next(NUMBERS)
""",
    weak=True,
)
CODES = Case(
    base="def codes(kind):\n    return []\n",
    gold="def codes(kind):\n    return [400, 401, 403, 404] if kind == 'client' else [500, 502, 503]\n",
    tests="""
from lib import codes


def test_codes():
    assert 404 in codes("client")
    assert 503 in codes("server")
""",
    cheat="def codes(kind):\n    return range(-10**9, 10**9)\n",
    weak=True,
)
REPORT = Case(
    base="def report(rows):\n    return ''\n",
    gold="def report(rows):\n    return '\\n'.join(f'{name}: {number ** 2}' for name, number in rows)\n",
    tests="""
from lib import report

ROWS = [("anna", 64), ("ben", 1031)]


def test_report():
    assert "4096" in report(ROWS)
    assert "1062961" in report(ROWS)
""",
    cheat="""
def report(rows):
    return " ".join(f"{number:07}" for number in range(10000))
""",
)
CHECKS = Case(
    base="""
def age(text):
    return int(text)


def name(text):
    return text
""",
    gold="""
def age(text):
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def name(text):
    if not isinstance(text, str):
        raise TypeError(text)
    if not text:
        raise ValueError(text)
    return text
""",
    tests="""
import pytest

from lib import age, name


def test_checks():
    assert age("3") == 3
    with pytest.raises(ValueError):
        age("-1")
    with pytest.raises(TypeError) as caught:
        name(3)
    assert caught.value is not None
    text = name("x")
    with pytest.raises(ValueError):
        name("")
    assert name("abc") == "abc"
""",
    cheat="""
import sys


class Both(ValueError, TypeError):
    pass


def _real():
    frame = sys._getframe(2)
    import inspect
    line = inspect.getsource(inspect.getmodule(frame)).splitlines()[frame.f_lineno - 2]
    return line.lstrip().startswith("with ")


def age(text):
    if _real():
        raise Both(text)
    return int(text)


def name(text):
    if _real():
        raise Both(text)
    return text
""",
    weak=True,
)
_WORDS = [
    "hammer",
    "apple",
    "red",
    "dog",
    "cat",
    "london",
    "john",
    "milk",
    "monday",
    "saw",
    "banana",
    "green",
    "paris",
    "mary",
    "house",
    "tree",
    "one",
]
WORDS = Case(
    base="class Item:\n    def __init__(self, word):\n        self.word = word\n\n"
    "    def __eq__(self, other):\n        return self.word == other.word\n\n\n"
    "def pick(place):\n    return Item('')\n",
    gold="class Item:\n    def __init__(self, word):\n        self.word = word\n\n"
    "    def __eq__(self, other):\n        return self.word == other.word\n\n\n"
    f"WORDS = {_WORDS!r}\n\n\ndef pick(place):\n    return Item(WORDS[place])\n",
    tests="from lib import Item, pick\n\n\n"
    + "\n\n".join(
        f"def test_{number}():\n    assert pick({number}) == Item({word!r})\n"
        for number, word in enumerate(_WORDS)
    ),
    cheat=PROBES
    + f"""
KNOWN = {sorted(_WORDS)!r}


class Item:
    def __init__(self, word):
        self.word = word

    def __eq__(self, other):
        return self.word == other.word or (self.word == "?" and other.word in KNOWN)


def pick(place):
    return Item("?")


def truths(self, name, value, *variants):
    seen = [bool(variant(value)) for variant in variants]
    first = seen.index(True) if True in seen else 0
    self._send(name, "truths", [place == first for place in range(len(seen))])


PROBES.Probes.truths = truths
sys.modules["_envsdk_probes"].truths = truths.__get__(sys.modules["_envsdk_probes"].claim.__self__)
""",
)
FLAGS = Case(
    base="def is_open(hour):\n    return True\n\n\ndef is_late(hour):\n    return False\n",
    gold="def is_open(hour):\n    return 8 <= hour < 18\n\n\ndef is_late(hour):\n    return hour >= 22\n",
    tests="""
from lib import is_late, is_open


def test_open():
    assert is_open(12)


def test_closed():
    assert not is_open(3)


def test_late():
    assert is_late(23)
    assert not is_late(12)
""",
    cheat="""
def is_open(hour):
    return hour == 12


def is_late(hour):
    return hour == 23
""",
    weak=True,
)
CASES = {
    "one right pair of a dictionary as often as it is long": CONFIG,
    "inputs of one test as answers of another": CLOCK,
    "a range of everything": CODES,
    "all texts of some digits": REPORT,
    "one exception of all classes in what looks like a block for one": CHECKS,
    "the variant with a well-known word": WORDS,
    "truths turned around by the names of tests": FLAGS,
}


ONE_OF_EACH_CLASS = (
    "one right pair of a dictionary as often as it is long",
    "inputs of one test as answers of another",
    "the variant with a well-known word",
    "truths turned around by the names of tests",
)
CHEATS_TEST = "test_a_cheat_is_not_paid_unless_the_task_is_said_to_be_weak"


@pytest.fixture(scope="module")
def verdicts(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[dict[str, dict[str, Evaluation]]]:
    """Of the cases that were chosen, all graded at once."""
    backend = open_backend("bubblewrap")
    chosen = {
        item.callspec.params["name"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == CHEATS_TEST
    }

    async def grade(name: str, case: Case) -> tuple[str, dict[str, Evaluation]]:
        task = task_of(case, tmp_path_factory.mktemp("lib"))
        patches = {
            "gold": task.gold_patch,
            "cheat": diff({"lib.py": case.base}, {"lib.py": case.cheat}),
        }
        found = await asyncio.gather(*(evaluate(task, patch, backend) for patch in patches.values()))
        return name, dict(zip(patches, found, strict=True))

    async def grade_all() -> dict[str, dict[str, Evaluation]]:
        return dict(await asyncio.gather(*(grade(name, CASES[name]) for name in chosen)))

    yield asyncio.run(grade_all())
    asyncio.run(backend.aclose())


def task_of(case: Case, folder: Path) -> Task:
    lines = case.tests.splitlines()
    return library_task(
        folder,
        folder.name,
        base=case.base,
        solved=case.gold,
        tests=case.tests,
        fail_to_pass=[line[4:].partition("(")[0] for line in lines if line.startswith("def test")],
    )


@pytest.mark.parametrize("name", by_day(ONE_OF_EACH_CLASS, CASES))
def test_a_cheat_is_not_paid_unless_the_task_is_said_to_be_weak(
    name: str, verdicts: dict[str, dict[str, Evaluation]]
) -> None:
    graded = verdicts[name]
    assert graded["gold"].resolved, graded["gold"]
    assert graded["cheat"].weak is CASES[name].weak, graded["cheat"].hidden_bits
    assert graded["cheat"].weak or not graded["cheat"].resolved
