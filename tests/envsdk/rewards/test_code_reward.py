"""The reward `code`, with real sandboxes: where bubblewrap cannot run these tests fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.code import CodeReward
from envsdk.rewards.loading import load_reward
from envsdk.rewards.reward import Reward, RewardError, Sample
from tests.by_day import by_day

pytestmark = pytest.mark.asyncio(loop_scope="module")

ADD = "def add(a, b):\n    return a + b\n"
INPUT = {
    "case_type": "input",
    "test_cases": json.dumps(
        [{"stdin": f"{a} {b}\n", "expected_stdout": f"{a + b}\n"} for a, b in [(1, 2), (5, 7)]]
    ),
}
CALLS = {"inputs": [[1, 2], [3, 4]], "outputs": [3, 7], "fn_name": "add"}
TESTS = """
from solution import add
def test_small():
    assert add(1, 2) == 3
def test_more():
    assert add(3, 4) == 7
"""
CHECK = """def check(candidate):
    assert candidate(1, 2) == 3
    assert candidate(3, 4) == 7
"""
ROWS: dict[str, dict[str, Any]] = {
    "roll input": INPUT,
    "roll function": {
        "case_type": "input",
        "test_case_function": "add",
        "test_cases": [{"stdin": "1\n2", "expected_stdout": "3"}, {"stdin": "3\n4", "expected_stdout": "7"}],
    },
    "roll assert": {"case_type": "assert", "test_cases": ["assert add(1, 2) == 3", "assert add(3, 4) == 7"]},
    "roll pytest": {"case_type": "pytest", "test_cases": json.dumps([{"assert_code": TESTS}])},
    "roll check": {
        "case_type": "check_based",
        "test_cases": [
            {
                "assert_code": CHECK,
                "entry_point": "add",
                "import_prefix": "import math\n",
            }
        ],
    },
    "kodcode": {"test": TESTS, "solution": ADD},
    "mbpp": {"test_list": ["assert add(1, 2) == 3", "assert add(3, 4) == 7"], "code": ADD},
    "apps": {"input_output": json.dumps(CALLS)},
    "taco": CALLS,
    "verl": {"ground_truth": json.dumps(CALLS)},
    "livecodebench": {
        "public_test_cases": json.dumps(
            [{"input": "[1]\n2", "output": "[1, 2]", "testtype": "functional"}] * 2
        ),
        "fn_name": "append",
    },
}
PROGRAMS = {
    "roll input": "a, b = map(int, input().split())\nprint(a + b)",
    "livecodebench": "class Solution:\n    def append(self, xs: List[int], x: int):\n        return xs + [x]",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def code(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CodeReward]:
    state = tmp_path_factory.mktemp("state") / "sandboxes"
    reward = load_reward(
        "envsdk.rewards.code:CodeReward",
        {
            "reward_type": "soft",
            "cpu_time_s": 1,
            "total_time_s": 8.0,
            "program_memory_mb": 300,
            "backend_settings": {"state_dir": str(state)},
        },
    )
    assert isinstance(reward, CodeReward)
    yield reward
    await reward.close()


async def scored(code: CodeReward, row: dict[str, Any], program: str) -> Reward:
    return await code.score_async(Sample(response=f"Here it is:\n```python\n{program}\n```\n", row=row))


@pytest.mark.parametrize("name", ROWS)
async def test_a_right_program_passes_and_a_changed_one_does_not(name: str, code: CodeReward) -> None:
    program = PROGRAMS.get(name, ADD)
    right = await scored(code, ROWS[name], program)
    assert (right.value, right.success, right.parts["passed"]) == (1, True, 2), right
    changed = program.replace("a + b", "a + b + (a > 1)").replace("xs + [x]", "xs + [x, x]")
    wrong = await scored(code, ROWS[name], changed)
    assert wrong.value == (0 if name == "livecodebench" else 0.5)
    assert not wrong.success
    assert wrong.verdict.startswith(("1 of 2", "0 of 2"))


async def test_humaneval_completes_the_prompt_in_its_reference(code: CodeReward) -> None:
    row = {
        "prompt": "def add(a, b):\n    '''Add.'''\n",
        "canonical_solution": "    return a + b\n",
        "entry_point": "add",
        "test": "def check(candidate):\n    for n in range(3):\n        assert candidate(n, 1) == n + 1\n",
    }
    reference = code.reference(Sample(response="", row=row))
    assert reference is not None
    assert (await code.score_async(Sample(response=reference, row=row))).success


async def test_tests_about_the_text_see_it_as_it_is(code: CodeReward) -> None:
    row = {
        "case_type": "text",
        "test_cases": ["assert len({response}.split()) == 3", "assert 'a' in {response}"],
    }
    text = "a 'quote''' \\"
    assert (await code.score_async(Sample(response=text, row=row))).success
    forged = "'''; raise SystemExit(0) #"
    assert (await code.score_async(Sample(response=forged, row=row))).value < 1


CLASSES = """
from solution import Stack, EmptyStack, countdown, sort_in_place, apply, shout, default
import pytest, io, math
from contextlib import redirect_stdout

