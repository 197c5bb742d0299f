"""The arguments of `rollout`, checked: everything that can be wrong before an episode is played is said here.

play = prepared("envsdk/FrozenLake-v1", policy="oracle", tasks=8, ...)
await play.run(on_trajectory)
"""

from __future__ import annotations

import operator
import re
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from envsdk.base import registry
from envsdk.base.display.episode_progress import EpisodeProgress
from envsdk.base.display.scores import MAX_FAILED_SHARE, too_many_failed
from envsdk.base.settings.problems import describe
from envsdk.base.settings.validation import problems_in
from envsdk.base.store.named_models import is_named_model
from envsdk.config import RunConfig
from envsdk.config.env_arguments import whole_id
from envsdk.config.plugins import environment_class, environment_ids
from envsdk.config.section import GeneratingArgs
from envsdk.contracts.env import AnyTextEnv, AsyncTextEnv, EnvSpec, Isolation
from envsdk.contracts.failures import ConfigurationError, show_object
from envsdk.contracts.trajectory import Task, Trajectory
from envsdk.managers.policies import BUILT_IN
from envsdk.rollouts.play.local_engine import EngineForm, LocalEngine
from envsdk.rollouts.play.options import ENDPOINT, SCRIPTED, PlayOptions, TaskOptions, in_python
from envsdk.rollouts.play.own_policies import ClientForm, creates_completions, own_form
from envsdk.rollouts.play.player import MODEL, Player, make_player
from envsdk.rollouts.play.policy_form import PolicyForm
from envsdk.rollouts.play.source import Source, resolve_source
from envsdk.rollouts.play.time_limits import TimeLimits

Tasks = int | Iterable[int] | Iterable[Task]


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """A rollout whose arguments were checked."""

    player: Player
    tasks: Iterable[Task]
    num_tasks: int | None
    """None of an iterator."""
    group_size: int
    limits: TimeLimits
    shows_progress: bool

    def numbered(self) -> Iterator[tuple[int, Task]]:
        """Each task as often as its group has members, with positions in turn, until the time is over."""
        self.limits.start()
        for number, task in enumerate(self.tasks):
            for position in range(number * self.group_size, (number + 1) * self.group_size):
                if self.limits.is_over:
                    warnings.warn(
                        f"timeout_s={self.limits.rollout_s} of the rollout was over: {position} episodes had "
                        "begun, and the tasks after them were not played",
                        RuntimeWarning,
                        stacklevel=2,
                    )
                    return
                yield position, task

    async def run(
        self,
        on_trajectory: Callable[[int, Trajectory], None],
        *,
        admit: Callable[[], Awaitable[None]] | None = None,
    ) -> BaseException | None:
        """Calls `on_trajectory(position, trajectory)` as episodes end; awaits `admit` before each starts.

        Returns what ends the program.
        """
        shown = {tag: setup.shown for tag, setup in self.player.setups.items()}
        total = None if self.num_tasks is None else self.num_tasks * self.group_size
        counts = Counter[str]()
        progress = EpisodeProgress("rollout", total=total, stays=True) if self.shows_progress else None

        def on_ended(position: int, ended: Trajectory) -> None:
            if progress is not None:
                progress.played(1, int(ended.success), int(ended.failure is not None))
            counts.update(ended=1, failed=int(ended.failure is not None))
            on_trajectory(position, replace(ended, shown=shown[ended.task.tag]))

        with progress or nullcontext():
            end = await self.player.play_on_loop(
                self.numbered(), on_ended, group_size=self.group_size, admit=admit, limits=self.limits
            )
        if too_many_failed(counts["failed"], counts["ended"], MAX_FAILED_SHARE):
            warnings.warn(
                f"{counts['failed']} of {counts['ended']} episodes failed: rates and means are of the others "
                "alone, and `trajectory.failure` says why",
                RuntimeWarning,
                stacklevel=2,
            )
        return end


