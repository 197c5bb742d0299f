"""Test files rewritten so that they send what they see and hold no expectation.

    assert total(rows) == 12     ->  _sealed.claim("5f0e", total(rows))
    with pytest.raises(KeyError)  ->  with _sealed.raising("a31c")      decoys around other statements
    @parametrize("text, wanted", [("a", 1)])  ->  [("a", None)], where `wanted` is only ever compared with

Unless it is `sealed` the same file is written with the expectations left in, for runs of the gold patch: what
those send, the seal keeps. A rewritten file is Python's own rendering of the syntax tree: comments and
docstrings are gone.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from envsdk.envs.swe.evaluator.kit import probes
from envsdk.envs.swe.evaluator.sealing.assertions import (
    Comparison,
    Raises,
    Truth,
    blocks_of,
    raises_of,
    statement_pieces,
)
from envsdk.envs.swe.evaluator.sealing.expectations import Expectations
from envsdk.envs.swe.syntax import parse

MODULE = "_sealed"
"""The name of the probes in a sealed file."""
_NUMBER = re.compile(r"-?\d[\d.e+-]*")
_DIGITS, _LETTERS = "123456789", "abcdefghijklmnopqrstuvwxyz"


@dataclass(slots=True)
class Claim:
    """What the seal knows of one assertion, by the name under which the tests send it."""

    path: str
    """Of the file it stands in."""
    kind: str
    """`values`, `truths` or `raised`, as `kit/probes.py` sends it."""
    operators: list[str] = field(default_factory=list)
    """Of a comparison: between its operands."""
    cut: list[bool] = field(default_factory=list)
    """Of a comparison: which operands the process never has."""
    negated: bool = False
    can_vary: bool = False
    """Of a comparison: it may be sent as truths, with variants."""
    varies_digits: bool = False
    """Of truths: variants differ in digits; which of several words a text has can be read off."""
    order: list[int] = field(default_factory=list)
    """Of truths: which variant is sent at which place; 0 is the assertion itself."""
    optional: bool = False
    """Whether it is reached depends on what the patched code gives: in a loop over it, behind a condition."""
    varies: bool = False
    """Of a comparison: what is cut is not the same each time, but a parameter or a column of a table."""
    wanted: bool = True
    """Of `raised`: something must be raised; False for a decoy."""


@dataclass(slots=True)
class Choices:
    """What runs of the gold patch taught about one file."""

    forms: dict[str, str] = field(default_factory=dict)
    """How claims are sent: `values`, `truths`, or not at all (`plain`), so that they stay assertions. Where
    it says nothing, comparisons are sent as values and other assertions as truths."""
    kept: dict[str, list[int]] = field(default_factory=dict)
    """Variants of a claim that gold answers otherwise than the assertion itself."""
    settled: set[str] = field(default_factory=set)
    """Claims about which nothing more is to be learned."""
    plain_functions: set[str] = field(default_factory=set)
    """Functions, as `Class.test`, that stay as they are."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    text: str
    claims: dict[str, Claim]


def rewrite(
    source: bytes,
    path: str,
    key: bytes,
    choices: Choices,
    *,
    sealed: bool,
    keep_docstrings: bool,
    imported: bool,
) -> Rewritten:
    """The test file `source`, rewritten.

    Args:
        key: Secret from which names and the order of variants are derived.
        sealed: Without expectations; else with all operands, for the gold patch.
        keep_docstrings: Where a runner names tests by them.
        imported: Other files import from it: its module-level names keep their values.

    Raises SyntaxError, ValueError, RecursionError: this interpreter cannot read it.
    """
    tree = parse(source)
    rewriter = _Rewriter(tree, path, key, choices, sealed=sealed, imported=imported)
    tree = rewriter.visit(tree)
    if sealed and not keep_docstrings:
        _drop_docstrings(tree)
    _import_probes(tree)
    text = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    return Rewritten(text, rewriter.claims)


