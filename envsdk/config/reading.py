"""Reads a file and those it extends, and remembers where each key was written."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import ConfigIndexError, GrammarParseError, OmegaConfBaseException

from envsdk.base.settings.nearest import nearest
from envsdk.base.settings.problems import KeyPath
from envsdk.config.foreign.row import read_data
from envsdk.contracts.failures import ConfigurationError

EXTENDS = "extends"
"""Key of a file that names the file it starts from."""

OVERRIDE = "override"


def find_config(source: str | Path) -> Path:
    """The file that `source` means.

    A path is taken as it is. A bare file name is looked up in the working directory, then among the
    shipped examples; `.yaml` may be left out. Raises ConfigurationError.
    """
    path = Path(source).expanduser()
    for candidate in (path, path.with_name(f"{path.name}.yaml") if path.name else path):
        if candidate.is_file():
            return candidate
        if candidate.parent == Path() and (examples_folder() / candidate.name).is_file():
            return examples_folder() / candidate.name
    if path.is_dir():
        raise ConfigurationError(f"{source} is a folder; name a YAML file")
    if path.parent != Path():
        raise ConfigurationError(f"there is no file {source}")
    examples = {example.stem: example.name for example in examples_folder().glob("*.yaml")}
    match = nearest(path.stem, examples)
    hint = (
        f"did you mean `{examples[match]}`?"
        if match
        else f"shipped examples: {', '.join(sorted(examples.values()))}"
    )
    raise ConfigurationError(
        f"there is no file {source} in {Path.cwd()}, and no shipped example of that name; {hint}"
    )


def examples_folder() -> Path:
    """The shipped examples: inside the package when installed, next to it in a checkout."""
    package = Path(str(files("envsdk")))
    installed = package / "examples"
    return installed if installed.is_dir() else package.parent / "examples"


class Reading:
    """Files and overrides read so far, and where each key was last written."""

    def __init__(self) -> None:
        self.sources: dict[Path, str] = {}
        self._origins: dict[KeyPath, str] = {}
        self.shared_keys: set[str] = set()
        """Top-level keys of files that are named under `defaults`."""

    def origin(self, path: KeyPath) -> str:
        """Where the key, or else the innermost written section around it, was written; empty if nowhere."""
        for end in range(len(path), 0, -1):
            if path[:end] in self._origins:
                return self._origins[path[:end]]
        return ""

    def written_at(self, path: KeyPath) -> str:
        """Where the key itself was written; empty if nowhere."""
        return self._origins.get(path, "").partition(" as ")[0]

    def added(self, origins: Mapping[KeyPath, str]) -> None:
        """Remember keys that follow from others."""
        self._origins |= origins

    def read(self, path: Path) -> DictConfig:
        """The file merged over what it extends."""
        resolved = path.resolve()
        if resolved in self.sources:
            chain = " -> ".join(source.name for source in (*self.sources, resolved))
            raise ConfigurationError(f"{display(path)}: `{EXTENDS}` goes in a circle: {chain}")
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigurationError(
                f"{path} is no UTF-8 text: {error.reason} at byte {error.start}"
            ) from error
        if not self.sources and (said := said_of_other_project(path.suffix, text)):
            raise ConfigurationError(f"{display(path)} {said}")
        self.sources[resolved] = text
        own, tree = _parse(text, path)
        base = self._read_base(own, path)
        self._record(tree, (), display(path))
        for key in [each for each in self._origins if each[0] in (EXTENDS, DEFAULTS)]:
            del self._origins[key]
        try:
            return own if base is None else merged_over(base, own)
        except (OmegaConfBaseException, TypeError) as error:
            raise ConfigurationError(f"{display(path)}: {plain_words(error)}") from error

    def _read_base(self, own: DictConfig, path: Path) -> DictConfig | None:
        if DEFAULTS in own:
            return self._read_defaults(own, path)
        if EXTENDS not in own:
            return None
        name = own.pop(EXTENDS)
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"{display(path)}: `{EXTENDS}` must be the name of one YAML file")
        neighbor = path.parent / name
        try:
            return self.read(neighbor if neighbor.is_file() else find_config(name))
        except ConfigurationError as error:
            if neighbor.is_file() or Path(name).parent == Path():
                raise ConfigurationError(f"{display(path)}: `{EXTENDS}: {name}`: {error}") from error
            raise ConfigurationError(
                f"{display(path)}: `{EXTENDS}: {name}`: there is no file {neighbor}"
            ) from error

    def _read_defaults(self, own: DictConfig, path: Path) -> DictConfig | None:
        try:
            names = files_of(OmegaConf.to_container(own.pop(DEFAULTS), resolve=False))
        except ValueError as error:
            raise ConfigurationError(f"{display(path)}: `{DEFAULTS}`: {error}") from error
        if EXTENDS in own:
            raise ConfigurationError(
                f"{display(path)}: has both `{EXTENDS}` and `{DEFAULTS}`, which do the same; keep one"
            )
        merged = OmegaConf.create()
        for name in names:
            neighbor = path.parent / name
            if not neighbor.is_file():
                raise ConfigurationError(
                    f"{display(path)}: `{DEFAULTS}`: there is no file {display(neighbor)}; put it there,"
                    " or leave the entry out"
                )
            shared = self.read(neighbor)
            self.shared_keys |= {str(key) for key in shared}
            merged = merged_over(merged, shared)
        return merged

    def _record(self, node: yaml.Node | None, path: KeyPath, file: str) -> None:
        if isinstance(node, yaml.MappingNode):
            for key_node, value_node in node.value:
                if key_node.tag == "tag:yaml.org,2002:merge":
                    anchored = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                    for each in anchored:
                        self._record(each, path, file)
            for key_node, value_node in node.value:
                if isinstance(key_node, yaml.ScalarNode) and key_node.tag != "tag:yaml.org,2002:merge":
                    self._set((*path, key_node.value), f"{file}:{key_node.start_mark.line + 1}", value_node)
                    self._record(value_node, (*path, key_node.value), file)
        elif isinstance(node, yaml.SequenceNode):
            for i, item in enumerate(node.value):
                self._origins[(*path, i)] = f"{file}:{item.start_mark.line + 1}"
                self._record(item, (*path, i), file)

    def _set(self, path: KeyPath, origin: str, value: object) -> None:
        """What is no section replaces all that was written below the key."""
        if not isinstance(value, Mapping | yaml.MappingNode):
            for below in [each for each in self._origins if each[: len(path)] == path]:
                del self._origins[below]
        self._origins[path] = origin

    def override(self, merged: DictConfig, override: str) -> None:
        """Apply one `key=value`."""
        key, separator, _ = override.partition("=")
        if not separator or not key.strip() or key != key.strip():
            raise ConfigurationError(
                f"override `{override}`: write it as key=value, without spaces around `=`"
            )
        if key.startswith(("+", "~", "-")):
            raise ConfigurationError(
                f"override `{override}`: a key starts with a letter; options go before FILE"
            )
        if key == EXTENDS:
            raise ConfigurationError(f"override `{override}`: `{EXTENDS}` only works in a file")
        self._record_override(apply_item(merged, override, called="override"), ())

    def _record_override(self, data: Mapping[Any, Any], prefix: KeyPath) -> None:
        for key, value in data.items():
            path = (*prefix, key)
            self._set(path, OVERRIDE, value)
            if isinstance(value, Mapping):
                self._record_override(value, path)


def apply_item(config: DictConfig, item: str, *, called: str) -> dict[Any, Any]:
    """Apply one `key=value` to `config`; returns it as sections. ConfigurationError calls the item so."""
    key = item.partition("=")[0]
    try:
        single = OmegaConf.from_dotlist([item])
        there = OmegaConf.select(config, key, throw_on_resolution_failure=False)
        if not _merges_into(there, OmegaConf.select(single, key, throw_on_resolution_failure=False)):
            OmegaConf.update(config, key, None)
        config.merge_with_dotlist([item])
    except (OmegaConfBaseException, yaml.YAMLError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{called} `{item}`: {plain_words(error)}") from error
    sections = OmegaConf.to_container(single, resolve=False)
    assert isinstance(sections, dict)
    return sections


def merged_over(base: DictConfig, own: DictConfig) -> DictConfig:
    """`own` over `base`. A list replaces a section, and a section a list: validation names the wrong one."""
    _merges_into(base, own)
    merged = OmegaConf.merge(base, own)
    assert isinstance(merged, DictConfig)
    return merged


def _merges_into(there: Any, value: Any) -> bool:
    """False for a list and a section. Of two sections, the keys with one of each are emptied in `there`."""
    if isinstance(there, DictConfig) and isinstance(value, DictConfig):
        for key in map(str, there.keys() & value.keys()):
            is_open = any(
                OmegaConf.is_interpolation(each, key) or OmegaConf.is_missing(each, key)
                for each in (there, value)
            )
            if not is_open and not _merges_into(there[key], value[key]):
                there[key] = None
        return True
    return not {type(there), type(value)} >= {DictConfig, ListConfig}


def _parse(text: str, path: Path) -> tuple[DictConfig, yaml.Node | None]:
    """The text as OmegaConf and as a tree that knows its lines."""
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        if tree is None:
            return OmegaConf.create(), None
        parsed = OmegaConf.create(text) if isinstance(tree, yaml.MappingNode) else None
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigurationError(f"{display(path)}{line_of(error)}: {plain_words(error)}") from error
    if not isinstance(parsed, DictConfig) or not all(isinstance(key, str) for key in parsed):
        raise ConfigurationError(
            f"{display(path)}: the file must be a mapping of keys, such as `max_steps: 100`"
        )
    return parsed, tree


def display(path: Path) -> str:
    """Short enough to read: relative to the working directory where it is below it."""
    resolved = path.resolve()
    return str(resolved.relative_to(Path.cwd())) if resolved.is_relative_to(Path.cwd()) else str(path)


def line_of(error: Exception) -> str:
    """`:LINE` of an error of YAML's; empty where it has none."""
    mark = getattr(error, "problem_mark", None)
    return f":{mark.line + 1}" if mark else ""


