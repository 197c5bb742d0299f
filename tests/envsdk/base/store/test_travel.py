from __future__ import annotations

import os
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from envsdk.base.store import travel
from envsdk.base.store.travel import DriverFiles, PathContents, paths_in
from envsdk.contracts.failures import StorageError


class Counting:
    """Reads from a folder of this machine that stands for the driver's, and counts."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.num_bytes: Counter[str] = Counter()

    def read(self, path: Path, offset: int, size: int) -> bytes:
        with (self._root / path.relative_to("/elsewhere")).open("rb") as file:
            file.seek(offset)
            data = file.read(size)
        self.num_bytes[path.name] += len(data)
        return data


def elsewhere(contents: PathContents) -> PathContents:
    """The same files at a path that this machine does not have."""
    return PathContents(Path("/elsewhere") / contents.path.name, contents.files, contents.digest)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(travel, "_held", {})
    monkeypatch.setattr(travel, "CHUNK_BYTES", 1000)
    monkeypatch.setenv("ENVSDK_CACHE", str(tmp_path / "cache"))
    model = tmp_path / "driver" / "model"
    (model / "sub").mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "sub" / "weights").write_bytes(os.urandom(3500))
    (model / "empty").touch()
    return tmp_path / "driver"


def parcel_of(path: Path) -> PathContents:
    contents = PathContents.of(path)
    assert contents is not None
    return contents


def test_a_path_that_holds_the_same_files_here_is_used_as_it_is_and_read_once(
    driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Counting(driver)
    contents = parcel_of(driver / "model")
    assert contents.here(reader) == driver / "model"
    with monkeypatch.context() as patch:
        patch.setattr(travel, "_digest_ends", None)
        assert contents.here(reader) == driver / "model"
    assert not reader.num_bytes
    (driver / "model" / "sub" / "weights").write_bytes(bytes(3500))
    with pytest.raises(ValueError, match="is not in the subpath of"):
        contents.here(reader)  # it would be fetched


def test_processes_of_a_machine_that_lacks_a_folder_fetch_it_once(driver: Path) -> None:
    reader = Counting(driver)
    contents = elsewhere(parcel_of(driver / "model"))
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(contents.here(reader))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert PathContents.of(found[0]) == PathContents(found[0], contents.files, contents.digest)
    assert (found[0] / "sub" / "weights").read_bytes() == (driver / "model" / "sub" / "weights").read_bytes()
    assert sum(reader.num_bytes.values()) == contents.num_bytes == 3502


def test_a_folder_of_other_content_at_the_same_path_is_not_taken_for_it(driver: Path, tmp_path: Path) -> None:
    contents = parcel_of(driver / "model")
    os.rename(driver, tmp_path / "moved")
    (driver / "model").mkdir(parents=True)
    (driver / "model" / "config.json").write_text("{other}")

    class Moved(Counting):
        def read(self, path: Path, offset: int, size: int) -> bytes:
            return super().read(Path("/elsewhere") / path.relative_to(driver), offset, size)

    here = contents.here(Moved(tmp_path / "moved"))
    assert here != driver / "model"
    assert (here / "config.json").read_text() == "{}"


def test_a_copy_that_broke_off_leaves_nothing_and_is_made_again(driver: Path, tmp_path: Path) -> None:
    contents = elsewhere(parcel_of(driver / "model"))

    class Broken(Counting):
        def read(self, path: Path, offset: int, size: int) -> bytes:
            if offset:
                raise OSError(5, "Input/output error")
            return super().read(path, offset, size)

    with pytest.raises(StorageError, match="Cannot copy from the driver's machine to"):
        contents.here(Broken(driver))
    assert [path for path in (tmp_path / "cache" / "travelled").iterdir() if path.is_dir()] == []
    assert contents.here(Counting(driver)).is_dir()


def test_files_that_change_while_they_travel_are_refused(driver: Path) -> None:
    contents = elsewhere(parcel_of(driver / "model"))
    (driver / "model" / "sub" / "weights").write_bytes(bytes(3500))
    with pytest.raises(StorageError, match="changed on the driver's machine"):
        contents.here(Counting(driver))


def test_old_copies_go_when_another_is_made_unless_a_process_uses_them(
    driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Counting(driver)
    copies = []
    for name in ("used", "left", "third"):
        (driver / name).write_text(name)
        copies.append(elsewhere(parcel_of(driver / name)).here(reader).parent)
        if name == "left":
            for copy in copies:
                os.utime(copy, (0, time.time() - 15 * 24 * 3600))
            os.close(travel._held.pop(copies[1]))
    assert [copy.is_dir() for copy in copies] == [True, False, True]


def test_paths_in_settings_are_replaced_wherever_they_stand(
    driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(driver)
    (driver / "rows.jsonl").write_text("{}\n")
    settings = {
        "files": ["rows.jsonl", "gone.jsonl"],
        "size": 4,
        "data_dir": f"{driver}/model",
        "text": "model",
    }
    assert list(paths_in(settings)) == ["rows.jsonl", "gone.jsonl", f"{driver}/model"]
    driver_files = DriverFiles.of(paths_in(settings), Counting(driver))
    assert driver_files.here_in(settings) == settings | {"files": [f"{driver}/rows.jsonl", "gone.jsonl"]}


def test_a_machine_whose_cache_cannot_be_written_uses_what_is_shared(
    driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (driver / "file").touch()
    monkeypatch.setenv("ENVSDK_CACHE", str(driver / "file"))
    assert parcel_of(driver / "model").here(Counting(driver)) == driver / "model"
    with pytest.raises(StorageError, match="Cannot write into"):
        elsewhere(parcel_of(driver / "model")).here(Counting(driver))


def test_a_folder_of_very_many_files_stays_where_it_is(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(travel, "MAX_FILES", 2)
    assert PathContents.of(driver / "model") is None
    assert DriverFiles().here(Path("/anything")) == Path("/anything")
