"""Play a frozen task list and count successes.

    evaluation = evaluate(EvaluateOptions.of(source="FrozenLake", policy="oracle", num_episodes=100))
    evaluation.total.success_rate

The tasks are the first ones of the split, one episode each, with seeds that depend on nothing but the
run's seed: two policies evaluated under the same seed play the same tasks, and so does validation
during training. With a log folder (`envsdk.rollouts.play.evaluation_log`), what was played before a kill is
read and not played again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from envsdk.base.display.scores import MAX_FAILED_SHARE, too_many_failed
from envsdk.base.plugins import plugin_names
from envsdk.base.processes.forked import check_guard
from envsdk.base.processes.supervised import Share, play_supervised
from envsdk.base.settings.options import Argument, Count, Option, split_names
from envsdk.base.settings.problems import describe
from envsdk.base.store.shard_plan import plan_shards, usual_shard_size
from envsdk.base.store.shards import fingerprint, utc_now
from envsdk.base.store.source_digest import source_digest
from envsdk.base.store.tally import Tally, results_by_role, unscorable, wilson_interval
from envsdk.config import RunConfig
from envsdk.config.checks import check
from envsdk.config.env_arguments import short_name
from envsdk.config.plugins import POLICIES, arguments, environment_class, environment_spec
from envsdk.config.rlvr import PROMPTS_ENV, source_of
from envsdk.config.role_models import Opponent
from envsdk.config.section_checks import BUILT_IN
from envsdk.config.start_checks import prompt_notes
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.players import POLICY, Result
from envsdk.contracts.trajectory import Task, Trajectory
from envsdk.rewards.prompt_data.opening import open_prompts
from envsdk.rollouts.play.eval_spec import ENTRY_POINT_GROUP, EvalSpec, evaluations_named
from envsdk.rollouts.play.evaluation_log import log_in
from envsdk.rollouts.play.model import TinyPolicyMaker, find_model_folder
from envsdk.rollouts.play.options import PlayOptions, TaskOptions
from envsdk.rollouts.play.pass_at_k import (
    PairedDifference,
    PassAtK,
    outcomes_by_task,
    paired_difference,
    pass_at_k,
    shown_ks,
)
from envsdk.rollouts.play.player import Player, make_player, package_versions
from envsdk.rollouts.play.policy_form import PolicyForm
from envsdk.rollouts.play.source import Source, evaluation_source, resolve_source

FORMAT = "envsdk.evaluation/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """How a policy did on a task list."""

    config: dict[str, Any]
    """All that decides which tasks were played and how, as in a collection's manifest."""
    versions: dict[str, str]
    trajectories: list[Trajectory]
    """In the order of the task list, tag by tag; samples of a task side by side."""
    max_failed_share: float = MAX_FAILED_SHARE
    """The configuration's."""
    notes: Sequence[str] = ()
    """Which rows of prompt data were not asked, and why."""
    log: Path | None = None
    """Folder of the log, a data set of all episodes; None when nothing was written."""

    @property
    def name(self) -> str:
        """The evaluation, environment or file that was played."""
        return str(self.config["evaluation"]["name"])

    @property
    def samples_per_task(self) -> int:
        """Episodes of each task."""
        return int(self.config.get("samples_per_task", 1))

    def pass_at(self, k: int, tag: str | None = None) -> PassAtK:
        """The chance that at least one of `k` samples solves a task, over the tasks of `tag` or of all tags.

        ValueError unless `k` is from 1 to `samples_per_task`.
        """
        if k > self.samples_per_task:
            raise ValueError(f"pass@{k} needs samples_per_task of at least {k}, not {self.samples_per_task}")
        return pass_at_k(
            outcomes_by_task(each for each in self.trajectories if tag in (None, each.task.tag)), k
        )

    def against(self, baseline: Evaluation) -> PairedDifference | None:
        """How much more often the same tasks are solved than by `baseline`.

        None when none has an outcome under both, or when other tasks were played.
        """
        ours, theirs = ([(each.task, each.seed) for each in run.trajectories] for run in (self, baseline))
        if ours != theirs or self.config["prompts"] != baseline.config["prompts"]:
            return None
        return paired_difference(outcomes_by_task(self.trajectories), outcomes_by_task(baseline.trajectories))

    @property
    def problem(self) -> str:
        """Why the scores count for nothing: a larger share failed than the configuration allows. Or empty."""
        total = self.total
        share = self.max_failed_share
        return too_many_failed(total.num_failed, total.num_episodes, share, total.describe_failures())

    @property
    def by_tag(self) -> dict[str, Tally]:
        tallies: dict[str, Tally] = {}
        for trajectory in self.trajectories:
            tallies.setdefault(trajectory.task.tag, Tally()).add(trajectory)
        return tallies

    @property
    def by_role(self) -> dict[tuple[str, str], Counter[Result]]:
        """How episodes with an outcome went for each tag and role that the policy played."""
        return results_by_role(self.trajectories)

    @property
    def total(self) -> Tally:
        return Tally.of(self.trajectories)

    def to_json(self, baseline: Evaluation | None = None) -> dict[str, Any]:
        """What `envsdk evaluate --json` writes, with the difference to another evaluation."""
        difference = None if baseline is None or baseline is self else self.against(baseline)
        return {
            "format": FORMAT,
            "created_at": utc_now(),
            "log": None if self.log is None else str(self.log),
            "config": self.config,
            "versions": self.versions,
            **({"difference": difference.to_json()} if difference else {}),
            "notes": [*self.notes, *filter(None, [unscorable(self.trajectories)])],
            "total": {**_scores(self.total), **self._passes(None)},
            "by_tag": {tag: {**_scores(tally), **self._passes(tag)} for tag, tally in self.by_tag.items()},
            **({"by_role": [_wins(*each) for each in self.by_role.items()]} if self.by_role else {}),
            "episodes": [_episode(trajectory) for trajectory in self.trajectories],
        }

    def _passes(self, tag: str | None) -> dict[str, Any]:
        """pass@k, and the interval of the rate that it implies; nothing with one sample a task."""
        if self.samples_per_task == 1:
            return {}
        passes = {k: self.pass_at(k, tag) for k in shown_ks(self.samples_per_task)}
        return {
            "success_rate_95": list(passes[1].interval),
            "pass_at": {str(k): found.to_json() for k, found in passes.items()},
        }


