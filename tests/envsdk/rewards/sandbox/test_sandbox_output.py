"""What is kept of a command's output, and how it reads."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.rewards.sandbox import output as outputs
from envsdk.rewards.sandbox.output import HeadTail, exact, harmless


@given(chunks=st.lists(st.binary(max_size=40)), keep=st.integers(0, 64))
def test_the_two_ends_are_kept_however_the_output_arrives(chunks: list[bytes], keep: int) -> None:
    kept = HeadTail(keep)
    for chunk in chunks:
        kept.feed(chunk)
    whole = b"".join(chunks)
    assert kept.total == len(whole)
    if len(whole) <= keep:
        assert kept.content() == whole
    else:
        assert kept.content() == whole[: keep - keep // 2] + whole[len(whole) - keep // 2 :]
        assert f"<{len(whole) - keep} bytes left out>" in kept.text()


def test_memory_is_bounded_while_output_is_not() -> None:
    kept = HeadTail(1000)
    for _ in range(1000):
        kept.feed(bytes(1 << 16))
    assert kept.total == 1000 << 16
    assert sum(map(len, kept._blocks)) + len(kept._block) + len(kept._tail) < 1 << 18


PIECES = {"_PIECE_BYTES": 3, "_BLOCK_BYTES": 5}
"""So small that a test has many of them, and characters lie across their borders."""


@given(chunks=st.lists(st.binary(max_size=20)), keep=st.integers(40, 200), start=st.binary(max_size=4))
def test_blocks_and_pieces_cannot_be_told_from_one_output(
    chunks: list[bytes], keep: int, start: bytes
) -> None:
    output = b"".join(chunks)
    with pytest.MonkeyPatch.context() as patch:
        for name, size in PIECES.items():
            patch.setattr(outputs, name, size)
        kept = HeadTail(keep)
        for chunk in (start, *chunks):
            kept.feed(chunk)
        assert kept.drop_start(start)
        assert kept.total == len(output)
        if len(start) + len(output) <= keep:
            assert kept.content() == output
        assert exact(output) == output.decode("utf-8", "surrogateescape")
        written_out = {
            code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code not in (9, 10, 13)
        }
        assert harmless(output) == output.decode("utf-8", "replace").translate(written_out)


@given(st.binary())
def test_no_output_holds_a_control_character_but_white_space(output: bytes) -> None:
    assert all(c in "\n\t\r" or unicodedata.category(c) != "Cc" for c in harmless(output))


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])))
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert harmless(text.encode()) == text
