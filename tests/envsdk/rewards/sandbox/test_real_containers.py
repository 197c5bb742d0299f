"""The docker and podman backends with real containers: `make test-podman`, `make test-docker`."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from e2b import AsyncSandbox, TimeoutException

from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.swe.evaluator import Verdict, evaluate
from envsdk.envs.swe.tasks.patches import diff
from envsdk.envs.swe.tasks.task import ImageSource, Task, TestPlan
from envsdk.rewards.sandbox import (
    ExecEnd,
    Image,
    Limits,
    SandboxError,
    SandboxFileError,
    SandboxUnavailable,
)
from envsdk.rewards.sandbox.containers import ContainerBackend
from envsdk.rewards.sandbox.images import build_image, named_image
from envsdk.rewards.sandbox.remote import RemoteSandbox
from envsdk.rewards.sandbox.terminal import open_terminal
from tests.envsdk.rewards.sandbox.boxes import said
from tests.envsdk.rewards.sandbox.engines import IMAGE, Engine, open_engine
from tests.envsdk.rewards.sandbox.sandbox_servers import access, sandbox_server

pytestmark = [pytest.mark.containers, pytest.mark.asyncio(loop_scope="module")]

WAIT_S = 120.0
"""For a command that ends by itself, on a busy machine."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with open_engine(tmp_path_factory.mktemp("engine")) as engine:
        yield engine
        assert engine.containers() == [], "containers are left"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(engine: Engine) -> AsyncIterator[ContainerBackend]:
    backend = engine.backend()
    await backend.probe()
    yield backend
    await backend.aclose()


@pytest_asyncio.fixture(loop_scope="module")
async def sandbox(backend: ContainerBackend, repository: Path) -> AsyncIterator[RemoteSandbox]:
    sandbox = await backend.start(Image(tree=repository))
    yield sandbox
    await sandbox.close()


async def test_commands_run_in_the_laid_out_tree(backend: ContainerBackend, repository: Path) -> None:
    sandbox = await backend.start(Image(tree=repository, env={"A": "1"}))
    script = "pwd; ls -A; echo $A$B; cat lib.py; cd tests; export C=1; touch /tmp/kept; exit 3"
    result = await sandbox.exec(script, timeout_s=WAIT_S, env={"B": "2 'x'"})
    assert result.output == "/testbed\n.git\nlib.py\ntests\n12 'x'\ndef one():\n    return 1\n"
    assert (result.returncode, result.reason) == (3, ExecEnd.EXIT)
    assert said(await sandbox.exec("pwd; echo C=$C; ls -d /tmp/kept", timeout_s=WAIT_S)) == (
        "/testbed\nC=\n/tmp/kept"
    )
    assert said(await sandbox.exec("pwd", timeout_s=WAIT_S, cwd="/tmp")) == "/tmp"
    assert said(await sandbox.exec("# " + "x" * 3_000_000 + "\necho long", timeout_s=WAIT_S)) == "long"
    assert said(await sandbox.exec("python -m pytest -q -p no:cacheprovider | tail -1", timeout_s=WAIT_S))
    await sandbox.close()


async def test_files_go_in_and_out_as_they_are(sandbox: RemoteSandbox) -> None:
    content = bytes(range(256)) * 5000
    await sandbox.write("new folder/ü", content)
    assert await sandbox.read("new folder/ü") == content
    assert "printed \ufffd" in (await sandbox.exec("printf 'printed \\xff'", timeout_s=WAIT_S)).output
    for path, problem in {"missing": "no such file", "tests": "not a regular file"}.items():
        with pytest.raises(SandboxFileError, match=problem):
            await sandbox.read(path)
    with pytest.raises(SandboxFileError, match="too large"):
        await sandbox.read("new folder/ü", max_bytes=1000)


async def test_a_container_has_no_network_and_no_power(sandbox: RemoteSandbox) -> None:
    devices = said(await sandbox.exec("tail -n +3 /proc/net/dev | cut -d: -f1", timeout_s=WAIT_S))
    assert devices.split() == ["lo"]
    connect = "import socket; socket.create_connection(('192.0.2.1', 80), 5)"
    assert not (await sandbox.exec(f'python -c "{connect}"', timeout_s=WAIT_S)).ok
    assert "0000000000000000" in said(await sandbox.exec("grep CapEff /proc/self/status", timeout_s=WAIT_S))
    mount = "import ctypes; print(ctypes.CDLL(None).mount(b'none', b'/mnt', b'tmpfs', 0, None))"
    for attempt in (
        "chown 1234 lib.py",
        f'[ "$(python -c "{mount}")" = 0 ]',
        "python -c 'import os; os.mknod(\"/tmp/sda\", 0o60600, os.makedev(8, 0))'",
        "python -c 'import os; os.setuid(1)'",
        "echo 1 > /proc/sys/kernel/panic",
        "echo 1 > /proc/sysrq-trigger",
    ):
        assert not (await sandbox.exec(attempt, timeout_s=WAIT_S)).ok, attempt