class _PlayOptions(PlayOptions):
    concurrency: Count | None = None
    """Episodes at the same time."""


class EvaluateOptions(TaskOptions):
    """What `envsdk evaluate` takes."""

    source: Annotated[str | Path | RunConfig, Argument("NAME")]
    """An evaluation (`--list`), a file that defines some, a file of prompts, a registered environment id
    (`envsdk envs`), or a run's YAML file: a path, or the name of a shipped example."""
    reward: Annotated[str | None, Option(metavar="NAME")] = None
    """For a file of prompts (JSONL, JSON, Parquet): the reward function that scores replies, such as math."""
    num_episodes: Annotated[Count | None, Option("--episodes", "-n")] = None
    """Tasks, over all tags; those of the evaluation, the YAML's `val_batch_size`, or 100, when absent."""
    samples_per_task: Annotated[Count | None, Option("--samples-per-task", "-k")] = None
    """Episodes of each task, 1 or the evaluation's when absent; with several, pass@k is shown."""
    policy: str = "model"
    """Who plays: oracle, random, scripted, model, endpoint, a plug-in's name or package.module:Class."""
    model: Annotated[Path | None, Option(metavar="FOLDER_OR_CHECKPOINT")] = None
    """For --policy model: a Hugging Face folder, a run, its checkpoints/best or step_N, a model's name
    such as smollm2. The YAML's `pretrain` when absent."""
    opponent: Annotated[str | None, Option(metavar="NAME")] = None
    """Who plays the other roles of environments of several players: oracle, random, another policy by name,
    or what --model takes. The policy's role changes from task to task. As `players` says when absent."""
    greedy: bool = False
    """Sample at temperature 0."""
    seed: Annotated[int | None, Field(ge=0)] = None
    """Seed of tasks and sampling; the YAML's, or 42, when absent."""
    split: str = "val"
    """Which tasks: val, train, or any other name."""
    tags: Annotated[tuple[str, ...] | None, Option(reads=split_names)] = None
    """Tags to play, in equal parts: repeat the option, or separate them by commas. Those of the YAML's
    val_env_manager when absent."""
    options: PlayOptions = _PlayOptions()
    out: Annotated[Path | None, Option("--out", "-o", metavar="DIR")] = None
    """Folder of the log, which has every episode, or of several logs; continued if it is there."""
    json_file: Annotated[Path | None, Option("--json", metavar="FILE")] = None
    """Write the results, episode by episode, to FILE."""


