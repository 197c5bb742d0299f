"""The second plane: E2B's `process.Process` and `filesystem.Filesystem`, over Connect.

Framing, codecs and messages are those of E2B's own package; the box is the request's, put there by `app`.
"""

from __future__ import annotations

import errno
import math
import signal
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from connectrpc.code import Code
from connectrpc.errors import ConnectError
from connectrpc.request import RequestContext
from e2b.envd.filesystem import filesystem_pb as files
from e2b.envd.filesystem.filesystem_connect import Filesystem
from e2b.envd.process import process_pb as processes
from protobuf import Oneof
from protobuf.wkt.google.protobuf.timestamp_pb import Timestamp

from envsdk.rewards.sandbox.contract import SandboxError
from envsdk.rewards.sandbox.sandboxd.boxes import Box
from envsdk.rewards.sandbox.sandboxd.guest import (
    Exited,
    Guest,
    NotStarted,
    Printed,
    Running,
)
from envsdk.rewards.sandbox.sandboxd.inside import server as wire

CURRENT: ContextVar[Box] = ContextVar("box")
"""The sandbox that the request names and may use."""

KEEP_ALIVE_S = 50.0
KEEP_ALIVE_HEADER = "keepalive-ping-interval"
NO_WATCHING = "this server does not watch folders: list them again"
EVERYTHING = 1
"""Process id that `SendSignal` ends all of a sandbox's processes with."""

_CODES = {
    errno.ENOENT: Code.NOT_FOUND,
    errno.ESRCH: Code.NOT_FOUND,
    errno.EEXIST: Code.ALREADY_EXISTS,
    errno.EACCES: Code.PERMISSION_DENIED,
    errno.EPERM: Code.PERMISSION_DENIED,
    errno.EROFS: Code.PERMISSION_DENIED,
    # E2B's SDK words RESOURCE_EXHAUSTED as a limit on requests.
    errno.ENOSPC: Code.FAILED_PRECONDITION,
    errno.EDQUOT: Code.FAILED_PRECONDITION,
    errno.EAGAIN: Code.FAILED_PRECONDITION,
    errno.EIO: Code.INTERNAL,
}
"""Code by the number of an error inside; others are INVALID_ARGUMENT."""


@contextmanager
def told() -> Iterator[None]:
    """Failures of this block as the protocol tells them."""
    try:
        yield
    except (NotStarted, OSError) as error:
        raise ConnectError(_CODES.get(error.errno or 0, Code.INVALID_ARGUMENT), str(error)) from error
    except SandboxError as error:
        raise ConnectError(Code.UNAVAILABLE, str(error)) from error


class ProcessService:
    """`process.Process`."""

    async def list(self, request: processes.ListRequest, ctx: Any) -> processes.ListResponse:
        return processes.ListResponse(
            processes=[
                processes.ProcessInfo(
                    config=processes.ProcessConfig(
                        cmd=each.asked["argv"][0],
                        args=each.asked["argv"][1:],
                        envs=each.asked["env"],
                        cwd=each.asked["cwd"] or None,
                    ),
                    pid=each.pid,
                )
                for each in _guest().processes()
            ]
        )

    async def start(
        self, request: processes.StartRequest, ctx: RequestContext[Any, Any]
    ) -> AsyncIterator[processes.StartResponse]:
        config = request.process or processes.ProcessConfig()
        size = request.pty.size if request.pty is not None else None
        with told():
            running = await _guest().start(
                [config.cmd, *config.args],
                env={**CURRENT.get().env, **({"TERM": "xterm-256color"} if size else {}), **config.envs},
                cwd=config.cwd,
                stdin=request.stdin or not request.has_field("stdin"),
                terminal=(size.cols or 80, size.rows or 24) if size is not None else None,
            )
            if ctx.timeout_ms is not None:
                running.end_after(max(0.0, ctx.timeout_ms / 1000))
            async for event in _followed(running, ctx):
                yield processes.StartResponse(event=event)

    async def connect(
        self, request: processes.ConnectRequest, ctx: RequestContext[Any, Any]
    ) -> AsyncIterator[processes.ConnectResponse]:
        with told():
            async for event in _followed(_selected(request.process), ctx):
                yield processes.ConnectResponse(event=event)

    async def update(self, request: processes.UpdateRequest, ctx: Any) -> processes.UpdateResponse:
        with told():
            running = _selected(request.process)
            if request.pty is not None and request.pty.size is not None:
                running.resize(request.pty.size.cols, request.pty.size.rows)
        return processes.UpdateResponse()

    async def stream_input(
        self, request: AsyncIterator[processes.StreamInputRequest], ctx: Any
    ) -> processes.StreamInputResponse:
        running: Running | None = None
        with told():
            async for message in request:
                match message.event:
                    case Oneof(field="start", value=start):
                        running = _selected(start.process)
                    case Oneof(field="data", value=data) if running is not None:
                        await running.write(_given(data.input))
        return processes.StreamInputResponse()

    async def send_input(self, request: processes.SendInputRequest, ctx: Any) -> processes.SendInputResponse:
        with told():
            await _selected(request.process).write(_given(request.input))
        return processes.SendInputResponse()

    async def send_signal(
        self, request: processes.SendSignalRequest, ctx: Any
    ) -> processes.SendSignalResponse:
        numbers = {processes.Signal.SIGTERM: signal.SIGTERM, processes.Signal.SIGKILL: signal.SIGKILL}
        if request.signal not in numbers:
            raise ConnectError(Code.INVALID_ARGUMENT, "signal: SIGTERM or SIGKILL")
        match request.process.selector if request.process is not None else None:
            case Oneof(field="pid", value=pid) if pid == EVERYTHING:
                await _guest().stop()
            case _:
                with told():
                    _selected(request.process).signal(numbers[request.signal])
        return processes.SendSignalResponse()

    async def close_stdin(
        self, request: processes.CloseStdinRequest, ctx: Any
    ) -> processes.CloseStdinResponse:
        with told():
            _selected(request.process).end_input()
        return processes.CloseStdinResponse()


