"""Text of somebody else's on the terminal: shown, and not obeyed."""

from __future__ import annotations

import io
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from envsdk.base.display.console import TerminalConsole
from envsdk.base.display.terminal import say, visible

ATTACKS = [
    "\x1b]0;TITLE\x07",
    "\x1b[2J\x1b[H",
    "\x1b]52;c;cHduZWQ=\x07",
    "\x9b2J",
    "\x90payload\x9c",
    "\rerror: all is well",
    "\b\b\bpaid",
    "\u202egnp.exe",
    "\u2066\u2069",
    "\x00",
    "\x7f",
    "\U000e0041",
]
OBEYED = {"Cc", "Cs"}


def is_harmless(text: str) -> bool:
    return not any(
        (unicodedata.category(char) in OBEYED and char not in "\n\t")
        or unicodedata.bidirectional(char) in {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
        for char in text
    )


@given(text=st.text(alphabet=st.characters(exclude_categories=())))
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    shown = visible(text)
    assert is_harmless(shown)
    assert visible(shown) == shown
    if text.isprintable():
        assert shown == text, "what is only text stays"


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_console_shows_control_characters_wherever_they_stand(attack: str, is_terminal: bool) -> None:
    stream = io.StringIO()
    console = TerminalConsole(file=stream, force_terminal=is_terminal, color_system=None, width=200)
    table = Table(f"head {attack}")
    table.add_row(f"cell {attack}")
    console.print(table)
    console.print(f"line {attack}")
    console.print("[bold]no markup[/]")
    console.print(Text(f"text {attack}", style="bold"))
    with console.status(Text(f"status {attack}")):
        pass
    shown = stream.getvalue()
    assert attack not in shown
    for told in ("head ", "cell ", "line ", "text ", "[bold]no markup[/]"):
        assert told in shown


def test_what_a_stream_cannot_encode_is_shown_by_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    say("漢", "\ud800", "\x1b[2J", end="", flush=True)
    assert raw.getvalue() == b"\\u6f22 \\ud800 \\x1b[2J"


def test_a_closed_stream_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    say("nobody listens")
