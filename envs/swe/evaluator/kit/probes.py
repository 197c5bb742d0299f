"""What sealed tests call in place of asserting: it sends what they saw, and does not know what is expected.

A value is sent by its built-in content, read without the methods of its class, so that an overridden
`__eq__` or `__repr__` has no say. Nothing that is sent here proves anything: patched code runs here. It
counts because to forge it one has to know the values that the seal holds elsewhere.
"""

import hashlib
import json
import os
import re
import sys
import unittest
from _thread import allocate_lock
from collections import Counter, OrderedDict, UserDict, UserList, UserString
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath, PurePosixPath
from types import MappingProxyType

# Nothing of a newer Python than 3.6, annotations included: images have old interpreters.
from typing import Any
from uuid import UUID

NAME = "_envsdk_probes"
"""Name of the module, as sealed tests import it."""
MAX_CHARACTERS = 3 << 17
"""Length of one value; a larger one is sent as its digest."""
MAX_HITS = 2000
"""Values of one claim in one test; the rest is not sent."""
_MAX_DEPTH = 60
_MAX_PARTS = 100000
"""Depth and parts of one value. Objects that refer to each other have more parts than can be counted."""
_BASES = (bool, int, float, complex, str, bytes, bytearray, tuple, list, dict, set, frozenset, type(None))
_SET_VIEWS = (type(sys.modules.keys()), type(sys.modules.items()))
_dumps, _sha256, _pid, _type = json.dumps, hashlib.sha256, os.getpid, type
_mro = type.__dict__["__mro__"].__get__


class Probes:
    """Sends claims: the id of the running test, the claim's name, its kind, and what was seen, as JSON."""

    def __init__(self, record: "Callable[..., None]") -> None:
        self.test = ""
        self.kinds: dict[str, Callable[[], Any]] = {}
        """What finds the classes of exceptions that test files wait for, under names of the seal."""
        self._record, self._lock = record, allocate_lock()
        self._hits: dict[Any, int] = {}
        self._owner = _pid()

    def claim(self, name: str, *values: Any) -> None:
        """The operands of a comparison, or those of them that the seal does not hold."""
        self._send(name, "values", [encode(value) for value in values])

    def truths(self, name: str, value: Any, *variants: "Callable[[Any], Any]") -> None:
        """What the assertion says of `value`, among variants with other constants, in the seal's order."""
        seen: list[Any] = []
        for variant in variants:
            try:
                seen.append(bool(variant(value)))
            except Exception as error:  # noqa: BLE001 (a variant may ask for anything)
                seen.append(_type(error).__name__)
        self._send(name, "truths", seen)

    def raising(self, name: str, wanted: Any = None, match: Any = None) -> "Raising":
        """Around what may raise, or must."""
        return Raising(self, name, wanted, match)

    def known(self, is_meant: "Callable[[Any], bool]") -> "list[str]":
        """The names of the classes that are meant, whatever they are called here."""
        found = []
        for name, find in self.kinds.items():
            try:
                if is_meant(find()):
                    found.append(":" + name)
            except Exception:  # noqa: BLE001 (the name may be gone, or mean anything)
                continue
        return found

    def _send(self, name: str, kind: str, seen: Any) -> None:
        if _pid() != self._owner:
            return  # the report belongs to the process that opened it
        with self._lock:
            key = (self.test, name)
            hits = self._hits[key] = self._hits.get(key, 0) + 1
            if hits <= MAX_HITS:
                self._record("claim", self.test, name, kind, "0", _dumps(seen))