async def test_limits_end_commands(backend: ContainerBackend, repository: Path) -> None:
    limits = Limits(
        output_bytes=1 << 20, kept_output_bytes=1000, disk_mb=8, file_mb=4, memory_mb=256, shm_mb=16
    )
    sandbox = await backend.start(Image(tree=repository), limits=limits)
    assert (await sandbox.exec("sleep 600", timeout_s=1)).reason is ExecEnd.TIMEOUT
    assert (await sandbox.exec("trap '' TERM INT HUP; sleep 600", timeout_s=1)).reason is ExecEnd.TIMEOUT
    endless = await sandbox.exec("yes", timeout_s=WAIT_S)
    assert (endless.reason, endless.returncode) == (ExecEnd.OUTPUT_LIMIT, 137)
    hog = await sandbox.exec("python -c 'bytearray(1 << 30)'", timeout_s=WAIT_S)
    assert hog.reason is ExecEnd.OUT_OF_MEMORY
    fill = "for n in 1 2 3 4 5 6; do head -c 3M /dev/zero > /dev/shm/$n || exit 7; done"
    assert "No space" in (await sandbox.exec(fill, timeout_s=WAIT_S)).output
    assert not (await sandbox.exec("head -c 5M /dev/zero > a", timeout_s=WAIT_S)).ok
    full = await sandbox.exec("for n in 1 2 3; do head -c 3M /dev/zero > a$n; done", timeout_s=WAIT_S)
    assert full.reason is ExecEnd.DISK_LIMIT
    assert said(await sandbox.exec("rm a*; echo well", timeout_s=WAIT_S)) == "well"
    await sandbox.close()


FORK_BOMBS = {
    "shell": "bomb() { bomb | bomb & }; bomb; sleep 600",
    "python": "exec python -c 'import os\nwhile True:\n    try: os.fork()\n    except OSError: pass'",
}


@pytest.mark.parametrize("bomb", FORK_BOMBS)
async def test_nothing_of_a_fork_bomb_is_left(bomb: str, backend: ContainerBackend, repository: Path) -> None:
    sandbox = await backend.start(Image(tree=repository), limits=Limits(processes=40))
    result = await sandbox.exec(FORK_BOMBS[bomb], timeout_s=3)
    assert result.reason is ExecEnd.TIMEOUT
    count = 'n=0; for p in /proc/[0-9]*; do n=$((n+1)); done; echo "well $n"'
    well, number = said(await sandbox.exec(count, timeout_s=WAIT_S)).split()
    assert well == "well"
    assert int(number) < 8
    await sandbox.close()


async def test_daemons_end_with_the_command_that_left_them(sandbox: RemoteSandbox) -> None:
    daemon = "(setsid bash -c 'trap \"\" TERM HUP; while :; do date > /tmp/tick; sleep 0.1; done' &) &"
    assert said(await sandbox.exec(f"{daemon} sleep 0.5; echo over", timeout_s=WAIT_S)) == "over"
    script = "rm -f /tmp/tick; sleep 0.5; ls -A /tmp; ps -e -o comm="
    left = said(await sandbox.exec(script, timeout_s=WAIT_S)).split()
    assert "tick" not in left
    assert "date" not in left


async def test_the_first_process_cannot_be_ended_or_misled(sandbox: RemoteSandbox) -> None:
    for name in ("KILL", "TERM", "INT", "HUP", "STOP"):
        await sandbox.exec(f"kill -{name} 1", timeout_s=WAIT_S)
        assert await sandbox.alive()
    assert (await sandbox.exec("kill -USR1 1; sleep 60", timeout_s=WAIT_S)).returncode == 137
    assert said(await sandbox.exec("echo well", timeout_s=WAIT_S)) == "well"


