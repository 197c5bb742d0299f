"""The program's side of tests: executes the program, and does with its objects what the tests ask for.

    forked, before the tests are read -> waits for ["load", PROGRAM] -> answers -> killed

Nothing here knows what the tests expect.
"""

from __future__ import annotations

import builtins
import io
import operator
import os
import sys
import types

from envsdk.rewards.code.inside import program, values
from envsdk.rewards.code.inside.link import Link, LinkClosed

# Only what is there anyway is imported: each program starts this anew.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

MAX_PRINTED = 1 << 20

_OPERATORS = (
    "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift neg pos abs invert "
    "eq ne lt le gt ge getitem setitem delitem contains"
)
OPERATIONS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(operator, f"__{name}__") for name in _OPERATORS.split()},
    "call": lambda function, *args, **kwargs: function(*args, **kwargs),
    "getattr": getattr,
    "setattr": setattr,
    "delattr": delattr,
    "len": len,
    "iter": iter,
    "next": next,
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "repr": repr,
    "hash": hash,
    "round": round,
    "reversed": reversed,
    "isinstance": isinstance,
    "issubclass": issubclass,
    "enter": lambda manager: type(manager).__enter__(manager),
    "exit": lambda manager: type(manager).__exit__(manager, None, None, None),
    "run": lambda coroutine: __import__("asyncio").run(coroutine),
}

_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType)


class Servant:
    """The program's objects by handle."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._objects: list[Any] = []
        self._handles: dict[int, int] = {}

    def serve(self) -> None:
        """Answer until the tests are over."""
        while True:
            self._answer(self._link.receive())

    def _answer(self, message: Any) -> None:
        before, sys.stdout = sys.stdout, (printed := io.StringIO())
        try:
            if message[0] == "load":
                answer = ["returned", self._load(message[1]), None]
            else:
                answer = self._do(*message)
        except LinkClosed:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever the program raises goes to the tests
            answer = ["raised", *self._raised(error)]
        finally:
            sys.stdout = before
        self._link.send([*answer, printed.getvalue()[:MAX_PRINTED]])

    def _load(self, source: str) -> list[Any]:
        """Everything that the program defines, as pairs."""
        found = []
        for name, value in program.execute(source, name="solution").items():
            if not name.startswith("__"):
                try:
                    found.append([name, self._encode(value)])
                except (values.NotPlain, RecursionError):
                    continue
        return found

    def _do(self, operation: str, handle: int, sent: list[Any], keywords: Mapping[str, Any]) -> list[Any]:
        arguments = [self._decode(argument) for argument in sent]
        named = {name: self._decode(value) for name, value in keywords.items()}
        result = OPERATIONS[operation](self._objects[handle], *arguments, **named)
        changed = [self._changed(before, after) for before, after in zip(sent, arguments, strict=True)]
        for number, argument in enumerate(arguments):
            if result is argument and isinstance(sent[number], list):
                return ["returned", ["a", number], changed]
        return ["returned", self._encode(result), changed]

    def _changed(self, sent: Any, value: Any) -> Any:
        """A mutable argument's content after the call; None where it is what it was."""
        if not isinstance(value, list | dict | set | bytearray):
            return None
        after = self._encode(value)
        return None if after == sent else after

    def _encode(self, value: Any) -> Any:
        return values.encode(value, self._handle)

    def _handle(self, value: Any) -> Any:
        if isinstance(value, Callback):
            return ["o", value.number]
        if isinstance(value, type) and value.__module__ == "builtins":
            return ["g", value.__name__]
        if isinstance(value, types.ModuleType):
            return ["m", value.__name__]
        kind = "object"
        if isinstance(value, type):
            kind = "exception" if issubclass(value, BaseException) else "class"
        elif isinstance(value, _FUNCTIONS) or type(value).__module__ == "functools":
            kind = "function"
        elif hasattr(type(value), "__next__"):
            kind = "iterator"
        elif type(value).__name__ in ("dict_keys", "dict_values", "dict_items"):
            return values.encode(list(value), self._handle)
        elif isinstance(value, BaseException):
            return ["e", list(self._raised(value))]
        elif type(value).__module__ == "builtins" and type(value) is not object:
            kind = "function"
        classes = value.__mro__ if isinstance(value, type) else type(value).__mro__
        known = [[c.__module__, c.__name__, self._number(c)] for c in classes]
        base = next((b for b in values.BASES if isinstance(value, b)), None)
        return ["h", [self._number(value), kind, known, None if base is None else self._encode(base(value))]]

    def _number(self, value: Any) -> int:
        number = self._handles.setdefault(id(value), len(self._objects))
        if number == len(self._objects):
            self._objects.append(value)
        return number

    def _decode(self, sent: Any) -> Any:
        return values.decode(sent, self._object)

    def _object(self, sent: Any) -> Any:
        tag, content = sent
        if tag == "g":
            return getattr(builtins, content)
        return self._objects[content] if tag == "h" else Callback(self, content)

    def _raised(self, error: BaseException) -> tuple[list[Any], list[Any]]:
        classes = [[c.__module__, c.__name__, self._number(c)] for c in type(error).__mro__]
        try:
            return classes, [self._encode(argument) for argument in error.args]
        except Exception:  # noqa: BLE001 - an argument of any kind
            return classes, [program.described(error)]

    def call_back(self, number: int, arguments: tuple[Any, ...]) -> Any:
        """Have the tests call one of their functions; they may ask for more before they answer."""
        self._link.send(["callback", number, [self._encode(argument) for argument in arguments]])
        while True:
            message = self._link.receive()
            if message[0] == "returned":
                return self._decode(message[1])
            if message[0] == "raised":
                raise getattr(builtins, message[1], Exception)(*message[2])
            self._answer(message)


class Callback:
    """A function of the tests."""

    def __init__(self, servant: Servant, number: int) -> None:
        self._servant = servant
        self.number = number

    def __call__(self, *arguments: Any) -> Any:
        return self._servant.call_back(self.number, arguments)


def serve(reader: int, writer: int, memory_mb: int) -> None:
    """In a forked process; does not return."""
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        os.setsid()
        sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115 - stays open
        program.limit(memory_mb=memory_mb)
        Servant(Link(reader, writer)).serve()
    except BaseException:  # noqa: BLE001 - the tests find that it is gone
        pass
    finally:
        os._exit(1)
