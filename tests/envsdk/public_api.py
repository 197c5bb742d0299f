"""The public API as text: every public name with its signature, or with the fields of its class.

    python -m tests.envsdk.public_api            # writes tests/envsdk/public_api.txt

The file is what a reviewer reads. A name or a parameter leaves it only by the rule of docs/python-api.md.
"""

from __future__ import annotations

import enum
import inspect
import re
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".txt")

MODULES = (
    "envsdk",
    "envsdk.algorithms",
    "envsdk.collect",
    "envsdk.evaluate",
    "envsdk.rewards",
    "envsdk.testing",
    "envsdk.tracking",
    "envsdk.trainers",
)
"""Modules whose `__all__` is public."""


def public_api() -> list[str]:
    """One line a name and, for classes, one a public member."""
    lines = []
    for module in MODULES:
        loaded = import_module(module)
        for name in loaded.__all__:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                lines += _lines(f"{module}.{name}", getattr(loaded, name))
    return lines


def _lines(name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        yield f"class {name}{_signature(value)}"
        for member in sorted(_own_members(value)):
            yield from _member_lines(f"{name}.{member}", inspect.getattr_static(value, member))
    elif callable(value):
        yield f"{_kind(value)} {name}{_signature(value)}"
    else:
        yield name


def _own_members(cls: type) -> set[str]:
    """Public names that the class or a class of this package below it defines."""
    return {
        name
        for each in cls.__mro__
        if each.__module__.startswith("envsdk")
        for name in vars(each)
        if not name.startswith("_") and (not issubclass(cls, enum.Enum) or name in cls.__members__)
    }


def _member_lines(name: str, member: Any) -> Iterator[str]:
    if isinstance(member, classmethod | staticmethod):
        member = member.__func__
    if inspect.isfunction(member):
        yield f"  {_kind(member)} {name}{_signature(member)}"
    else:
        yield f"  {name}"


def _kind(function: Any) -> str:
    return "async def" if inspect.iscoroutinefunction(function) else "def"


def _signature(value: Any) -> str:
    """Parameters without their types: those may be said more exactly without breaking anybody."""
    if inspect.isclass(value) and issubclass(value, enum.Enum):
        return ""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()
    ]
    shown = signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
    # Defaults that are objects show where they lie in memory.
    return re.sub(r" at 0x[0-9a-f]+", "", str(shown))


def gone(before: list[str], after: list[str]) -> list[str]:
    """Lines of `before` without a line of `after` that takes every call the earlier one took."""
    now = {_name(line): line for line in after}
    return [line for line in before if not _still_takes(line, now.get(_name(line)))]


def _name(line: str) -> str:
    return line.strip().removeprefix("async ").removeprefix("def ").removeprefix("class ").partition("(")[0]


def _still_takes(before: str, after: str | None) -> bool:
    """The parameters of `before` come first and unchanged, and those added have defaults."""
    if after is None or before.strip().startswith("async") != after.strip().startswith("async"):
        return False
    had, has = _parameters(before), _parameters(after)
    if any(parameter not in has for parameter in had):
        return False
    positional = had[: had.index("*")] if "*" in had else had
    added = [parameter for parameter in has if parameter not in had]
    return has[: len(positional)] == positional and all("=" in p or p.startswith("*") for p in added)


def _parameters(line: str) -> list[str]:
    """Split at the commas that are in no brackets."""
    _, _, inside = line.strip().partition("(")
    parts, depth, start = [], 0, 0
    text = inside.removesuffix(")")
    for index, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and not depth:
            parts.append(text[start:index].strip())
            start = index + 1
    return [part for part in (*parts, text[start:].strip()) if part]


if __name__ == "__main__":
    written = FILE.read_text().splitlines() if FILE.is_file() else []
    api = public_api()
    if (lost := gone(written, api)) and "--break" not in sys.argv:
        sys.exit(
            "These leave the public API or change it:\n  "
            + "\n  ".join(lost)
            + "\nKeep them and warn, as docs/python-api.md says; with --break where the rule allows it."
        )
    FILE.write_text("\n".join(api) + "\n")
