"""The `e2b` backend: sandboxes of E2B, or of a server that speaks its protocol, such as `envsdk sandboxd`.

Folders of this machine cannot be mounted there: an image's tree is laid into the sandbox, and its binds are
laid anew, as copies, before every command.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import logging
import math
import os
import secrets
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, Any

from envsdk.base.processes.loop_locks import lock_of
from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.sandbox.containers import has_died, this_process
from envsdk.rewards.sandbox.contract import (
    ExecEnd,
    Image,
    Limits,
    SandboxError,
    SandboxesFull,
    SandboxUnavailable,
)
from envsdk.rewards.sandbox.output import HeadTail
from envsdk.rewards.sandbox.process import Finished
from envsdk.rewards.sandbox.remote import ENDED, Container, RemoteBackend, RemoteSandbox, Shell, packed
from envsdk.rewards.sandbox.settings import E2BSettings, parse_settings

log = logging.getLogger(__name__)

TAG = "envsdk_sandbox"
HOLDER = "envsdk_holder"
WORKDIR_KEY, LIMITS_KEY, FOLDERS_KEY = "envsdk_workdir", "envsdk_limits", "envsdk_folders"
"""Metadata by which a server of ours is asked for another `workdir`, limits and folders."""
EVERYTHING = 1
"""Process id that our own server ends all processes of a sandbox by; elsewhere it is none of a client's."""
_CHUNK_BYTES = 256 << 10
_SERVER_MARGIN_S = 30
"""Seconds by which the server's limit on a command is longer than ours, which says more."""
_KILL_TIMEOUT_S = 30
_SEND_TIMEOUT_S = 600
_PACKAGES = """\
import importlib.metadata, re
for found in importlib.metadata.distributions(): print(re.sub(r"[-_.]+", "-", found.metadata["Name"].lower()))
"""
_OF_THE_IMAGE = (400, 404)
"""Statuses of what no other try, and no other client, would get from this server."""
_LIMITS = {str(each): each for each in (ExecEnd.OUT_OF_MEMORY, ExecEnd.DISK_LIMIT)}


