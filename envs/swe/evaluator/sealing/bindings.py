"""The names of a test file, what they are bound to, and where they are read."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = tuple[int, str]
"""A function (0: the module) and a name in it."""


@dataclass(slots=True)
class Table:
    """A literal whose rows a loop or `parametrize` goes through."""

    node: ast.expr
    uses: list[list[Scope]] = field(default_factory=list)
    """The names that each use binds, by column."""
    decorators: list[ast.Call] = field(default_factory=list)
    loads: int = 0
    """How often the name is read that the table has, if it has one."""

    def rows(self) -> list[list[ast.expr]] | None:
        """Cells by row and column; None where that is not to be seen."""
        if isinstance(self.node, ast.Dict):
            if any(name is None for name in self.node.keys):
                return None
            return [
                [name, value] for name, value in zip(self.node.keys, self.node.values, strict=True) if name
            ]
        assert isinstance(self.node, ast.List | ast.Tuple)
        num_columns = len(self.uses[0])
        found = []
        for row in self.node.elts:
            if isinstance(row, ast.Call) and ast.unparse(row.func) in {"pytest.param", "param"}:
                cells: list[ast.expr] = row.args
            elif num_columns == 1 and not isinstance(row, ast.Starred):
                cells = [row]
            elif isinstance(row, ast.Tuple | ast.List):
                cells = row.elts
            else:
                return None
            if len(cells) != num_columns or any(isinstance(cell, ast.Starred) for cell in cells):
                return None
            found.append(cells)
        return found

    def blank(self, column: int) -> None:
        nothing = ast.Constant(None)
        if isinstance(self.node, ast.Dict):
            self.node.values = [nothing for _ in self.node.values]
            return
        assert isinstance(self.node, ast.List | ast.Tuple)
        for place, row in enumerate(self.node.elts):
            if isinstance(row, ast.Call):
                row.args[column] = nothing
            elif isinstance(row, ast.Tuple | ast.List) and len(self.uses[0]) > 1:
                row.elts[column] = nothing
            else:
                self.node.elts[place] = nothing


class Bindings:
    """Every name of `tree` by scope.

    Args:
        helpers: Whether parameters of helper functions are told, too.
    """

    def __init__(self, tree: ast.Module, *, helpers: bool) -> None:
        self._tree = tree
        self.functions = list(outer_functions(tree.body))
        self.modules: dict[str, str] = {}
        """What is imported, by the name that it goes by."""
        self.loads: defaultdict[Scope, list[ast.Name]] = defaultdict(list)
        self.counts: defaultdict[Scope, int] = defaultdict(int)
        """How often a name is bound, in any way."""
        self.assigned: defaultdict[Scope, list[ast.Assign | ast.AnnAssign]] = defaultdict(list)
        self.arguments: defaultdict[Scope, list[tuple[ast.Call, int]]] = defaultdict(list)
        """Where a parameter gets its values: the calls of its function, and its place."""
        self.columns: defaultdict[Scope, list[tuple[Table, int]]] = defaultdict(list)
        self.tables: dict[int, Table] = {}
        self._scope_of: dict[int, Scope] = {}
        self._read_names()
        self._read_assignments()
        self._read_tables()
        if helpers:
            self._read_helpers()

    def scope(self, name: ast.Name) -> Scope:
        return self._scope_of.get(id(name), (0, name.id))

    def num_sources(self, scope: Scope) -> int:
        arguments = 1 if self.arguments[scope] else 0
        return len(self.assigned[scope]) + len(self.columns[scope]) + arguments

    def _read_names(self) -> None:
        owners: dict[int, int] = {}
        for number, (_, function) in enumerate(self.functions, 1):
            for node in _inside(function):
                owners[id(node)] = number
        local: defaultdict[int, set[str]] = defaultdict(set)
        for node in ast.walk(self._tree):
            owner = owners.get(id(node), 0)
            for name in bound_names(node):
                self.counts[owner, name] += 1
                local[owner].add(name)
            if isinstance(node, ast.Global | ast.Nonlocal):
                for name in node.names:
                    self.counts[0, name] += 99
            if isinstance(node, ast.Import):
                self.modules |= {alias.asname or alias.name: alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                self.modules |= {
                    alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names
                }
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Name):
                owner = owners.get(id(node), 0)
                scope = (owner if node.id in local[owner] else 0, node.id)
                self._scope_of[id(node)] = scope
                if isinstance(node.ctx, ast.Load):
                    self.loads[scope].append(node)

    def _read_assignments(self) -> None:
        classes = {
            id(part) for node in ast.walk(self._tree) if isinstance(node, ast.ClassDef) for part in node.body
        }
        for node in ast.walk(self._tree):
            if id(node) in classes:
                continue
            match node:
                case ast.Assign(targets=[ast.Name() as target]):
                    self.assigned[self.scope(target)].append(node)
                case ast.AnnAssign(target=ast.Name() as target, value=ast.expr()):
                    self.assigned[self.scope(target)].append(node)

    def _read_tables(self) -> None:
        for number, (_, function) in enumerate(self.functions, 1):
            for decorator in function.decorator_list:
                if _is_parametrize(decorator):
                    assert isinstance(decorator, ast.Call)
                    names = _parameter_names(decorator.args[0])
                    table = self._table(decorator.args[1])
                    if names and table is not None:
                        self._use(table, [(number, name) for name in names])
                        table.decorators.append(decorator)
            for node in _inside(function):
                if isinstance(node, ast.For):
                    targets = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
                    table = self._table(node.iter)
                    if table is not None and all(isinstance(target, ast.Name) for target in targets):
                        self._use(table, [self.scope(t) for t in targets if isinstance(t, ast.Name)])

    def _use(self, table: Table, scopes: list[Scope]) -> None:
        self.tables[id(table.node)] = table
        table.uses.append(scopes)
        for column, scope in enumerate(scopes):
            self.columns[scope].append((table, column))

    def _table(self, node: ast.expr) -> Table | None:
        """The literal that `node` is or names; None where there is none."""
        is_dict = False
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr="items"), args=[]):
                node, is_dict = value, True
        loads = 0
        if isinstance(node, ast.Name):
            scope = self.scope(node)
            if self.counts[scope] != 1 or len(self.assigned[scope]) != 1:
                return None
            loads = len(self.loads[scope])
            value_or_none = self.assigned[scope][0].value
            assert value_or_none is not None
            node = value_or_none
        if not isinstance(node, ast.Dict if is_dict else ast.List | ast.Tuple):
            return None
        table = self.tables.get(id(node)) or Table(node)
        table.loads = loads
        return table

    def _read_helpers(self) -> None:
        """Parameters of functions that are only ever called, in this file, with an argument for each."""
        calls: defaultdict[str, list[ast.Call]] = defaultdict(list)
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                match node.func:
                    case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="self"), attr=name):
                        calls[name].append(node)
        mentioned: defaultdict[str, int] = defaultdict(int)
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Name | ast.Attribute):
                mentioned[node.id if isinstance(node, ast.Name) else node.attr] += 1
        names = [function.name for _, function in self.functions]
        for number, (qualified, function) in enumerate(self.functions, 1):
            name = function.name
            if name.startswith("test") or function.decorator_list or names.count(name) != 1:
                continue
            if not calls[name] or mentioned[name] != len(calls[name]):
                continue
            is_method = "." in qualified
            parameters = [parameter.arg for parameter in (*function.args.posonlyargs, *function.args.args)]
            for place, parameter in enumerate(parameters[is_method:]):
                if all(argument_or_none(call, place, parameter) for call in calls[name]):
                    self.arguments[number, parameter] = [(call, place) for call in calls[name]]


def _is_parametrize(node: ast.expr) -> bool:
    """Whether a decorator is `pytest.mark.parametrize` with names and a table, and nothing else but ids."""
    return (
        isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith("mark.parametrize")
        and len(node.args) == 2
        and all(keyword.arg == "ids" for keyword in node.keywords)
    )


def _parameter_names(node: ast.expr) -> list[str]:
    match node:
        case ast.Constant(value=str(text)):
            return [name.strip() for name in text.split(",") if name.strip()]
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return [str(found.value) for found in elements if isinstance(found, ast.Constant)]
    return []


def outer_functions(block: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Outermost functions and methods, as `Class.method`."""
    for node in block:
        if isinstance(node, Function):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from outer_functions(node.body, f"{prefix}{node.name}.")
        else:
            for name in ("body", "orelse", "finalbody"):
                if isinstance(inner := getattr(node, name, None), list):
                    yield from outer_functions(inner, prefix)


def _inside(function: Function) -> Iterator[ast.AST]:
    """What is evaluated when `function` runs, and its parameters."""
    yield from ast.walk(function.args)
    for statement in function.body:
        yield from ast.walk(statement)


def bound_names(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name) if is_bound(node):
            yield name
        case ast.arg(arg=name):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in aliases)


def is_bound(node: ast.Name) -> bool:
    return not isinstance(node.ctx, ast.Load)


def argument_or_none(call: ast.Call, place: int, name: str) -> ast.expr | None:
    if any(isinstance(found, ast.Starred) for found in call.args) or any(
        k.arg is None for k in call.keywords
    ):
        return None
    if place < len(call.args):
        return call.args[place]
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def argument(call: ast.Call, place: int, name: str) -> ast.expr:
    found = argument_or_none(call, place, name)
    assert found is not None
    return found
