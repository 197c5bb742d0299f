"""E2B's own SDK, as its README and guides use it, against `envsdk sandboxd` as a program."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

e2b = pytest.importorskip("e2b")

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]

KEY = "e2b_" + "0" * 40
DOMAIN = "sandboxes.test"
SETTINGS = """
domain = {domain}
state_dir = "{folder}/server"
backend_settings.state_dir = "{folder}/sandboxes"
tokens.me.token = "{key}"
"""


@contextmanager
def served(folder: Path, domain: str | None = None) -> Iterator[str]:
    """The URL of a server that has nothing left at its end."""
    lines = SETTINGS.format(folder=folder, key=KEY, domain=f'"{domain}"').strip().splitlines()
    (folder / "sandboxd.toml").write_text("\n".join(lines[0 if domain else 1 :]))
    command = [sys.executable, "-m", "envsdk.cli", "sandboxd", str(folder / "sandboxd.toml"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        yield program.stdout.readline().split()[-1]
        program.terminate()
        assert program.wait(60) == 0
    assert [*(folder / "server").iterdir(), *(folder / "sandboxes").iterdir()] == []


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("e2b")) as url:
        yield url


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, server: str) -> None:
    for name, value in {"E2B_API_KEY": KEY, "E2B_API_URL": server, "E2B_SANDBOX_URL": server}.items():
        monkeypatch.setenv(name, value)


def test_the_readme_s_first_program() -> None:
    with e2b.Sandbox.create() as sandbox:
        result = sandbox.commands.run('echo "Hello from E2B!"')
    assert result.stdout == "Hello from E2B!\n"


def test_commands_stream_run_in_the_background_and_take_input() -> None:
    with e2b.Sandbox.create(timeout=120, envs={"GREETING": "hello"}) as sandbox:
        printed: list[str] = []
        script = "for i in 1 2 3; do echo $GREETING $i; sleep 0.1; done; echo bad >&2"
        result = sandbox.commands.run(script, on_stdout=printed.append, on_stderr=printed.append)
        assert "".join(printed) == "hello 1\nhello 2\nhello 3\nbad\n"
        assert result.stdout == "hello 1\nhello 2\nhello 3\n"
        assert sandbox.commands.run("echo $A $GREETING", envs={"A": "a"}, cwd="/tmp").stdout == "a hello\n"
        reader = sandbox.commands.run("cat", background=True, stdin=True)
        sandbox.commands.send_stdin(reader.pid, "line\n")
        again = sandbox.commands.connect(reader.pid)
        sandbox.commands.close_stdin(reader.pid)
        assert again.wait().exit_code == 0
        sleeper = sandbox.commands.run("sleep 600", background=True)
        assert [each.pid for each in sandbox.commands.list()] == [sleeper.pid]
        assert sleeper.kill()
        with pytest.raises(e2b.CommandExitException):
            sandbox.commands.run("exit 3")
        with pytest.raises(e2b.TimeoutException):
            sandbox.commands.run("sleep 600", timeout=0.5)


def test_files_are_written_read_and_listed() -> None:
    with e2b.Sandbox.create() as sandbox:
        with pytest.raises(e2b.SandboxException, match="does not watch folders"):
            sandbox.files.watch_dir(".")
        info = sandbox.files.write("dir/hello.txt", "hello")
        assert (info.path, info.name) == ("/home/user/dir/hello.txt", "hello.txt")
        sandbox.files.write_files([{"path": "a", "data": b"\0"}, {"path": "/tmp/b", "data": "b"}])
        assert sandbox.files.read("dir/hello.txt") == "hello"
        assert sandbox.files.read("a", format="bytes") == b"\0"
        assert b"".join(sandbox.files.read("dir/hello.txt", format="stream")) == b"hello"
        assert [each.name for each in sandbox.files.list(".")] == ["a", "dir"]
        assert sandbox.files.get_info("dir").type is e2b.FileType.DIR
        sandbox.files.rename("a", "c")
        sandbox.files.remove("c")
        assert not sandbox.files.exists("c")


def test_sandboxes_are_found_again_paused_forked_and_kept() -> None:
    sandbox = e2b.Sandbox.create(metadata={"user": "me"})
    sandbox.commands.run("echo kept > file")
    found = e2b.Sandbox.list(query=e2b.SandboxQuery(metadata={"user": "me"})).next_items()
    assert [each.sandbox_id for each in found] == [sandbox.sandbox_id]
    sandbox.set_timeout(30)
    assert sandbox.get_info().metadata == {"user": "me"}
    sandbox.pause()
    assert not sandbox.is_running()
    again = e2b.Sandbox.connect(sandbox.sandbox_id)
    assert again.files.read("file") == "kept\n"
    forks = sandbox.fork(count=2)
    snapshot = sandbox.create_snapshot(name="prepared")
    sandbox.files.remove("file")
    copies = [*forks, e2b.Sandbox.create(snapshot.snapshot_id), e2b.Sandbox.create("prepared")]
    for copy in copies:
        assert copy.files.read("file") == "kept\n"
        copy.kill()
    assert e2b.Sandbox.delete_snapshot(snapshot.snapshot_id)
    with pytest.raises(e2b.SandboxException, match="this server has no such call"):
        sandbox.get_metrics()
    running = sandbox.commands.run("sleep 600", background=True)
    [refused] = sandbox.fork()
    assert f"processes {running.pid} run" in str(refused)
    assert sandbox.kill()
    assert not sandbox.kill()


async def test_the_asynchronous_sdk() -> None:
    async with await e2b.AsyncSandbox.create() as sandbox:
        results = await asyncio.gather(*(sandbox.commands.run(f"echo {n}") for n in range(8)))
        assert [result.stdout for result in results] == [f"{n}\n" for n in range(8)]


def test_a_terminal() -> None:
    with e2b.Sandbox.create() as sandbox:
        terminal = sandbox.pty.create(e2b.PtySize(rows=24, cols=80))
        sandbox.pty.send_stdin(terminal.pid, b"echo $((40 + 2)); exit\n")
        screen = bytearray()
        terminal.wait(on_pty=screen.extend)
        assert b"42" in screen


WITH_A_DOMAIN = """
import e2b, sys
client = e2b.E2B(domain=sys.argv[1], proxy=sys.argv[2])
with client.Sandbox.create() as sandbox:
    sandbox.files.write("x", "by name")
    print(sandbox.get_host(3000), sandbox.commands.run("cat x").stdout, sandbox.files.read("x"))
