"""Test files rewritten so that they send what they see and hold no expectation.

    assert total(rows) == 12     ->  _sealed.claim("5f0e", total(rows))
    with pytest.raises(KeyError)  ->  with _sealed.raising("a31c")      so do other statements (`decoys`)
    @parametrize("text, wanted", [("a", 1)])  ->  [("a", None)], where `wanted` is only ever compared with

Unless it is `sealed` the same file is written with the expectations left in, for runs of the gold patch: what
those send, the seal keeps. A rewritten file is Python's own rendering of the syntax tree: comments and
docstrings are gone.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from envsdk.envs.swe.evaluator.kit import probes
from envsdk.envs.swe.evaluator.sealing.assertions import (
    Comparison,
    Raises,
    Truth,
    blocks_of,
    raises_of,
    statement_pieces,
)
from envsdk.envs.swe.evaluator.sealing.claims import MODULE, Choices, Claim, Secret, probe
from envsdk.envs.swe.evaluator.sealing.decoys import Decoys
from envsdk.envs.swe.evaluator.sealing.expectations import Expectations
from envsdk.envs.swe.evaluator.sealing.variants import alternatives, constants
from envsdk.envs.swe.syntax import parse

_MAX_PLACES = 3
"""Constants of an operand that are tried with other values."""


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

    Raises SyntaxError, ValueError, RecursionError: this interpreter cannot read it, or what it becomes.
    """
    tree = parse(source)
    secret = Secret(path, key)
    rewriter = _Rewriter(tree, secret, choices, sealed=sealed, imported=imported)
    tree = rewriter.visit(tree)
    rewriter.claims |= Decoys(tree, secret, choices, sealed=sealed).claims
    if sealed and not keep_docstrings:
        _drop_docstrings(tree)
    _import_probes(tree, rewriter.kinds)
    text = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    compile(text, path, "exec", dont_inherit=True)
    return Rewritten(text, rewriter.claims)