class Raising:
    """Like `pytest.raises` and `assertRaises`, but for any exception, or none."""

    def __init__(self, probes: Probes, name: str, wanted: Any, match: Any) -> None:
        self._probes, self._name, self._wanted, self._match = probes, name, wanted, match
        self.value: Any = None
        self.exception: Any = None
        self.type: Any = None

    def __enter__(self) -> "Raising":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if kind is not None and (
            not issubclass(kind, (Exception, SystemExit)) or issubclass(kind, unittest.SkipTest)
        ):
            return False
        try:
            text = _text_of(error)[:20000]
        except Exception:  # noqa: BLE001 (an exception's own text may raise)
            text = ""
        names = [found.__qualname__ for found in _mro(kind)] if kind is not None else []
        if kind is not None:
            # An alias of all exceptions is none of the one that is meant.
            names += self._probes.known(lambda found: issubclass(kind, found) and found is not Exception)
        seen = [names, text]
        if self._wanted is not None:
            wanted = self._wanted if isinstance(self._wanted, tuple) else (self._wanted,)
            match = self._match
            pattern = match.pattern if isinstance(match, _type(re.compile(""))) else match
            seen += [[name for found in wanted for name in self._named(found)], pattern]
        self._probes._send(self._name, "raised", seen)
        self.value = self.exception = _NOTHING if error is None else error
        self.type = kind
        return True

    def _named(self, kind: Any) -> "list[str]":
        return self._probes.known(lambda found: found is kind) or [kind.__qualname__]

    def match(self, pattern: Any) -> bool:
        """As `pytest.ExceptionInfo` has it."""
        assert re.search(pattern, _text_of(self.value)), (pattern, self.value)
        return True


class _Nothing:
    """In place of an exception that was not raised, or of a missing name: it answers whatever is asked."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *values: Any, **keywords: Any) -> Any:
        return self

    def __getitem__(self, key: Any) -> Any:
        return self

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __contains__(self, item: Any) -> bool:
        return False

    def __str__(self) -> str:
        return ""


_NOTHING = _Nothing()


def _text_of(error: Any) -> str:
    """What `pytest.raises` searches: an exception's text and the notes added to it."""
    return "\n".join([str(error), *map(str, getattr(error, "__notes__", ()))])


def install(record: "Callable[..., None]") -> Probes:
    """Make the probes importable by sealed tests."""
    module: Any = _type(sys)(NAME)
    probes = Probes(record)
    module.claim, module.truths = probes.claim, probes.truths
    module.raising, module.kinds, module.nothing = probes.raising, probes.kinds.update, _NOTHING
    sys.modules[NAME] = module
    return probes


def encode(value: Any) -> Any:
    """`value` as JSON: `[tag, content]`; what has no canonical form is `["opaque", class]`."""
    try:
        encoded = _Encoder().encode(value, 0)
    except _TooManyParts:
        return ["opaque", _type(value).__qualname__]
    text = _dumps(encoded)
    if len(text) <= MAX_CHARACTERS:
        return encoded
    return ["digest", _sha256(text.encode()).hexdigest()]


class _TooManyParts(Exception):
    pass


