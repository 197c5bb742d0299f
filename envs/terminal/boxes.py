"""Sandboxes of a task: made of its images, with what Harbor has inside, and files moved in and out."""

from __future__ import annotations

import asyncio
import posixpath
import re
import secrets
import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.shell.commands import KEPT_OUTPUT_BYTES
from envsdk.envs.terminal.artifacts import Bounds, Refused, Safe, made_safe
from envsdk.envs.terminal.harbor.compose import read_compose
from envsdk.envs.terminal.harbor.config import Artifact, Healthcheck, NetworkMode
from envsdk.envs.terminal.harbor.folder import CONFIG, Box
from envsdk.envs.terminal.harbor.inputs import packed
from envsdk.envs.terminal.services import BoxBroken, be_healthy, built, start_with_services
from envsdk.rewards.sandbox import (
    ExecEnd,
    ExecResult,
    Image,
    Limits,
    Sandbox,
    SandboxBackend,
    SandboxError,
    SandboxFileError,
)
from envsdk.rewards.sandbox.bubblewrap.sandbox import NO_SHELL
from envsdk.rewards.sandbox.containers import CliSandbox
from envsdk.rewards.sandbox.images import build_image, named_image
from envsdk.rewards.sandbox.shared import LazySandbox, LoopBackends

ROOT = "root"
TESTS, VERIFIER_LOGS = CHECKS = ("/tests", "/logs/verifier")
LOGS = ("/logs/agent", VERIFIER_LOGS, "/logs/artifacts")
MAX_USER = (1 << 32) - 2
MOVE_TIMEOUT_S = 300.0
"""For files on their way into a box or out of it."""
CANNOT_RUN = 126
RUINED = "Nothing can be run in this box any more.\n"
_VARIABLE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}", re.DOTALL)
_PACK = """\
if [ -d {source} ]; then exec tar --sparse {excludes} -C {source} -cf {archive} .; fi
if [ -f {source} ]; then exec tar --sparse --dereference -C {folder} -cf {archive} -- {name}; fi
[ ! -e {source} ] || exit 4
exit 3
"""
_NOT_THERE, _OTHER = 3, 4
_NO_RIGHTS = """
Root has no capabilities in containers: `run_options: ["--cap-add=DAC_OVERRIDE,CHOWN,FOWNER"]` gives some."""
_NO_USER = 1
"""Said by `id`."""


def resolved(env: Mapping[str, str], variables: Mapping[str, str], where: str) -> dict[str, str]:
    """`env` with `${VAR}` and `${VAR:-default}` taken from `variables`.

    Raises ConfigurationError: a variable without a default is not among them.
    """
    values = {}
    for name, value in env.items():
        match = _VARIABLE.fullmatch(value)
        if match is None:
            values[name] = value
            continue
        found = variables.get(match[1], match[2])
        if found is None:
            raise ConfigurationError(f"{where}.{name}: needs the variable {match[1]}: give it in `variables`")
        values[name] = found
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxes:
    """Starts the boxes of tasks."""

    backends: LoopBackends
    identity: str
    """Says what may change how a task is played: backend, settings, limits."""
    limits: Mapping[str, int]
    """Limits of each box, which count before those of its task."""
    variables: Mapping[str, str]
    has_network: bool
    keeps_processes: bool
    """Whether what a command leaves running goes on, as in Harbor."""

    async def start(
        self, task_id: str, box: Box, key: str, network: NetworkMode, *, renewed: tuple[str, ...] = ()
    ) -> Sandbox:
        """A box with its folders, files and variables, whose health check has passed.

        Args:
            renewed: As `Image.renewed`.

        Raises ConfigurationError: its image cannot be made.
        Raises BoxBroken: its health check fails, or one of its services.
        Raises SandboxError: it could not be started.
        """
        backend = await self.backends.probed()
        limits = self._limits(box)
        try:
            env = resolved(box.config.env, self.variables, f"{CONFIG}: {key}.env")
            given = {**self.variables, **env}
            image = await _image(box, backend, given)
            image = replace(
                image,
                env={**image.env, **env},
                workdir=box.config.workdir or image.workdir,
                network=self.has_network and network is NetworkMode.PUBLIC,
                keeps_processes=self.keeps_processes,
                renewed=renewed,
            )
            if box.compose is None:
                sandbox = await backend.start(image, limits=limits)
            else:
                sandbox = await start_with_services(backend, box, image, limits, given)
        except ConfigurationError as error:
            raise ConfigurationError(f"{task_id}: {error}") from None
        try:
            workdir = sandbox.image.workdir
            folders = " ".join(map(shlex.quote, (*LOGS, workdir)))
            await ours(sandbox, f"mkdir -p {folders} && chmod 777 {' '.join(LOGS)}")
            if box.laid is not None:
                await lay_folder(sandbox, box.laid, workdir)
            if box.config.healthcheck is not None:
                await box_healthy(sandbox, box.config.healthcheck, f"{key}.healthcheck")
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    def _limits(self, box: Box) -> Limits:
        said: dict[str, int] = {"kept_output_bytes": KEPT_OUTPUT_BYTES}
        if box.config.memory_mb:
            said["memory_mb"] = box.config.memory_mb
        if box.config.storage_mb:
            said |= {"disk_mb": box.config.storage_mb, "file_mb": box.config.storage_mb}
        return replace(Limits(), **{**said, **self.limits})


