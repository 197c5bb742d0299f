"""One HTML file: it holds what it should, and nothing in it can get out of its place."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsdk.view import main
from envsdk.view.export import Detail, export_data, write_export
from envsdk.view.library import Library, OpenSource
from envsdk.view.page import exported_page
from tests.envsdk.view.view_runs import ATTACK, write_run


class Elements(HTMLParser):
    """Tags in the order they open, and the content of script elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.scripts: list[str] = []
        self._in_script = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts[-1] += data


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> OpenSource:
    folder = tmp_path_factory.mktemp("exported")
    return Library(write_run(folder / "tiny"), index_folder=folder / "cache").sources()[0]


def held(page: str) -> Any:
    return json.loads(Elements(page).scripts[0])


def test_the_file_holds_the_run_and_whole_groups_of_it(source: OpenSource, tmp_path: Path) -> None:
    number = write_export(source, tmp_path / "run.html", num_trajectories=20)
    data = held((tmp_path / "run.html").read_text())
    assert number == len(data["rows"]) == len(data["trajectories"]) <= 20
    assert data["source"]["curves"]["reward/mean"]
    assert data["timeline"]["lanes"]
    sizes = [len(group["members"]) for name, group in data["groups"].items() if name.startswith("train/")]
    assert sizes.count(4) >= len(sizes) - 2
    assert any(row["outcome"] == "failed" for row in data["rows"])


def test_no_path_of_this_machine_is_in_the_file(source: OpenSource) -> None:
    page = exported_page(export_data(source, Detail(num_trajectories=5), now=0.0))
    assert str(source.source.folder.parent) not in page


@pytest.mark.parametrize("number", [0, 1, 1000])
def test_any_number_of_trajectories_may_be_asked_for(source: OpenSource, number: int) -> None:
    data = export_data(source, Detail(num_trajectories=number), now=0.0)
    assert len(data["rows"]) == min(number, 38)


texts = st.text(st.characters(exclude_categories=[]), max_size=40) | st.sampled_from(
    [ATTACK, "</script", "<!--<script>", "]]>", "\u2028", "\ud800", "<!-- body -->", "<!-- head -->"]
)


@settings(max_examples=60)
@given(st.lists(texts, max_size=4))
def test_no_text_can_end_its_script_element(found: list[str]) -> None:
    page = exported_page({"texts": found})
    elements = Elements(page)
    assert elements.tags == Elements(exported_page({})).tags
    shown = json.loads(elements.scripts[0])["texts"]
    assert shown == [text.encode("utf-8", "replace").decode() for text in found]


def test_the_policy_names_exactly_the_script_and_the_style_of_the_file() -> None:
    page = exported_page({})
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")
    assert "self" not in policy[1]
    assert "unsafe" not in policy[1]


def test_the_command_writes_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENVSDK_CACHE", str(tmp_path / "cache"))
    run = write_run(tmp_path / "runs" / "tiny")
    target = tmp_path / "tiny.html"
    assert main([str(run), "--export", str(target), "--trajectories", "8"]) == 0
    found = re.search(r"tiny\.html with (\d+) trajectories", capsys.readouterr().out)
    assert found
    assert 4 <= len(held(target.read_text())["rows"]) == int(found[1]) <= 8
    write_run(tmp_path / "runs" / "other")
    assert main([str(run.parent), "--export", str(target)]) == 2
    assert "other" in capsys.readouterr().err
    assert main([str(run), "--export", str(tmp_path / "no" / "folder.html")]) == 1
    assert "folder.html" in capsys.readouterr().err


def test_what_cannot_be_read_is_named_and_an_export_of_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENVSDK_CACHE", str(tmp_path / "cache"))
    run = write_run(tmp_path / "runs" / "tiny")
    files = sorted((run / "trajectories").glob("*.parquet"))
    files[0].write_bytes(files[0].read_bytes()[:100])
    assert main([str(run), "--export", str(tmp_path / "run.html")]) == 0
    assert files[0].name in capsys.readouterr().err
    for file in files:
        file.write_bytes(file.read_bytes()[:100])
    assert main([str(run), "--export", str(tmp_path / "run.html")]) == 1
    assert "could be read" in capsys.readouterr().err