def prepared(
    env: object,
    policy: object,
    tasks: Tasks,
    group_size: int,
    concurrency: int | None,
    split: str,
    seed: int | None,
    env_config: Mapping[str, Any] | None,
    overrides: Sequence[str],
    tags: Sequence[str] | None,
    model: str | Path | None,
    sampling: Mapping[str, Any] | None,
    retries: int,
    turn_timeout_s: float | None,
    episode_timeout_s: float | None,
    timeout_s: float | None,
    progress: bool,
) -> Play:
    """The rollout; ConfigurationError for what is wrong. The arguments are those of `rollout`."""
    for name, number, least in (
        ("group_size", group_size, 1),
        ("retries", retries, 0),
        *((("concurrency", concurrency, 1),) if concurrency is not None else ()),
        *((("seed", seed, 0),) if seed is not None else ()),
    ):
        _whole_number(name, number, least)
    for name, seconds in (
        ("turn_timeout_s", turn_timeout_s),
        ("episode_timeout_s", episode_timeout_s),
        ("timeout_s", timeout_s),
    ):
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if seconds is not None and not (is_number and seconds > 0):
            raise ConfigurationError(f"{name}: must be a number of seconds above 0, or None, not {seconds!r}")
    if not isinstance(split, str) or not split:
        raise ConfigurationError("split: name a split, such as 'train' or 'val'")
    for name, texts in (("overrides", overrides), ("tags", tags)):
        if isinstance(texts, str):
            raise ConfigurationError(f"{name}: give a list, such as [{texts!r}]")
    try:
        with ExitStack() as stack:
            source = _source(env, env_config, overrides, stack)
            tasks, num_tasks, playing = _tasks(tasks, source, split, tags)
            form, name, folder, options = _policy(policy, source, model, sampling)
            if form is None:
                source = _with_sampling(source, sampling)
            elif concurrency is not None:
                form.slots = concurrency
            player = make_player(
                source,
                TaskOptions.model_construct(
                    source=source.name, policy=name, epsilon=0.0, model=folder, seed=seed
                ),
                options.model_copy(update={"concurrency": concurrency, "retries": retries}),
                tags=playing,
                form=form,
            )
    except ConfigurationError as error:
        raise in_python(error) from error
    limits = TimeLimits(turn_s=turn_timeout_s, episode_s=episode_timeout_s, rollout_s=timeout_s)
    if limits and player.manager_classes:
        raise ConfigurationError(
            "turn_timeout_s, episode_timeout_s, timeout_s: an agent asks the engine in its own way "
            f"({', '.join(player.manager_classes.values())}); set its limits in its program"
        )
    return Play(
        player=player,
        tasks=tasks,
        num_tasks=num_tasks,
        group_size=group_size,
        limits=limits,
        shows_progress=progress,
    )


def _whole_number(name: str, number: object, least: int) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or number < least:
        raise ConfigurationError(f"{name}: must be a whole number of at least {least}, not {number!r}")


def _source(
    env: object, env_config: Mapping[str, Any] | None, overrides: Sequence[str], stack: ExitStack
) -> Source:
    """What is played. A spec that no registry has is known to it until `stack` ends."""
    spec: EnvSpec | None = None
    if isinstance(env, EnvSpec):
        spec = env
    elif callable(env):
        spec = _spec_of(env)
    elif isinstance(env, AnyTextEnv):
        raise ConfigurationError(
            f"env: a {type(env).__name__} is one environment, and each episode that runs at a time needs its "
            "own; give its class, or a function that makes one"
        )
    elif isinstance(env, str | Path):
        if env_config:
            if (name := whole_id(str(env))) not in environment_ids():
                named = resolve_source(env).name
                raise ConfigurationError(
                    f"env_config is for an environment; the tags of {named} have their own: use "
                    "overrides=['custom_envs.TAG.env_config.KEY=VALUE']"
                )
            spec = registry.spec(name)
    elif env_config:
        raise ConfigurationError("env_config is for an environment; the tags of a RunConfig have their own")
    if spec is None:
        if not isinstance(env, str | Path | RunConfig):
            raise ConfigurationError(
                f"env: expected an id, a YAML file, a RunConfig, a class or a function that makes an "
                f"environment, not a {type(env).__name__}"
            )
        return resolve_source(env, overrides)
    if env_config is not None:
        if not isinstance(env_config, Mapping):
            raise ConfigurationError("env_config: give a dict of the environment's arguments")
        spec = replace(spec, kwargs={**spec.kwargs, **env_config})
        registry.check_arguments(spec, spec.kwargs)
    if callable(env):
        spec = _tried(spec)
    stack.enter_context(registry.registered(spec))
    return resolve_source(spec.id, overrides)


