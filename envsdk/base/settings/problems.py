"""Where keys of settings stand; a problem of a configuration, and the message that lists several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

KeyPath = tuple[str | int, ...]
"""The way from the top level to a key: `("train_env_manager", "tags", 0)`."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, where, and what to do."""

    path: KeyPath
    message: str

    def __str__(self) -> str:
        return f"{dotted(self.path)}: {self.message}"


def dotted(path: KeyPath) -> str:
    """The path as it is written in an override.

    >>> dotted(("train_env_manager", "tags", 0))
    'train_env_manager.tags[0]'
    """
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def leaves(value: Any, path: KeyPath = (), *, in_lists: bool = False) -> Iterator[tuple[KeyPath, Any]]:
    """What nested mappings, and lists if `in_lists`, hold that has no keys itself, with where it stands."""
    if value and isinstance(value, (Mapping, list, tuple) if in_lists else Mapping):
        for key, below in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from leaves(below, (*path, key), in_lists=in_lists)
    elif path or not isinstance(value, Mapping):
        yield path, value


def describe(problems: Sequence[Problem], *, source: str, origin: Callable[[KeyPath], str]) -> str:
    """All problems as one message; `origin` says where a key was written, or is empty."""
    count = f"{len(problems)} problem" + ("s" if len(problems) > 1 else "")
    lines = [f"{source}: {count}"]
    for problem in problems:
        where = origin(problem.path)
        place = f" ({where})" if where else ""
        lines.append(f"  {dotted(problem.path)}{place}: {problem.message}")
    return "\n".join(lines)
