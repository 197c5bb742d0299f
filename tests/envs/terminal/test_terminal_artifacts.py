"""What of an agent's artifacts a verifier gets to see, whatever their archive says."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.envs.terminal.artifacts import Bounds, Refused, Safe, made_safe

BOUNDS = Bounds(bytes=1 << 20, files=100)


def safe(archive: bytes, name: str = "out", bounds: Bounds = BOUNDS) -> Safe:
    return made_safe(archive, name, bounds, mtime=1000.0)


def archive_of(*entries: tarfile.TarInfo, content: bytes = b"x") -> bytes:
    """An archive of these entries; files have `content`."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:") as tar:
        for each in entries:
            if each.isreg():
                each.size = len(content)
            tar.addfile(each, io.BytesIO(content) if each.isreg() else None)
    return out.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", **fields: int) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, target
    for field, value in fields.items():
        setattr(made, field, value)
    return made


ROOT = entry(".", tarfile.DIRTYPE)


def unpacked(found: Safe, folder: Path) -> dict[str, str]:
    """What GNU tar makes of it: the kind and content of each path."""
    folder.mkdir()
    subprocess.run(["tar", "-xC", folder, "--no-same-owner"], input=found.archive, check=True)
    seen = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        seen[name] = (
            f"-> {os.readlink(path)}" if path.is_symlink() else path.read_text() if path.is_file() else "/"
        )
    return seen


def test_files_folders_and_links_inside_are_kept(tmp_path: Path) -> None:
    archive = archive_of(
        ROOT,
        entry("./a", tarfile.DIRTYPE, mode=0o4777),
        entry("./a/run.sh", mode=0o6777, uid=7, mtime=5),
        entry("./a/key", mode=0o600),
        entry("./a/up", tarfile.SYMTYPE, "../b"),
        entry("./b"),
        entry("./c", tarfile.LNKTYPE, "./b"),
        entry("new\nline"),
    )
    found = safe(archive)
    assert found.left_out == ()
    assert (found.is_folder, found.num_files) == (True, 8)
    kept = {"a": "/", "a/run.sh": "x", "a/key": "x", "a/up": "-> ../b", "b": "x", "c": "x", "new\nline": "x"}
    assert unpacked(found, tmp_path / "out") == kept
    with tarfile.open(fileobj=io.BytesIO(found.archive)) as tar:
        modes = {member.name: member.mode for member in tar}
        assert {member.mtime for member in tar} == {1000}
        assert {member.uid for member in tar} == {0}
    assert (modes["a"], modes["a/run.sh"], modes["a/key"]) == (0o755, 0o755, 0o600)


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ([entry("/etc/passwd")], "leads out"),
        ([entry("../x")], "leads out"),
        ([entry("d/" * 520 + "x")], "has a path of over 1,024 bytes"),
        ([entry("a/../../x")], "leads out"),
        ([entry("l", tarfile.SYMTYPE, "/tests")], "is a link that leads out"),
        ([entry("l", tarfile.SYMTYPE, "../x")], "is a link that leads out"),
        ([entry("a/l", tarfile.SYMTYPE, "../../x")], "is a link that leads out"),
        # Each of these two would be harmless alone: together they lead out.
        (
            [entry("here", tarfile.SYMTYPE, "."), entry("l", tarfile.SYMTYPE, "here/..")],
            "is a link that leads out",
        ),
        ([entry("d", tarfile.SYMTYPE, "a"), entry("d/x")], "lies below a file or a link"),
        ([entry("d/x"), entry("d", tarfile.SYMTYPE, "a")], "is there twice"),
        ([entry("h", tarfile.LNKTYPE, "/etc/shadow")], "is a hard link to a file outside"),
        (
            [entry("s", tarfile.SYMTYPE, "a"), entry("h", tarfile.LNKTYPE, "s")],
            "is a hard link to a file outside",
        ),
        ([entry("p", tarfile.FIFOTYPE)], "is a device, a pipe or a socket"),
        ([entry("z", tarfile.CHRTYPE)], "is a device, a pipe or a socket"),
        ([entry("b", tarfile.BLKTYPE)], "is a device, a pipe or a socket"),
    ],
)
def test_what_leads_out_or_is_no_file_is_left_out(
    tmp_path: Path, entries: list[tarfile.TarInfo], why: str
) -> None:
    found = safe(archive_of(ROOT, entry("./kept"), *entries))
    assert len(found.left_out) == 1
    assert why in found.left_out[0]
    seen = unpacked(found, tmp_path / "out")
    assert seen["kept"] == "x"
    inside = (tmp_path / "out").resolve()
    assert all(path.resolve().is_relative_to(inside) for path in (tmp_path / "out").rglob("*"))


def test_the_archive_of_a_file_holds_nothing_but_that_file(tmp_path: Path) -> None:
    """A replaced tar cannot lay other files beside a declared one."""
    found = safe(archive_of(entry("tests/test.sh"), entry("conftest.py"), entry("out"), entry("other")))
    assert unpacked(found, tmp_path / "x") == {"out": "x"}
    assert not found.is_folder
    assert all("is not the artifact" in each for each in found.left_out)


def test_an_archive_over_the_bounds_is_refused() -> None:
    with pytest.raises(Refused, match="larger than 1 MB"):
        safe(archive_of(entry("out"), content=bytes((1 << 20) + 1)))
    with pytest.raises(Refused, match="more than 100 files"):
        safe(archive_of(ROOT, *(entry(f"f{number}") for number in range(100))))


def test_a_sparse_file_counts_with_its_holes(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    os.truncate(tmp_path / "out", 1 << 40)
    packed = subprocess.run(
        ["tar", "--sparse", "-cC", tmp_path, "out"], capture_output=True, check=True
    ).stdout
    assert len(packed) < 1 << 20
    with pytest.raises(Refused, match="larger than 1 MB"):
        safe(packed)
    os.truncate(tmp_path / "out", 1 << 19)
    packed = subprocess.run(
        ["tar", "--sparse", "-cC", tmp_path, "out"], capture_output=True, check=True
    ).stdout
    assert unpacked(safe(packed), tmp_path / "x")["out"] == "\0" * (1 << 19)


@pytest.mark.parametrize(
    "spoil", [lambda data: data[:1200], lambda data: b"\x1f\x8b" + data, lambda data: b"no archive" * 99]
)
def test_what_is_no_archive_is_refused(spoil: Callable[[bytes], bytes]) -> None:
    with pytest.raises(Refused, match="cannot be read"):
        safe(spoil(archive_of(ROOT, entry("a"), content=bytes(900))))


names = st.lists(st.sampled_from(["a", "b", "..", ".", "c"]), min_size=1, max_size=3).map("/".join)
kinds = st.sampled_from(
    [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE]
)
entries = st.builds(entry, names, kinds, names | names.map(lambda name: f"/{name}"))


@given(st.lists(entries, max_size=8))
def test_no_archive_reaches_out_of_the_folder_that_it_is_unpacked_in(
    tmp_path_factory: pytest.TempPathFactory, made: list[tarfile.TarInfo]
) -> None:
    folder = tmp_path_factory.mktemp("unpacked")
    seen = unpacked(safe(archive_of(ROOT, *made)), folder / "out")
    inside = (folder / "out").resolve()
    assert os.listdir(folder) == ["out"]
    for name in seen:
        path = folder / "out" / name
        assert not path.exists() or path.resolve().is_relative_to(inside)


@given(st.binary(max_size=3000))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        found = safe(archive_of(ROOT, entry("a"))[:512] + data)
    except Refused:
        return
    assert found.num_bytes <= BOUNDS.bytes