def plain_words(error: Exception) -> str:
    """An error of YAML's or OmegaConf's in one line, with what to write instead."""
    if isinstance(error, yaml.MarkedYAMLError):
        advice = (
            "indent with spaces"
            if "'\\t'" in (error.problem or "")
            else "a list is [a, b], a section {key: value}, and text with such characters stands in quotes"
        )
        return f"is no valid YAML, {error.problem or error.context}; {advice}"
    line = next(iter(str(error).splitlines()), type(error).__name__)
    if isinstance(error, ConfigIndexError) or line.startswith("invalid literal for int() with base 10"):
        return "the list has no such entry; replace all of it, as in KEY=[a, b]"
    if isinstance(error, GrammarParseError):
        return f"has a `${{` that cannot be read, {line}; write `${{key}}` or `${{oc.env:NAME}}`"
    return line


DEFAULTS = "defaults"
_HERE = ("_here_", "_global_")


def files_of(entries: Any) -> Sequence[str]:
    """Names of the files of a `defaults:` list, `.yaml` included, in the order they are merged in.

    >>> files_of(["../config/traj_envs@_here_", "_self_"])
    ['../config/traj_envs.yaml']

    Raises:
        ValueError: The list asks for another of Hydra's features.
    """
    if not isinstance(entries, list):
        raise ValueError("takes a list of files, such as `- ../config/envs@_here_`")
    names = []
    for entry in entries:
        if entry == "_self_":
            continue
        if not isinstance(entry, str):
            raise ValueError(f"{entry}: groups and options of Hydra's are not there; name the file itself")
        name, _, package = entry.partition("@")
        if package and package not in _HERE:
            raise ValueError(f"{entry}: only the package _here_ is there; write `{name}@_here_`")
        names.append(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    return names


OTHERS = read_data("envsdk.config.foreign", "others.toml")
_OUR_KEYS = r"(custom_envs|train_env_manager|rewards|actor_train|actor_infer|extends):"
_SCRIPTS = (".sh", ".bash", ".slurm", ".py", ".toml", ".ipynb")


def said_of_other_project(suffix: str, text: str) -> str | None:
    """What is said of a file of another project, or of a script; None where it may be one of ours."""
    is_script = suffix in _SCRIPTS
    if not is_script and re.search(rf"^{_OUR_KEYS}", text, re.M):
        return None
    for name, known in OTHERS.items():
        begins = rf"^({known['line']})"
        if re.search(known["call"] if is_script else begins, text, re.M if is_script else re.M | re.S):
            what = "script" if is_script else "file"
            return (
                f"is a {what} for {name}. Its settings have other names here, which docs/coming-from.md "
                "lists; start from a shipped example, such as rlvr_async.yaml or agentic_async.yaml"
            )
    return "is a script: give the YAML file that it names" if is_script else None
