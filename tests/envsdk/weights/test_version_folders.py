"""Published versions are complete, checked, and the newest few."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsdk.contracts.failures import StorageError
from envsdk.weights.versions import (
    MANIFEST,
    VersionGone,
    folder_name,
    hold_version,
    read_manifest,
    write_version,
)

ROOT = Path(__file__).parents[3]


def write(folder: Path, version: int, content: str, *, keep_last: int = 3, dies_after: int = 3) -> Path:
    """A version of three files; the writer fails after some of them."""

    def fill(target: Path) -> None:
        for index in range(3):
            if index == dies_after:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            (target / f"part_{index}").write_text(f"{content}/{index}")

    return write_version(folder, version, version * 2, fill, keep_last=keep_last)


def content(folder: Path) -> str:
    parts = [(folder / f"part_{index}").read_text() for index in range(3)]
    assert [part.rpartition("/")[2] for part in parts] == ["0", "1", "2"]
    (found,) = {part.rpartition("/")[0] for part in parts}
    return found


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), max_size=12),
    st.integers(1, 4),
)
def test_the_newest_few_that_were_written_are_there_whatever_failed_and_wherever_the_trainer_went_back(
    writes: list[tuple[int, int]], keep_last: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, expected = Path(name) / "weights", dict[int, str]()
        for serial, (version, dies_after) in enumerate(writes):
            if dies_after < 3:
                with pytest.raises(StorageError, match="disk is full"):
                    write(folder, version, f"{serial}", keep_last=keep_last, dies_after=dies_after)
                continue
            write(folder, version, f"{serial}", keep_last=keep_last)
            expected.pop(version, None)
            expected[version] = f"{serial}"
            expected = dict(list(expected.items())[-keep_last:])
        found = {path.name: content(path) for path in folder.glob("*")} if folder.exists() else {}
        assert found == {folder_name(version): serial for version, serial in expected.items()}
        for version in expected:
            manifest = read_manifest(folder / folder_name(version))
            assert (manifest.version, manifest.step) == (version, version * 2)


@pytest.mark.parametrize("code", [None, errno.EXDEV, errno.EPERM])
def test_what_is_held_stays_when_the_trainer_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int | None
) -> None:
    source = write(tmp_path / "weights", 1, "one")
    if code is not None:

        def no_links(*_: object) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "link", no_links)
    manifest, held = hold_version(source, tmp_path / "own")
    for version in (2, 3, 4):
        write(tmp_path / "weights", version, "later")
    assert not source.exists()
    assert manifest.version == 1
    assert content(held) == "one"
    with pytest.raises(VersionGone, match="only the newest few are kept"):
        hold_version(source, tmp_path / "own")
    assert content(held) == "one"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "part_1").write_text("one/2"), "part_1 is not what the trainer wrote"),
        (lambda folder: (folder / "part_2").unlink(), "vanished while they were read"),
        (lambda folder: (folder / MANIFEST).write_text("{"), "is damaged"),
        (lambda folder: (folder / MANIFEST).write_text("[]"), "is damaged"),
        (lambda folder: (folder / MANIFEST).unlink(), "are gone"),
    ],
)
def test_a_damaged_version_is_refused_and_leaves_nothing(tmp_path: Path, damage, message: str) -> None:
    source = write(tmp_path / "weights", 1, "one")
    damage(source)
    with pytest.raises(VersionGone, match=message):
        hold_version(source, tmp_path / "own")
    assert list((tmp_path / "own").iterdir()) == []


def test_a_manifest_names_no_file_outside_its_folder(tmp_path: Path) -> None:
    source = write(tmp_path / "weights", 1, "one")
    text = (source / MANIFEST).read_text()
    (source / MANIFEST).write_text(text.replace("part_0", "../part_0"))
    with pytest.raises(StorageError):
        hold_version(source, tmp_path / "own")


_WRITER = """
import itertools, sys
from pathlib import Path
from envsdk.weights.versions import write_version

def fill(folder):
    for part in range(3):
        (folder / f"part_{part}").write_text(f"{version}/{part}")

for version in itertools.count(int(sys.argv[2])):
    write_version(Path(sys.argv[1]), version, 0, fill)
    print(version, flush=True)
"""


def test_readers_see_only_complete_versions_while_writers_are_killed(tmp_path: Path) -> None:
    newest = 0
    for number in range(3):
        command = [sys.executable, "-c", _WRITER, str(tmp_path / "weights"), str(newest)]
        writer = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        for _ in range(20):
            newest = int(writer.stdout.readline())
            try:
                manifest, held = hold_version(tmp_path / "weights" / folder_name(newest), tmp_path / "own")
            except VersionGone:
                continue
            assert content(held) == str(manifest.version) == str(newest)
        os.kill(writer.pid, signal.SIGKILL if number else signal.SIGTERM)
        written = [int(line) for line in writer.stdout.read().split()]
        writer.wait()
        newest = max([newest, *written])
        assert content(tmp_path / "weights" / folder_name(newest)) == str(newest)