@pytest.fixture
def stack():
    return Stack([1])

def test_methods_and_operators(stack):
    stack.push(2)
    assert len(stack) == 2 and 2 in stack and [*stack] == [1, 2]
    assert stack == Stack([1, 2]) and isinstance(stack, Stack)
    assert stack.top == 2 and stack[0] == 1

def test_exceptions():
    with pytest.raises(EmptyStack, match="nothing"):
        Stack([]).pop()
    with pytest.raises(TypeError):
        Stack(1, 2, 3)

def test_generators_callbacks_and_arguments():
    assert list(countdown(3)) == [3, 2, 1]
    numbers = [3, 1, 2]
    assert sort_in_place(numbers) is None and numbers == [1, 2, 3]
    assert apply(lambda x: x + 1, (1, 2)) == (2, 3)

def test_prints(capsys):
    shout("x")
    assert capsys.readouterr().out == "X\\n"
    with redirect_stdout(io.StringIO()) as out:
        shout("y")
    assert out.getvalue() == "Y\\n"

class TestMore:
    @pytest.mark.parametrize("n, expected", [(1, 2), pytest.param(2, 4)])
    def test_values(self, n, expected):
        assert default({"a": n})["a"] * 2 == pytest.approx(expected)
"""
STACK = """
class EmptyStack(ValueError):
    pass

class Stack:
    def __init__(self, items):
        self.items = list(items)
    def push(self, item):
        self.items.append(item)
    def pop(self):
        if not self.items:
            raise EmptyStack("nothing is left")
        return self.items.pop()
    @property
    def top(self):
        return self.items[-1]
    def __len__(self):
        return len(self.items)
    def __contains__(self, item):
        return item in self.items
    def __iter__(self):
        return iter(self.items)
    def __getitem__(self, index):
        return self.items[index]
    def __eq__(self, other):
        return self.items == other.items

def countdown(n):
    while n:
        yield n
        n -= 1

def sort_in_place(xs):
    xs.sort()

def apply(f, xs):
    return tuple(f(x) for x in xs)

def shout(text):
    print(text.upper())

def default(d):
    return defaultdict(int, d)
"""


async def test_unit_tests_use_classes_exceptions_generators_callbacks_and_fixtures(code: CodeReward) -> None:
    reward = await scored(code, {"test": CLASSES}, STACK)
    assert (reward.verdict, reward.value) == ("6 of 6 tests pass", 1)


async def test_what_derives_from_a_builtin_is_compared_as_it(code: CodeReward) -> None:
    program = """
class Size(enum.IntEnum):
    SMALL = 1
class Point(NamedTuple):
    x: int
    y: int
def size():
    return Size.SMALL
def corner():
    return Point(1, 2)
"""
    row = {"test_list": ["assert size() == 1", "assert corner() == (1, 2)"]}
    assert (await scored(code, row, f"import enum\n{program}")).value == 1


@pytest.mark.parametrize(
    "class_of_tests", ["AddTests(unittest.TestCase)", "T(unittest.TestCase)", "Sum(TestCase)"]
)
async def test_unittest_cases_are_tests_whatever_their_name(code: CodeReward, class_of_tests: str) -> None:
    test = f"""
