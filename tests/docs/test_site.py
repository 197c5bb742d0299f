"""The site of docs/: complete, and true where the text tests of the pages do not look."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import types
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt

from envsdk.config import load_config
from tests.docs.test_docs import anchors
from tests.envsdk import public_api

ROOT = Path(__file__).parents[2]


def _prepare_site() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("prepare_site", ROOT / "docs" / "prepare_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


prepare_site = _prepare_site()


class _Settings(yaml.SafeLoader):
    """Reads mkdocs.yml without making the Python objects that it names."""


_Settings.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)


def _pages_in(navigation: object) -> list[str]:
    if isinstance(navigation, str):
        return [navigation]
    entries = navigation.values() if isinstance(navigation, dict) else navigation
    assert not isinstance(entries, str)
    return [page for entry in entries for page in _pages_in(entry)]  # type: ignore[attr-defined]


def test_every_page_is_in_the_navigation_once() -> None:
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(), _Settings)
    pages = [path for path in prepare_site.site_files() if path.endswith(".md")]
    assert sorted(_pages_in(settings["nav"])) == sorted(pages)


def test_the_docs_open_with_what_a_stranger_needs() -> None:
    first = ["install.md", "rollouts.md", "writing-an-environment.md"]
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(), _Settings)
    assert _pages_in(settings["nav"])[:3] == first
    index = (ROOT / "docs" / "README.md").read_text().partition("| page | for |")[2]
    assert re.findall(r"^\| \[([\w.-]+)\]", index, re.M)[:3] == first


def test_every_public_name_is_in_the_reference() -> None:
    assert prepare_site.MODULES == public_api.MODULES
    for module in public_api.MODULES:
        names = set(import_module(module).__all__) - {"__version__"}
        assert set(re.findall(rf"^::: {module}\.(\w+)$", prepare_site.reference(module), re.M)) == names


def test_the_reference_begins_with_a_table_of_names_and_what_most_programs_need() -> None:
    page = prepare_site.reference("envsdk")
    sections = re.findall(r"^::: envsdk\.(\w+)$", page, re.M)
    rows = re.findall(r"^\| \[`(\w+)`\]\(#envsdk\.(\w+)\) \| (.*) \|$", page, re.M)
    assert sections[:4] == ["rollout", "rollout_sync", "make", "TurnEnv"]
    assert [row[:2] for row in rows] == [(name, name) for name in sections]
    assert all(what for module in prepare_site.MODULES for what in _summaries(module))


def _summaries(module: str) -> list[str]:
    return [prepare_site.summary(module, name) for name in prepare_site.public_names(module)]


def test_links_out_of_docs_lead_to_a_page_or_a_source_on_the_site() -> None:
    files = prepare_site.site_files()
    environments = files["environments.md"].decode()
    assert "](envs/frozen_lake/README.md)" in environments
    assert "](source/examples/own_trainer.py.txt)" in files["own-trainer.md"].decode()
    assert "](../../swe.md" in files["envs/swe/README.md"].decode()
    for path, content in files.items():
        text = re.sub(r"^```.*?^```", "", content.decode(), flags=re.M | re.S) if path.endswith(".md") else ""
        for link, anchor in re.findall(r"\]\(([^)\s:#]*)(?:#([^)\s]*))?\)", text):
            place = (
                (ROOT / path).parent.joinpath(link).resolve().relative_to(ROOT).as_posix() if link else path
            )
            assert place in files, f"{path}: {link} leads nowhere on the site"
            if anchor:
                target = files[place].decode()
                known = anchors(target) | set(re.findall(r"^::: ([\w.]+)$", target, re.M))
                assert anchor in known, f"{path}: {link} has no heading #{anchor}"


def test_the_picture_of_a_run_belongs_to_its_diagram() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    (diagram,) = [t.content for t in MarkdownIt().parse(page) if t.type == "fence" and t.info == "mermaid"]
    picture = (ROOT / "docs" / "images" / "one-run.svg").read_text()
    assert f"sha256 {hashlib.sha256(diagram.encode()).hexdigest()[:16]} " in picture, (
        "draw it again: CONTRIBUTING.md"
    )


def _quoted_messages() -> list[str]:
    rows = (ROOT / "docs" / "troubleshooting.md").read_text().splitlines()
    return [quoted[1] for row in rows if (quoted := re.match(r"\| `+(.+?)`+ \|", row.replace("\\`", "\0")))]


def test_each_message_of_the_troubleshooting_page_is_in_the_code() -> None:
    messages = [message.replace("\0", "`") for message in _quoted_messages()]
    assert len(messages) > 10
    # A message may be split over lines, and is a string with escapes.
    sources = [path.read_text() for room in ("envsdk", "managers") for path in ROOT.glob(f"{room}/**/*.py")]
    code = re.sub(r'"\s*\n\s*f?"', "", "".join(sources)).replace('\\"', '"')
    assert [message for message in messages if message not in code] == []


@pytest.mark.parametrize("name", ["agentic_qwen3_one_gpu", "agentic_smollm2", "rlvr_smollm2"])
def test_the_file_of_a_page_on_a_real_model_is_a_valid_run(name: str) -> None:
    config = load_config(str(ROOT / f"examples/{name}.yaml"), to_explain=True).config
    assert config.max_steps in (30, 60)
    assert config.rollout_batch_size in (16, 64)


_COMMANDS = "train|collect|evaluate|replay|reward|report|sft|serve|serve_env|check|init|view|envs"
_OTHER_SPELLING = re.compile(rf"python3? -m envsdk\.(?:{_COMMANDS})(?![\w.])")
_MENTIONS = {"docs/README.md", "envsdk/cli.py", "envsdk/base/display/command_line.py"}
"""Where it is said that both spellings are the same."""


def test_commands_have_one_spelling() -> None:
    folders = ("docs", "envsdk", "envs", "managers", "trainers", "examples")
    files = [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".md", ".py", ".yaml"}
    ]
    files += [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    others = {path.relative_to(ROOT).as_posix() for path in files if _OTHER_SPELLING.search(path.read_text())}
    assert others <= _MENTIONS, "write `envsdk X`"
