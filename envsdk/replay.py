"""`python -m envsdk.replay DATASET`: play recorded actions again, report the first difference, or rescore.

    result = replay(Path("demos"))
    result.difference          # None when every episode took the course that was recorded

Episodes are played by the same `TrajEnvManager` as in collecting, with their environments where they
always run; only the replies come from the recording.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envsdk.datasets.differences import SCORES, Difference, first_difference
from envsdk.datasets.reading import DataSet, TagRecord, open_dataset
from envsdk.datasets.rescoring import scored_by, write_rescored
from envsdk.display.command_line import canonical_command, run_app
from envsdk.display.terminal import say
from envsdk.failures import ConfigurationError, EnvsdkError
from envsdk.plugins import load_object
from envsdk.policy import Policy, Reply, SequenceFull, TurnContext
from envsdk.store.shards import Manifest
from envsdk.trajectory import Outcome, Trajectory, Turn

if TYPE_CHECKING:
    from envsdk.managers.traj_env_manager import TagSetup, TrajEnvManager

_NUM_SLOTS = 4
"""Episodes at a time; more than one helps environments that run on threads or in processes."""
_MAX_SHOWN = 20


@dataclass(slots=True)
class ReplayResult:
    """What came of playing a data set again."""

    num_episodes: int = 0
    """Played again."""
    num_turns: int = 0
    num_failed: int = 0
    """Recorded as failed, and not played again."""
    differences: list[Difference] = field(default_factory=list)
    """The first difference of each episode that has one."""

    @property
    def difference(self) -> Difference | None:
        """The first in the data set."""
        return self.differences[0] if self.differences else None


class RecordedPolicy(Policy):
    """Replies what was recorded. Plays one episode at a time: set `turns` before each."""

    name = "recorded"

    def __init__(self) -> None:
        self.turns: Sequence[Turn] = ()

    async def act(self, turn: TurnContext) -> Reply:
        if turn.turn_index >= len(self.turns):
            # The recording was truncated here by the length of its sequence, or by a limit that is no more.
            raise SequenceFull(num_tokens=0, max_new_tokens=0, sequence_length=0)
        recorded = self.turns[turn.turn_index]
        return Reply(
            text=recorded.reply,
            finish_reason=recorded.finish_reason,
            response_start=recorded.response_start,
            response_end=recorded.response_end,
        )


class Replayer:
    """Plays recorded episodes again. Owns environments, which are used for one episode after another.

    with Replayer(dataset.tags) as replayer:
        for recorded, replayed in replayer.replay(dataset.episodes()): ...
    """

    def __init__(
        self,
        tags: Mapping[str, TagRecord],
        env_config: Mapping[str, Any] | None = None,
        *,
        with_state_hashes: bool = False,
    ) -> None:
        """`env_config` replaces single arguments of the environments. Raises ConfigurationError."""
        self._setups = {
            tag: _setup(record, env_config or {}, with_state_hashes) for tag, record in tags.items()
        }
        self._free: dict[str, list[tuple[TrajEnvManager, RecordedPolicy]]] = {}
        self._managers: list[TrajEnvManager] = []
        self._tasks: set[asyncio.Task[Trajectory]] = set()
        self._runner = asyncio.Runner()

    def __enter__(self) -> Replayer:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._close())
        self._runner.close()

    def replay(self, episodes: Iterable[Trajectory]) -> Iterator[tuple[Trajectory, Trajectory]]:
        """`(recorded, replayed)` in order; failed episodes are left out."""
        pairs = self._pairs(trajectory for trajectory in episodes if trajectory.outcome is not Outcome.FAILED)

        async def step() -> tuple[Trajectory, Trajectory] | None:
            return await anext(pairs, None)

        while (pair := self._runner.run(step())) is not None:
            yield pair

    async def _pairs(self, episodes: Iterable[Trajectory]) -> AsyncIterator[tuple[Trajectory, Trajectory]]:
        running: deque[tuple[Trajectory, asyncio.Task[Trajectory]]] = deque()
        for recorded in episodes:
            task = asyncio.create_task(self._play(recorded))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            running.append((recorded, task))
            if len(running) == _NUM_SLOTS:
                first, task = running.popleft()
                yield first, await task
        for recorded, task in running:
            yield recorded, await task

    async def _play(self, recorded: Trajectory) -> Trajectory:
        from envsdk.managers.traj_env_manager import EpisodeOrder

        tag = recorded.task.tag
        free = self._free.setdefault(tag, [])
        manager, policy = free.pop() if free else self._open(tag)
        policy.turns = recorded.turns
        order = EpisodeOrder(
            lease_id=0,
            group_id=recorded.group_id,
            member=0,
            task=recorded.task,
            seed=recorded.seed,
            policy_seed=0,
        )
        replayed = await manager.play(order)
        free.append((manager, policy))
        return replayed

    def _open(self, tag: str) -> tuple[TrajEnvManager, RecordedPolicy]:
        from envsdk.managers.traj_env_manager import TrajEnvManager
        from envsdk.play.local_runner import TaskListLeases

        policy = RecordedPolicy()
        leases = TaskListLeases((), 0, lambda position, trajectory: None)
        manager = TrajEnvManager(
            slot_id=f"{tag}/replay", setup=self._setups[tag], policy=policy, leases=leases
        )
        self._managers.append(manager)
        return manager, policy

    async def _close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for manager in self._managers:
            # Without work it closes its environment and returns.
            await manager.run_rollout_loop()


def _setup(record: TagRecord, env_config: Mapping[str, Any], with_state_hashes: bool) -> TagSetup:
    from envsdk.config.plugins import environment_class
    from envsdk.env import TextEnv
    from envsdk.managers.env_host import EnvBlueprint
    from envsdk.managers.traj_env_manager import TagSetup
    from envsdk.registry import spec

    if record.env_manager is not None:
        raise ConfigurationError(
            f"tag {record.tag} was played by an agent ({record.env_manager}), whose replies are no actions "
            "of its environment: it cannot be replayed"
        )
    env_spec = spec(record.env_type)
    constructor: Any = environment_class(env_spec)
    has_hash = isinstance(constructor, type) and issubclass(constructor, TextEnv)
    return TagSetup(
        tag=record.tag,
        blueprint=EnvBlueprint(
            spec=env_spec,
            env_config={**record.env_config, **env_config},
            isolation=env_spec.isolation,
            start_timeout_s=env_spec.start_timeout_s,
            reset_timeout_s=env_spec.reset_timeout_s,
            step_timeout_s=env_spec.step_timeout_s,
        ),
        prompts=record.prompts,
        max_turns=record.max_turns,
        max_new_tokens=record.max_new_tokens,
        with_state_hashes=with_state_hashes and has_hash and "state_hash" in constructor.abilities(),
    )


def replay(
    dataset: DataSet | Path,
    *,
    num_episodes: int | None = None,
    tolerance: float = 0.0,
    keep_going: bool = False,
    on_played: Callable[[Trajectory], None] | None = None,
) -> ReplayResult:
    """Play the first `num_episodes` of `dataset` again (all when None) and compare.

    Stops at the first difference unless `keep_going`. Numbers differ when they are more than `tolerance`
    apart. Raises ConfigurationError and StorageError; what an environment raises is a difference.
    """
    if isinstance(dataset, Path):
        dataset = open_dataset(dataset)
    if num_episodes is not None and num_episodes < 1:
        raise ConfigurationError(f"--episodes: must be at least 1, not {num_episodes}")
    if not tolerance >= 0:
        raise ConfigurationError(f"--tolerance: must be at least 0, not {tolerance:g}")
    result = ReplayResult()

    def counted() -> Iterator[Trajectory]:
        assert isinstance(dataset, DataSet)
        for trajectory in itertools.islice(dataset.episodes(), num_episodes):
            result.num_failed += trajectory.outcome is Outcome.FAILED
            yield trajectory

    # Only training records hashes.
    with Replayer(_tags_in_use(dataset), with_state_hashes=dataset.manifest is None) as replayer:
        for recorded, replayed in replayer.replay(counted()):
            result.num_episodes += 1
            result.num_turns += len(recorded.turns)
            found = first_difference(recorded, replayed, tolerance=tolerance)
            if on_played is not None:
                on_played(recorded)
            if found is not None:
                result.differences.append(found)
                if not keep_going:
                    break
    return result


def _tags_in_use(dataset: DataSet) -> Mapping[str, TagRecord]:
    """Of a run's tags those that were played; a collection has no others."""
    if dataset.manifest is not None:
        return dataset.tags
    from envsdk.store.trajectories import read_columns

    played = {tag for shard in dataset.shards for tag in read_columns(shard, ["tag"])["tag"]}
    if unknown := sorted(played - dataset.tags.keys()):
        raise ConfigurationError(
            f"{dataset.folder}: its configuration has no tag {unknown[0]}, which was played"
        )
    return {tag: record for tag, record in dataset.tags.items() if tag in played}


