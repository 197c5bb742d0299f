"""The `docker` and `podman` backends, through their command lines.

container:  run (detached, only waits) -> beside it others -> exec ... exec -> rm
                                       -> its time to live is over: it ends and deletes itself
                                       -> its program died: the next program's sweep deletes it
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar

from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.sandbox.contract import ExecEnd, Image, Limits, SandboxError, SandboxUnavailable
from envsdk.rewards.sandbox.images.build import Build
from envsdk.rewards.sandbox.process import Finished, Process
from envsdk.rewards.sandbox.remote import WAIT, Container, RemoteBackend, RemoteSandbox, Shell
from envsdk.rewards.sandbox.settings import ContainerSettings, parse_settings
from envsdk.rewards.sandbox.threads import in_thread

log = logging.getLogger(__name__)

LABEL = "envsdk.rewards.sandbox"
HOLDER = "envsdk.holder"
_MAX_ANSWER_BYTES = 1 << 20
_KINDS = {
    "container": (("ps", "--all", "--format={{.Names}}"), ".Config.Labels", ("rm", "--force", "--volumes")),
    "image": (("images", "--quiet"), ".Config.Labels", ("rmi", "--force")),
    "volume": (("volume", "ls", "--quiet"), ".Labels", ("volume", "rm")),
}
"""What a program that died may leave: how it is listed, where its labels are, how it is deleted."""
_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "NET_BIND_SERVICE", "SETGID", "SETUID")
"""What images of services need to come up as root and run as their own user."""

_ON_TERMINAL = ("sh", "-c", 'exec <> "$0" >&0 2>&0; exec "$@"')
"""The first terminal that a session opens is its own, so that its size reaches the program."""
_SMOKE = """\
echo probe $(tail -n +3 /proc/net/dev | cut -d: -f1)
cd /sys/fs/cgroup 2>/dev/null
echo $(cat pids.max pids/pids.max 2>/dev/null)
echo $(cat memory.max memory/memory.limit_in_bytes 2>/dev/null)
"""
"""Prints the network's devices, and the limits on processes and memory as far as they are shown."""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A container program and how to call it."""

    program: str
    timeout_s: float

    async def run(
        self,
        *arguments: str,
        stdin: IO[bytes] | int | None = None,
        timeout_s: float | None = None,
        keep: int = _MAX_ANSWER_BYTES,
        max_output: int = _MAX_ANSWER_BYTES,
    ) -> Finished:
        """Run it to its end. Raises OSError: there is no such program."""
        stdin = subprocess.DEVNULL if stdin is None else stdin if isinstance(stdin, int) else stdin.fileno()
        terminal = [*_ON_TERMINAL, os.ttyname(stdin)] if stdin >= 0 and os.isatty(stdin) else []
        process = Process.start(
            [*terminal, self.program, *arguments],
            env=os.environ,
            pass_fds=(),
            stdin=stdin,
            status=None,
            keep=keep,
            max_output=max_output,
        )
        return await process.finish(timeout_s or self.timeout_s)

    async def ask(self, *arguments: str, timeout_s: float | None = None) -> str:
        """What it prints. Raises SandboxError: it failed."""
        ended = await self.run(*arguments, timeout_s=timeout_s)
        if ended.reason is not ExecEnd.EXIT or ended.returncode:
            why = ended.output.text().strip()[-500:] or f"{ended.reason}, code {ended.returncode}"
            raise SandboxError(f"{self.program} {' '.join(arguments[:2])}: {why}")
        return ended.output.text().strip()


