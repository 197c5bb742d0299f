"""What a row of prompt data asks of a program; pure.

Rows of ROLL (`case_type`, `test_cases`), KodCode (`test`), HumanEval (`test`, `entry_point`), MBPP
(`test_list`), APPS and TACO (`input_output`, or `inputs`, `outputs` and `fn_name`), LiveCodeBench
(`public_test_cases`), and verl (`ground_truth` with `inputs` and `outputs` in JSON).
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class RowError(ValueError):
    """No program can be judged by this row; the message says why."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run of the program."""

    given: Any
    """Text on standard input; of a function, the list of its arguments."""
    expected: Any
    """What it prints; of a function, the value as JSON has it."""


@dataclass(frozen=True, slots=True)
class Tests:
    """A text of assertions or test functions."""

    code: str
    entry: str = ""
    """Function of the program that `check` is called with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is asked: cases, or texts of tests."""

    function: str = ""
    """The cases call this function; empty: they run the program."""
    cases: Sequence[Case] = ()
    tests: Sequence[Tests] = ()
    of_text: bool = False
    """The tests are about the response's text, which stands for `{response}` in them."""
    prefix: str = ""
    """Code that the program starts with."""

    @property
    def needs(self) -> str:
        """A function that the program defines; empty where the row does not tell."""
        return self.function or next((tests.entry for tests in self.tests if tests.entry), "")


def task_of(row: Mapping[str, Any]) -> Task:
    """Raises RowError."""
    try:
        task = _task(row)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RowError(f"test cases that cannot be read: {error}") from error
    if not task.cases and not task.tests:
        raise RowError("no test cases")
    for number, tests in enumerate(task.tests, 1):
        _check(number, tests, task)
    return task


def _check(number: int, tests: Tests, task: Task) -> None:
    code = tests.code.replace("{response}", "''") if task.of_text else tests.code
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise RowError(f"test {number} is no Python: {error}") from error
    asserts = any(isinstance(node, ast.Assert) for node in ast.walk(tree))
    if not asserts and not any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in ast.walk(tree)):
        raise RowError(f"test {number} asserts nothing")


def _task(row: Mapping[str, Any]) -> Task:
    kind = str(row.get("case_type") or "")
    function = str(row.get("test_case_function") or row.get("fn_name") or row.get("entry_point") or "")
    function = "" if function == "None" else function
    given = _read(row.get("test_cases"))
    truth = _read(row.get("ground_truth"))
    if not given and isinstance(truth, Mapping):
        given = truth
    if given and not (isinstance(given, Mapping) and "inputs" in given):
        return _of_roll(kind, function, given)
    if given or row.get("input_output"):
        given = given or _read(row["input_output"])
        return _of_lists(given["inputs"], given["outputs"], str(given.get("fn_name") or function))
    if row.get("inputs") is not None and row.get("outputs") is not None:
        return _of_lists(_read(row["inputs"]), _read(row["outputs"]), function)
    if row.get("public_test_cases"):
        return _of_roll("input", function, _read(row["public_test_cases"]))
    if row.get("test_list"):
        setup = "\n".join([*(_read(row.get("test_imports")) or []), str(row.get("test_setup_code") or "")])
        return Task(tests=[Tests("\n".join([setup, *_read(row["test_list"])]))])
    if row.get("test"):
        return Task(tests=[Tests(str(row["test"]), function)])
    return Task()


def _of_roll(kind: str, function: str, given: Sequence[Any]) -> Task:
    if isinstance(given, Mapping):
        given = [given]
    has_code = [isinstance(case, str) or "assert_code" in case for case in given]
    if all(has_code) and kind != "input":
        codes = [case if isinstance(case, str) else case["assert_code"] for case in given]
        first = given[0] if isinstance(given[0], Mapping) else {}
        entry = str(first.get("entry_point") or function)
        if kind == "check_based" and not entry:
            entry = "candidate"
        return Task(
            tests=[Tests(str(code), "" if kind == "text" else entry) for code in codes],
            of_text=kind == "text",
            prefix=str(first.get("import_prefix") or ""),
        )
    if any("testtype" in case and case["testtype"] == "functional" for case in given) and not function:
        raise RowError("cases of a function that the row does not name")
    inputs = [case["stdin"] if "stdin" in case else case["input"] for case in given]
    outputs = [_expected(case) for case in given]
    return _of_lists(inputs, outputs, function)


def _expected(case: Mapping[str, Any]) -> Any:
    for name in ("expected_stdout", "expected_output", "output"):
        if name in case:
            return case[name]
    raise RowError("a case without an expected output")


def _of_lists(inputs: Sequence[Any], outputs: Sequence[Any], function: str) -> Task:
    if len(inputs) != len(outputs):
        raise RowError(f"{len(inputs)} inputs and {len(outputs)} outputs")
    if not function:
        return Task(cases=[Case(_text(i), _text(o)) for i, o in zip(inputs, outputs, strict=True)])
    cases = [Case(_arguments(i), _read(o)) for i, o in zip(inputs, outputs, strict=True)]
    return Task(function=function, cases=cases)


def _text(value: Any) -> str:
    """APPS has some inputs as lists of lines."""
    if isinstance(value, list):
        return "\n".join(map(str, value))
    return "" if value is None else str(value)


def _arguments(value: Any) -> list[Any]:
    """A list, or lines that are each an argument in JSON."""
    if isinstance(value, str):
        value = [json.loads(line) for line in value.split("\n") if line.strip()]
    arguments = list(value) if isinstance(value, list | tuple) else [value]
    return [_with_numbers(argument) for argument in arguments]


def _with_numbers(argument: Any) -> Any:
    """JSON has texts as keys; where all are integers, the function meant integers."""
    if isinstance(argument, dict) and argument and all(str(key).lstrip("-").isdecimal() for key in argument):
        return {int(key): value for key, value in argument.items()}
    return argument


def _read(value: Any) -> Any:
    """What a text holds as JSON; other values as they are."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def solution_of(row: Mapping[str, Any]) -> str | None:
    """The row's own program; None where it has none."""
    if row.get("canonical_solution"):
        return f"{row.get('prompt') or ''}{row['canonical_solution']}"
    for name in ("solution", "reference_solution", "code"):
        if row.get(name):
            return str(row[name])
    solutions = _read(row.get("solutions"))
    if isinstance(solutions, list) and solutions:
        return str(solutions[0])
    truth = str(row.get("ground_truth") or "")
    if isinstance(_read(truth), Mapping):
        return None
    return truth if "def " in truth or "print(" in truth else None
