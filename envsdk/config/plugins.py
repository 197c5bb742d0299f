"""Plug-ins as the configuration sees them: names, and the keys they take, without importing torch.

A plug-in may declare its settings as pydantic models under the entry-point group
`envsdk.settings`, named `KIND.NAME.SECTION`:

    [project.entry-points."envsdk.settings"]
    "trainers.torch.training_args" = "envsdk.trainers.training_args:TrainingArgs"

Unknown keys in `training_args` and `strategy_config` are then refused before anything starts, and
`--explain` shows the plug-in's defaults. The module named should import quickly.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, runtime_checkable

from pydantic import BaseModel

from envsdk.algorithms.estimator_contract import ADVANTAGE_ESTIMATORS as ADVANTAGE_ESTIMATORS
from envsdk.algorithms.estimator_contract import EstimatorArgs, load_estimator
from envsdk.algorithms.group_filters import filter_settings
from envsdk.algorithms.task_samplers.contract import TASK_SAMPLERS as TASK_SAMPLERS
from envsdk.algorithms.task_samplers.contract import sampler_class
from envsdk.base import registry
from envsdk.base.plugins import load_plugin, plugin_names
from envsdk.base.settings.precision import Precision
from envsdk.base.settings.problems import KeyPath
from envsdk.config.env_models import CustomEnv
from envsdk.config.models import RunConfig
from envsdk.config.role_models import Role
from envsdk.contracts.env import AnyTextEnv, EnvSpec, Isolation
from envsdk.contracts.failures import ConfigurationError

ENGINES = "envsdk.engines"
TRAINERS = "envsdk.trainers"
TRACKERS = "envsdk.trackers"
ENV_MANAGERS = "envsdk.env_managers"
GROUP_FILTERS = "envsdk.group_filters"
SETTINGS = "envsdk.settings"
POLICY_LOSSES = "envsdk.policy_losses"
POLICIES = "envsdk.policies"


def is_importable(dotted_name: str) -> bool:
    """Whether the module of `package.module:Object` is there. Imports its parent packages only."""
    module, separator, attribute = dotted_name.partition(":")
    if not (module and separator and attribute):
        return False
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


@cache
def settings_model(kind: str, name: str, section: str) -> type[BaseModel] | None:
    """The model a plug-in declares for one of its sections; None when it declares none."""
    entry_name = f"{kind}.{name}.{section}"
    if entry_name not in plugin_names(SETTINGS):
        return None
    try:
        model = load_plugin(SETTINGS, entry_name)
    except ConfigurationError:
        # Its package is not all here. Playing with another policy needs no engine and no trainer.
        return None
    if isinstance(model, type) and issubclass(model, BaseModel):
        return model
    raise TypeError(f"the entry point {entry_name} of {SETTINGS} is no pydantic model, but {model!r}")


def estimator_settings(adv_estimator: str) -> type[EstimatorArgs] | None:
    """The model of an estimator's `adv_args`; None when the estimator cannot be loaded."""
    try:
        return load_estimator(adv_estimator).settings
    except ConfigurationError:
        return None


def runs_on_several_ranks(name: str, kind: str = "trainers") -> bool:
    """Whether a plug-in's settings are those of one process per accelerator: they name no `device`."""
    model = settings_model(kind, name, "strategy_config")
    return model is not None and "device" not in model.model_fields


@runtime_checkable
class SharesOutRanks(Protocol):
    """Strategy settings of a trainer that says what each of its ranks is for."""

    def layout(self, num_ranks: int) -> str:
        """In words, such as `tensor 2 x data 2`; ValueError when so many ranks cannot be shared out."""
        ...


@runtime_checkable
class SharesPrefixes(Protocol):
    """Strategy settings of a trainer that can compute once what several rows begin with."""

    def sharing(self, model_type: str) -> str:
        """Whether it does with this model, in words."""
        ...


@runtime_checkable
class ChoosesAttention(Protocol):
    """Strategy settings of a trainer that runs its model with one of several kernels of attention."""

    @property
    def attention(self) -> str:
        """How attention will be computed, in words."""
        ...

    def attention_problem(self) -> str | None:
        """What is missing on this machine for it."""
        ...