@dataclass(slots=True, kw_only=True)
class CliContainer(Container):
    """One container of docker or podman."""

    command: CommandLine
    name: str
    run_options: Sequence[str]
    argv: Sequence[str]
    """What it runs."""
    checks_disk: bool = False
    volumes: list[str] = field(default_factory=list)
    """Made before it starts, and deleted with it: those that none before it has made."""
    beside: dict[str, CliContainer] = field(default_factory=dict)
    """Containers in its network, which end with it."""
    kept: list[str] = field(default_factory=list)
    """Images made of it."""

    async def start(self, image: str) -> None:
        """Raises ConfigurationError: there is no such image. Raises SandboxError: the program refused."""
        for volume in () if self.kept else self.volumes:
            await self.command.ask("volume", "create", *_labels(), volume)
        try:
            async with self.starts:
                how = ("run", "--detach", "--name", self.name, *self.run_options)
                await self.command.ask(*how, image, *self.argv)
        except SandboxError as error:
            if (await self.command.run("image", "inspect", image)).returncode:
                raise ConfigurationError(f"there is no image {image!r}: {error}") from error
            raise

    async def failure(self) -> str:
        """How it has ended with an error, and the last that it printed; empty where it has not."""
        is_running, code = (await self._inspect("{{.State.Running}} {{.State.ExitCode}}")).split()
        if is_running == "true" or code == "0":
            return ""
        printed = (await self.command.run("logs", "--tail", "20", self.name)).output.text()
        return f"ended with code {code}: {printed.strip()[-500:]}"

    async def shell(self, shell: Shell) -> Finished:
        variables = [option for name, value in shell.env.items() for option in ("--env", f"{name}={value}")]
        options = [*(("--interactive",) if shell.stdin is not None else ())]
        options += ["--tty"] if isinstance(shell.stdin, int) and os.isatty(shell.stdin) else []
        options += ["--user", shell.user] if shell.user is not None else []
        return await self.command.run(
            *("exec", *options, *variables, self.name, *shell.argv),
            stdin=shell.stdin,
            timeout_s=shell.timeout_s,
            keep=shell.keep,
            max_output=shell.max_output,
        )

    async def is_running(self) -> bool:
        with contextlib.suppress(SandboxError, OSError):
            return await self._inspect("{{.State.Running}}") == "true"
        return False

    async def end_all(self) -> bool:
        await self.command.ask("kill", "--signal", "USR1", self.name)
        return True

    async def memory_kills(self) -> int:
        script = "grep -hs '^oom_kill ' /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control"
        ended = await self.shell(Shell(argv=["bash", "-c", script], timeout_s=60))
        words = ended.output.text().split()
        return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0

    async def disk_bytes(self) -> int:
        if not self.checks_disk:
            return 0
        size = await self._inspect("{{.SizeRw}}", "--size")
        return int(size) if size.isdigit() else 0

    async def keep(self) -> str:
        name = f"envsdk-kept:{self.name}-{len(self.kept)}"
        await self.command.ask("commit", "--pause=false", self.name, name)
        self.kept.append(name)
        return name

    async def replaced_by(self, kept: str) -> None:
        await self.command.ask("rm", "--force", "--volumes", self.name)
        await self.start(kept)

    async def end(self) -> None:
        for container in reversed(self.beside.values()):  # podman deletes none that others depend on
            await container.remove()
        await self.command.ask("rm", "--force", "--volumes", self.name)
        if self.volumes:
            await self.command.ask("volume", "rm", *self.volumes)
        if self.kept:
            await self.command.ask("rmi", "--force", *self.kept)

    async def _inspect(self, template: str, *options: str) -> str:
        return await self.command.ask("container", "inspect", *options, "--format", template, self.name)


class CliSandbox(RemoteSandbox):
    """A sandbox in a container of docker or podman."""

    takes_descriptors = True

    def _has_users(self) -> bool:
        return True