async def test_what_is_bound_stays_as_it_is(
    backend: ContainerBackend, repository: Path, tmp_path: Path
) -> None:
    (tmp_path / "test_hidden.py").write_text("assert True")
    sandbox = await backend.start(Image(tree=repository, binds={"/testbed/tests": tmp_path}))
    assert said(await sandbox.exec("ls tests", timeout_s=WAIT_S)) == "test_hidden.py"
    for attempt in (
        "echo x > tests/test_hidden.py",
        "echo x > tests/conftest.py",
        "rm -rf tests/test_hidden.py",
        "mv tests elsewhere",
        "chmod 777 tests/test_hidden.py",
    ):
        assert not (await sandbox.exec(attempt, timeout_s=WAIT_S)).ok, attempt
    assert (tmp_path / "test_hidden.py").read_text() == "assert True"
    await sandbox.exec("echo x > new", timeout_s=WAIT_S)
    assert (await sandbox.diff()).count("diff --git") == 1
    await sandbox.close()


async def test_links_lead_nowhere_outside(sandbox: RemoteSandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of this machine")
    await sandbox.exec(f"ln -s {tmp_path} out; ln -s /etc/passwd pass", timeout_s=WAIT_S)
    with pytest.raises(SandboxFileError, match="no such file"):
        await sandbox.read("out/secret")
    assert b"of this machine" not in await sandbox.read("pass")
    assert "of this machine" not in await sandbox.diff()


async def test_the_comparison_believes_nothing_of_the_container(sandbox: RemoteSandbox) -> None:
    assert await sandbox.diff() == ""
    trap = "echo 'touch /tmp/executed' > /tmp/trap; chmod +x /tmp/trap; git config core.fsmonitor /tmp/trap;"
    await sandbox.exec(trap + "sed -i s/1/2/ lib.py; rm -rf .git/objects; echo new > new", timeout_s=WAIT_S)
    await sandbox.exec("rm -f /tmp/executed", timeout_s=WAIT_S)
    patch = await sandbox.diff()
    assert "+    return 2" in patch
    assert "new file mode" in patch
    assert "executed" not in said(await sandbox.exec("ls -A /tmp", timeout_s=WAIT_S))


async def test_a_restored_container_is_as_it_was(sandbox: RemoteSandbox) -> None:
    await sandbox.exec("echo one > a; echo one > /tmp/a", timeout_s=WAIT_S)
    kept = await sandbox.snapshot()
    for _ in range(2):
        await sandbox.exec("echo two > a; rm -rf .git /tmp/a", timeout_s=WAIT_S)
        await sandbox.restore(kept)
        assert said(await sandbox.exec("cat a /tmp/a; ls -A", timeout_s=WAIT_S)).split() == [
            *("one", "one", ".git", "a", "lib.py", "tests")
        ]


async def test_sandboxes_do_not_see_each_other(backend: ContainerBackend, repository: Path) -> None:
    sandboxes = await asyncio.gather(*(backend.start(Image(tree=repository)) for _ in range(4)))
    marks = "echo {0} > /tmp/mine; echo {0} > /dev/shm/mine; sed -i s/1/{0}/ lib.py; sleep 0.5; cat /tmp/mine"
    results = await asyncio.gather(
        *(box.exec(marks.format(number), timeout_s=WAIT_S) for number, box in enumerate(sandboxes, 2))
    )
    assert [said(result) for result in results] == ["2", "3", "4", "5"]
    for number, box in enumerate(sandboxes, 2):
        assert f"+    return {number}" in await box.diff()
        await box.close()


async def test_a_container_that_went_away_is_infrastructure(sandbox: RemoteSandbox, engine: Engine) -> None:
    engine.call("rm", "--force", f"envsdk-{sandbox.id}")
    result = await sandbox.exec("true", timeout_s=WAIT_S)
    assert (result.reason, result.returncode) == (ExecEnd.INFRASTRUCTURE, None)
    assert not await sandbox.alive()
    with pytest.raises(SandboxError):
        await sandbox.read("lib.py")


async def test_a_container_ends_by_itself_when_its_time_is_over(engine: Engine) -> None:
    backend = engine.backend(time_to_live_s=2)
    sandbox = await backend._start(Image(), Limits())
    while await sandbox.alive():  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.2)
    await backend.aclose()


PROGRAM = """
import asyncio, sys
from envsdk.rewards.sandbox import Image, open_backend

async def main():
    backend = open_backend(sys.argv[1], {"image": sys.argv[2]})
    sandboxes = [await backend.start(Image()) for _ in range(3)]
    await sandboxes[0].snapshot()
    print("up", flush=True)
    await asyncio.gather(*(sandbox.exec("sleep 600", timeout_s=900) for sandbox in sandboxes))

asyncio.run(main())
"""


