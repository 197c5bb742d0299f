"""Parsing of Python source in a process that has threads, and sets of its names."""

from __future__ import annotations

import ast
import threading

_parsing = threading.Lock()


def parse(source: str | bytes) -> ast.Module:
    """The syntax tree of `source`, one thread at a time. Raises what `ast.parse` does.

    CPython 3.11 counts the depth of the tree it builds in one place for all threads. Where garbage collection
    gives way to another thread that parses too, the count is off:
    SystemError (python/cpython#106905).
    """
    with _parsing:
        return ast.parse(source)


def literal(source: str) -> object:
    """The value of the Python literal `source`, as `parse` parses. Raises what `ast.literal_eval` does."""
    with _parsing:
        return ast.literal_eval(source)


def words(text: str) -> frozenset[str]:
    """The words of `text`: many names are easier to read without their quotes."""
    return frozenset(text.split())
