"""The filter of system calls, run by a small interpreter of BPF against what it is to say."""

from __future__ import annotations

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.rewards.sandbox.bubblewrap.seccomp import ARCHITECTURES, SOCKET_FAMILIES, filter_program

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000


def run(program: bytes, *, number: int, audit: int, arguments: tuple[int, ...]) -> int:
    data = struct.pack("<iIQ6Q", number, audit, 0, *arguments, *[0] * (6 - len(arguments)))
    lines = list(struct.iter_unpack("=HBBI", program))
    at, accumulator = 0, 0
    while True:
        code, if_true, if_false, value = lines[at]
        at += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif code == 0x15:
            at += if_true if accumulator == value else if_false
        elif code == 0x35:
            at += if_true if accumulator >= value else if_false
        else:
            assert code == 0x06
            return value


@pytest.mark.parametrize("machine", ARCHITECTURES)
@given(data=st.data())
def test_the_filter_says_what_its_tables_say(machine: str, data: st.DataObject) -> None:
    architecture = ARCHITECTURES[machine]
    program = filter_program(machine)
    assert program is not None
    special = [architecture.socket, architecture.ioctl, *architecture.refused.values()]
    number = data.draw(st.one_of(st.sampled_from(special), st.integers(0, 500), st.just(0x40000029)))
    audit = data.draw(st.sampled_from([architecture.audit, 0x40000003]))
    first = data.draw(st.one_of(st.integers(0, 50), st.integers(0, 2**64 - 1)))
    second = data.draw(st.one_of(st.sampled_from([0x5412, 0x541C, 0x100005412]), st.integers(0, 2**64 - 1)))
    verdict = run(program, number=number, audit=audit, arguments=(first, second))
    if audit != architecture.audit:
        assert verdict == KILL
    elif number >= 0x40000000 and architecture.x32_bit:
        assert verdict == ERRNO | errno.ENOSYS
    elif number in architecture.refused.values():
        assert verdict == ERRNO | errno.EPERM
    elif number == architecture.socket:
        allowed = first & 0xFFFFFFFF in SOCKET_FAMILIES
        assert verdict == (ALLOW if allowed else ERRNO | errno.EAFNOSUPPORT)
    elif number == architecture.ioctl:
        assert verdict == (ERRNO | errno.EPERM if second & 0xFFFFFFFF in (0x5412, 0x541C) else ALLOW)
    else:
        assert verdict == ALLOW


def test_a_machine_without_a_table_has_no_filter() -> None:
    assert filter_program("s390x") is None
