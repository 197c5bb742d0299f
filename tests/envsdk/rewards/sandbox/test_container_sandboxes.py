"""The docker and podman backends, against a stand-in that records its calls and runs them in bubblewrap."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.sandbox import (
    ExecEnd,
    Image,
    Limits,
    SandboxError,
    SandboxFileError,
    SandboxUnavailable,
    open_backend,
)
from envsdk.rewards.sandbox.containers import (
    CliContainer,
    CliSandbox,
    ContainerBackend,
    DockerBackend,
    has_died,
    this_process,
)
from tests.envsdk.rewards.sandbox.boxes import check_restoring, said

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Standin:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "docker"
        for name in "containers", "images":
            (folder / name).mkdir()
        shutil.copy(Path(__file__).with_name("standin_docker.py"), self.program)
        self.program.write_text(
            self.program.read_text().replace("/usr/bin/env python3", f"{sys.executable} -IS")
        )
        self.program.chmod(0o755)

    def calls(self, subcommand: str) -> list[list[str]]:
        lines = (self.folder / "calls.jsonl").read_text().splitlines()
        return [call[1:] for call in map(json.loads, lines) if call[0] == subcommand]

    def fail(self, subcommand: str, message: str) -> None:
        (self.folder / "fail").write_text(f"{subcommand}\n{message}\n")

    def containers(self) -> list[str]:
        return os.listdir(self.folder / "containers")


@pytest.fixture
def standin(tmp_path: Path) -> Standin:
    (tmp_path / "standin").mkdir()
    return Standin(tmp_path / "standin")


@pytest_asyncio.fixture(loop_scope="module")
async def backend(standin: Standin) -> AsyncIterator[ContainerBackend]:
    backend = DockerBackend({"program": str(standin.program), "image": "trial:1"})
    yield backend
    await backend.aclose()
    assert standin.containers() == []


@pytest.mark.parametrize("name", ["docker", "podman"])
async def test_a_container_is_shut_off_and_limited(name: str, standin: Standin, tmp_path: Path) -> None:
    backend = open_backend(name, {"program": str(standin.program), "run_options": ["--runtime=runsc"]})
    await backend.start(
        Image(container="swebench/one:latest", binds={"/opt/kit": tmp_path}),
        limits=Limits(processes=99, memory_mb=512, shm_mb=32),
    )
    call = " ".join(standin.calls("run")[-1])
    for option in (
        "--detach --name envsdk-",
        "--rm",
        "--network none",
        "--cap-drop ALL",
        "--security-opt no-new-privileges",
        "--pids-limit 99",
        "--memory 512m --memory-swap 512m",
        "--shm-size 32m",
        "--label envsdk.rewards.sandbox=1",
        f"--label envsdk.holder={this_process()}",
        "--runtime=runsc",
        f"--volume {tmp_path}:/opt/kit:ro",
        "swebench/one:latest bash -c",
    ):
        assert option in call
    assert call.endswith("bash 14400")
    assert ("label=disable" in call) == (name == "podman")
    await backend.aclose()
    assert standin.containers() == []


@pytest.mark.parametrize("name", ["docker", "podman"])
async def test_a_container_beside_a_sandbox_is_in_its_network_and_ends_before_it(
    name: str, standin: Standin
) -> None:
    backend = open_backend(name, {"program": str(standin.program), "user": "1000", "time_to_live_s": 60})
    sandbox = await backend.start(Image(volumes={"/log": "log:ro"}), limits=Limits(processes=99))
    assert isinstance(backend, ContainerBackend)
    assert isinstance(sandbox, CliSandbox)
    image = Image(container="db:1", env={"A": "1"}, volumes={"/a": "log:rw", "/b": "data:rw"})
    await backend.start_beside(sandbox, "db", image, ["--user=db"], ["serve"])
    main = f"envsdk-{sandbox.id}"
    call = " ".join(standin.calls("run")[-1])
    for option in (
        f"--name {main}-db --network=container:{main}",
        "--cap-drop ALL",
        "--cap-add=SETUID",
        "--security-opt no-new-privileges",
        "--pids-limit 99",
        f"--volume {main}-log:/a:rw --volume {main}-data:/b:rw",
        f"--label envsdk.holder={this_process()}",
        "--env=A=1",
    ):
        assert option in call
    assert call.endswith("--user=db db:1 serve")
    assert "1000" not in call
    assert ("--timeout=60" in call) == (name == "podman")
    assert f"--volume {main}-log:/log:ro" in " ".join(standin.calls("run")[-2])
    await backend.aclose()
    assert [call[-1] for call in standin.calls("rm")[-2:]] == [f"{main}-db", main]
    made = [call[-1] for call in standin.calls("volume") if call[0] == "create"]
    deleted = [call[1:] for call in standin.calls("volume") if call[0] == "rm"]
    assert (made, deleted) == ([f"{main}-log", f"{main}-data"], [[f"{main}-data"], [f"{main}-log"]])


async def test_commands_run_in_the_laid_out_tree(backend: ContainerBackend, repository: Path) -> None:
    sandbox = await backend.start(Image(tree=repository, env={"A": "1"}))
    script = "pwd; ls -A; echo $A$B; cat lib.py; exit 3"
    result = await sandbox.exec(script, timeout_s=60, env={"B": "2"})
    assert result.output == "/testbed\n.git\nlib.py\ntests\n12\ndef one():\n    return 1\n"
    assert (result.returncode, result.reason) == (3, ExecEnd.EXIT)
    assert said(await sandbox.exec("wc -c", timeout_s=60, stdin=b"x" * 200_000)) == "200000"
    assert result.total_bytes == len(result.output)
    assert said(await sandbox.exec("pwd", timeout_s=60, cwd="/tmp")) == "/tmp"
    assert (await sandbox.exec("pwd", timeout_s=60, cwd="/gone")).returncode == 1
    assert (await sandbox.exec("echo " + "x" * 300_000, timeout_s=60)).ok


async def test_limits_end_commands(backend: ContainerBackend, repository: Path) -> None:
    limits = Limits(output_bytes=1 << 20, kept_output_bytes=1000, disk_mb=8, file_mb=64)
    sandbox = await backend.start(Image(tree=repository), limits=limits)
    assert (await sandbox.exec("sleep 60", timeout_s=0.5)).reason is ExecEnd.TIMEOUT
    endless = await sandbox.exec("yes", timeout_s=60)
    assert (endless.reason, endless.returncode) == (ExecEnd.OUTPUT_LIMIT, 137)
    assert len(endless.output) < 1100
    assert (await sandbox.exec("head -c 9M /dev/zero > a", timeout_s=60)).reason is ExecEnd.DISK_LIMIT


async def test_a_kill_by_the_kernel_is_out_of_memory_once(
    backend: ContainerBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def one(container: CliContainer) -> int:
        return 1

    sandbox = await backend.start(Image())
    monkeypatch.setattr(CliContainer, "memory_kills", one)
    assert (await sandbox.exec("exit 137", timeout_s=60)).reason is ExecEnd.OUT_OF_MEMORY
    assert (await sandbox.exec("exit 137", timeout_s=60)).reason is ExecEnd.EXIT


async def test_what_a_command_leaves_behind_is_killed(backend: ContainerBackend, standin: Standin) -> None:
    sandbox = await backend.start(Image())
    result = await sandbox.exec("setsid sleep 60 & echo over", timeout_s=30)
    assert said(result) == "over"
    await sandbox.exec("sleep 60", timeout_s=0.3)
    assert "kill -9" in standin.calls("exec")[-1][3]
    await sandbox.exec("head -c 100000 /dev/urandom > /tmp/random", timeout_s=30)
    with pytest.raises(SandboxFileError, match="output_limit"):
        await sandbox.pack(max_bytes=100)
    assert "kill -9" in standin.calls("exec")[-1][3]
    assert (await sandbox.exec("true", timeout_s=30)).ok


async def test_files_go_in_and_out(backend: ContainerBackend, repository: Path) -> None:
    sandbox = await backend.start(Image(tree=repository))
    content = bytes(range(256)) * 5000
    await sandbox.write("new/ü", content)
    assert await sandbox.read("new/ü") == content
    for path, problem in {"missing": "no such file", "tests": "not a regular file", "a\0": "no path"}.items():
        with pytest.raises(SandboxFileError, match=problem):
            await sandbox.read(path)
    with pytest.raises(SandboxFileError, match="too large"):
        await sandbox.read("new/ü", max_bytes=1000)
    with pytest.raises(SandboxFileError):
        await sandbox.write("/usr/bin/new", b"x")


async def test_the_comparison_believes_nothing_of_the_container(
    backend: ContainerBackend, repository: Path
) -> None:
    sandbox = await backend.start(Image(tree=repository))
    assert await sandbox.diff() == ""
    trap = "echo 'touch /tmp/executed' > /tmp/trap; chmod +x /tmp/trap; git config core.fsmonitor /tmp/trap;"
    await sandbox.exec(trap + "sed -i s/1/2/ lib.py; rm -rf .git/objects; echo new > new", timeout_s=60)
    await sandbox.exec("rm -f /tmp/executed", timeout_s=60)
    patch = await sandbox.diff()
    assert "+    return 2" in patch
    assert "new file mode" in patch
    assert said(await sandbox.exec("ls -A /tmp", timeout_s=60)).split() == ["trap"]


async def test_a_restored_container_is_as_it_was(
    backend: ContainerBackend, standin: Standin, repository: Path
) -> None:
    sandbox = await backend.start(Image(tree=repository))
    await check_restoring(sandbox, after="echo two > a; rm -rf .git")
    await sandbox.close()
    assert os.listdir(standin.folder / "images") == []


async def test_packed_files_are_unpacked_in_another_container(
    backend: ContainerBackend, repository: Path
) -> None:
    packed, taker = await backend.start(Image(tree=repository)), await backend.start(Image(tree=repository))
    await packed.exec("echo one > a; rm lib.py; echo two > /tmp/b", timeout_s=60)
    await taker.exec("echo other > c; echo other > /tmp/d", timeout_s=60)
    await taker.unpack(await packed.pack())
    assert said(await taker.exec("cat a /tmp/b; ls -A . /tmp", timeout_s=60)).split() == [
        *("one", "two", ".:", ".git", "a", "tests", "/tmp:", "b"),
    ]
    with pytest.raises(SandboxFileError):
        await packed.pack(max_bytes=10)
    for sandbox in (packed, taker):
        await sandbox.close()


async def test_a_container_that_went_away_is_infrastructure(
    backend: ContainerBackend, standin: Standin, repository: Path
) -> None:
    sandbox = await backend.start(Image(tree=repository))
    assert await sandbox.alive()
    subprocess.run([standin.program, "rm", standin.containers()[0]], check=True)  # noqa: ASYNC221
    result = await sandbox.exec("true", timeout_s=60)
    assert (result.reason, result.returncode) == (ExecEnd.INFRASTRUCTURE, None)
    assert "No such container" in result.output
    assert not await sandbox.alive()
    with pytest.raises(SandboxError, match="No such container"):
        await sandbox.read("lib.py")


async def test_the_containers_of_dead_programs_are_swept_and_no_others(standin: Standin) -> None:
    boot, pid, _ = this_process().split(":")
    holders = {
        "dead": f"{boot}:{pid}:1",
        "ours": this_process(),
        "elsewhere": "other-boot:1:1",
        "unlabelled": "?",
    }
    for name, holder in holders.items():
        (standin.folder / "containers" / name).mkdir()
        labels = {"envsdk.rewards.sandbox": "1", "envsdk.holder": holder}
        (standin.folder / "containers" / name / "state.json").write_text(json.dumps({"labels": labels}))
    await DockerBackend({"program": str(standin.program)}).probe()
    assert sorted(standin.containers()) == ["elsewhere", "ours", "unlabelled"]
    assert standin.calls("ps")[0] == [
        "--all",
        "--format={{.Names}}",
        "--filter",
        "label=envsdk.rewards.sandbox",
    ]


async def test_no_more_containers_start_at_once_than_allowed(standin: Standin) -> None:
    backend = DockerBackend({"program": str(standin.program), "starts_at_once": 2})
    await backend.probe()
    running = most = 0
    ask = type(backend._command).ask

    async def counted(command, *arguments, **keywords):
        nonlocal running, most
        running += arguments[0] == "run"
        most = max(most, running)
        try:
            return await ask(command, *arguments, **keywords)
        finally:
            running -= arguments[0] == "run"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(backend._command), "ask", counted)
        await asyncio.gather(*(backend.start(Image()) for _ in range(8)))
    assert most == 2
    await backend.aclose()
    assert standin.containers() == []


async def test_a_command_that_does_not_work_says_what_to_do(standin: Standin, tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match=r"does not answer.*Install it"):
        await DockerBackend({"program": str(tmp_path / "missing")}).probe()
    standin.fail("ps", "Cannot connect to the Docker daemon")
    with pytest.raises(SandboxUnavailable, match="Cannot connect to the Docker daemon"):
        await DockerBackend({"program": str(standin.program)}).probe()
    standin.fail("run", "Unable to find image 'nosuch:1' locally")
    with pytest.raises(
        SandboxUnavailable, match=r"Unable to find image.*Check .*run --rm --network none nosuch:1"
    ):
        await DockerBackend({"program": str(standin.program), "image": "nosuch:1"}).probe()


async def test_a_default_image_that_nothing_needs_is_not_asked_for(standin: Standin) -> None:
    (standin.folder / "no-images").touch()
    backend = DockerBackend({"program": str(standin.program)})
    await backend.probe()
    assert standin.calls("run") == []
    for _ in range(2):
        await backend.start(Image(container="task:1"))
    assert ["task:1" in call for call in standin.calls("run")] == [True] * 3, "it was tried once before"
    await backend.aclose()


async def test_a_container_that_cannot_take_its_tree_is_removed(standin: Standin, repository: Path) -> None:
    backend = DockerBackend({"program": str(standin.program)})
    await backend.probe()
    standin.fail("exec", "Error response from daemon: something broke")
    with pytest.raises(SandboxError, match="something broke"):
        await backend.start(Image(tree=repository))
    assert standin.containers() == []


async def test_wrong_settings_and_images_are_refused(standin: Standin, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="imagee: unknown key; did you mean `image`"):
        open_backend("docker", {"imagee": "x"})
    backend = DockerBackend({"program": str(standin.program)})
    (tmp_path / "a:b").touch()
    for problem, binds in {
        "is not there": {"/opt/x": tmp_path / "missing"},
        "no absolute path": {"opt/x": tmp_path},
        "no path with one of ':'": {"/opt/x": tmp_path / "a:b"},
    }.items():
        with pytest.raises(ConfigurationError, match=problem):
            await backend.start(Image(binds=binds))


async def test_a_process_is_told_from_all_others() -> None:
    assert not has_died(this_process())
    assert not has_died("")
    boot = this_process().split(":")[0]
    with subprocess.Popen(["true"]) as child:  # noqa: ASYNC220
        pid = child.pid
    assert has_died(f"{boot}:{pid}:1")
