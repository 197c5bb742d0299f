"""`list(range(...))` is read, not run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.config.role_models import MAX_INDICES, parse_index_list

SMALL = st.integers(-60, 60)
SPACE = st.sampled_from(["", " ", "  ", "\t"])


@given(stop=SMALL, start=SMALL, step=SMALL.filter(bool), space=SPACE, count=st.integers(1, 3))
def test_what_parses_is_what_python_would_have_computed(
    stop: int, start: int, step: int, space: str, count: int
) -> None:
    arguments = [(stop,), (start, stop), (start, stop, step)][count - 1]
    written = f"list{space}({space}range({space}{f'{space},{space}'.join(map(str, arguments))}{space}))"
    expected = list(range(*arguments))
    if expected:
        assert parse_index_list(written) == expected
    else:
        with pytest.raises(ValueError, match="0 numbers"):
            parse_index_list(written)


@given(st.text())
def test_any_other_text_is_refused_and_never_run(text: str) -> None:
    try:
        parsed = parse_index_list(text)
    except ValueError:
        return
    assert text.strip().startswith("list")
    assert all(isinstance(index, int) for index in parsed)


@pytest.mark.parametrize(
    "text",
    [
        "list(range(__import__('os').getpid()))",
        "list(range(2+2))",
        "list(range(0,4)) + [9]",
        "range(4)",
        "[0, 1]",
        "list(range())",
        "list(range(1,2,3,4))",
        "list(range(1.5))",
        "list(range(٣))",
        "",
    ],
)
def test_expressions_are_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match=r"list\(range\(0,4\)\)"):
        parse_index_list(text)


def test_a_step_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="step"):
        parse_index_list("list(range(0,4,0))")


def test_a_range_that_would_fill_the_memory_is_refused() -> None:
    with pytest.raises(ValueError, match=str(MAX_INDICES)):
        parse_index_list("list(range(999999999))")


@given(st.one_of(st.none(), st.integers(), st.lists(st.integers())))
def test_what_is_no_text_is_left_to_the_type(value: object) -> None:
    assert parse_index_list(value) is value
