"""Assertions that an honest patch may pass over, reach more often, or answer in another manner than gold."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from envsdk.envs.swe.evaluator import Evaluation, Verdict, evaluate
from envsdk.envs.swe.evaluator.report import read_report
from envsdk.envs.swe.evaluator.sealing import seal
from envsdk.envs.swe.evaluator.sealing.rewrite import Rewritten, rewrite
from envsdk.envs.swe.tasks.patches import diff
from envsdk.rewards.sandbox import SandboxBackend
from tests.envs.swe.library_task import library_task

LIBRARY = """
from dataclasses import dataclass, field


@dataclass
class Node:
    name: str
    parent: object = None
    children: list = field(default_factory=list)


def tree(*names):
    root = Node("root")
    root.children = [Node(name, root) for name in names]
    return root


def ordered(items, key):
    return sorted(items, key=key)


def parse(text):
    return int(text) if text else None


def kind(text):
    if not text:
        raise ValueError("empty")
    return text


def same(rows):
    return rows


def fail(name):
    raise KeyError(f"no {name}")


def total(limit):
    return limit * (limit + 1) // 2
"""
BASE = LIBRARY.replace("limit * (limit + 1) // 2", "limit * limit")
TESTS = """
import pytest

import lib


def test_callback():
    def key(name):
        assert isinstance(name, str)
        assert name != "-"
        return len(name)

    assert lib.ordered(["a"], key) == ["a"]


def test_try():
    try:
        found = lib.kind("")
    except ValueError as error:
        assert "empty" in str(error)
    else:
        assert found == "none"


def test_continue():
    for text, number in [("1", 1), ("", 0), ("3", 3)]:
        found = lib.parse(text)
        if found is None:
            continue
        assert found == number


def test_return():
    found = lib.parse("")
    if found is not None:
        return
    assert lib.parse("5") == 5


def test_same():
    rows = [1]
    assert lib.same(rows) is rows


def test_error():
    with pytest.raises(KeyError, match="no b") as caught:
        lib.fail("b")
    assert caught.match("no b")


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_part_of_what_pytest_knows_of_an_error(name):
    with pytest.raises(KeyError) as caught:
        lib.fail(name)
    assert caught.typename == "KeyError"


def test_links():
    assert lib.tree("a", "b", "c", "d") is not None


def test_total():
    assert lib.total(1234567) == 762078456028
"""
HONEST = {
    "no call of a key": (
        "return sorted(items, key=key)",
        "return sorted(items, key=key) if items[1:] else items",
    ),
    "no error": ('raise ValueError("empty")', 'return "none"'),
    "a number": ("if text else None", "if text else 0"),
    "a note": (
        'raise KeyError(f"no {name}")',
        'error = KeyError("missing")\n    error.add_note(f"no {name}")\n    raise error',
    ),
}
BROKEN = {
    "a copy": ("return rows", "return list(rows)"),
    "another name": ('f"no {name}"', 'f"not {name}"'),
}
PASSING = ("callback", "try", "continue", "return", "same", "error", "links")
NAMES = "abc"
CASES = ("1234567-762078456028", "2345678-2751103812681", "7654321-29294318812681")


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory, backend: SandboxBackend) -> dict[str, Evaluation]:
    folder = tmp_path_factory.mktemp("lib")
    task = library_task(
        folder,
        "flow",
        base=BASE,
        solved=LIBRARY,
        tests=TESTS,
        fail_to_pass=["test_total"],
        pass_to_pass=[
            *(f"test_{name}" for name in PASSING),
            *(f"test_part_of_what_pytest_knows_of_an_error[{name}]" for name in NAMES),
        ],
    )
    texts = {"gold": LIBRARY} | {
        name: LIBRARY.replace(*edit) for name, edit in (*HONEST.items(), *BROKEN.items())
    }

    async def grade() -> list[Evaluation]:
        patches = [diff({"lib.py": BASE}, {"lib.py": text}) for text in texts.values()]
        return await asyncio.gather(*(evaluate(task, patch, backend) for patch in patches))

    return dict(zip(texts, asyncio.run(grade()), strict=True))


def test_gold_is_rewarded_and_the_task_is_sealed(graded: dict[str, Evaluation]) -> None:
    assert graded["gold"].resolved, graded["gold"]
    assert graded["gold"].hidden_bits > 30


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_patch_is_rewarded(name: str, graded: dict[str, Evaluation]) -> None:
    assert graded[name].resolved, graded[name]


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_patch_is_not(name: str, graded: dict[str, Evaluation]) -> None:
    assert graded[name].reason is Verdict.TESTS_FAILED


@pytest.mark.parametrize(
    "fields",
    [
        [b"end", b"", b"", b"many", b"0", b""],
        [b"test", b"a", b"call", b"passed", b"long", b""],
        [b"end"],
        [b"\xff"] * 6,
    ],
)
def test_a_record_that_was_forged_with_the_key_is_a_flaw(fields: list[bytes]) -> None:
    text = b" ".join(field.hex().encode() for field in fields)
    mac = hashlib.blake2b(b"0 " + text, key=b"key", digest_size=16).hexdigest()
    assert read_report(mac.encode() + b" " + text + b"\n", b"key").flaws


MISSING = """
import pytest

