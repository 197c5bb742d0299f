"""Small changes of Python source that a programmer might have made by mistake.

    Source(text) -> mutations(source) -> Mutation ... -> apply(source, mutation) -> text

Found in the syntax tree and made in the text, so that comments and layout stay.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from envsdk.envs.swe.syntax import parse

_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
_OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.Div: ("/", "//"),
    ast.FloorDiv: ("//", "/"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
_PAIRS = (
    ("min", "max"),
    ("any", "all"),
    ("startswith", "endswith"),
    ("lstrip", "rstrip"),
    ("append", "extend"),
    ("floor", "ceil"),
    ("lower", "upper"),
    ("popleft", "pop"),
    ("find", "rfind"),
    ("keys", "values"),
)
_NAMES = {name: other for pair in _PAIRS for name, other in (pair, pair[::-1])}
_ORDERED = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.LShift, ast.RShift)
_SIMPLE = (ast.Assign, ast.AugAssign, ast.Expr)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One change: `replacement` for the bytes from `start` to `end`."""

    operator: str
    function: str
    """Qualified name of the innermost function."""
    first_line: int
    start: int
    end: int
    replacement: str


class NotDifferent(ValueError):
    """The change means nothing, or gives no valid Python."""


class Source:
    """A module's text with its syntax tree. Raises SyntaxError."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.data = text.encode()
        self.tree = parse(text)
        self._starts = [0]
        for line in self.data.split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    @cached_property
    def dump(self) -> str:
        return ast.dump(self.tree)

    def span(self, node: ast.AST) -> tuple[int, int]:
        """First and last byte of a node."""
        assert isinstance(node, ast.expr | ast.stmt | ast.keyword)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def segment(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.data[start:end].decode()

    def between(self, left: ast.AST, right: ast.AST) -> tuple[int, int, str]:
        start, end = self.span(left)[1], self.span(right)[0]
        return start, end, self.data[start:end].decode()

    def swapped(self, first: ast.AST, second: ast.AST) -> tuple[int, int, str]:
        """Where both stand, and the text with the second first."""
        middle = self.between(first, second)[2]
        text = self.segment(second) + middle + self.segment(first)
        return self.span(first)[0], self.span(second)[1], text


def apply(source: Source, mutation: Mutation) -> str:
    """The changed text. NotDifferent where it has the same syntax tree, or none."""
    data = source.data
    text = (data[: mutation.start] + mutation.replacement.encode() + data[mutation.end :]).decode()
    try:
        tree = parse(text)
        compile(text, "mutant", "exec")
    except (SyntaxError, ValueError) as error:
        raise NotDifferent(str(error)) from None
    if ast.dump(tree) == source.dump:
        raise NotDifferent("the same syntax tree")
    return text


def mutations(source: Source) -> Iterator[Mutation]:
    """All mutations inside functions, docstrings apart, in the order of the tree."""
    for function, name in _functions(source.tree, ""):
        body = function.body
        if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            body = body[1:]
        for node in _own_nodes(body):
            for operator, start, end, replacement in _changes(source, node):
                assert isinstance(node, ast.expr | ast.stmt)
                yield Mutation(
                    operator=operator,
                    function=name,
                    first_line=node.lineno,
                    start=start,
                    end=end,
                    replacement=replacement,
                )


Function = ast.FunctionDef | ast.AsyncFunctionDef
Change = tuple[str, int, int, str]


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[Function, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield child, prefix + child.name
            yield from _functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        else:
            yield from _functions(child, prefix)


def _own_nodes(body: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """Expressions and statements of a function, without those of functions inside it."""
    waiting: list[ast.AST] = list(reversed(body))
    while waiting:
        node = waiting.pop()
        # What is inside a formatted text has no reliable position before Python 3.12.
        if isinstance(node, Function | ast.ClassDef | ast.JoinedStr):
            continue
        if isinstance(node, ast.expr | ast.stmt):
            yield node
        waiting.extend(reversed(list(ast.iter_child_nodes(node))))


def _changes(source: Source, node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            yield from _swap_between(source, "comparison", left, right, *_COMPARISONS[type(op)])
        case ast.BinOp():
            yield from _of_binary(source, node)
        case ast.Constant(value=bool(value)):
            yield "boolean", *source.span(node), str(not value)
        case ast.Constant(value=int(value)):
            yield "number", *source.span(node), str(value + 1 if value <= 0 else value - 1)
        case ast.BoolOp(op=op, values=[first, second, *_]):
            old, new = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
            yield from _swap_between(source, "and_or", first, second, old, new)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "dropped_not", *source.span(node), source.segment(operand)
        case ast.If():
            yield from _of_if(source, node)
        case ast.Assign() | ast.AugAssign():
            yield "missing_assignment", *source.span(node), "pass"
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield "missing_result", *source.span(node), "return None"
        case ast.Break():
            yield "break_continue", *source.span(node), "continue"
        case ast.Continue():
            yield "break_continue", *source.span(node), "break"
        case ast.Raise(exc=ast.expr()):
            yield "missing_error", *source.span(node), "pass"
        case ast.Call():
            yield from _of_call(source, node)
    yield from _swapped_statements(source, node)


def _swap_between(
    source: Source, name: str, left: ast.AST, right: ast.AST, old: str, new: str
) -> Iterator[Change]:
    start, end, text = source.between(left, right)
    if text.count(old) == 1:
        yield name, start, end, text.replace(old, new)


def _of_binary(source: Source, node: ast.BinOp) -> Iterator[Change]:
    if isinstance(node.op, ast.Mod) and isinstance(node.left, ast.JoinedStr | ast.Constant):
        return  # text formatting, mostly
    if type(node.op) not in _OPERATORS:
        return
    yield from _swap_between(source, "operator", node.left, node.right, *_OPERATORS[type(node.op)])
    if isinstance(node.op, _ORDERED):
        _, _, middle = source.between(node.left, node.right)
        yield "operands", *source.span(node), source.segment(node.right) + middle + source.segment(node.left)
    if isinstance(node.left, ast.BinOp):
        yield "missing_term", *source.span(node), source.segment(node.left)


def _of_if(source: Source, node: ast.If) -> Iterator[Change]:
    yield "negated_condition", *source.span(node.test), f"not ({source.segment(node.test)})"
    if not node.orelse:
        yield "missing_branch", *source.span(node), "pass"
    elif len(node.body) == len(node.orelse) == 1 and not isinstance(node.orelse[0], ast.If):
        yield "swapped_branches", *source.swapped(node.body[0], node.orelse[0])


def _of_call(source: Source, node: ast.Call) -> Iterator[Change]:
    if len(node.args) >= 2 and not any(isinstance(arg, ast.Starred) for arg in node.args[:2]):
        yield "arguments", *source.swapped(*node.args[:2])
    match node.func:
        case ast.Name(id=name) if name in _NAMES:
            yield "function", *source.span(node.func), _NAMES[name]
        case ast.Attribute(attr=name) if name in _NAMES:
            end = source.span(node.func)[1]
            yield "function", end - len(name.encode()), end, _NAMES[name]
    if node.keywords and node.keywords[-1].arg:
        before = [*node.args, *(keyword.value for keyword in node.keywords[:-1])]
        if before:
            start = max(source.span(value)[1] for value in before)
            yield "missing_argument", start, source.span(node.keywords[-1].value)[1], ""


def _swapped_statements(source: Source, node: ast.AST) -> Iterator[Change]:
    """Two simple statements in a row below `node`, the second first."""
    body = getattr(node, "body", None)
    if not isinstance(body, list):
        return
    for first, second in pairwise(body):
        if isinstance(first, _SIMPLE) and isinstance(second, _SIMPLE):
            yield "statements", *source.swapped(first, second)
