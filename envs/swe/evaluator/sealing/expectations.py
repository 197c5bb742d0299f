"""Which expressions of a test file say only what is expected, so that they can be taken out of it.

A name says only what is expected if all that it is ever bound to is constant, and all that it is used for is
to be compared. Such are local and module-level constants, columns of `parametrize` and of loops over literal
tables, and parameters of helper functions in the same file.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from envsdk.envs.swe.evaluator.sealing.assertions import Comparison, statement_pieces, statements_of

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = tuple[int, str]
"""A function (0: the module) and a name in it."""

_BUILTINS = {
    "set",
    "frozenset",
    "list",
    "tuple",
    "dict",
    "sorted",
    "range",
    "len",
    "str",
    "int",
    "float",
    "bool",
}
_BUILTINS |= {"bytes", "bytearray", "repr", "round", "min", "max", "sum", "abs", "complex", "reversed", "zip"}
_BUILTINS |= {"enumerate", "chr", "ord", "divmod", "slice"}
_MODULES = {
    "decimal",
    "fractions",
    "math",
    "textwrap",
    "string",
    "collections",
    "pathlib",
    "datetime",
    "ipaddress",
}
_MODULES |= {"html", "errno", "http", "uuid", "itertools", "operator", "cmath", "calendar", "stat", "signal"}
_IMPURE = {"now", "today", "utcnow", "cwd", "home", "fromtimestamp", "uuid1", "uuid4", "absolute", "resolve"}
_IMPURE |= {
    "exists",
    "is_file",
    "is_dir",
    "read_text",
    "read_bytes",
    "open",
    "glob",
    "rglob",
    "iterdir",
    "stat",
}
_IMPURE |= {
    "expanduser",
    "samefile",
    "owner",
    "group",
    "getlogin",
    "append",
    "pop",
    "update",
    "add",
    "remove",
}
_SIMPLE = (
    *(ast.Constant, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.IfExp),
    *(ast.Compare, ast.Subscript, ast.Slice, ast.JoinedStr, ast.FormattedValue, ast.Starred, ast.keyword),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context),
)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(slots=True)
class _Table:
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


class Expectations:
    """What a file expects, apart from what it does.

    Args:
        imported: Other files may read its module-level names, so those stay.
        plain: Functions, as `Class.test`, that are not rewritten.
        is_cut: Whether operands of a comparison may be left out where it is rewritten.
    """

    def __init__(
        self,
        tree: ast.Module,
        *,
        imported: bool,
        plain: Callable[[str], bool],
        is_cut: Callable[[Comparison], bool],
    ) -> None:
        self._tree, self._is_cut = tree, is_cut
        self._modules: dict[str, str] = {}
        self._scope_of: dict[int, Scope] = {}
        self._loads: defaultdict[Scope, list[ast.Name]] = defaultdict(list)
        self._bindings: defaultdict[Scope, int] = defaultdict(int)
        self._assigned: defaultdict[Scope, list[ast.Assign | ast.AnnAssign]] = defaultdict(list)
        self._arguments: defaultdict[Scope, list[tuple[ast.Call, int]]] = defaultdict(list)
        self._columns: defaultdict[Scope, list[tuple[_Table, int]]] = defaultdict(list)
        self._tables: dict[int, _Table] = {}
        self._functions = list(_functions(tree.body, ""))
        self._read_names()
        self._read_assignments()
        self._read_tables()
        if not imported:
            self._read_helpers()
        self._pieces = [
            piece
            for name, function in self._functions
            if not plain(name)
            for statement in statements_of(function.body)
            for piece in statement_pieces(statement) or ()
            if isinstance(piece, Comparison)
        ]
        self._neutral = {id(name) for node in _neutral(tree) for name in ast.walk(node)}
        self.names: set[Scope] = {
            scope for scope, count in self._bindings.items() if count == self._num_sources(scope)
        }
        if imported:
            self.names = {scope for scope in self.names if scope[0]}
        self._settle()

    def is_pure(self, node: ast.AST, bound: frozenset[str] = frozenset()) -> bool:
        """Whether `node` is built of constants, and of names that say only what is expected."""
        if isinstance(node, ast.Name):
            return node.id in bound or self._scope(node) in self.names
        if isinstance(node, _COMPREHENSIONS):
            return self._comprehends(node, bound, self.is_pure)
        if isinstance(node, ast.Call):
            return self._is_known(node.func, bound) and all(
                self.is_pure(part, bound) for part in (*node.args, *node.keywords)
            )
        if isinstance(node, ast.Attribute):
            return self._is_of_library(node)
        return isinstance(node, _SIMPLE) and all(
            self.is_pure(child, bound) for child in ast.iter_child_nodes(node)
        )

    def is_closed(self, node: ast.AST) -> bool:
        """Whether `node` reads nothing that the test itself has bound, so that it can be computed again."""
        bound = {found.id for found in ast.walk(node) if isinstance(found, ast.Name) and _is_bound(found)}
        return all(
            not isinstance(found, ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr | ast.Lambda)
            and (not isinstance(found, ast.Name) or found.id in bound or not self._scope(found)[0])
            for found in ast.walk(node)
        )

    def cut(self, piece: Comparison) -> list[bool]:
        """Which operands of a comparison the process can do without: all but one at most."""
        found = [self.is_pure(operand) for operand in piece.operands]
        return [False] * len(found) if all(found) else found

    def varies(self, node: ast.AST) -> bool:
        """Whether `node` reads a column of a table or a parameter."""
        scopes = [self._scope(found) for found in ast.walk(node) if isinstance(found, ast.Name)]
        return any(self._columns[scope] or self._arguments[scope] for scope in scopes)

    def blank(self) -> None:
        """Take out of the file what says only what is expected."""
        for table in self._tables.values():
            self._blank(table)
        for scope in self.names:
            for statement in self._assigned[scope]:
                statement.value = ast.copy_location(ast.Constant(None), statement)
            for call, place in self._arguments[scope]:
                if place < len(call.args):
                    call.args[place] = ast.Constant(None)
                else:
                    name = scope[1]
                    next(k for k in call.keywords if k.arg == name).value = ast.Constant(None)

    def _settle(self) -> None:
        """Drop names until the rest is used in comparisons only and bound to constants only."""
        while True:
            allowed = set(self._neutral)
            for piece in self._pieces:
                if self._is_cut(piece):
                    for operand, is_cut in zip(piece.operands, self.cut(piece), strict=True):
                        if is_cut:
                            allowed |= {id(found) for found in ast.walk(operand)}
            for scope in self.names:
                for statement in self._assigned[scope]:
                    if statement.value is not None:
                        allowed |= {id(found) for found in ast.walk(statement.value)}
                for call, place in self._arguments[scope]:
                    allowed |= {id(found) for found in ast.walk(_argument(call, place, scope[1]))}
            kept = {scope for scope in self.names if self._is_constant(scope)}
            if kept == self.names:
                kept = {scope for scope in self.names if self._is_only_compared(scope, allowed)}
            if kept == self.names:
                return
            self.names = kept

    def _is_constant(self, scope: Scope) -> bool:
        return (
            all(
                statement.value is not None and self.is_pure(statement.value)
                for statement in self._assigned[scope]
            )
            and all(self.is_pure(_argument(call, place, scope[1])) for call, place in self._arguments[scope])
            and all(self._is_blankable(table, column) for table, column in self._columns[scope])
        )

    def _is_only_compared(self, scope: Scope, allowed: set[int]) -> bool:
        loads = self._loads[scope]
        return bool(loads) and all(id(load) in allowed for load in loads)

    def _is_blankable(self, table: _Table, column: int) -> bool:
        rows = table.rows() if len({len(use) for use in table.uses}) == 1 else None
        return (
            rows is not None
            and table.loads in (0, len(table.uses))
            and not (isinstance(table.node, ast.Dict) and column == 0)
            and all(use[column] in self.names for use in table.uses)
            and all(self.is_pure(row[column]) for row in rows)
        )

    def _blank(self, table: _Table) -> None:
        columns = [
            column
            for column, scope in enumerate(table.uses[0])
            if scope in self.names and self._is_blankable(table, column)
        ]
        if not columns:
            return
        rows = table.rows()
        assert rows is not None
        for column in columns:
            table.blank(column)
        for decorator in table.decorators:
            decorator.keywords = [keyword for keyword in decorator.keywords if keyword.arg != "ids"]
            ids: list[ast.expr] = [ast.Constant(f"c{number}") for number in range(len(rows))]
            decorator.keywords.append(ast.keyword("ids", ast.List(ids, ast.Load())))
        if isinstance(table.node, ast.List | ast.Tuple):
            for row in table.node.elts:
                if isinstance(row, ast.Call):
                    row.keywords = [keyword for keyword in row.keywords if keyword.arg != "id"]

    def _scope(self, name: ast.Name) -> Scope:
        return self._scope_of.get(id(name), (0, name.id))

    def _num_sources(self, scope: Scope) -> int:
        arguments = 1 if self._arguments[scope] else 0
        return len(self._assigned[scope]) + len(self._columns[scope]) + arguments

    def _comprehends(
        self,
        node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp,
        bound: frozenset[str],
        rule: Callable[[ast.AST, frozenset[str]], bool],
    ) -> bool:
        inside = bound | {
            found.id
            for generator in node.generators
            for found in ast.walk(generator.target)
            if isinstance(found, ast.Name)
        }
        results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        conditions = [test for generator in node.generators for test in generator.ifs]
        return all(rule(generator.iter, bound) for generator in node.generators) and all(
            rule(part, inside) for part in (*results, *conditions)
        )

    def _is_known(self, function: ast.expr, bound: frozenset[str]) -> bool:
        """Whether what is called is a built-in function, of the library, or a method of something pure."""
        match function:
            case ast.Name(id=name):
                is_rebound = bool(self._scope(function)[0]) or self._bindings[0, name]
                return (name in _BUILTINS and not is_rebound) or self._is_of_library(function)
            case ast.Attribute(value=ast.Name(id="pytest"), attr="approx"):
                return True
            case ast.Attribute(value=value, attr=attribute):
                return attribute not in _IMPURE and (
                    self._is_of_library(function) or self.is_pure(value, bound)
                )
        return False

    def _is_of_library(self, node: ast.expr) -> bool:
        """Whether `node` is a name that comes from modules of the standard library that only compute."""
        while isinstance(node, ast.Attribute):
            if node.attr in _IMPURE:
                return False
            node = node.value
        if not isinstance(node, ast.Name) or self._scope(node)[0]:
            return False
        return self._modules.get(node.id, "").partition(".")[0] in _MODULES or (
            self._modules.get(node.id) == "pytest.approx"
        )

    def _read_names(self) -> None:
        owners: dict[int, int] = {}
        for number, (_, function) in enumerate(self._functions, 1):
            for node in _inside(function):
                owners[id(node)] = number
        local: defaultdict[int, set[str]] = defaultdict(set)
        for node in ast.walk(self._tree):
            owner = owners.get(id(node), 0)
            for name in _bound_names(node):
                self._bindings[owner, name] += 1
                local[owner].add(name)
            if isinstance(node, ast.Global | ast.Nonlocal):
                for name in node.names:
                    self._bindings[0, name] += 99
            if isinstance(node, ast.Import):
                self._modules |= {alias.asname or alias.name: alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                self._modules |= {
                    alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names
                }
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Name):
                owner = owners.get(id(node), 0)
                scope = (owner if node.id in local[owner] else 0, node.id)
                self._scope_of[id(node)] = scope
                if isinstance(node.ctx, ast.Load):
                    self._loads[scope].append(node)

    def _read_assignments(self) -> None:
        classes = {
            id(part) for node in ast.walk(self._tree) if isinstance(node, ast.ClassDef) for part in node.body
        }
        for node in ast.walk(self._tree):
            if id(node) in classes:
                continue
            match node:
                case ast.Assign(targets=[ast.Name() as target]):
                    self._assigned[self._scope(target)].append(node)
                case ast.AnnAssign(target=ast.Name() as target, value=ast.expr()):
                    self._assigned[self._scope(target)].append(node)

    def _read_tables(self) -> None:
        for number, (_, function) in enumerate(self._functions, 1):
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
                        self._use(table, [self._scope(t) for t in targets if isinstance(t, ast.Name)])

    def _use(self, table: _Table, scopes: list[Scope]) -> None:
        table.uses.append(scopes)
        for column, scope in enumerate(scopes):
            self._columns[scope].append((table, column))

    def _table(self, node: ast.expr) -> _Table | None:
        """The literal that `node` is or names; None where there is none."""
        is_dict = False
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr="items"), args=[]):
                node, is_dict = value, True
        loads = 0
        if isinstance(node, ast.Name):
            scope = self._scope(node)
            if self._bindings[scope] != 1 or len(self._assigned[scope]) != 1:
                return None
            loads = len(self._loads[scope])
            value_or_none = self._assigned[scope][0].value
            assert value_or_none is not None
            node = value_or_none
        if not isinstance(node, ast.Dict if is_dict else ast.List | ast.Tuple):
            return None
        table = self._tables.setdefault(id(node), _Table(node))
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
        names = [function.name for _, function in self._functions]
        for number, (qualified, function) in enumerate(self._functions, 1):
            name = function.name
            if name.startswith("test") or function.decorator_list or names.count(name) != 1:
                continue
            if not calls[name] or mentioned[name] != len(calls[name]):
                continue
            is_method = "." in qualified
            parameters = [parameter.arg for parameter in (*function.args.posonlyargs, *function.args.args)]
            for place, parameter in enumerate(parameters[is_method:]):
                if all(_argument_or_none(call, place, parameter) for call in calls[name]):
                    self._arguments[number, parameter] = [(call, place) for call in calls[name]]


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


def _functions(block: list[ast.stmt], prefix: str) -> Iterator[tuple[str, Function]]:
    """Outermost functions and methods, as `Class.method`."""
    for node in block:
        if isinstance(node, Function):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}.")
        else:
            for name in ("body", "orelse", "finalbody"):
                if isinstance(inner := getattr(node, name, None), list):
                    yield from _functions(inner, prefix)


def _inside(function: Function) -> Iterator[ast.AST]:
    """What is evaluated when `function` runs, and its parameters."""
    yield from ast.walk(function.args)
    for statement in function.body:
        yield from ast.walk(statement)


def _bound_names(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name) if _is_bound(node):
            yield name
        case ast.arg(arg=name):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in aliases)


def _is_bound(node: ast.Name) -> bool:
    return not isinstance(node.ctx, ast.Load)


def _neutral(tree: ast.AST) -> Iterator[ast.AST]:
    """Where a value is only shown to a person."""
    for node in ast.walk(tree):
        match node:
            case ast.Assert(msg=ast.expr() as message):
                yield message
            case ast.keyword(arg="msg", value=value):
                yield value
            case ast.Call(func=ast.Attribute(attr="subTest")):
                yield from (*node.args, *node.keywords)


def _argument_or_none(call: ast.Call, place: int, name: str) -> ast.expr | None:
    if any(isinstance(found, ast.Starred) for found in call.args) or any(
        k.arg is None for k in call.keywords
    ):
        return None
    if place < len(call.args):
        return call.args[place]
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def _argument(call: ast.Call, place: int, name: str) -> ast.expr:
    found = _argument_or_none(call, place, name)
    assert found is not None
    return found
