"""YAML files and overrides in, a `RunConfig` out.

    find the file -> read it and what it extends -> merge -> overrides -> ${...}
        -> names of ROLL or Trinity-RFT -> prompts and rewards -> what environments know -> types -> checks

OmegaConf merges and interpolates; nothing is executed. Every key remembers where it was written,
for error messages and for `explain`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError

from envsdk.config.checks import check, machine_problems
from envsdk.config.env_defaults import fill_in
from envsdk.config.foreign.others import said_of_other_project
from envsdk.config.foreign.row import Dialect
from envsdk.config.foreign.translation import Translation, translate
from envsdk.config.models import RunConfig
from envsdk.config.presets import with_preset
from envsdk.config.rlvr import count_rows, expand
from envsdk.config.roll.defaults import DEFAULTS, files_of
from envsdk.config.roll.dialect import ROLL
from envsdk.config.roll.tags import TAGS_FILE, missing_tags
from envsdk.config.trinity.dialect import TRINITY, is_trinity_file
from envsdk.config.trinity.tasks import fetch_data_sets
from envsdk.failures import ConfigurationError
from envsdk.settings.nearest import nearest
from envsdk.settings.problems import KeyPath, Problem, describe, dotted
from envsdk.settings.validation import problems_in
from envsdk.store.hub import hub_folder, is_hub_name

EXTENDS = "extends"
"""Key of a file that names the file it starts from."""

OVERRIDE = "override"
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration with its history."""

    config: RunConfig
    provenance: Mapping[str, str]
    """Per key, dotted: `FILE:LINE`, `override` or `default`."""
    path: Path
    """The file that was asked for."""
    sources: Mapping[Path, str]
    """The text of that file and of those it extends, as their authors wrote it."""
    without_effect: Mapping[str, tuple[str, str]]
    """Keys that are accepted and change nothing, dotted: where each was written, and why."""
    remarks: Mapping[str, tuple[str, str]]
    """Keys of another project whose values were converted: where each was written, and how."""
    dialect: str
    """The project whose keys `remarks` has."""
    preset_notes: Sequence[str]
    """What the preset replaces, in one line each; empty without one."""
    machine_notes: Sequence[str]
    """What this machine lacks for the run; empty unless it was only to be explained."""

    def resolved_yaml(self) -> str:
        """Every key with its value, as YAML that `load_config` reads back to the same `config`."""
        text: str = yaml.safe_dump(
            self.config.as_dict(), sort_keys=False, allow_unicode=True, default_flow_style=False
        )
        return text


