import pytest

from notes.cli import main


@pytest.fixture(autouse=True)
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("NOTES_FILE", str(tmp_path / "n.jsonl"))
    return tmp_path / "n.jsonl"


def test_added_notes_are_listed(capsys):
    assert main(["add", "milk"]) == 0
    assert main(["add", "call", "at noon", "-t", "today", "-t", "phone"]) == 0
    assert main(["list"]) == 0
    out, err = capsys.readouterr()
    assert sorted(out.splitlines()) == ["call: at noon", "milk"]
    assert err == ""
    main(["list", "phone"])
    assert capsys.readouterr().out == "call: at noon\n"


def test_tags_are_counted(capsys):
    main(["add", "a", "-t", "x"])
    main(["add", "b", "-t", "x", "-t", "y"])
    main(["tags"])
    assert capsys.readouterr().out == "  2 x\n  1 y\n"


def test_a_corrupt_file_is_an_error(capsys, file):
    file.write_text("?")
    assert main(["list"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("notes: ")
    assert "line 1" in captured.err


def test_arguments_that_cannot_be_read(capsys):
    with pytest.raises(SystemExit) as info:
        main(["paint"])
    assert info.value.code == 2
    assert "paint" in capsys.readouterr().err


def test_the_default_file(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("NOTES_FILE")
    monkeypatch.chdir(tmp_path)
    main(["add", "here"])
    assert (tmp_path / "notes.jsonl").is_file()
