"""Public names of a package, imported when they are first used.

    _NAMES = names_in_stub(__file__)
    __all__ = sorted(_NAMES)
    __getattr__, __dir__ = public_names(__name__, _NAMES)

The package's `__init__.pyi` imports each name from its module: type checkers read it, and so does this. An
import of the package does not load torch or Ray before a name needs them.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from envsdk.base.settings.extras import missing_package


def names_in_stub(file: str) -> dict[str, str]:
    """The names that the stub of a package imports, and the module of each. `file`: its `__init__.py`."""
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = (node for node in stub.body if isinstance(node, ast.ImportFrom))
    return {each.name: node.module for node in imports if node.module for each in node.names}


def public_names(
    package: str, names: Mapping[str, str], *, modules: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose public `names` lie in the modules given.

    `modules` are public ones of the package itself, which need no import of their own. Where a name needs a
    package of an extra that is not installed, ModuleNotFoundError says which extra.
    """

    def get(name: str) -> Any:
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
