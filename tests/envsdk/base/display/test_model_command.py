"""Command lines made from models of their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

from envsdk.base.display.model_command import command_of
from envsdk.base.settings.options import Argument, Count, Option, Options, split_names
from envsdk.contracts.failures import ConfigurationError


class Section(Options):
    depth: Count = 3
    """How deep."""
    share: float | None = None


class Optional(Options):
    kind: str = "plain"
    label: str | None = None


class Commanded(Options):
    source: Annotated[str, Argument("SOURCE")]
    """Where from."""
    out: Annotated[Path | None, Option("--out", "-o", metavar="DIR")] = None
    """Where to."""
    port: Annotated[int, Field(ge=0, le=9)] = 4
    names: Annotated[tuple[str, ...], Option(reads=split_names)] = ()
    quick: bool = False
    section: Section = Section()
    optional: Optional | None = None


def run(argv: list[str]) -> tuple[int, list[Commanded]]:
    seen: list[Commanded] = []

    def command(options: Commanded) -> int:
        """Do something."""
        seen.append(options)
        return 5

    _, main = command_of(Commanded, command, name="test")
    return main(argv), seen


def test_options_arrive_as_the_model() -> None:
    code, seen = run(["here", "-o", "there", "--names", "a,b", "--names", "c", "--quick", "--depth", "7"])
    assert code == 5
    assert seen == [
        Commanded(
            source="here", out=Path("there"), names=("a", "b", "c"), quick=True, section=Section(depth=7)
        )
    ]


def test_what_is_absent_has_the_default_of_the_model() -> None:
    assert run(["here"])[1] == [Commanded.of(source="here")]
    assert run(["here", "--out", "."])[1][0].out == Path()
    assert run(["here", "--label", "x"])[1][0].optional == Optional(label="x")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "Missing argument 'SOURCE'"),
        (["here", "--port", "10"], "Invalid value for '--port'"),
        (["here", "--depth", "0"], "--depth: must be at least 1, not 0"),
        (["here", "--share", "nan"], "--share: must be a number, not nan"),
        (["here", "--out", ""], "Invalid value for '--out' / '-o': it is empty: name a file or folder"),
    ],
)
def test_a_wrong_value_exits_2_and_names_its_option(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(argv) == (2, [])
    assert message in capsys.readouterr().err


def test_help_comes_from_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == (0, [])
    shown = capsys.readouterr().out
    for expected in (
        "Do something.",
        "-o, --out DIR",
        "Where to.",
        "[default: 4;",
        "How deep.",
        "[default: 3]",
    ):
        assert expected in shown
    assert "plain" not in shown


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"source": "x", "port": 10}, "--port: must be at most 9, not 10"),
        ({"source": "x", "section": {"depth": 0}}, "--depth: must be at least 1, not 0"),
        ({}, "SOURCE: is required and missing"),
    ],
)
def test_from_python_a_wrong_value_is_named_by_its_option(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Commanded.of(**values)
