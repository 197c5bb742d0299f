"""Finding environments by id: `register`, `make`, `spec`, `list_specs`.

Ids come from two places: `register()` in this process, and the entry-point group `envsdk.envs`
of installed packages, whose entries point to `EnvSpec` objects:

    [project.entry-points."envsdk.envs"]
    "mine/Puzzle-v1" = "my_package.puzzle:SPEC"

An entry point is loaded when its environment is first asked for. The environments that ship with
envsdk register in the same way.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import parse_env_id

from envsdk.base.plugins import load_function, load_object, load_plugin, plugin_names
from envsdk.base.processes.as_sync import as_sync
from envsdk.base.settings.nearest import did_you_mean
from envsdk.contracts.env import AnyTextEnv, AsyncTextEnv, EnvSpec, TextEnv
from envsdk.contracts.failures import ConfigurationError

ENTRY_POINT_GROUP = "envsdk.envs"

_specs: dict[str, EnvSpec] = {}
"""What this process registered or has loaded, by id."""


def register(spec: EnvSpec) -> None:
    """Make `spec` known to this process, to gymnasium too. Registering an id again replaces it."""
    try:
        parse_env_id(spec.id)
    except gymnasium.error.Error as error:
        raise ConfigurationError(f"environment id {spec.id!r}: must look like namespace/Name-v1") from error
    _specs[spec.id] = spec
    _register_ids_with_gymnasium([spec.id])


@contextmanager
def registered(spec: EnvSpec) -> Iterator[None]:
    """Make `spec` known inside the block alone: for one that a caller brings along. Not to gymnasium."""
    before = _specs.get(spec.id)
    _specs[spec.id] = spec
    try:
        yield
    finally:
        if before is None:
            del _specs[spec.id]
        else:
            _specs[spec.id] = before


def spec(id: str) -> EnvSpec:
    """The spec registered under `id`; ConfigurationError names the nearest id when there is none."""
    known = _specs.get(id)
    if known is None:
        ids = known_ids()
        if id not in ids:
            raise ConfigurationError(
                f"no environment {id!r}.{did_you_mean(id, ids)} Known: {', '.join(ids)}. Those of another"
                " package need it installed, or its module imported so that it calls envsdk.register()."
                f" One of Gymnasium's registry is `Gymnasium` with `id={id}`."
            )
        known = _specs[id] = _load_spec(id)
    return known


def known_ids() -> list[str]:
    """Every id, sorted; nothing is imported for it."""
    return sorted({*_specs, *plugin_names(ENTRY_POINT_GROUP)})


def list_specs() -> list[EnvSpec]:
    """Every spec, by id. ConfigurationError names an installed package whose spec does not load."""
    return [spec(id) for id in known_ids()]


def make(id_or_spec: str | EnvSpec, /, **kwargs: Any) -> TextEnv:
    """A new environment; `kwargs` go over the spec's. An `AsyncTextEnv` comes as `as_sync` of it.

    Raises:
        ConfigurationError: The id or a keyword is unknown (the nearest one is named), the entry
            point does not import, or the constructor refuses a value (ValueError, TypeError).
    """
    env = _make(id_or_spec, kwargs)
    return as_sync(env) if isinstance(env, AsyncTextEnv) else env


def make_async(id_or_spec: str | EnvSpec, /, **kwargs: Any) -> AsyncTextEnv:
    """As `make`, for awaiting: ConfigurationError for an environment that is no `AsyncTextEnv`."""
    env = _make(id_or_spec, kwargs)
    if not isinstance(env, AsyncTextEnv):
        id = id_or_spec.id if isinstance(id_or_spec, EnvSpec) else id_or_spec
        raise ConfigurationError(
            f"{id}: a {type(env).__name__} is no envsdk.AsyncTextEnv and cannot be awaited: choose another"
            " isolation than async"
        )
    return env


def _make(id_or_spec: str | EnvSpec, kwargs: dict[str, Any]) -> AnyTextEnv:
    env_spec = id_or_spec if isinstance(id_or_spec, EnvSpec) else spec(id_or_spec)
    constructor = load_entry_point(env_spec)
    arguments = {**env_spec.kwargs, **kwargs}
    check_arguments(env_spec, arguments)
    try:
        env = constructor(**arguments)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{env_spec.id}: {error}") from error
    if not isinstance(env, AnyTextEnv):
        raise ConfigurationError(
            f"{env_spec.id}: {env_spec.entry_point!r} made a {type(env).__name__}, which is no envsdk.TextEnv"
        )
    return env


def check_arguments(env_spec: EnvSpec, arguments: Mapping[str, Any]) -> None:
    """ConfigurationError for arguments that the constructor does not take, lacks, or annotates otherwise."""
    constructor = load_entry_point(env_spec)
    _check_keywords(env_spec.id, constructor, arguments)
    for name, problem in wrong_types(constructor, arguments).items():
        raise ConfigurationError(f"{env_spec.id}: {name}: {problem}")


def known_text_pieces() -> list[str]:
    """The `text_pieces` of every spec that loads, for texts whose environment is not known."""
    pieces: dict[str, None] = {}
    for id in known_ids():
        with suppress(ConfigurationError):
            pieces.update(dict.fromkeys(spec(id).text_pieces))
    return list(pieces)


def missing(env_spec: EnvSpec) -> list[str]:
    """The commands that install what this environment lacks here; nothing is imported for it."""
    commands = (command for module, command in env_spec.needs.items() if find_spec(module) is None)
    return list(dict.fromkeys(commands))


def system_prompt(env_spec: EnvSpec, env_config: Mapping[str, Any]) -> str:
    """The system prompt of an environment, for configurations that give none.

    Raises ConfigurationError for keywords that the environment refuses.
    """
    if env_spec.prompt is None:
        return ""
    if not env_spec.prompt:
        return "\n".join(filter(None, (env_spec.description, env_spec.action_format)))
    describe: Callable[..., str] = load_object(env_spec.prompt)
    arguments = {**env_spec.kwargs, **env_config}
    _check_keywords(env_spec.id, load_entry_point(env_spec), arguments)
    try:
        return describe(**arguments)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{env_spec.id}: {error}") from error


def notes(env_spec: EnvSpec, env_config: Mapping[str, Any]) -> list[str]:
    """What is to be said before a run plays this environment; an error is said in its place.

    Raises ConfigurationError: nothing can be played.
    """
    if not env_spec.notes:
        return []
    describe: Callable[..., list[str]] = load_object(env_spec.notes)
    try:
        return describe(**{**env_spec.kwargs, **env_config})
    except (TypeError, ValueError, OSError) as error:
        return [f"{env_spec.id}: {error}"]


def lacks(env_spec: EnvSpec, env_config: Mapping[str, Any]) -> str:
    """What is missing on this machine for an environment with these keywords, or wrong with them."""
    if not env_spec.lacks:
        return ""
    describe: Callable[..., str] = load_object(env_spec.lacks)
    try:
        return describe(**{**env_spec.kwargs, **env_config})
    except (ConfigurationError, TypeError, ValueError) as error:
        return str(error)


def load_entry_point(env_spec: EnvSpec) -> Callable[..., AnyTextEnv]:
    """The class (or function) that `env_spec.entry_point` names."""
    if callable(env_spec.entry_point):
        return env_spec.entry_point
    return load_function(env_spec.entry_point, where=f"{env_spec.id}: ")


_PLAIN_TYPES = {bool, int, float, str, types.NoneType}


def wrong_types(constructor: Callable[..., AnyTextEnv], arguments: Mapping[str, Any]) -> dict[str, str]:
    """Problems by name: those of arguments that are not of their annotated type.

    A constructor whose `wrong_keywords` knows them is asked. Of others only annotations made of `bool`,
    `int`, `float`, `str` and `None` are looked at: `is_slippery: "no"` would otherwise be true, and
    `size: "4"` an error of the environment's own code.
    """
    from pydantic import TypeAdapter, ValidationError

    from envsdk.base.settings.validation import wrong_value

    if found := getattr(getattr(constructor, "__init__", None), "wrong_keywords", None):
        return dict(found(arguments))
    try:
        parameters = inspect.signature(constructor, eval_str=True).parameters
    except (NameError, AttributeError, TypeError, ValueError):
        # Names that only type checkers import.
        return {}
    problems = {}
    for name, value in arguments.items():
        parameter = parameters.get(name)
        if parameter is None or value is parameter.default or not _is_plain(parameter.annotation):
            continue
        try:
            TypeAdapter(parameter.annotation).validate_python(
                value.item() if isinstance(value, np.generic) else value, strict=True
            )
        except ValidationError as error:
            problems[name] = wrong_value(error.errors())
    return problems


def _is_plain(annotation: Any) -> bool:
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    members = typing.get_args(annotation) if is_union else (annotation,)
    return all(isinstance(each, type | None) and each in {*_PLAIN_TYPES, None} for each in members)


def register_with_gymnasium() -> None:
    """Make every id known to `gymnasium.make`; `import envsdk` calls it.

    Only names are registered, nothing is imported. Gymnasium 1 looks for no plug-ins by itself,
    so `gymnasium.make` needs either an `import envsdk` before it or the form that imports,
    `gymnasium.make("envsdk:envsdk/FrozenLake-v1")`.
    """
    _register_ids_with_gymnasium(plugin_names(ENTRY_POINT_GROUP))


def make_for_gymnasium(env_id: str, **kwargs: Any) -> TextEnv:
    """What gymnasium's registry calls; `env_id` is among the keywords it holds for the id."""
    return make(env_id, **kwargs)