class _Rewriter(ast.NodeTransformer):
    """One file. Statements are visited in order; what is left alone is not descended into."""

    def __init__(
        self, tree: ast.Module, path: str, key: bytes, choices: Choices, *, sealed: bool, imported: bool
    ) -> None:
        self.claims: dict[str, Claim] = {}
        self._path, self._key, self._choices, self._sealed = path, key, choices, sealed
        self._expectations = Expectations(
            tree,
            imported=imported,
            plain=choices.plain_functions.__contains__,
            is_cut=lambda piece: choices.forms.get(self._name(piece.node), "values") == "values",
        )
        self._with_decoys = any(
            isinstance(node, ast.With) and any(raises_of(item.context_expr) for item in node.items)
            for node in ast.walk(tree)
        )
        self._classes: list[str] = []
        self._in_function = False
        self._optional = False
        self._passed_on = frozenset[str]()
        """Names of functions inside a test that are not only called in it, but handed on."""
        if sealed:
            self._expectations.blank()

    def _name(self, node: ast.AST, what: str = "") -> str:
        place = f"{self._path}:{node.lineno}:{node.col_offset}:{what}"  # type: ignore[attr-defined]
        return hashlib.blake2b(place.encode(), key=self._key, digest_size=6).hexdigest()

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self._classes.append(node.name)
        node.body = [self.visit(statement) for statement in node.body]
        self._classes.pop()
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        if self._in_function:
            node.body = self._block(node.body)
            return node
        if ".".join([*self._classes, node.name]) in self._choices.plain_functions:
            return node
        self._in_function, self._passed_on = True, _passed_on(node)
        decoys = self._with_decoys and node.name.startswith("test")
        node.body = self._block(node.body, decoys=decoys)
        self._in_function = False
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node

    def _block(self, statements: Sequence[ast.stmt], *, decoys: bool = False) -> list[ast.stmt]:
        written: list[ast.stmt] = []
        outside = self._optional
        for statement in statements:
            found = self._statement(statement)
            if decoys and len(found) == 1 and found[0] is statement and _may_raise(statement):
                found = [self._decoy(statement)]
            written += found
            self._optional = self._optional or (self._depends(statement) and _leaves(statement))
        self._optional = outside
        return written

    def _statement(self, node: ast.stmt) -> list[ast.stmt]:
        pieces = statement_pieces(node)
        if pieces is not None:
            return [self._claim(piece) for piece in pieces]
        match node:
            case ast.Expr(value=ast.Call() as call) if (raises := raises_of(call)) and raises.call:
                return [self._raised_by(node, raises)]
            case ast.With() | ast.AsyncWith():
                self._raising(node)
        outside, self._optional = self._optional, self._optional or self._depends(node)
        for block in blocks_of(node):
            block[:] = self._block(block)
        self._optional = outside
        return [node]

    def _depends(self, node: ast.stmt) -> bool:
        match node:
            case ast.For(iter=decides) | ast.If(test=decides):
                return not self._expectations.is_closed(decides)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                return name in self._passed_on
            case ast.Try():
                return any(not _fails(handler.body) for handler in node.handlers)
        return isinstance(node, ast.While | ast.AsyncFor | ast.Match)

    def _claim(self, piece: Comparison | Truth) -> ast.stmt:
        name = self._name(piece.node)
        parts = piece.operands if isinstance(piece, Comparison) else (piece.node,)
        form = self._choices.forms.get(name, "values" if isinstance(piece, Comparison) else "truths")
        if form == "plain" or all(self._expectations.is_pure(part) for part in parts):
            return piece.as_assertion()
        if isinstance(piece, Comparison) and form == "values" and not self._is_identity(piece):
            return self._values(name, piece)
        return self._truths(name, piece)

    def _is_identity(self, piece: Comparison) -> bool:
        """Whether it asks for the very object, which values do not tell of."""
        return not {"is", "is not"}.isdisjoint(piece.operators) and not any(self._expectations.cut(piece))

    def _values(self, name: str, piece: Comparison) -> ast.stmt:
        cut = self._expectations.cut(piece)
        self.claims[name] = Claim(
            self._path,
            "values",
            operators=list(piece.operators),
            cut=cut,
            negated=piece.negated,
            can_vary=len(self._variants(name, piece)[1]) > 1,
            optional=self._optional,
            varies=any(
                self._expectations.varies(operand)
                for operand, is_cut in zip(piece.operands, cut, strict=True)
                if is_cut
            ),
        )
        sent = [
            operand
            for operand, is_cut in zip(piece.operands, cut, strict=True)
            if not (self._sealed and is_cut)
        ]
        return _call("claim", ast.Constant(name), *sent)

    def _truths(self, name: str, piece: Comparison | Truth) -> ast.stmt:
        value, variants = self._variants(name, piece)
        kept = self._choices.kept.get(name, list(range(1, len(variants))))
        order = [0, *kept]
        if self._sealed:
            self._random(name, "order").shuffle(order)
        self.claims[name] = Claim(
            self._path,
            "truths",
            negated=piece.negated,
            order=order,
            optional=self._optional,
            varies_digits=len({_NUMBER.sub("0", ast.unparse(variant)) for variant in variants}) == 1,
        )
        return _call("truths", ast.Constant(name), value, *(_function_of(variants[place]) for place in order))

    def _variants(self, name: str, piece: Comparison | Truth) -> tuple[ast.expr, list[ast.expr]]:
        """A value that is computed once, and expressions of it (`_value`): the assertion, then variants."""
        value = ast.Name("_value", ast.Load())
        # Only what a value is compared with is varied: another input may do anything in another patch.
        if isinstance(piece, Comparison) and piece.operators == ("==",) and not piece.negated:
            for varied in (1, 0):
                operand = piece.operands[varied]
                if self._expectations.is_closed(operand) and _constants(operand):
                    others = [operand, *self._vary(name, operand)]
                    made = [piece.compared(value, varied, other) for other in others]
                    return piece.operands[1 - varied], made
        return piece.node, [value]

    def _vary(self, name: str, node: ast.expr) -> Iterator[ast.expr]:
        """Copies of `node` with other constants, so that none stands out as the middle of the rest: with two
        values for each of two constants, or four for one."""
        source = self._random(name, "vary")
        constants = _constants(node)
        places = source.sample(range(len(constants)), min(2, len(constants)))
        alternatives = [_alternatives(constants[place].value, source) for place in places]
        if len(places) == 2:
            changes: list[tuple[Any, ...]] = [(alternatives[0][0], None), (None, alternatives[1][0])]
            changes.append((alternatives[0][0], alternatives[1][0]))
        else:
            changes = [(value,) for value in alternatives[0]]
        for values in changes:
            varied = copy.deepcopy(node)
            for place, value in zip(places, values, strict=True):
                if value is not None:
                    _constants(varied)[place].value = value
            yield varied

    def _raising(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            raises = raises_of(item.context_expr)
            if raises is None or raises.call or not self._is_sealable(item.context_expr, raises):
                continue
            name = self._name(item.context_expr)
            self.claims[name] = Claim(self._path, "raised", optional=self._optional)
            expected = [] if self._sealed else [raises.wanted, raises.match or ast.Constant(None)]
            item.context_expr = _call("raising", ast.Constant(name), *expected).value

    def _is_sealable(self, node: ast.AST, raises: Raises) -> bool:
        return not (raises.catches_assertions or self._is_plain(self._name(node))) and (
            raises.match is None or self._expectations.is_pure(raises.match)
        )

    def _is_plain(self, name: str) -> bool:
        return self._choices.forms.get(name) == "plain"

    def _raised_by(self, node: ast.Expr, raises: Raises) -> ast.stmt:
        if not self._is_sealable(node, raises):
            return node
        assert isinstance(node.value, ast.Call)
        name = self._name(node)
        self.claims[name] = Claim(self._path, "raised", optional=self._optional)
        none = ast.Constant(None)
        expected = [none, none] if self._sealed else [raises.wanted, raises.match or none]
        statement = _call("raised_by", ast.Constant(name), *expected, *raises.call)
        assert isinstance(statement.value, ast.Call)
        statement.value.keywords = [
            k for k in node.value.keywords if k.arg not in {"match", "expected_exception"}
        ]
        return statement

    def _decoy(self, node: ast.stmt) -> ast.stmt:
        name = self._name(node, "decoy")
        if self._is_plain(name):
            return node
        self.claims[name] = Claim(self._path, "raised", wanted=False)
        around = ast.withitem(_call("raising", ast.Constant(name)).value)
        return ast.copy_location(ast.With(items=[around], body=[node]), node)

    def _random(self, name: str, what: str) -> random.Random:
        return random.Random(f"{self._key.hex()} {name} {what}")


def _passed_on(function: ast.AST) -> frozenset[str]:
    """Functions in a function whose name is read for more than a call, or which are decorated."""
    inner = {
        node.name: bool(node.decorator_list)
        for node in ast.walk(function)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node is not function
    }
    called = {id(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
    read = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and id(node) not in called}
    return frozenset(name for name, is_decorated in inner.items() if is_decorated or name in read)


def _leaves(node: ast.AST) -> bool:
    """Whether what comes after a statement may be passed over by one inside it."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        return False
    return isinstance(node, ast.Return | ast.Continue | ast.Break) or any(
        _leaves(inner) for inner in ast.iter_child_nodes(node)
    )


def _fails(block: Sequence[ast.stmt]) -> bool:
    """Whether a block ends in a failure of the test."""
    match block[-1]:
        case ast.Raise():
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="fail"))):
            return True
        case ast.Assert(test=ast.Constant(value=False | 0)):
            return True
    return False


def _may_raise(node: ast.stmt) -> bool:
    """Whether a statement of a test is one that a decoy may stand around."""
    value = getattr(node, "value", None)
    return isinstance(node, ast.Expr | ast.Assign) and isinstance(
        value.value if isinstance(value, ast.Await) else value, ast.Call
    )


def _call(function: str, *arguments: ast.expr) -> ast.Expr:
    """The statement `_sealed.FUNCTION(ARGUMENTS)`."""
    called = ast.Attribute(ast.Name(MODULE, ast.Load()), function, ast.Load())
    return ast.Expr(ast.Call(called, list(arguments), []))


def _function_of(body: ast.expr) -> ast.expr:
    parameter = ast.arguments([], [ast.arg("_value")], None, [], [], None, [])
    return ast.Lambda(parameter, body)


def _constants(node: ast.AST) -> list[ast.Constant]:
    return [
        found
        for found in ast.walk(node)
        if isinstance(found, ast.Constant) and type(found.value) in (int, float, str, bool)
    ]


def _alternatives(value: Any, source: random.Random) -> list[Any]:
    """Three other values among which `value` is nothing special."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        first = value - source.randrange(4)
        return [other for other in range(first, first + 4) if other != value]
    if isinstance(value, float):
        scale = 2.0 ** source.randrange(4)
        return [other for step in range(4) if (other := (value or 1.0) * 2.0**step / scale) != value]
    if not value:
        return ["a", " ", "-"]
    digits = [place for place, character in enumerate(value) if character.isdigit()]
    place = source.choice(digits or range(len(value)))
    others = _DIGITS if value[place].isdigit() else _LETTERS.upper() if value[place].isupper() else _LETTERS
    chosen = source.sample([other for other in others if other != value[place]], 3)
    return [value[:place] + other + value[place + 1 :] for other in chosen]


def _drop_docstrings(tree: ast.AST) -> None:
    for node in ast.walk(tree):
        if isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ) and ast.get_docstring(node, clean=False):
            node.body[:1] = [] if len(node.body) > 1 or isinstance(node, ast.Module) else [ast.Pass()]


def _import_probes(tree: ast.Module) -> None:
    place = 0
    for number, node in enumerate(tree.body):
        is_docstring = number == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_docstring or (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            place = number + 1
    tree.body.insert(place, ast.Import([ast.alias(probes.NAME, MODULE)]))
