"""Tables at every width of a terminal."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from envsdk.base.display.console import ResultTable, TerminalConsole

HEADERS = ("episodes", "95% interval", "reward")
ROW = ("envsdk/FrozenLake-v1", "1000", "0.0-49.0%", "0.125")


def shown(*rows: tuple[str, ...], width: int) -> str:
    table = ResultTable("tag", *HEADERS, title="random, split val")
    for row in rows:
        table.add_row(*row)
    stream = io.StringIO()
    TerminalConsole(file=stream, force_terminal=True, color_system=None, width=width).print(table)
    return stream.getvalue()


def test_where_a_table_fits_each_row_is_a_line() -> None:
    lines = [line.split() for line in shown(ROW, width=60).splitlines()]
    assert ["tag", "episodes", "95%", "interval", "reward"] in lines
    assert list(ROW) in lines


def test_a_long_name_folds_where_the_numbers_fit() -> None:
    lines = [line.split() for line in shown(ROW, width=50).splitlines()]
    assert ["envsdk/FrozenLak", *ROW[1:]] in lines
    assert ["e-v1"] in lines


def test_where_a_table_does_not_fit_each_value_has_a_line() -> None:
    lines = [line.rstrip() for line in shown(ROW, ("all", "1000", "", "0.125"), width=30).splitlines()]
    assert lines == [
        "random, split val",
        *("tag: envsdk/FrozenLake-v1", "episodes: 1000", "95% interval: 0.0-49.0%", "reward: 0.125", ""),
        *("tag: all", "episodes: 1000", "reward: 0.125", ""),
    ]


@given(
    rows=st.lists(st.tuples(*4 * [st.text("abc019%-", min_size=1, max_size=30)]), min_size=1, max_size=4),
    width=st.integers(32, 120),
)
def test_no_number_is_ever_cut(rows: list[tuple[str, ...]], width: int) -> None:
    text = shown(*rows, width=width)
    assert "…" not in text
    for number in (cell for row in rows for cell in row[1:] if len(cell) + len("95% interval: ") <= width):
        assert number in text
    characters = "".join(text.split())
    assert all(characters.count(each) >= "".join(map("".join, rows)).count(each) for each in "abc019-")


def test_in_a_pipe_no_line_is_broken() -> None:
    stream = io.StringIO()
    console = TerminalConsole(file=stream)
    console.print("word " * 200)
    console.print("look at", "x" * 300)
    assert len(stream.getvalue().splitlines()) == 2