def _guest() -> Guest:
    return CURRENT.get().live()


def _selected(selector: processes.ProcessSelector | None) -> Running:
    match selector.selector if selector is not None else None:
        case Oneof(field="pid", value=int(pid)):
            return _guest().find(pid)
    raise ConnectError(Code.INVALID_ARGUMENT, "process: by its pid; there are no tags")


def _given(given: processes.ProcessInput | None) -> bytes:
    match given.input if given is not None else None:
        case Oneof(value=bytes(content)):
            return content
    raise ConnectError(Code.INVALID_ARGUMENT, "input: stdin or pty")


async def _followed(running: Running, ctx: RequestContext[Any, Any]) -> AsyncIterator[processes.ProcessEvent]:
    """A process's events for one client, with signs of life between them."""
    kind = processes.ProcessEvent
    asked = ctx.request_headers.get(KEEP_ALIVE_HEADER) or ""
    interval = max(1.0, float(asked)) if asked.isdigit() else KEEP_ALIVE_S
    until = math.inf if ctx.timeout_ms is None else time.monotonic() + ctx.timeout_ms / 1000
    with running.events() as events:
        yield kind(event=Oneof("start", kind.StartEvent(pid=running.pid)))
        while (left := until - time.monotonic()) > 0:
            try:
                event = await events.next(min(interval, left))
            except TimeoutError:
                if left > interval:
                    yield kind(event=Oneof("keepalive", kind.KeepAlive()))
                continue
            if isinstance(event, Exited):
                if (box := CURRENT.get()).sandbox is None:
                    raise SandboxError(f"sandbox {box.id} has ended, and the command with it")
                yield kind(event=Oneof("end", _end(event)))
                return
            yield kind(event=Oneof("data", kind.DataEvent(output=_output(running, event))))
    raise ConnectError(Code.DEADLINE_EXCEEDED, "the time for the command is over")


def _output(running: Running, printed: Printed) -> Any:
    if running.asked.get("terminal"):
        return Oneof("pty", printed.data)
    return Oneof("stdout" if printed.stream == wire.OUTPUT else "stderr", printed.data)


def _end(event: Exited) -> processes.ProcessEvent.EndEvent:
    if event.code >= 0:
        return processes.ProcessEvent.EndEvent(
            exit_code=event.code, exited=True, status=f"exit status {event.code}"
        )
    status = f"signal: {(signal.strsignal(-event.code) or str(-event.code)).lower()}"
    error = event.limit or status
    return processes.ProcessEvent.EndEvent(exit_code=-1, exited=False, status=status, error=error)


class FilesystemService(Filesystem):  # type: ignore[misc]
    """`filesystem.Filesystem`."""

    async def stat(self, request: files.StatRequest, ctx: Any) -> files.StatResponse:
        return files.StatResponse(entry=_entry(await _asked("stat", path=request.path)))

    async def make_dir(self, request: files.MakeDirRequest, ctx: Any) -> files.MakeDirResponse:
        return files.MakeDirResponse(entry=_entry(await _asked("make", path=request.path)))

    async def move(self, request: files.MoveRequest, ctx: Any) -> files.MoveResponse:
        found = await _asked("move", source=request.source, destination=request.destination)
        return files.MoveResponse(entry=_entry(found))

    async def list_dir(self, request: files.ListDirRequest, ctx: Any) -> files.ListDirResponse:
        found = await _asked("list", path=request.path, depth=request.depth or 1)
        return files.ListDirResponse(entries=[_entry(each) for each in found])

    async def remove(self, request: files.RemoveRequest, ctx: Any) -> files.RemoveResponse:
        await _asked("remove", path=request.path)
        return files.RemoveResponse()

    def watch_dir(self, request: files.WatchDirRequest, ctx: Any) -> AsyncIterator[files.WatchDirResponse]:
        raise ConnectError(Code.UNIMPLEMENTED, NO_WATCHING)

    async def create_watcher(
        self, request: files.CreateWatcherRequest, ctx: Any
    ) -> files.CreateWatcherResponse:
        raise ConnectError(Code.UNIMPLEMENTED, NO_WATCHING)


async def _asked(name: str, **arguments: object) -> Any:
    with told():
        return await _guest().answer(name, **arguments)


def _entry(found: Mapping[str, Any]) -> files.EntryInfo:
    kinds = {"file": files.FileType.FILE, "dir": files.FileType.DIRECTORY}
    seconds, nanos = divmod(int(found["modified"]), 10**9)
    return files.EntryInfo(
        name=found["name"],
        type=kinds.get(found["type"], files.FileType.UNSPECIFIED),
        path=found["path"],
        size=found["size"],
        mode=found["mode"],
        permissions=found["permissions"],
        owner=str(found["owner"]),
        group=str(found["group"]),
        modified_time=Timestamp(seconds=seconds, nanos=nanos),
        symlink_target=found["link"],
        is_symlink=found["link"] is not None,
    )
