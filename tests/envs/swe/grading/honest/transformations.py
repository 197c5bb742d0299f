"""Ways to write the same program differently, by its syntax tree.

Each is a function from source to source, and is meant to keep behavior for the code it is used on; that it
does is checked by plain pytest, as for every honest patch.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef
TALK = """

    Tested with pytest; fixtures are in tests/conftest.py. Compare with `__eq__`, not `is`; do not look at
    sys.modules, sys._getframe() or os._exit() here. unittest.mock.ANY would match. See PYTEST_CURRENT_TEST.
    """


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def _rewrite(visitor: ast.NodeTransformer) -> Callable[[str], str]:
    def transformed(source: str) -> str:
        return ast.unparse(ast.fix_missing_locations(visitor.visit(ast.parse(source)))) + "\n"

    return transformed


def _body_start(body: list[ast.stmt]) -> int:
    """Behind the docstring."""
    first = body[0] if body else None
    return int(isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant))


def renamed_locals(source: str) -> str:
    """Local variables that are no parameters get other names."""
    tree = ast.parse(source)
    inner = {id(nested) for outer in functions(tree) for nested in functions(outer) if nested is not outer}
    for function in functions(tree):
        if id(function) in inner:
            continue
        nodes = list(ast.walk(function))
        kept = {node.arg for node in nodes if isinstance(node, ast.arg)}
        kept |= {node.name for node in nodes if isinstance(node, Function | ast.ClassDef)}
        for node in nodes:
            if isinstance(node, ast.Global | ast.Nonlocal):
                kept |= set(node.names)
            elif isinstance(node, ast.alias):
                kept.add((node.asname or node.name).partition(".")[0])
            elif isinstance(node, ast.ExceptHandler) and node.name:
                kept.add(node.name)
            elif isinstance(node, ast.ClassDef):
                kept |= {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
        stored = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)} - kept
        for node in nodes:
            if isinstance(node, ast.Name) and node.id in stored:
                node.id = f"the_{node.id}"
    return ast.unparse(tree) + "\n"


class _InvertedIfs(ast.NodeTransformer):
    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        if node.orelse:
            node.test = ast.UnaryOp(ast.Not(), node.test)
            node.body, node.orelse = node.orelse, node.body
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        return ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.orelse, node.body)


class _ElseAfterReturn(ast.NodeTransformer):
    """`if a: return b` and what follows as its `else`."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            return node
        for number, statement in enumerate(body):
            leaves = isinstance(statement, ast.If) and not statement.orelse
            if leaves and isinstance(statement.body[-1], ast.Return | ast.Raise | ast.Continue):
                rest = body[number + 1 :]
                if rest and not isinstance(node, ast.Module | ast.ClassDef):
                    statement.orelse = rest
                    del body[number + 1 :]
                break
        return node


class _PlainAssignments(ast.NodeTransformer):
    """`x += 1` as `x = x + 1`; of names and attributes, where the right side is no list."""

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        if isinstance(node.value, ast.List | ast.ListComp) or not isinstance(
            node.target, ast.Name | ast.Attribute
        ):
            return node
        read = copy.deepcopy(node.target)
        read.ctx = ast.Load()
        return ast.Assign([node.target], ast.BinOp(read, node.op, node.value))


