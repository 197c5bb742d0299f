"""Play a frozen task list and count successes.

    evaluation = evaluate(EvaluateOptions.of(source="FrozenLake", policy="oracle", num_episodes=100))
    evaluation.total.success_rate

The tasks are the first ones of the split, one episode each, with seeds that depend on nothing but the
run's seed: two policies evaluated under the same seed play the same tasks, and so does validation
during training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from envsdk.base.display.scores import MAX_FAILED_SHARE, too_many_failed
from envsdk.base.processes.supervised import Share, play_supervised
from envsdk.base.settings.options import Argument, Count, Option, split_names
from envsdk.base.store.shards import utc_now
from envsdk.base.store.tally import Tally, wilson_interval
from envsdk.config import RunConfig
from envsdk.contracts.trajectory import Task, Trajectory
from envsdk.rollouts.play.model import TinyPolicyMaker
from envsdk.rollouts.play.options import PlayOptions, TaskOptions
from envsdk.rollouts.play.pass_at_k import PassAtK, outcomes_by_task, pass_at_k, shown_ks
from envsdk.rollouts.play.player import Player, make_player, package_versions
from envsdk.rollouts.play.policy_form import PolicyForm
from envsdk.rollouts.play.source import resolve_source

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
    def total(self) -> Tally:
        return Tally.of(self.trajectories)

    def to_json(self) -> dict[str, Any]:
        """What `envsdk evaluate --json` writes."""
        return {
            "format": FORMAT,
            "created_at": utc_now(),
            "config": self.config,
            "versions": self.versions,
            "total": {**_scores(self.total), **self._passes(None)},
            "by_tag": {tag: {**_scores(tally), **self._passes(tag)} for tag, tally in self.by_tag.items()},
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

    shown = (
        "source", "overrides", "num_episodes", "samples_per_task", "policy", "epsilon", "model", "greedy",
        "seed", "split", "tags", "endpoint", "endpoint_model", "api_key_env", "replies", "concurrency",
        "json_file",
    )  # fmt: skip

    source: Annotated[str | Path | RunConfig, Argument("ENV_OR_YAML")]
    """A registered environment id (`envsdk envs` lists them), or a run's YAML file: a path, or the name of a
    shipped example. The YAML's tags, prompts and limits are used."""
    num_episodes: Annotated[Count | None, Option("--episodes", "-n")] = None
    """Tasks, over all tags; the YAML's `val_batch_size`, or 100, when absent."""
    samples_per_task: Annotated[Count, Option("--samples-per-task", "-k")] = 1
    """Episodes of each task; with several, pass@k is shown."""
    policy: str = "model"
    """Who plays: oracle, random, scripted, model, endpoint, a plug-in's name or package.module:Class."""
    model: Annotated[Path | None, Option(metavar="FOLDER_OR_CHECKPOINT")] = None
    """For --policy model: a Hugging Face folder, a run, its checkpoints/step_N, or a model's name, such as
    smollm2. The YAML's `pretrain` when absent."""
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
    json_file: Annotated[Path | None, Option("--json", metavar="FILE")] = None
    """Write the results, episode by episode, to FILE."""


def evaluate(
    options: EvaluateOptions,
    *,
    supervised: bool = False,
    on_start: Callable[[int, int], None] | None = None,
    on_played: Callable[[Trajectory], None] | None = None,
    make_tiny_policy: TinyPolicyMaker | None = None,
    form: PolicyForm | None = None,
) -> Evaluation:
    """Play the first tasks of `options.split`, over all tags.

    The arguments are those of `envsdk.rollouts.play.collection.collect`. Failed episodes are part of the
    result.
    Raises ConfigurationError.
    """
    resolved = resolve_source(options.source, options.overrides)
    num_episodes = options.num_episodes or resolved.config.val_batch_size
    episodes_by_tag = resolved.episodes_by_tag(num_episodes, split=options.split, tags=options.tags)
    player = make_player(
        resolved,
        options,
        options.options,
        tags=episodes_by_tag,
        greedy=options.greedy,
        make_tiny_policy=make_tiny_policy,
        form=form,
    )
    samples = options.samples_per_task
    tasks = [
        Task(tag=tag, split=options.split, index=index)
        for tag, count in episodes_by_tag.items()
        for index in range(count)
        for _ in range(samples)
    ]
    if on_start is not None:
        on_start(0, len(tasks))
    ended: dict[int, Trajectory] = {}

    def on_trajectory(position: int, trajectory: Trajectory) -> None:
        # Token logs of a long evaluation would fill the memory, and nobody reads them.
        ended[position] = replace(trajectory, tokens=None)
        if on_played is not None:
            on_played(trajectory)

    if supervised and player.may_hang and form is None:
        shares = [_Tasks(player, dict(enumerate(tasks)), samples)]
        play_supervised(shares, lambda ended: on_trajectory(*ended))
    else:
        player.play(enumerate(tasks), on_trajectory, group_size=samples)
    return Evaluation(
        config={
            "episodes": {tag: count * samples for tag, count in episodes_by_tag.items()},
            **({"samples_per_task": samples} if samples > 1 else {}),
            "split": options.split,
            **player.describe(),
        },
        versions=package_versions(with_model=player.model is not None),
        trajectories=[ended[position] for position in range(len(tasks))],
        max_failed_share=resolved.config.max_failed_share,
    )


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
            lambda position, ended: send((position, replace(ended, tokens=None))),
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


def _episode(trajectory: Trajectory) -> dict[str, Any]:
    failure = trajectory.failure
    return {
        "tag": trajectory.task.tag,
        "index": trajectory.task.index,
        "seed": trajectory.seed,
        "outcome": trajectory.outcome.value,
        "success": trajectory.success,
        "reward": trajectory.total_reward,
        "turns": len(trajectory.turns),
        "failure": None
        if failure is None
        else {"boundary": failure.boundary.value, "kind": failure.kind, "message": failure.message},
    }