def evaluate(
    options: EvaluateOptions,
    *,
    spec: EvalSpec | None = None,
    logs: Path | None = None,
    command: Sequence[str] = (),
    supervised: bool = False,
    on_start: Callable[[int, int], None] | None = None,
    on_played: Callable[[Trajectory], None] | None = None,
    on_turns: Callable[[int], None] | None = None,
    make_tiny_policy: TinyPolicyMaker | None = None,
    form: PolicyForm | None = None,
) -> Evaluation:
    """Play the first tasks of `options.split`, over all tags.

    `spec` is played instead of what `options.source` names. Where `options.out` is not given, `logs` is a
    folder in which the log has a name that stands for all that decides the episodes. The other arguments are
    those of `envsdk.rollouts.play.collection.collect`. Failed episodes are part of the result.
    Raises ConfigurationError.
    """
    if supervised:
        check_guard()
    spec = spec or _spec_of(options)
    source = source_of_evaluation(options, spec)
    if options.opponent is not None:
        source = replace(source, config=_against(source.config, options.opponent))
    num_tasks = options.num_episodes or source.config.val_batch_size
    tasks_by_tag = source.episodes_by_tag(num_tasks, split=options.split, tags=options.tags)
    player = make_player(
        source,
        options,
        options.options,
        tags=tasks_by_tag,
        greedy=options.greedy,
        make_tiny_policy=make_tiny_policy,
        form=form,
    )
    samples = options.samples_per_task or (spec.samples_per_task if spec else 1)
    episodes = {tag: count * samples for tag, count in tasks_by_tag.items()}
    config = {
        "evaluation": {"name": source.name, **({"version": spec.version} if spec else {})},
        "episodes": episodes,
        **({"samples_per_task": samples} if samples > 1 else {}),
        "split": options.split,
        **player.describe(),
        **_content(source.config, tasks_by_tag, options.policy),
    }
    solved_at = spec.solved_at if spec else None
    if solved_at is not None:
        config["solved_at"] = solved_at
    shard_size = -(-usual_shard_size(sum(episodes.values())) // samples) * samples
    plans = plan_shards(episodes, split=options.split, shard_size=shard_size, samples_per_task=samples)
    tasks = dict(chain.from_iterable(plan.tasks() for plan in plans))
    versions = package_versions(with_model=player.model is not None)
    folder = options.out or (None if logs is None else logs / _log_name(source.name, options, config))
    opened = log_in(folder, config, plans, versions=versions, command=command) if folder else nullcontext()
    with opened as log:
        ended = {} if log is None else log.played
        if on_start is not None:
            on_start(len(ended), len(tasks))

        def on_trajectory(position: int, trajectory: Trajectory) -> None:
            if solved_at is not None and trajectory.failure is None:
                trajectory = replace(trajectory, success=trajectory.total_reward >= solved_at)
            if log is not None:
                log.add(position, trajectory)
            # Token logs of a long evaluation would fill the memory, and nobody reads them.
            ended[position] = replace(trajectory, tokens=None)
            if on_played is not None:
                on_played(trajectory)

        to_play = {position: task for position, task in tasks.items() if position not in ended}
        if to_play and supervised and player.may_hang and form is None:
            shares = [_Tasks(player, to_play, samples)]
            play_supervised(shares, lambda ended: on_trajectory(*ended), on_turns)
        elif to_play:
            player.play(to_play.items(), on_trajectory, group_size=samples)
    order = {tag: number for number, tag in enumerate(episodes)}
    return Evaluation(
        config=config,
        versions=versions if log is None else log.manifest.versions,
        trajectories=[ended[each] for each in sorted(tasks, key=lambda each: (order[tasks[each].tag], each))],
        max_failed_share=source.config.max_failed_share,
        notes=prompt_notes(source.config),
        log=folder,
    )


def source_of_evaluation(options: EvaluateOptions, spec: EvalSpec | None) -> Source:
    """What is played. ConfigurationError where nothing has the name, or a key is wrong."""
    if spec is not None:
        return evaluation_source(spec, options.overrides)
    known = plugin_names(ENTRY_POINT_GROUP)
    return resolve_source(options.source, options.overrides, evaluations=known)


def _spec_of(options: EvaluateOptions) -> EvalSpec | None:
    """The evaluation that `source` names; None for an environment or a run."""
    if isinstance(options.source, RunConfig):
        return None
    found = evaluations_named(str(options.source), reward=options.reward)
    if len(found) > 1:
        names = ", ".join(each.name for each in found)
        raise ConfigurationError(
            f"{options.source} defines several evaluations: name one of {names} behind a colon"
        )
    return found[0] if found else None


def _content(config: RunConfig, tags: Iterable[str], policy: str) -> dict[str, Any]:
    """Digests of the code of environments, rewards and policy, and of each tag's prompts."""
    played = {tag: config.custom_envs[tag] for tag in tags}
    classes = [environment_class(environment_spec(each.env_type)) for each in played.values()]
    return {
        "code": source_digest(classes, [policy, *(each.env_config for each in played.values())]),
        "prompts": {
            tag: open_prompts(source_of(arguments(each))).digest()
            for tag, each in played.items()
            if each.env_type == PROMPTS_ENV
        },
    }


def _log_name(name: str, options: EvaluateOptions, config: Mapping[str, Any]) -> str:
    """The name of a log's folder: what is played, by whom, and a digest of all that decides the episodes."""
    who = options.policy if options.model is None else options.model.name
    readable = re.sub(r"[^A-Za-z0-9._-]+", "_", f"{short_name(name) or Path(name).stem}-{who}")
    return f"{readable}-{fingerprint(config)[:8]}"


class _Tasks(Share[tuple[int, Trajectory]]):
    """An evaluation's tasks by position, for a process that plays them."""

    def __init__(self, player: Player, tasks: dict[int, Task], samples_per_task: int) -> None:
        self._player = player
        self._tasks = tasks
        self._samples_per_task = samples_per_task

    @property
    def num_environments(self) -> int:
        return self._player.num_slots

    def play(self, send: Callable[[tuple[int, Trajectory]], None]) -> None:
        self._player.play(
            self._tasks.items(),
            lambda position, ended: send((position, ended)),
            group_size=self._samples_per_task,
        )

    def heard(self, event: tuple[int, Trajectory]) -> None:
        del self._tasks[event[0]]

    def isolated(self) -> _Tasks:
        return _Tasks(self._player.isolated(), self._tasks, self._samples_per_task)


def _scores(tally: Tally) -> dict[str, Any]:
    low, high = wilson_interval(tally.num_successes, tally.num_scored)
    return {
        **tally.to_json(),
        "success_rate_95": [low, high],
        "mean_reward": tally.mean_reward,
        "mean_turns": tally.mean_turns,
    }


def _wins(place: tuple[str, str], results: Counter[Result]) -> dict[str, Any]:
    low, high = wilson_interval(results[Result.WIN], results.total())
    counts = {result.value: results[result] for result in Result}
    return {"tag": place[0], "role": place[1], **counts, "win_rate_95": [low, high]}


def _against(config: RunConfig, opponent: str) -> RunConfig:
    """The configuration with the policy and an opponent in every tag. Raises ConfigurationError."""
    models = {name: each for name, each in config.opponents.items() if name == opponent}
    if not models and opponent not in (*BUILT_IN, *plugin_names(POLICIES)) and ":" not in opponent:
        find_model_folder(Path(opponent), option="--opponent")
        models, opponent = {"opponent": Opponent(pretrain=opponent)}, "opponent"
    tags = {
        tag: each.model_copy(update={"players": [POLICY, opponent]})
        for tag, each in config.custom_envs.items()
    }
    config = config.model_copy(update={"custom_envs": tags, "opponents": models})
    if problems := check(config, for_training=False):
        raise ConfigurationError(describe(problems, source="--opponent", origin=lambda path: ""))
    return config


def _episode(trajectory: Trajectory) -> dict[str, Any]:
    failure, seats = trajectory.failure, trajectory.seats
    success, reward = trajectory.score
    return {
        "tag": trajectory.task.tag,
        "index": trajectory.task.index,
        "seed": trajectory.seed,
        "task": trajectory.task_name or None,
        "outcome": trajectory.outcome.value,
        "success": success,
        "reward": reward,
        **({"players": {role: seat.player for role, seat in seats.items()}} if seats else {}),
        "turns": len(trajectory.turns),
        "failure": None
        if failure is None
        else {"boundary": failure.boundary.value, "kind": failure.kind, "message": failure.message},
    }