def load_config(
    source: str | Path,
    overrides: Sequence[str] = (),
    *,
    preset: str | None = None,
    for_training: bool = True,
    to_explain: bool = False,
) -> LoadedConfig:
    """Read `source` (see `find_config`), apply `key=value` overrides in order, validate.

    A `preset` (see `presets.py`) replaces what the file says; overrides replace what it sets.
    Not `for_training`: what only training forbids is allowed, such as an engine that takes no weights.
    `to_explain`: what this machine lacks, such as the model's folder, is a note rather than a problem.
    Raises ConfigurationError, whose message lists every problem.
    """
    path = find_config(source)
    reading = _Reading()
    merged = reading.read(path)
    plain: Any = OmegaConf.to_container(merged, resolve=False)
    dialect = TRINITY if is_trinity_file(plain) else ROLL
    for override in overrides:
        reading.override(merged, override)
    variables = _variables(merged) | reading.shared_keys
    data = _resolve(merged, dialect, reading, str(source))
    fetches = preset is None and not to_explain
    unfetched = fetch_data_sets(data) if fetches and dialect is TRINITY else {}
    translation = _translate(data, dialect, variables, reading, str(source))
    translation.pending |= unfetched
    data = translation.data
    said: list[str] = []
    if preset is not None:
        applied = with_preset(preset, data, lambda key: reading.written_at(key) == OVERRIDE)
        data, said = applied.data, [*applied.said]
        changed = [key for key in applied.changed if reading.written_at(key) != OVERRIDE]
        reading.added(dict.fromkeys(changed, f"preset {preset}"))
        translation.pending = {
            key: each for key, each in translation.pending.items() if not applied.replaces(key)
        }
    if for_training and not to_explain:
        translation.pending |= _fetched(data.get("pretrain"))
    if "exp_name" not in data:
        data["exp_name"] = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-.") or "run"
        reading.added({("exp_name",): "the file's name"})
    expansion = expand(data, count_rows=count_rows, leaves_out_empty=preset is not None)
    if expansion.left_out:
        said.append(f"left out, as no row is theirs: {', '.join(expansion.left_out)}")
    data = expansion.data
    reading.added(expansion.origins)
    reading.added(fill_in(data))
    config, machine_notes = _validate(
        data,
        reading,
        str(source),
        pending=translation.pending,
        for_training=for_training,
        to_explain=to_explain,
    )
    written = set(leaf_paths(data))
    return LoadedConfig(
        config=config,
        provenance={
            dotted(leaf): reading.origin(leaf) if leaf in written else DEFAULT
            for leaf in leaf_paths(config.as_dict())
        },
        path=path,
        sources=reading.sources,
        without_effect={
            dotted(ignored.path): (reading.origin(ignored.path), ignored.reason)
            for ignored in translation.ignored
        },
        dialect=dialect.name,
        remarks={dotted(key): (reading.origin(key), remark) for key, remark in translation.remarks.items()},
        preset_notes=said,
        machine_notes=machine_notes,
    )


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


def leaf_paths(data: Mapping[str, Any], prefix: KeyPath = ()) -> Iterator[KeyPath]:
    """The keys of nested mappings that hold something else than a mapping with keys."""
    for key, value in data.items():
        path: KeyPath = (*prefix, key)
        if isinstance(value, Mapping) and value:
            yield from leaf_paths(value, path)
        else:
            yield path


def leaves(data: Mapping[str, Any]) -> dict[KeyPath, Any]:
    """The values at `leaf_paths`."""
    found: dict[KeyPath, Any] = {}
    for path in leaf_paths(data):
        value: Any = data
        for part in path:
            value = value[part]
        found[path] = value
    return found


class _Reading:
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
            raise ConfigurationError(f"{_display(path)}: `{EXTENDS}` goes in a circle: {chain}")
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigurationError(
                f"{path} is no UTF-8 text: {error.reason} at byte {error.start}"
            ) from error
        if not self.sources and (said := said_of_other_project(path.suffix, text)):
            raise ConfigurationError(f"{_display(path)} {said}")
        self.sources[resolved] = text
        own, tree = _parse(text, path)
        base = self._read_base(own, path)
        self._record(tree, (), _display(path))
        for key in [each for each in self._origins if each[0] in (EXTENDS, DEFAULTS)]:
            del self._origins[key]
        try:
            merged = OmegaConf.merge(base, own) if base is not None else own
        except OmegaConfBaseException as error:
            raise ConfigurationError(f"{_display(path)}: {_first_line(error)}") from error
        assert isinstance(merged, DictConfig)
        return merged

    def _read_base(self, own: DictConfig, path: Path) -> DictConfig | None:
        if DEFAULTS in own:
            return self._read_defaults(own, path)
        if EXTENDS not in own:
            return None
        name = own.pop(EXTENDS)
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"{_display(path)}: `{EXTENDS}` must be the name of one YAML file")
        neighbor = path.parent / name
        try:
            return self.read(neighbor if neighbor.is_file() else find_config(name))
        except ConfigurationError as error:
            if neighbor.is_file() or Path(name).parent == Path():
                raise ConfigurationError(f"{_display(path)}: `{EXTENDS}: {name}`: {error}") from error
            raise ConfigurationError(
                f"{_display(path)}: `{EXTENDS}: {name}`: there is no file {neighbor}"
            ) from error

    def _read_defaults(self, own: DictConfig, path: Path) -> DictConfig | None:
        try:
            names = files_of(OmegaConf.to_container(own.pop(DEFAULTS), resolve=False))
        except ValueError as error:
            raise ConfigurationError(f"{_display(path)}: `{DEFAULTS}`: {error}") from error
        if EXTENDS in own:
            raise ConfigurationError(
                f"{_display(path)}: has both `{EXTENDS}` and `{DEFAULTS}`, which do the same; keep one"
            )
        merged: Any = OmegaConf.create()
        for name in names:
            neighbor = path.parent / name
            if not neighbor.is_file():
                raise ConfigurationError(
                    f"{_display(path)}: `{DEFAULTS}`: there is no file {_display(neighbor)}; put it there,"
                    " or leave the entry out"
                )
            shared = self.read(neighbor)
            self.shared_keys |= {str(key) for key in shared}
            merged = OmegaConf.merge(merged, shared)
        assert isinstance(merged, DictConfig)
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
        try:
            single = OmegaConf.to_container(OmegaConf.from_dotlist([override]), resolve=False)
            merged.merge_with_dotlist([override])
        except (OmegaConfBaseException, yaml.YAMLError, ValueError, TypeError) as error:
            raise ConfigurationError(f"override `{override}`: {_first_line(error)}") from error
        assert isinstance(single, dict)
        self._record_override(single, ())

    def _record_override(self, data: Mapping[Any, Any], prefix: KeyPath) -> None:
        for key, value in data.items():
            path = (*prefix, key)
            self._set(path, OVERRIDE, value)
            if isinstance(value, Mapping):
                self._record_override(value, path)