@runtime_checkable
class ChoosesPrecision(Protocol):
    """Strategy settings of a plug-in that computes a model in one of several types."""

    def precision(self, stored: str) -> Precision:
        """The type and the reason, for a model whose folder names the type `stored`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsSection:
    """Keys that belong to a plug-in."""

    path: KeyPath
    """Where the keys are written."""
    plugin: str
    model: type[BaseModel]
    values: Mapping[str, Any]
    """As given."""
    also: Mapping[str, KeyPath]
    """Keys of `values` that are written elsewhere than under `path`."""


def settings_sections(config: RunConfig) -> Iterator[SettingsSection]:
    """Sections of the file whose keys a plug-in declares."""
    train = config.actor_train
    trainer = train.strategy_args.strategy_name
    roles: list[tuple[str, Role, str]] = [
        ("actor_train", train, "trainers"),
        ("actor_infer", config.actor_infer, "engines"),
        ("reference", config.reference, "trainers"),
    ]
    for name, role, kind in roles:
        plugin = role.strategy_args.strategy_name
        also: dict[str, KeyPath] = {key: (name, "model_args", key) for key in role.model_args}
        path = (name, "strategy_args", "strategy_config")
        yield from _section(
            path, plugin, settings_model(kind, plugin, "strategy_config"), role.settings, also
        )
    model = settings_model("trainers", trainer, "training_args")
    yield from _section(("actor_train", "training_args"), trainer, model, train.training_args)
    model = settings_model("policy_losses", config.pg_variant, "pg_args")
    yield from _section(("pg_args",), config.pg_variant, model, config.pg_args)
    model = estimator_settings(config.adv_estimator)
    yield from _section(("adv_args",), config.adv_estimator, model, config.adv_args)
    for tracker in config.trackers:
        model = settings_model("trackers", tracker, "tracker_args")
        yield from _section(("tracker_args", tracker), tracker, model, config.tracker_args.get(tracker, {}))
    for index, entry in enumerate(config.group_filters):
        with suppress(ConfigurationError):  # the check of names reports it
            model = filter_settings(entry.name)
            yield from _section(("group_filters", index), entry.name, model, entry.args)
    sampler = config.task_sampler
    with suppress(ConfigurationError):
        model = sampler_class(sampler.name).settings
        yield from _section(("task_sampler",), sampler.name, model, sampler.args)


def _section(
    path: KeyPath,
    plugin: str,
    model: type[BaseModel] | None,
    values: Mapping[str, Any],
    also: Mapping[str, KeyPath] | None = None,
) -> Iterator[SettingsSection]:
    if model is not None:
        yield SettingsSection(path=path, plugin=plugin, model=model, values=values, also=also or {})


environment_ids = registry.known_ids
environment_spec = registry.spec
environment_class = registry.load_entry_point


def arguments(env: CustomEnv) -> dict[str, Any]:
    """What a tag's environments are made with: its `env_config` over the arguments of the spec."""
    return {**registry.spec(env.env_type).kwargs, **env.env_config}


def has_oracle(env: CustomEnv) -> bool:
    """Whether the tag's environments have an oracle, or it is not known that they have none."""
    try:
        abilities = getattr(environment_class(environment_spec(env.env_type)), "abilities", None)
    except ConfigurationError:
        return True
    return abilities is None or "oracle" in abilities()


def environment_notes(config: RunConfig, tags: Iterable[str] | None = None) -> list[str]:
    """Sentences of the environments of `tags`, each with its tag; None: of those that the run trains with."""
    found = []
    for tag in config.train_env_manager.tags if tags is None else tags:
        env = config.custom_envs[tag]
        said = registry.notes(registry.spec(env.env_type), env.env_config)
        found += [f"{tag}: {note}" for note in said]
    return found


def own_turn_limit(spec: EnvSpec, env_config: Mapping[str, Any]) -> int | None:
    """Turns after which the environment so configured truncates by itself; None when that is not known.

    Only environments that run inline are asked: those are cheap to build.
    """
    if spec.isolation != Isolation.INLINE:
        return None
    try:
        env = registry.make(spec, **env_config)
    except (ConfigurationError, TypeError):
        return None
    limit = getattr(env, "max_steps", None)
    env.close()
    return limit if isinstance(limit, int) else None


def argument_names(constructor: Callable[..., AnyTextEnv]) -> tuple[str, ...] | None:
    """Names of the arguments that `constructor` takes; None when it takes any."""
    parameters = inspect.signature(constructor).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return tuple(parameter.name for parameter in parameters)