async def test_the_containers_of_a_killed_program_are_swept(
    engine: Engine, backend: ContainerBackend
) -> None:
    before = set(engine.containers())
    with subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", PROGRAM, engine.name, IMAGE], stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert await asyncio.to_thread(program.stdout.readline) == "up\n"
        program.send_signal(signal.SIGKILL)
    assert len(set(engine.containers()) - before) == 3
    assert len(engine.kept_images()) == 1
    other = engine.backend()
    await other.probe()
    assert set(engine.containers()) == before
    assert engine.kept_images() == []
    await other.aclose()


async def test_containers_that_cannot_be_limited_are_refused(engine: Engine) -> None:
    unlimited = {"run_options": ["--pids-limit", "-1"]}
    with pytest.raises(SandboxUnavailable, match="no limit on processes"):
        await engine.backend(**unlimited).probe()
    await engine.backend(**unlimited, requires_limits=False).probe()


CALC = {
    "calc.py": "def mean(numbers):\n    return sum(numbers) / len(numbers)\n",
    "tests/test_calc.py": (
        "from calc import mean\n\n\ndef test_two():\n    assert mean([1, 3]) == 2\n\n\n"
        "def test_three():\n    assert mean([1, 2, 3]) == 2\n"
    ),
}


async def test_a_task_in_a_container_image_is_graded(
    engine: Engine, backend: ContainerBackend, tmp_path: Path
) -> None:
    """As SWE-bench's images are: the repository and the interpreter are inside."""
    buggy = {**CALC, "calc.py": CALC["calc.py"].replace("len(numbers)", "2")}
    for name, text in buggy.items():
        (tmp_path / "testbed" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "testbed" / name).write_text(text)
    name = engine.call("create", "--network", "none", IMAGE, "true")
    engine.call("cp", str(tmp_path / "testbed"), f"{name}:/")
    engine.call("commit", name, "localhost/envsdk-task:1")
    engine.call("rm", name)
    task = Task(
        instance_id="octo__calc-1",
        repo="octo/calc",
        source=ImageSource(image="localhost/envsdk-task:1"),
        problem_statement="mean([1, 2, 3]) is 3.0",
        gold_patch=diff({"calc.py": buggy["calc.py"]}, {"calc.py": CALC["calc.py"]}),
        fail_to_pass=("tests/test_calc.py::test_three",),
        pass_to_pass=("tests/test_calc.py::test_two",),
        tests=TestPlan(paths=("tests/test_calc.py",), python="/usr/bin/python3"),
    )
    try:
        gold, empty = await asyncio.gather(
            *(evaluate(task, patch, backend) for patch in (task.gold_patch, ""))
        )
        assert (gold.reward, gold.reason) == (1.0, Verdict.RESOLVED), gold
        assert (empty.reward, empty.reason) == (0.0, Verdict.TESTS_FAILED), empty
        leaving = diff({"calc.py": buggy["calc.py"]}, {"calc.py": "import os\nos._exit(0)\n"})
        cheat = await evaluate(task, leaving, backend, strict=False)
        assert (cheat.reward, cheat.reason) == (0.0, Verdict.TAMPERED), cheat
        hang = diff({"calc.py": buggy["calc.py"]}, {"calc.py": "while True:\n    pass\n"})
        brief = replace(task, limits=replace(task.limits, timeout_s=30.0))
        endless = await evaluate(brief, hang, backend, strict=False)
        assert (endless.reward, endless.reason) == (0.0, Verdict.EXHAUSTED), endless
    finally:
        engine.call("rmi", "--force", "localhost/envsdk-task:1")


DOCKERFILE = """\
FROM {base} AS base
ARG WORD=one
ENV APP=/app
WORKDIR $APP/src
COPY --chmod=755 data/ ./
RUN echo $WORD $PWD > /said && echo 'app:x:4711:4711::/tmp:/bin/bash' >> /etc/passwd && chown 4711 /app
FROM base
COPY --from=base /said /said-again
USER app
"""