def _parse(text: str, path: Path) -> tuple[DictConfig, yaml.Node | None]:
    """The text as OmegaConf and as a tree that knows its lines."""
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        if tree is None:
            return OmegaConf.create(), None
        parsed = OmegaConf.create(text) if isinstance(tree, yaml.MappingNode) else None
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        tab = "; indent with spaces" if "'\\t'" in (error.problem or "") else ""
        raise ConfigurationError(f"{_display(path)}{line}: {error.problem or error.context}{tab}") from error
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigurationError(f"{_display(path)}: {_first_line(error)}") from error
    if not isinstance(parsed, DictConfig) or not all(isinstance(key, str) for key in parsed):
        raise ConfigurationError(
            f"{_display(path)}: the file must be a mapping of keys, such as `max_steps: 100`"
        )
    return parsed, tree


def _variables(merged: DictConfig) -> set[str]:
    """Top-level keys that a `${...}` reads."""
    texts = _texts(OmegaConf.to_container(merged, resolve=False))
    return {name for text in texts for name in re.findall(r"\$\{\s*([A-Za-z_]\w*)\s*[.}\[]", text)}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for below in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(below)


def _translate(
    data: Mapping[str, Any], dialect: Dialect, variables: set[str], reading: _Reading, source: str
) -> Translation:
    """The file in our keys, with the tags that it names and does not define."""
    translation = translate(
        data,
        dialect,
        variables=variables,
        known=RunConfig.model_fields,
        is_ours=_is_ours,
        is_override=lambda key: reading.written_at(key) == OVERRIDE,
    )
    if translation.problems:
        raise ConfigurationError(describe(translation.problems, source=source, origin=reading.origin))
    reading.added(
        {
            ours: f"{reading.origin(theirs)} as {dotted(theirs)}"
            for ours, theirs in translation.sources.items()
            if ours != theirs
        }
    )
    reading.added(dict.fromkeys(translation.defaults, f"{dialect.name}'s default"))
    for tag, env in missing_tags(translation.data).items():
        tags = translation.data.setdefault("custom_envs", {})
        if isinstance(tags, dict):
            tags[tag] = deepcopy(dict(env))
            reading.added({("custom_envs", tag): TAGS_FILE})
    return translation


def _fetched(model: Any) -> dict[KeyPath, str]:
    """Download the model that a name of the hub's stands for; what stands against it, by key."""
    if not isinstance(model, str) or not is_hub_name(model):
        return {}
    try:
        hub_folder(model)
    except ConfigurationError as error:
        return {("pretrain",): str(error)}
    return {}