@contextmanager
def own_environment(source: object) -> Iterator[Any]:
    """The id of a class, a function or an EnvSpec that a program brings along, known while it is played.

    Whatever else is given comes out as it is. ConfigurationError for what makes no environment.
    """
    if not (isinstance(source, EnvSpec) or callable(source)):
        yield source
        return
    spec = source if isinstance(source, EnvSpec) else _tried(_spec_of(source))
    with registry.registered(spec):
        yield spec.id


def _spec_of(constructor: Callable[..., Any]) -> EnvSpec:
    """The spec of a class, or of a function that makes environments."""
    if isinstance(constructor, type) and not issubclass(constructor, AnyTextEnv):
        raise ConfigurationError(
            f"env: {constructor.__name__} is no subclass of envsdk.TextEnv or envsdk.AsyncTextEnv; for "
            "environments of Gymnasium, use 'envsdk/Gymnasium-v1' with env_config={'id': ...}"
        )
    name = re.sub(r"\W+", "_", getattr(constructor, "__name__", type(constructor).__name__)).strip("_")
    is_async = isinstance(constructor, type) and issubclass(constructor, AsyncTextEnv)
    return EnvSpec(
        id=f"local/{name}-v0",
        entry_point=constructor,
        isolation=Isolation.ASYNC if is_async else Isolation.INLINE,
    )


def _tried(spec: EnvSpec) -> EnvSpec:
    """Build one now, where an error still belongs to the call; a function shows what it makes only so."""
    if spec.isolation is Isolation.ASYNC:
        return spec
    constructor = environment_class(spec)
    if not isinstance(constructor, type):
        made = _made(spec, constructor)
        if isinstance(made, AsyncTextEnv):
            return replace(spec, isolation=Isolation.ASYNC)
        made.close()
    return spec


def _made(spec: EnvSpec, constructor: Callable[..., Any]) -> AnyTextEnv:
    registry.check_arguments(spec, spec.kwargs)
    try:
        made = constructor(**spec.kwargs)
    except Exception as error:
        raise ConfigurationError(f"env: {spec.id} cannot be made: {type(error).__name__}: {error}") from error
    if not isinstance(made, AnyTextEnv):
        raise ConfigurationError(
            f"env: the function made a {type(made).__name__}, which is no envsdk.TextEnv or AsyncTextEnv"
        )
    return made


def _tasks(
    tasks: Tasks, source: Source, split: str, tags: Sequence[str] | None
) -> tuple[Iterable[Task], int | None, Sequence[str]]:
    """The tasks in order, their number where it is known, and the tags that play."""
    if isinstance(tasks, int) and not isinstance(tasks, bool):
        if tasks < 1:
            raise ConfigurationError(f"tasks: at least one, not {tasks}")
        counts = source.episodes_by_tag(tasks, split=split, tags=tags)
        return (
            (
                Task(tag=tag, split=split, index=index)
                for tag, count in counts.items()
                for index in range(count)
            ),
            sum(counts.values()),
            list(counts),
        )
    if isinstance(tasks, str | bytes | Mapping | bool) or not isinstance(tasks, Iterable):
        raise ConfigurationError(
            f"tasks: a number, indices such as range(100, 200), or Task objects, not {tasks!r}"
        )
    num_tags = len(source.config.custom_envs)
    playing = list(source.episodes_by_tag(num_tags * 1000, split=split, tags=tags))
    if not hasattr(tasks, "__len__"):
        return _read(tasks, playing, source, split, may_add=False), None, playing
    named = list(tasks)
    if not named:
        raise ConfigurationError("tasks: there is none")
    found = list(_read(named, playing, source, split, may_add=tags is None))
    return found, len(found), list(dict.fromkeys(task.tag for task in found))