async def test_an_image_of_a_dockerfile_is_built_once(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/file").write_text("file\n")
    (tmp_path / "Dockerfile").write_text(DOCKERFILE.format(base=IMAGE))
    backend = engine.backend()
    image = await build_image(backend, tmp_path, args={"WORD": "given"})
    assert image.workdir == "/app/src"
    sandbox = await backend.start(image)
    said_inside = said(
        await sandbox.exec("id -u; pwd; cat /said /said-again file; echo $APP", timeout_s=WAIT_S)
    )
    assert said_inside == "4711\n/app/src\ngiven /app/src\ngiven /app/src\nfile\n/app"
    assert said(await sandbox.exec("id -u; touch /etc/root-was-here", timeout_s=WAIT_S, user="root")) == "0"
    await sandbox.close()
    assert await build_image(backend, tmp_path, args={"WORD": "given"}) == image
    (tmp_path / "data/file").write_text("other\n")
    other = await build_image(backend, tmp_path, args={"WORD": "given"})
    assert other != image
    (tmp_path / "Dockerfile").write_text(f"FROM {IMAGE}\nRUN echo why; exit 3\n")
    with pytest.raises(ConfigurationError, match="did not build"):
        await build_image(backend, tmp_path)
    with pytest.raises(ConfigurationError, match="there is no image"):
        await named_image(backend, "localhost/envsdk-no-such-image")
    for built in (image, other):
        engine.call("rmi", "--force", str(built.container))
    with pytest.raises(ConfigurationError, match="`network: true`"):
        await backend.start(Image(network=True))
    await backend.aclose()


async def test_a_terminal_runs_in_a_container(sandbox: RemoteSandbox) -> None:
    terminal = await open_terminal(sandbox, rows=10, cols=40, start_timeout_s=1)
    screen = await terminal.send(["tty; stty size; echo so$((40 + 2))", "Enter"], 1)
    assert re.search(r"/dev/pts/0\n10 40\nso42", screen.text), screen.text
    await terminal.send(["sleep 1000", "Enter"], 0.5)
    await terminal.send(["C-c", "sleep 1000 &", "Enter"], 0.5)
    await terminal.close()
    assert said(await sandbox.exec("ps ax | grep -c '[s]leep 1000' || true", timeout_s=WAIT_S)) == "0"


async def test_a_server_of_containers_plays_with_e2b_s_sdk(engine: Engine, tmp_path: Path) -> None:
    settings = {"backend": engine.name, "backend_settings": {"image": IMAGE, "starts_at_once": 2}}
    templates = {"base": {"workdir": "/testbed"}}
    async with sandbox_server(tmp_path, templates=templates, **settings) as server:
        sandbox = await AsyncSandbox.create(**access(server))
        await sandbox.files.write("a/file", "content")
        background = await sandbox.commands.run("cat; echo end", background=True, stdin=True)
        assert (await sandbox.commands.run("cat a/file; pwd")).stdout == "content/testbed\n"
        await background.send_stdin("one\n")
        await background.close_stdin()
        assert (await background.wait()).stdout == "one\nend\n"
        await sandbox.pause()
        await sandbox.connect()
        assert [entry.name for entry in await sandbox.files.list("a")] == ["file"]
        with pytest.raises(TimeoutException):
            await sandbox.commands.run("sleep 600", timeout=1)
        [refused] = await sandbox.fork()
        assert "its backend has no forks" in str(refused)
        await sandbox.kill()


async def test_what_is_left_running_goes_on_until_it_is_ended(
    backend: ContainerBackend, repository: Path
) -> None:
    sandbox = await backend.start(Image(tree=repository, keeps_processes=True))
    names = (
        "for process in /proc/[0-9]*; do tr '\\0' ' ' < $process/cmdline; echo; done | grep ^sleep.10 | sort"
    )
    assert (await sandbox.exec("sleep 1001 & setsid sleep 1002 &", timeout_s=WAIT_S)).ok
    cut_off = await sandbox.exec("sleep 1003 & setsid sleep 1004 & sleep 600", timeout_s=5)
    assert cut_off.reason is ExecEnd.TIMEOUT
    left = said(await sandbox.exec(names, timeout_s=WAIT_S)).split()
    assert left == ["sleep", "1001", "sleep", "1002", "sleep", "1004"]
    await sandbox.end_processes()
    assert (await sandbox.exec(names, timeout_s=WAIT_S)).output == ""
    terminal = await open_terminal(sandbox)
    await terminal.send(["sleep 1005 &", "Enter"], wait_s=2)
    assert "1005" in said(await sandbox.exec(names, timeout_s=WAIT_S))
    await terminal.close()
    await sandbox.close()
