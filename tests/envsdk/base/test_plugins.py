from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from envsdk.base import plugins
from envsdk.contracts.failures import ConfigurationError
from envsdk.engines.mock import MockEngine


def test_a_plugin_is_found_by_its_registered_name_and_by_its_dotted_name() -> None:
    assert plugins.load_plugin("envsdk.engines", "mock") is MockEngine
    assert plugins.load_plugin("envsdk.engines", "envsdk.engines.mock:MockEngine") is MockEngine


def test_the_names_of_a_group_are_sorted_and_an_unknown_group_has_none() -> None:
    names = plugins.plugin_names("envsdk.engines")
    assert "mock" in names
    assert names == sorted(names)
    assert plugins.plugin_names("envsdk.no_such_group") == []


def test_a_misspelled_name_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(ConfigurationError, match="did you mean `mock`"):
        plugins.load_plugin("envsdk.engines", "mok")


def test_a_name_like_no_other_is_answered_with_all_of_them() -> None:
    with pytest.raises(ConfigurationError, match=r"known: .*embedded.*mock"):
        plugins.load_plugin("envsdk.engines", "zzzzzz")


@pytest.mark.parametrize("name", ["no_such_module:Thing", "envsdk.base.plugins:Missing"])
def test_a_dotted_name_that_leads_nowhere_says_what_could_not_be_loaded(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"envsdk.engines: {name!r} cannot be loaded"):
        plugins.load_plugin("envsdk.engines", name)


@pytest.mark.parametrize(
    ("text", "raised"),
    [
        ("def Thing(:\n", r"SyntaxError: invalid syntax \(.*/boom.py:1\)"),
        ("\nassert 1 == 2\n", r"AssertionError in `assert 1 == 2` \(.*/boom.py:2\)"),
        ("x = 1\nraise ValueError('at import')\n", r"ValueError: at import \(.*/boom.py:2\)"),
        ("import json\njson.loads('{')\n", r"JSONDecodeError: .* \(.*/boom.py:2\)"),
        ("import helper\n", r"RuntimeError: of the helper \(.*/helper.py:1\)"),
        ("import sys\nsys.exit(0)\n", r"SystemExit: 0 \(.*/boom.py:2\)"),
        ("import json\njson.nope\n", r"AttributeError: .*'nope' \(.*/boom.py:2\)"),
        ("from json import nope\n", r"ImportError: cannot import name 'nope' .* \(.*/boom.py:1\)"),
        ("import not_there\n", r"ModuleNotFoundError: No module named 'not_there' \(.*/boom.py:1\)"),
        ("class Thin: ...\n", r"boom has no `Thing`\. Did you mean 'Thin'\?"),
    ],
)
def test_a_module_that_fails_at_import_is_told_in_one_sentence_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, raised: str
) -> None:
    (tmp_path / "boom.py").write_text(text)
    (tmp_path / "helper.py").write_text("raise RuntimeError('of the helper')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigurationError, match=f"^envsdk.rewards: 'boom:Thing' cannot be loaded: {raised}$"
    ):
        plugins.load_plugin("envsdk.rewards", "boom:Thing")
    with pytest.raises(ConfigurationError, match=f"^'boom:Thing' cannot be loaded: {raised}$"):
        plugins.load_object("boom:Thing")


def test_a_registered_plugin_whose_package_is_missing_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = EntryPoint(name="gone", value="no_such_package.engine:Engine", group="envsdk.engines")
    monkeypatch.setattr(plugins, "_entry_points", lambda group: {"gone": gone})
    with pytest.raises(
        ConfigurationError, match=r"envsdk.engines: gone: .*cannot be loaded: .*no_such_package"
    ):
        plugins.load_plugin("envsdk.engines", "gone")


def test_a_dotted_name_is_found_in_the_working_directory_as_with_python_m(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lying_here.py").write_text("class Thing: ...")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    assert plugins.load_plugin("envsdk.engines", "lying_here:Thing").__name__ == "Thing"