class _Encoder:
    """Encodes one value."""

    def __init__(self) -> None:
        self._num_parts = 0

    def encode(self, value: Any, depth: int) -> Any:
        self._num_parts += 1
        if self._num_parts > _MAX_PARTS:
            raise _TooManyParts
        kind = _type(value)
        if depth > _MAX_DEPTH:
            return ["opaque", "deep"]
        base = next((found for found in _mro(kind) if found in _BASES), None)
        if base is None and issubclass(kind, Enum):
            return ["enum", kind.__qualname__, value.name]
        if base is None:
            return self._other(value, kind, depth)
        if base is _type(None):
            return ["none"]
        if base is bool:
            return ["bool", value is True]
        if base is int:
            return ["int", format(int.__int__(value), "x")]
        if base is float:
            return ["float", float.__repr__(float.__float__(value))]
        if base is complex:
            return ["complex", float.__repr__(value.real), float.__repr__(value.imag)]
        if base is str:
            return ["str", str.__str__(value)]
        if base is bytes or base is bytearray:
            return ["bytes", bytes.hex(bytes(memoryview(value)))]
        if base is dict:
            return self._dict(value, kind, depth)
        tag = {tuple: "tuple", list: "list", set: "set", frozenset: "set"}[base]
        return [tag, [self.encode(item, depth + 1) for item in base.__iter__(value)]]

    def _dict(self, value: Any, kind: Any, depth: int) -> Any:
        if issubclass(kind, OrderedDict):
            return ["ordered", self._pairs(OrderedDict.items(value), depth)]
        pairs = self._pairs(dict.items(value), depth)
        if issubclass(kind, Counter):
            return ["counter", pairs]
        return ["dict", pairs]

    def _pairs(self, items: Any, depth: int) -> Any:
        return [[self.encode(key, depth + 1), self.encode(item, depth + 1)] for key, item in items]

    def _other(self, value: Any, kind: Any, depth: int) -> Any:
        if kind is Fraction:
            return ["fraction", format(value.numerator, "x"), format(value.denominator, "x")]
        if kind is Decimal:
            return ["decimal", str(value)]
        if kind is range:
            return ["range", *(format(part, "x") for part in (value.start, value.stop, value.step))]
        if kind in _SET_VIEWS:
            return ["set", [self.encode(item, depth + 1) for item in value]]
        if kind is MappingProxyType:
            return ["dict", self._pairs(value.items(), depth)]
        if issubclass(kind, (UserDict, UserList, UserString)):
            return self.encode(value.data, depth + 1)
        printed = _printed(value, kind)
        if printed is not None:
            return printed
        if kind.__name__.startswith("Approx") and kind.__module__.startswith("_pytest."):
            limits = [self.encode(limit, 0) for limit in (value.rel, value.abs)]
            return ["approx", self.encode(value.expected, depth + 1), *limits]
        if kind.__module__ == "numpy" and getattr(value, "ndim", None) == 0:
            return self.encode(value.item(), depth + 1)
        fields = _compared_fields(kind)
        if fields is not None:
            content = [[name, self.encode(getattr(value, name, None), depth + 1)] for name in fields]
            return ["dataclass", kind.__qualname__, content]
        return ["opaque", kind.__qualname__]


def _printed(value: Any, kind: Any) -> "list[str] | None":
    """Moments, lengths of time, UUIDs and paths, so that equal ones have the same text; None for the rest."""
    if issubclass(kind, datetime):
        offset = value.utcoffset()
        if offset is None:
            return ["printed", "datetime", datetime.isoformat(value)]
        try:
            moment = datetime.combine(datetime.date(value), datetime.time(value)) - offset
        except OverflowError:
            return None
        return ["printed", "datetime with zone", datetime.isoformat(moment)]
    if issubclass(kind, PurePath):
        flavour = "PosixPath" if issubclass(kind, PurePosixPath) else "WindowsPath"
        text = PurePath.__str__(value)
        own = kind.__module__ in ("pathlib", "pathlib._local")
        return ["printed", flavour, text if flavour == "PosixPath" else text.lower()] if own else None
    if issubclass(kind, date):
        return ["printed", "date", date.isoformat(value)]
    if issubclass(kind, timedelta):
        return ["printed", "timedelta", f"{value.days} {value.seconds} {value.microseconds}"]
    if kind is time or kind is UUID:
        return ["printed", kind.__name__, repr(value)]
    return None


def _compared_fields(kind: Any) -> "list[str] | None":
    """Fields of a data class whose `__eq__` compares them, written by `dataclasses` or `attrs`; else None."""
    code = getattr(getattr(kind, "__eq__", None), "__code__", None)
    if code is None or not code.co_filename.startswith("<"):
        return None
    if hasattr(kind, "__dataclass_fields__"):
        import dataclasses  # of Python 3.7 and newer, as is every data class

        return [field.name for field in dataclasses.fields(kind) if field.compare]
    if hasattr(kind, "__attrs_attrs__"):
        return [field.name for field in kind.__attrs_attrs__ if field.eq]
    return None
