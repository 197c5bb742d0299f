"""The assertions of a test file, by what they compare."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

_OPERATORS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "is",
    ast.IsNot: "is not",
}
_NODES = {text: kind for kind, text in _OPERATORS.items()}
_METHODS = {
    **dict.fromkeys(("assertEqual", "assertEquals", "assertListEqual", "assertTupleEqual"), "=="),
    **dict.fromkeys(
        ("assertSetEqual", "assertDictEqual", "assertMultiLineEqual", "assertSequenceEqual"), "=="
    ),
    **{"assertNotEqual": "!=", "assertIs": "is", "assertIsNot": "is not"},
    **{"assertIn": "in", "assertNotIn": "not in", "assertLess": "<", "assertLessEqual": "<="},
    **{"assertGreater": ">", "assertGreaterEqual": ">=", "assertCountEqual": "count"},
    **{"assertAlmostEqual": "almost:7", "assertRegex": "search"},
}
_WITH_NONE = {"assertIsNone": "is", "assertIsNotNone": "is not"}
_CATCH_ASSERTIONS = {"AssertionError", "Exception", "BaseException", "failureException", "error"}
_NOT_CAUGHT = {*_CATCH_ASSERTIONS, "KeyboardInterrupt", "GeneratorExit", "SkipTest"} - {"Exception", "error"}


@dataclass(frozen=True, slots=True)
class Truth:
    """An expression that must be true; `negated`: false."""

    node: ast.expr
    """The statement as an expression, at its place in the file."""
    negated: bool
    statement: ast.stmt | None = None
    """The method of `unittest` that it is."""

    def as_assertion(self) -> ast.stmt:
        test = ast.UnaryOp(ast.Not(), self.node) if self.negated else self.node
        return self.statement or ast.Assert(test)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Truth):
    """One or more operators between operands, all of which must hold; `negated`: must not."""

    operands: tuple[ast.expr, ...]
    operators: tuple[str, ...]

    def compared(self, value: ast.expr, place: int, other: ast.expr) -> ast.expr:
        """The comparison of two, with `other` at `place` and `value` at the other place."""
        left, right = (value, other) if place else (other, value)
        return ast.Compare(left, [_NODES[self.operators[0]]()], [right])


@dataclass(frozen=True, slots=True)
class Raises:
    """`pytest.raises` and the like."""

    wanted: ast.expr
    match: ast.expr | None
    call: tuple[ast.expr, ...]
    """What is called and with what, where it is no `with`."""
    catches_assertions: bool
    """It may be about a failing assertion, so what is inside has to fail as it is."""


def pieces_of(node: ast.expr, negated: bool = False) -> Iterator[Truth]:
    """What `assert NODE` asserts, part by part."""
    match node:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from pieces_of(operand, not negated)
        case ast.BoolOp(op=operator, values=values) if isinstance(operator, ast.Or if negated else ast.And):
            for value in values:
                yield from pieces_of(value, negated)
        case ast.Compare(left=left, ops=operators, comparators=others):
            texts = tuple(_OPERATORS[type(operator)] for operator in operators)
            yield Comparison(node, negated, operands=(left, *others), operators=texts)
        case _:
            yield Truth(node, negated)


def statement_pieces(node: ast.stmt) -> list[Truth] | None:
    """What a statement asserts; None where it is no assertion."""
    match node:
        case ast.Assert(test=test):
            return list(pieces_of(test))
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(), attr=method)) as call):
            return _method_pieces(node, method, call)
    return None


def _method_pieces(node: ast.stmt, method: str, call: ast.Call) -> list[Truth] | None:
    arguments, keywords = list(call.args), {keyword.arg: keyword.value for keyword in call.keywords}
    keywords.pop("msg", None)
    operator = _METHODS.get(method)
    if operator == "almost:7" and isinstance(places := keywords.pop("places", None), ast.Constant):
        operator = f"almost:{places.value!r}"
    num_wanted = 2 if operator or method == "assertIsInstance" else 1
    is_known = operator or method in {*_WITH_NONE, "assertTrue", "assertFalse", "assertIsInstance"}
    has_message = len(arguments) == num_wanted + 1 and not method.startswith("assertAlmost")
    if not is_known or keywords or not (len(arguments) == num_wanted or has_message):
        return None
    if any(isinstance(argument, ast.Starred) for argument in arguments):
        return None
    if operator is not None:
        left, right = arguments[:2]
        kind = _NODES.get(operator, ast.Eq)
        whole = ast.copy_location(ast.Compare(left, [kind()], [right]), call)
        return [Comparison(whole, False, node, operands=(left, right), operators=(operator,))]
    if method in _WITH_NONE:
        none = ast.copy_location(ast.Constant(None), call)
        operator = _WITH_NONE[method]
        whole = ast.copy_location(ast.Compare(arguments[0], [_NODES[operator]()], [none]), call)
        return [Comparison(whole, False, node, operands=(arguments[0], none), operators=(operator,))]
    if method == "assertIsInstance":
        check = ast.Call(ast.Name("isinstance", ast.Load()), arguments[:2], [])
        return [Truth(ast.copy_location(check, call), False, node)]
    pieces = list(pieces_of(arguments[0], method == "assertFalse"))
    return pieces if len(pieces) > 1 else [replace(pieces[0], statement=node)]


def raises_of(node: ast.expr) -> Raises | None:
    """What `node` says must be raised, as a context or as a call; None where it is something else."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name), args=[wanted, *rest], keywords=keywords):
            is_pytest = name == "raises"
        case ast.Call(func=ast.Name(id="raises" as name), args=[wanted, *rest], keywords=keywords):
            is_pytest = True
        case _:
            return None
    if not is_pytest and name not in {"assertRaises", "assertRaisesRegex"}:
        return None
    found = {keyword.arg: keyword.value for keyword in keywords}
    match_ = found.pop("match", None) if is_pytest else None
    if name == "assertRaisesRegex" and rest:
        match_, *rest = rest
    if not rest:
        found.pop("msg", None)
    strange = (not rest and found) or any(
        isinstance(argument, ast.Starred) for argument in (wanted, *rest[:1])
    )
    return Raises(wanted, match_, tuple(rest), bool(strange) or _names(wanted, _NOT_CAUGHT))


def _names(node: ast.expr, names: set[str]) -> bool:
    return any(
        (isinstance(found, ast.Name) and found.id in names)
        or (isinstance(found, ast.Attribute) and found.attr in names)
        for found in ast.walk(node)
    )


def catches_assertions(node: ast.Try) -> bool:
    """Whether a handler takes a failing assertion."""
    return any(handler.type is None or _names(handler.type, _CATCH_ASSERTIONS) for handler in node.handlers)


def blocks_of(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    """Blocks of statements inside `node` in which a failing assertion fails the test."""
    if isinstance(node, ast.With | ast.AsyncWith) and any(
        raises_of(item.context_expr) for item in node.items
    ):
        return
    for name in ("body", "orelse", "finalbody"):
        if name == "body" and isinstance(node, ast.Try) and catches_assertions(node):
            continue
        if isinstance(block := getattr(node, name, None), list):
            yield block
    for handler in getattr(node, "handlers", []):
        yield handler.body
    for case in getattr(node, "cases", []):
        yield case.body


def statements_of(block: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a block at any depth, functions defined in it included."""
    for statement in block:
        yield statement
        for inner in blocks_of(statement):
            yield from statements_of(inner)
