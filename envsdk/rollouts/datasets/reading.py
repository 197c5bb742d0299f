"""Reads a data set: its episodes and the records of its tags.

dataset = open_dataset(Path("demos"))       # a collection, a run's folder, or sessions of `envsdk serve`
for trajectory in dataset.episodes():
    dataset.tags[trajectory.task.tag].line(trajectory.turns).messages
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from envsdk.base.store.shards import MANIFEST, Manifest
from envsdk.base.store.trajectories import iter_trajectories, read_columns, read_metadata
from envsdk.contracts.failures import ConfigurationError, StorageError
from envsdk.contracts.prompts import AgentPrompts, TagPrompts
from envsdk.contracts.trajectory import Trajectory
from envsdk.engines.endpoint.recorder import MODEL_KEY

RUN_CONFIG = "config.yaml"
RUN_TRAJECTORIES = "trajectories"
_UNLIMITED_TURNS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TagRecord(TagPrompts):
    """The environment of one tag: enough to render its conversations and to replay them.

    `env_type` is empty for sessions of `envsdk serve`, which have none.
    """

    tag: str
    env_manager: str | None = None
    """Plug-in that played it, if not the default one."""

    @classmethod
    def from_json(cls, tag: str, value: Mapping[str, Any]) -> Self:
        """An entry of `tags` in a manifest's `config`."""
        return cls(
            tag=tag,
            env_type=value["env_type"],
            env_config=value["env_config"],
            prompts=AgentPrompts(system=value["agent_system_template"], template=value["agent_template"]),
            max_turns=value["max_steps"],
            max_new_tokens=value["max_new_tokens"] or value.get("max_response_length") or 0,
            env_manager=value.get("env_manager_cls"),
            window=value.get("context_window", 0),
        )

    @property
    def shown(self) -> TagPrompts:
        """For `Trajectory.shown`, equal to that of other episodes with these prompts."""
        return TagPrompts(**{each.name: getattr(self, each.name) for each in fields(TagPrompts)})


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """Episodes on disk."""

    folder: Path
    shards: Sequence[Path]
    """Trajectory files, in order."""
    tags: Mapping[str, TagRecord]
    manifest: Manifest | None
    """None for a run's folder and for sessions of `envsdk serve`."""

    @classmethod
    def collected(cls, folder: Path, manifest: Manifest) -> DataSet:
        """What is there of a collection."""
        shards = [folder / manifest.shards[number].file for number in sorted(manifest.shards)]
        return cls(folder=folder, shards=shards, tags=tag_records(manifest.config), manifest=manifest)

    def episodes(self) -> Iterator[Trajectory]:
        """One row group in memory at a time. StorageError names a file that is missing or damaged."""
        for _, trajectory in self.episodes_by_shard():
            yield trajectory

    def episodes_by_shard(self) -> Iterator[tuple[Path, Trajectory]]:
        """`episodes`, each with the file that it is in."""
        shown = {tag: record.shown for tag, record in self.tags.items()}
        for shard in self.shards:
            for trajectory in iter_trajectories(shard):
                yield shard, replace(trajectory, shown=shown.get(trajectory.task.tag))

    @property
    def policy(self) -> str:
        """Name of the policy that played; of a run, the folder's name."""
        return self.folder.resolve().name if self.manifest is None else str(self.manifest.config["policy"])

    @property
    def model(self) -> str | None:
        """Name of the model that played; None of a policy without one, and of a run."""
        model = None if self.manifest is None else self.manifest.config.get("model")
        return None if model is None else str(model.get("endpoint_model") or Path(model["folder"]).name)


def open_dataset(folder: Path) -> DataSet:
    """A folder of `envsdk.collect`, `envsdk.train` or `envsdk serve`; ConfigurationError when it is none."""
    if not folder.is_dir():
        raise ConfigurationError(f"there is no folder {folder}: name a collection or a run's folder")
    manifest = Manifest.load(folder)
    if manifest is not None:
        return _collection(folder, manifest)
    if (folder / RUN_CONFIG).is_file() and (folder / RUN_TRAJECTORIES).is_dir():
        return _run(folder)
    if shards := session_files(folder):
        return DataSet(folder=folder, shards=shards, tags=_session_tags(shards), manifest=None)
    raise ConfigurationError(
        f"{folder} holds neither {MANIFEST} (a collection) nor {RUN_CONFIG} and {RUN_TRAJECTORIES}/ (a run), "
        "nor sessions of `envsdk serve --out`"
    )


def session_files(folder: Path) -> Sequence[Path]:
    """The files that `envsdk serve --out` wrote, in order; none where somebody else wrote the folder."""
    shards = sorted(folder.glob("part-*.parquet"))
    with suppress(StorageError):
        if shards and MODEL_KEY in read_metadata(shards[0]):
            return shards
    return ()


def _session_tags(shards: Sequence[Path]) -> dict[str, TagRecord]:
    """Tags without an environment: observations are what the agents wrote."""
    return {
        tag: TagRecord(tag=tag, max_turns=_UNLIMITED_TURNS)
        for shard in shards
        for tag in read_columns(shard, ["tag"])["tag"]
    }


def _collection(folder: Path, manifest: Manifest) -> DataSet:
    if not manifest.is_complete:
        raise ConfigurationError(
            f"{folder} is not complete: {len(manifest.shards)} of {manifest.num_planned} files are there. "
            "Repeat the command that collects it to continue"
        )
    return DataSet.collected(folder, manifest)


def tag_records(config: Mapping[str, Any]) -> dict[str, TagRecord]:
    """Records of the tags of a manifest's `config`."""
    return {tag: TagRecord.from_json(tag, value) for tag, value in config["tags"].items()}


def _run(folder: Path) -> DataSet:
    from envsdk.config import load_config
    from envsdk.config.plugins import environment_spec

    config = load_config(folder / RUN_CONFIG, for_training=False).config
    tags: dict[str, TagRecord] = {}
    for tag, custom in config.custom_envs.items():
        spec = environment_spec(custom.env_type)
        tags[tag] = TagRecord(
            tag=tag,
            env_type=custom.env_type,
            env_config={**spec.kwargs, **custom.env_config},
            prompts=AgentPrompts(system=custom.agent_system_template, template=custom.agent_template),
            max_turns=custom.max_steps or spec.max_steps or _UNLIMITED_TURNS,
            max_new_tokens=config.max_response_tokens(tag),
            env_manager=custom.env_manager_cls,
            window=custom.shown_turns,
        )
    shards = sorted((folder / RUN_TRAJECTORIES).glob("*.parquet"))
    if not shards:
        raise ConfigurationError(f"{folder / RUN_TRAJECTORIES} holds no trajectories yet")
    return DataSet(folder=folder, shards=shards, tags=tags, manifest=None)
