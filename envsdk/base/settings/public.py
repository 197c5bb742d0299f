"""Public names of a package: imported when they are first used, and warned of before they go.

    _NAMES = names_in_stub(__file__)
    __all__ = sorted(_NAMES)
    __getattr__, __dir__ = public_names(__name__, _NAMES)

The package's `__init__.pyi` imports each name from its module: type checkers read it, and so does this. An
import of the package does not load torch or Ray before a name needs them. The rule for names that go is in
docs/python-api.md.
"""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from envsdk.base.settings.extras import missing_package


@dataclass(frozen=True, slots=True, kw_only=True)
class Deprecated:
    """A public name that goes. Until then its use works as before and warns."""

    module: str
    """Where it is still found."""
    instead: str
    """What to use: shown with the warning."""
    since: str
    """Version that warns first."""
    removed_in: str
    """Version without it, at least one minor version after `since`."""


def names_in_stub(file: str) -> dict[str, str]:
    """The names that the stub of a package imports, and the module of each. `file`: its `__init__.py`."""
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = (node for node in stub.body if isinstance(node, ast.ImportFrom))
    return {each.name: node.module for node in imports if node.module for each in node.names}


def public_names(
    package: str,
    names: Mapping[str, str],
    deprecated: Mapping[str, Deprecated] | None = None,
    *,
    modules: Sequence[str] = (),
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose public `names` lie in the modules given.

    `modules` are public ones of the package itself, which need no import of their own. Where a name needs a
    package of an extra that is not installed, ModuleNotFoundError says which extra.
    """
    going = deprecated or {}

    def get(name: str) -> Any:
        if name in going:
            gone = going[name]
            warnings.warn(
                f"{package}.{name} is deprecated since envsdk {gone.since} and goes in {gone.removed_in}: "
                f"use {gone.instead}",
                DeprecationWarning,
                stacklevel=2,
            )
            return getattr(import_module(gone.module), name)
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            found = getattr(import_module(names[name]), name)
        except ModuleNotFoundError as error:
            if (missing := missing_package(error)) is None:
                raise
            raise ModuleNotFoundError(f"{package}.{name}: {missing}", name=error.name) from error
        setattr(sys.modules[package], name, found)
        return found

    def names_of_package() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names, *modules})

    return get, names_of_package