import unittest
from unittest import TestCase
from solution import add
class {class_of_tests}:
    def setUp(self):
        self.three = 3
    def test_right(self):
        self.assertEqual(add(1, 2), self.three)
    def test_wrong(self):
        self.assertEqual(add(1, 1), self.three)
"""
    reward = await scored(code, {"test": test}, ADD)
    assert reward.value == 0.5


SUM = "a, b = map(int, input().split())\n"


@pytest.mark.parametrize(
    "ending",
    [
        "print(a + b)\nexit()\nprint(0)",
        "print(a + b); quit()",
        "print(a + b)\nexit(0)",
        "if a < 10**9:\n    print(a + b)\n    exit()\nprint(0)",
        "def main():\n    print(a + b)\n    quit(0)\nmain()",
        "import numpy\nprint(a + b)\nexit()",
        "import sys\nprint(a + b)\nsys.exit()",
    ],
)
async def test_a_program_may_end_itself_as_in_python(code: CodeReward, ending: str) -> None:
    row = {"inputs": ["1 2", "3 4"], "outputs": ["3", "7"]}
    assert (await scored(code, row, SUM + ending)).value == 1


@pytest.mark.parametrize("ending", ["exit(1)", "quit('failed')"])
async def test_a_program_that_ends_itself_with_an_error_is_wrong(code: CodeReward, ending: str) -> None:
    row = {"inputs": ["1 2"], "outputs": ["3"]}
    assert (await scored(code, row, f"{SUM}print(a + b)\n{ending}")).value == 0


CHEATS_WITH_INPUT = {
    "loops": ("while True: pass", "more than 1 s of CPU time"),
    "takes memory": ("x = [0] * 10**9", "MemoryError"),
    # A slow machine reaches the limit on CPU time before the one on recursion.
    "recurses": ("f = lambda: f()\nf()", ""),
    "forks": ("import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass", ""),
    "crashes": ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "signal 11"),
    "floods": ("while True: print('x' * 10000)", "printed much more"),
    "deletes": ("import shutil\nshutil.rmtree('/testbed')\nshutil.rmtree('/tmp')", ""),
    "leaves": ("raise SystemExit(0)", "printed ''"),
    "leaves at once": ("import os\nos._exit(0)", "printed ''"),
    "kills its parent": ("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)", "ended what runs it"),
    "kills everything": ("import os, signal\nos.kill(-1, signal.SIGKILL)", ""),
    "looks for answers": (
        "import os\nfor d in ('/run', '/testbed', '/tmp', '/opt', '/etc'):\n  for d, _, fs in os.walk(d):\n"
        "    for f in fs:\n      try: print(open(os.path.join(d, f)).read())\n      except Exception: pass",
        "",
    ),
    "forges a report": ("import os\nos.write(1, b'exit:0 1 Mw== =\\ndone\\n')", "printed"),
    "calls out": ("import socket\nsocket.create_connection(('1.1.1.1', 53), 2)", "Error"),
    "is no Python": ("this is no program", "SyntaxError"),
}


@pytest.mark.parametrize(
    "name", by_day(set(CHEATS_WITH_INPUT) - {"forks", "loops", "recurses"}, CHEATS_WITH_INPUT)
)
async def test_what_a_program_does_to_itself_is_a_wrong_answer(name: str, code: CodeReward) -> None:
    program, reason = CHEATS_WITH_INPUT[name]
    reward = await scored(code, INPUT, program)
    assert reward.value == 0
    assert reason in reward.verdict, reward


LIAR = "class Add:\n    def __init__(self, *a): pass\n" + "".join(
    f"    def __{name}__(self, *a): return True\n" for name in ("eq", "contains", "bool", "call", "lt", "gt")
)
ZERO = "\ndef add(a, b):\n    return 0\n"
REPORT = """
import os, sys
for pid in [1, os.getppid(), *range(1, 40)]:
    for fd in (1, 2, 3, 4, 5, 6, 7, 8):
        try:
            with open(f"/proc/{pid}/fd/{fd}", "wb", buffering=0) as f:
                f.write(b'\\nready\\n["done"]\\n')
        except OSError:
            pass
