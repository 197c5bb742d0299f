"""Finds the tests in a text: its assertions, its `check(candidate)`, or its test functions."""

from __future__ import annotations

import ast
import sys
from types import SimpleNamespace

# Only what most tests need is imported: each program starts this anew.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any


class Test:
    """Something to run that fails by raising."""

    def __init__(self, name: str, function: Callable[[], Any], counts: bool = True) -> None:
        self.name, self.function = name, function
        self.counts = counts
        """Whether it is a test; otherwise a step that the tests after it need."""


def has_test_functions(tree: ast.Module) -> bool:
    return any(
        (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"))
        or (isinstance(node, ast.ClassDef) and ("test" in node.name.lower() or _is_test_case(node)))
        for node in tree.body
    )


def _is_test_case(node: ast.ClassDef) -> bool:
    """Whether it derives from `unittest.TestCase`, or another class of unittest with such a name."""
    names = (base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases)
    return any(name.endswith("TestCase") for name in names)


def collected(tree: ast.Module, namespace: dict[str, Any], candidate: Any) -> Iterator[Test]:
    """The tests of a text that runs in `namespace`, in their order.

    Args:
        candidate: What `check` of the text is called with; None where the text says what it tests.
    """
    check = next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "check"), None)
    if check is not None and candidate is not None and check.args.args:
        yield Test("the tests", lambda: _execute(tree.body, namespace), counts=False)
        if any(isinstance(node, ast.Return | ast.Nonlocal | ast.Global) for node in ast.walk(check)):
            yield Test("check", lambda: namespace["check"](candidate))
        else:
            namespace[check.args.args[0].arg] = candidate
            yield from _statements(check.body, namespace)
    elif has_test_functions(tree):
        yield Test("the tests", lambda: _execute(tree.body, namespace), counts=False)
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
                yield from _functions(node.name, namespace.get(node.name), namespace)
            elif isinstance(node, ast.ClassDef):
                yield from _methods(node.name, namespace.get(node.name), namespace)
    else:
        yield from _statements(tree.body, namespace)


def _execute(body: list[ast.stmt], namespace: dict[str, Any]) -> None:
    exec(compile(ast.Module(body, []), "tests.py", "exec", dont_inherit=True), namespace)


def _statements(body: list[ast.stmt], namespace: dict[str, Any]) -> Iterator[Test]:
    """Each statement, in the namespace of those before it; those with assertions are tests."""
    for statement in body:
        is_definition = isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
        counts = not is_definition and any(isinstance(node, ast.Assert) for node in ast.walk(statement))
        name = ast.unparse(statement).split("\n")[0] if counts else "the tests"
        yield Test(name, lambda statement=statement: _execute([statement], namespace), counts)  # type: ignore[misc]


def _methods(name: str, kind: Any, namespace: Mapping[str, Any]) -> Iterator[Test]:
    if not isinstance(kind, type):
        return
    unittest = sys.modules.get("unittest")
    is_case = unittest is not None and issubclass(kind, unittest.TestCase)
    if not is_case and not name.startswith("Test"):
        return
    for method in dir(kind):
        if not method.startswith("test"):
            continue
        if is_case:
            yield Test(f"{name}.{method}", lambda method=method: _run_case(kind(method)))  # type: ignore[misc]
        else:
            yield from _functions(f"{name}.{method}", getattr(kind, method), namespace, kind)


def _run_case(case: Any) -> None:
    type(case).setUpClass()
    try:
        case.debug()
    finally:
        type(case).tearDownClass()


def _functions(name: str, function: Any, namespace: Mapping[str, Any], kind: Any = None) -> Iterator[Test]:
    """One test for each set of its parameters."""
    if not callable(function):
        return
    import inspect

    for number, given in enumerate(_parameter_sets(function)):
        label = name if not given else f"{name}[{number}]"

        def run(given: Mapping[str, Any] = given) -> None:
            arguments = [kind()] if kind is not None else []
            for setup in ("setup_method", "setup_function"):
                owner = arguments[0] if arguments else SimpleNamespace(**namespace)
                if hasattr(owner, setup) and (setup == "setup_method") == bool(arguments):
                    setup_function = getattr(owner, setup)
                    setup_function(*([function] if inspect.signature(setup_function).parameters else []))
            fixtures = _Fixtures(namespace)
            try:
                names = [*inspect.signature(function).parameters][len(arguments) :]
                result = function(
                    *arguments, **{n: given[n] if n in given else fixtures.get(n) for n in names}
                )
                if inspect.iscoroutine(result):
                    import asyncio

                    asyncio.run(result)
            finally:
                fixtures.close()

        yield Test(label, run)


def _parameter_sets(function: Any) -> list[dict[str, Any]]:
    """Every combination of `pytest.mark.parametrize`."""
    sets: list[dict[str, Any]] = [{}]
    for mark in getattr(function, "pytestmark", []):
        if mark.name != "parametrize":
            continue
        names, rows = mark.args[:2] if len(mark.args) > 1 else (mark.args[0], mark.kwargs["argvalues"])
        split = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
        made = []
        for row in rows:
            content = getattr(row, "values", row) if type(row).__name__ == "ParameterSet" else row
            single = len(split) == 1 and type(row).__name__ != "ParameterSet"
            made.append(dict(zip(split, [content] if single else content, strict=True)))
        sets = [{**one, **other} for other in made for one in sets]
    return sets


class _Fixtures:
    """What a test function asks for by the names of its parameters."""

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        self._namespace = namespace
        self._values: dict[str, Any] = {}
        self._open: list[Callable[[], Any]] = []

    def get(self, name: str) -> Any:
        if name not in self._values:
            self._values[name] = self._made(name)
        return self._values[name]

    def _made(self, name: str) -> Any:
        if name == "capsys":
            return _Capsys()
        if name == "tmp_path":
            import pathlib
            import tempfile

            folder = tempfile.TemporaryDirectory()
            self._open.append(folder.cleanup)
            return pathlib.Path(folder.name)
        if name == "monkeypatch":
            patch = sys.modules["pytest"].MonkeyPatch()
            self._open.append(patch.undo)
            return patch
        import inspect

        fixture = self._namespace.get(name)
        function = getattr(fixture, "_fixture_function", None) or getattr(fixture, "__wrapped__", None)
        if function is None:
            raise LookupError(f"the tests ask for {name!r}, which is no fixture")
        value = function(**{each: self.get(each) for each in inspect.signature(function).parameters})
        if inspect.isgenerator(value):
            generator = value
            value = next(generator)
            self._open.append(lambda: next(generator, None))
        return value

    def close(self) -> None:
        for end in reversed(self._open):
            end()


class _Capsys:
    """What was printed since it was last asked."""

    def readouterr(self) -> Any:
        printed: Any = sys.stdout
        out = printed.getvalue()
        printed.seek(0)
        printed.truncate()
        return SimpleNamespace(out=out, err="")
