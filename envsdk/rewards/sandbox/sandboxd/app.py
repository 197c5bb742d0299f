"""Both planes as one ASGI application, on one port.

    /sandboxes, /v2/sandboxes ...                   X-API-KEY                     -> rest
    /files, /health, /process.Process/..., ...      the sandbox's access token    -> files, rpc

The second plane's sandbox is named by the header `E2b-Sandbox-Id`, or by the host, `49983-ID.DOMAIN`.
"""

from __future__ import annotations

import hmac
import logging
import re
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import Any

from e2b.envd.filesystem.filesystem_connect import FilesystemASGIApplication
from e2b.envd.process.process_connect import ProcessASGIApplication
from starlette.applications import Starlette
from starlette.datastructures import Headers, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from envsdk.base.net.web_server import WebServer
from envsdk.rewards.sandbox.contract import SandboxError
from envsdk.rewards.sandbox.sandboxd.boxes import Box, Boxes, Refused
from envsdk.rewards.sandbox.sandboxd.guest import Exited, NotStarted, Printed, answer_of, raise_failure
from envsdk.rewards.sandbox.sandboxd.inside import server as wire
from envsdk.rewards.sandbox.sandboxd.inside.files import CHUNK
from envsdk.rewards.sandbox.sandboxd.rest import Rest, refusal
from envsdk.rewards.sandbox.sandboxd.rpc import CURRENT, FilesystemService, ProcessService
from envsdk.rewards.sandbox.sandboxd.settings import ServerSettings

log = logging.getLogger(__name__)

_HOST = re.compile(r"\d+-([a-z0-9]+)\.")
MAX_MESSAGE_BYTES = 4 << 20
MAX_FILES = 1000
"""Files of one upload."""
_STATUSES = {2: 404, 13: 403, 1: 403, 30: 403, 28: 507, 122: 507, 27: 507, 11: 503, 5: 500}
"""Status by the number of an error inside; others are 400."""


class App:
    """The ASGI application."""

    def __init__(self, boxes: Boxes) -> None:
        self._boxes = boxes
        self._rest = Starlette(
            routes=Rest(boxes).routes(), exception_handlers={HTTPException: _no_route, Exception: _bug}
        )
        processes = ProcessASGIApplication(ProcessService(), read_max_bytes=MAX_MESSAGE_BYTES)
        filesystem = FilesystemASGIApplication(FilesystemService(), read_max_bytes=MAX_MESSAGE_BYTES)
        self._planes = {"process.Process": processes, "filesystem.Filesystem": filesystem}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        first = scope["path"].split("/")[1] if scope["type"] == "http" else ""
        answer: Any
        if first in self._planes or first in ("files", "health"):
            try:
                box = self._box(Headers(scope=scope), is_health=first == "health")
            except Refused as refused:
                answer = refusal(refused)
            else:
                if first == "health":
                    answer = Response(status_code=204)
                elif first == "files":
                    answer = await self._files(box, Request(scope, receive))
                else:
                    CURRENT.set(box)
                    answer = self._planes[first]
        else:
            answer = self._rest
        await answer(scope, receive, send)

    def _box(self, headers: Headers, *, is_health: bool) -> Box:
        """The sandbox of the request, whose token is right. Raises Refused."""
        host = _HOST.match(headers.get("host", ""))
        name = headers.get("e2b-sandbox-id") or (host[1] if host else "")
        box = self._boxes.find(name)
        if box is None:
            raise Refused(502, f"The sandbox {name} was not found")
        given = headers.get("x-access-token", "").encode()
        if not (is_health or hmac.compare_digest(given, box.access_token.encode())):
            raise Refused(401, "wrong or missing X-Access-Token: a sandbox's creation answers it")
        box.live()
        return box

    async def _files(self, box: Box, request: Request) -> Response:
        try:
            if request.method == "GET":
                return await _download(box, request.query_params.get("path", ""))
            if request.method == "POST":
                return JSONResponse(await _uploaded(box, request))
            raise Refused(405, "GET or POST")
        except Refused as refused:
            return refusal(refused)
        except OSError as error:
            return refusal(Refused(_STATUSES.get(error.errno or 0, 400), error.strerror or str(error)))
        except (SandboxError, NotStarted) as error:
            return refusal(Refused(500, str(error)))
        except ClientDisconnect:
            return Response(status_code=499)


