"""YAML files and overrides in, a `RunConfig` out.

    find the file -> read it and what it extends -> merge -> overrides -> ${...}
        -> names of other projects -> prompts and rewards -> what environments know -> types -> checks

OmegaConf merges and interpolates; nothing is executed. Every key remembers where it was written,
for error messages and for `explain`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from envsdk.base.settings.nearest import suggest
from envsdk.base.settings.problems import KeyPath, Problem, describe, dotted, leaves
from envsdk.base.settings.validation import problems_in
from envsdk.base.store.hub import hub_folder, is_model_name
from envsdk.config.checks import check
from envsdk.config.env_defaults import fill_in
from envsdk.config.foreign.dialect import Dialect, dialect_of
from envsdk.config.foreign.translation import Translation, remove, translate
from envsdk.config.machine_checks import machine_problems
from envsdk.config.models import RunConfig
from envsdk.config.presets import with_preset
from envsdk.config.reading import EXTENDS, OVERRIDE, Reading, find_config, plain_words
from envsdk.config.rlvr import count_rows, expand
from envsdk.config.start_checks import start_problems
from envsdk.contracts.failures import ConfigurationError

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
    reading = Reading()
    merged = reading.read(path)
    plain: Any = OmegaConf.to_container(merged, resolve=False)
    dialect, is_theirs = dialect_of(plain)
    for override in overrides:
        reading.override(merged, override)
    variables = _variables(merged) | reading.shared_keys
    data = _resolve(merged, dialect, reading, str(source))
    fetches = preset is None and not to_explain
    unfetched = dialect.fetch(data) if fetches and is_theirs else {}
    translation = _translate(data, dialect, is_theirs, variables, reading, str(source))
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
        translation.pending |= _fetched(data)
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
    written = dict(leaves(data))
    return LoadedConfig(
        config=config,
        provenance={
            dotted(leaf): reading.origin(leaf) if leaf in written else DEFAULT
            for leaf, _ in leaves(config.as_dict())
        },
        path=path,
        sources=reading.sources,
        without_effect={dotted(key): (reading.origin(key), why) for key, why in translation.ignored.items()},
        dialect=dialect.name,
        remarks={dotted(key): (reading.origin(key), remark) for key, remark in translation.remarks.items()},
        preset_notes=said,
        machine_notes=machine_notes,
    )


def _variables(merged: DictConfig) -> set[str]:
    """Top-level keys that a `${...}` reads."""
    values = leaves(OmegaConf.to_container(merged, resolve=False), in_lists=True)
    texts = (value for _, value in values if isinstance(value, str))
    return {name for text in texts for name in re.findall(r"\$\{\s*([A-Za-z_]\w*)\s*[.}\[]", text)}


def _translate(
    data: Mapping[str, Any],
    dialect: Dialect,
    is_theirs: bool,
    variables: set[str],
    reading: Reading,
    source: str,
) -> Translation:
    """The file in our keys, with the tags that it names and does not define."""
    translation = translate(
        data,
        dialect,
        is_theirs=is_theirs,
        variables=variables,
        known=RunConfig.model_fields,
        our_keys=_our_keys,
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


def _fetched(data: Mapping[str, Any]) -> dict[KeyPath, str]:
    """Download or make the models that names stand for; what stands against it, by key."""
    models: dict[KeyPath, Any] = {("pretrain",): data.get("pretrain")}
    runs = {"runs", str(data.get("output_dir", "runs"))}
    for section in ("teachers", "opponents"):
        named = data.get(section)
        for name, model in named.items() if isinstance(named, Mapping) else ():
            if isinstance(model, Mapping) and str(Path(str(model.get("pretrain"))).parent) not in runs:
                models[section, name, "pretrain"] = model.get("pretrain")
    problems: dict[KeyPath, str] = {}
    for path, model in models.items():
        if isinstance(model, str) and is_model_name(model):
            try:
                hub_folder(model)
            except ConfigurationError as error:
                problems[path] = str(error)
    return problems


def _our_keys(section: KeyPath) -> Collection[str] | None:
    """The configuration's keys in a section; None where it takes any."""
    fields: Mapping[str, Any] | None = RunConfig.model_fields
    for part in section:
        if fields is None or part not in fields:
            return None if fields is None else ()
        fields = getattr(fields[str(part)].annotation, "model_fields", None)
    return fields