class BoxRuined(SandboxError):
    """What succeeds in every new box has failed in one, and no machine's fault is seen."""


class AgentsBox(LazySandbox):
    """An agent's box. Where the agent has ruined it, a command fails; where the machine has, that is said."""

    def __init__(self, start: Callable[[], Awaitable[Sandbox]]) -> None:
        super().__init__(start)
        self._another = start
        self.is_ruined = False
        """Whether that was found."""

    async def exec(self, script: str, **how: Any) -> ExecResult:
        """As `Sandbox.exec`. Raises SandboxError in place of `ExecEnd.INFRASTRUCTURE`."""
        return await self.seen(await (await self.started()).exec(script, **how))

    async def seen(self, result: ExecResult) -> ExecResult:
        """A command's result, as `exec` returns it."""
        if result.reason is not ExecEnd.INFRASTRUCTURE and not result.output.startswith(NO_SHELL):
            return result
        self.is_ruined = self.is_ruined or await self.ruined()
        if self.is_ruined:
            return replace(result, reason=ExecEnd.EXIT, returncode=CANNOT_RUN, output=RUINED)
        demand(result, await self.started())
        return result

    async def ruined(self) -> bool:
        """Whether nothing runs in it any more, or not in silence, while everything does in a new one."""
        sandbox = await self.started()
        if not await sandbox.alive() or await _runs(sandbox):
            return False
        fresh = await self._another()
        try:
            return await _runs(fresh)
        finally:
            await fresh.close()


async def _runs(sandbox: Sandbox) -> bool:
    done = await sandbox.exec("true", timeout_s=MOVE_TIMEOUT_S, cwd="/")
    return done.ok and not done.output


async def _image(box: Box, backend: SandboxBackend, variables: Mapping[str, str]) -> Image:
    if box.context is not None:
        build = read_compose(box.compose, box.config, variables).main.build if box.compose else None
        if build is not None:
            return await built(backend, box, build, variables)
        return await build_image(backend, box.context, timeout_s=box.config.build_timeout_sec)
    assert box.docker_image is not None
    return await named_image(backend, box.docker_image)


async def ours(sandbox: Sandbox, script: str, *, stdin: bytes = b"") -> None:
    """A script of ours in a box that is to succeed. Raises SandboxError, BoxRuined: it does not."""
    result = await sandbox.exec(script, timeout_s=MOVE_TIMEOUT_S, cwd="/", user=ROOT, stdin=stdin)
    if not result.ok:
        said = result.output.strip()[-300:]
        hint = _NO_RIGHTS if "Permission denied" in said and isinstance(sandbox, CliSandbox) else ""
        kind = SandboxError if result.reason is ExecEnd.INFRASTRUCTURE else BoxRuined
        raise kind(f"sandbox {sandbox.id}: {result.reason}: {said}{hint}")


