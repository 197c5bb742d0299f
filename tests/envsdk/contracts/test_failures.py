from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.contracts.failures import MAX_TEXT, Boundary, Failure, describe_error, show_object


@given(st.text(st.characters(codec=None), max_size=2000))  # type: ignore[arg-type]
def test_an_error_is_described_in_one_short_line_that_every_terminal_and_file_can_hold(text: str) -> None:
    described = describe_error(ValueError(text))
    assert described.startswith("ValueError")
    assert len(described) <= MAX_TEXT
    assert not any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 for c in described)
    described.encode("utf-8")


def test_a_long_error_keeps_both_of_its_ends() -> None:
    described = describe_error(ValueError(f"RUN ended with code 1: {'x' * 10_000} no space left"))
    assert described.startswith("ValueError: RUN ended with code 1: xxx")
    assert described.endswith("xxx no space left")


class NameRaises(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no name")


class Nameless(Exception, metaclass=NameRaises):
    pass


class Text(str):
    def split(self, *_: Any) -> list[str]:  # type: ignore[override]
        raise SystemExit

    __getitem__ = __str__ = split  # type: ignore[assignment]


class Says(Exception):
    """Its text is what `said` gives."""

    def __init__(self, said: Any) -> None:
        self.said = said

    def __str__(self) -> str:
        return self.said()  # type: ignore[no-any-return]


def interrupt() -> str:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("error", "described"),
    [
        (Says(interrupt), "Says: <no text: asking for it raised KeyboardInterrupt>"),
        (Says(lambda: 7), "Says: <no text: asking for it raised TypeError>"),
        (Says(lambda: Text("two\nlines")), "Says: two lines"),
        (Says(lambda: ""), "Says"),
        (ValueError("\x1b]0;title\x07"), "ValueError: \\x1b]0;title\\x07"),
    ],
)
def test_an_error_is_described_whatever_its_own_code_does(error: Exception, described: str) -> None:
    assert describe_error(error) == described
    assert Failure.from_exception(Boundary.ENVIRONMENT, error).message == described


def test_an_error_whose_class_has_no_name_is_described() -> None:
    described = describe_error(Nameless("well"))
    assert described == "Nameless: well"


def test_an_object_is_shown_whatever_its_repr_does() -> None:
    class Mute:
        def __repr__(self) -> str:
            raise SystemExit("no")

    assert show_object(Mute()) == "<no text: asking for it raised SystemExit>"
    assert len(show_object("x" * 10_000_000)) == MAX_TEXT
