import json
import logging
import time

import pytest

from notes import CorruptStore, Note, Store


@pytest.fixture
def path(tmp_path):
    return tmp_path / "notes.jsonl"


@pytest.fixture
def clock(monkeypatch):
    times = iter(range(100, 200))
    monkeypatch.setattr(time, "time", lambda: float(next(times)))


def test_a_file_that_is_not_there(path):
    assert Store(path).notes == {}
    assert not path.exists()


def test_saved_and_loaded(path, clock):
    store = Store(path)
    store.add("b", "größer", ["y", "x", "y"])
    store.add("a")
    store.save()
    assert [json.loads(line)["title"] for line in path.read_text(encoding="utf-8").splitlines()] == ["a", "b"]
    assert "größer" in path.read_text(encoding="utf-8")
    assert Store(path).notes["b"] == Note("b", "größer", ("x", "y"), 100.0)
    assert sorted(p.name for p in path.parent.iterdir()) == ["notes.jsonl"]


def test_newest_first(path, clock):
    store = Store(path)
    for title in ("one", "two", "three"):
        store.add(title, tags=["t"])
    store.add("other")
    assert [note.title for note in store.tagged("t")] == ["three", "two", "one"]
    assert store.tagged("none") == []


def test_a_note_that_is_replaced_is_logged(path, clock, caplog):
    store = Store(path)
    with caplog.at_level(logging.WARNING, logger="notes"):
        first = store.add("a", "1")
        second = store.add("a", "2")
    assert [record.getMessage() for record in caplog.records] == ["a is replaced"]
    assert second.when > first.when
    assert store.notes["a"].body == "2"


@pytest.mark.parametrize("line", ["nonsense", "{}", '{"title": "a"}'], ids=["text", "empty", "half"])
def test_a_corrupt_file_is_named_with_its_line(path, line):
    path.write_text("\n" + line + "\n")
    with pytest.raises(CorruptStore, match="line 2") as info:
        Store(path)
    assert str(path) in str(info.value)
    assert isinstance(info.value.__cause__, (ValueError, KeyError))


def test_a_failed_save_leaves_the_file(path, clock):
    store = Store(path)
    store.add("a")
    store.save()
    before = path.read_bytes()
    store.notes["b"] = Note("b", object(), (), 0.0)
    with pytest.raises(TypeError):
        store.save()
    assert path.read_bytes() == before