def demand(result: ExecResult, sandbox: Sandbox) -> None:
    """Raises SandboxError: not the command failed, but the box."""
    if result.reason is ExecEnd.INFRASTRUCTURE:
        raise SandboxError(f"sandbox {sandbox.id}: {result.output.strip()[-300:]}")


async def box_healthy(sandbox: Sandbox, check: Healthcheck, key: str, user: str | None = None) -> None:
    """Wait until a box's health check passes. Raises BoxBroken: it has failed as often as it may."""

    async def tried() -> str | None:
        result = await sandbox.exec(check.command, timeout_s=check.timeout_sec, user=user)
        demand(result, sandbox)
        return None if result.ok else result.output

    await be_healthy(tried, check, f"{CONFIG}: {key}")


async def demand_user(sandbox: Sandbox, user: str | None, key: str) -> None:
    """Raises BoxBroken: there is no such user."""
    name = (user or "").partition(":")[0]
    if not name or (name.isdecimal() and int(name) <= MAX_USER):
        return
    found = await sandbox.exec(f"id -u -- {shlex.quote(name)}", timeout_s=MOVE_TIMEOUT_S, cwd="/", user=ROOT)
    if found.returncode == _NO_USER and found.reason is ExecEnd.EXIT:
        raise BoxBroken(f"{CONFIG}: {key}: the box has no user {name!r}")


async def lay_folder(sandbox: Sandbox, folder: Path, target: str) -> None:
    """Put the files of a folder of this machine into a folder of a box, over those that are there."""
    await lay(sandbox, await asyncio.to_thread(packed, folder), target)


async def lay(sandbox: Sandbox, archive: bytes, target: str, *, empties: bool = False) -> None:
    """Unpack a tar archive of ours into a folder of a box, which may be emptied before."""
    into = shlex.quote(target)
    emptied = f"find {into} -mindepth 1 -delete && " if empties else ""
    await ours(sandbox, f"mkdir -p {into} && {emptied}tar -xf - -C {into} --no-same-owner", stdin=archive)


async def taken(
    agents: AgentsBox, artifact: Artifact, bounds: Bounds, *, mtime: float, timeout_s: float
) -> Safe | None:
    """An artifact out of an agent's box; None where it is not there.

    Raises Refused: it is over the bounds, or cannot be packed, or not in time.
    """
    archive = f"/tmp/.envsdk-{secrets.token_hex(8)}"
    sandbox = await agents.started()
    path = absolute(artifact.source, sandbox.image.workdir)
    folder, name = posixpath.split(path)
    script = _PACK.format(
        source=shlex.quote(path),
        folder=shlex.quote(folder),
        name=shlex.quote(name),
        excludes=" ".join(shlex.quote(f"--exclude={pattern}") for pattern in artifact.exclude),
        archive=archive,
    )
    packed = await agents.exec(script, timeout_s=timeout_s, cwd="/", user=ROOT)
    try:
        if packed.returncode == _NOT_THERE:
            return None
        if packed.returncode == _OTHER:
            raise Refused("it is neither a file nor a folder")
        if not packed.ok and packed.returncode != 1:  # 1: a file has changed meanwhile, or cannot be read
            raise Refused(f"tar: {packed.reason}: {packed.output.strip()[-200:]}")
        # An archive is larger than its files by a header for each.
        largest = 2 * bounds.bytes + 2048 * bounds.files
        data = await sandbox.read(archive, max_bytes=largest)
    except SandboxFileError as error:
        raise Refused(str(error)) from None
    finally:
        await agents.exec(f"rm -f {archive}", timeout_s=timeout_s, cwd="/", user=ROOT)
    return await asyncio.to_thread(made_safe, data, name, bounds, mtime=mtime)


def absolute(path: str, workdir: str) -> str:
    return posixpath.normpath(posixpath.join(workdir, path))


def named(user: str | int | None) -> str | None:
    return None if user in (None, "") else str(user)