def rescore(
    dataset: DataSet | Path,
    out: Path,
    *,
    rewards: str | None = None,
    overrides: Sequence[str] = (),
    command: Sequence[str] = (),
    on_shard: Callable[[int], None] | None = None,
) -> Manifest:
    """Write `dataset` with other rewards into `out`.

    Args:
        rewards: `package.module:function` from a trajectory to its rewards: one per turn, or one number for
            the last turn. When None, episodes are played again and take the rewards, metrics and success that
            their environments give now.
        overrides: `key=value` arguments of the environments, where they are played again.

    Raises ConfigurationError, and EnvsdkError when an episode no longer takes the course that was recorded.
    """
    from envsdk.play.player import package_versions

    if isinstance(dataset, Path):
        dataset = open_dataset(dataset)
    env_config = _env_config(overrides)
    if rewards is not None:
        if env_config:
            raise ConfigurationError("--rewards asks no environment: leave out key=value arguments")
        return write_rescored(
            dataset,
            out,
            scored_by(_function(rewards)),
            how={"rewards": rewards},
            versions=package_versions(with_model=False),
            command=command,
            on_shard=on_shard,
        )
    with Replayer(dataset.tags, env_config) as replayer:

        def played_again(episodes: Iterable[Trajectory]) -> Iterator[Trajectory]:
            kept = list(episodes)
            pairs = replayer.replay(kept)
            for recorded in kept:
                yield recorded if recorded.outcome is Outcome.FAILED else _rescored(*next(pairs))

        return write_rescored(
            dataset,
            out,
            played_again,
            how={"env_config": env_config},
            versions=package_versions(with_model=False),
            command=command,
            on_shard=on_shard,
        )


