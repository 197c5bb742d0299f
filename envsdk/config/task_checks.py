"""Checks of which tasks are played, and from where: the task sampler, shares of tags, prefixes, curricula."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from pydantic import ValidationError

from envsdk.algorithms.task_samplers.contract import sampler_class
from envsdk.algorithms.task_samplers.scored import EasyToHardArgs, ScoredArgs, WeightedArgs
from envsdk.base.settings.nearest import suggest
from envsdk.base.settings.problems import KeyPath, Problem
from envsdk.config.env_models import CustomEnv
from envsdk.config.models import RunConfig
from envsdk.config.plugins import environment_spec, has_oracle, own_turn_limit
from envsdk.config.rlvr import PROMPTS_ENV
from envsdk.contracts.failures import ConfigurationError


def task_problems(config: RunConfig) -> Iterator[Problem]:
    """What samplers and prefixes cannot do with the tasks of this run; wrong settings are told elsewhere."""
    entry = config.task_sampler
    try:
        args = sampler_class(entry.name).settings.model_validate(dict(entry.args))
    except (ConfigurationError, ValidationError):
        return
    yield from _replayed_tags(config, returns=args.returns_to_tasks)
    for tag, custom in config.custom_envs.items():
        path: KeyPath = ("custom_envs", tag, "turn_curriculum")
        if custom.turn_curriculum is not None and not _plays_by_turns(config, tag):
            yield Problem(path, "is for turns that the TrajEnvManager plays: leave it out")
        elif (turns := custom.turn_curriculum) is not None and turns.start >= (most := _most_turns(custom)):
            yield Problem(
                (*path, "start"),
                f"{turns.start} shortens nothing, as episodes have at most {most:g} turns: begin with fewer, "
                "or leave turn_curriculum out",
            )
    if isinstance(args, ScoredArgs):
        yield from _useless_settings(config, args)
        yield from _sampled_tags(config, args)


def _replayed_tags(config: RunConfig, *, returns: bool) -> Iterator[Problem]:
    if (prefixes := config.prefix_sampling) is None:
        return
    path: KeyPath = ("prefix_sampling",)
    if config.mode != "both":
        yield Problem(
            path, f"is for `mode: both`: the programs of a job (mode: {config.mode}) share no episodes"
        )
    if prefixes.low > prefixes.high:
        yield Problem(
            (*path, "low"),
            f"{prefixes.low:g} is more than high={prefixes.high:g}: tags would get head starts and handicaps "
            "at once; set low below high",
        )
    elif not prefixes.low <= prefixes.target <= prefixes.high:
        yield Problem(
            (*path, "target"),
            f"{prefixes.target:g} is not between low={prefixes.low:g} and high={prefixes.high:g}, where "
            "groups are left alone: set it between them, or move these",
        )
    if prefixes.source == "own" and not returns:
        yield Problem(
            (*path, "source"),
            f"own replays episodes of the same task, and task_sampler {config.task_sampler.name} returns to "
            "none: take a sampler that does (name: learnability, num_tasks: 256), or source: oracle",
        )
    for tag in config.train_env_manager.tags:
        custom = config.custom_envs.get(tag)
        try:
            if custom is None or not (spec := environment_spec(custom.env_type)):
                continue
        except ConfigurationError:
            continue
        hindrances = {
            "its episodes have one turn": spec.max_steps == 1,
            "the TrajEnvManager does not play it": not _plays_by_turns(config, tag),
            f"its context is {custom.context}, not append": custom.context != "append",
            "it has several players": bool(custom.players),
        }
        if hindrance := next(filter(hindrances.get, hindrances), ""):
            said = f"tag `{tag}` cannot begin in the middle: {hindrance}; leave it or prefix_sampling out"
            yield Problem(path, said)
            return
        if prefixes.source == "oracle" and not has_oracle(custom):
            yield Problem((*path, "source"), f"{custom.env_type} of tag `{tag}` has no oracle; take own")


def _plays_by_turns(config: RunConfig, tag: str) -> bool:
    own = config.custom_envs[tag].env_manager_cls
    return (own or config.train_env_manager.env_manager_cls) == "TrajEnvManager"


def _most_turns(custom: CustomEnv) -> float:
    """Turns after which an episode ends at the latest; infinite when that is not known."""
    try:
        own = own_turn_limit(environment_spec(custom.env_type), custom.env_config)
    except ConfigurationError:
        own = None
    return min((limit for limit in (custom.max_steps, own) if limit is not None), default=math.inf)


def _useless_settings(config: RunConfig, args: ScoredArgs) -> Iterator[Problem]:
    """Settings of the sampler that contradict each other or change nothing."""
    gate, path = args.gate, ("task_sampler", "gate")
    if gate is not None and gate.after > args.window:
        yield Problem(
            (*path, "after"),
            f"{gate.after} is more than the window={args.window} episodes that are looked at, so nothing "
            f"would ever rest: set it to {args.window} or less, or raise window",
        )
    if gate is not None and gate.solved <= gate.hopeless:
        yield Problem(
            (*path, "solved"),
            f"{gate.solved:g} is no more than hopeless={gate.hopeless:g}: every task would rest; set solved "
            "above hopeless",
        )
    if not isinstance(args, WeightedArgs) or not args.weights:
        return
    if args.choose == "tasks":
        yield Problem(
            ("task_sampler", "weights"),
            "change nothing with choose: tasks, which keeps the share of each tag: set choose to `tags` or "
            "`both`, or leave them out",
        )
    elif not any(args.weights.get(tag, 1.0) for tag in config.train_env_manager.tags):
        yield Problem(
            ("task_sampler", "weights"), "are 0 for every tag of train_env_manager: give one of them more"
        )


def _sampled_tags(config: RunConfig, args: ScoredArgs) -> Iterator[Problem]:
    entry = config.task_sampler
    tags = config.train_env_manager.tags
    if args.choose != "tasks" and config.batch_mixture == "stratified":
        yield Problem(
            ("batch_mixture",),
            f"stratified keeps the share of each tag, but task_sampler {entry.name} with "
            f"choose: {args.choose} chooses tags; set choose: tasks",
        )
    counts = args.num_tasks if isinstance(args.num_tasks, Mapping) else {}
    for key, names in {"num_tasks": counts, "weights": getattr(args, "weights", {})}.items():
        for name in names:
            if name not in tags:
                hint = suggest(name, tags, known="tags of train_env_manager")
                yield Problem(("task_sampler", key, name), f"unknown tag `{name}`; {hint}")
                return
    for tag in tags if args.returns_to_tasks else ():
        custom = config.custom_envs.get(tag)
        if custom is None:
            continue
        if args.num_tasks is None or (counts and tag not in counts):
            try:
                is_listed = environment_spec(custom.env_type).lists_tasks
            except ConfigurationError:
                continue
            if not is_listed:
                yield Problem(
                    ("task_sampler", "num_tasks"),
                    f"{entry.name} returns to tasks, and those of tag `{tag}` ({custom.env_type}) never end: "
                    f"say how many seeds to use (num_tasks: {{{tag}: 256}}), or choose tags (choose: tags)",
                )
                return
        if isinstance(args, EasyToHardArgs) and (not args.columns or custom.env_type != PROMPTS_ENV):
            yield Problem(
                ("task_sampler", "columns"),
                f"easy_to_hard does not know how hard the tasks of tag `{tag}` are: name columns of prompt "
                "data, or go from tag to tag (choose: tags)",
            )
            return
