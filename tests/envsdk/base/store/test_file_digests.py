"""Every change of a file is found."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from envsdk.base.store.file_digests import damaged, describe


@settings(max_examples=50)
@given(data=st.binary(min_size=1, max_size=200), place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_a_lost_end_and_a_lost_file_are_found(data: bytes, place: int, bit: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "model" / "weights"
        file.parent.mkdir()
        file.write_bytes(data)
        files = describe(folder)
        assert list(files) == ["model/weights"]
        assert damaged(folder, files) == []
        changed = bytearray(data)
        changed[place % len(data)] ^= 1 << bit
        for other in (bytes(changed), data[:-1], data + b"x"):
            file.write_bytes(other)
            assert damaged(folder, files)[0].startswith("model/weights has ")
        file.unlink()
        assert "cannot be read: No such file" in damaged(folder, files)[0]
