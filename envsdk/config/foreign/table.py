"""Reads a dialect's table: a TOML file whose rows say what becomes of each key.

    [names]                                   # `$NAME` in a row stands for these
    roles = "actor_train|actor_infer"

    [[rows]]
    keys = "num_nodes $roles.{name,offset}"   # several, `{a,b}` as in a shell
    when = ["equals", 1]
    condition = "1"
    no_effect = "there is one node"

    [[rows]]
    keys = "kl_penalty"
    to = "kl_reward_type"
    convert = "algorithm:kl_penalty"

    [numbers]                                 # one that may not be is said alone, without what follows
    "a whole number of at least 1" = "num_nodes $roles.infer_batch_size"

    [defaults]
    lambd = 0.95

A function is named as `module:function` in the dialect's package, or as `function` alone in
`foreign/functions.py`; a list adds arguments. It is called with the value, its `Place` and these arguments.
A condition may begin with `not`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from importlib.resources import files
from itertools import product
from string import Template
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from envsdk.base.settings.problems import KeyPath
from envsdk.base.settings.strict import StrictSettings
from envsdk.base.settings.validation import shown
from envsdk.config.foreign import functions
from envsdk.config.foreign.row import Convert, Place, Row

Text = Annotated[str, AfterValidator(lambda text: " ".join(text.split()))]
Named = str | Annotated[list[Any], Field(min_length=1)]
"""A function, alone or with arguments."""
_FILE = "keys.toml"
_NUMBERS: Mapping[str, Callable[[Any], bool]] = {
    "a whole number of at least 0": lambda value: type(value) is int and value >= 0,
    "a whole number of at least 1": lambda value: type(value) is int and value >= 1,
    "a number from 0 to 1": lambda value: type(value) in (int, float) and 0 <= value <= 1,
}


class TableRow(StrictSettings):
    """What becomes of some keys, and when; or a function that makes rows."""

    keys: Text = ""
    """Dotted, with blanks in between; `*` is any name, `a|b` one of two, `{a,b}` one row for each."""
    when: Named | None = None
    """When the row holds; the next row that matches is tried otherwise. Absent: always."""
    condition: Text = ""
    """`when`, in words."""
    only_their_files: bool = False
    """Whether the name means something else in files of ours."""
    to: Text = ""
    """Our keys, as the docs name them. Without `convert` the value stays, and this is its key; `$last` is the
    last part of theirs."""
    convert: Named | None = None
    """Our keys for a value of theirs."""
    reason: Text = ""
    """What the conversion does, where the names do not say it."""
    no_effect: Text = ""
    """Why the key is accepted and changes nothing."""
    refused: Text = ""
    """Why the key is an error, and what to do."""
    made_by: str = ""
    """A function without arguments that yields rows, which stand here."""

    @model_validator(mode="after")
    def _says_one_thing(self) -> Self:
        given = [self.to or self.convert, self.no_effect, self.refused, self.made_by]
        if sum(map(bool, given)) != 1 or not self.keys + self.made_by:
            raise ValueError(
                f"{self.keys}: says what the key becomes, why it changes nothing, or why it is refused"
            )
        return self


class TableFile(StrictSettings):
    """A table as it is written."""

    names: dict[str, str] = Field(default_factory=dict)
    numbers: dict[Literal[tuple(_NUMBERS)], str] = Field(default_factory=dict)  # type: ignore[valid-type]
    """Keys of theirs by what numbers they may be."""
    defaults: dict[str, Any] = Field(default_factory=dict)
    """Values of our keys that one of their files leaves out and means something else by than ours."""
    computed_defaults: dict[str, Named] = Field(default_factory=dict)
    """The same, by a function or as a conversion of null has it; as in ours where there is none."""
    rows: list[TableRow]


@dataclass(frozen=True, slots=True)
class Table:
    """The rows and defaults of a dialect."""

    rows: tuple[Row, ...]
    """The first row that matches a key and applies to its value decides."""
    defaults: Mapping[str, Callable[[Place], Any]]
    """Our keys that one of their files may leave out and mean something else by than ours: the value; None:
    as in ours."""
    numbers: tuple[tuple[Row, str], ...] = ()
    """Keys that are numbers, and which they may be."""

    def number_problem(self, path: KeyPath, value: Any) -> str:
        """Why a number of theirs makes no sense, whatever follows from it; empty where it may."""
        kinds = (kind for row, kind in self.numbers if value is not None and row.match(path) is not None)
        wrong = next((kind for kind in kinds if not _NUMBERS[kind](value)), None)
        return f"must be {wrong}, not {shown(value)}" if wrong else ""


@cache
def read_table(package: str) -> Table:
    """The table in the folder of a dialect's package."""
    text = files(package).joinpath(_FILE).read_text(encoding="utf-8")
    names = tomllib.loads(text.partition("[[rows]]")[0]).get("names", {})
    table = TableFile.model_validate(tomllib.loads(Template(text).safe_substitute(names)))
    defaults: dict[str, Callable[[Place], Any]] = {
        key: partial(lambda constant, place: constant, constant) for key, constant in table.defaults.items()
    }
    for key, named in table.computed_defaults.items():
        defaults[key] = partial(_computed, key, _function(named, package))
    numbers = ((Row(key=key), kind) for kind, keys in table.numbers.items() for key in _keys(keys))
    rows = (row for written in table.rows for row in _rows(written, package))
    return Table(tuple(rows), defaults, tuple(numbers))


def _computed(key: str, function: Convert, place: Place) -> Any:
    found = function(None, place)
    return found.get(key) if isinstance(found, Mapping) else found


def _rows(written: TableRow, package: str) -> Iterator[Row]:
    if written.made_by:
        yield from _found(written.made_by, package)()
    for key in _keys(written.keys):
        to = written.to.replace("$last", key.rpartition(".")[2])
        yield Row(
            key=key,
            to=to,
            reason=written.reason or written.no_effect or written.refused,
            convert=_function(written.convert, package) if written.convert else _renaming(to),
            is_refused=bool(written.refused),
            applies=_function(written.when, package) if written.when else None,
            condition=written.condition,
            only_their_files=written.only_their_files,
        )


def _renaming(to: str) -> Convert | None:
    return partial(functions.put, key=to) if to else None


def _function(named: Named, package: str) -> Any:
    name, *args = [named] if isinstance(named, str) else named
    function = _found(name.removeprefix("not "), package)
    if name.startswith("not "):
        return lambda value, place: not function(value, place, *args)
    return lambda value, place: function(value, place, *args)


def _found(name: str, package: str) -> Any:
    module, _, function = name.rpartition(":")
    return getattr(import_module(f"{package}.{module}") if module else functions, function)


def _keys(written: str) -> Iterator[str]:
    """Keys with blanks in between; blanks in braces part nothing."""
    return (key for keys in re.sub(r",\s+", ",", written).split() for key in _alternatives(keys))


def _alternatives(key: str) -> list[str]:
    """A key with its braces written out.

    >>> _alternatives("a{,_args}.{b,c}")
    ['a.b', 'a.c', 'a_args.b', 'a_args.c']
    """
    parts = [part.split(",") for part in re.split(r"[{}]", key)]
    return ["".join(each) for each in product(*parts)]
