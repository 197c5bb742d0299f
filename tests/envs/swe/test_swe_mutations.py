"""Mutations: small, valid and different."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.swe.make_tasks.journal import Journal
from envsdk.envs.swe.make_tasks.mutations import NotDifferent, Source, apply, mutations
from envsdk.envs.swe.tasks.shipped import REPOSITORIES

TEXT = '''
def f(a, b, *rest):
    """a + b is not changed"""
    # nor is a comment: a < b
    if a < b and not rest:
        x = a - b  # kept
        y = max(x, 1)
        return y
    for item in rest:
        if item is None:
            continue
        raise ValueError(item)
    return dict(a=a, flag=True)
'''


def changed(operator: str) -> list[str]:
    """The lines that mutations of an operator change, as they are afterwards."""
    source = Source(TEXT)
    found = []
    for mutation in mutations(source):
        if mutation.operator == operator:
            after = apply(source, mutation).splitlines()
            found += [line.strip() for line in after if line not in TEXT.splitlines()]
    return found


@pytest.mark.parametrize(
    ("operator", "lines"),
    [
        ("comparison", ["if a <= b and not rest:", "if item is not None:"]),
        ("and_or", ["if a < b or not rest:"]),
        ("dropped_not", ["if a < b and rest:"]),
        ("operator", ["x = a + b  # kept"]),
        ("operands", ["x = b - a  # kept"]),
        ("function", ["y = min(x, 1)"]),
        ("number", ["y = max(x, 0)"]),
        ("arguments", ["y = max(1, x)"]),
        ("boolean", ["return dict(a=a, flag=False)"]),
        ("missing_argument", ["return dict(a=a)"]),
        ("break_continue", ["break"]),
        ("missing_error", ["pass"]),
        ("missing_result", ["return None", "return None"]),
    ],
)
def test_an_operator_changes_what_it_says(operator: str, lines: list[str]) -> None:
    assert changed(operator) == lines


@pytest.mark.parametrize("path", ["layers/settings.py", "spanset/spans.py", "stencil/template.py"])
def test_every_mutation_is_valid_and_different_or_refused(path: str) -> None:
    repository = REPOSITORIES / f"{path.partition('/')[0]}.toml"
    source = Source(tomllib.loads(repository.read_text())["files"][path])
    for mutation in mutations(source):
        try:
            text = apply(source, mutation)
        except NotDifferent:
            continue
        assert ast.dump(ast.parse(text)) != source.dump
        assert mutation.function


def test_a_mutation_knows_its_function_and_line() -> None:
    source = Source(
        "class A:\n    def f(self):\n        def g():\n            return 1 + 2\n        return g()\n"
    )
    operator = next(mutation for mutation in mutations(source) if mutation.operator == "operator")
    assert (operator.function, operator.first_line) == ("A.f.g", 4)


def test_positions_count_bytes() -> None:
    source = Source("def f(a):\n    return 'äöü' * a + 'é' * 2\n")
    number = next(mutation for mutation in mutations(source) if mutation.operator == "number")
    assert "'é' * 1" in apply(source, number)


def test_a_journal_drops_a_line_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append({"key": "a"})
    journal.close()
    path.write_bytes(path.read_bytes() + b'{"key": "b')
    again = Journal(path)
    assert again.records == [{"key": "a"}]
    again.append({"key": "c"})
    again.close()
    assert Journal(path).records == [{"key": "a"}, {"key": "c"}]


def test_a_damaged_journal_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"key": "a"}\nnonsense\n')
    with pytest.raises(ConfigurationError, match=r"journal\.jsonl:2: damaged"):
        Journal(path)
