"""The tests' side: stand-ins for the program's functions, classes and objects.

    program.load(source)
    assert program.names["add"](1, 2) == 3

What comes back is a plain value, which this process compares, or a stand-in. A stand-in can lie, so it stands
only for what tests cannot do without: functions, iterators, and instances of classes that the tests name.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import os
import sys

from envsdk.rewards.code.inside import values
from envsdk.rewards.code.inside.link import Link, LinkClosed

# Only what is there anyway is imported: each program starts this anew.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

_ITERATOR_OPERATIONS = {"iter", "next", "len", "isinstance"}
_FUNCTION_OPERATIONS = {"call", "getattr", "isinstance", "hash", "repr", "str"}
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_ARITHMETIC = (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
)


class Unsupported(Exception):
    """What the tests do with the program's objects cannot be done from another process."""


class Program:
    """The program in its process. Ended by `end`."""

    def __init__(self, pid: int, link: Link, named: set[str]) -> None:
        self.pid = pid
        self.link = link
        self.names: dict[str, Any] = {}
        """What the program defines."""
        self._named = named
        """Names in the tests."""
        self._callbacks: list[Callable[..., Any]] = []
        self._exceptions: dict[int, type[BaseException]] = {}
        self._classes: set[int] = set()

    def load(self, source: str) -> None:
        """Execute the program. Raises what it raises."""
        self.link.send(["load", source])
        exported = self._result([])
        for name, sent in exported:
            is_class = isinstance(sent, list) and sent[0] == "h" and sent[1][1] == "class"
            # A class has a class's name: what the tests call a function makes no objects.
            if is_class and name in self._named and name[:1].isupper():
                self._classes.add(sent[1][0])
        for name, sent in exported:
            try:
                self.names[name] = self._decode(sent)
            except Unsupported:
                continue

    def ask(self, operation: str, handle: int, *arguments: Any, **keywords: Any) -> Any:
        encoded = [self._encode(argument) for argument in arguments]
        self.link.send(
            [operation, handle, encoded, {name: self._encode(value) for name, value in keywords.items()}]
        )
        sent = self._result(list(arguments))
        if sent.__class__ is list and sent[0] == "a":
            return arguments[sent[1]]
        return self._decode(sent)

    def _result(self, arguments: list[Any]) -> Any:
        """What the program returns, encoded; `arguments` become what it made of them."""
        while True:
            message = self.link.receive()
            try:
                if message[0] == "callback":
                    self._called_back(message[1], message[2])
                    continue
                answer, content, more, printed = message
                captured = sys.stdout
                captured.write(str(printed))
                if answer == "raised":
                    raised = self._exception(content, more)
                else:
                    for argument, after in zip(arguments, more or [], strict=False):
                        if after is not None:
                            _replace(argument, self._decode(after))
                    return content
            except (
                ValueError,
                TypeError,
                LookupError,
                RecursionError,
                ImportError,
                ArithmeticError,
            ) as error:
                self.link.closed = f"sent what cannot be read: {error}"
                raise LinkClosed(self.link.closed) from error
            raise raised

    def _called_back(self, number: int, sent: list[Any]) -> None:
        try:
            result = self._callbacks[number](*(self._decode(argument) for argument in sent))
            answer = ["returned", self._encode(result)]
        except Exception as error:  # noqa: BLE001 - goes to the program that called
            arguments = [value for value in error.args if isinstance(value, str | int)]
            answer = ["raised", type(error).__name__, arguments]
        self.link.send(answer)

    def _encode(self, value: Any) -> Any:
        return values.encode(value, self._sent)

    def _sent(self, value: Any) -> Any:
        if isinstance(value, Remote):
            return ["h", object.__getattribute__(value, "_handle")]
        for handle, kind in self._exceptions.items():
            if value is kind:
                return ["h", handle]
        name = getattr(value, "__name__", "")
        if isinstance(name, str) and name and getattr(builtins, name, None) is value:
            return ["g", name]
        if callable(value) and not isinstance(value, type):
            self._callbacks.append(value)
            return ["o", len(self._callbacks) - 1]
        if hasattr(type(value), "__next__"):
            return values.encode(list(value), self._sent)
        if type(value).__module__ == "builtins" and not isinstance(value, type):
            return values.encode(list(value), self._sent)
        if isinstance(value, values.BASES):
            return None
        raise Unsupported(f"the tests give the program a {type(value).__name__} of their own")

    def _decode(self, sent: Any) -> Any:
        return values.decode(sent, self._received)

    def _received(self, sent: Any) -> Any:
        tag, content = sent
        if tag == "m":
            return self._module(content)
        if tag == "e":
            return self._exception(*content)
        if tag == "o":
            return self._callbacks[content]
        if tag == "g" and isinstance(found := getattr(builtins, content), type):
            return found
        handle, kind, classes, base = content
        if kind == "exception":
            return self._exception_class(classes)
        if kind == "object" and not any(number in self._classes for _, _, number in classes):
            if base is not None:
                return self._decode(base)
            raise Unsupported(f"an object of class {classes[0][1]} that the tests do not name")
        return Remote(self, int(handle), str(kind))

    def _module(self, name: str) -> Any:
        if name.split(".")[0] in sys.stdlib_module_names:
            return importlib.import_module(name)
        raise Unsupported(f"the module {name}")

    def _exception(self, classes: list[Any], arguments: list[Any]) -> BaseException:
        kind = self._exception_class(classes)
        values_ = [self._decode(argument) for argument in arguments]
        try:
            return kind(*values_)
        except Exception:  # noqa: BLE001 - an exception with arguments of its own kind
            made = BaseException.__new__(kind)
            made.args = tuple(values_)
            return made

    def _exception_class(self, classes: list[Any]) -> type[BaseException]:
        """The builtin class, or a stand-in for the program's derived from the next builtin one."""
        module, name, number = classes[0]
        if number in self._exceptions:
            return self._exceptions[number]
        found = getattr(builtins if module == "builtins" else sys.modules.get(module), name, None)
        if module == "solution" or not (isinstance(found, type) and issubclass(found, BaseException)):
            found = type(str(name), (self._exception_class(classes[1:]),), {})
        self._exceptions[number] = found
        return found


