"""A key that a message advises, a docstring explains or a page sets is one that a file can hold."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from envsdk.algorithms.group_filters import filter_settings
from envsdk.base import registry
from envsdk.base.plugins import load_plugin, plugin_names
from envsdk.base.settings.validation import key_paths
from envsdk.config import RunConfig, plugins
from envsdk.config.foreign.dialect import DIALECTS
from envsdk.config.foreign.row import Row
from envsdk.contracts.failures import ConfigurationError
from tests.sources import nodes

ROOT = Path(__file__).parents[3]
ROOMS = ("envsdk/algorithms", "envsdk/config", "managers", "trainers")
"""Their messages and docstrings speak of a run's keys; other rooms name much that is no key."""
OF_OTHER_PROJECTS = ("envsdk/config/roll/", "envsdk/config/trinity/")
"""Speak of those projects' keys too."""
SNAKE = re.compile(r"\b[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b")
SETTING = re.compile(r"^([a-z_]+(?:\.[a-zA-Z_]+)*)(?:: |=(?!=))")

OF_FILES = {
    *("add_generation_prompt", "model_type", "layer_types", "full_attention", "step_000010"),
    *("rope_parameters", "rope_type", "partial_rotary_factor", "num_experts_per_tok"),
}
"""Names inside a Hugging Face folder or of a checkpoint's folder."""
OF_OTHERS = {
    *("num_inputs", "init_method", "assistant_only_loss", "gcs_server"),
    *("get_sample_level_mask", "compute_sample_weights", "use_vllm", "cost_tracking"),
    *("actor_rollout_ref", "loss_fn", "actor_num_nodes", "vllm_num_engines", "n_samples_per_prompt"),
    *("prompt_data", "prompt_dataset"),
}
"""A shape, an argument of torch's, settings of TRL's, verl's, NeMo RL's, OpenRLHF's and an agent's, a process
of Ray's, functions of ROLL's."""


def dialect_rows() -> Iterator[Row]:
    for name in plugin_names(DIALECTS):
        yield from load_plugin(DIALECTS, name).rows


@cache
def keys() -> frozenset[str]:
    """Of a run's file, the sections of plug-ins and the constructors of environments; names of plug-ins."""
    found = {str(path[-1]) for path in key_paths(RunConfig)}
    for name in plugin_names(plugins.SETTINGS):
        found |= {str(path[-1]) for path in key_paths(load_plugin(plugins.SETTINGS, name))}
    for name in plugin_names(plugins.GROUP_FILTERS):
        found |= set(filter_settings(name).model_fields)
    for spec in registry.list_specs():
        try:
            found |= set(plugins.argument_names(plugins.environment_class(spec)) or ())
        except ConfigurationError:
            continue  # Its package is not installed.
    for group in entry_points().groups:
        if group.startswith("envsdk."):
            found |= {word for entry in entry_points(group=group) for word in re.findall(r"\w+", entry.name)}
    found |= {word for row in dialect_rows() for word in SNAKE.findall(row.key)}
    return frozenset(found | {path.stem for path in (ROOT / "examples").rglob("*.yaml")})


@dataclass(frozen=True, slots=True)
class Module:
    """What a file says, without its tree."""

    strings: list[ast.Constant]
    """Without docstrings."""
    docstrings: list[ast.Constant]
    definitions: set[str]
    """Of classes and functions, and the file itself."""
    names: set[str]
    """All other words of its code."""


@cache
def product() -> dict[Path, Module]:
    folders = [ROOT / room for room in ("envs", "managers", "trainers")]
    folders += [path for path in (ROOT / "envsdk").iterdir() if path.is_dir() and not path.is_symlink()]
    files = [*(ROOT / "envsdk").glob("*.py"), *(file for folder in folders for file in folder.rglob("*.py"))]
    return {file: module_of(file) for file in files}


def module_of(file: Path) -> Module:
    written: list[ast.Constant] = []
    docstrings: list[ast.Constant] = []
    definitions, names = {file.stem}, set()
    for node in nodes(ast.parse(file.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            written.append(node)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstrings += [node.value] if isinstance(node.value.value, str) else []
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            definitions.add(node.name)
        for name in ("id", "attr", "arg", "name"):
            value = getattr(node, name, None)
            names |= {value} if isinstance(value, str) else set()
    ids = set(map(id, docstrings))
    return Module([each for each in written if id(each) not in ids], docstrings, definitions, names)


@cache
def definitions() -> frozenset[str]:
    """Modules, classes and functions."""
    return frozenset().union(*(module.definitions for module in product().values()))


@cache
def identifiers() -> frozenset[str]:
    """All words of the code itself, docstrings and comments left out, and of its data."""
    found = set(definitions())
    for file in (ROOT / "envsdk").rglob("*.toml"):
        found |= set(SNAKE.findall(file.read_text()))
    for module in product().values():
        found |= module.names
        for each in module.strings:
            found |= set(SNAKE.findall(str(each.value)))
    return frozenset(found)


def in_rooms() -> Iterator[tuple[str, Module]]:
    for file, module in product().items():
        where = file.relative_to(ROOT).as_posix()
        if where.startswith(ROOMS) and not where.startswith(OF_OTHER_PROJECTS):
            yield where, module


def test_a_message_names_no_key_that_no_file_can_hold() -> None:
    known = keys() | definitions() | OF_FILES | OF_OTHERS
    unknown = [
        (f"{where}:{each.lineno}", word)
        for where, module in in_rooms()
        for each in module.strings
        if " " in str(each.value).strip()
        for word in SNAKE.findall(str(each.value))
        if word not in known
    ]
    assert unknown == []


def test_a_docstring_names_nothing_that_is_not_there() -> None:
    known = keys() | identifiers() | OF_OTHERS
    unknown = [
        (f"{where}:{each.lineno}", word)
        for where, module in in_rooms()
        for each in module.docstrings
        for quoted in re.findall(r"`([^`\n]+)`", str(each.value))
        for word in SNAKE.findall(quoted)
        if word not in known
    ]
    assert unknown == []


PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_sets_no_key_that_is_not_there(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    known = keys() | identifiers() | OF_OTHERS
    unknown = [
        match[1]
        for quoted in re.findall(r"`([^`\n]+)`", text)
        if (match := SETTING.match(quoted)) and "_" in match[1]
        if match[1].rpartition(".")[2] not in known
    ]
    assert unknown == []
