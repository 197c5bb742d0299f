"""Arithmetic that the tiny policy can learn: prompts that are made on this machine when they are first read.

`generated:arithmetic_train` and `generated:arithmetic_val` may stand wherever a file of prompts may. Their
rows are in ROLL's format, with two tags and three difficulties:

    sums          3+8+4=                     3+8=11 11+4=15 \\boxed{15}
    comparisons   Largest? A 37 B 52 C 12    \\boxed{B}

`solution` is a worked response that is right, and `mistakes` are responses with one slip: the warm start
imitates both. No prompt is in both files.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from envsdk.failures import ConfigurationError
from envsdk.settings.nearest import suggest
from envsdk.store.atomic import make_folder, write_atomically
from envsdk.store.cache import cache_folder

SCHEME = "generated:"
FILES = {"arithmetic_train": ("train", 16000), "arithmetic_val": ("val", 512)}
"""Name -> split and number of rows."""

_VERSION = 1
"""Raised when the same name would give other rows."""
_HELD_OUT = 16
"""One prompt in so many belongs to the validation rows."""


def generated_file(name: str) -> Path:
    """The JSONL file that `generated:NAME` stands for, in the cache folder; written if it is not there.

    Raises ConfigurationError for an unknown name, StorageError when it cannot be written.
    """
    name = name.removeprefix(SCHEME)
    if name not in FILES:
        known = suggest(name, FILES, known="generated prompts")
        raise ConfigurationError(f"there are no generated prompts {name!r}: {known}")
    path = cache_folder() / "prompts" / f"{name}_v{_VERSION}.jsonl"
    if not path.is_file():
        split, num_rows = FILES[name]
        make_folder(path.parent)
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in arithmetic_rows(split, num_rows))
        write_atomically(path, "".join(lines).encode())
    return path


def arithmetic_rows(split: str, num_rows: int) -> Iterator[dict[str, Any]]:
    """Rows of `train` or `val`, tags and difficulties in turn as long as there are prompts left."""
    rng = random.Random(f"arithmetic {split}")
    seen: set[str] = set()
    for number in range(num_rows):
        tag, make = _KINDS[number % len(_KINDS)]
        difficulty = 1 + number // len(_KINDS) % 3
        while True:
            row = make(rng, difficulty)
            if row["prompt"] not in seen and _is_held_out(row["prompt"]) == (split == "val"):
                break
            # Easy prompts are few: a harder one takes the place of one that was drawn before.
            difficulty = rng.randint(1, 3)
        seen.add(row["prompt"])
        yield {
            "id": f"arithmetic-{split}-{number}",
            "source": "generated",
            "difficulty": difficulty,
            "prompt": row["prompt"],
            "messages": json.dumps([{"role": "user", "content": row["prompt"]}]),
            "ground_truth": row["answer"],
            "case_type": "",
            "test_case_function": "",
            "test_cases": "",
            "tag": tag,
            "solution": row["solution"],
            "mistakes": row["mistakes"],
        }


def _is_held_out(prompt: str) -> bool:
    return hashlib.sha256(prompt.encode()).digest()[0] % _HELD_OUT == 0


def _sum(rng: random.Random, difficulty: int) -> dict[str, Any]:
    """Three to five numbers, added one after the other."""
    terms = [rng.randint(1, 9) for _ in range(difficulty + 2)]
    solution = _worked_sum(terms)
    slips = (_worked_sum(terms, slip_at=i, slip=by) for i in range(1, len(terms)) for by in (-2, -1, 1, 2))
    return {
        "prompt": "+".join(map(str, terms)) + "=",
        "answer": str(sum(terms)),
        "solution": solution,
        "mistakes": [text for text in dict.fromkeys(slips) if text != solution],
    }


def _worked_sum(terms: list[int], *, slip_at: int = 0, slip: int = 0) -> str:
    total, steps = terms[0], []
    for index, term in enumerate(terms[1:], start=1):
        after = total + term + (slip if index == slip_at else 0)
        steps.append(f"{total}+{term}={after}")
        total = after
    return " ".join([*steps, _boxed(total)])


def _comparison(rng: random.Random, difficulty: int) -> dict[str, Any]:
    """The largest of two to four numbers of two digits."""
    numbers = rng.sample(range(10, 100), difficulty + 1)
    letters = "ABCD"[: len(numbers)]
    largest = letters[numbers.index(max(numbers))]
    choices = " ".join(f"{letter} {number}" for letter, number in zip(letters, numbers, strict=True))
    return {
        "prompt": f"Largest? {choices}",
        "answer": largest,
        "solution": _boxed(largest),
        "mistakes": [_boxed(letter) for letter in letters if letter != largest],
    }


def _boxed(answer: object) -> str:
    return f"\\boxed{{{answer}}}"


_KINDS: tuple[tuple[str, Callable[[random.Random, int], dict[str, Any]]], ...] = (
    ("sums", _sum),
    ("comparisons", _comparison),
)