class Remote:
    """One of the program's objects."""

    def __init__(self, program: Program, handle: int, kind: str) -> None:
        object.__setattr__(self, "_program", program)
        object.__setattr__(self, "_handle", handle)
        object.__setattr__(self, "_kind", kind)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_envsdk"):
            raise AttributeError(name)
        return _ask(self, "getattr", name)

    def __setattr__(self, name: str, value: Any) -> None:
        _ask(self, "setattr", name, value)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return _ask(self, "call", *arguments, **keywords)

    def __iter__(self) -> Iterator[Any]:
        kind = object.__getattribute__(self, "_kind")
        return self if kind == "iterator" else iter(_ask(self, "iter"))

    def __enter__(self) -> Any:
        return _ask(self, "enter")

    def __exit__(self, *error: object) -> None:
        _ask(self, "exit")

    def __await__(self) -> Any:
        yield from ()
        return _ask(self, "run")

    def __instancecheck__(self, instance: Any) -> bool:
        if not isinstance(instance, Remote):
            return False
        program = object.__getattribute__(self, "_program")
        return bool(program.ask("isinstance", object.__getattribute__(instance, "_handle"), self))


def _ask(remote: Remote, operation: str, *arguments: Any, **keywords: Any) -> Any:
    kind = object.__getattribute__(remote, "_kind")
    allowed = {"iterator": _ITERATOR_OPERATIONS, "function": _FUNCTION_OPERATIONS}.get(kind)
    if allowed is not None and operation not in allowed:
        raise TypeError(f"a {kind} of the program's has no {operation}")
    program = object.__getattribute__(remote, "_program")
    return program.ask(operation, object.__getattribute__(remote, "_handle"), *arguments, **keywords)


def _define() -> None:
    """The operators. The program is not asked how its object compares with a plain value: it would see what
    the tests expect, and could say yes."""

    def unary(name: str) -> Callable[..., Any]:
        return lambda self, *arguments: _ask(self, name, *arguments)

    def exact(name: str, kind: type) -> Callable[..., Any]:
        def method(self: Remote, *arguments: Any) -> Any:
            answer = _ask(self, name, *arguments)
            if type(answer) is not kind:
                raise TypeError(f"{name} of the program's object is no {kind.__name__}")
            return answer

        return method

    def compared(name: str) -> Callable[..., Any]:
        def method(self: Remote, other: Any) -> Any:
            if isinstance(other, Remote):
                return _ask(self, name, other)
            if name in ("eq", "ne"):
                return name == "ne"
            raise TypeError(f"an object of the program's is compared with a {type(other).__name__}")

        return method

    def computed(name: str) -> Callable[..., Any]:
        def method(self: Remote, other: Any) -> Any:
            answer = _ask(self, name, other)
            if not isinstance(other, Remote) and not isinstance(answer, Remote):
                raise TypeError(f"{name} of the program's object and a value is a value")
            return answer

        return method

    for name in _COMPARISONS:
        setattr(Remote, f"__{name}__", compared(name))
    for name in _ARITHMETIC:
        setattr(Remote, f"__{name}__", computed(name))
    for name in (
        "neg",
        "pos",
        "abs",
        "invert",
        "getitem",
        "setitem",
        "delitem",
        "next",
        "delattr",
        "round",
        "reversed",
    ):
        setattr(Remote, f"__{name}__", unary(name))
    for name, kind in {
        "len": int,
        "bool": bool,
        "int": int,
        "float": float,
        "str": str,
        "repr": str,
        "hash": int,
        "contains": bool,
    }.items():
        setattr(Remote, f"__{name}__", exact(name, kind))


_define()


def _replace(argument: Any, after: Any) -> None:
    """Make a mutable argument what it is after the call."""
    if isinstance(argument, list | bytearray):
        argument[:] = after
    elif isinstance(argument, dict | set):
        argument.clear()
        argument.update(after)


def end(program: Program) -> None:
    """Kill the program's process. Idempotent."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(program.pid, 9)
