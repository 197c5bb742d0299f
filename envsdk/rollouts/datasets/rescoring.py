"""A data set with other rewards: the same files with the same episodes, in another folder.

    replayed or scored episodes -> shards, one after the other -> formats -> card

After a kill the same command resumes; at most one file is scored again.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from envsdk.base.store.shard_plan import ShardPlan
from envsdk.base.store.shards import Manifest
from envsdk.base.store.trajectories import iter_trajectories
from envsdk.contracts.failures import ConfigurationError, EnvsdkError, describe_error
from envsdk.contracts.trajectory import Outcome, Trajectory
from envsdk.rollouts.datasets.finishing import collection_in
from envsdk.rollouts.datasets.formats import make_formats
from envsdk.rollouts.datasets.reading import DataSet

Rescore = Callable[[Iterable[Trajectory]], Iterable[Trajectory]]
"""Takes episodes and yields them with other rewards, in order."""
Score = Callable[[Trajectory], "float | Sequence[float]"]
"""The rewards of an episode, one per turn; or one number, for its last turn."""


def with_rewards(trajectory: Trajectory, scored: float | Sequence[float]) -> Trajectory:
    """The episode with these rewards; ConfigurationError when they are not one per turn."""
    if isinstance(scored, int | float):
        rewards = [0.0] * (len(trajectory.turns) - 1) + [float(scored)] * bool(trajectory.turns)
    else:
        rewards = [float(reward) for reward in scored]
    if len(rewards) != len(trajectory.turns):
        raise ConfigurationError(
            f"--rewards: {len(rewards)} rewards for the {len(trajectory.turns)} turns of episode "
            f"{trajectory.trajectory_id}; return one per turn, or one number for the last turn"
        )
    turns = [replace(turn, reward=reward) for turn, reward in zip(trajectory.turns, rewards, strict=True)]
    return replace(trajectory, turns=tuple(turns))


def scored_by(score: Score) -> Rescore:
    """Rescores by a function of the episode; failed ones keep what they have.

    EnvsdkError names the line and the episode when the function raises, or answers with no numbers.
    """

    def rescored(episodes: Iterable[Trajectory]) -> Iterator[Trajectory]:
        for trajectory in episodes:
            if trajectory.outcome is Outcome.FAILED:
                yield trajectory
            else:
                yield _scored(trajectory, score)

    return rescored


def _scored(trajectory: Trajectory, score: Score) -> Trajectory:
    try:
        return with_rewards(trajectory, score(trajectory))
    except ConfigurationError:
        raise
    except Exception as error:  # whatever a function of the user's may raise
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise EnvsdkError(
            f"--rewards: {describe_error(error)} ({frame.filename}:{frame.lineno}, for episode "
            f"{trajectory.trajectory_id}); return one number, or one per turn"
        ) from error


def write_rescored(
    dataset: DataSet,
    out: Path,
    rescore: Rescore,
    *,
    how: Mapping[str, Any],
    versions: Mapping[str, str],
    command: Sequence[str] = (),
    on_shard: Callable[[int], None] | None = None,
) -> Manifest:
    """Write the missing files of `dataset` with other rewards into `out`; `how` goes into its manifest.

    Raises ConfigurationError when `out` holds something else, and what `rescore` raises.
    """
    source = dataset.manifest
    if source is None:
        raise ConfigurationError(
            f"only a collection can be rescored: `Trajectories.save` makes one of {dataset.folder}"
        )
    if out.resolve() == dataset.folder.resolve():
        raise ConfigurationError("--out: name another folder than that of the data set itself")
    config = {**source.config, "rescored": {"from": source.fingerprint, **how}}
    plans = [
        ShardPlan(
            number=record.number,
            tag=record.tag,
            split=source.config["split"],
            first_index=record.first_index,
            num_episodes=record.num_episodes,
            first_position=0,
        )
        for record in source.shards.values()
    ]
    formats = make_formats(source.exports)
    with collection_in(
        out, config, plans, formats, versions=versions, command=command, license=source.license
    ) as (manifest, missing):
        for plan in missing:
            episodes = list(rescore(iter_trajectories(dataset.folder / plan.file_name)))
            selection = source.shards[plan.number].selection
            manifest.add_shard(out, plan, episodes, selection)
            if on_shard is not None:
                on_shard(len(episodes))
    return manifest
