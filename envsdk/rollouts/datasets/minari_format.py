"""The format `minari`: one Minari data set per tag, as offline reinforcement learning reads it.

    minari/FrozenLake-v1-v0/data/...      MINARI_DATASETS_PATH=DIR/minari, id FrozenLake-v1-v0

An environment of Gymnasium (`envsdk/Gymnasium-v1`) has its own observations and actions in its own spaces:
the recorded replies are played again, and what goes in and out of it is written. Any other environment has
texts in `Text` spaces. Failed episodes and those without a step are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium import spaces

from envsdk.base.store.trajectories import iter_trajectories
from envsdk.contracts.failures import ConfigurationError, EnvsdkError
from envsdk.contracts.prompts import SUMMARY
from envsdk.contracts.trajectory import Outcome, Trajectory
from envsdk.rollouts.datasets.formats import ExportFormat
from envsdk.rollouts.datasets.reading import DataSet, TagRecord

if TYPE_CHECKING:
    from minari.data_collector.episode_buffer import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

GYMNASIUM = "envsdk/Gymnasium-v1"
_STORAGE = "arrow"
"""The one of Minari's storages that needs no further package."""


class Minari(ExportFormat):
    """See the module's text. Needs the extra `minari`."""

    name = "minari"

    def check(self, tags: Mapping[str, TagRecord]) -> None:
        try:
            import minari.dataset._storages.arrow_storage  # noqa: F401
        except ImportError as error:
            raise ConfigurationError(
                f"--format minari: {error}; install the extra: pip install 'envsdk[minari]'"
            ) from error

    def export(self, dataset: DataSet, folder: Path) -> int:
        self.check(dataset.tags)
        names = dataset_names(dataset.tags)
        return sum(
            _export_tag(dataset, dataset.tags[tag], folder / name / "data", name)
            for tag, name in names.items()
        )


def dataset_names(tags: Mapping[str, TagRecord]) -> dict[str, str]:
    """Ids of Minari data sets by tag: letters, digits, `_` and `-`, and a version."""
    names: dict[str, str] = {}
    for tag, record in tags.items():
        called = str(record.env_config.get("id", tag)) if _is_gymnasium(record) else tag
        short, full = (_plain(text) for text in (re.split("[/:]", called)[-1], called))
        name = short if f"{short}-v0" not in names.values() else full
        number = 2
        while f"{name}-v0" in names.values():
            name, number = f"{full}-{number}", number + 1
        names[tag] = f"{name}-v0"
    return names


def _plain(text: str) -> str:
    return re.sub(r"[^\w-]+", "-", text, flags=re.ASCII).strip("-") or "data"


def _is_gymnasium(tag: TagRecord) -> bool:
    return tag.env_type == GYMNASIUM


def _episodes(dataset: DataSet, tag: str) -> Iterator[Trajectory]:
    for shard in dataset.shards:
        for trajectory in iter_trajectories(shard):
            is_whole = trajectory.outcome is not Outcome.FAILED and len(trajectory.turns) > 0
            if is_whole and trajectory.task.tag == tag:
                # No environment answered a summary.
                yield replace(trajectory, turns=[turn for turn in trajectory.turns if turn.role != SUMMARY])


def _export_tag(dataset: DataSet, tag: TagRecord, data: Path, name: str) -> int:
    """Write one data set; returns its number of episodes. None is written when there are none."""
    first = next(_episodes(dataset, tag.tag), None)
    if first is None:
        return 0
    with ExitStack() as stack:
        native = _native(tag)
        data.mkdir(parents=True)
        if native is None:
            storage = _storage(data, *_text_spaces(_episodes(dataset, tag.tag)), spec=None)
            buffers = map(_text_buffer, _episodes(dataset, tag.tag))
        else:
            stack.callback(native.env.close)
            storage = _storage(data, native.observation_space, native.action_space, spec=native.spec)
            buffers = map(native.play_again, _episodes(dataset, tag.tag))
        assert dataset.manifest is not None
        storage.update_metadata(
            {
                "dataset_id": name,
                "minari_version": version("minari"),
                "algorithm_name": str(dataset.manifest.config["policy"]),
                "description": f"Episodes of {tag.env_type} collected by envsdk {version('envsdk')}",
            }
        )
        # Minari measures the folder after each episode; once, at the end, is enough.
        measure, storage.get_size = storage.get_size, lambda: 0.0
        storage.update_episodes(buffers)
        storage.update_metadata({"dataset_size": measure()})
        return int(storage.total_episodes)


def _storage(
    data: Path, observations: spaces.Space[Any], actions: spaces.Space[Any], *, spec: Any
) -> MinariStorage:
    from minari.dataset.minari_storage import MinariStorage

    # Its `get_size` joins a relative path twice.
    return MinariStorage.new(
        data.absolute(),
        observation_space=observations,
        action_space=actions,
        env_spec=spec,
        data_format=_STORAGE,
        jpeg_encoding=False,
    )


