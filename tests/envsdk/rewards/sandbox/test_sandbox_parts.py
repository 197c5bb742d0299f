"""Parts of the backends by themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path, PurePosixPath

from hypothesis import given
from hypothesis import strategies as st

from envsdk.rewards.sandbox import scripts
from envsdk.rewards.sandbox.bubblewrap.backend import advice
from envsdk.rewards.sandbox.bubblewrap.launch import root_mounts
from envsdk.rewards.sandbox.bubblewrap.state import measure
from envsdk.rewards.sandbox.remote import END_ALL


def test_the_advice_fits_the_problem() -> None:
    assert "0.8 or newer" in advice("bwrap: Unknown option --disable-userns")
    assert "apparmor" in advice("unshare: unshare failed: Operation not permitted")
    assert "another sandbox backend" in advice("something else")


FORKING = f"""\
sleep 600 & keep=$!
setsid sleep 601 &
(trap '' TERM HUP; while :; do sleep 0.01 & done) &
sleep 0.5
{END_ALL}
for try in $(seq 100); do  # what was killed still needs a core to end
    left=
    for process in /proc/[0-9]*; do
        [ "$process" = /proc/1 ] || [ "$process" = /proc/$$ ] || [ "$process" = "/proc/$keep" ] ||
            left+=$(tr '\\0' ' ' < "$process/cmdline")
    done 2> /dev/null
    [ -n "$left" ] || break
    sleep 0.1
done
echo "left: $left"
grep State "/proc/$keep/status"
"""


def test_the_process_that_waits_is_spared_and_no_other() -> None:
    """Where it is not the first one, as with E2B."""
    alone = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    command = [*alone, "bash", "-c", 'bash -c "$1"; exit', "bash", FORKING]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["left:", "State:", "S", "(sleeping)"]


def test_what_is_measured_is_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/file").write_bytes(bytes(100_000))
    (tmp_path / "a/link").symlink_to("/")
    (tmp_path / "a/sparse").touch()
    os.truncate(tmp_path / "a/sparse", 1 << 30)
    usage = measure([tmp_path, tmp_path / "missing"])
    assert usage.files == 5
    assert 100_000 <= usage.bytes < 200_000


def test_a_comparison_fails_where_a_program_that_finds_new_files_is_missing(
    repository: Path, tmp_path: Path
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "cat", "git", "mkdir", "sort", "stat", "xargs"):
        (programs / name).symlink_to(str(shutil.which(name)))

    def returncode() -> int:
        script = scripts.diff_script(str(repository / ".git"), str(tmp_path))
        environ = {"PATH": str(programs), "SANDBOX_WORKDIR": str(repository)}
        return subprocess.run(
            ["bash", "-c", script], env=environ, capture_output=True, check=False
        ).returncode

    assert returncode() == 0
    (programs / "xargs").unlink()
    assert returncode() == scripts.FAILED


PATHS = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(lambda names: "/" + "/".join(names))


@given(st.lists(PATHS, max_size=4, unique=True), st.lists(PATHS, max_size=4))
def test_every_folder_on_the_way_to_a_mount_is_one_and_comes_first(
    places: list[str], inner: list[str]
) -> None:
    parts = {"root": "/"} | {f"place-{number}": place for number, place in enumerate(places)}
    mounts = root_mounts(parts, inner)
    paths = [path for _, path in mounts]
    assert paths[0] == "/"
    assert len(set(paths)) == len(paths)
    for path in (*places, *inner):
        ways = [str(parent) for parent in PurePosixPath(path).parents]
        assert set(ways) <= set(paths)
    for position, path in enumerate(paths):
        assert all(str(parent) in paths[:position] for parent in PurePosixPath(path).parents)
    for source, path in mounts:
        part, _, rest = source.partition("/")
        assert str(PurePosixPath(parts[part]) / rest) == path
        nearest = max(
            (place for place in parts.values() if PurePosixPath(path).is_relative_to(place)), key=len
        )
        assert parts[part] == nearest
