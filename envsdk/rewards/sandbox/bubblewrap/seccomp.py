"""The system calls a sandboxed command may not make, as a filter for `bwrap --seccomp`.

Namespaces leave these open: socket families that no network namespace covers (the hypervisor's AF_VSOCK,
the kernel's AF_ALG), the caller's keyrings, the kernel's most attacked interfaces, and TIOCSTI, which types
into a terminal.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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


_IO_URING = {"io_uring_enter": 426, "io_uring_register": 427, "io_uring_setup": 425}

ARCHITECTURES = {
    "x86_64": Architecture(
        audit=0xC000003E,
        socket=41,
        ioctl=16,
        x32_bit=0x40000000,
        refused={
            **_IO_URING, "add_key": 248, "bpf": 321,
            "kexec_load": 246, "keyctl": 250, "open_by_handle_at": 304, "perf_event_open": 298,
            "request_key": 249, "userfaultfd": 323,
        },
        owners={
            "chown": 92, "fchown": 93, "lchown": 94, "fchownat": 260,
            "setuid": 105, "setgid": 106, "setreuid": 113, "setregid": 114, "setgroups": 116,
            "setresuid": 117, "setresgid": 119, "setfsuid": 122, "setfsgid": 123,
        },
    ),
    "aarch64": Architecture(
        audit=0xC00000B7,
        socket=198,
        ioctl=29,
        refused={
            **_IO_URING, "add_key": 217, "bpf": 280,
            "kexec_load": 104, "keyctl": 219, "open_by_handle_at": 265, "perf_event_open": 241,
            "request_key": 218, "userfaultfd": 282,
        },
        owners={
            "fchownat": 54, "fchown": 55,
            "setregid": 143, "setgid": 144, "setreuid": 145, "setuid": 146, "setresuid": 147,
            "setresgid": 149, "setfsuid": 151, "setfsgid": 152, "setgroups": 159,
        },
    ),
}  # fmt: skip


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
