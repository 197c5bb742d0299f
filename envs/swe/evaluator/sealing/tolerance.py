"""Test files that go on where a base tree lacks a name, or raises.

    from lib import old, new    ->  from lib import old; new = NOTHING where there is none
    found = new(1)              ->  found = NOTHING where that raises
    assert old(1) == 2          is reached whatever was raised before

A base tree is weighed by what its tests see, not by the line that makes them importable, nor by the one that
keeps a test from its end: a patch that solves nothing adds these, too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from envsdk.envs.swe.evaluator.kit import probes
from envsdk.envs.swe.evaluator.sealing.assertions import blocks_of
from envsdk.envs.swe.evaluator.sealing.claims import probed
from envsdk.envs.swe.syntax import parse

_NOTHING = ast.Attribute(
    ast.Call(ast.Name("__import__", ast.Load()), [ast.Constant(probes.NAME)], []), "nothing", ast.Load()
)


def tolerant_files(tests: Path, sealed: Mapping[str, str]) -> dict[str, str]:
    """All Python files of the folder `tests` (of those that are sealed the texts) by path, made tolerant."""
    found = {}
    for file in tests.rglob("*.py"):
        path = file.relative_to(tests).as_posix()
        if file.is_file() and not file.is_symlink():
            try:
                found[path] = tolerant(sealed[path].encode() if path in sealed else file.read_bytes())
            except (SyntaxError, ValueError, RecursionError):
                continue
    return found


def tolerant(source: bytes) -> str:
    """Raises SyntaxError, ValueError, RecursionError: it cannot be read."""
    tree = parse(source)
    tree.body = [made for node in tree.body for made in _tried(node)]
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _tried(node: ast.stmt) -> Iterator[ast.stmt]:
    match node:
        case ast.ImportFrom(module="__future__") | ast.Expr(value=ast.Constant()):
            yield node
        case ast.ImportFrom(module=module, names=names, level=level):
            for alias in names:
                name = alias.asname or alias.name
                yield _or_nothing(ast.ImportFrom(module, [alias], level), [] if name == "*" else [name])
        case ast.Import(names=names):
            for alias in names:
                yield _or_nothing(ast.Import([alias]), [alias.asname or alias.name.partition(".")[0]])
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            yield _or_nothing(node, [name])
        case ast.Global() | ast.Nonlocal() | ast.Break() | ast.Continue() | ast.Return() | ast.Raise():
            yield node
        case _:
            if _is_gone_into(node):
                for block in blocks_of(node):
                    block[:] = [made for inner in block for made in _tried(inner)]
            yield _or_nothing(node, [])


def _is_gone_into(node: ast.stmt) -> bool:
    """Whether its statements are tried one by one: not where somebody may wait for what they raise."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name.startswith("test")
        case ast.With(items=items):
            return not any(probed(item.context_expr, "raising") for item in items)
    return not isinstance(node, ast.Try | ast.Match)


def _or_nothing(node: ast.stmt, names: list[str]) -> ast.stmt:
    otherwise = [ast.Assign([ast.Name(name, ast.Store())], _NOTHING) for name in names]
    handler = ast.ExceptHandler(ast.Name("Exception", ast.Load()), None, [*otherwise, ast.Pass()])
    return ast.Try([node], [handler], [], [])
