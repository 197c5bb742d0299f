"""What `collect` and `evaluate` share: from ENV or YAML and a policy's name to played episodes.

    source = resolve_source("agentic_async.yaml", ["seed=7"])
    player = make_player(source, tags=["FrozenLake"], policy="oracle")
    player.play(tasks, on_trajectory)

Episodes are played by the same `TrajEnvManager` that training uses, in this process, without Ray.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from platform import python_version
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from envsdk.config import RunConfig, find_config, load_config
from envsdk.config.checks import check
from envsdk.config.models import split_evenly
from envsdk.config.plugins import (
    ENV_MANAGERS,
    environment_class,
    environment_ids,
    environment_spec,
    own_turn_limit,
)
from envsdk.env import AnyTextEnv, Isolation
from envsdk.failures import ConfigurationError
from envsdk.inference.rate_limits import PacedPolicy, RateGate, RateLimits
from envsdk.play.env_arguments import short_name, split_overrides, whole_id
from envsdk.play.model import (
    DEFAULT_SEQUENCE_LENGTH,
    ModelSource,
    TinyPolicyMaker,
    model_source,
    open_model,
)
from envsdk.play.options import ENDPOINT, PlayOptions
from envsdk.play.policies import REQUIRED_ABILITY, make_policy
from envsdk.plugins import load_plugin
from envsdk.policy import Policy
from envsdk.processes.call_watch import CALLS
from envsdk.processes.interrupts import noticing_ctrl_c
from envsdk.registry import make, system_prompt
from envsdk.settings.nearest import nearest, suggest
from envsdk.settings.problems import describe
from envsdk.settings.validation import problems_in
from envsdk.trajectory import Task, Trajectory

if TYPE_CHECKING:
    from envsdk.inference.openai.chat import ChatEndpoint
    from envsdk.managers.env_host import EnvBlueprint
    from envsdk.managers.traj_env_manager import TagSetup

MODEL = "model"
"""Name of the policy that asks an engine."""

DEFAULT_SEED = 42
_CHAT_SLOTS = 16
"""Requests at a time to a chat endpoint that nobody said more about."""
_BACKGROUND_SLOTS = 16
"""Episodes at a time where environments wait more than they compute: on threads, or awaited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What ENV_OR_YAML stands for."""

    name: str
    """As given: an environment id or a file."""
    config: RunConfig
    is_environment: bool
    """Whether `config` was made up around a registered environment."""

    def episodes_by_tag(self, num_episodes: int, *, split: str, tags: Sequence[str] | None) -> dict[str, int]:
        """Divide episodes between tags: evenly where tags are named, else as the YAML's managers do.

        Tags that get none are left out.
        """
        weights = dict.fromkeys(self._known(tags), 1) if tags else self._manager_weights(split)
        counts = split_evenly(num_episodes, list(weights.values()))
        return {tag: count for tag, count in zip(weights, counts, strict=True) if count}

    def _known(self, tags: Sequence[str]) -> Sequence[str]:
        for tag in tags:
            if tag not in self.config.custom_envs:
                hint = suggest(tag, self.config.custom_envs, known="tags in custom_envs")
                raise ConfigurationError(f"--tags: {self.name} has no tag `{tag}`; {hint}")
        return tags

    def _manager_weights(self, split: str) -> Mapping[str, int]:
        config = self.config
        return (config.val_env_manager if split == "val" else config.train_env_manager).groups_per_tag


def resolve_source(source: str | Path | RunConfig, overrides: Sequence[str] = ()) -> Source:
    """Find out what `source` means: a run's YAML file, a registered environment id, or a configuration.

    Of an id, the name alone (`Sokoban`) will do where only one environment has it.

    With an environment id, overrides are arguments of its constructor (`size=6`), or else keys of a run
    (`sequence_length=512`). Raises ConfigurationError.
    """
    if isinstance(source, RunConfig):
        return Source(name=source.exp_name, config=source, is_environment=False)
    name = whole_id(str(source))
    known = environment_ids()
    if name in known:
        return Source(name=name, config=_around_environment(name, overrides), is_environment=True)
    if name.endswith((".yaml", ".yml")) or _is_configuration(name):
        loaded = load_config(source, overrides, for_training=False)
        return Source(name=name, config=loaded.config, is_environment=False)
    by_short_name = {short_name(id): id for id in known}
    match = nearest(name, by_short_name)
    hint = (
        f"did you mean `{by_short_name[match]}`?"
        if match
        else suggest(name, known, known="registered environments")
    )
    raise ConfigurationError(
        f"there is no environment {name!r}; {hint} "
        "(`envsdk envs` lists them; a run's configuration is named by its .yaml file)"
    )


def _is_configuration(name: str) -> bool:
    try:
        find_config(name)
    except ConfigurationError:
        return False
    return True


def _around_environment(env_id: str, overrides: Sequence[str]) -> RunConfig:
    """A run's configuration whose only tag is `env_id`, told by its own words what a reply looks like."""
    spec = environment_spec(env_id)
    run_keys, env_config = split_overrides(overrides, env_id, environment_class(spec))
    manager = {"num_env_groups": 1, "tags": [env_id]}
    data = {
        "exp_name": "adhoc",
        "seed": DEFAULT_SEED,
        "rollout_batch_size": 1,
        "val_batch_size": 100,
        "sequence_length": DEFAULT_SEQUENCE_LENGTH,
        "max_steps": 1,
        "adv_estimator": "reinforce",
        "custom_envs": {
            env_id: {
                "env_type": env_id,
                "env_config": env_config,
                "max_steps": own_turn_limit(spec, env_config),
                "agent_system_template": system_prompt(spec, env_config),
            }
        },
        "train_env_manager": manager,
        "val_env_manager": manager,
    }
    try:
        config = RunConfig.model_validate(
            OmegaConf.to_container(OmegaConf.merge(data, run_keys), resolve=True)
        )
        problems = check(config, for_training=False)
    except ValidationError as error:
        problems = list(problems_in(error, RunConfig))
    except OmegaConfBaseException as error:
        raise ConfigurationError(f"{' '.join(overrides)}: {str(error).splitlines()[0]}") from error
    if problems:
        raise ConfigurationError(describe(problems, source=env_id, origin=lambda path: ""))
    return config


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """Plays tasks with one policy. Picklable: worker processes get a copy."""

    setups: Mapping[str, TagSetup]
    policy: str
    epsilon: float
    seed: int
    """The run's: seeds of tasks and of sampling follow from it."""
    model: ModelSource | None
    """None when the policy needs none."""
    manager_classes: Mapping[str, str] = field(default_factory=dict)
    """Plug-ins of `envsdk.env_managers` by tag, where it is not the usual one."""
    chat: ChatEndpoint | None = None
    """A chat endpoint that plays; None for other policies."""
    replies: Sequence[str] = ()
    """Of the scripted policy."""
    concurrency: int | None = None
    """Episodes at the same time, over all tags; what suits the policy and the environments when None."""
    max_attempts: int = 1
    """How often a task is played until its episode does not fail."""
    limits: RateLimits = field(default_factory=RateLimits)
    """Of this process's requests to a model."""

    def describe(self) -> dict[str, Any]:
        """What decides how a given task is played, as JSON."""
        asked = self.model or self.chat
        return {
            "seed": self.seed,
            "policy": self.policy,
            "epsilon": self.epsilon,
            "model": None if asked is None else asked.describe(),
            **({"replies": list(self.replies)} if self.replies else {}),
            **({"max_attempts": self.max_attempts} if self.max_attempts > 1 else {}),
            "tags": {
                tag: {
                    "env_type": setup.blueprint.spec.id,
                    "env_config": {**setup.blueprint.spec.kwargs, **setup.blueprint.env_config},
                    "max_steps": setup.max_turns,
                    "max_new_tokens": setup.max_new_tokens if asked is not None else None,
                    **_shown_response_length(setup, is_limit=asked is not None),
                    "agent_system_template": setup.prompts.system,
                    "agent_template": setup.prompts.template,
                    **({"env_manager_cls": self.manager_classes[tag]} if tag in self.manager_classes else {}),
                }
                for tag, setup in self.setups.items()
            },
        }

    @property
    def may_hang(self) -> bool:
        """Whether an environment can hold up the process that plays it."""
        return any(setup.blueprint.isolation is not Isolation.PROCESS for setup in self.setups.values())

    def isolated(self) -> Player:
        """The same, with each environment in a process of its own."""
        return replace(
            self,
            setups={
                tag: replace(setup, blueprint=replace(setup.blueprint, isolation=Isolation.PROCESS))
                for tag, setup in self.setups.items()
            },
        )

    def play(
        self, tasks: Iterable[tuple[int, Task]], on_trajectory: Callable[[int, Trajectory], None]
    ) -> None:
        """Play `(position, task)` pairs; calls `on_trajectory(position, trajectory)` as episodes end.

        Within a tag, episodes start in the order given. Raises what `on_trajectory` raises.
        """
        try:
            asyncio.run(self._play(tasks, on_trajectory))
        except BaseExceptionGroup as group:
            raise _first_leaf(group) from None

    async def _play(
        self, tasks: Iterable[tuple[int, Task]], on_trajectory: Callable[[int, Trajectory], None]
    ) -> None:
        from envsdk.play.local_runner import play_tasks

        with noticing_ctrl_c(lambda: CALLS.is_loop_in_a_call):
            async with self._policies() as policy:
                await play_tasks(
                    tasks,
                    setups=self.setups,
                    policy=policy,
                    run_seed=self.seed,
                    num_slots_per_tag=self.num_slots_per_tag,
                    on_trajectory=on_trajectory,
                    manager_classes={
                        tag: load_plugin(ENV_MANAGERS, name) for tag, name in self.manager_classes.items()
                    },
                    max_attempts=self.max_attempts,
                )

    @property
    def num_slots_per_tag(self) -> int:
        """Episodes at the same time: as many as the engine runs, or as waiting environments are worth."""
        if self.concurrency is not None:
            return max(1, self.concurrency // len(self.setups))
        if self.chat is not None:
            return max(1, _CHAT_SLOTS // len(self.setups))
        if self.model is not None:
            return max(1, self.model.max_running // len(self.setups))
        isolations = {setup.blueprint.isolation for setup in self.setups.values()}
        if isolations & {Isolation.THREAD, Isolation.ASYNC}:
            return _BACKGROUND_SLOTS
        if Isolation.PROCESS in isolations:
            return max(1, (os.cpu_count() or 1) // len(self.setups))
        return 1

    @property
    def num_slots(self) -> int:
        """Environments, over all tags."""
        return self.num_slots_per_tag * len(self.setups)

    @asynccontextmanager
    async def _policies(self) -> AsyncIterator[Callable[[TagSetup], Policy]]:
        gate = RateGate(self.limits) if self.limits else None
        if self.chat is not None:
            async with _chat_policies(self.chat, gate) as policies:
                yield policies
        elif self.model is not None:
            async with _engine_policies(self.model, gate) as policies:
                yield policies
        else:
            policy = make_policy(self.policy, epsilon=self.epsilon, replies=self.replies)
            yield lambda setup: policy


def _shown_response_length(setup: TagSetup, *, is_limit: bool) -> dict[str, int]:
    """What a prompt says about the length of replies where nothing limits it: the prompt is data, too."""
    shown = "{max_response_length}" in setup.prompts.template and not is_limit
    return {"max_response_length": setup.max_new_tokens} if shown else {}


@asynccontextmanager
async def _chat_policies(
    endpoint: ChatEndpoint, gate: RateGate | None
) -> AsyncIterator[Callable[[TagSetup], Policy]]:
    from envsdk.inference.openai.chat import ChatClient, ChatPolicy

    async with ChatClient(endpoint, gate) as client:
        yield lambda setup: ChatPolicy(
            client, setup.prompts, max_turns=setup.max_turns, max_new_tokens=setup.max_new_tokens
        )


@asynccontextmanager
async def _engine_policies(
    model: ModelSource, gate: RateGate | None
) -> AsyncIterator[Callable[[TagSetup], Policy]]:
    from envsdk.inference.engine_policy import EnginePolicy

    def engine_policy(setup: TagSetup) -> Policy:
        policy = EnginePolicy(
            proxy,
            chat,
            model.generating,
            sequence_length=model.sequence_length,
            max_new_tokens=setup.max_new_tokens or None,
            structure=setup.structure,
        )
        return PacedPolicy(policy, gate) if gate is not None else policy

    async with open_model(model) as (proxy, chat):
        yield engine_policy


def make_player(
    source: Source,
    *,
    tags: Iterable[str],
    policy: str,
    epsilon: float = 0.0,
    seed: int | None = None,
    model: Path | None = None,
    greedy: bool = False,
    options: PlayOptions | None = None,
    make_tiny_policy: TinyPolicyMaker | None = None,
) -> Player:
    """Check that the policy can play these tags and gather what it takes. Raises ConfigurationError.

    `make_tiny_policy` is called where the policy is the tiny one of `source`, after all other checks.
    """
    from envsdk.managers.wiring import tag_setup

    options = options or PlayOptions()
    options.check(policy)

    config = source.config
    setups = {
        tag: tag_setup(
            tag,
            config.custom_envs[tag],
            environment_spec(config.custom_envs[tag].env_type),
            max_new_tokens=config.max_response_tokens(tag),
        )
        for tag in tags
    }
    if policy in (MODEL, ENDPOINT):
        if epsilon:
            raise ConfigurationError(
                "--epsilon is for policies without a model: random actions would be missing from the token "
                "log. Raise actor_infer.generating_args.temperature instead"
            )
    else:
        if model is not None:
            raise ConfigurationError(f"--model is for --policy model; --policy {policy} needs none")
        if greedy:
            raise ConfigurationError(f"--greedy is for --policy model; --policy {policy} samples no tokens")
        make_policy(policy, epsilon=epsilon, replies=options.replies)
        _check_abilities(setups, policy, epsilon)
    seed = config.seed if seed is None else seed
    with_engine = policy == MODEL or (policy == ENDPOINT and model is not None)
    # A policy without an engine is asked turn by turn: no agent stands between it and the environment.
    managers = {tag: config.custom_envs[tag].env_manager_cls for tag in setups} if with_engine else {}
    manager_classes = {tag: name for tag, name in managers.items() if name is not None}
    if options.limits and manager_classes:
        raise ConfigurationError(
            "--requests-per-minute and --tokens-per-minute: an agent asks the engine in its own way "
            f"({', '.join(manager_classes.values())}); set the limits at the server"
        )
    return Player(
        setups=setups,
        manager_classes=manager_classes,
        policy=policy,
        epsilon=epsilon,
        seed=seed,
        model=options.applied_to(model_source(source, model, greedy, seed, make_tiny_policy))
        if with_engine
        else None,
        chat=None
        if with_engine
        else options.chat_endpoint(config.actor_infer.generating_args.sampling, greedy),
        replies=options.replies,
        concurrency=options.concurrency,
        max_attempts=options.max_attempts,
        limits=options.limits,
    )


def _check_abilities(setups: Mapping[str, TagSetup], policy: str, epsilon: float) -> None:
    needed = {
        REQUIRED_ABILITY[name] for name in (policy, "random" if epsilon else "") if name in REQUIRED_ABILITY
    }
    for tag, setup in setups.items():
        known = _abilities(setup.blueprint) if needed else None
        if known is not None and (missing := sorted(needed - known)):
            others = "--policy random" if missing == ["oracle"] else "--policy scripted"
            raise ConfigurationError(
                f"--policy {policy}: {setup.blueprint.spec.id} (tag {tag}) has no `{missing[0]}()`; "
                f"use {others}, model or endpoint, or another environment"
            )


def _abilities(blueprint: EnvBlueprint) -> frozenset[str] | None:
    """Those of the class, or of an environment that a function makes of its arguments, as adapters do.

    None where it would have to be made and wants a process of its own.
    """
    constructor: Any = environment_class(blueprint.spec)
    if isinstance(constructor, type) and issubclass(constructor, AnyTextEnv) and not blueprint.spec.prompt:
        return constructor.abilities()
    if blueprint.isolation is Isolation.PROCESS:
        return None
    env = make(blueprint.spec, **blueprint.env_config)
    try:
        return env.abilities()
    finally:
        env.close()


def package_versions(*, with_model: bool) -> dict[str, str]:
    """Of Python and the packages that decide what an episode looks like."""
    names = ["envsdk", "gymnasium", "numpy", "pyarrow"]
    if with_model:
        names += ["torch", "transformers", "tokenizers"]
    versions = {"python": python_version()}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _first_leaf(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first_leaf(first) if isinstance(first, BaseExceptionGroup) else first
