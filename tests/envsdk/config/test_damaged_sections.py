"""A section that is something else than its keys ask for is a message, in files of every dialect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from envsdk.base.settings.problems import KeyPath
from envsdk.config import explain, load_config
from envsdk.contracts.failures import ConfigurationError

EXAMPLES = Path(__file__).parents[3] / "examples"
FILES = [
    *sorted((Path(__file__).parent / "reference").glob("*.yaml")),
    *(EXAMPLES / name for name in ("agentic_async.yaml", "rlvr_async.yaml")),
]
IN_PLACE: list[Any] = ["abc", [1], None, 7]


def sections_of(data: Any, prefix: KeyPath = ()) -> Iterator[KeyPath]:
    """Every key that holds a mapping or a list."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        if isinstance(value, dict | list):
            yield (*prefix, key)
            yield from sections_of(value, (*prefix, key))


def load(data: Any, path: Path, preset: str | None = None) -> None:
    """Load and explain; what is wrong may be said, and nothing else may go wrong."""
    path.write_text(yaml.safe_dump(data))
    with suppress(ConfigurationError):
        explain(load_config(path, to_explain=True, preset=preset))


@pytest.mark.slow
@pytest.mark.parametrize("preset", [None, "tiny"])
@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_no_section_of_a_wrong_kind_is_a_crash(file: Path, preset: str | None, tmp_path: Path) -> None:
    data = yaml.safe_load(file.read_text())
    for section in sections_of(data):
        for value in IN_PLACE:
            damaged: Any = deepcopy(data)
            inside = damaged
            for part in section[:-1]:
                inside = inside[part]
            inside[section[-1]] = value
            load(damaged, tmp_path / "damaged.yaml", preset)


@pytest.mark.parametrize(
    ("name", "path", "value", "preset"),
    [
        ("roll-agentic-frozenlake-async", ("actor_train", "training_args"), "abc", None),
        ("roll-agentic-frozenlake-async", ("custom_envs",), "abc", "tiny"),
        ("trinity-explorer", ("buffer",), [1], None),
    ],
)
def test_the_section_is_named(
    name: str, path: tuple[str, ...], value: Any, preset: str | None, tmp_path: Path
) -> None:
    data = yaml.safe_load(next(each for each in FILES if each.stem == name).read_text())
    inside = data
    for part in path[:-1]:
        inside = inside[part]
    inside[path[-1]] = value
    written = tmp_path / "damaged.yaml"
    written.write_text(yaml.safe_dump(data))
    with pytest.raises(ConfigurationError) as error:
        load_config(written, to_explain=True, preset=preset)
    assert ".".join(path) in str(error.value)