def _is_ours(path: KeyPath) -> bool:
    """Whether the configuration has this key, or takes any in its section."""
    model: Any = RunConfig
    for part in path:
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            return True
        if part not in model.model_fields:
            return False
        model = model.model_fields[str(part)].annotation
    return True


def _resolve(merged: DictConfig, dialect: Dialect, reading: _Reading, source: str) -> dict[str, Any]:
    try:
        container = OmegaConf.to_container(merged, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        key = str(error.full_key or "")
        if key and dialect.is_without_effect(tuple(key.split("."))):
            OmegaConf.update(merged, key, None)
            return _resolve(merged, dialect, reading, source)
        where = reading.origin(tuple(key.split(".")))
        place = f" ({where})" if where else ""
        raise ConfigurationError(f"{source}: {key}{place}: {_interpolation_problem(error)}") from error
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def _interpolation_problem(error: OmegaConfBaseException) -> str:
    """OmegaConf's words, or plainer ones where a variable of the environment is not set."""
    variable = re.search(r"Environment variable '(\w+)' not found", str(error))
    if variable is None:
        return _first_line(error)
    name = variable[1]
    return f"the environment variable {name} is not set; `${{oc.env:{name},DEFAULT}}` has a default"


def _validate(
    data: dict[str, Any],
    reading: _Reading,
    source: str,
    *,
    pending: Mapping[KeyPath, str],
    for_training: bool,
    to_explain: bool,
) -> tuple[RunConfig, Sequence[str]]:
    """The typed configuration, and notes on what this machine lacks where it is only explained; problems of
    the types and, where that is possible, of the checks together."""
    problems = list(_unprintable(data))
    if problems:
        raise ConfigurationError(describe(problems, source=source, origin=reading.origin))
    config: RunConfig | None = None
    try:
        config = RunConfig.model_validate(data)
    except ValidationError as error:
        problems += problems_in(error, RunConfig)
        unknown = [details["loc"] for details in error.errors() if details["type"] == "extra_forbidden"]
        if len(unknown) == len(error.errors()):
            config = RunConfig.model_validate(_without(data, unknown))
    notes: list[str] = []
    if config is not None:
        problems += check(config, for_training=for_training)
        problems = [problem for problem in problems if problem.path not in pending]
        lacking = [
            *(Problem(path, message) for path, message in pending.items()),
            *(
                problem
                for problem in machine_problems(config, for_training=for_training)
                if problem.path not in pending
            ),
        ]
        if to_explain:
            notes = [f"{dotted(problem.path)}: {problem.message}" for problem in lacking]
        else:
            problems += lacking
    if problems or config is None:
        hint = (
            ""
            if data.keys() - {"exp_name"}
            else f"\nAn empty file; one that begins with `{EXTENDS}: agentic_async.yaml` runs."
        )
        raise ConfigurationError(describe(problems, source=source, origin=reading.origin) + hint)
    return config, notes


def _unprintable(value: Any, path: KeyPath = ()) -> Iterator[Problem]:
    """Texts that no file name, no program and no table could hold."""
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _unprintable(below, (*path, key))
    elif isinstance(value, list):
        for index, below in enumerate(value):
            yield from _unprintable(below, (*path, index))
    elif isinstance(value, str) and "\0" in value:
        yield Problem(path, "holds the character NUL, which ends a text wherever it is used; leave it out")


def _without(data: dict[str, Any], paths: Sequence[KeyPath]) -> dict[str, Any]:
    copy = deepcopy(data)
    for path in paths:
        parent: Any = copy
        for part in path[:-1]:
            parent = parent[part]
        del parent[path[-1]]
    return copy


def _display(path: Path) -> str:
    """Short enough to read: relative to the working directory where it is below it."""
    resolved = path.resolve()
    return str(resolved.relative_to(Path.cwd())) if resolved.is_relative_to(Path.cwd()) else str(path)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