class ContainerBackend(RemoteBackend):
    """Runs sandboxes as containers.

    Raises ConfigurationError: a setting is unknown or wrong.
    """

    name: ClassVar[str]
    extra_options: ClassVar[tuple[str, ...]] = ()
    timeout_option: ClassVar[str] = ""
    """Option of `run` that ends a container after so many seconds."""
    forbidden_in_binds = ":"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = parse_settings(ContainerSettings, settings, backend=self.name)
        super().__init__(self.settings)
        self.has = "keeps_processes", *(["network"] if self.settings.network else [])
        self._command = CommandLine(self.settings.program or self.name, self.settings.call_timeout_s)

    async def _probe(self) -> None:
        await self._sweep()
        own, is_named = self.settings.image, "image" in self.settings.model_fields_set
        self._is_tried = is_named or not (await self._command.run("image", "inspect", own)).returncode
        if self._is_tried:
            await self._smoke_run(Image())

    async def start(self, image: Image, *, limits: Limits | None = None) -> RemoteSandbox:
        await self.probe()
        if not self._is_tried:  # no image was there, and it may be that nothing needs the default one
            await self._smoke_run(Image(container=image.container))
            self._is_tried = True
        return await super().start(image, limits=limits)

    def _make(self, image: Image, limits: Limits) -> tuple[RemoteSandbox, str]:
        identity = secrets.token_hex(6)
        name, user = f"envsdk-{identity}", self.settings.user
        own = ["--rm", *(() if image.network else ("--network", "none")), *(("--user", user) if user else ())]
        container = CliContainer(
            command=self._command,
            name=name,
            run_options=[*own, *self._run_options(image, limits, name)],
            argv=("bash", "-c", WAIT, "bash", str(self.settings.time_to_live_s)),
            starts=self._starts,
            checks_disk=self.settings.checks_disk,
            volumes=_volumes(image, name),
        )
        sandbox = CliSandbox(id=identity, image=image, limits=limits, container=container, slots=self._slots)
        return sandbox, image.container or self.settings.image

    async def start_beside(
        self, sandbox: CliSandbox, name: str, image: Image, options: Sequence[str], argv: Sequence[str]
    ) -> None:
        """Start a container in a sandbox's network and with its limits, which ends with the sandbox.

        Args:
            options: Further ones of `run`.
            argv: What it runs; empty where the image says it.

        Raises SandboxError: the program refused.
        """
        main = sandbox.container
        assert isinstance(main, CliContainer)
        assert image.container is not None
        lives = [f"{self.timeout_option}={self.settings.time_to_live_s}"] if self.timeout_option else []
        made = {volume for each in (main, *main.beside.values()) for volume in each.volumes}
        container = main.beside[name] = CliContainer(
            command=self._command,
            name=f"{main.name}-{name}",
            run_options=[
                *(f"--network=container:{main.name}", "--log-driver=json-file", "--log-opt=max-size=10m"),
                *lives,
                *self._run_options(image, sandbox.limits, main.name),
                *(f"--cap-add={each}" for each in _CAPABILITIES),
                *(f"--env={variable}={value}" for variable, value in image.env.items()),
                *options,
            ],
            argv=argv,
            starts=self._starts,
            volumes=[each for each in _volumes(image, main.name) if each not in made],
        )
        await container.start(image.container)

    async def build(self, build: Build) -> Image:
        from envsdk.rewards.sandbox.images.context import digest_of_build

        tag = f"envsdk-built:{(await in_thread(digest_of_build, build))[:32]}"
        if (await self._command.run("image", "inspect", tag)).returncode:
            options = ["--file", str(build.file), "--tag", tag, "--label", "envsdk.built=1"]
            options += [f"--target={build.target}"] if build.target is not None else []
            options += [f"--build-arg={name}={value}" for name, value in build.args.items()]
            options += [] if self.settings.network else ["--network=none"]
            ended = await self._command.run("build", *options, str(build.context), timeout_s=build.timeout_s)
            if ended.reason is not ExecEnd.EXIT or ended.returncode:
                said = ended.output.text().strip()[-2000:]
                raise ConfigurationError(f"{build.file}: {self.name} did not build it: {said}")
        return await self.named_image(tag)

    async def named_image(self, name: str) -> Image:
        try:
            if (await self._command.run("image", "inspect", name)).returncode:
                await self._command.ask("pull", "--quiet", name)
            workdir = await self._command.ask("image", "inspect", "--format", "{{.Config.WorkingDir}}", name)
        except SandboxError as error:
            raise ConfigurationError(f"there is no image {name!r}: {error}") from None
        return Image(container=name, workdir=workdir or "/")

    def _run_options(self, image: Image, limits: Limits, main: str) -> list[str]:
        shown = {inside: f"{source.resolve()}:{inside}:ro" for inside, source in image.binds.items()}
        for inside, volume in image.volumes.items():
            name, _, mode = volume.partition(":")
            shown[inside] = f"{main}-{name}:{inside}:{mode}"
        return [
            *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
            # The first process heeds no other signal, and deleting a container would wait for it.
            *("--stop-signal", "KILL"),
            *("--pids-limit", str(limits.processes), "--shm-size", f"{limits.shm_mb}m"),
            *("--memory", f"{limits.memory_mb}m", "--memory-swap", f"{limits.memory_mb}m"),
            *_labels(),
            *self.extra_options,
            *self.settings.run_options,
            *(option for _, each in sorted(shown.items()) for option in ("--volume", each)),
        ]

    async def _smoke_run(self, image: Image) -> None:
        try:
            processes, memory, *_ = [*await self._try_out(image, _SMOKE, "probe lo"), "", ""]
            problem = _unlimited(processes, memory, Limits()) if self.settings.requires_limits else ""
        except (ConfigurationError, SandboxError) as error:
            problem = str(error)
        if problem:
            raise SandboxUnavailable(
                f"{self.name} cannot run sandboxes here: {problem}. Check `{self._command.program} run "
                f"--rm --network none {image.container or self.settings.image} bash -c true` by hand: "
                "docs/swe-sandbox.md."
            )

    async def _sweep(self) -> None:
        """Delete the containers of this machine's programs that have died, and what they leave."""
        try:
            found = {
                kind: (await self._command.ask(*listed, "--filter", f"label={LABEL}")).split()
                for kind, (listed, _, _) in _KINDS.items()
            }
        except (OSError, SandboxError) as error:
            raise SandboxUnavailable(
                f"{self._command.program} does not answer: {error}. Install it, start its service and let "
                "this user call it, or choose another sandbox backend."
            ) from error
        for kind, names in found.items():
            for name in sorted(names, reverse=True):  # those beside a container come before it
                with contextlib.suppress(SandboxError):
                    await self._sweep_one(kind, name)

    async def _sweep_one(self, kind: str, name: str) -> None:
        _, place, delete = _KINDS[kind]
        said = await self._command.ask(kind, "inspect", "--format", f"{{{{json {place}}}}}", name)
        if has_died((json.loads(said) or {}).get(HOLDER, "")):
            await self._command.ask(*delete, name)
            log.info("swept %s %s of a program that had died", kind, name)