class _Rewriter(ast.NodeTransformer):
    """One file. Statements are visited in order; what is left alone is not descended into."""

    def __init__(
        self, tree: ast.Module, secret: Secret, choices: Choices, *, sealed: bool, imported: bool
    ) -> None:
        self.claims: dict[str, Claim] = {}
        self.kinds: dict[str, ast.expr] = {}
        """Classes of exceptions that the file waits for somewhere."""
        self._path, self._secret, self._choices, self._sealed = secret.path, secret, choices, sealed
        self._expectations = Expectations(
            tree,
            imported=imported,
            plain=choices.plain_functions.__contains__,
            is_cut=lambda piece: choices.forms.get(secret.name(piece.node), "values") == "values",
            is_changed=lambda piece: secret.name(piece.node) in choices.changed,
        )
        self._classes: list[str] = []
        self._in_function = False
        self._optional = False
        self._passed_on = frozenset[str]()
        """Names of functions inside a test that are not only called in it, but handed on."""
        if sealed:
            self._expectations.blank()

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self._classes.append(node.name)
        node.body = [self.visit(statement) for statement in node.body]
        self._classes.pop()
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        if self._in_function:
            node.body = self._block(node.body)
            return node
        if ".".join([*self._classes, node.name]) in self._choices.plain_functions:
            return node
        self._in_function, self._passed_on = True, _passed_on(node)
        node.body = self._block(node.body)
        self._in_function = False
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node

    def _block(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        written: list[ast.stmt] = []
        outside = self._optional
        for statement in statements:
            written += self._statement(statement)
            self._optional = self._optional or (self._depends(statement) and _leaves(statement))
        self._optional = outside
        return written

    def _statement(self, node: ast.stmt) -> list[ast.stmt]:
        pieces = statement_pieces(node)
        if pieces is not None:
            return [ast.copy_location(self._claim(piece), piece.node) for piece in pieces]
        match node:
            case ast.Expr(value=ast.Call() as call) if (raises := raises_of(call)) and raises.call:
                return [self._raised_by(node, call, raises)]
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

    def _claim(self, piece: Truth) -> ast.stmt:
        name = self._secret.name(piece.node)
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
        cut, fresh = self._expectations.cut(piece), self._expectations.fresh(piece)
        self.claims[name] = Claim(
            self._path,
            "values",
            operators=list(piece.operators),
            cut=cut,
            fresh=list(fresh),
            negated=piece.negated,
            can_vary=len(self._variants(name, piece)[1]) > 1,
            optional=self._optional,
            varies=any(
                self._expectations.varies(operand)
                for operand, is_cut in zip(piece.operands, cut, strict=True)
                if is_cut
            ),
        )
        if self._sealed:
            sent = [operand for operand, is_cut in zip(piece.operands, cut, strict=True) if not is_cut]
        else:
            sent = [*piece.operands, *fresh.values()]
        return probe("claim", ast.Constant(name), *sent)

    def _truths(self, name: str, piece: Truth) -> ast.stmt:
        value, variants = self._variants(name, piece)
        kept = self._choices.kept.get(name, list(range(1, len(variants))))
        order = [0, *kept]
        if self._sealed:
            self._secret.random(name, "order").shuffle(order)
        places = list(dict.fromkeys(id(constant) for constant, _ in variants))
        hidden = variants[kept[0]][0] if kept else None
        self.claims[name] = Claim(
            self._path,
            "truths",
            negated=piece.negated,
            order=order,
            optional=self._optional,
            places=[places.index(id(constant)) for constant, _ in variants],
            hidden=None if hidden is None else hidden.value,  # type: ignore[arg-type]
        )
        return probe(
            "truths", ast.Constant(name), value, *(_function_of(variants[place][1]) for place in order)
        )

    def _variants(
        self, name: str, piece: Truth
    ) -> tuple[ast.expr, list[tuple[ast.Constant | None, ast.expr]]]:
        """A value that is computed once, and expressions of it (`_value`): the assertion, then variants with
        the constant that they have another value for."""
        value = ast.Name("_value", ast.Load())
        # Only what a value is compared with is varied: another input may do anything in another patch.
        if isinstance(piece, Comparison) and piece.operators == ("==",) and not piece.negated:
            for varied in (1, 0):
                operand = piece.operands[varied]
                if self._expectations.is_closed(operand) and constants(operand):
                    others = [(None, operand), *self._vary(name, operand)]
                    made = [(place, piece.compared(value, varied, other)) for place, other in others]
                    return piece.operands[1 - varied], made
        return piece.node, [(None, value)]

    def _vary(self, name: str, node: ast.expr) -> Iterator[tuple[ast.Constant, ast.expr]]:
        """Copies of `node` with another value for one constant, and that constant."""
        source = self._secret.random(name, "vary")
        found = constants(node)
        for place in source.sample(range(len(found)), min(_MAX_PLACES, len(found))):
            for value in alternatives(found[place].value, source):  # type: ignore[arg-type]
                varied = copy.deepcopy(node)
                constants(varied)[place].value = value
                yield found[place], varied

    def _raising(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            raises = raises_of(item.context_expr)
            if raises is not None and not raises.call and self._is_sealable(item.context_expr, raises):
                item.context_expr = self._block_of(item.context_expr, raises)

    def _raised_by(self, node: ast.stmt, call: ast.Call, raises: Raises) -> ast.stmt:
        """`pytest.raises(WANTED, FUNCTION, ...)` as a block."""
        if not self._is_sealable(call, raises):
            return node
        keywords = [k for k in call.keywords if k.arg not in {"match", "expected_exception"}]
        inner = ast.Expr(ast.Call(raises.call[0], list(raises.call[1:]), keywords))
        around = ast.withitem(self._block_of(call, raises))
        return ast.copy_location(ast.With(items=[around], body=[ast.copy_location(inner, node)]), node)

    def _block_of(self, node: ast.expr, raises: Raises) -> ast.expr:
        """The head of a block in which something must be raised."""
        name = self._secret.name(node)
        self.claims[name] = Claim(self._path, "raised", optional=self._optional)
        for kind in raises.wanted.elts if isinstance(raises.wanted, ast.Tuple) else [raises.wanted]:
            if self._expectations.is_closed(kind):
                self.kinds[self._secret.name_of(ast.unparse(kind))] = kind
        expected = [] if self._sealed else [raises.wanted, raises.match or ast.Constant(None)]
        return probe("raising", ast.Constant(name), *expected).value

    def _is_sealable(self, node: ast.AST, raises: Raises) -> bool:
        is_plain = self._choices.forms.get(self._secret.name(node)) == "plain"
        return not (raises.catches_assertions or is_plain) and (
            raises.match is None or self._expectations.is_pure(raises.match)
        )


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


def _function_of(body: ast.expr, parameters: Sequence[str] = ("_value",)) -> ast.expr:
    return ast.Lambda(ast.arguments([], [ast.arg(name) for name in parameters], None, [], [], None, []), body)


def _drop_docstrings(tree: ast.AST) -> None:
    for node in ast.walk(tree):
        if isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ) and ast.get_docstring(node, clean=False):
            node.body[:1] = [] if len(node.body) > 1 or isinstance(node, ast.Module) else [ast.Pass()]


def _import_probes(tree: ast.Module, kinds: Mapping[str, ast.expr]) -> None:
    place = 0
    for number, node in enumerate(tree.body):
        is_docstring = number == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_docstring or (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            place = number + 1
    tree.body.insert(place, ast.Import([ast.alias(probes.NAME, MODULE)]))
    if kinds:
        # Looked up when something is raised: the file has bound all its names by then.
        found = [(ast.Constant(name), _function_of(kind, ())) for name, kind in sorted(kinds.items())]
        tree.body.insert(place + 1, probe("kinds", ast.Dict([k for k, _ in found], [v for _, v in found])))