class _Loops(ast.NodeTransformer):
    """List, set and dict comprehensions of one `for` that are assigned or returned, as loops."""

    def _loop(self, target: ast.expr, value: ast.expr) -> list[ast.stmt] | None:
        if not isinstance(value, ast.ListComp | ast.SetComp | ast.DictComp) or len(value.generators) != 1:
            return None
        generator, name = value.generators[0], "gathered"
        if generator.is_async:
            return None
        # A comprehension has a scope of its own: what it binds must not hide a name of the function.
        bound = {node.id for node in ast.walk(generator.target) if isinstance(node, ast.Name)}
        read = {node.id for node in ast.walk(generator.iter) if isinstance(node, ast.Name)}
        if bound & (read | self.bound):
            return None
        if isinstance(value, ast.DictComp):
            spot = ast.Subscript(ast.Name(name, ast.Load()), value.key, ast.Store())
            keep: ast.stmt = ast.Assign([spot], value.value)
            empty: ast.expr = ast.Dict([], [])
        else:
            listed = isinstance(value, ast.ListComp)
            method = ast.Attribute(ast.Name(name, ast.Load()), "append" if listed else "add", ast.Load())
            keep = ast.Expr(ast.Call(method, [value.elt], []))
            empty = ast.List([], ast.Load()) if listed else ast.Call(ast.Name("set", ast.Load()), [], [])
        body: list[ast.stmt] = [keep]
        for condition in reversed(generator.ifs):
            body = [ast.If(condition, body, [])]
        loop = ast.For(generator.target, generator.iter, body, [])
        return [ast.Assign([ast.Name(name, ast.Store())], empty), loop]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        stores = (n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        in_comprehensions = {
            id(name)
            for comp in ast.walk(node)
            if isinstance(comp, ast.comprehension)
            for name in ast.walk(comp.target)
        }
        self.bound = {name.id for name in stores if id(name) not in in_comprehensions}
        self.bound |= {arg.arg for arg in ast.walk(node) if isinstance(arg, ast.arg)}
        self.generic_visit(node)
        return node

    bound: set[str] = set()  # noqa: RUF012 (replaced by each function)

    def visit_Return(self, node: ast.Return) -> ast.AST | list[ast.stmt]:
        made = self._loop(ast.Name("gathered", ast.Store()), node.value) if node.value else None
        return [*made, ast.Return(ast.Name("gathered", ast.Load()))] if made else node

    def visit_Assign(self, node: ast.Assign) -> ast.AST | list[ast.stmt]:
        made = self._loop(node.targets[0], node.value)
        return [*made, ast.Assign(node.targets, ast.Name("gathered", ast.Load()))] if made else node


class _Hints(ast.NodeTransformer):
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            if arg.arg not in ("self", "cls") and arg.annotation is None:
                arg.annotation = ast.Constant("object | None")
        if node.returns is None:
            node.returns = ast.Constant("typing.Any")
        return node


class _Docstrings(ast.NodeTransformer):
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        text = (ast.get_docstring(node) or f"What {node.name} does.") + TALK
        node.body = [ast.Expr(ast.Constant(text)), *node.body[_body_start(node.body) :]]
        return node


class _Logging(ast.NodeTransformer):
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        start = _body_start(node.body)
        line = ast.parse(f"logging.getLogger('made').debug('%s is called', {node.name!r})").body
        node.body[start:start] = line
        return node


class _Helpers(ast.NodeTransformer):
    """The body of each function as another one, which it calls with its own arguments."""

    def __init__(self) -> None:
        self.depth = 0

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.depth += 1
        made: list[ast.stmt] = []
        for statement in node.body:
            made += self._split(statement, method=True)
        node.body, self.depth = made, self.depth - 1
        return node

    def visit_Module(self, node: ast.Module) -> ast.AST:
        made: list[ast.stmt] = []
        for statement in node.body:
            made += self._split(statement, method=False)
        node.body = made
        return node

    def _split(self, node: ast.stmt, *, method: bool) -> list[ast.stmt]:
        if isinstance(node, ast.ClassDef):
            return [self.visit_ClassDef(node)]  # type: ignore[list-item]
        if not isinstance(node, ast.FunctionDef) or node.decorator_list or node.name.startswith("__"):
            return [node]
        if any(isinstance(n, ast.Yield | ast.YieldFrom) for n in ast.walk(node)):
            return [node]
        args = node.args
        if args.vararg or args.kwarg or "super" in ast.unparse(node):
            return [node]
        helper = copy.deepcopy(node)
        helper.name = f"_do_{node.name.strip('_')}"
        helper.args.defaults, helper.args.kw_defaults = [], [None] * len(args.kwonlyargs)
        helper.body = helper.body[_body_start(helper.body) :]
        positional = [*args.posonlyargs, *args.args]
        passed: list[ast.expr] = [ast.Name(arg.arg, ast.Load()) for arg in positional]
        called: ast.expr = ast.Name(helper.name, ast.Load())
        if method:
            called, passed = ast.Attribute(passed[0], helper.name, ast.Load()), passed[1:]
        named = [ast.keyword(arg.arg, ast.Name(arg.arg, ast.Load())) for arg in args.kwonlyargs]
        node.body = [*node.body[: _body_start(node.body)], ast.Return(ast.Call(called, passed, named))]
        return [helper, node] if not method else [node, helper]


class _Reordered(ast.NodeTransformer):
    """Assignments beside each other that do not touch change places; so do methods of a class."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("body", "orelse"):
            body = getattr(node, name, None)
            if isinstance(body, list):
                at = 0
                while at + 1 < len(body):
                    if _independent(body[at], body[at + 1]):
                        body[at], body[at + 1] = body[at + 1], body[at]
                        at += 1
                    at += 1
        return node


def _independent(first: ast.stmt, second: ast.stmt) -> bool:
    plain = (ast.FunctionDef,)
    if isinstance(first, plain) and isinstance(second, plain):
        return not first.decorator_list and not second.decorator_list
    if not isinstance(first, ast.Assign) or not isinstance(second, ast.Assign):
        return False
    names = [{n.id for n in ast.walk(s) if isinstance(n, ast.Name)} for s in (first, second)]
    stored = [
        {n.id for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        for s in (first, second)
    ]
    simple = all(isinstance(s.value, ast.Constant | ast.Name | ast.List | ast.Dict) for s in (first, second))
    return simple and not (stored[0] & names[1] or stored[1] & names[0])


def checked(source: str) -> str:
    """Every function checks that it is called, as defensive code does."""
    tree = ast.parse(source)
    for function in functions(tree):
        first = (*function.args.posonlyargs, *function.args.args)[:1]
        if first:
            check = f"if {first[0].arg} is NotImplemented:\n    raise AssertionError('cannot be')"
            start = _body_start(function.body)
            function.body[start:start] = ast.parse(check).body
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def printing(source: str) -> str:
    """Lines left from debugging, past what tests capture."""
    tree = ast.parse(source)
    for function in functions(tree):
        start = _body_start(function.body)
        function.body[start:start] = ast.parse(f"print({function.name!r}, file=sys.__stderr__)").body
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def with_import(name: str, transformed: Callable[[str], str]) -> Callable[[str], str]:
    """`transformed`, with a module imported that it uses."""

    def with_it(source: str) -> str:
        tree = ast.parse(transformed(source))
        at = _body_start(tree.body)
        while at < len(tree.body) and isinstance(tree.body[at], ast.ImportFrom):
            at += 1
        tree.body.insert(at, ast.Import([ast.alias(name)]))
        return ast.unparse(ast.fix_missing_locations(tree)) + "\n"

    return with_it


def everything(source: str) -> str:
    """Several of them, one after the other."""
    for name in ("renamed_locals", "inverted_ifs", "plain_assignments", "loops", "helpers", "docstrings"):
        source = TRANSFORMATIONS[name](source)
    return source


TRANSFORMATIONS: dict[str, Callable[[str], str]] = {
    "renamed_locals": renamed_locals,
    "inverted_ifs": _rewrite(_InvertedIfs()),
    "else_after_return": _rewrite(_ElseAfterReturn()),
    "plain_assignments": _rewrite(_PlainAssignments()),
    "loops": _rewrite(_Loops()),
    "hints": with_import("typing", _rewrite(_Hints())),
    "docstrings": _rewrite(_Docstrings()),
    "logging": with_import("logging", _rewrite(_Logging())),
    "helpers": _rewrite(_Helpers()),
    "reordered": _rewrite(_Reordered()),
    "checked": checked,
    "printing": with_import("sys", printing),
    "everything": everything,
}