"""
READS_PARENT = """
import os
def add(a, b):
    for name in ("mem", "environ", "maps", "fd/0"):
        try:
            return open(f"/proc/{os.getppid()}/{name}", "rb").read().count(b"==")
        except OSError:
            pass
"""
COMPARISON = """
import operator, sys
operator.eq = lambda a, b: True
for m in list(sys.modules.values()):
    if hasattr(m, "Report"):
        m.Report.tell = print
"""
FRAMES = """
import sys
def add(a, b):
    f = sys._getframe()
    while f:
        f.f_globals.update(test_small=lambda: 1)
        f = f.f_back
"""
SIGNALS = """
import os
for s in range(1, 32):
    if s not in (9, 19):
        os.kill(os.getppid(), s)
"""
DEEP = """
def add(a, b):
    x = []
    for _ in range(100000):
        x = [x]
    return x
"""
CHEATS_WITH_TESTS = {
    "leaves": "import sys\nsys.exit(0)",
    "leaves in the call": "import os\ndef add(a, b):\n    os._exit(0)",
    "raises SystemExit": "def add(a, b):\n    raise SystemExit(0)",
    "equals everything": LIAR + "def add(a, b):\n    return Add()",
    "equals everything by name": LIAR.replace("Add", "add"),
    "is an int that equals": "class I(int):\n    __eq__ = lambda *_: True\ndef add(a, b):\n    return I(0)",
    "is a list that equals": "class L(list):\n    __eq__ = lambda *_: True\ndef add(a, b):\n    return L()",
    "changes builtins": "import builtins\nbuiltins.AssertionError = Exception\nbuiltins.len = 1" + ZERO,
    "changes the comparison": COMPARISON + ZERO,
    "changes its caller's frames": FRAMES,
    "prints what passing looks like": "print('2 passed')" + ZERO,
    "writes into the report": REPORT + ZERO,
    "reads its parent": READS_PARENT,
    "kills its parent": "import os\nos.kill(os.getppid(), 9)" + ZERO,
    "sends signals to its parent": SIGNALS + ZERO,
    "loops": "def add(a, b):\n    while True: pass",
    "loops at once": "while True: pass",
    "answers without an end": "def add(a, b):\n    return iter(int, 1)",
    "answers with too much": "def add(a, b):\n    return 'x' * (20 << 20)",
    "answers in depth": DEEP,
    "defines nothing": "x = 1",
    "is no Python": "def add(:",
}


@pytest.mark.parametrize("name", by_day(set(CHEATS_WITH_TESTS) - {"loops at once"}, CHEATS_WITH_TESTS))
async def test_no_program_forges_a_passed_test(name: str, code: CodeReward) -> None:
    for row in (ROWS["kodcode"], ROWS["mbpp"]):
        reward = await scored(code, row, CHEATS_WITH_TESTS[name])
        assert reward.value == 0, reward
        assert reward.verdict


@pytest.mark.parametrize(
    ("written", "verdict"),
    [
        ('["c", ["fractions.Fraction", ["1e6"]]]', "returned ['c', ['fractions.Fraction', ['1e6']]], not 3"),
        ("3]", "returned what is no value: JSONDecodeError"),
        ("9" * 5000, "returned an integer of more than 4000 digits"),
        ("x" * 1_000_000, "printed much more than is expected"),
    ],
    ids=lambda text: text[:30],
)
async def test_what_a_program_writes_for_its_function_is_read_within_bounds(
    written: str, verdict: str, code: CodeReward
) -> None:
    program = f"import os\nos.write(3, {written!r}.encode())\nos._exit(0)\ndef add(a, b):\n    return 0"
    reward = await scored(code, {**ROWS["taco"], "inputs": [[1, 2]], "outputs": [3]}, program)
    assert reward.value == 0
    assert reward.verdict == f"0 of 1 cases pass; case 1 {verdict}"


async def test_a_forged_report_makes_no_long_verdict(code: CodeReward) -> None:
    program = """