def _rescored(recorded: Trajectory, replayed: Trajectory) -> Trajectory:
    found = first_difference(recorded, replayed, ignored=SCORES)
    if found is not None:
        raise EnvsdkError(
            f"cannot be rescored by its environment, which no longer takes the recorded course:\n{found}"
        )
    turns = [
        replace(turn, reward=again.reward, metrics=again.metrics)
        for turn, again in zip(recorded.turns, replayed.turns, strict=True)
    ]
    return replace(recorded, turns=tuple(turns), success=replayed.success)


def _env_config(overrides: Sequence[str]) -> dict[str, Any]:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    for override in overrides:
        if "=" not in override:
            raise ConfigurationError(f"{override!r} is no override; write key=value, such as size=6")
    try:
        container = OmegaConf.to_container(OmegaConf.from_dotlist(list(overrides)), resolve=True)
    except (OmegaConfBaseException, ValueError) as error:
        raise ConfigurationError(f"{' '.join(overrides)}: {str(error).splitlines()[0]}") from error
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def _function(dotted_name: str) -> Callable[[Trajectory], float | Sequence[float]]:
    try:
        function: Any = load_object(dotted_name)
    except ConfigurationError as error:
        raise ConfigurationError(f"--rewards: {error}") from error
    if not callable(function):
        raise ConfigurationError(f"--rewards: {dotted_name!r} is no function")
    return function  # type: ignore[no-any-return]


