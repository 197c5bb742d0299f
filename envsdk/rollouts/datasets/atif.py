"""ATIF on disk: the export format `atif`, and files of documents as episodes; see `atif_documents`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from envsdk.base.store.atomic import atomic_file, make_folder, new_folder, storage_error
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.trajectory import Outcome, Trajectory
from envsdk.rollouts.datasets.atif_documents import READABLE, from_document, to_document
from envsdk.rollouts.datasets.formats import ExportFormat
from envsdk.rollouts.datasets.reading import DataSet

SUFFIX = ".trajectory.json"


class ATIF(ExportFormat):
    """One document per episode, `part-00000/ID.trajectory.json`. Failed and empty episodes are left out."""

    name = "atif"

    def export(self, dataset: DataSet, folder: Path) -> int:
        num_episodes = 0
        for shard, trajectory in dataset.episodes_by_shard():
            if trajectory.outcome is Outcome.FAILED or not trajectory.turns:
                continue
            document = to_document(trajectory, agent=dataset.policy, model=dataset.model)
            path = folder / shard.stem / f"{_file_name(trajectory.trajectory_id)}{SUFFIX}"
            path.parent.mkdir(exist_ok=True)
            _write(document, path)
            num_episodes += 1
        return num_episodes


def write_atif(episodes: Sequence[Trajectory], path: Path, *, agent: str, model: str | None) -> None:
    """Each episode that has a turn as a document: a line of a new `.jsonl`, or a file of a new folder."""
    documents = (to_document(each, agent=agent, model=model) for each in episodes if each.turns)
    if path.suffix == ".jsonl":
        if path.exists():
            raise ConfigurationError(f"{path} is there already: choose another name, or delete it first")
        make_folder(path.parent)
        with atomic_file(path) as file:
            file.writelines(f"{json.dumps(each)}\n".encode() for each in documents)
        return
    with new_folder(path) as folder:
        for number, document in enumerate(documents):
            _write(document, folder / f"{number:06d}{SUFFIX}")


def _write(document: Mapping[str, Any], path: Path) -> None:
    path.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8", errors="replace")


def _file_name(trajectory_id: str) -> str:
    return (
        "".join(char if char.isalnum() or char in "._-" else "_" for char in trajectory_id).lstrip(".") or "_"
    )


def read_atif(path: Path) -> Iterator[Trajectory]:
    """The episodes of a document, of a `.jsonl` file with one per line, or of a folder of documents.

    In a folder, files are read whose name ends with `trajectory.json`, and those that hold something else are
    passed over. ConfigurationError for a file that is no ATIF document, StorageError when it cannot be read.
    """
    if path.is_dir():
        found = [
            (file, document)
            for file in sorted(path.rglob("*trajectory.json"))
            for document in _documents(file)
            if isinstance(document, Mapping) and str(document.get("schema_version", "")).startswith(READABLE)
        ]
        if not found:
            raise ConfigurationError(f"{path} holds no ATIF document in a file named *trajectory.json")
    else:
        found = [(path, document) for document in _documents(path)]
    for index, (file, document) in enumerate(found):
        try:
            yield from_document(document, index=index, name=file.name.removesuffix(SUFFIX))
        except ConfigurationError as error:
            raise ConfigurationError(f"{file}: {error}") from error


def _documents(file: Path) -> Iterator[Any]:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise storage_error("read", file, error) from error
    # Not splitlines(): a text in JSON may hold other line separators.
    lines = [line for line in text.split("\n") if line.strip()] if file.suffix == ".jsonl" else [text]
    for number, line in enumerate(lines, start=1):
        try:
            yield json.loads(line)
        except ValueError as error:
            where = f"{file}, line {number}" if file.suffix == ".jsonl" else str(file)
            raise ConfigurationError(f"{where} is not JSON: {error}") from error
