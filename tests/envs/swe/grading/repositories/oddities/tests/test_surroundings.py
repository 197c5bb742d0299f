import doctest
import gc
import inspect
import json
import os
import random
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from unittest import mock

import pytest

import oddities
from oddities import Point, Pool, Stack, describe, guess, new_id, slug
from oddities import core

_SEEN = []
DATA = Path(__file__).with_name("cases.json")


def test_what_is_never_the_same(tmp_path):
    assert new_id() != new_id()
    assert len(new_id()) == 32
    thing = object()
    assert describe(thing) == f"a object at {id(thing):#x}"
    assert hex(id(tmp_path)) in describe(tmp_path)
    started = time.perf_counter()
    assert slug(str(tmp_path)).endswith(slug(tmp_path.name))
    assert time.perf_counter() - started < 60
    assert str(os.getpid()) == slug(str(os.getpid()))
    assert {new_id() for _ in range(5)}.isdisjoint({new_id()})


def test_seeded():
    chance = random.Random(7)
    values = [chance.random() for _ in range(3)]
    chance.seed(7)
    assert values == [chance.random() for _ in range(3)]
    assert oddities.mean(values) == oddities.mean(reversed(values))


def test_threads():
    seen = []

    def work(number):
        assert number >= 0
        seen.append(number)
        return -number

    assert Pool().map(work, range(20)) == [-number for number in range(20)]
    assert sorted(seen) == list(range(20)) and len(set(seen)) == 20
    assert threading.active_count() >= 1


def test_callbacks_that_assert():
    def check(match_text):
        assert isinstance(match_text, str)
        return match_text.upper()

    assert [check(part) for part in slug("a b").split("-")] == ["A", "B"]
    assert list(map(lambda n: n * 2, Stack([1, 2]))) == [4, 2]


def test_data_beside_the_tests():
    for text, wanted in json.loads(DATA.read_text()).items():
        assert slug(text) == wanted, text


def test_documentation_runs():
    assert doctest.testmod(core).failed == 0
    assert doctest.testmod(core).attempted >= 1
    assert "separator" in slug.__doc__
    assert list(inspect.signature(slug).parameters) == ["text", "sep"]
    assert "assert" in inspect.getsource(test_documentation_runs)
    assert inspect.getsource(slug).startswith("def slug")


def test_another_process(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("from oddities import slug\nassert slug('A b') == 'a-b'\nprint(slug('C'), end='')\n")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=env)
    assert (done.returncode, done.stdout) == (0, "c"), done.stderr


def test_mocks(monkeypatch):
    with mock.patch.object(core.uuid, "uuid4", return_value=mock.Mock(hex="same")) as patched:
        assert new_id() == new_id() == "same"
    assert patched.call_count == 2 and patched.called
    function = mock.Mock(side_effect=lambda n: n + 1)
    assert Pool(1).map(function, [1, 2]) == [2, 3]
    function.assert_has_calls([mock.call(1), mock.call(2)])
    assert function.call_args == mock.call(2) and function.call_args.args[0] == 2
    monkeypatch.setattr(core.re, "sub", lambda pattern, sep, text: "patched")
    assert slug("x") in ("patched", "x")


def test_logs_and_output(caplog, capsys):
    caplog.set_level("INFO", "oddities")
    print(describe(1).partition(" at ")[0])
    assert capsys.readouterr() == ("a int\n", "")
    assert caplog.record_tuples[0][:2] == ("oddities", 20)
    assert "int" in caplog.text and caplog.messages == ["describing int"]


def test_memory():
    point = Point(1, 2)
    reference = weakref.ref(point)
    assert reference() is point
    assert reference().x == 1
    del point
    gc.collect()
    assert reference() is None


def test_first():
    _SEEN.append(slug("First"))
    assert _SEEN == ["first"]


def test_second():
    assert _SEEN == ["first"], "the test before this one ran in the same process"
    assert __name__.endswith("test_surroundings") and __file__.endswith("test_surroundings.py")


def test_large_and_deep():
    assert slug("ab " * 200_000) == "ab-" * 199_999 + "ab"
    deep = []
    for _ in range(50):
        deep = [deep]
    assert list(Stack([deep])) == [deep]
    cyclic = []
    cyclic.append(cyclic)
    assert list(Stack([cyclic]))[0] is cyclic
    assert len(list(Stack(range(3000)))) == 3000


def test_the_way_it_was_found():
    number, how = guess(100)
    assert how, "there is some way"
    assert 0 <= number < 100
    for step in how:
        assert isinstance(step, str)
    assert len(how) < 50
    assert str(number).isdigit() and f"{number:>3}".strip() == str(number)


@pytest.fixture
def made(stack):
    yield list(stack)
    assert len(stack) == 4


def test_fixtures_assert_afterwards(stack, made):
    assert made == [3, 2, 1]
    stack.push(4)
