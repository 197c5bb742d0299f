"""The system calls a sandboxed command may not make, as a filter for `bwrap --seccomp`.

Namespaces leave these open: socket families that no network namespace covers (the hypervisor's AF_VSOCK,
the kernel's AF_ALG), the caller's keyrings, the kernel's most attacked interfaces, and TIOCSTI, which types
into a terminal.
"""

from __future__ import annotations

import errno
import struct
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SOCKET_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK: all of them bounded by the network namespace."""

_TIOCSTI = 0x5412
_TIOCLINUX = 0x541C

_LOAD_WORD, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24
_ALLOW = 0x7FFF0000
_KILL_PROCESS = 0x80000000


def _refuse(error: int) -> int:
    return 0x00050000 | error


@dataclass(frozen=True, slots=True)
class Architecture:
    """What the kernel calls a machine, and its numbers of system calls."""

    audit: int
    socket: int
    ioctl: int
    refused: Mapping[str, int]
    owners: Mapping[str, int]
    """What changes the owner of a file, or a process's user."""
    x32_bit: int | None = None


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
ARCHITECTURES = {machine: Architecture(**numbers) for machine, numbers in _TABLE.items()}


def filter_program(machine: str, *, one_owner: bool = False) -> bytes | None:
    """The filter for a machine as `platform.machine()` names it; None for one that is not known here.

    Args:
        one_owner: Calls that change owners and users do nothing, and succeed: the sandbox has one user, and
            programs that install others' files expect more.
    """
    architecture = ARCHITECTURES.get(machine)
    if architecture is None:
        return None
    lines: list[tuple[int, int, int, int]] = [
        (_LOAD_WORD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, architecture.audit),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD_WORD, 0, 0, _NUMBER),
    ]
    if architecture.x32_bit is not None:
        lines += [(_JUMP_AT_LEAST, 0, 1, architecture.x32_bit), (_RETURN, 0, 0, _refuse(errno.ENOSYS))]
    for number in architecture.refused.values():
        lines += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _refuse(errno.EPERM))]
    for number in architecture.owners.values() if one_owner else ():
        lines += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _refuse(0))]
    families = _one_of(_FIRST_ARGUMENT, SOCKET_FAMILIES, _ALLOW, _refuse(errno.EAFNOSUPPORT))
    controls = _one_of(_SECOND_ARGUMENT, (_TIOCSTI, _TIOCLINUX), _refuse(errno.EPERM), _ALLOW)
    lines += [*_on(architecture.socket, families), *_on(architecture.ioctl, controls)]
    lines.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def _on(number: int, check: Sequence[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """`check` for this system call; all others skip it."""
    return [(_JUMP_EQUAL, 0, len(check), number), *check]


def _one_of(
    argument: int, values: Sequence[int], then: int, otherwise: int
) -> list[tuple[int, int, int, int]]:
    """The answer `then` where the argument is one of these values."""
    jumps = [(_JUMP_EQUAL, len(values) - index, 0, value) for index, value in enumerate(values)]
    return [(_LOAD_WORD, 0, 0, argument), *jumps, (_RETURN, 0, 0, otherwise), (_RETURN, 0, 0, then)]
