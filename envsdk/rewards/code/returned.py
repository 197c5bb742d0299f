"""What a function returned, out of the text that its process wrote; pure.

The program may have written the text itself. Reading it takes time and memory in proportion to its size,
whatever it says: only what `encode(plain=True)` makes is read, no content stands for a larger one, and the
program does not choose the hashes of what is put into dicts and sets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

MOST_BYTES = 16 << 20
"""Of the text of one value."""
_MOST_DEPTH = 200
_MOST_DIGITS = 4000
"""Of an integer; Python itself does not print those with more than 4300."""
_HASHES_LIKE_ITSELF = 1 << 60
"""Python's integers below it have different hashes."""
_BYTES: Mapping[str, Callable[[str], Any]] = {"b": bytes.fromhex, "y": bytearray.fromhex}


class Unreadable(ValueError):
    """The text is no value that can be compared; the message completes "returned"."""


def read(text: bytes) -> Any:
    """The value. Keys that are neither texts nor small integers are read as their own texts, as they are
    compared.

    Raises Unreadable.
    """
    if len(text) > MOST_BYTES:
        raise Unreadable(f"a value of more than {MOST_BYTES >> 20} MB")
    try:
        return _value(json.loads(text, parse_int=_integer), _MOST_DEPTH)
    except Unreadable:
        raise
    except RecursionError:
        raise Unreadable(f"a value of more than {_MOST_DEPTH} levels") from None
    except (ValueError, TypeError, KeyError) as error:
        raise Unreadable(f"what is no value: {type(error).__name__}") from error


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise Unreadable(f"an integer of more than {_MOST_DIGITS} digits")
    return int(digits)


def _value(sent: Any, depth: int) -> Any:
    if not isinstance(sent, list | dict):
        return sent
    tag, content = _pair(sent)
    if depth == 0:
        raise Unreadable(f"a value of more than {_MOST_DEPTH} levels")
    if tag in ("l", "t"):
        items = [_value(item, depth - 1) for item in _list(content)]
        return items if tag == "l" else tuple(items)
    if tag in ("s", "z"):
        return {_element(item) for item in _list(content)}
    if tag == "d":
        pairs = map(_pair, _list(content))
        return {_key(key): _value(value, depth - 1) for key, value in pairs}
    if tag == "i":
        return _large(content)
    if tag in _BYTES:
        return _BYTES[tag](content)
    if tag == "x":
        real, imaginary = (_of(float, part) for part in _list(content))
        return complex(real, imaginary)
    if tag == "r":
        return range(*(_of(int, bound) for bound in _list(content)))
    raise Unreadable("what is no value")


def _element(sent: Any) -> Any:
    """Of a set, which equals nothing that JSON has."""
    if isinstance(sent, list):
        raise Unreadable("a set of what is neither a text nor a small number")
    return _key(sent)


def _key(sent: Any) -> Any:
    if sent is None or isinstance(sent, str | bool):
        return sent
    if isinstance(sent, int) and abs(sent) < _HASHES_LIKE_ITSELF:
        return sent
    return str(_atom(sent, _MOST_DEPTH))


def _atom(sent: Any, depth: int) -> Any:
    """A number, text, or tuple of such: what a key is made of."""
    if isinstance(sent, list) and _pair(sent)[0] == "t" and depth:
        return tuple(_atom(item, depth - 1) for item in _list(sent[1]))
    value = _value(sent, 1)
    if isinstance(value, list | tuple | dict | set):
        raise Unreadable("a dict with keys that are no numbers, texts or tuples of them")
    return value


def _large(content: Any) -> int:
    if len(_of(str, content)) > _MOST_DIGITS * 5 // 6:
        raise Unreadable(f"an integer of more than {_MOST_DIGITS} digits")
    return int(content, 16)


def _pair(sent: Any) -> list[Any]:
    if len(_list(sent)) != 2:
        raise Unreadable("what is no value")
    pair: list[Any] = sent
    return pair


def _list(content: Any) -> list[Any]:
    items: list[Any] = _of(list, content)
    return items


def _of(kind: type, content: Any) -> Any:
    if type(content) is not kind:
        raise Unreadable("what is no value")
    return content