@dataclass(slots=True, kw_only=True)
class E2BContainer(Container):
    """One sandbox of the service."""

    access: Mapping[str, Any]
    options: Mapping[str, Any]
    """What `AsyncSandbox.create` is given besides the template, and the metadata."""
    metadata: Mapping[str, str]
    user: str | None
    lay: Callable[[], Awaitable[Mapping[str, str]]]
    """Sends the image's folders to a server of ours; returns the metadata that asks for them."""
    running: Any = None
    kept: list[str] = field(default_factory=list)
    """Snapshots of it."""

    async def start(self, image: str) -> None:
        """Raises ConfigurationError: it has no such template, or limits. Raises SandboxError."""
        try:
            await self._create(image, {**self.options, "metadata": {**self.metadata, **await self.lay()}})
        except SandboxError as error:
            if getattr(error.__cause__, "status_code", None) in _OF_THE_IMAGE:
                raise ConfigurationError(str(error)) from error
            raise

    async def _create(self, template: str, options: Mapping[str, Any]) -> None:
        from e2b import AsyncSandbox

        async with self.starts, told():
            self.running = await AsyncSandbox.create(template, **options, **self.access)
        await self.meet()

    async def shell(self, shell: Shell) -> Finished:
        from connectrpc.code import Code
        from connectrpc.errors import ConnectError

        kept = HeadTail(shell.keep)
        began = time.perf_counter()
        async with told():
            try:
                reason, code = await self._run(shell, kept)
            except ConnectError as error:
                full = Code.RESOURCE_EXHAUSTED, Code.FAILED_PRECONDITION
                if error.code not in (*full, Code.NOT_FOUND, Code.PERMISSION_DENIED):
                    raise
                # It could not be started: no process is left, or no such file.
                reason, code = ExecEnd.EXIT, 126
                kept.feed(error.message.encode())
        elapsed_s = time.perf_counter() - began
        return Finished(reason=reason, returncode=code, output=kept, elapsed_s=elapsed_s)

    async def _run(self, shell: Shell, kept: HeadTail) -> tuple[ExecEnd, int]:
        from e2b.envd.process import process_pb as pb

        config = pb.ProcessConfig(cmd=shell.argv[0], args=list(shell.argv[1:]), envs=dict(shell.env), cwd="/")
        timeout_s = math.ceil(shell.timeout_s) + _SERVER_MARGIN_S
        events = self._rpc.start(
            pb.StartRequest(process=config, stdin=shell.stdin is not None),
            headers=self._headers(),
            timeout_ms=1000 * timeout_s,
        )
        # A stream that is cancelled raises an error of its own in place of the cancellation.
        following = asyncio.ensure_future(self._follow(events, shell, kept))
        try:
            ended, _ = await asyncio.wait({following}, timeout=shell.timeout_s)
            return following.result() if ended else (ExecEnd.TIMEOUT, 137)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _follow(self, events: Any, shell: Shell, kept: HeadTail) -> tuple[ExecEnd, int]:
        """Keep what a command prints until it ends, or has printed too much."""
        from connectrpc.errors import ConnectError

        feeding: asyncio.Future[None] | None = None
        assert not isinstance(shell.stdin, int)
        try:
            async for message in events:
                event = message.event.event
                if event.field == "start" and shell.stdin is not None:
                    feeding = asyncio.ensure_future(self._feed(event.value.pid, shell.stdin))
                elif event.field == "data":
                    kept.feed(event.value.output.value)
                    if kept.total > shell.max_output:
                        return ExecEnd.OUTPUT_LIMIT, 137
                elif event.field == "end":
                    return _end(event.value)
        except ConnectError as error:
            if isinstance(error.__cause__, asyncio.CancelledError):
                raise error.__cause__ from None
            raise
        finally:
            if feeding is not None:
                feeding.cancel()
            await events.aclose()
        raise SandboxError("e2b: the command's stream ended before the command")

    async def _feed(self, pid: int, stdin: IO[bytes]) -> None:
        """Send a command its input, then its end. It may have ended before."""
        from e2b.envd.process import process_pb as pb
        from protobuf import Oneof

        process = pb.ProcessSelector(selector=Oneof("pid", pid))
        kind = pb.StreamInputRequest

        async def messages() -> AsyncIterator[Any]:
            yield kind(event=Oneof("start", kind.StartEvent(process=process)))
            while chunk := stdin.read(_CHUNK_BYTES):
                given = pb.ProcessInput(input=Oneof("stdin", chunk))
                yield kind(event=Oneof("data", kind.DataEvent(input=given)))

        with contextlib.suppress(Exception):
            await self._rpc.stream_input(messages(), headers=self._headers())
            await self._rpc.close_stdin(pb.CloseStdinRequest(process=process), headers=self._headers())

    async def _kill(self, pid: int) -> bool:
        """Kill a process; whether it was there."""
        with contextlib.suppress(SandboxError):
            async with told():
                killed: bool = await self.running.commands.kill(pid, request_timeout=_KILL_TIMEOUT_S)
                return killed
        return False

    @property
    def _rpc(self) -> Any:
        # `commands` itself decodes what is printed, and runs login shells, with start files of anybody's.
        return self.running.commands._rpc

    def _headers(self) -> dict[str, str]:
        if self.user is None:
            return {}
        return {"Authorization": "Basic " + base64.b64encode(f"{self.user}:".encode()).decode()}

    async def is_running(self) -> bool:
        with contextlib.suppress(SandboxError):
            async with told():
                running: bool = await self.running.is_running(request_timeout=60)
                return running
        return False

    async def end_all(self) -> bool:
        if not await self._kill(EVERYTHING):
            return False
        await self.meet()
        await self.shell(Shell(argv=["bash", "-c", f": > {ENDED}"], timeout_s=60))
        return True

    async def keep(self) -> str:
        async with told():
            snapshot = await self.running.create_snapshot()
        self.kept.append(snapshot.snapshot_id)
        return self.kept[-1]

    async def replaced_by(self, kept: str) -> None:
        async with told():
            await self.running.kill()
        await self._create(kept, {**self.options, "metadata": self.metadata})

    async def fork(self) -> E2BContainer:
        async with told():
            [forked] = await self.running.fork(timeout=self.options["timeout"], count=1)
            if isinstance(forked, Exception):
                raise forked
        made = replace(self, waiting_process="1", running=forked, kept=[])
        await made.meet()
        return made

    async def end(self) -> None:
        if self.running is not None:
            async with told():
                await self.running.kill()
                for snapshot in self.kept:
                    await self.running.delete_snapshot(snapshot, **self.access)


