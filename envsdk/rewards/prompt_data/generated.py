"""Prompts that are made on this machine when they are first read: `generated:NAME` stands for a file of them.

    generated:arithmetic_train      tags sums, comparisons      `math`, `choice`
    generated:word_problems_train   tags sums, stories          `math`, for a pretrained model
    generated:programs_train        tag programs                `code`
    generated:instructions_train    tag instructions            `ifeval`
    generated:questions_train       tag questions               `exact`

and the same with `_val`. Rows are in ROLL's format. `solution` is a response that is right, and `mistakes`
are responses with one slip: the warm start of the tiny policy imitates both. `word_problems` has neither.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from envsdk.base.settings.nearest import suggest
from envsdk.base.store.atomic import make_folder, write_atomically
from envsdk.base.store.cache import cache_folder
from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.prompt_data.generated_rows import (
    arithmetic_rows,
    instruction_rows,
    program_rows,
    question_rows,
    word_problem_rows,
)

SCHEME = "generated:"
FILES: Mapping[str, partial[Iterator[dict[str, Any]]]] = {
    "arithmetic_train": partial(arithmetic_rows, "train", 16000),
    "arithmetic_val": partial(arithmetic_rows, "val", 512),
    "word_problems_train": partial(word_problem_rows, "train", 8000),
    "word_problems_val": partial(word_problem_rows, "val", 256),
    "programs_train": partial(program_rows, "train"),
    "programs_val": partial(program_rows, "val"),
    "instructions_train": partial(instruction_rows, "train"),
    "instructions_val": partial(instruction_rows, "val"),
    "questions_train": partial(question_rows, "train"),
    "questions_val": partial(question_rows, "val"),
}
"""Name -> its rows."""


def generated_file(name: str) -> Path:
    """The JSONL file that `generated:NAME` stands for, in the cache folder; written if it is not there.

    Raises ConfigurationError for an unknown name, StorageError when it cannot be written.
    """
    name = name.removeprefix(SCHEME)
    if name not in FILES:
        known = suggest(name, FILES, known="generated prompts")
        raise ConfigurationError(f"there are no generated prompts {name!r}: {known}")
    path = cache_folder() / "prompts" / f"{name}-{_code_digest(FILES[name].func.__module__)}.jsonl"
    if not path.is_file():
        make_folder(path.parent)
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in FILES[name]())
        write_atomically(path, "".join(lines).encode())
    return path


def _code_digest(module: str) -> str:
    """A digest of the code that makes the rows: other code may make other rows under the same name."""
    files = (Path(str(sys.modules[each].__file__)) for each in (module, __name__))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
