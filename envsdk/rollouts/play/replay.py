"""Play recorded actions again and compare, or rescore a data set.

    result = replay(Path("demos"))
    result.difference          # None when every episode took the course that was recorded

The same `TrajEnvManager` plays as in collecting, with environments isolated as usual; only the replies come
from the recording.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envsdk.base.plugins import load_function, load_object
from envsdk.base.store.shards import Manifest
from envsdk.config.env_arguments import env_config_from
from envsdk.contracts.failures import Boundary, ConfigurationError, EnvsdkError
from envsdk.contracts.policy import Policy, Reply, SequenceFull, TurnContext
from envsdk.contracts.prompts import SUMMARY
from envsdk.contracts.segments import is_learned
from envsdk.contracts.trajectory import Outcome, Trajectory, Turn
from envsdk.rewards.loading import reward_class
from envsdk.rewards.reward import RewardFunction
from envsdk.rollouts.datasets.differences import SCORES, Difference, first_difference
from envsdk.rollouts.datasets.reading import DataSet, TagRecord, open_dataset
from envsdk.rollouts.datasets.rescoring import scored_by, write_rescored

if TYPE_CHECKING:
    from envsdk.managers.traj_env_manager import TagSetup, TrajEnvManager

_NUM_SLOTS = 4
"""Episodes at a time; more than one helps environments that run on threads or in processes."""


@dataclass(slots=True)
class ReplayResult:
    """How often replayed episodes differ from the recording, and where."""

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
            learned=is_learned(recorded),
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
        from envsdk.managers.episode import EpisodeOrder

        tag = recorded.task.tag
        free = self._free.setdefault(tag, [])
        manager, policy = free.pop() if free else self._open(tag)
        policy.turns = [turn for turn in recorded.turns if turn.role != SUMMARY]
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
        replayed = replace(replayed, turns=_with_summaries(replayed.turns, recorded.turns))
        if not recorded.seats.keys() == replayed.seats.keys() != set():
            return replayed
        # The recording plays all roles; who played them is known from it.
        seats = {
            role: replace(seat, player=recorded.seats[role].player) for role, seat in replayed.seats.items()
        }
        replayed = replace(replayed, seats=seats)
        return replace(replayed, success=replayed.has_won)

    def _open(self, tag: str) -> tuple[TrajEnvManager, RecordedPolicy]:
        from envsdk.managers.traj_env_manager import TrajEnvManager
        from envsdk.rollouts.play.local_runner import TaskListLeases

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


def _with_summaries(played: Sequence[Turn], recorded: Sequence[Turn]) -> list[Turn]:
    """The summaries of the recording, which no environment answers, stand where they stood."""
    turns = list(played)
    for number, turn in enumerate(recorded):
        if turn.role == SUMMARY and number <= len(turns):
            turns.insert(number, turn)
    return turns


def _setup(record: TagRecord, env_config: Mapping[str, Any], with_state_hashes: bool) -> TagSetup:
    from envsdk.base.registry import spec
    from envsdk.config.plugins import environment_class
    from envsdk.contracts.env import AnyTextEnv
    from envsdk.managers.env_host import EnvBlueprint
    from envsdk.managers.traj_env_manager import TagSetup

    if record.env_manager is not None:
        raise ConfigurationError(
            f"tag {record.tag} was played by an agent ({record.env_manager}), whose replies are no actions "
            "of its environment: it cannot be replayed"
        )
    if not record.env_type:
        raise ConfigurationError("sessions of `envsdk serve` have no environment to replay")
    env_spec = spec(record.env_type)
    constructor: Any = environment_class(env_spec)
    has_hash = isinstance(constructor, type) and issubclass(constructor, AnyTextEnv)
    return TagSetup(
        tag=record.tag,
        blueprint=EnvBlueprint.of(env_spec, {**record.env_config, **env_config}, trains=with_state_hashes),
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
    """A run's tags that were played; a collection has no others."""
    if dataset.manifest is not None:
        return dataset.tags
    from envsdk.base.store.trajectories import read_columns

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
        rewards: A reward function by name, for episodes of `envsdk/Prompts-v1`; or `package.module:function`
            from a trajectory to its rewards: one per turn, or one number for the last turn. When None,
            episodes are played again and take the rewards, metrics and success that their environments give
            now.
        overrides: `key=value` arguments of the environments, where they are played again; of the reward
            function, where one is named.

    Raises ConfigurationError, and EnvsdkError when an episode no longer takes the course that was recorded.
    """
    from envsdk.rollouts.play.player import package_versions

    if isinstance(dataset, Path):
        dataset = open_dataset(dataset)
    env_config = env_config_from(overrides, called="override")
    how: dict[str, Any] = {"env_config": env_config}
    ignored = SCORES
    if rewards is not None and _is_reward_function(rewards):
        _only_prompts(dataset.tags, rewards)
        how = {"rewards": rewards, "settings": env_config}
        env_config = {"reward": {"worker_cls": rewards, **env_config}}
        # What a prompt's environment says at last is the verdict.
        ignored = SCORES | {"final_observation"}
    elif rewards is not None:
        if env_config:
            raise ConfigurationError("--rewards asks no environment: leave out key=value arguments")
        return write_rescored(
            dataset,
            out,
            scored_by(load_function(rewards, where="--rewards: ")),
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
                yield recorded if recorded.outcome is Outcome.FAILED else _rescored(*next(pairs), ignored)

        return write_rescored(
            dataset,
            out,
            played_again,
            how=how,
            versions=package_versions(with_model=False),
            command=command,
            on_shard=on_shard,
        )


def _rescored(recorded: Trajectory, replayed: Trajectory, ignored: frozenset[str]) -> Trajectory:
    failure = replayed.failure
    if failure is not None and failure.boundary is Boundary.REWARD:
        return replace(recorded, outcome=Outcome.FAILED, failure=failure, success=False)
    found = first_difference(recorded, replayed, ignored=ignored)
    if found is not None:
        raise EnvsdkError(
            f"cannot be rescored by its environment, which no longer takes the recorded course:\n{found}"
        )
    turns = [
        replace(turn, reward=again.reward, metrics=again.metrics, details=again.details)
        for turn, again in zip(recorded.turns, replayed.turns, strict=True)
    ]
    return replace(
        recorded,
        turns=tuple(turns),
        success=replayed.success,
        seats=replayed.seats,
        final_observation=replayed.final_observation,
    )


_PROMPTS = "envsdk/Prompts-v1"


def _is_reward_function(name: str) -> bool:
    """Whether `--rewards` names a reward function, and no function of trajectories."""
    if ":" not in name:
        reward_class(name)
        return True
    with contextlib.suppress(ConfigurationError):
        kind: Any = load_object(name)
        return isinstance(kind, type) and issubclass(kind, RewardFunction)
    return False


def _only_prompts(tags: Mapping[str, TagRecord], rewards: str) -> None:
    for tag, record in tags.items():
        if record.env_type != _PROMPTS:
            raise ConfigurationError(
                f"--rewards: the reward function {rewards!r} scores responses to prompts; tag {tag} plays "
                f"{record.env_type or 'no environment'}: name a function of trajectories "
                "(package.module:function)"
            )
