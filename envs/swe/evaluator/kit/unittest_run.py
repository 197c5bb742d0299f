"""Runs tests with the standard library alone: `unittest.TestCase` classes and plain functions.

Every test gets the records that pytest would give it. `unittest` tells of success only when set-up, call and
tear-down have passed, so that is three records; everything else is one.
"""

import importlib
import os
import sys
import time
import traceback
import types
import unittest
from collections.abc import Callable, Iterator

# Nothing of a newer Python than 3.6, annotations included: images have old interpreters.
from typing import Any


def run(config: "dict[str, Any]", record: "Callable[..., None]", probes: Any) -> "Callable[[], int]":
    """What runs the tests once `sys.path` has the repository's folders, and returns the exit status."""
    return lambda: run_tests(config, record, probes)


def run_tests(config: "dict[str, Any]", record: "Callable[..., None]", probes: Any) -> int:
    """The exit status: 1 where a test failed, as pytest has it."""
    places: dict[int, str] = {}

    def id_of(test: Any) -> str:
        of_class = "" if isinstance(test, FunctionTest) else type(test).__qualname__ + "::"
        return f"{places[id(test)]}::{of_class}{test._testMethodName}"

    result = Result(record, id_of, probes)
    deselected = set(config["deselected"])
    for path in files(config):
        try:
            tests = list(tests_of(import_file(path, config["root"])))
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 (whatever the repository raises)
            record("collect_error", path, message=shorten(traceback.format_exc()))
            result.failed = True
            continue
        places.update((id(test), path) for test in tests)
        unittest.TestSuite(test for test in tests if id_of(test) not in deselected).run(result)
    return int(result.failed)


class Result(unittest.TestResult):
    """Records what becomes of each test."""

    def __init__(self, record: "Callable[..., None]", id_of: "Callable[[Any], str]", probes: Any) -> None:
        super().__init__()
        self._record, self._id_of, self._probes = record, id_of, probes
        self._started = 0.0
        self.failed = False

    def startTest(self, test: Any) -> None:
        super().startTest(test)
        self._probes.test = self._id_of(test)
        self._started = time.perf_counter()
        for alias in aliases(test):
            self._record("alias", self._id_of(test), alias)

    def stopTest(self, test: Any) -> None:
        super().stopTest(test)
        self._probes.test = ""

    def addSuccess(self, test: Any) -> None:
        for when in ("setup", "call", "teardown"):
            self._tell(test, when, "passed")

    def addFailure(self, test: Any, err: Any) -> None:
        self._failed(test, err)

    def addError(self, test: Any, err: Any) -> None:
        self._failed(test, err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self._failed(test, err)

    def addSkip(self, test: Any, reason: str) -> None:
        if not hasattr(test, "test_case"):
            self._tell(test, "call", "skipped", str(reason))

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self._tell(test, "call", "xfailed")

    def addUnexpectedSuccess(self, test: Any) -> None:
        self._tell(test, "call", "xpassed")
        self.failed = True

    def _failed(self, test: Any, err: Any) -> None:
        self.failed = True
        message = shorten("".join(traceback.format_exception(*err)))
        if hasattr(test, "_testMethodName"):
            self._tell(test, "call", "failed", message)
        else:
            # Set-up of a class or a module: its tests do not run.
            self._record("collect_error", str(test), message=message)

    def _tell(self, test: Any, when: str, outcome: str, message: str = "") -> None:
        seconds = "{:.4f}".format(time.perf_counter() - self._started if when == "call" else 0.0)
        self._record("test", self._id_of(test), when, outcome, seconds, message)


class FunctionTest(unittest.TestCase):
    """A function of a test module, as a test."""

    def __init__(self, function: "Callable[[], object]") -> None:
        super().__init__("runTest")
        self.function = function
        self._testMethodName = function.__name__

    def run(self, result: Any = None) -> None:
        result.startTest(self)
        try:
            self.function()
        except unittest.SkipTest as error:
            result.addSkip(self, str(error))
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 (whatever the repository raises)
            result.addError(self, sys.exc_info())
        else:
            result.addSuccess(self)
        finally:
            result.stopTest(self)


def aliases(test: Any) -> "list[str]":
    """Other names by which data sets list a test: what versions of `unittest` print, docstrings included."""
    name = test._testMethodName
    if isinstance(test, FunctionTest):
        return [name]
    where = f"{type(test).__module__}.{type(test).__qualname__}"
    found = [f"{name} ({where})", f"{name} ({where}.{name})"]
    described = test.shortDescription()
    return found + ([described] if described else [])


def files(config: "dict[str, Any]") -> "list[str]":
    """Test files of the plan, the canaries first and last."""
    root, first, last = config["root"], config["first"], config["last"]
    found: list[str] = []
    for path in config["paths"]:
        if os.path.isdir(os.path.join(root, path)):
            for folder, folders, names in os.walk(os.path.join(root, path)):
                folders.sort()
                found += [
                    os.path.relpath(os.path.join(folder, name), root)
                    for name in sorted(names)
                    if name.endswith(".py") and (name.startswith("test") or name.endswith("_test.py"))
                ]
        else:
            found.append(path)
    ordered: list[str] = []
    for path in found:
        if path not in ordered and path not in (first, last):
            ordered.append(path)
    return [first, *ordered, last]


def import_file(path: str, root: str) -> Any:
    """The module of a file, named from the outermost package that it is in."""
    folder, name = os.path.split(os.path.join(root, path))
    parts = [os.path.splitext(name)[0]]
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, part = os.path.split(folder)
        parts.insert(0, part)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = importlib.import_module(".".join(parts))
    if os.path.realpath(getattr(module, "__file__", "")) != os.path.realpath(os.path.join(root, path)):
        raise ImportError(f"{path} was imported from {module.__file__}")
    return module


def tests_of(module: Any) -> "Iterator[unittest.TestCase]":
    """Its classes and functions in the order in which they stand."""
    if getattr(module, "disabled", False):
        return
    for name, found in list(vars(module).items()):
        if isinstance(found, type) and issubclass(found, unittest.TestCase):
            names = unittest.defaultTestLoader.getTestCaseNames(found)
            yield from (found(name) for name in names)
        elif name.startswith("test") and isinstance(found, types.FunctionType):
            own = found.__module__ == module.__name__
            # Those that SymPy's own runner leaves out because they take long are left out here, too.
            if own and not getattr(found, "_slow", False):
                yield FunctionTest(found)


def shorten(text: str) -> str:
    return text[-1500:]
