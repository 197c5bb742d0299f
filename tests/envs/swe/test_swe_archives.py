"""Archives of others stay in the folder that they are unpacked in."""

from __future__ import annotations

import contextlib
import io
import tarfile
from pathlib import Path

import pytest

from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.swe.tasks.archives import unpack_tar


def packed(*members: tuple[str, str]) -> bytes:
    """Members are files, or links where the text begins with `->`."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, text in members:
            entry = tarfile.TarInfo(name)
            if text.startswith("->"):
                entry.type, entry.linkname = tarfile.SYMTYPE, text[2:]
                archive.addfile(entry)
            else:
                entry.size = len(text)
                archive.addfile(entry, io.BytesIO(text.encode()))
    return data.getvalue()


def test_files_come_out_as_they_went_in(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(packed(("pkg/a.py", "x = 1"), ("link", "->pkg/a.py")))
    unpack_tar(archive, tmp_path / "out")
    assert (tmp_path / "out/link").read_text() == "x = 1"


@pytest.mark.parametrize(
    "members",
    [
        [("../outside", "x")],
        [("a/../../outside", "x")],
        [("way", "->.."), ("way/outside", "x")],
        [("way", "->{folder}"), ("way/outside", "x")],
        [("{folder}/outside", "x")],
    ],
)
def test_nothing_comes_out_elsewhere(tmp_path: Path, members: list[tuple[str, str]]) -> None:
    named = [(name.format(folder=tmp_path), text.format(folder=tmp_path)) for name, text in members]
    archive = tmp_path / "a.tar"
    archive.write_bytes(packed(*named))
    with contextlib.suppress(ConfigurationError):
        unpack_tar(archive, tmp_path / "in" / "out")
    assert not (tmp_path / "outside").exists()
    assert not (tmp_path / "in/outside").exists()


def test_what_is_no_archive_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot unpack -"):
        unpack_tar(b"nothing", tmp_path / "out")
