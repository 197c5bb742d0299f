"""How docstrings read: a sentence has a subject, so that a stranger understands it without its neighbors."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_ROOMS = ("envsdk", "envs", "managers", "trainers")
_BEGINNING = re.compile(r"(Of|By|From|Whoever|Whichever|Whatever)\b")
_VAGUE = re.compile(r"\b(whoever|whichever)\b", re.IGNORECASE)


def _product() -> Iterator[Path]:
    for path in sorted(path for room in _ROOMS for path in (ROOT / room).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if path.resolve().is_relative_to(ROOT / name.split("/")[0]):
            yield path


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Every text that stands alone as a statement, with its line: docstrings of fields, too."""
    with warnings.catch_warnings(action="ignore", category=SyntaxWarning):
        tree = ast.parse(source)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            continue
        if isinstance(node.value.value, str):
            yield node.lineno, node.value.value.strip()


@cache
def _written() -> list[tuple[str, str]]:
    """Where each docstring of the product is, and what it says."""
    return [
        (f"{path.relative_to(ROOT)}:{line}", text)
        for path in _product()
        for line, text in docstrings(path.read_text(encoding="utf-8"))
    ]


def found(pattern: re.Pattern[str], *, at_start: bool) -> list[str]:
    search = pattern.match if at_start else pattern.search
    return [f"{where} {text[:70]}" for where, text in _written() if search(text)]


def test_no_docstring_begins_with_a_preposition_in_place_of_a_subject() -> None:
    assert found(_BEGINNING, at_start=True) == [], "name the thing: `Seconds of a step`, not `Of a step`"


def test_no_docstring_says_whoever_or_whichever() -> None:
    assert found(_VAGUE, at_start=False) == [], "name who: the explorer, the caller, the owner of the proxy"


@pytest.mark.parametrize(
    ("source", "first"), [('"""Of a step."""', "Of a step."), ('x = 1\n"""By name."""', "By name.")]
)
def test_docstrings_of_fields_are_found_too(source: str, first: str) -> None:
    assert [text for _, text in docstrings(source)] == [first]
    assert _BEGINNING.match(first)
