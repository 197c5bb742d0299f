"""Plays tasks with one policy: `collect` and `evaluate` are built on it.

    source = resolve_source("agentic_async.yaml")
    player = make_player(source, TaskOptions(source=source.name), PlayOptions(), tags=["FrozenLake"])
    player.play(tasks, on_trajectory)

Episodes are played by the same `TrajEnvManager` that training uses, in this process, without Ray.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from platform import python_version
from typing import TYPE_CHECKING, Any

from envsdk.base.plugins import load_plugin
from envsdk.base.processes.call_watch import CALLS
from envsdk.base.processes.interrupts import noticing_ctrl_c
from envsdk.base.registry import make
from envsdk.base.store.source_digest import data_digest
from envsdk.config.plugins import (
    ENV_MANAGERS,
    environment_class,
    environment_spec,
)
from envsdk.contracts.env import AnyTextEnv, Isolation
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.players import player_names
from envsdk.contracts.policy import Policy
from envsdk.contracts.trajectory import Task, Trajectory
from envsdk.engines.rate_limits import PacedPolicy, RateGate
from envsdk.managers.policies import REQUIRED_ABILITY, make_policy
from envsdk.rollouts.play.model import (
    ModelSource,
    TinyPolicyMaker,
    find_model_folder,
    model_source,
    open_model,
)
from envsdk.rollouts.play.options import ENDPOINT, PlayOptions, TaskOptions
from envsdk.rollouts.play.policy_form import PolicyForm
from envsdk.rollouts.play.source import Source
from envsdk.rollouts.play.time_limits import TimeLimits

if TYPE_CHECKING:
    from envsdk.engines.openai.chat import ChatEndpoint
    from envsdk.managers.env_host import EnvBlueprint
    from envsdk.managers.traj_env_manager import TagSetup

MODEL = "model"
"""Name of the policy that asks an engine."""

_CHAT_SLOTS = 16
"""Requests at a time to a chat endpoint that nobody said more about."""
_BACKGROUND_SLOTS = 16
"""Episodes at a time where environments wait more than they compute: on threads, or awaited."""


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
    form: PolicyForm | None = None
    """Plays instead of all these: a policy that a program brings along, not by name. Not picklable."""
    opponents: Mapping[str, ModelSource] = field(default_factory=dict)
    """Models that play against the policy, by name."""
    options: PlayOptions = field(default_factory=PlayOptions)
    """Replies, concurrency, retries, and the limits of this process's requests to a model."""

    def describe(self) -> dict[str, Any]:
        """What decides how a given task is played, as JSON."""
        asked, rivals = self.model or self.chat, self.opponents
        return {
            "seed": self.seed,
            "policy": self.policy,
            "epsilon": self.epsilon,
            "model": None if asked is None else asked.describe(),
            **({"replies": list(self.options.replies)} if self.options.replies else {}),
            **({"opponents": {name: each.describe() for name, each in rivals.items()}} if rivals else {}),
            **({"max_attempts": 1 + self.options.retries} if self.options.retries else {}),
            "tags": {
                tag: {
                    "env_type": setup.blueprint.spec.id,
                    "env_config": (given := {**setup.blueprint.spec.kwargs, **setup.blueprint.env_config}),
                    **({"data": digest} if (digest := data_digest(given)) else {}),
                    "max_steps": setup.max_turns,
                    "max_new_tokens": setup.max_new_tokens if asked is not None else None,
                    **_shown_response_length(setup, is_limit=asked is not None),
                    "agent_system_template": setup.prompts.system,
                    "agent_template": setup.prompts.template,
                    **({"context_window": setup.window} if setup.window else {}),
                    **({"players": setup.players} if setup.players else {}),
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
        self,
        tasks: Iterable[tuple[int, Task]],
        on_trajectory: Callable[[int, Trajectory], None],
        *,
        group_size: int = 1,
    ) -> None:
        """Play `(position, task)` pairs; calls `on_trajectory(position, trajectory)` as episodes end.

        Within a tag, episodes start in the order given. `group_size` positions in turn are samples of one
        task. Raises what `on_trajectory` raises.
        """

        async def playing() -> BaseException | None:
            with noticing_ctrl_c(lambda: CALLS.is_loop_in_a_call):
                return await self.play_on_loop(tasks, on_trajectory, group_size=group_size)

        if (ended := asyncio.run(playing())) is not None:
            raise ended

    async def play_on_loop(
        self,
        tasks: Iterable[tuple[int, Task]],
        on_trajectory: Callable[[int, Trajectory], None],
        *,
        group_size: int = 1,
        admit: Callable[[], Awaitable[None]] | None = None,
        limits: TimeLimits | None = None,
    ) -> BaseException | None:
        """As `play`, on the loop that runs: see `play_tasks`. Cancelling it closes the environments.

        Returns what ends the program: raised in a task, it would stop the loop before all is closed.
        """
        from envsdk.rollouts.play.local_runner import play_tasks

        try:
            async with AsyncExitStack() as stack:
                policy = await stack.enter_async_context(self._policies())
                models = {
                    name: await stack.enter_async_context(_engine_policies(each, None, is_own=False))
                    for name, each in self.opponents.items()
                }
                await play_tasks(
                    tasks,
                    setups=self.setups,
                    policy=(lambda setup: limits.timed(policy(setup))) if limits else policy,
                    run_seed=self.seed,
                    num_slots_per_tag=self.num_slots_per_tag,
                    on_trajectory=on_trajectory,
                    manager_classes={
                        tag: load_plugin(ENV_MANAGERS, name) for tag, name in self.manager_classes.items()
                    },
                    max_attempts=1 + self.options.retries,
                    group_size=group_size,
                    admit=admit,
                    opponents=lambda setup: {name: make(setup) for name, make in models.items()},
                )
        except (KeyboardInterrupt, SystemExit) as ended:
            return ended
        except BaseExceptionGroup as group:
            raise _first_leaf(group) from None
        return None

    @property
    def num_slots_per_tag(self) -> int:
        """Episodes at the same time: as many as the engine runs, or as waiting environments are worth."""
        if self.options.concurrency is not None:
            return max(1, self.options.concurrency // len(self.setups))
        if self.form is not None:
            return max(1, self.form.slots // len(self.setups))
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
        if self.form is not None:
            async with self.form.open(self.num_slots) as policies:
                yield policies
            return
        gate = RateGate(self.options.limits) if self.options.limits else None
        if self.chat is not None:
            async with _chat_policies(self.chat, gate) as policies:
                yield policies
        elif self.model is not None:
            async with _engine_policies(self.model, gate) as policies:
                yield policies
        else:
            policy = make_policy(self.policy, epsilon=self.epsilon, replies=self.options.replies)
            yield lambda setup: policy


def _shown_response_length(setup: TagSetup, *, is_limit: bool) -> dict[str, int]:
    """What a prompt says about the length of replies where nothing limits it: the prompt is data, too."""
    shown = "{max_response_length}" in setup.prompts.template and not is_limit
    return {"max_response_length": setup.max_new_tokens} if shown else {}


@asynccontextmanager
async def _chat_policies(
    endpoint: ChatEndpoint, gate: RateGate | None
) -> AsyncIterator[Callable[[TagSetup], Policy]]:
    from envsdk.engines.openai.chat import ChatClient, ChatPolicy

    async with ChatClient(endpoint, gate) as client:
        yield lambda setup: ChatPolicy(client, setup.shown)


@asynccontextmanager
async def _engine_policies(
    model: ModelSource, gate: RateGate | None, *, is_own: bool = True
) -> AsyncIterator[Callable[[TagSetup], Policy]]:
    from envsdk.engines.run_engines import RunEngines, offer

    def engine_policy(setup: TagSetup) -> Policy:
        length = model.sequence_length
        policy = setup.engine_policy(proxy, chat, model.generating, sequence_length=length)
        return PacedPolicy(policy, gate) if gate is not None else policy

    async with open_model(model) as (proxy, chat):
        if is_own:
            offer(RunEngines(proxy, chat, model.sequence_length))
        yield engine_policy


def make_player(
    source: Source,
    chosen: TaskOptions,
    options: PlayOptions,
    *,
    tags: Iterable[str],
    num_processes: int = 1,
    greedy: bool = False,
    make_tiny_policy: TinyPolicyMaker | None = None,
    form: PolicyForm | None = None,
) -> Player:
    """Check that the chosen policy can play these tags and gather what it takes. Raises ConfigurationError.

    The player is one of `num_processes`, which share the rate limits. `make_tiny_policy` is called where the
    policy is the tiny one of `source`, after all other checks. `form` plays instead of `chosen.policy`.
    """
    from envsdk.managers.wiring import tag_setup

    policy, epsilon, model = chosen.policy, chosen.epsilon, chosen.model
    config = source.config
    if form is None:
        options.check(policy)
    setups = {
        tag: tag_setup(
            tag,
            config.custom_envs[tag],
            environment_spec(config.custom_envs[tag].env_type),
            max_new_tokens=config.max_response_tokens(tag),
        )
        for tag in tags
    }
    seed = config.seed if chosen.seed is None else chosen.seed
    rivals = _opponents(source, setups, greedy=greedy, seed=seed, make_tiny_policy=make_tiny_policy)
    if form is not None:
        form.check(config, list(setups))
        return Player(
            setups=setups,
            policy=form.name,
            epsilon=0.0,
            seed=seed,
            model=None,
            form=form,
            options=options,
            opponents=rivals,
        )
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
        opponents=rivals,
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
        options=options.model_copy(update={"limits": options.limits.share(num_processes)}),
    )


def _opponents(
    source: Source,
    setups: Mapping[str, TagSetup],
    *,
    greedy: bool,
    seed: int,
    make_tiny_policy: TinyPolicyMaker | None,
) -> dict[str, ModelSource]:
    """The models among the players of these tags. ConfigurationError for one that only a run can have."""
    found: dict[str, ModelSource] = {}
    for name, each in source.config.opponents.items():
        if not any(name in player_names(setup.players) for setup in setups.values()):
            continue
        if each.refresh_steps is not None:
            raise ConfigurationError(
                f"opponents.{name} is a past version of the policy, which there is while a run trains: name "
                "another by --opponent, such as a checkpoint"
            )
        option = f"opponents.{name}.pretrain"
        given = each.pretrain
        folder = None if given is None else find_model_folder(Path(given), option=option)
        model = model_source(source, folder, greedy, seed, make_tiny_policy)
        if each.strategy_args is not None:
            engine, settings = each.strategy_args.strategy_name, each.strategy_args.strategy_config
            model = replace(model, engine=engine, settings=settings)
        found[name] = model
    return found


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
    """Versions of Python and the packages that decide what an episode looks like."""
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
    """The first exception that is no group."""
    first = group.exceptions[0]
    return _first_leaf(first) if isinstance(first, BaseExceptionGroup) else first