"""


async def test_a_server_is_found_by_its_domain_behind_a_proxy_with_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-addext", f"subjectAltName=DNS:*.{DOMAIN}"]
    signed += ["-addext", "basicConstraints=critical,CA:FALSE"]
    for command in (
        [*new, "-subj", "/CN=tests", "-keyout", "ca.key", "-out", "ca.pem"],
        [*new, "-subj", f"/CN={DOMAIN}", "-keyout", "key.pem", "-out", "cert.pem", *signed],
    ):
        await asyncio.to_thread(subprocess.run, command, cwd=tmp_path, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    asked: list[str] = []

    with served(tmp_path, DOMAIN) as url:

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append((await reader.readuntil(b"\r\n\r\n")).split()[1].decode())
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            await writer.start_tls(context)
            host, port = url.removeprefix("http://").split(":")
            near, far = await asyncio.open_connection(host, int(port))
            await asyncio.gather(pipe(reader, far), pipe(near, writer), return_exceptions=True)

        async with await asyncio.start_server(forward, "127.0.0.1", 0) as proxy:
            address = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
            environment = {name: value for name, value in os.environ.items() if not name.endswith("_URL")}
            program = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", WITH_A_DOMAIN, DOMAIN, address),
                env={**environment, "SSL_CERT_FILE": str(tmp_path / "ca.pem")},
                stdout=subprocess.PIPE,
            )
            out, _ = await program.communicate()
    host, *contents = out.decode().split()
    assert contents == ["by", "name", "by", "name"]
    assert f"api.{DOMAIN}:443" in asked
    assert f"{host.replace('3000-', '49983-')}:443" in asked


async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(1 << 16):
        writer.write(chunk)
        await writer.drain()
    writer.close()