def _resolve(merged: DictConfig, dialect: Dialect, reading: Reading, source: str) -> dict[str, Any]:
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
        return plain_words(error)
    name = variable[1]
    return f"the environment variable {name} is not set; `${{oc.env:{name},DEFAULT}}` has a default"


def _validate(
    data: dict[str, Any],
    reading: Reading,
    source: str,
    *,
    pending: Mapping[KeyPath, str],
    for_training: bool,
    to_explain: bool,
) -> tuple[RunConfig, Sequence[str]]:
    """The typed configuration, and notes on what this machine lacks where it is only explained; problems of
    the types and, where that is possible, of the checks together."""
    problems = [*_unprintable(data), *_unknown_tags(data, reading)]
    if problems:
        raise ConfigurationError(describe(problems, source=source, origin=reading.origin))
    config: RunConfig | None = None
    try:
        config = RunConfig.model_validate(data)
    except ValidationError as error:
        problems += problems_in(error, RunConfig)
        unknown = [details["loc"] for details in error.errors() if details["type"] == "extra_forbidden"]
        if len(unknown) == len(error.errors()):
            known = deepcopy(data)
            for path in unknown:
                remove(known, path)
            config = RunConfig.model_validate(known)
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
            notes = [str(problem) for problem in lacking]
            notes += start_problems(config) if not problems else ()
        else:
            problems += [problem for problem in lacking if problem not in problems]
    if problems or config is None:
        hint = (
            ""
            if data.keys() - {"exp_name"}
            else f"\nAn empty file; one that begins with `{EXTENDS}: agentic_async.yaml` runs."
        )
        raise ConfigurationError(describe(problems, source=source, origin=reading.origin) + hint)
    return config, notes


def _unprintable(data: Mapping[str, Any]) -> Iterator[Problem]:
    """Texts that no file name, no program and no table could hold."""
    says = "holds the character NUL, which ends a text wherever it is used; leave it out"
    for path, value in leaves(data, in_lists=True):
        if isinstance(value, str) and "\0" in value:
            yield Problem(path, says)


def _unknown_tags(data: Mapping[str, Any], reading: Reading) -> Iterator[Problem]:
    """Tags that are there only because an override sets one of their keys."""
    tags = data.get("custom_envs")
    if not isinstance(tags, Mapping):
        return
    known = [tag for tag, section in tags.items() if isinstance(section, Mapping) and "env_type" in section]
    for tag in tags.keys() - known:
        if isinstance(tags[tag], Mapping) and reading.written_at(("custom_envs", tag)) == OVERRIDE:
            hint = suggest(tag, known, known="tags")
            yield Problem(("custom_envs", tag), f"no such tag, and no env_type for a new one; {hint}")


TAGS_FILE = "envsdk/config/tags.yaml"


@cache
def shipped_tags() -> Mapping[str, Mapping[str, Any]]:
    """The tags of `tags.yaml`, as a file would write them."""
    text = files("envsdk.config").joinpath("tags.yaml").read_text(encoding="utf-8")
    tags: dict[str, Mapping[str, Any]] = yaml.safe_load(text)
    return tags


def missing_tags(data: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Shipped tags that a manager names and the file does not define."""
    named = [
        tag
        for manager in ("train_env_manager", "val_env_manager")
        if isinstance(data.get(manager), Mapping) and isinstance(data[manager].get("tags"), list)
        for tag in data[manager]["tags"]
        if isinstance(tag, str)
    ]
    defined = [data[key] for key in ("custom_envs", "rewards") if isinstance(data.get(key), Mapping)]
    return {
        tag: shipped_tags()[tag]
        for tag in dict.fromkeys(named)
        if tag in shipped_tags() and not any(tag in section for section in defined)
    }
