"""`python -m envsdk.envs.swe.export DIR --format predictions|traj --out PATH`: for SWE-bench's tools.

    episodes = read_episodes(Path("data/swe"))
    rows = [prediction(episode) for episode in episodes]
    trajectory = mini_trajectory(episodes[0])

`envsdk collect --format swe-bench --format mini-swe-agent` writes the same next to a data set.
"""

from __future__ import annotations

import json
import sys
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar

from envsdk import __version__
from envsdk.base.display.model_command import command_of
from envsdk.base.display.terminal import say
from envsdk.base.settings.options import Argument, Option, Options
from envsdk.base.store.atomic import make_folder, write_atomically
from envsdk.base.store.trajectories import DISCARDED_PREFIX, iter_trajectories
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.trajectory import Outcome, Trajectory
from envsdk.envs.shell.replies import ACTION_FORMATS, ActionFormat, parse_reply
from envsdk.envs.swe import SPEC
from envsdk.envs.swe.observations import Ending, read_ending
from envsdk.envs.swe.task_list import TaskList, task_list
from envsdk.rollouts.datasets.formats import ExportFormat
from envsdk.rollouts.datasets.reading import DataSet, TagRecord, open_dataset

TRAJECTORY_FORMAT = "mini-swe-agent-1.1"


class Format(StrEnum):
    PREDICTIONS = "predictions"
    TRAJ = "traj"


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One trajectory, with what it was about."""

    instance_id: str
    trajectory: Trajectory
    ending: Ending | None
    """None where a limit outside the environment ended it: nothing was submitted."""
    tag: TagRecord
    model: str
    """Who played."""

    @property
    def submission(self) -> str:
        return "" if self.ending is None else self.ending.submission


def read_episodes(folder: Path) -> list[Episode]:
    """The SWE episodes of a data set (`envsdk.collect`) or of a training run, in the order of their files.

    Episodes that failed have no outcome and are left out. Raises ConfigurationError when `folder` is neither,
    or holds no tag of SWE.
    """
    return list(iter_episodes(open_dataset(folder)))


def iter_episodes(dataset: DataSet) -> Iterator[Episode]:
    """`read_episodes` of a data set that is open, one row group in memory at a time."""
    tags = {name: tag for name, tag in dataset.tags.items() if tag.env_type == SPEC.id}
    if not tags:
        raise ConfigurationError(f"{dataset.folder}: none of its tags is of {SPEC.id}")
    for shard in dataset.shards:
        if shard.name.startswith(DISCARDED_PREFIX):
            continue
        for trajectory in iter_trajectories(shard):
            tag = tags.get(trajectory.task.tag)
            if tag is not None and trajectory.outcome is not Outcome.FAILED:
                yield _episode(trajectory, tag, dataset.model or dataset.policy)


def prediction(episode: Episode) -> dict[str, str]:
    """The row that SWE-bench's evaluation takes."""
    return {
        "instance_id": episode.instance_id,
        "model_name_or_path": episode.model,
        "model_patch": episode.submission,
    }


def mini_trajectory(episode: Episode) -> dict[str, Any]:
    """What mini-swe-agent writes as `INSTANCE.traj.json`, and under `envsdk` what is known besides."""
    trajectory, ending = episode.trajectory, episode.ending
    exit_status = "LimitsExceeded" if ending is None else ending.exit_status
    return {
        "info": {
            "model_stats": {"instance_cost": 0.0, "api_calls": len(trajectory.turns)},
            "config": {
                "agent": {
                    "system_template": episode.tag.prompts.system,
                    "instance_template": episode.tag.prompts.template,
                    "step_limit": episode.tag.max_turns,
                    "cost_limit": 0.0,
                },
                "agent_type": SPEC.id,
                "environment": dict(episode.tag.env_config),
                "environment_type": SPEC.id,
                "model": {"model_name": episode.model},
                "model_type": "envsdk",
            },
            "mini_version": "",
            "exit_status": exit_status,
            "submission": episode.submission,
        },
        "messages": [*_messages(episode), _exit_message(exit_status, episode.submission)],
        "trajectory_format": TRAJECTORY_FORMAT,
        "instance_id": episode.instance_id,
        "envsdk": {
            "version": __version__,
            "trajectory_id": trajectory.trajectory_id,
            "group_id": trajectory.group_id,
            "resolved": trajectory.success,
            "reward": trajectory.total_reward,
            "outcome": trajectory.outcome.value,
            "verdict": "" if ending is None else ending.detail,
            "started_at": trajectory.started_at,
            "ended_at": trajectory.ended_at,
        },
    }


def samples(episodes: Iterable[Episode]) -> list[list[Episode]]:
    """Episodes so divided that each part has an instance at most once: first ones, second ones and so on."""
    by_instance: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        by_instance[episode.instance_id].append(episode)
    most = max(map(len, by_instance.values()), default=0)
    return [[played[n] for played in by_instance.values() if n < len(played)] for n in range(most)]


def write_predictions(episodes: Sequence[Episode], out: Path) -> list[Path]:
    """Write a JSONL file with a row per instance; further samples go to `NAME.1.jsonl` and so on."""
    written = []
    for number, sample in enumerate(samples(episodes)):
        path = out if number == 0 else out.with_suffix(f".{number}{out.suffix}")
        lines = (json.dumps(prediction(episode), ensure_ascii=False) for episode in sample)
        write_atomically(path, "".join(f"{line}\n" for line in lines).encode(errors="replace"))
        written.append(path)
    return written