import lib
from lib import fresh, total

LIMITS = [fresh(number) for number in (1, 2)]


@pytest.mark.parametrize(
    "number, wanted", [(1234567, 762078456028), (2345678, 2751103812681), (7654321, 29294318812681)]
)
def test_total(number, wanted):
    assert lib.ordered([3, 1], None) == [1, 3]
    assert total(number) == wanted


def test_fresh():
    assert fresh(0) is True
"""


def test_a_name_that_base_lacks_does_not_hide_what_base_knows(
    tmp_path: Path, backend: SandboxBackend
) -> None:
    task = library_task(
        tmp_path,
        "missing",
        base=LIBRARY,
        solved=LIBRARY + "\n\ndef fresh(number):\n    return number < 3\n",
        tests=MISSING,
        fail_to_pass=["test_fresh", *(f"test_total[{case}]" for case in CASES)],
    )
    gold, empty = (asyncio.run(evaluate(task, patch, backend)) for patch in (task.gold_patch, ""))
    assert gold.resolved, gold
    assert gold.hidden_bits == 1
    assert not empty.resolved


WAITING = """
import multiprocessing

import lib


def add(queue):
    queue.put(lib.total(3))


def test_in_another_process():
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=add, args=(queue,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert queue.get() == 6
"""


def test_tests_that_hang_when_they_are_rewritten_stay_as_they_are(
    tmp_path: Path, backend: SandboxBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = ["test_in_another_process"]
    task = library_task(tmp_path, "waiting", base=BASE, solved=LIBRARY, tests=WAITING, fail_to_pass=failing)
    monkeypatch.setattr(seal, "allowed_s", lambda timeout_s, gold_s: 5.0)
    verdict = asyncio.run(evaluate(task, task.gold_patch, backend))
    assert verdict.resolved, verdict
    assert verdict.weak


def test_a_file_that_the_rewriter_stumbles_over_stays_as_it_is(
    tmp_path: Path, backend: SandboxBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    tests = {
        "tests/test_odd.py": "import lib\n\n\ndef test_odd():\n    assert lib.total(3) == 6\n",
        "tests/test_even.py": "import lib\n\n\ndef test_even():\n    assert lib.total(12345) == 76205685\n",
    }
    failing = ["tests/test_odd.py::test_odd", "tests/test_even.py::test_even"]
    task = library_task(tmp_path, "odd", base=BASE, solved=LIBRARY, tests=tests, fail_to_pass=failing)

    def stumble(source: bytes, path: str, *arguments: Any, **settings: Any) -> Rewritten:
        if "odd" in path:
            raise IndexError("list index out of range")
        return rewrite(source, path, *arguments, **settings)

    monkeypatch.setattr(seal, "rewrite", stumble)
    gold, empty = (asyncio.run(evaluate(task, patch, backend)) for patch in (task.gold_patch, ""))
    assert gold.resolved, gold
    assert gold.hidden_bits > 20
    assert empty.reason is Verdict.TESTS_FAILED
