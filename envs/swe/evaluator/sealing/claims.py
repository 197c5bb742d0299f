"""What the seal knows of the assertions of a test file, and how they are named."""

from __future__ import annotations

import ast
import hashlib
import random
from dataclasses import dataclass, field

MODULE = "_sealed"
"""The name of the probes in a sealed file."""


@dataclass(slots=True)
class Claim:
    """What the seal knows of one assertion, by the name under which the tests send it."""

    path: str
    """The file it stands in."""
    kind: str
    """`values`, `truths` or `raised`, as `kit/probes.py` sends it."""
    operators: list[str] = field(default_factory=list)
    """What stands between the operands of a comparison."""
    cut: list[bool] = field(default_factory=list)
    """Which operands of a comparison the process never has."""
    fresh: list[int] = field(default_factory=list)
    """Which operands, made of constants alone, a comparison sends again for the gold patch."""
    negated: bool = False
    can_vary: bool = False
    """Whether a comparison may be sent as truths, with variants."""
    order: list[int] = field(default_factory=list)
    """Which variant of truths is sent at which place; 0 is the assertion itself."""
    places: list[int] = field(default_factory=list)
    """Which constant each variant of truths but the first has another value for."""
    hidden: int | float | str | bool | None = None
    """The constant of truths with variants that the process must not know."""
    optional: bool = False
    """Whether it is reached depends on what the patched code gives: in a loop over it, behind a condition."""
    varies: bool = False
    """Whether what is cut of a comparison changes: a parameter, or a column of a table."""
    wanted: bool = True
    """Whether `raised` wants something raised; False for a decoy."""


@dataclass(slots=True)
class Choices:
    """What runs of the gold patch taught about one file."""

    forms: dict[str, str] = field(default_factory=dict)
    """How claims are sent: `values`, `truths`, or not at all (`plain`), so that they stay assertions. Where
    it says nothing, comparisons are sent as values and other assertions as truths."""
    kept: dict[str, list[int]] = field(default_factory=dict)
    """Variants of a claim that gold answers otherwise than the assertion itself, all of one constant."""
    changed: set[str] = field(default_factory=set)
    """Comparisons with an operand that is made of constants, but is something else when gold reaches it."""
    settled: set[str] = field(default_factory=set)
    """Claims about which nothing more is to be learned."""
    plain_functions: set[str] = field(default_factory=set)
    """Functions, as `Class.test`, that stay as they are."""


@dataclass(frozen=True, slots=True)
class Secret:
    """Names and chance of one file: the same each time it is rewritten, and unknown without the key."""

    path: str
    key: bytes

    def name(self, node: ast.AST, what: str = "") -> str:
        """A name for what stands at the place of `node`."""
        return self.name_of(f"{node.lineno}:{node.col_offset}:{what}")  # type: ignore[attr-defined]

    def name_of(self, text: str) -> str:
        return hashlib.blake2b(f"{self.path}:{text}".encode(), key=self.key, digest_size=6).hexdigest()

    def random(self, name: str, what: str) -> random.Random:
        return random.Random(f"{self.key.hex()} {name} {what}")


def probe(function: str, *arguments: ast.expr) -> ast.Expr:
    """The statement `_sealed.FUNCTION(ARGUMENTS)`."""
    called = ast.Attribute(ast.Name(MODULE, ast.Load()), function, ast.Load())
    return ast.Expr(ast.Call(called, list(arguments), []))


def probed(node: ast.AST, *functions: str) -> str | None:
    """The name under which `node` sends a claim, if it is a call (or statement) of one of `functions`."""
    match node:
        case ast.Expr(value=value):
            return probed(value, *functions)
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id=module), attr=function),
            args=[ast.Constant(value=str(name)), *_],
        ) if module == MODULE and function in functions:
            return name
    return None