def write_trajectories(episodes: Sequence[Episode], out: Path) -> list[Path]:
    """Write `INSTANCE/INSTANCE.traj.json` below `out`; further samples as `INSTANCE.1.traj.json` ..."""
    written = []
    for number, sample in enumerate(samples(episodes)):
        for episode in sample:
            name = file_name(episode.instance_id)
            folder = out / name
            make_folder(folder)
            path = folder / (f"{name}.{number}.traj.json" if number else f"{name}.traj.json")
            text = json.dumps(mini_trajectory(episode), indent=2, ensure_ascii=False)
            write_atomically(path, text.encode(errors="replace"))
            written.append(path)
    return written


def _messages(episode: Episode) -> Iterator[dict[str, Any]]:
    trajectory = episode.trajectory
    turns = iter(trajectory.turns)
    for message in episode.tag.line(trajectory.turns).messages:
        if message["role"] != "assistant":
            yield dict(message)
            continue
        turn = next(turns)
        command, note = parse_reply(turn.reply, _action_format(episode.tag))
        actions = [] if note else [{"command": command}]
        extra = {"actions": actions, "reward": turn.reward, "finish_reason": turn.finish_reason}
        yield {**message, "extra": extra}
    if episode.ending is None:
        yield {"role": "user", "content": trajectory.final_observation}


def _exit_message(exit_status: str, submission: str) -> dict[str, Any]:
    return {
        "role": "exit",
        "content": submission or exit_status,
        "extra": {"exit_status": exit_status, "submission": submission},
    }


def file_name(instance_id: str) -> str:
    name = "".join(char if char.isalnum() or char in "._-" else "_" for char in instance_id)
    return name.lstrip(".") or "_"


def _episode(trajectory: Trajectory, tag: TagRecord, model: str) -> Episode:
    ending = read_ending(trajectory.final_observation)
    task = ending.instance_id if ending else _tasks(tag.env_config).at(trajectory.task.index).instance_id
    return Episode(instance_id=task, trajectory=trajectory, ending=ending, tag=tag, model=model)


def _tasks(env_config: Mapping[str, Any]) -> TaskList:
    ids = env_config.get("instance_ids")
    return task_list(
        env_config.get("data"),
        env_config.get("split", "auto"),
        tuple(ids) if ids else None,
        env_config.get("num_tasks"),
        env_config.get("repositories"),
    )


def _action_format(tag: TagRecord) -> ActionFormat:
    given = tag.env_config.get("action_format")
    return next((known for known in ACTION_FORMATS if known == given), ACTION_FORMATS[0])


class _SWEFormat(ExportFormat):
    out: ClassVar[str] = ""
    """Below the folder of the format."""

    @staticmethod
    @abstractmethod
    def write(episodes: Sequence[Episode], out: Path) -> list[Path]: ...

    def check(self, tags: Mapping[str, TagRecord]) -> None:
        others = [tag.env_type for tag in tags.values() if tag.env_type != SPEC.id]
        if others:
            raise ConfigurationError(f"--format {self.name}: is of {SPEC.id}, not of {others[0]}")

    def export(self, dataset: DataSet, folder: Path) -> int:
        episodes = list(iter_episodes(dataset))
        self.write(episodes, folder / self.out)
        return len(episodes)


class Predictions(_SWEFormat):
    """`predictions.jsonl` for SWE-bench's evaluation; see `write_predictions`."""

    name, out = "swe-bench", "predictions.jsonl"
    write = staticmethod(write_predictions)


class MiniTrajectories(_SWEFormat):
    """mini-swe-agent's `INSTANCE/INSTANCE.traj.json`; see `write_trajectories`."""

    name = "mini-swe-agent"
    write = staticmethod(write_trajectories)


class ExportOptions(Options):
    """What `python -m envsdk.envs.swe.export` takes."""

    source: Annotated[Path, Argument("DIR")]
    """A data set of `envsdk collect`, or the folder of a run of `envsdk train`."""
    out: Annotated[Path, Option("--out", "-o", metavar="PATH")]
    """The JSONL file of predictions, or the folder of trajectories."""
    format: Annotated[Format, Option("--format", "-f")] = Format.PREDICTIONS
    """What to write."""


def command(options: ExportOptions) -> None:
    """Write episodes of SWE as predictions for SWE-bench's evaluation, or as mini-swe-agent's trajectories.

    Episodes that failed are left out. Where an instance was played several times, the first episodes are in
    PATH, the second ones next to it under the number 1, and so on.
    """
    episodes = read_episodes(options.source)
    if not episodes:
        raise ConfigurationError(f"{options.source}: not one episode of SWE has an outcome")
    write = write_predictions if options.format is Format.PREDICTIONS else write_trajectories
    written = write(episodes, options.out)
    submitted = sum(bool(episode.submission.strip()) for episode in episodes)
    resolved = sum(episode.trajectory.success for episode in episodes)
    say(f"{len(episodes)} episodes, {submitted} with a patch, {resolved} resolved; wrote {_listed(written)}")


def _listed(paths: Sequence[Path]) -> str:
    return str(paths[0]) if len(paths) == 1 else f"{len(paths)} files, the first of them {paths[0]}"


app, main = command_of(ExportOptions, command, name="envsdk.envs.swe.export")

if __name__ == "__main__":
    sys.exit(main())
