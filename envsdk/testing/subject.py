"""What is under test: an environment by id, dotted name, spec, class or factory, and what to expect of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from envsdk.base import registry
from envsdk.base.processes.as_sync import as_sync
from envsdk.base.settings.nearest import did_you_mean
from envsdk.contracts.env import AnyTextEnv, AsyncTextEnv, EnvSpec, TextEnv
from envsdk.testing.courses import Factory, build
from envsdk.testing.time_limits import CallCosts, CallLimits

_SHORTEST_TIMEOUT_S = 10.0
"""A call that takes longer than a shorter limit of its spec is measured, not ended."""
_BUILDING_OVER_RESET = 5.0
"""The first one built may fill caches, and no spec says how long that takes."""

Target = str | EnvSpec | Callable[..., AnyTextEnv]
"""A registered id, `package.module:Class`, a spec, a class, or a function that builds one."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What an author may say about an environment."""

    max_examples: int = 25
    """Examples per check. Fewer for environments that are slow to build."""
    max_turns: int = 1000
    """Turns within which the oracle must have ended the episode."""
    oracle_always_solves: bool = True
    """False where luck decides, as on slippery ice."""
    observations_show_state: bool = False
    """The observation is a function of the state alone, so hashes and observations must agree."""
    seeds_give_tasks: bool = True
    """False for an environment with one task, whatever the seed."""
    timeout_s: float | None = None
    """When a call that has not returned is ended; the spec's limits, at least 10 seconds, when None."""
    derandomize: bool = False
    """The same examples each time; no database of earlier failures."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(option.name for option in fields(cls))


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One configuration of an environment."""

    name: str
    make: Factory
    """Returns a new environment, of the same configuration each time."""
    spec: EnvSpec | None = None
    """None when only a factory is known: then nothing can be said of other processes."""
    env_config: Mapping[str, Any] = field(default_factory=dict)
    is_registered: bool = False
    """Whether the spec is the author's, with the texts that people and policies read."""
    imports: str = ""
    """For printed scripts: the line that imports what `expression` and `target` name."""
    expression: str = "make_env()"
    """For printed scripts: builds one environment."""
    target: str = "make_env"
    """For printed scripts: the first argument of `run_check`."""
    options: Options = field(default_factory=Options)
    memory: dict[str, Any] = field(default_factory=dict, compare=False)
    """What several checks share and is dear to find out."""

    @property
    def abilities(self) -> frozenset[str]:
        if "abilities" not in self.memory:
            self._look()
        found: frozenset[str] = self.memory["abilities"]
        return found

    @property
    def costs(self) -> dict[str, CallCosts]:
        """What the calls of all checks took so far, by method."""
        costs: dict[str, CallCosts] = self.memory.setdefault("costs", {})
        return costs

    @property
    def call_limits(self) -> CallLimits:
        """When calls that do not return are ended."""
        given = self.options.timeout_s
        if given is not None:
            return CallLimits(build_s=given, reset_s=given, step_s=given)
        spec = self.spec or EnvSpec(id="check/Factory-v0", entry_point=self.make)
        reset_s = max(spec.reset_timeout_s, _SHORTEST_TIMEOUT_S)
        return CallLimits(
            build_s=_BUILDING_OVER_RESET * reset_s,
            reset_s=reset_s,
            step_s=max(spec.step_timeout_s, _SHORTEST_TIMEOUT_S),
        )

    def with_timeout(self, seconds: float) -> Self:
        return replace(self, options=replace(self.options, timeout_s=seconds))

    @property
    def turn_limit(self) -> int | None:
        """Replies after which an episode is over: the environment's own limit, else the spec's."""
        own = self.own_turn_limit
        return own if own is not None else (self.spec.max_steps if self.spec else None)

    @property
    def own_turn_limit(self) -> int | None:
        if "turn_limit" not in self.memory:
            self._look()
        found: int | None = self.memory["turn_limit"]
        return found

    def _look(self) -> None:
        env = build(self.make)
        limit = getattr(env, "max_steps", None)
        self.memory["turn_limit"] = limit if isinstance(limit, int) and not isinstance(limit, bool) else None
        self.memory["abilities"] = frozenset(env.abilities())
        env.close()


def synchronous(make: Callable[[], AnyTextEnv]) -> Factory:
    """`make`, with `as_sync` of the asynchronous environments that it returns."""

    def made() -> TextEnv:
        env = make()
        return as_sync(env) if isinstance(env, AsyncTextEnv) else env

    return made


def subject_of(
    target: Target, env_config: Mapping[str, Any] | None = None, options: Options | None = None
) -> Subject:
    """Find out what `target` names. Raises ConfigurationError for what does not exist."""
    env_config = dict(env_config or {})
    options = options or Options()
    if isinstance(target, EnvSpec):
        source = f"# {target.id} is registered by nobody yet: define SPEC as your module does"
        return _subject(target, env_config, options, True, source, "SPEC", "SPEC")
    if isinstance(target, str):
        if ":" not in target:
            spec = registry.spec(target)
            return _subject(spec, env_config, options, True, "", repr(target), repr(target))
        spec = EnvSpec(id="check/Dotted-v0", entry_point=target)
        registry.load_entry_point(spec)
        module, _, attribute = target.partition(":")
        source = f"from {module} import {attribute}"
        return _subject(spec, env_config, options, False, source, attribute, repr(target), name=target)
    if not isinstance(target, type):
        return Subject(
            name=getattr(target, "__qualname__", repr(target)),
            make=synchronous(lambda: target(**env_config)),
            env_config=env_config,
            options=options,
        )
    spec = EnvSpec(id="check/Class-v0", entry_point=target)
    source = f"from {target.__module__} import {target.__name__}"
    name = f"{target.__module__}:{target.__qualname__}"
    return _subject(spec, env_config, options, False, source, target.__name__, target.__name__, name=name)


def _subject(
    spec: EnvSpec,
    env_config: dict[str, Any],
    options: Options,
    is_registered: bool,
    imports: str,
    builds: str,
    target: str,
    name: str | None = None,
) -> Subject:
    arguments = "".join(f", {key}={value!r}" for key, value in env_config.items())
    constructor = registry.load_entry_point(spec) if not is_registered else None
    expression = f"envsdk.make({builds}{arguments})" if is_registered else f"{builds}({arguments[2:]})"
    if isinstance(constructor, type) and issubclass(constructor, AsyncTextEnv):
        expression = f"envsdk.as_sync({expression})"
    return Subject(
        name=name or spec.id,
        make=lambda: registry.make(spec, **env_config),
        spec=spec,
        env_config=env_config,
        is_registered=is_registered,
        imports=imports,
        expression=expression,
        target=target,
        options=options,
    )


def options_from(values: Mapping[str, Any]) -> Options:
    """Options by name; TypeError names the one that is unknown."""
    for name in values:
        if name not in Options.names():
            raise TypeError(
                f"no option {name!r}.{did_you_mean(name, Options.names())}"
                f" Known: {', '.join(Options.names())}."
            )
    return Options(**values)