app = typer.Typer(add_completion=False)


@app.command()
def command(
    folder: Annotated[
        Path, typer.Argument(metavar="DATASET", help="A folder that `collect` wrote, or a run's folder.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="With --rescore: arguments of the environments, changed."),
    ] = None,
    episodes: Annotated[int | None, typer.Option("--episodes", "-n", help="Only the first ones.")] = None,
    tolerance: Annotated[float, typer.Option(help="How far apart rewards and metrics may be.")] = 0.0,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Look for a difference in every episode.")
    ] = False,
    rescores: Annotated[
        bool,
        typer.Option(
            "--rescore",
            help="Write a data set with the rewards that the environments, or --rewards, give now.",
        ),
    ] = False,
    rewards: Annotated[
        str | None,
        typer.Option(
            metavar="package.module:function",
            help="With --rescore: a function of the trajectory, in place of its environment.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="With --rescore: the new data set.")
    ] = None,
) -> None:
    """Play the recorded actions of a data set again and report the first difference.

    The exit code is 0 when every episode took the course that was recorded, and 1 when one did not.
    """
    from envsdk.display.episode_progress import EpisodeProgress

    dataset = open_dataset(folder)
    num_recorded = 0 if dataset.manifest is None else dataset.manifest.tally.num_episodes
    if not rescores:
        for option, value in (("--rewards", rewards), ("--out", out), ("KEY=VALUE", overrides)):
            if value:
                raise ConfigurationError(f"{option} is for --rescore")
        total = min(episodes or num_recorded, num_recorded) or episodes or 0
        with EpisodeProgress("replaying", total=total) as progress:
            result = replay(
                dataset,
                num_episodes=episodes,
                tolerance=tolerance,
                keep_going=keep_going,
                on_played=lambda recorded: progress.played(1, int(recorded.success), 0),
            )
        _report(result)
        return
    if out is None:
        raise ConfigurationError("--rescore needs --out DIR: where the new data set goes")
    if episodes is not None:
        raise ConfigurationError("--episodes is not for --rescore: a data set is rescored as a whole")
    with EpisodeProgress("rescoring", total=num_recorded) as progress:
        manifest = rescore(
            dataset,
            out,
            rewards=rewards,
            overrides=overrides or (),
            command=canonical_command("replay", sys.argv),
            on_shard=lambda num_episodes: progress.played(num_episodes, 0, 0),
        )
    before = dataset.manifest.tally if dataset.manifest is not None else manifest.tally
    say(
        f"{manifest.tally.num_episodes} episodes, mean reward {before.mean_reward or 0:.3f} -> "
        f"{manifest.tally.mean_reward or 0:.3f}: {out}"
    )


def _report(result: ReplayResult) -> None:
    skipped = f"; {result.num_failed} that were recorded as failed were left out" if result.num_failed else ""
    played = f"{result.num_episodes} episodes, {result.num_turns} turns played again{skipped}"
    if not result.num_episodes:
        raise EnvsdkError(f"nothing to compare: {played}")
    if not result.differences:
        say(f"no difference: {played}")
        return
    for difference in result.differences[:_MAX_SHOWN]:
        say(difference)
    if len(result.differences) > _MAX_SHOWN:
        say(f"and {len(result.differences) - _MAX_SHOWN} more episodes")
    raise EnvsdkError(f"{len(result.differences)} episode(s) differ: {played}")


def main(argv: list[str] | None = None) -> int:
    return run_app(app, argv, name="envsdk replay")


if __name__ == "__main__":
    sys.exit(main())
