"""`envsdk init NAME`: a package with an environment of your own, which works as it is."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated

from envsdk.base import registry
from envsdk.base.display.model_command import command_of
from envsdk.base.display.terminal import say
from envsdk.base.settings.options import Argument, Option, Options
from envsdk.base.store.atomic import new_folder
from envsdk.contracts.failures import ConfigurationError

_SUFFIX = ".txt"
"""Suffix of the templates: nothing that reads Python or TOML mistakes them for its own."""


def names_for(name: str) -> dict[str, str]:
    """What the templates call things: `my_env` makes package my_env, class MyEnv and id my_env/MyEnv-v1.

    Raises ConfigurationError for a name that cannot be a package's.
    """
    package = name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", package) or keyword.iskeyword(package):
        wanted = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
        usable = re.fullmatch(r"[a-z][a-z0-9_]*", wanted) and not keyword.iskeyword(wanted)
        hint = f", such as {wanted if usable else 'my_env'}"
        raise ConfigurationError(
            f"{name!r} cannot be the name of a package: use lower-case letters, digits, _{hint}"
        )
    class_name = "".join(part.capitalize() for part in package.split("_"))
    return {
        "package": package,
        "project": package.replace("_", "-"),
        "class_name": class_name,
        "title": " ".join(part.capitalize() for part in package.split("_") if part),
        "env_id": f"{package}/{class_name}-v1",
    }


def scaffold(name: str, folder: Path) -> dict[str, str]:
    """Write the package `name` into `folder`, whole or not at all; returns the names used.

    Raises:
        ConfigurationError: The name cannot be used, or the folder holds something.
        StorageError: It cannot be written.
    """
    names = names_for(name)
    if names["env_id"] in registry.known_ids():
        raise ConfigurationError(f"there is already an environment {names['env_id']}: choose another name")
    if importlib.util.find_spec(names["package"]) is not None and not folder.exists():
        raise ConfigurationError(f"there is already a Python module {names['package']}: choose another name")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"{folder} is there already: name another folder with --dir")
    with new_folder(folder) as written:
        _write(written, names)
    return names


def _write(folder: Path, names: dict[str, str]) -> None:
    templates = Path(str(files("envsdk") / "scaffold"))
    for template in sorted(templates.rglob(f"*{_SUFFIX}")):
        place = str(template.relative_to(templates)).removesuffix(_SUFFIX)
        place = re.sub(r"^package/", f"{names['package']}/", place)
        place = place.replace("test_env.py", f"test_{names['package']}.py")
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(Template(template.read_text()).substitute(names))


class InitOptions(Options):
    """What `envsdk init` takes."""

    name: Annotated[str, Argument("NAME")]
    """Name of the package, such as my_env."""
    folder: Annotated[Path | None, Option("--dir", "-d", metavar="DIR")] = None
    """Where it goes; the folder NAME when absent."""


def command(options: InitOptions) -> None:
    """Make a package with an environment of your own: its code, tests and a training file.

    It passes every check as it is; installed, its environment is known to train, collect and check.
    """
    folder = options.folder or Path(options.name)
    names = scaffold(options.name, folder)
    say(f"{folder}: the environment {names['env_id']}. Next:\n")
    say(f"  cd {folder}")
    say("  python -m pip install -e .")
    say(f"  envsdk check {names['env_id']}")
    say(f"  envsdk envs --play {names['env_id']}")
    say("  envsdk train train.yaml")
    say("  envsdk view runs")


app, main = command_of(InitOptions, command, name="envsdk init")

if __name__ == "__main__":
    sys.exit(main())
