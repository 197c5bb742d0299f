"""Finding environments by id: `register`, `make`, `spec`, `list_specs`.

Ids come from two places: `register()` in this process, and the entry-point group `envsdk.envs`
of installed packages, whose entries point to `EnvSpec` objects:

    [project.entry-points."envsdk.envs"]
    "mine/Puzzle-v1" = "my_package.puzzle:SPEC"

An entry point is loaded when its environment is first asked for. The environments that ship with
envsdk register in the same way.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from numbers import Integral, Real
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import parse_env_id

from envsdk.env import AnyTextEnv, AsyncTextEnv, EnvSpec, TextEnv
from envsdk.failures import ConfigurationError
from envsdk.processes.as_sync import as_sync

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


def spec(id: str) -> EnvSpec:
    """The spec registered under `id`; ConfigurationError names the nearest id when there is none."""
    known = _specs.get(id)
    if known is None:
        point = _entry_points().get(id)
        if point is None:
            ids = known_ids()
            raise ConfigurationError(
                f"no environment {id!r}.{did_you_mean(id, ids)} Known: {', '.join(ids)}. Those of another"
                " package need it installed, or its module imported so that it calls envsdk.register()."
            )
        known = _specs[id] = _load_spec(point)
    return known


def known_ids() -> list[str]:
    """Every id, sorted; nothing is imported for it."""
    return sorted(_specs.keys() | _entry_points().keys())


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
    _check_keywords(env_spec.id, constructor, arguments)
    for name, problem in wrong_types(constructor, arguments).items():
        raise ConfigurationError(f"{env_spec.id}: {name}: {problem}")
    try:
        env = constructor(**arguments)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{env_spec.id}: {error}") from error
    if not isinstance(env, AnyTextEnv):
        raise ConfigurationError(
            f"{env_spec.id}: {env_spec.entry_point!r} made a {type(env).__name__}, which is no envsdk.TextEnv"
        )
    return env


def missing(env_spec: EnvSpec) -> list[str]:
    """The commands that install what this environment lacks here; nothing is imported for it."""
    commands = (command for module, command in env_spec.needs.items() if find_spec(module) is None)
    return list(dict.fromkeys(commands))


def system_prompt(env_spec: EnvSpec, env_config: Mapping[str, Any]) -> str:
    """What a policy is told before the first observation, where the user's own configuration says nothing.

    Raises ConfigurationError for keywords that the environment refuses.
    """
    if not env_spec.prompt:
        return "\n".join(filter(None, (env_spec.description, env_spec.action_format)))
    module, _, attribute = env_spec.prompt.partition(":")
    describe: Callable[..., str] = getattr(importlib.import_module(module), attribute)
    arguments = {**env_spec.kwargs, **env_config}
    _check_keywords(env_spec.id, load_entry_point(env_spec), arguments)
    try:
        return describe(**arguments)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{env_spec.id}: {error}") from error


def load_entry_point(env_spec: EnvSpec) -> Callable[..., AnyTextEnv]:
    """The class (or function) that `env_spec.entry_point` names."""
    if callable(env_spec.entry_point):
        return env_spec.entry_point
    module_name, _, attribute = env_spec.entry_point.partition(":")
    try:
        loaded = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        if isinstance(error, ImportError) and not f"{module_name}.".startswith(f"{error.name}."):
            # The module is there and lacks something itself, such as an engine that is not installed.
            raise ConfigurationError(f"{env_spec.id}: {error}") from error
        raise ConfigurationError(
            f"{env_spec.id}: cannot load its entry point {env_spec.entry_point!r}"
            f" (package.module:Class is expected): {error}"
        ) from error
    if not callable(loaded):
        raise ConfigurationError(f"{env_spec.id}: its entry point {env_spec.entry_point!r} is not callable")
    constructor: Callable[..., AnyTextEnv] = loaded
    return constructor


_PLAIN_TYPES: Mapping[object, tuple[type | tuple[type, ...], str]] = {
    bool: ((bool, np.bool_), "true or false"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "text"),
    types.NoneType: (types.NoneType, "null"),
}
"""By annotation: what is accepted, and what it is called."""


def wrong_types(constructor: Callable[..., AnyTextEnv], arguments: Mapping[str, Any]) -> dict[str, str]:
    """By name, what is wrong with arguments that are not of their annotated type.

    Only annotations made of `bool`, `int`, `float`, `str` and `None` are looked at: `is_slippery: "no"` would
    otherwise be true, and `size: "4"` an error of the environment's own code.
    """
    try:
        parameters = inspect.signature(constructor, eval_str=True).parameters
    except (NameError, AttributeError, TypeError, ValueError):
        # Names that only type checkers import.
        return {}
    problems = {}
    for name, value in arguments.items():
        parameter = parameters.get(name)
        wanted = None if parameter is None else _plain_types(parameter.annotation)
        if parameter is None or not wanted or value is parameter.default:
            continue
        if not any(_is_plain(value, annotation) for annotation in wanted):
            words = " or ".join(_PLAIN_TYPES[annotation][1] for annotation in wanted)
            shown = "null" if value is None else repr(value)
            problems[name] = f"must be {words}, not {shown if len(shown) <= 60 else shown[:57] + '...'}"
    return problems


def _plain_types(annotation: Any) -> tuple[Any, ...]:
    """The plain types that `annotation` allows; none when it allows others too."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        members = typing.get_args(annotation)
    else:
        members = (types.NoneType if annotation is None else annotation,)
    return members if all(isinstance(each, type) and each in _PLAIN_TYPES for each in members) else ()


def _is_plain(value: Any, annotation: Any) -> bool:
    accepted = _PLAIN_TYPES[annotation][0]
    return isinstance(value, accepted) and (annotation is bool or not isinstance(value, bool))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the nearest of `known`, or nothing when none is near."""
    by_lower = {name.lower(): name for name in known}
    nearest = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.5)
    return f" Did you mean {by_lower[nearest[0]]!r}?" if nearest else ""


def register_with_gymnasium() -> None:
    """Make every id known to `gymnasium.make`; `import envsdk` calls it.

    Only names are registered, nothing is imported. Gymnasium 1 looks for no plug-ins by itself,
    so `gymnasium.make` needs either an `import envsdk` before it or the form that imports,
    `gymnasium.make("envsdk:envsdk/FrozenLake-v1")`.
    """
    _register_ids_with_gymnasium(_entry_points())


def make_for_gymnasium(env_id: str, **kwargs: Any) -> TextEnv:
    """What gymnasium's registry calls; `env_id` is among the keywords it holds for the id."""
    return make(env_id, **kwargs)


def _register_ids_with_gymnasium(ids: Iterable[str]) -> None:
    for id in ids:
        if id in gymnasium.registry:
            continue
        try:
            gymnasium.register(id=id, entry_point="envsdk.registry:make_for_gymnasium", kwargs={"env_id": id})
        except gymnasium.error.Error:
            # Not an id that gymnasium can hold. It stays available through `envsdk.make`.
            continue


@cache
def _entry_points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def _load_spec(point: EntryPoint) -> EnvSpec:
    where = f"entry point {point.name!r} = {point.value!r}"
    try:
        loaded = point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"{where}: cannot be loaded: {error}") from error
    if not isinstance(loaded, EnvSpec):
        raise ConfigurationError(f"{where}: is a {type(loaded).__name__}, not an envsdk.EnvSpec")
    if loaded.id != point.name:
        raise ConfigurationError(f"{where}: its spec has another id, {loaded.id!r}")
    return loaded


def _check_keywords(id: str, constructor: Callable[..., AnyTextEnv], arguments: dict[str, Any]) -> None:
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