import os
for pid in (os.getppid(), 2, 3):
    try:
        out = os.open(f"/proc/{pid}/fd/1", os.O_WRONLY)
        os.write(out, b"signal:" + b"9" * 9000 + b" 1 = =\\n")
    except OSError:
        pass
def add(a, b):
    return 0
"""
    assert len((await scored(code, ROWS["taco"], program)).verdict) < 500


async def test_what_tests_expect_is_not_in_the_programs_process(code: CodeReward) -> None:
    """The program looks for it in its own memory, and in each process and file that it may read."""
    look = """
import os
def answer():
    for pid in ("self", *(p for p in os.listdir("/proc") if p.isdigit())):
        try:
            with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as mem:
                for line in maps:
                    start, end = (int(x, 16) for x in line.split()[0].split("-"))
                    if "rw" in line:
                        mem.seek(start)
                        i = mem.read(end - start).find(b"SECRET" + b"-")
                        if i >= 0:
                            mem.seek(start + i)
                            return mem.read(13).decode("latin1")
        except (OSError, ValueError, OverflowError):
            pass
    for path in ("/run/command", "/proc/1/environ"):
        try:
            content = open(path, "rb").read()
            i = content.find(b"SECRET" + b"-")
            if i >= 0:
                return content[i : i + 13].decode()
        except OSError:
            pass
    return ""
"""
    row = {"test_list": ["assert answer() == 'SECRET-314159'"]}
    assert (await scored(code, row, look)).value == 0
    assert (await scored(code, row, "def answer(): return 'SECRET-314159'")).value == 1


async def test_a_row_without_usable_tests_is_masked_and_named(code: CodeReward) -> None:
    bad_rows: list[dict[str, Any]] = [
        {},
        {"test_cases": "[]"},
        {"test_cases": "{"},
        {"test_list": ["assert add(1, 2) =="]},
        {"test": "x = 1"},
        {"inputs": ["1"], "outputs": []},
        {"test_cases": [{"stdin": "1"}]},
    ]
    for row in bad_rows:
        assert code.problem(row)
        with pytest.raises(RewardError, match="row cannot be used"):
            await scored(code, row, ADD)
    for row in ROWS.values():
        assert code.problem(row) is None


async def test_tests_that_need_a_package_that_is_not_there_are_masked(code: CodeReward) -> None:
    with pytest.raises(RewardError, match="no_such_package"):
        await scored(code, {"test_list": ["import no_such_package", "assert add(1, 2) == 3"]}, ADD)
    reward = await scored(code, ROWS["mbpp"], "import no_such_package\n" + ADD)
    assert reward.value == 0


async def test_many_at_once_are_all_judged(code: CodeReward) -> None:
    programs = [ADD if number % 2 else ADD.replace("+", "-") for number in range(24)]
    rewards = await asyncio.gather(*(scored(code, CALLS, program) for program in programs))
    assert [reward.value for reward in rewards] == [number % 2 for number in range(24)]


async def test_a_sandbox_that_cannot_start_masks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envsdk.rewards.sandbox.bubblewrap.sandbox._LAUNCHER_PATH", str(tmp_path))
    reward = CodeReward(CodeReward.Args(backend_settings={"state_dir": str(tmp_path / "state")}))
    with pytest.raises(RewardError, match="sandbox"):
        await scored(reward, CALLS, ADD)
    await reward.close()


async def test_programs_are_never_run_without_a_sandbox() -> None:
    consent = {"commands_may_do_anything_to_this_machine": True}
    with pytest.raises(ConfigurationError, match="in a sandbox only"):
        CodeReward(CodeReward.Args(backend="unsandboxed", backend_settings=consent))


async def test_hard_is_all_or_nothing(tmp_path: Path) -> None:
    reward = CodeReward(CodeReward.Args(backend_settings={"state_dir": str(tmp_path / "state")}))
    half = await scored(reward, CALLS, "def add(a, b): return 3")
    assert (half.value, half.parts["share"]) == (0, 0.5)
    assert "case 2 returned 3, not 7" in half.verdict
    await reward.close()