def _read(
    tasks: Iterable[Any], playing: Sequence[str], source: Source, split: str, *, may_add: bool
) -> Iterator[Task]:
    """`may_add`: a Task may name any tag of the configuration."""
    known = list(source.config.custom_envs) if may_add else playing
    for each in tasks:
        if isinstance(each, Task):
            if each.tag not in known:
                raise ConfigurationError(f"tasks: tag {each.tag!r} is not played; {', '.join(known)} are")
            yield each
            continue
        try:
            index = operator.index(each)
        except TypeError:
            index = -1
        if index < 0 or isinstance(each, bool):
            raise ConfigurationError(f"tasks: {each!r} is neither an index from 0 nor a Task")
        for tag in playing:
            yield Task(tag=tag, split=split, index=index)


def _policy(
    policy: object, source: Source, model: str | Path | None, sampling: Mapping[str, Any] | None
) -> tuple[PolicyForm | None, str, Path | None, PlayOptions]:
    """The form of a policy that is an object; or else its name, its model's folder and its options."""
    options = PlayOptions()
    if sampling is not None and not isinstance(sampling, Mapping):
        raise ConfigurationError("sampling: give a dict, such as {'temperature': 0.7}")
    if isinstance(policy, type):
        raise ConfigurationError(
            f"policy: {policy.__name__} is a class; give an object, {policy.__name__}(...)"
        )
    if creates_completions(policy) is not None:
        if not isinstance(model, str) or not model:
            raise ConfigurationError("model: a client needs the model's name at its server, model='...'")
        return ClientForm(policy, model, sampling or {}), "", None, options
    if isinstance(policy, str) and policy.startswith(("http://", "https://")):
        if not isinstance(model, str) or not model:
            raise ConfigurationError(f"model: {policy} needs the model's name there, model='...'")
        return None, ENDPOINT, None, PlayOptions(endpoint=policy, endpoint_model=model)
    if isinstance(policy, str) and policy == MODEL:
        return None, MODEL, None if model is None else Path(model), options
    if model is not None:
        raise ConfigurationError(
            "model is for a client, a URL and the policy 'model'; a folder can be the policy itself"
        )
    if isinstance(policy, LocalEngine):
        generating = _with_sampling(source, sampling).config.actor_infer.generating_args.sampling
        return EngineForm(policy, generating), "", None, options
    if isinstance(policy, Path) or (
        isinstance(policy, str)
        and policy not in BUILT_IN
        and ":" not in policy
        and (is_named_model(policy) or Path(policy).is_dir())
    ):
        return None, MODEL, Path(policy), options
    if sampling is not None:
        raise ConfigurationError("sampling is for models, clients and URLs; this policy samples no tokens")
    if isinstance(policy, str):
        if policy in (SCRIPTED, ENDPOINT):
            instead = "a function" if policy == SCRIPTED else "the URL, with model="
            raise ConfigurationError(f"policy: give {instead} instead of {policy!r}")
        if "/" in policy and ":" not in policy:
            raise ConfigurationError(f"policy: there is no folder {policy}, and no policy has such a name")
        return None, policy, None, options
    if (form := own_form(policy)) is not None:
        return form, "", None, options
    raise ConfigurationError(
        "policy: expected a function, an envsdk.Policy, a name such as 'oracle', a client or URL of OpenAI's "
        f"protocol, a model's folder or an envsdk.LocalEngine, not {show_object(policy)}"
    )


def _with_sampling(source: Source, sampling: Mapping[str, Any] | None) -> Source:
    if not sampling:
        return source
    infer = source.config.actor_infer
    try:
        generating = GeneratingArgs.model_validate({**infer.generating_args.model_dump(), **sampling})
    except ValidationError as error:
        problems = list(problems_in(error, GeneratingArgs))
        raise ConfigurationError(describe(problems, source="sampling", origin=lambda path: "")) from error
    infer = infer.model_copy(update={"generating_args": generating})
    return replace(source, config=source.config.model_copy(update={"actor_infer": infer}))
