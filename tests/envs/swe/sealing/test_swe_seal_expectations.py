"""What a test file says only because it is expected."""

from __future__ import annotations

import ast
import inspect
import re

import pytest

from envsdk.envs.swe.evaluator.sealing import expectations
from envsdk.envs.swe.evaluator.sealing.assertions import Comparison, statement_pieces
from envsdk.envs.swe.evaluator.sealing.expectations import Expectations
from tests.envs.swe.sealing.test_swe_seal_rewrite import rewritten


def example() -> tuple[str, str]:
    """The test of the module's docstring, before and after."""
    _, given, sealed = re.split("For example\\n|becomes\\n", inspect.getdoc(expectations) or "")
    return inspect.cleandoc(given), inspect.cleandoc(sealed)


def test_the_example_becomes_what_it_is_said_to_become() -> None:
    given, sealed = example()
    names = {name: str(number) for number, name in enumerate(rewritten(given).claims, 1)}
    made = ast.parse(rewritten(given).text)
    for node in ast.walk(made):
        if isinstance(node, ast.Constant) and node.value in names:
            node.value = names[str(node.value)]
    assert ast.unparse(made.body[1:]) == ast.unparse(ast.parse(sealed))


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (0, {"pure", "varies", "cut"}),
        (1, {"pure", "closed", "cut"}),
        (2, {"cut"}),
        (3, set()),
    ],
)
def test_the_words_of_the_example_mean_what_it_says(place: int, words: set[str]) -> None:
    tree = ast.parse(example()[0])
    seen = Expectations(
        tree,
        imported=False,
        plain=lambda name: False,
        is_cut=lambda piece: True,
        is_changed=lambda piece: False,
    )
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    (piece,) = statement_pieces(statements[place]) or ()
    assert isinstance(piece, Comparison)
    operand = piece.operands[1]
    found = {"pure": seen.is_pure(operand), "closed": seen.is_closed(operand), "varies": seen.varies(operand)}
    found["cut"] = seen.cut(piece)[1]
    assert {word for word, holds in found.items() if holds} == words
