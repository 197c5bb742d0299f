"""`envsdk sandboxd` with E2B's own SDK, over HTTP on loopback, its sandboxes in bubblewrap."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from connectrpc.errors import ConnectError
from e2b import (
    AsyncSandbox,
    AuthenticationException,
    CommandExitException,
    FileNotFoundException,
    NotEnoughSpaceException,
    RateLimitException,
    SandboxException,
    SandboxNotFoundException,
    SandboxNotRunningException,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)
from e2b.envd.rpc import handle_rpc_exception

from envsdk.rewards.sandbox.sandboxd.app import SandboxServer
from envsdk.rewards.sandbox.sandboxd.rpc import told
from tests.envsdk.rewards.sandbox.sandbox_servers import OURS, THEIRS, access, sandbox_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

Open = Callable[..., Awaitable[AsyncSandbox]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SandboxServer]:
    async with sandbox_server(tmp_path_factory.mktemp("sandboxd")) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def open_sandbox(server: SandboxServer) -> AsyncIterator[Open]:
    opened = []

    async def create(*arguments: Any, key: str = OURS, **options: Any) -> AsyncSandbox:
        opened.append(await AsyncSandbox.create(*arguments, **options, **access(server, key)))
        return opened[-1]

    yield create
    for sandbox in opened:
        await sandbox.kill()


@pytest_asyncio.fixture(loop_scope="module")
async def sandbox(open_sandbox: Open) -> AsyncSandbox:
    return await open_sandbox(envs={"A": "1"})


async def why_ended(command: Awaitable[Any]) -> str | None:
    with pytest.raises(CommandExitException) as caught:
        await command
    return caught.value.error


async def test_a_command_tells_what_it_prints_and_how_it_ended(sandbox: AsyncSandbox) -> None:
    printed: list[str] = []
    result = await sandbox.commands.run(
        "echo $A$B; pwd; echo wrong >&2", envs={"B": "2"}, on_stdout=printed.append
    )
    assert (result.stdout, result.stderr, result.exit_code) == ("12\n/home/user\n", "wrong\n", 0)
    assert "".join(printed) == result.stdout
    with pytest.raises(CommandExitException) as caught:
        await sandbox.commands.run("exit 3")
    assert caught.value.exit_code == 3


async def test_a_command_in_the_background_lives_across_calls(sandbox: AsyncSandbox) -> None:
    handle = await sandbox.commands.run("cat; echo end", background=True, stdin=True)
    await sandbox.commands.run("echo between > file")
    assert handle.pid in [process.pid for process in await sandbox.commands.list()]
    await handle.send_stdin("one\n")
    async with sandbox.commands.stream_input(handle.pid) as stream:
        await stream.send("two\n")
    await handle.close_stdin()
    assert (await handle.wait()).stdout == "one\ntwo\nend\n"


async def test_a_killed_command_and_its_children_end(sandbox: AsyncSandbox) -> None:
    handle = await sandbox.commands.run("sleep 1000 & wait", background=True)
    follower = await sandbox.commands.connect(handle.pid)
    assert await handle.kill()
    for each in handle, follower:
        assert await why_ended(each.wait()) == "signal: killed"
    assert not await handle.kill()
    gone = "while pgrep sleep > /dev/null; do :; done; echo none"
    assert (await sandbox.commands.run(gone)).stdout == "none\n"


async def test_a_command_ends_when_its_time_is_over(sandbox: AsyncSandbox) -> None:
    with pytest.raises(TimeoutException):
        await sandbox.commands.run("sleep 1000", timeout=0.5)
    # The client's clock may be a little ahead of the server's.
    assert (
        await sandbox.commands.run("while pgrep sleep > /dev/null; do :; done; echo none")
    ).stdout == "none\n"


async def test_a_missing_program_or_folder_is_told(sandbox: AsyncSandbox) -> None:
    with pytest.raises(SandboxException, match="No such file"):
        await sandbox.commands.run("true", cwd="/nowhere")


async def test_a_terminal_takes_keys_and_has_a_size(sandbox: AsyncSandbox) -> None:
    from e2b import PtySize

    screen = bytearray()
    terminal = await sandbox.pty.create(PtySize(rows=24, cols=80), on_data=screen.extend)
    await sandbox.pty.resize(terminal.pid, PtySize(rows=30, cols=100))
    await sandbox.pty.send_stdin(terminal.pid, b"stty size; exit\n")
    await terminal.wait()
    assert b"30 100" in screen


async def test_files_are_written_read_listed_and_moved(sandbox: AsyncSandbox) -> None:
    await sandbox.files.write("a/text", "héllo")
    await sandbox.files.write_files([{"path": "/tmp/x", "data": b"\0\xff"}, {"path": "empty", "data": ""}])
    assert await sandbox.files.read("/home/user/a/text") == "héllo"
    assert await sandbox.files.read("/tmp/x", format="bytes") == b"\0\xff"
    assert await sandbox.files.read("empty") == ""
    assert not await sandbox.files.make_dir("a")
    assert await sandbox.files.make_dir("a/b/c")
    moved = await sandbox.files.rename("a/text", "a/b/moved")
    assert (moved.path, moved.size) == ("/home/user/a/b/moved", 6)
    await sandbox.commands.run("ln -s b/moved a/link")
    found = {entry.path: entry for entry in await sandbox.files.list("a", depth=2)}
    assert sorted(found) == [f"/home/user/a/{name}" for name in ("b", "b/c", "b/moved", "link")]
    assert found["/home/user/a/link"].symlink_target == "/home/user/a/b/moved"
    await sandbox.files.remove("a")
    assert not await sandbox.files.exists("a")
    for name, problem in {"none": FileNotFoundException, "/etc": SandboxException}.items():
        with pytest.raises(problem):
            await sandbox.files.read(name)
    with pytest.raises(SandboxException, match="Read-only"):
        await sandbox.files.write("/usr/bin/x", "")


async def test_large_files_go_in_pieces(sandbox: AsyncSandbox) -> None:
    content = bytes(range(256)) * 20_000
    await sandbox.files.write("plain", content, use_octet_stream=True)
    await sandbox.files.write("packed", content, gzip=True)
    for name in "plain", "packed":
        chunks = [chunk async for chunk in await sandbox.files.read(name, format="stream")]
        assert len(chunks) > 1
        assert b"".join(chunks) == content


async def test_watching_is_refused_by_name(sandbox: AsyncSandbox) -> None:
    with pytest.raises(SandboxException, match="does not watch folders"):
        await sandbox.files.watch_dir(".", on_event=print)


async def test_sandboxes_are_listed_by_metadata_and_in_pages(
    server: SandboxServer, open_sandbox: Open
) -> None:
    ids = [(await open_sandbox(metadata={"run": "a b", "n": str(n)})).sandbox_id for n in range(3)]
    pages = AsyncSandbox.list(query=SandboxQuery(metadata={"run": "a b"}), limit=2, **access(server))
    found = []
    while pages.has_next:
        found.append([each.sandbox_id for each in await pages.next_items()])
    assert list(map(len, found)) == [2, 1]
    assert sorted(found[0] + found[1]) == sorted(ids)
    assert (
        await AsyncSandbox.list(query=SandboxQuery(metadata={"run": "x"}), **access(server)).next_items()
        == []
    )


async def test_a_paused_sandbox_stands_still(server: SandboxServer, sandbox: AsyncSandbox) -> None:
    handle = await sandbox.commands.run("read; echo got $REPLY", background=True, stdin=True)
    with pytest.raises(SandboxException, match="keeps its processes"):
        await sandbox.pause(mode="filesystem")
    assert await sandbox.pause()
    assert not await sandbox.pause()
    assert (await sandbox.get_info()).state is SandboxState.PAUSED
    assert not await sandbox.is_running()
    with pytest.raises(SandboxNotRunningException):
        await sandbox.commands.run("true")
    again = await AsyncSandbox.connect(sandbox.sandbox_id, **access(server))
    await again.commands.send_stdin(handle.pid, "it\n")
    assert (await handle.wait()).stdout == "got it\n"


async def test_a_time_out_ends_a_sandbox(server: SandboxServer, open_sandbox: Open) -> None:
    ended = await open_sandbox(timeout=60)
    handle = await ended.commands.run("sleep 1000", background=True)
    await ended.set_timeout(0)
    with pytest.raises(SandboxNotRunningException, match="end of life"):
        await handle.wait()
    assert not await ended.is_running()
    with pytest.raises(SandboxNotFoundException):
        await AsyncSandbox.connect(ended.sandbox_id, **access(server))


async def test_a_token_is_needed_and_sees_only_its_own_sandboxes(
    server: SandboxServer, sandbox: AsyncSandbox, open_sandbox: Open
) -> None:
    with pytest.raises(AuthenticationException):
        await AsyncSandbox.create(**access(server, "e2b_" + "2" * 40))
    other = access(server, THEIRS)
    assert await AsyncSandbox.list(**other).next_items() == []
    with pytest.raises(SandboxNotFoundException):
        await AsyncSandbox.connect(sandbox.sandbox_id, **other)
    assert not await AsyncSandbox.kill(sandbox.sandbox_id, **other)
    theirs = await open_sandbox(key=THEIRS)
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "X-Access-Token": theirs._envd_access_token or ""}
    async with httpx2.AsyncClient(base_url=server.url) as client:
        for wrong in headers, {**headers, "X-Access-Token": ""}:
            assert (await client.get("/files?path=x", headers=wrong)).status_code == 401
            answer = await client.post("/process.Process/List", headers=wrong, json={})
            assert answer.status_code == 401
    with pytest.raises(RateLimitException, match="1 sandboxes at once"):
        await open_sandbox(key=THEIRS)
    await theirs.kill()
    await open_sandbox(key=THEIRS)


async def test_a_sandbox_is_found_by_its_host_s_name(server: SandboxServer, sandbox: AsyncSandbox) -> None:
    await sandbox.files.write("x", "by host")
    headers = {
        "Host": f"49983-{sandbox.sandbox_id}.sandboxes.example.org",
        "X-Access-Token": sandbox._envd_access_token or "",
    }
    async with httpx2.AsyncClient(base_url=server.url, headers=headers) as client:
        assert (await client.get("/files?path=x")).text == "by host"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"template": "none"}, "template none not found: this server has base"),
        ({"network": {"allow_out": ["x"]}}, "network: this server has none"),
        ({"lifecycle": {"on_timeout": "pause"}}, "autoPause: this server has none"),
        ({"timeout": 10**6}, "timeout 1000000: between 0 and the token's 86400"),
        (
            {"metadata": {"envsdk_limits": '{"memory_mb": 4096}'}},
            "limit memory_mb: between 1 and this server's",
        ),
    ],
)
async def test_what_the_server_has_not_is_refused_by_name(
    open_sandbox: Open, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(SandboxException, match=problem):
        await open_sandbox(**options)


async def test_a_call_that_is_not_there_is_named(server: SandboxServer) -> None:
    async with httpx2.AsyncClient(base_url=server.url) as client:
        answer = await client.get("/volumes")
    assert (answer.status_code, answer.json()["message"]) == (
        501,
        "GET /volumes: this server has no such call",
    )


async def test_what_passes_a_limit_ends_all_processes_and_the_sandbox_goes_on(open_sandbox: Open) -> None:
    sandbox = await open_sandbox(metadata={"envsdk_limits": '{"disk_mb": 8, "memory_mb": 512}'})
    other = await sandbox.commands.run("sleep 1000", background=True)
    script = "head -c 64M /dev/zero > big; sleep 1000"
    assert await why_ended(sandbox.commands.run(script)) == "disk_limit"
    assert await why_ended(other.wait()) == "disk_limit"
    await sandbox.files.remove("big")
    assert (await sandbox.commands.run("echo well")).stdout == "well\n"


async def test_a_sandbox_full_of_processes_says_so(open_sandbox: Open) -> None:
    sandbox = await open_sandbox(metadata={"envsdk_limits": '{"processes": 16}'})
    await sandbox.commands.run("for i in {1..30}; do sleep 1000 & done; wait", background=True)

    async def fill() -> None:
        for _ in range(30):
            await sandbox.commands.run("sleep 1000", background=True)

    with pytest.raises(SandboxException, match="limit on processes") as caught:
        await fill()
    assert not isinstance(caught.value, RateLimitException)


async def test_an_error_s_number_is_named_once(sandbox: AsyncSandbox) -> None:
    with pytest.raises(SandboxException, match="No such file") as caught:
        await sandbox.commands.run("true", cwd="/nowhere")
    assert str(caught.value).count("Errno") <= 1


async def test_nothing_inside_can_take_the_first_process_s_place(sandbox: AsyncSandbox) -> None:
    script = (
        "import os, socket\n"
        "try: socket.socket(socket.AF_UNIX).connect('/run/envsdk/door/door'); print('connected')\n"
        "except OSError as error: print(type(error).__name__)\n"
        "first = os.getppid()\n"
        "try: os.readlink(f'/proc/{first}/fd/0'); print('read')\n"
        "except OSError as error: print(type(error).__name__)\n"
    )
    await sandbox.files.write("attack.py", script)
    result = await sandbox.commands.run("exec python3 attack.py")
    assert result.stdout.split() == ["FileNotFoundError", "PermissionError"]


async def test_a_first_process_that_is_stopped_is_replaced(
    sandbox: AsyncSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envsdk.rewards.sandbox.sandboxd.guest.GONE_S", 0.2)
    monkeypatch.setattr("envsdk.rewards.sandbox.sandboxd.guest.ANSWER_TIMEOUT_S", 2.0)
    with pytest.raises(TimeoutException):
        await sandbox.commands.run("kill -STOP $PPID; sleep 1000", timeout=0.5)
    for _ in range(10):
        # What starts before the server has noticed ends with the others.
        with contextlib.suppress(CommandExitException):
            assert (await sandbox.commands.run("pgrep sleep || echo well")).stdout == "well\n"
            return
    pytest.fail("the sandbox did not recover")


async def test_a_command_ends_in_time_though_its_client_is_gone(
    server: SandboxServer, sandbox: AsyncSandbox
) -> None:
    [box] = [box for box in server.boxes.of("ours") if box.id == sandbox.sandbox_id]
    handle = await sandbox.commands.run("sleep 1000", background=True, timeout=1)
    await handle.disconnect()
    [running] = box.guest.processes()
    with running.events() as events:
        assert (await events.next(30)).code == -9


async def test_the_end_of_the_first_process_is_the_commands_doing(sandbox: AsyncSandbox) -> None:
    assert await why_ended(sandbox.commands.run("kill -9 -1; sleep 1000")) == "signal: killed"
    assert (await sandbox.commands.run("echo well")).stdout == "well\n"


async def test_forks_and_snapshots_have_the_files_and_no_processes(
    server: SandboxServer, sandbox: AsyncSandbox
) -> None:
    await sandbox.files.write("file", "kept")
    running = await sandbox.commands.run("sleep 1000", background=True)
    [refused] = await sandbox.fork()
    assert f"processes {running.pid} run" in str(refused)
    await running.kill()
    forks = await sandbox.fork(count=3)
    snapshot = await sandbox.create_snapshot(name="prepared")
    await sandbox.files.remove("file")
    forks += [
        await AsyncSandbox.create(name, **access(server)) for name in (snapshot.snapshot_id, "prepared")
    ]
    for number, fork in enumerate(forks):
        assert await fork.files.read("file") == "kept"
        assert (
            await fork.commands.run(f"echo {number} > file; cat file; echo $A")
        ).stdout == f"{number}\n1\n"
        await fork.kill()
    with pytest.raises(SandboxNotFoundException):
        await AsyncSandbox.connect(snapshot.snapshot_id, **access(server))
    assert await AsyncSandbox.delete_snapshot(snapshot.snapshot_id, **access(server))
    assert not await AsyncSandbox.delete_snapshot(snapshot.snapshot_id, **access(server))


async def test_free_places_are_told(server: SandboxServer, open_sandbox: Open) -> None:
    async with httpx2.AsyncClient(base_url=server.url, headers={"X-API-KEY": THEIRS}) as client:
        assert (await client.get("/envsdk/places")).json() == {**{"sandboxes": 1, "used": 0, "free": 1}}
        await open_sandbox(key=THEIRS)
        assert (await client.get("/envsdk/places")).json()["free"] == 0


async def test_a_repeated_creation_makes_one_sandbox(open_sandbox: Open) -> None:
    one, other = [await open_sandbox(idempotency_key="once") for _ in range(2)]
    assert one.sandbox_id == other.sandbox_id


async def test_a_folder_is_taken_by_its_digest_alone(server: SandboxServer) -> None:
    name = hashlib.sha256(b"x").hexdigest()
    async with httpx2.AsyncClient(base_url=server.url, headers={"X-API-KEY": OURS}) as client:
        for path, content, status, problem in (
            (name, b"y", 400, "SHA-256"),
            (name, b"x", 400, "no tar archive"),
            ("..", b"x", 501, ""),
        ):
            answer = await client.put(f"/envsdk/folders/{path}", content=content)
            assert answer.status_code == status
            assert problem in answer.text
        assert (await client.get(f"/envsdk/folders/{name}")).status_code == 404


async def test_a_path_leads_nowhere_outside(sandbox: AsyncSandbox) -> None:
    await sandbox.commands.run("ln -s / out; ln -s ../../../etc/shadow shadow")
    for path in "out/root", "../../../root", "shadow", "/proc/1/root/root":
        with pytest.raises(SandboxException):
            await sandbox.files.read(f"{path}/.bashrc" if "shadow" not in path else path)
    assert [entry.name for entry in await sandbox.files.list("out/home")] == ["user"]


async def test_bodies_that_are_too_long_are_refused(server: SandboxServer, sandbox: AsyncSandbox) -> None:
    headers = {"X-API-KEY": OURS}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers) as client:
        assert (await client.post("/v2/sandboxes", content=b" " * (2 << 20))).status_code == 413
    with pytest.raises(NotEnoughSpaceException):
        await sandbox.files.write("big", b"\0" * (257 << 20), gzip=True)


async def test_a_client_that_was_busy_for_long_finds_its_connection(sandbox: AsyncSandbox) -> None:
    await sandbox.files.write("one", "1")
    time.sleep(5.5)  # noqa: ASYNC251 - the event loop stands still, as when a large file is packed
    await sandbox.files.write("two", "2")


async def test_a_file_over_the_limit_leaves_no_part_of_it(open_sandbox: Open) -> None:
    sandbox = await open_sandbox(metadata={"envsdk_limits": '{"file_mb": 1}'})
    for how in {"use_octet_stream": True}, {"gzip": True}, {}:
        with pytest.raises(SandboxException):
            await sandbox.files.write("big", b"\0" * (3 << 20), **how)
        assert not await sandbox.files.exists("big")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EAGAIN])
async def test_what_a_sandbox_lacks_is_no_limit_on_requests(number: int) -> None:
    with pytest.raises(ConnectError) as caught, told():
        raise OSError(number, "no room")
    said = handle_rpc_exception(ConnectError(caught.value.code, caught.value.message))  # as it arrives
    assert not isinstance(said, RateLimitException)
    assert "no room" in str(said)