def _unlimited(processes: str, memory: str, limits: Limits) -> str:
    """What is wrong with the limits that a container's control groups show, each "" where it shows none."""
    asked = {"processes": (processes, limits.processes), "memory": (memory, limits.memory_mb << 20)}
    for what, (shown, most) in asked.items():
        if shown and not (shown.isdigit() and int(shown) <= most):
            return (
                f"its containers have no limit on {what} (control groups of version 1 give a normal user "
                "none: run it as root, boot with version 2, or set `requires_limits: false`)"
            )
    return ""


class DockerBackend(ContainerBackend):
    name = "docker"


class PodmanBackend(ContainerBackend):
    name = "podman"
    extra_options = ("--security-opt", "label=disable")
    timeout_option = "--timeout"


def _labels() -> tuple[str, ...]:
    return "--label", f"{LABEL}=1", "--label", f"{HOLDER}={this_process()}"


def _volumes(image: Image, main: str) -> list[str]:
    """The volumes that a container mounts, by the names that the program knows."""
    return sorted({f"{main}-{volume.partition(':')[0]}" for volume in image.volumes.values()})


def this_process() -> str:
    """Names this process among all that this machine ever runs: boot, process id, start time."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{os.getpid()}:{_start_time(os.getpid())}"


def has_died(holder: str) -> bool:
    """Whether a process as `this_process` names it was on this machine and is no longer there."""
    boot, _, rest = holder.partition(":")
    pid, _, started = rest.partition(":")
    if boot != Path("/proc/sys/kernel/random/boot_id").read_text().strip() or not pid.isdigit():
        return False
    return _start_time(int(pid)) != started


def _start_time(pid: int) -> str:
    """In clock ticks since the boot; empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
