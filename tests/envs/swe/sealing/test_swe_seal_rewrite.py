"""What test files become."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from envsdk.envs.swe.evaluator.sealing.claims import Choices
from envsdk.envs.swe.evaluator.sealing.rewrite import Rewritten, rewrite

KEY = b"0123456789abcdef"


def rewritten(
    source: str, *, sealed: bool = True, key: bytes = KEY, choices: Choices | None = None
) -> Rewritten:
    return rewrite(
        source.encode(),
        "tests/test_a.py",
        key,
        choices or Choices(),
        sealed=sealed,
        keep_docstrings=False,
        imported=False,
    )


@pytest.mark.parametrize(
    "target",
    ["a, (b, c)", "a, *b", "a.b", "a[0]", "(a, b), c", "[a, b]", "a, a", "*a, b"],
)
@pytest.mark.parametrize("table", ["[(1, (2, 3))]", "ROWS", "{}.items()", "[*ROWS]", "[]", "((1, 2), 3)"])
def test_a_loop_of_any_form_can_be_rewritten(target: str, table: str) -> None:
    loop = f"for {target} in {table}:\n        assert f(a) == 3\n"
    source = f"ROWS = [(1, (2, 3)), (4, 5)]\n\ndef test_a():\n    {loop}"
    for sealed in (True, False):
        assert rewritten(source, sealed=sealed).text


BLOCKS = """
import pytest
from lib import BadName, Pair, parse


def test_alone():
    with pytest.raises(BadName):
        parse("=1")


def test_name():
    with pytest.raises(ValueError) as caught:
        parse("=2")
    assert "2" in str(caught.value)


def test_several():
    first = parse("a=1")
    assert first.name == "a"
    with pytest.raises(BadName):
        pair = Pair(first.name, 3)
        pair.rename("")


def test_call():
    second = parse("b=1")
    pytest.raises(BadName, second.rename, "")


def test_assignment():
    pair = parse("c=1")
    pair.rename("d")
    assert pair.name == "d"
    with pytest.raises(BadName):
        pair.name = ""


def test_values():
    for text, name in [("x=1", "x"), ("y=2", "y")]:
        assert parse(text).name == name
    assert parse("x=3").number == 3
    text = parse("z=3").name
    assert text == "z"
    assert parse("w=1") == Pair("w", 1)


def test_value():
    assert parse("v=1").number == 1


def test_truth():
    assert parse("u=1").is_good()
"""
SHAPES: dict[str, Callable[[ast.With, list[ast.stmt]], bool]] = {
    "a name": lambda node, block: node.items[0].optional_vars is not None,
    "several statements": lambda node, block: len(node.body) > 1,
    "the last of its test": lambda node, block: block[-1] is node,
    "alone": lambda node, block: len(block) == 1,
    "a claim": lambda node, block: "claim" in ast.unparse(node.body[-1]),
    "a claim about the name behind it": lambda node, block: (
        node.items[0].optional_vars is not None and "caught" in ast.unparse(block[block.index(node) + 1])
    ),
}


def test_blocks_in_which_something_must_be_raised_have_no_shape_that_decoys_lack() -> None:
    """Which a cheat would go by that sees the file and raises in what looks like no decoy."""
    flagged: dict[str, Counter[bool]] = {shape: Counter() for shape in SHAPES}
    for seed in range(40):
        key = f"{seed:016}".encode()
        confirmed = Choices(settled=set(rewritten(BLOCKS, sealed=False, key=key).claims))
        made = rewritten(BLOCKS, key=key, choices=confirmed)
        for block, node in blocks(made.text):
            name = ast.literal_eval(node.items[0].context_expr.args[0])  # type: ignore[attr-defined]
            for shape, has in SHAPES.items():
                if has(node, block):
                    flagged[shape][made.claims[name].wanted] += 1
    for shape, counts in flagged.items():
        assert counts[True] > 0, shape
        assert counts[False] > counts[True] / 2, (shape, counts)


def blocks(text: str) -> Iterator[tuple[list[ast.stmt], ast.With]]:
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, ast.FunctionDef | ast.For):
            for node in function.body:
                if isinstance(node, ast.With) and "_sealed.raising" in ast.unparse(node):
                    yield function.body, node


def test_a_decoy_that_gold_does_not_confirm_is_left_out() -> None:
    full = rewritten(BLOCKS, sealed=False)
    decoys = {name for name, claim in full.claims.items() if not claim.wanted}
    assert len(decoys) > 5
    assert not decoys & rewritten(BLOCKS).claims.keys()
    confirmed = Choices(settled=set(full.claims), forms=dict.fromkeys(decoys, "plain"))
    assert not decoys & rewritten(BLOCKS, choices=confirmed).claims.keys()