def _buffer(
    trajectory: Trajectory,
    observations: Sequence[Any],
    actions: Sequence[Any],
    rewards: Sequence[float],
    *,
    terminated: bool,
) -> EpisodeBuffer:
    from minari.data_collector.episode_buffer import EpisodeBuffer

    earlier = [False] * (len(actions) - 1)
    return EpisodeBuffer(
        seed=trajectory.seed,
        observations=_columns(observations),
        actions=_columns(actions),
        rewards=list(rewards),
        terminations=[*earlier, terminated],
        truncations=[*earlier, not terminated],
    )


def _columns(values: Sequence[Any]) -> Any:
    """A list of values, or for composite spaces the parts' lists, as Minari keeps them."""
    first = values[0]
    if isinstance(first, Mapping):
        return {name: _columns([value[name] for value in values]) for name in first}
    if isinstance(first, tuple):
        return tuple(_columns([value[index] for value in values]) for index in range(len(first)))
    return list(values)


def _text_buffer(trajectory: Trajectory) -> EpisodeBuffer:
    return _buffer(
        trajectory,
        [*(turn.observation for turn in trajectory.turns), trajectory.final_observation],
        [turn.reply for turn in trajectory.turns],
        [turn.reward for turn in trajectory.turns],
        terminated=trajectory.outcome is Outcome.TERMINATED,
    )


def _text_spaces(episodes: Iterator[Trajectory]) -> tuple[spaces.Text, spaces.Text]:
    """The smallest `Text` spaces that hold every observation and every reply."""
    observed, replied = _TextExtent(), _TextExtent()
    for trajectory in episodes:
        observed.add(trajectory.final_observation)
        for turn in trajectory.turns:
            observed.add(turn.observation)
            replied.add(turn.reply)
    return observed.space(), replied.space()


@dataclass(slots=True)
class _TextExtent:
    characters: set[str] = field(default_factory=set)
    longest: int = 1

    def add(self, text: str) -> None:
        self.characters.update(text)
        self.longest = max(self.longest, len(text))

    def space(self) -> spaces.Text:
        charset = "".join(sorted(self.characters)) or " "
        return spaces.Text(max_length=self.longest, min_length=0, charset=charset)


def _native(tag: TagRecord) -> _NativeEpisodes | None:
    """What plays a tag of a Gymnasium environment again; None for other environments."""
    from envsdk.adapters.gymnasium.env import GymnasiumEnv
    from envsdk.base.registry import make

    if not _is_gymnasium(tag):
        return None
    env = make(tag.env_type, **tag.env_config)
    if not isinstance(env, GymnasiumEnv):
        env.close()
        return None
    return _NativeEpisodes(env)


class _Recorder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Keeps what goes in and out of an environment since its last reset."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observations: list[Any] = []
        self.actions: list[Any] = []
        self.rewards: list[float] = []
        self.terminated = False

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**arguments)
        self.observations, self.actions, self.rewards = [observation], [], []
        self.terminated = False
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.observations.append(observation)
        self.actions.append(action)
        self.rewards.append(float(reward))
        self.terminated = bool(terminated)
        return observation, reward, terminated, truncated, info


class _NativeEpisodes:
    """Plays recorded replies again and gives what the environment inside saw and did."""

    def __init__(self, env: Any) -> None:
        self.env = env
        recorders: list[_Recorder] = []

        def wrapper(inside: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
            recorders.append(_Recorder(inside))
            return recorders[0]

        env.wrap(wrapper)
        self._recorder = recorders[0]
        inside = self._recorder.env
        self.observation_space, self.action_space = inside.observation_space, inside.action_space
        self.spec = inside.spec

    def play_again(self, trajectory: Trajectory) -> EpisodeBuffer:
        """EnvsdkError when the environment no longer takes the recorded course, or no reply was an action."""
        observation, _ = self.env.reset(seed=trajectory.seed)
        for number, turn in enumerate(trajectory.turns):
            self._check(trajectory, f"turn {number}", turn.observation, observation)
            observation, *_ = self.env.step(turn.reply)
        self._check(trajectory, "the end", trajectory.final_observation, observation)
        recorder = self._recorder
        if not recorder.actions:
            raise EnvsdkError(
                f"--format minari: no reply of episode {trajectory.trajectory_id} was an action of its "
                "environment; drop such episodes by a filter"
            )
        return _buffer(
            trajectory,
            recorder.observations,
            recorder.actions,
            recorder.rewards,
            terminated=recorder.terminated,
        )

    @staticmethod
    def _check(trajectory: Trajectory, where: str, expected: str, got: str) -> None:
        if expected != got:
            raise EnvsdkError(
                f"--format minari: episode {trajectory.trajectory_id} takes another course when it is played "
                f"again; at {where} it shows {got[:80]!r}, recorded was {expected[:80]!r}"
            )
