"""Attacks by way of sockets; each runs for real."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.envsdk.rewards.sandbox.boxes import said, until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


async def python(sandbox, code: str) -> str:
    return said(await sandbox.exec(f"python - <<'END'\nimport socket\n{code}\nEND", timeout_s=30))


def attempts(*connections: str) -> str:
    lines = ["def attempt(connect):", "    try:", "        connect()", "        print('open')"]
    lines += ["    except OSError as error:", "        print(error.strerror)"]
    return "\n".join([*lines, *(f"attempt(lambda: {connection})" for connection in connections)])


async def test_a_service_of_this_machine_cannot_be_reached(sandbox, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    code = attempts(*(f"socket.create_connection(({host!r}, {port}), 5)" for host in ("127.0.0.1", "::1")))
    assert set((await python(sandbox, code)).splitlines()) <= {
        "Connection refused",
        "Cannot assign requested address",
    }


async def test_no_other_machine_can_be_reached(sandbox) -> None:
    code = attempts(
        "socket.create_connection(('192.0.2.1', 80), 5)",
        "socket.create_connection(('169.254.169.254', 80), 5)",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))",
        "socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).sendto(b'x', ('2001:db8::1', 53))",
    )
    assert set((await python(sandbox, code)).splitlines()) == {"Network is unreachable"}


async def test_names_are_not_resolved(sandbox) -> None:
    result = await sandbox.exec("getent hosts example.org", timeout_s=30)
    assert result.returncode == 2


async def test_an_abstract_socket_of_this_machine_cannot_be_reached(sandbox) -> None:
    name = f"\0envsdk-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(name)
        listening.listen()
        code = attempts(f"socket.socket(socket.AF_UNIX).connect({name!r})")
        assert await python(sandbox, code) == "Connection refused"


async def test_a_socket_file_of_this_machine_cannot_be_reached(sandbox, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        code = attempts(f"socket.socket(socket.AF_UNIX).connect({str(tmp_path / 's')!r})")
        assert await python(sandbox, code) == "No such file or directory"


async def test_raw_and_packet_sockets_are_refused(sandbox) -> None:
    code = attempts(
        "socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)",
        "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    )
    assert (await python(sandbox, code)).splitlines() == [
        "Operation not permitted",
        "Address family not supported by protocol",
    ]


async def test_families_that_no_namespace_bounds_are_refused(sandbox) -> None:
    """The hypervisor's sockets, the kernel's crypto, TIPC, Bluetooth, RDS."""
    code = attempts(*(f"socket.socket({family}, socket.SOCK_STREAM)" for family in (40, 38, 30, 31, 21)))
    assert set((await python(sandbox, code)).splitlines()) == {"Address family not supported by protocol"}


async def test_netlink_shows_no_device_but_loopback(sandbox) -> None:
    assert await python(sandbox, "print([name for _, name in socket.if_nameindex()])") == "['lo']"


async def test_a_sandbox_may_talk_to_itself(sandbox) -> None:
    code = (
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "client = socket.create_connection(server.getsockname())\n"
        "client.sendall(b'hello')\n"
        "print(server.accept()[0].recv(5))"
    )
    assert await python(sandbox, code) == "b'hello'"


async def test_two_sandboxes_do_not_hear_each_other(start, sandbox) -> None:
    other = await start()
    serve = "s = socket.create_server(('127.0.0.1', 4711)); open('/tmp/up', 'w'); import time; time.sleep(60)"
    serving = asyncio.create_task(python(other, serve))
    await until((other.folder / "layers/0/tmp/up").exists)
    assert (
        await python(sandbox, attempts("socket.create_connection(('127.0.0.1', 4711), 5)"))
        == "Connection refused"
    )
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