def _register_ids_with_gymnasium(ids: Iterable[str]) -> None:
    for id in ids:
        if id in gymnasium.registry:
            continue
        try:
            gymnasium.register(
                id=id, entry_point="envsdk.base.registry:make_for_gymnasium", kwargs={"env_id": id}
            )
        except gymnasium.error.Error:
            # Not an id that gymnasium can hold. It stays available through `envsdk.make`.
            continue


def _load_spec(id: str) -> EnvSpec:
    loaded = load_plugin(ENTRY_POINT_GROUP, id)
    if not isinstance(loaded, EnvSpec):
        raise ConfigurationError(f"entry point {id!r}: is a {type(loaded).__name__}, not an envsdk.EnvSpec")
    if loaded.id != id:
        raise ConfigurationError(f"entry point {id!r}: its spec has another id, {loaded.id!r}")
    return loaded


def _check_keywords(id: str, constructor: Callable[..., AnyTextEnv], arguments: Mapping[str, Any]) -> None:
    parameters = inspect.signature(constructor).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    positional_only = inspect.Parameter.POSITIONAL_ONLY
    known = [parameter.name for parameter in parameters if parameter.kind is not positional_only]
    for name in arguments:
        if name not in known:
            raise ConfigurationError(
                f"{id}: unknown keyword {name!r}.{did_you_mean(name, known)} Known: {', '.join(known)}."
            )
    required = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    if missing := [name for name in required if name not in arguments]:
        raise ConfigurationError(f"{id}: needs the keyword {missing[0]!r}")
