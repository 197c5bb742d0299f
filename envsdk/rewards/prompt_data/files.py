"""Names of prompt files as JSONL files. What is none is written as one into the cache folder, once.

data/train.jsonl            as it is
data/train.json             a list of rows, or {"data": [...]}
data/train.parquet          and .jsonl.gz
data/  data/*.jsonl         every file in it
openai/gsm8k  my_data_set/  a data set of Hugging Face by name or folder, where `datasets` is installed
generated:arithmetic_train  made on this machine
"""

from __future__ import annotations

import glob
import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from envsdk.base.store.atomic import atomic_file, make_folder
from envsdk.base.store.cache import cache_folder
from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.prompt_data.generated import SCHEME, generated_file

_VERSION = 1
"""Raised when the same file would be written in another way."""
NOT_UTF_8 = "UTF-16 or UTF-32, not UTF-8: convert the file, for example with iconv -f UTF-16 -t UTF-8"


def jsonl_files(name: str) -> list[tuple[Path, str]]:
    """The JSONL files that `name` stands for, each with the name that messages show.

    Raises ConfigurationError for what is not there or cannot be read.
    """
    if name.startswith(SCHEME):
        path = generated_file(name)
        return [(path, str(path))]
    path = Path(name).expanduser()
    if path.is_file():
        return [(_as_jsonl(path), name)]
    if path.is_dir():
        if (path / "dataset_info.json").is_file() or (path / "dataset_dict.json").is_file():
            return [(_data_set(name, path), name)]
        inside = sorted(each for each in path.iterdir() if _reader_of(each) is not None)
        if not inside:
            raise ConfigurationError(f"the folder {name} holds no JSONL, JSON or Parquet file")
        return [(_as_jsonl(each), str(each)) for each in inside]
    if found := sorted(glob.glob(str(path), recursive=True)):
        return [(_as_jsonl(Path(each)), each) for each in found if Path(each).is_file()]
    if path.suffix or path.is_absolute() or name.count("/") != 1:
        raise ConfigurationError(f"there is no file of prompts {name} in {Path.cwd()}")
    return [(_data_set(name, None), name)]


def is_local(name: str) -> bool:
    """Whether `name` can be read without asking the hub of Hugging Face."""
    return (
        name.startswith(SCHEME) or Path(name).expanduser().exists() or bool(glob.glob(name, recursive=True))
    )


def _as_jsonl(path: Path) -> Path:
    read = _reader_of(path)
    if read is None:
        raise ConfigurationError(f"{path} is no file of prompts: .jsonl, .jsonl.gz, .json or .parquet")
    if read is _as_it_is:
        return path
    try:
        state = path.stat()
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    return _converted([str(path.resolve()), state.st_size, state.st_mtime_ns], lambda: read(path))


def _as_it_is(path: Path) -> Iterator[Any]:
    raise NotImplementedError


def _reader_of(path: Path) -> Callable[[Path], Iterator[Any]] | None:
    readers = {
        ".jsonl.gz": _unzipped,
        ".jsonl": _as_it_is,
        ".json": _json_list,
        ".parquet": parquet_rows,
    }
    return next((read for suffix, read in readers.items() if path.name.lower().endswith(suffix)), None)


def _converted(identity: list[Any], rows: Callable[[], Iterator[Any]]) -> Path:
    """A JSONL file in the cache folder with these rows; written unless it is there."""
    digest = hashlib.sha256(json.dumps([_VERSION, *identity]).encode()).hexdigest()[:24]
    folder = cache_folder() / "prompts" / "converted"
    target = folder / f"{digest}.jsonl"
    if not target.is_file():
        make_folder(folder)
        with atomic_file(target) as file:
            for row in rows():
                is_line = isinstance(row, bytes)
                file.write(row if is_line else json.dumps(row, default=_plain).encode() + b"\n")
    return target


def _plain(value: Any) -> Any:
    """What JSON has no type for: arrays, dates, bytes."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return f"<{len(value)} bytes>" if isinstance(value, bytes) else str(value)


def _unzipped(path: Path) -> Iterator[bytes]:
    """The lines as they are: one that is no row is found when the rows are."""
    try:
        with gzip.open(path, "rb") as file:
            for line in file:
                yield line if line.endswith(b"\n") else line + b"\n"
    except (EOFError, OSError, zlib.error) as error:
        raise ConfigurationError(f"{path} is no gzip file that can be read: {error}") from error


def _json_list(path: Path) -> Iterator[Any]:
    content = path.read_bytes()
    if b"\0" in content[:4]:
        raise ConfigurationError(f"{path} is {NOT_UTF_8}")
    try:
        value = json.loads(content.decode("utf-8-sig"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        hint = "; if each line is a row, name the file .jsonl" if "Extra data" in str(error) else ""
        raise ConfigurationError(f"{path} is no JSON: {error}{hint}") from error
    if isinstance(value, dict):
        lists = [each for each in value.values() if isinstance(each, list)]
        value = value.get("data", lists[0] if len(lists) == 1 else value)
    if not isinstance(value, list):
        raise ConfigurationError(f"{path} holds no list of rows")
    yield from value


def parquet_rows(path: Path) -> Iterator[Any]:
    """The rows as mappings. Raises ConfigurationError for what is no such file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256):
                yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise ConfigurationError(f"{path} is no Parquet file that can be read: {error}") from error


def _data_set(name: str, folder: Path | None) -> Path:
    """A data set of the `datasets` library, its split `train` or its only one."""
    if find_spec("datasets") is None:
        raise ConfigurationError(
            f"{name} is no file or folder of JSONL, JSON or Parquet files; to read it as a data set: "
            "pip install 'envsdk[datasets]'"
        )
    import datasets

    try:
        found = datasets.load_from_disk(str(folder)) if folder else datasets.load_dataset(name)
    except Exception as error:  # the library raises errors of many kinds
        fetch = f"`hf download {name} --repo-type dataset --local-dir DIR`"
        hint = "" if folder else f"; without the network, {fetch} where there is one, then files of DIR"
        raise ConfigurationError(f"the data set {name} cannot be read: {error}{hint}") from error
    if isinstance(found, datasets.DatasetDict):
        split = "train" if "train" in found else next(iter(found))
        found = found[split]
    identity = [name, str(found.split), found._fingerprint]
    return _converted(identity, lambda: iter(found))


def file_state(descriptor: int) -> tuple[int, int]:
    """Size and time of change of an open file."""
    state = os.fstat(descriptor)
    return state.st_size, state.st_mtime_ns
