"""A command line made from a model of its options: `envsdk.base.settings.options`.

    def command(options: CheckOptions) -> int:
        '''Check that an environment keeps the contract that training relies on.'''

    app, main = command_of(CheckOptions, command, name="envsdk check")

Names, types, defaults, ranges and help come from the model; `command`'s docstring is the text above them.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union

import typer
from pydantic.fields import FieldInfo

from envsdk.base.display.command_line import run_app
from envsdk.base.settings.options import Argument, Option, Options, spelled
from envsdk.base.settings.validation import model_in, unwrapped

OptionsT = TypeVar("OptionsT", bound=Options)


def command_of(
    model: type[OptionsT],
    run: Callable[[OptionsT], int | None],
    *,
    name: str,
    from_file: Callable[[list[str], dict[str, Any]], OptionsT] | None = None,
) -> tuple[typer.Typer, Callable[..., int]]:
    """The Typer app of `run`, and its `main(argv)`, which runs it and returns the exit code.

    `argv` is the process's own arguments when None.

    `from_file` makes the options from a YAML file's name and `key=value` arguments, with the given options
    over them. The command line then knows no defaults and no ranges: the file may give any value.
    """
    app = typer.Typer(add_completion=False)
    fields = dict(_fields(model))

    def command(**given: Any) -> int | None:
        arguments = [] if from_file is None else given.pop(_ARGUMENTS) or []
        values: dict[str, Any] = {}
        for field_name, value in given.items():
            path, field = fields[field_name]
            if value in (None, []) or (from_file is None and value == field.default):
                continue
            spelling = spelled(field_name, field)
            if isinstance(spelling, Option) and spelling.reads is not None:
                value = spelling.reads(value)
            section = values
            for part in path:
                section = section.setdefault(part, {})
            section[field_name] = value
        return run(model.of(**values) if from_file is None else from_file(arguments, values))

    parameters = [
        _parameter(each, field, from_file is None and not _is_optional(model, path))
        for each, (path, field) in fields.items()
    ]
    if from_file is not None:
        keys = f"A YAML file with the keys of `{model.__name__}`, and single keys over it."
        info = typer.Argument(metavar="CONFIG.yaml|KEY=VALUE", help=f"{keys} Options go over both.")
        parameters.insert(0, _keyword(_ARGUMENTS, Annotated[list[str] | None, info], None))
    command.__doc__ = run.__doc__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {}
    app.command()(command)

    def main(argv: list[str] | None = None) -> int:
        return run_app(app, argv, name=name)

    return app, main


_ARGUMENTS = "arguments"


def _fields(model: type[Options]) -> Iterator[tuple[str, tuple[tuple[str, ...], FieldInfo]]]:
    """Fields by name, each with the path to its section: those that the command line shows."""
    found: dict[str, tuple[tuple[str, ...], FieldInfo]] = {}
    for name, field in model.model_fields.items():
        nested = type(field.default) if isinstance(field.default, Options) else model_in(field.annotation)
        if nested is not None and issubclass(nested, Options):
            found.update({inner: ((name, *path), each) for inner, (path, each) in _fields(nested)})
        else:
            found[name] = ((), field)
    for name in model.shown or found:
        yield name, found[name]


def _is_optional(model: type[Options], path: tuple[str, ...]) -> bool:
    """Whether the section may be absent: then nothing in it has a default."""
    return bool(path) and model.model_fields[path[0]].default is None


def _parameter(name: str, field: FieldInfo, with_defaults: bool) -> inspect.Parameter:
    spelling = spelled(name, field)
    taken = _taken(field, spelling)
    is_required = field.is_required() and with_defaults
    is_read = isinstance(spelling, Option) and spelling.reads is not None
    is_plain = with_defaults and field.default_factory is None and not is_read
    is_plain = is_plain and typing.get_origin(taken) is not list
    default = inspect.Parameter.empty if is_required else field.default if is_plain else None
    if isinstance(spelling, Argument):
        info: Any = typer.Argument(metavar=spelling.metavar, help=field.description, show_default=False)
    else:
        info = typer.Option(*spelling.flags, metavar=spelling.metavar, help=field.description)
        for each in field.metadata if with_defaults else ():
            info.min = getattr(each, "ge", info.min)
            info.max = getattr(each, "le", info.max)
    if taken in (Path, list[Path]):
        info.parser = path
    return _keyword(name, Annotated[taken | None if default is None else taken, info], default)


def path(said: str | Path) -> Path:
    """What a command line says of a file or folder: an empty variable of a script is none."""
    if said == "":
        raise typer.BadParameter("it is empty: name a file or folder; `.` is the one you are in")
    return Path(said)


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _taken(field: FieldInfo, spelling: Option | Argument) -> Any:
    """The type that the command line takes for a field."""
    if isinstance(spelling, Option) and spelling.reads is not None:
        return next(iter(typing.get_type_hints(spelling.reads).values()))
    annotation = unwrapped(field.annotation)
    origin = typing.get_origin(annotation)
    if origin in (Union, types.UnionType):
        return str
    if origin in (tuple, list, Sequence):
        return list[unwrapped(typing.get_args(annotation)[0])]  # type: ignore[misc]
    return unwrapped(annotation)
