"""Values as JSON, between processes that do not trust one another.

Exact builtin types arrive as they were, so that comparing them calls no code of the sender's. Everything else
is left to the caller, who may send a handle.
"""

from __future__ import annotations

import importlib

# Only what is there anyway is imported: each program starts this anew.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_INT_BITS = 62
_SEQUENCES: Mapping[type, str] = {list: "l", tuple: "t", set: "s", frozenset: "z"}
_TYPES: Mapping[str, Callable[[Any], Any]] = {tag: kind for kind, tag in _SEQUENCES.items()}
BASES: tuple[Any, ...] = (bool, int, float, str, bytes, bytearray, tuple, list, frozenset, set, dict)

_CLASSES: Mapping[str, Callable[[Any], tuple[Any, ...]]] = {
    "collections.Counter": lambda v: (dict(v),),
    "collections.OrderedDict": lambda v: (list(v.items()),),
    "collections.defaultdict": lambda v: (None, dict(v)),
    "collections.deque": lambda v: (list(v), v.maxlen),
    "datetime.date": lambda v: (v.year, v.month, v.day),
    "datetime.datetime": lambda v: (v.year, v.month, v.day, v.hour, v.minute, v.second, v.microsecond),
    "datetime.timedelta": lambda v: (v.days, v.seconds, v.microseconds),
    "decimal.Decimal": lambda v: (str(v),),
    "fractions.Fraction": lambda v: (v.numerator, v.denominator),
}
"""Classes of the standard library, with the arguments that make an equal instance."""

if TYPE_CHECKING:
    Other = Callable[[Any], Any]


class NotPlain(Exception):
    """A value that is no builtin and for which there is no handle."""


def encode(value: Any, other: Other | None = None) -> Any:
    """What `json.dumps` takes. `other` encodes what is no builtin; NotPlain where it is None."""
    kind = type(value)
    if value is None or kind is bool or kind is str or kind is float:
        return value
    if kind is int:
        return value if value.bit_length() <= _INT_BITS else ["i", hex(value)]
    if kind in _SEQUENCES:
        return [_SEQUENCES[kind], [encode(item, other) for item in value]]
    if kind is dict:
        return ["d", [[encode(key, other), encode(item, other)] for key, item in value.items()]]
    if kind is bytes or kind is bytearray:
        return ["b" if kind is bytes else "y", value.hex()]
    if kind is complex:
        return ["x", [value.real, value.imag]]
    if kind is range:
        return ["r", [value.start, value.stop, value.step]]
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name in _CLASSES and kind is _class(name) and getattr(value, "tzinfo", None) is None:
        return ["c", [name, [encode(argument, other) for argument in _CLASSES[name](value)]]]
    if kind.__module__ == "numpy" and hasattr(value, "tolist"):
        flat = encode(value.tolist(), other)
        return ["n", [str(value.dtype), flat]] if value.shape else flat
    if other is not None:
        sent = other(value)
        if sent is not None:
            return sent
    return encode(_builtin(value), other)


def _builtin(value: Any) -> Any:
    """The builtin that an instance of a derived class is. Raises NotPlain: it is none."""
    for base in BASES:
        if isinstance(value, base):
            return base(value)
    raise NotPlain(f"a {type(value).__name__} is not a value that can be compared")


def as_json(value: Any) -> Any:
    """The JSON that data sets have for `value`: a list for a tuple, a text for a key, a float for a fraction.

    Raises NotPlain: there is none, as for a set.
    """
    kind = type(value)
    if value is None or kind in (bool, str, float, int):
        return value
    if kind is list or kind is tuple:
        return [as_json(item) for item in value]
    if kind is dict:
        return {str(_key(key)): as_json(item) for key, item in value.items()}
    if kind is complex and not value.imag:
        return value.real
    if kind.__module__ == "numpy" and hasattr(value, "tolist"):
        return as_json(value.tolist())
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name == "collections.deque":
        return as_json(list(value))
    if name in ("decimal.Decimal", "fractions.Fraction"):
        return float(value)
    plain = _builtin(value)
    if type(plain) is kind:
        raise NotPlain(f"no JSON equals a {kind.__name__}")
    return as_json(plain)


def _key(key: Any) -> Any:
    """A key as it is printed: a number, a text, or a tuple of such."""
    if isinstance(key, tuple):
        return tuple(map(_key, key))
    plain = as_json(key)
    if isinstance(plain, list | dict):
        raise NotPlain("a dict with keys that are no numbers, texts or tuples of them")
    return plain


def decode(sent: Any, other: Other | None = None) -> Any:
    """The value; `other` decodes what has a tag that is not known here. Raises NotPlain without it, and
    ValueError and TypeError for what `encode` never makes."""
    if not isinstance(sent, list):
        return sent
    tag, content = sent
    if tag in _TYPES:
        return _TYPES[tag](decode(item, other) for item in content)
    if tag == "d":
        return {decode(k, other): decode(v, other) for k, v in content}
    if tag == "i":
        return int(content, 16)
    if tag == "b":
        return bytes.fromhex(content)
    if tag == "y":
        return bytearray.fromhex(content)
    if tag == "x":
        return complex(*content)
    if tag == "r":
        return range(*content)
    if tag == "c" and content[0] in _CLASSES:
        arguments = [decode(argument, other) for argument in content[1]]
        # A short text stands for a huge fraction, and a range for a huge deque.
        allowed = (str,) if content[0] == "decimal.Decimal" else (int, list, dict, type(None))
        if not all(type(argument) in allowed for argument in arguments):
            raise NotPlain(f"no arguments of {content[0]}")
        return _class(content[0])(*arguments)
    if tag == "n":
        return _array(*content)
    if other is None:
        raise NotPlain(f"a value with the tag {tag!r}")
    return other(sent)


def _class(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def _array(dtype: str, sent: Any) -> Any:
    numpy = importlib.import_module("numpy")
    if numpy.dtype(dtype).kind not in "biufc":
        raise NotPlain(f"an array of {dtype}")
    return numpy.array(_numbers(sent), dtype=dtype)


def _numbers(sent: Any) -> Any:
    """Numbers in lists; a range would stand for many more."""
    if isinstance(sent, list) and sent[0] == "l":
        return [_numbers(item) for item in sent[1]]
    number = decode(sent)
    if not isinstance(number, bool | int | float | complex):
        raise NotPlain("an array of what is no number")
    return number
