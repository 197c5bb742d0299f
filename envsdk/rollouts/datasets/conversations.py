"""Conversations to learn from: of collections, runs, and files of `{"messages": [...]}`.

    for conversation in read_conversations([Path("demos"), Path("chats.jsonl")]):
        conversation.messages, conversation.task

Holds one row group of a file at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from envsdk.base.store.shards import MANIFEST
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.prompts import Line, Message
from envsdk.contracts.trajectory import Outcome
from envsdk.rollouts.datasets.conversation import Conversation, conversations_of
from envsdk.rollouts.datasets.reading import RUN_TRAJECTORIES, DataSet, open_dataset, session_files
from envsdk.rollouts.datasets.selection import EpisodeFilters

_COLUMN, _GIVEN, _MASKED, _TOOLS = "messages", "num_given_replies", "masked_replies", "tools"
_SUFFIXES = (".jsonl", ".parquet")


def read_conversations(
    sources: Iterable[Path], filters: EpisodeFilters | None = None
) -> Iterator[Conversation]:
    """All conversations, in order. Failed episodes and those without a reply are left out.

    A source is a folder of `collect`, `train` or `serve`, which `filters` are for, or one with `.jsonl` or
    `.parquet` files with a column `messages`, or such a file. Raises ConfigurationError, StorageError.
    """
    filters = filters or EpisodeFilters()
    for source in sources:
        if is_dataset(source):
            yield from _of_dataset(open_dataset(source), filters)
        elif filters:
            raise ConfigurationError(
                f"{source} holds messages, which tell no outcome: filters are for collections and runs"
            )
        else:
            for file in message_files(source):
                yield from _of_file(file)


def is_dataset(source: Path) -> bool:
    """Whether `collect`, `train` or `serve` wrote the folder."""
    is_named = (source / MANIFEST).is_file() or (source / RUN_TRAJECTORIES).is_dir()
    return is_named or bool(session_files(source))


def message_files(source: Path) -> list[Path]:
    """The file itself, or those in the folder; ConfigurationError when there is none."""
    if source.is_dir():
        files = sorted(path for path in source.rglob("*") if path.suffix in _SUFFIXES)
        if not files:
            raise ConfigurationError(
                f"--data: {source} holds no {' or '.join(_SUFFIXES)} file and is no data set"
            )
        return files
    if not source.exists():
        raise ConfigurationError(f"--data: there is no {source}")
    if source.suffix not in _SUFFIXES:
        raise ConfigurationError(f"--data: {source} must be a {' or '.join(_SUFFIXES)} file, or a folder")
    return [source]


def _of_dataset(dataset: DataSet, filters: EpisodeFilters) -> Iterator[Conversation]:
    for trajectory in dataset.episodes():
        if trajectory.outcome is Outcome.FAILED or not trajectory.turns:
            continue
        if filters.reason_to_drop(trajectory) is None:
            yield from conversations_of(trajectory)


def _of_file(path: Path) -> Iterator[Conversation]:
    rows = _json_rows(path) if path.suffix == ".jsonl" else _parquet_rows(path)
    for number, row in enumerate(rows, start=1):
        messages = _checked(row, f"{path}, row {number}")
        if any(message["role"] == "assistant" for message in messages):
            num_given, masked = _unlearned(row, f"{path}, row {number}")
            system = ""
            if [each["role"] for each in messages[:2]] == ["system", "user"]:
                system, *messages = messages[0]["content"], *messages[1:]
            yield Conversation(
                line=Line(system=system, spoken=messages, tools=_tools(row, f"{path}, row {number}")),
                num_given_replies=num_given,
                masked_replies=masked,
            )


def _unlearned(row: Mapping[str, Any], where: str) -> tuple[int, list[int]]:
    """How many of a row's first replies are not learned, and which of the others."""
    num_given, masked = row.get(_GIVEN) or 0, row.get(_MASKED)
    weights = [each.get("weight") for each in row[_COLUMN] if each["role"] == "assistant"]
    if type(num_given) is not int or num_given < 0:
        raise ConfigurationError(f"--data: {where}: {_GIVEN} is no number of replies: {num_given!r}")
    places = range(len(weights))
    is_list = isinstance(masked, list | None)
    if not is_list or not all(type(at) is int and at in places for at in masked or ()):
        raise ConfigurationError(
            f"--data: {where}: {_MASKED} must be whole numbers of the row's {len(weights)} replies, from 0, "
            f"not {masked!r}"
        )
    for weight in weights:
        # Parquet files may have NaN where there is none.
        if weight not in (None, 0, 1) and weight == weight:
            raise ConfigurationError(f"--data: {where}: the weight of a message is 0 or 1, not {weight!r}")
    unlearned = (at for at, weight in enumerate(weights) if weight == 0 or at in (masked or ()))
    return num_given, [at for at in unlearned if at >= num_given]


def _json_rows(path: Path) -> Iterator[Any]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    try:
                        yield json.loads(line)
                    except ValueError as error:
                        raise ConfigurationError(
                            f"--data: {path}, line {number} is not JSON: {error}"
                        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--data: cannot read {path}: {error}") from error


def _parquet_rows(path: Path) -> Iterator[Any]:
    try:
        with pq.ParquetFile(path) as file:
            if _COLUMN not in file.schema_arrow.names:
                columns = ", ".join(file.schema_arrow.names)
                raise ConfigurationError(f"--data: {path} has no column `{_COLUMN}`; it has {columns}")
            known = [name for name in (_COLUMN, _GIVEN, _MASKED, _TOOLS) if name in file.schema_arrow.names]
            for batch in file.iter_batches(columns=known):
                yield from batch.to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise ConfigurationError(f"--data: cannot read {path}: {error}") from error


def _checked(row: Any, where: str) -> list[Message]:
    messages = row.get(_COLUMN) if isinstance(row, Mapping) else None
    if not isinstance(messages, list):
        raise ConfigurationError(f'--data: {where} is no {{"messages": [...]}}')
    return [_message(message, f"{where}, message {number}") for number, message in enumerate(messages)]


def _message(message: Any, where: str) -> Message:
    role = message.get("role") if isinstance(message, Mapping) else None
    content = message.get("content") if isinstance(message, Mapping) else None
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, Mapping)]
        content = "".join(map(str, parts)) if len(parts) == len(content) and all(parts) else None
    if not isinstance(role, str) or not isinstance(content, str):
        raise ConfigurationError(
            f"--data: {where} must have a `role` and a text as `content`: "
            "tool calls and images are not learned"
        )
    return {"role": role, "content": content}


def _tools(row: Mapping[str, Any], where: str) -> list[Any]:
    """The functions that a conversation's first prompt shows: a list, or its JSON text."""
    tools = row.get(_TOOLS) or []
    try:
        tools = json.loads(tools) if isinstance(tools, str) else tools
    except ValueError as error:
        raise ConfigurationError(f"--data: {where}: {_TOOLS} is not JSON: {error}") from error
    if not isinstance(tools, list):
        raise ConfigurationError(f"--data: {where}: {_TOOLS} is no list: {tools!r}")
    return tools
