"""Which expressions of a test file say only what is expected, so that they can be taken out of it.

A name *says only what is expected* where all that it is ever bound to is pure, and it is read in operands
that are cut, in what such names are bound to, and in neutral places. Of an expression one can say:

    pure      it is built of constants, of functions that only compute, and of names that say only what is
              expected
    fixed     it is built of constants, and of names that are bound to constants alone but used for more
    closed    it reads nothing that the test itself binds, so that it can be computed again elsewhere
    neutral   it is only shown to a person: the message of an assertion, `msg=`, arguments of `subTest`
    varies    it reads a parameter, or a column of a table that `parametrize` or a loop goes through
    cut       it is a pure or fixed operand of a comparison that has another one: the process that runs the
              tests gets only that, and the seal holds this one

For example

    @pytest.mark.parametrize("text, wanted", [("a", 1), ("bb", 2)])
    def test_width(text, wanted):
        assert width(text) == wanted, f"not {wanted}"   # `wanted` is pure, varies, and is cut
        assert width("abc") == 2 + 1                    # `2 + 1` is pure and closed, and is cut
        rows = [text, "-"]
        assert joined(rows) == "".join(rows)            # `"".join(rows)` is fixed: `rows` is used for more
        seen = width(text)
        assert width(text) == seen                      # nothing is cut: `seen` comes from what is tested

becomes

    @pytest.mark.parametrize("text, wanted", [("a", None), ("bb", None)], ids=["c0", "c1"])
    def test_width(text, wanted):
        _sealed.claim("1", width(text))
        _sealed.claim("2", width("abc"))
        rows = [text, "-"]
        _sealed.claim("3", joined(rows))
        seen = width(text)
        _sealed.claim("4", width(text), seen)
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Set

from envsdk.envs.swe.evaluator.sealing.assertions import Comparison, statement_pieces, statements_of
from envsdk.envs.swe.evaluator.sealing.bindings import Bindings, Scope, Table, argument, is_bound
from envsdk.envs.swe.syntax import words

_BUILTINS = words(
    "set frozenset list tuple dict sorted range len str int float bool bytes bytearray repr round min max "
    "sum abs complex reversed zip enumerate chr ord divmod slice"
)
_MODULES = words(
    "decimal fractions math textwrap string collections pathlib datetime ipaddress html errno http uuid "
    "itertools operator cmath calendar stat signal"
)
_CHANGES = words(
    "append appendleft extend insert pop popleft popitem remove clear update add discard setdefault sort "
    "reverse rotate write writelines seek"
)
_IMPURE = _CHANGES | words(
    "now today utcnow cwd home fromtimestamp uuid1 uuid4 absolute resolve exists is_file is_dir read_text "
    "read_bytes open glob rglob iterdir stat expanduser samefile owner group getlogin"
)
_SIMPLE = (
    *(ast.Constant, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.IfExp),
    *(ast.Compare, ast.Subscript, ast.Slice, ast.JoinedStr, ast.FormattedValue, ast.Starred, ast.keyword),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context),
)
_UNCHANGEABLE = (
    *(ast.Constant, ast.Tuple, ast.Name, ast.UnaryOp, ast.BinOp, ast.JoinedStr, ast.FormattedValue),
    *(ast.operator, ast.unaryop, ast.expr_context),
)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Expectations:
    """What a file expects, apart from what it does.

    Args:
        imported: Other files may read its module-level names, so those stay.
        plain: Functions, as `Class.test`, that are not rewritten.
        is_cut: Whether operands of a comparison may be left out where it is rewritten.
        is_changed: Whether a fixed operand of it has turned out to be none.
    """

    def __init__(
        self,
        tree: ast.Module,
        *,
        imported: bool,
        plain: Callable[[str], bool],
        is_cut: Callable[[Comparison], bool],
        is_changed: Callable[[Comparison], bool],
    ) -> None:
        self._tree, self._is_cut, self._is_changed = tree, is_cut, is_changed
        self._bindings = Bindings(tree, helpers=not imported)
        self._pieces = [
            piece
            for name, function in self._bindings.functions
            if not plain(name)
            for statement in statements_of(function.body)
            for piece in statement_pieces(statement) or ()
            if isinstance(piece, Comparison)
        ]
        self._neutral = {id(name) for node in _neutral(tree) for name in ast.walk(node)}
        known = {
            scope
            for scope, count in self._bindings.counts.items()
            if count == self._bindings.num_sources(scope)
        }
        self._fixed = known - set(self._changed())
        while (
            kept := {scope for scope in self._fixed if self._is_constant(scope, self._fixed)}
        ) != self._fixed:
            self._fixed = kept
        self.names = {scope for scope in known if scope[0] or not imported}
        self._settle()

    def is_pure(self, node: ast.AST) -> bool:
        """Whether `node` is built of constants, and of names that say only what is expected."""
        return self._is_built_of(self.names, node)

    def _is_built_of(self, names: Set[Scope], node: ast.AST, bound: frozenset[str] = frozenset()) -> bool:
        if isinstance(node, ast.Name):
            return node.id in bound or self._bindings.scope(node) in names
        if isinstance(node, _COMPREHENSIONS):
            return self._comprehends(names, node, bound)
        if isinstance(node, ast.Call):
            return self._is_known(names, node.func, bound) and all(
                self._is_built_of(names, part, bound) for part in (*node.args, *node.keywords)
            )
        if isinstance(node, ast.Attribute):
            return self._is_of_library(node)
        return isinstance(node, _SIMPLE) and all(
            self._is_built_of(names, child, bound) for child in ast.iter_child_nodes(node)
        )

    def is_closed(self, node: ast.AST) -> bool:
        """Whether `node` reads nothing that the test itself has bound, so that it can be computed again."""
        bound = {found.id for found in ast.walk(node) if isinstance(found, ast.Name) and is_bound(found)}
        return all(
            not isinstance(found, ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr | ast.Lambda)
            and (not isinstance(found, ast.Name) or found.id in bound or not self._bindings.scope(found)[0])
            for found in ast.walk(node)
        )

    def cut(self, piece: Comparison) -> list[bool]:
        """Which operands of a comparison the process can do without: all but one at most."""
        pure = [self.is_pure(operand) for operand in piece.operands]
        fresh = self.fresh(piece)
        found = [is_pure or place in fresh for place, is_pure in enumerate(pure)]
        return [False] * len(found) if all(found) else found

    def fresh(self, piece: Comparison) -> dict[int, ast.expr]:
        """The fixed operands of a comparison without pure ones by place, made of constants alone.

        None where it asks for the very object, of which a value says nothing.
        """
        asks_for_object = not {"is", "is not"}.isdisjoint(piece.operators)
        if asks_for_object or self._is_changed(piece) or any(map(self.is_pure, piece.operands)):
            return {}
        found = {place: self._fresh(operand) for place, operand in enumerate(piece.operands)}
        fresh = {place: operand for place, operand in found.items() if operand is not None}
        return {} if len(fresh) == len(found) else fresh

    def _fresh(self, node: ast.expr) -> ast.expr | None:
        """`node` with what names that can change are bound to in their place; None if it is not fixed."""
        if not self._is_built_of(self._fixed, node):
            return None
        made = copy.deepcopy(node)
        scopes = [self._bindings.scope(name) for name in ast.walk(node) if isinstance(name, ast.Name)]
        for scope, name in zip(
            scopes, (name for name in ast.walk(made) if isinstance(name, ast.Name)), strict=True
        ):
            if scope not in self._fixed or self._is_unchangeable(scope):
                continue
            if len(self._bindings.assigned[scope]) != 1 or self._bindings.num_sources(scope) != 1:
                return None
            source = self._fresh(self._bindings.assigned[scope][0].value)  # type: ignore[arg-type]
            if source is None:
                return None
            made = _Replaced(name, source).visit(made)
        return made

    def _is_unchangeable(self, scope: Scope, seen: frozenset[Scope] = frozenset()) -> bool:
        """Whether all that a fixed name is bound to is numbers, texts and tuples of these."""
        if scope in seen:
            return False
        return all(
            isinstance(part, _UNCHANGEABLE)
            and (
                not isinstance(part, ast.Name)
                or self._is_unchangeable(self._bindings.scope(part), seen | {scope})
            )
            for source in self._sources(scope)
            for part in ast.walk(source)
        )

    def varies(self, node: ast.AST) -> bool:
        """Whether `node` reads a column of a table or a parameter."""
        scopes = [self._bindings.scope(found) for found in ast.walk(node) if isinstance(found, ast.Name)]
        return any(self._bindings.columns[scope] or self._bindings.arguments[scope] for scope in scopes)

    def blank(self) -> None:
        """Take out of the file what says only what is expected."""
        for table in self._bindings.tables.values():
            self._blank(table)
        for scope in self.names:
            for statement in self._bindings.assigned[scope]:
                statement.value = ast.copy_location(ast.Constant(None), statement)
            for call, place in self._bindings.arguments[scope]:
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
                for statement in self._bindings.assigned[scope]:
                    if statement.value is not None:
                        allowed |= {id(found) for found in ast.walk(statement.value)}
                for call, place in self._bindings.arguments[scope]:
                    allowed |= {id(found) for found in ast.walk(argument(call, place, scope[1]))}
            kept = {
                scope
                for scope in self.names
                if self._is_constant(scope, self.names)
                and all(self._is_blankable(table, column) for table, column in self._bindings.columns[scope])
            }
            if kept == self.names:
                kept = {scope for scope in self.names if self._is_only_compared(scope, allowed)}
            if kept == self.names:
                return
            self.names = kept

    def _sources(self, scope: Scope) -> Iterator[ast.expr]:
        """All that a name is bound to, as far as that is to be seen."""
        yield from (node.value for node in self._bindings.assigned[scope] if node.value is not None)
        yield from (argument(call, place, scope[1]) for call, place in self._bindings.arguments[scope])
        for table, column in self._bindings.columns[scope]:
            yield from (row[column] for row in table.rows() or ())

    def _is_constant(self, scope: Scope, names: Set[Scope]) -> bool:
        """Whether all that it is bound to is built of constants and of `names`."""
        is_seen = all(node.value is not None for node in self._bindings.assigned[scope]) and all(
            table.rows() is not None for table, _ in self._bindings.columns[scope]
        )
        return is_seen and all(self._is_built_of(names, source) for source in self._sources(scope))

    def _changed(self) -> Iterator[Scope]:
        """Names whose values the tests themselves change."""
        for node in ast.walk(self._tree):
            match node:
                case ast.Attribute(value=ast.Name() as name, attr=method) if method in _CHANGES:
                    yield self._bindings.scope(name)
                case ast.Attribute(value=ast.Name() as name, ctx=ast.Store() | ast.Del()):
                    yield self._bindings.scope(name)
                case ast.Subscript(value=ast.Name() as name, ctx=ast.Store() | ast.Del()):
                    yield self._bindings.scope(name)

    def _is_only_compared(self, scope: Scope, allowed: set[int]) -> bool:
        loads = self._bindings.loads[scope]
        return bool(loads) and all(id(load) in allowed for load in loads)

    def _is_blankable(self, table: Table, column: int) -> bool:
        rows = table.rows() if len({len(use) for use in table.uses}) == 1 else None
        return (
            rows is not None
            and table.loads in (0, len(table.uses))
            and not (isinstance(table.node, ast.Dict) and column == 0)
            and all(use[column] in self.names for use in table.uses)
        )

    def _blank(self, table: Table) -> None:
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

    def _comprehends(
        self,
        names: Set[Scope],
        node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp,
        bound: frozenset[str],
    ) -> bool:
        inside = bound | {
            found.id
            for generator in node.generators
            for found in ast.walk(generator.target)
            if isinstance(found, ast.Name)
        }
        results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        conditions = [test for generator in node.generators for test in generator.ifs]
        return all(self._is_built_of(names, generator.iter, bound) for generator in node.generators) and all(
            self._is_built_of(names, part, inside) for part in (*results, *conditions)
        )

    def _is_known(self, names: Set[Scope], function: ast.expr, bound: frozenset[str]) -> bool:
        """Whether what is called is built in, of the library, or a method of what is built of `names`."""
        match function:
            case ast.Name(id=name):
                is_rebound = bool(self._bindings.scope(function)[0]) or self._bindings.counts[0, name]
                return (name in _BUILTINS and not is_rebound) or self._is_of_library(function)
            case ast.Attribute(value=ast.Name(id="pytest"), attr="approx"):
                return True
            case ast.Attribute(value=value, attr=attribute):
                return attribute not in _IMPURE and (
                    self._is_of_library(function) or self._is_built_of(names, value, bound)
                )
        return False

    def _is_of_library(self, node: ast.expr) -> bool:
        """Whether `node` is a name that comes from modules of the standard library that only compute."""
        while isinstance(node, ast.Attribute):
            if node.attr in _IMPURE:
                return False
            node = node.value
        if not isinstance(node, ast.Name) or self._bindings.scope(node)[0]:
            return False
        return self._bindings.modules.get(node.id, "").partition(".")[0] in _MODULES or (
            self._bindings.modules.get(node.id) == "pytest.approx"
        )


class _Replaced(ast.NodeTransformer):
    """Puts `other` in the place of one name."""

    def __init__(self, name: ast.Name, other: ast.expr) -> None:
        self._name, self._other = name, other

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._other if node is self._name else node


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