async def _download(box: Box, path: str) -> Response:
    running = await box.live().call("read", path=path)
    with ExitStack() as opened:
        events = opened.enter_context(running.events())
        first = await events.next()
        problem = b""
        if isinstance(first, Printed) and first.stream == wire.ERRORS:
            problem, first = first.data, await events.next()
        if isinstance(first, Exited):
            raise_failure(first, problem)
            return Response(b"")
        begun = opened.pop_all()

    async def content() -> AsyncIterator[bytes]:
        with begun:
            yield first.data
            async for event in events:
                if not isinstance(event, Exited):
                    yield event.data
                elif event.code:
                    raise SandboxError(f"reading {path} was cut off")

    return StreamingResponse(content(), media_type="application/octet-stream")


async def _uploaded(box: Box, request: Request) -> list[dict[str, str]]:
    kind = request.headers.get("content-type", "")
    path = request.query_params.get("path", "")
    if not kind.startswith("multipart/form-data"):
        return [await _write(box, path, _plain(request))]
    most = box.limits.file_mb << 20
    if int(request.headers.get("content-length") or most) > most * 2:
        raise Refused(413, f"the upload is longer than {most * 2} bytes")
    async with request.form(max_files=MAX_FILES, max_fields=8) as form:
        given = [each for each in form.getlist("file") if isinstance(each, UploadFile)]
        if not given:
            raise Refused(400, "the form has no `file`")
        return [
            await _write(box, path if path and len(given) == 1 else each.filename or "", _chunks(each))
            for each in given
        ]


async def _write(box: Box, path: str, content: AsyncIterator[bytes]) -> dict[str, str]:
    if not path:
        raise Refused(400, "path: which file?")
    running = await box.live().call("write", stdin=True, path=path)
    with running.events() as events:
        try:
            async for chunk in content:
                await running.write(chunk)
                if running.exited is not None:  # such as at the sandbox's limit on files
                    break
        except BaseException:
            await running.end()
            raise
        running.end_input()
        found = await answer_of(events)
    return {"name": found["name"], "type": found["type"], "path": found["path"]}


async def _plain(request: Request) -> AsyncIterator[bytes]:
    """The body, unpacked where it is gzip."""
    is_packed = request.headers.get("content-encoding") == "gzip"
    unpack = zlib.decompressobj(16 + zlib.MAX_WBITS) if is_packed else None
    async for chunk in request.stream():
        for part in _parts(chunk, unpack):
            yield part


def _parts(chunk: bytes, unpack: Any) -> Iterator[bytes]:
    if unpack is None:
        yield chunk
    while unpack is not None and chunk:
        yield unpack.decompress(chunk, CHUNK)
        chunk = unpack.unconsumed_tail


async def _chunks(file: UploadFile) -> AsyncIterator[bytes]:
    while chunk := await file.read(CHUNK):
        yield chunk


async def _no_route(request: Request, error: Exception) -> Response:
    # E2B's SDK takes 404 for a sandbox that is gone.
    return refusal(Refused(501, f"{request.method} {request.url.path}: this server has no such call"))


async def _bug(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return refusal(Refused(500, "the server failed; its log says how"))


GRACE_S = 5
"""How long calls that are under way are waited for when the server closes, seconds."""


class SandboxServer:
    """Serves this machine's sandboxes on the running event loop. There is no TLS.

    created -> start (its port is known) -> serving -> close
    """

    def __init__(self, settings: ServerSettings, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.boxes = Boxes(settings)
        # E2B's SDK keeps idle connections for 300 s, and loses a request that crosses their end.
        kept = {"grace_s": GRACE_S, "timeout_keep_alive": 310}
        self._server = WebServer(App(self.boxes), host=host, port=port, **kept)

    @property
    def url(self) -> str:
        return self._server.url

    async def start(self) -> None:
        """Try the backend, bind and serve.

        Raises SandboxUnavailable: sandboxes do not run here. Raises OSError: the address cannot be bound.
        """
        await self.boxes.open()
        try:
            await self._server.start()
        except OSError:
            await self.boxes.close()
            raise

    async def close(self) -> None:
        """End all sandboxes, then stop serving. Idempotent."""
        await self.boxes.close()
        await self._server.close()
