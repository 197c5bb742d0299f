"""Tests with a known outcome, laid among the hidden ones under random names.

A run that does not fail the ones that must fail and pass the ones that must pass is not believed.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

_WORDS = re.findall(
    r"\w+",
    """
    basic bounds cache chain clean close copy count default edge empty error field flags format group
    index items join keys large limit lines match merge names nested order pairs parse path range reset
    round scale shape slice small sort split start state table text title total unicode update values
    width window words
    """,
)

_PASSING = (
    "def {name}():\n    assert sorted([{b}, {a}]) == [{a}, {b}]\n",
    "def {name}():\n    with pytest.raises(ValueError):\n        int('{a}x')\n",
)
_FAILING = (
    "def {name}():\n    assert [{a}, {b}] == [{b}, {a}]\n",
    "def {name}():\n    with pytest.raises(ValueError):\n        int('{a}')\n",
    "def {name}():\n    raise RuntimeError('{a}')\n",
    "def {name}():\n    assert {a} > {b}\n",
)
_PASSING_METHODS = (
    "    def {name}(self):\n        self.assertEqual({a} + {b}, {sum})\n",
    "    def {name}(self):\n        with self.assertRaises(ValueError):\n            int('{a}x')\n",
)
_FAILING_METHODS = (
    "    def {name}(self):\n        self.assertEqual({a}, {b})\n",
    "    def {name}(self):\n        self.assertTrue({a} > {b})\n",
    "    def {name}(self):\n        with self.assertRaises(ValueError):\n            int('{a}')\n",
    "    def {name}(self):\n        raise RuntimeError('{a}')\n",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """One file of tests with a known outcome."""

    path: str
    """Relative to the repository's root."""
    text: str
    must_pass: tuple[str, ...]
    """Node ids."""
    must_fail: tuple[str, ...]


def make_canary(
    folder: str, taken: frozenset[str], source: random.Random, *, with_pytest: bool = True
) -> Canary:
    """A new file in `folder` ("" for the root) under a name that is not in `taken`.

    Args:
        with_pytest: Whether functions that need pytest are among its tests, besides a `unittest.TestCase`.
    """
    while True:
        stem = "_".join(["test", *source.sample(_WORDS, 2)])
        path = str(PurePosixPath(folder) / f"{stem}.py")
        if path not in taken:
            break
    names = _names(source)
    cls = "Test" + "".join(word.title() for word in source.sample(_WORDS, 2))
    tests = _Tests()
    text = "import unittest\n\n"
    if with_pytest:
        text += "import pytest\n\n\n"
        text += "\n\n".join(tests.write(_PASSING, _FAILING, f"{path}::", names, source)) + "\n"
    methods = tests.write(_PASSING_METHODS, _FAILING_METHODS, f"{path}::{cls}::", names, source)
    text += f"\nclass {cls}(unittest.TestCase):\n" + "\n".join(methods)
    return Canary(path=path, text=text, must_pass=tuple(tests.passing), must_fail=tuple(tests.failing))


@dataclass(slots=True)
class _Tests:
    """Node ids of what has been written."""

    passing: list[str] = field(default_factory=list)
    failing: list[str] = field(default_factory=list)

    def write(
        self,
        passing: Sequence[str],
        failing: Sequence[str],
        prefix: str,
        names: Iterator[str],
        source: random.Random,
    ) -> list[str]:
        """The texts of tests by these templates, in any order."""
        chosen = [(template, self.passing) for template in passing]
        chosen += [(template, self.failing) for template in failing]
        source.shuffle(chosen)
        texts = []
        for template, ids in chosen:
            name = next(names)
            a, b = sorted(source.sample(range(2, 90), 2))
            texts.append(template.format(name=name, a=a, b=b, sum=a + b))
            ids.append(f"{prefix}{name}")
        return texts


def _names(source: random.Random) -> Iterator[str]:
    seen = set[str]()
    while True:
        name = "_".join(["test", *source.sample(_WORDS, 2)])
        if name not in seen:
            seen.add(name)
            yield name
