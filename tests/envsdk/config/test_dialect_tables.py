"""A dialect's table: a TOML file beside the functions that it names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from envsdk.config import load_config
from envsdk.config.foreign.dialect import Dialect
from envsdk.config.foreign.row import Place
from envsdk.config.foreign.table import Table, TableRow, read_table
from envsdk.config.roll.dialect import ROLL
from envsdk.config.trinity.dialect import TRINITY
from envsdk.contracts.failures import ConfigurationError

FUNCTIONS = """
def doubled(value, place, key):
    return {key: 2 * value}

def half(value, place):
    return place.get("num_nodes") / 2
"""
TABLE = """
[names]
roles = "actor_train|actor_infer"

[[rows]]
keys = "num_nodes $roles.{name, offset}"
when = ["equals", 1]
condition = "1"
no_effect = "there is one node"

[[rows]]
keys = "trainer.{steps,epochs}"
to = "max_$last"
only_their_files = true

[[rows]]
keys = "size"
to = "max_size"
convert = ["functions:doubled", "max_size"]

[defaults]
lambd = 0.95

[computed_defaults]
gamma = "functions:half"
"""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Table]:
    package = tmp_path / "a_dialect"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "functions.py").write_text(FUNCTIONS)
    (package / "keys.toml").write_text(TABLE)
    monkeypatch.syspath_prepend(str(tmp_path))
    read_table.cache_clear()
    yield read_table("a_dialect")
    read_table.cache_clear()


def place(**data: Any) -> Place:
    return Place((), data, True)


def test_a_row_stands_for_each_of_its_keys(table: Table) -> None:
    keys = [row.key for row in table.rows]
    assert keys == [
        "num_nodes",
        "actor_train|actor_infer.name",
        "actor_train|actor_infer.offset",
        "trainer.steps",
        "trainer.epochs",
        "size",
    ]


def test_a_row_without_conversion_moves_the_value(table: Table) -> None:
    steps = table.rows[3]
    assert steps.convert is not None
    assert steps.convert(7, place()) == {"max_steps": 7}
    assert steps.only_their_files


def test_a_row_names_functions_with_their_arguments(table: Table) -> None:
    nodes, size = table.rows[0], table.rows[-1]
    assert nodes.applies is not None
    assert size.convert is not None
    assert [nodes.applies(value, place()) for value in (1, 2)] == [True, False]
    assert size.convert(4, place()) == {"max_size": 8}
    assert nodes.is_without_effect


def test_defaults_are_constants_or_functions_of_the_file(table: Table) -> None:
    found = {key: default(place(num_nodes=4)) for key, default in table.defaults.items()}
    assert found == {"lambd": 0.95, "gamma": 2}


@pytest.mark.parametrize(
    "row", [{"keys": "a"}, {"keys": "a", "to": "b", "refused": "is not there"}, {"to": "b"}]
)
def test_a_row_says_one_thing_of_some_key(row: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="says what the key becomes"):
        TableRow.model_validate(row)


FILES = {"ROLL": "roll-rlvr-async.yaml", "Trinity-RFT": "trinity-trainer.yaml"}


@pytest.mark.parametrize("dialect", [ROLL, TRINITY], ids=lambda dialect: dialect.name)
def test_a_number_that_may_not_be_is_said_alone_at_its_own_key(dialect: Dialect) -> None:
    file = Path(__file__).parent / "reference" / FILES[dialect.name]
    numbers = [(row.key, kind) for row, kind in dialect.table().numbers if "*" not in row.key]
    assert len(numbers) > 5
    for pattern, kind in numbers:
        key = ".".join(part.split("|")[0] for part in pattern.split("."))
        for wrong in ("-1", "word"):
            with pytest.raises(ConfigurationError) as refused:
                load_config(file, [f"{key}={wrong}"], to_explain=True)
            shown = wrong if wrong == "-1" else repr(wrong)
            assert str(refused.value).splitlines()[1:] == [f"  {key} (override): must be {kind}, not {shown}"]


@pytest.mark.parametrize(
    ("dialect", "section"),
    [(ROLL, "rewards"), (ROLL, "actor_train"), (TRINITY, "cluster"), (TRINITY, "algorithm.optimizer")],
)
def test_a_number_where_a_section_belongs_is_said_alone(dialect: Dialect, section: str) -> None:
    file = Path(__file__).parent / "reference" / FILES[dialect.name]
    with pytest.raises(ConfigurationError) as refused:
        load_config(file, [f"{section}=3"], to_explain=True)
    assert str(refused.value).splitlines()[1:] == [
        f"  {section} (override): must be a section of keys, not 3"
    ]