@lru_cache
def _packages(python: Path) -> frozenset[str]:
    """What is installed for an interpreter of this machine. Raises ConfigurationError: it does not run."""
    done = subprocess.run([python, "-I", "-c", _PACKAGES], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigurationError(f"the sandbox's interpreter {python} does not run: {done.stderr[-500:]}")
    return frozenset(done.stdout.split())


def _end(event: Any) -> tuple[ExecEnd, int]:
    """Why a command ended, and its code. Raises SandboxError: the sandbox failed."""
    if event.error == ExecEnd.INFRASTRUCTURE:
        raise SandboxError("e2b: the sandbox failed")
    if event.exited:
        return ExecEnd.EXIT, event.exit_code
    return _LIMITS.get(event.error, ExecEnd.EXIT), 137


@contextlib.asynccontextmanager
async def told() -> AsyncIterator[None]:
    """What the SDK raises as SandboxError."""
    import httpx
    from connectrpc.errors import ConnectError
    from e2b import AuthenticationException, RateLimitException, SandboxException
    from e2b.exceptions import ServiceBusyException

    try:
        yield
    except RateLimitException as error:
        raise SandboxesFull(f"e2b: {error}") from error
    except (
        *(AuthenticationException, ConnectError, SandboxException, ServiceBusyException),
        *(httpx.HTTPError, OSError),
    ) as error:
        raise SandboxError(f"e2b: {error}") from error


@dataclass(slots=True, eq=False, kw_only=True)
class E2BSandbox(RemoteSandbox):
    """A sandbox of the service, which can be forked there."""

    backend: E2BBackend
    is_laid: bool
    """Whether the server shows the image's folders itself."""

    async def prepare(self) -> None:
        if not self.is_laid:
            await super(E2BSandbox, self).prepare()
        if self.image.python is not None:
            await self._check_python(self.image.python)

    async def _check_python(self, python: Path) -> None:
        """Raises ConfigurationError: the one inside lacks packages of the image's, which cannot be shown."""
        if (python, self.image.container) in self.backend.checked:
            return
        wanted = await asyncio.to_thread(_packages, python)
        argv = ["python", "-I", "-c", _PACKAGES]
        ended = await self.container.shell(
            Shell(argv=argv, env=self.image.env, timeout_s=120, keep=2 << 20, max_output=1 << 20)
        )
        if missing := sorted(wanted - {*ended.output.text().split()}):
            raise ConfigurationError(
                f"the python of the sandbox lacks {', '.join(missing[:5])}, which {python} has: install them "
                "in the template, or set `backend_settings.python` of `envsdk sandboxd`"
            )
        self.backend.checked.add((python, self.image.container))

    async def fork(self, *, binds: Mapping[str, Path] | None = None) -> E2BSandbox:
        assert isinstance(self.container, E2BContainer)
        image = self.image if binds is None else replace(self.image, binds=binds)
        async with self._in_use(), self.slots:
            return self.backend.sandbox_of(image, self.limits, await self.container.fork())


class E2BBackend(RemoteBackend):
    """Runs sandboxes by E2B's protocol.

    Raises ConfigurationError: a setting is unknown or wrong.
    """

    name = "e2b"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = parse_settings(E2BSettings, settings, backend=self.name)
        super().__init__(self.settings)
        self.checked: set[tuple[Path, str | None]] = set()
        """Interpreters of this machine, and the images whose own have the same packages."""
        self._takes_folders = False
        """Whether the server is one of ours."""
        self._trees: dict[Path, str] = {}
        """Their names on the server: a tree does not change."""

    async def _probe(self) -> None:
        try:
            import e2b  # noqa: F401
        except ImportError as error:
            raise SandboxUnavailable("e2b is not installed: pip install 'envsdk[e2b]'") from error
        access = self._access()
        if not access["api_key"]:
            raise SandboxUnavailable(f"there is no API key: set {self.settings.api_key_variable}")
        where = access["api_url"] or access["domain"] or "e2b.app"
        try:
            self._takes_folders = (await self._ask("GET", "/envsdk/places")).status_code == 200
            await self._sweep()
            await self._try_out(Image())
        except SandboxesFull:
            raise
        except SandboxError as error:
            raise SandboxUnavailable(f"{where} runs no sandboxes for this key: {error}") from error

    async def _ask(self, verb: str, path: str, content: IO[bytes] | None = None) -> Any:
        """The answer of the API to a call that its SDK does not have."""
        import httpx

        access = self._access()
        url = access["api_url"] or f"https://api.{access['domain'] or 'e2b.app'}"

        async def chunks(file: IO[bytes]) -> AsyncIterator[bytes]:
            while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
                yield chunk

        async with told(), httpx.AsyncClient(timeout=_SEND_TIMEOUT_S) as client:
            return await client.request(
                verb,
                url + path,
                headers={"X-API-KEY": access["api_key"]},
                content=None if content is None else chunks(content),
            )

    async def _lay(self, image: Image) -> Mapping[str, str]:
        if not self._takes_folders or not (image.tree or image.binds):
            return {}
        names = {inside: await self._sent(path) for inside, path in image.binds.items()}
        tree = None
        if image.tree is not None:
            async with lock_of((self, image.tree)):
                tree = self._trees.get(image.tree)
                if tree is None or not await self._has(tree):
                    tree = self._trees[image.tree] = await self._sent(image.tree)
        return {FOLDERS_KEY: json.dumps({"tree": tree, "binds": names})}

    async def _has(self, name: str) -> bool:
        found: bool = (await self._ask("GET", f"/envsdk/folders/{name}")).status_code == 204
        return found

    async def _sent(self, path: Path) -> str:
        """The name of a folder or file of this machine on the server, which gets it where it has it not.

        Raises SandboxError: the server did not take it.
        """
        is_file = await asyncio.to_thread(path.is_file)
        folder, name, shown = (path.parent, path.name, "file") if is_file else (path, ".", ".")
        async with packed(folder, name, shown) as archive:
            found = await asyncio.to_thread(hashlib.file_digest, archive, "sha256")  # type: ignore[arg-type]
            digest = found.hexdigest()
            archive.seek(0)
            if not await self._has(digest):
                answer = await self._ask("PUT", f"/envsdk/folders/{digest}", archive)
                if answer.status_code != 204:
                    raise SandboxError(f"e2b: {path} could not be sent: {answer.text[:500]}")
        return f"{digest}/file" if is_file else digest

    def _access(self) -> dict[str, Any]:
        """Where the service is, and the key."""
        settings = self.settings
        return {
            "api_key": settings.api_key or os.environ.get(settings.api_key_variable),
            "domain": settings.domain,
            "api_url": settings.api_url,
            "sandbox_url": settings.sandbox_url or settings.api_url,
        }

    def _make(self, image: Image, limits: Limits) -> tuple[E2BSandbox, Any]:
        asked = {
            name: value
            for name, value in asdict(limits).items()
            if name not in ("output_bytes", "kept_output_bytes")
        }
        container = E2BContainer(
            access=self._access(),
            options={
                "timeout": self.settings.time_to_live_s,
                "allow_internet_access": False,
            },
            metadata={
                **{TAG: "1", HOLDER: this_process(), WORKDIR_KEY: image.workdir},
                **({} if limits == Limits() else {LIMITS_KEY: json.dumps(asked)}),
            },
            lay=partial(self._lay, image),
            user=self.settings.user,
            starts=self._starts,
        )
        return self.sandbox_of(image, limits, container), image.container or self.settings.template

    def sandbox_of(self, image: Image, limits: Limits, container: E2BContainer) -> E2BSandbox:
        """A sandbox that `aclose` closes."""
        sandbox = E2BSandbox(
            id=secrets.token_hex(6),
            image=image,
            limits=limits,
            container=container,
            slots=self._slots,
            relays_binds=bool(image.binds) and not self._takes_folders,
            is_laid=self._takes_folders,
            backend=self,
        )
        self._keep(sandbox)
        return sandbox

    async def _sweep(self) -> None:
        """End the sandboxes of this machine's programs that have died."""
        from e2b import AsyncSandbox, SandboxQuery

        async with told():
            pages = AsyncSandbox.list(query=SandboxQuery(metadata={TAG: "1"}), **self._access())
            while pages.has_next:
                for found in await pages.next_items():
                    if has_died(found.metadata.get(HOLDER, "")):
                        await AsyncSandbox.kill(found.sandbox_id, **self._access())
                        log.info("ended a sandbox of a program that had died")
