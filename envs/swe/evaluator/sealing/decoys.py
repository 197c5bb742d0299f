"""Blocks that look like those in which something must be raised, around statements that must raise nothing.

    with _sealed.raising("a31c") as caught:      must raise
        _sealed.claim("77b2", parse("=3"))       written in place of `parse("=3")`; nobody looks at it
    _sealed.claim("0d1e", str(caught.value))

    with _sealed.raising("5f0e") as caught:      a decoy
        _sealed.claim("c4d0", parse("x=3"))      must be what the seal says
    _sealed.claim("9a81", str(caught.value))     a copy; nobody looks at it

Decoys have the shapes of the blocks of their file: how many statements, a name, what is asked of the name.
"""

from __future__ import annotations

import ast
import builtins
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from envsdk.envs.swe.evaluator.sealing.assertions import blocks_of
from envsdk.envs.swe.evaluator.sealing.bindings import bound_names, outer_functions
from envsdk.envs.swe.evaluator.sealing.claims import MODULE, Choices, Claim, Secret, probe, probed

_BARE_SHARE = 0.25
"""Share of the statements that claim nothing that gets no decoy."""
_SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete)
_OPEN = (ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith)
"""Statements in whose blocks decoys are written: in a `try`, a handler may wait for what they take."""
_CLAIMS = ("claim", "truths")
_KNOWN = {MODULE, "_value", *dir(builtins)}


@dataclass(frozen=True, slots=True)
class _Shape:
    """How a block is written in which something must be raised."""

    length: int
    name: str | None
    """Behind `as`."""
    asked: tuple[ast.stmt, ...]
    """Claims about the name that follow."""


class Decoys:
    """Writes the decoys of one rewritten file into its `tree`; `claims` are theirs.

    Args:
        sealed: Only those that a run of the gold patch has confirmed; with claims at which nobody looks.
    """

    def __init__(self, tree: ast.Module, secret: Secret, choices: Choices, *, sealed: bool) -> None:
        self.claims: dict[str, Claim] = {}
        self._secret, self._choices, self._sealed = secret, choices, sealed
        blocks = [block for node in ast.walk(tree) for block in _blocks(node)]
        self._shapes = [shape for block in blocks for shape in _shapes(block)]
        if not self._shapes:
            return
        self._asked = {id(node) for shape in self._shapes for node in shape.asked}
        real = [node for block in blocks for node in block if _raising(node)] if sealed else []
        for name, function in outer_functions(tree.body):
            if function.name.startswith("test") and name not in choices.plain_functions:
                self._write(
                    function.body, {name for node in ast.walk(function) for name in bound_names(node)}
                )
        for node in real:
            self._end_in_a_claim(node)

    def _end_in_a_claim(self, node: ast.stmt) -> None:
        last = node.body[-1]  # type: ignore[attr-defined]
        if isinstance(last, ast.Expr) and _is_simple(last) and not probed(last, *_CLAIMS):
            claim = probe("claim", ast.Constant(self._secret.name(last, "in a block")), last.value)
            node.body[-1] = ast.copy_location(claim, last)  # type: ignore[attr-defined]

    def _write(self, block: list[ast.stmt], bound: set[str]) -> None:
        written: list[ast.stmt] = []
        place = 0
        while place < len(block):
            first = block[place]
            if _is_simple(first) and id(first) not in self._asked:
                group, statements = self._decoy(first, block[place:], bound)
                written += statements
                place += len(group)
                continue
            if isinstance(first, _OPEN) and not _raising(first):
                for inner in blocks_of(first):
                    self._write(inner, bound)
            written.append(first)
            place += 1
        block[:] = written

    def _decoy(
        self, first: ast.stmt, rest: Sequence[ast.stmt], bound: set[str]
    ) -> tuple[Sequence[ast.stmt], Sequence[ast.stmt]]:
        """The next statements, and what becomes of them."""
        source = self._secret.random(self._secret.name(first, "decoy"), "shape")
        shape = source.choice(self._shapes)
        group = rest[: shape.length]
        fits = all(_is_simple(node) and id(node) not in self._asked for node in group)
        if len(group) < shape.length or not fits:
            group = rest[:1]
        name = self._secret.name(first, f"decoy of {len(group)}")
        is_bare = not any(probed(node, *_CLAIMS) for node in group) and source.random() < _BARE_SHARE
        is_confirmed = not self._sealed or name in self._choices.settled
        if is_bare or not is_confirmed or self._choices.forms.get(name) == "plain":
            return group, group
        self.claims[name] = Claim(self._secret.path, "raised", wanted=False, optional=True)
        called = shape.name if shape.name not in bound else None
        variable = ast.Name(called, ast.Store()) if called else None
        around = ast.With([ast.withitem(probe("raising", ast.Constant(name)).value, variable)], list(group))
        asked = [self._copy(node, first, number) for number, node in enumerate(shape.asked)]
        return group, [ast.copy_location(around, first), *(asked if called and self._sealed else ())]

    def _copy(self, node: ast.stmt, first: ast.stmt, number: int) -> ast.stmt:
        copied = copy.deepcopy(node)
        copied.value.args[0] = ast.Constant(self._secret.name(first, f"asked {number}"))  # type: ignore[attr-defined]
        return ast.copy_location(copied, first)


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        if isinstance(block := getattr(node, name, None), list):
            yield block


def _raising(node: ast.stmt) -> str | None:
    """The name of the claim that something is raised in `node`, if it is a block for that."""
    match node:
        case ast.With(items=[ast.withitem(context_expr=head)]):
            return probed(head, "raising")
    return None


def _shapes(block: Sequence[ast.stmt]) -> Iterator[_Shape]:
    for place, node in enumerate(block):
        if isinstance(node, ast.With) and _raising(node):
            match node.items[0].optional_vars:
                case ast.Name(id=name):
                    asked = tuple(found for found in block[place + 1 :] if _asks(found, name))
                    yield _Shape(len(node.body), name, asked)
                case None:
                    yield _Shape(len(node.body), None, ())


def _asks(node: ast.stmt, name: str) -> bool:
    """Whether it is a claim about `name` and nothing else of the test."""
    names = {found.id for found in ast.walk(node) if isinstance(found, ast.Name)}
    return probed(node, *_CLAIMS) is not None and name in names and names <= {name, *_KNOWN}


def _is_simple(node: ast.stmt) -> bool:
    """Whether a decoy may stand around it."""
    return (
        isinstance(node, _SIMPLE)
        and not isinstance(getattr(node, "value", None), ast.Constant)
        and not any(isinstance(found, ast.Yield | ast.YieldFrom) for found in ast.walk(node))
    )
