"""Runs Django's own tests by its own `tests/runtests.py`, which sets up settings, applications and databases.

What that hands its tests to is replaced: each test is recorded as `unittest_run` does.
"""

import contextlib
import importlib
import importlib.util
import os
import runpy
import sys
import unittest
from collections.abc import Callable

# Nothing of a newer Python than 3.6, annotations included: images have old interpreters.
from typing import Any


def run(config: "dict[str, Any]", record: "Callable[..., None]", probes: Any) -> "Callable[[], int]":
    """What runs the tests once `sys.path` has the repository's folders, and returns the exit status."""
    kit = os.path.dirname(os.path.abspath(__file__))
    spec = importlib.util.spec_from_file_location(
        "_envsdk_unittest_run", os.path.join(kit, "unittest_run.py")
    )
    assert spec is not None
    assert spec.loader is not None
    with_unittest = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(with_unittest)
    return lambda: run_tests(config, record, probes, with_unittest)


def run_tests(
    config: "dict[str, Any]", record: "Callable[..., None]", probes: Any, with_unittest: Any
) -> int:
    """The exit status: 1 where a test failed, as pytest has it."""
    folder = os.path.join(config["root"], "tests")
    result = with_unittest.Result(record, lambda test: id_of(test, config["root"]), probes)
    paths = [config["first"]] + config["paths"] + [config["last"]]
    order = [module_name(path) for path in paths]
    deselected = set(config["deselected"])

    class Runner:
        def __init__(self, *args: Any, **keywords: Any) -> None:
            pass

        def run(self, suite: Any) -> Any:
            seen = set()  # of (class, method): a class that another module imports is there twice
            tests: list[Any] = []
            for test in flat(suite):
                key = (type(test), getattr(test, "_testMethodName", id(test)))
                if key not in seen and id_of(test, config["root"]) not in deselected:
                    seen.add(key)
                    tests.append(test)
            ends = {order[0]: 0, order[-1]: 2}
            tests.sort(key=lambda test: ends.get(type(test).__module__, 1))
            unittest.TestSuite(tests).run(result)
            return result

    # Of the repository, whose `django/test` is laid over as it was.
    importlib.import_module("django.test.runner").DiscoverRunner.test_runner = Runner
    script = os.path.join(folder, "runtests.py")
    with open(script) as file:
        knows_parallel = "--parallel" in file.read()
    sys.argv = [script, "--verbosity", "0", "--noinput", "--settings", "test_sqlite"]
    sys.argv += (["--parallel", "1"] if knows_parallel else []) + order
    with contextlib.suppress(SystemExit):
        runpy.run_path(script, run_name="__main__")
    return int(result.failed)


def module_name(path: str) -> str:
    """As `runtests.py` takes it: `tests/a/test_b.py` is `a.test_b`."""
    inner = path[len("tests/") :] if path.startswith("tests/") else path
    return os.path.splitext(inner)[0].replace("/", ".")


def flat(suite: Any) -> "list[Any]":
    if isinstance(suite, unittest.TestCase):
        return [suite]
    return [test for part in suite for test in flat(part)]


def id_of(test: Any, root: str) -> str:
    """The file of the test's class, its name and that of the method."""
    module = sys.modules.get(type(test).__module__)
    place = os.path.relpath(
        os.path.realpath(getattr(module, "__file__", None) or root), os.path.realpath(root)
    )
    name = getattr(test, "_testMethodName", str(test))
    return f"{place}::{type(test).__qualname__}::{name}"
