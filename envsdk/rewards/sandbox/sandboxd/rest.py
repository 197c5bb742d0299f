"""The first plane: E2B's REST API of life cycles, with `X-API-KEY`."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qsl, unquote

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from envsdk.base.settings.validation import value_problem
from envsdk.rewards.sandbox.sandboxd.boxes import Box, Boxes, Refused

ENVD_VERSION = "0.6.1"
"""What this server's second plane can do, by the version of E2B's own: its SDK asks no more of it."""
MAX_BODY_BYTES = 1 << 20
MAX_PAGE = 100
NEXT_TOKEN = "x-next-token"


class _Body(BaseModel):
    """Keys that are not here are known to E2B and without effect: those that must have one are refused."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class NewSandbox(_Body):
    templateID: str = "base"
    timeout: NonNegativeInt | None = None
    metadata: dict[str, str] = Field(default_factory=dict, max_length=64)
    envVars: dict[str, str] = Field(default_factory=dict)
    allow_internet_access: bool | None = None
    model_config = ConfigDict(extra="allow")


class Asked(_Body):
    """The body of all other calls."""

    timeout: NonNegativeInt | None = None
    count: Annotated[int, Field(ge=1, le=20)] = 1
    name: str | None = None
    memory: bool | None = None


BodyT = TypeVar("BodyT", bound=_Body)
Handler = Callable[[Request, str], Awaitable[Response]]
REFUSED_FIELDS = ("network", "mcp", "iam", "volumeMounts", "autoPause", "autoResume")


class Rest:
    """The routes; each handler gets the name of the request's token."""

    def __init__(self, boxes: Boxes) -> None:
        self._boxes = boxes
        one = "/sandboxes/{id}"
        self._routes: list[tuple[str, str, Handler]] = [
            ("POST", "/v2/sandboxes", self._create),
            ("GET", "/v2/sandboxes", self._list),
            ("GET", one, self._get),
            ("DELETE", one, self._kill),
            ("POST", f"/v2{one}/connect", self._connect),
            ("POST", f"{one}/timeout", self._set_timeout),
            ("POST", f"{one}/pause", self._pause),
            ("POST", f"{one}/fork", self._fork),
            ("POST", f"{one}/snapshots", self._snapshot),
            ("DELETE", "/templates/{id:path}", self._delete_snapshot),
            ("GET", "/envsdk/places", self._places),
            ("GET", "/envsdk/folders/{name}", self._has_folder),
            ("PUT", "/envsdk/folders/{name}", self._keep_folder),
        ]

    def routes(self) -> list[Route]:
        return [Route(path, self._guarded(handler), methods=[verb]) for verb, path, handler in self._routes]

    def _guarded(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            try:
                return await handler(request, self._token(request))
            except Refused as refused:
                return refusal(refused)

        return guarded

    def _token(self, request: Request) -> str:
        given = request.headers.get("x-api-key", "").encode()
        known = [
            name
            for name, token in self._boxes.settings.tokens.items()
            if hmac.compare_digest(given, token.token.get_secret_value().encode())
        ]
        if not known:
            raise Refused(401, "wrong or missing API key: send `X-API-KEY` with a token of this server")
        return known[0]

    def _box(self, request: Request, token: str) -> Box:
        return self._boxes.get(token, request.path_params["id"])

    async def _create(self, request: Request, token: str) -> Response:
        asked = await _body(request, NewSandbox)
        for name in REFUSED_FIELDS:
            if (asked.model_extra or {}).get(name) not in (None, {}, [], False, {"enabled": False}):
                raise Refused(400, f"{name}: this server has none; it serves commands, files and life cycles")
        if asked.allow_internet_access:
            raise Refused(400, "allow_internet_access: this server's sandboxes have no network")
        box = await self._boxes.create(
            token,
            asked.templateID,
            timeout_s=asked.timeout,
            metadata=asked.metadata,
            env=asked.envVars,
            idempotency_key=request.headers.get("idempotency-key"),
        )
        return JSONResponse(self._started(box), status_code=201)

    async def _connect(self, request: Request, token: str) -> Response:
        box, asked = self._box(request, token), await _body(request, Asked)
        _check_memory(asked)
        await self._boxes.resume(box, asked.timeout, extends_only=True)
        return JSONResponse(self._started(box), status_code=201)

    async def _list(self, request: Request, token: str) -> Response:
        query = request.query_params
        found = [box for box in self._boxes.of(token) if not box.is_snapshot and _matches(box, query)]
        found.sort(key=lambda box: box.started_at, reverse=query.get("order", "desc") != "asc")
        return self._page(request, [_detail(box) for box in found])

    @staticmethod
    def _page(request: Request, found: Sequence[dict[str, Any]]) -> Response:
        query = request.query_params
        try:
            start, most = int(query.get("nextToken") or 0), int(query.get("limit") or MAX_PAGE)
        except ValueError:
            raise Refused(400, "nextToken, limit: a number each") from None
        page = found[max(0, start) :][: max(1, min(most, MAX_PAGE))]
        headers = {NEXT_TOKEN: str(start + len(page))} if start + len(page) < len(found) else {}
        return JSONResponse(page, headers=headers)

    async def _get(self, request: Request, token: str) -> Response:
        return JSONResponse(_detail(self._box(request, token)))

    async def _kill(self, request: Request, token: str) -> Response:
        await self._boxes.kill(self._box(request, token))
        return Response(status_code=204)

    async def _set_timeout(self, request: Request, token: str) -> Response:
        box, asked = self._box(request, token), await _body(request, Asked)
        await self._boxes.set_timeout(box, asked.timeout or 0)
        return Response(status_code=204)

    async def _pause(self, request: Request, token: str) -> Response:
        box = self._box(request, token)
        _check_memory(await _body(request, Asked))
        await self._boxes.pause(box)
        return Response(status_code=204)

    async def _fork(self, request: Request, token: str) -> Response:
        box, asked = self._box(request, token), await _body(request, Asked)
        answers: list[dict[str, Any]] = []
        for _ in range(asked.count):
            try:
                answers.append({"sandbox": self._started(await self._boxes.fork(box, asked.timeout))})
            except Refused as refused:
                answers.append({"error": {"code": refused.status, "message": refused.message}})
        return JSONResponse(answers, status_code=201)

    async def _snapshot(self, request: Request, token: str) -> Response:
        box, asked = self._box(request, token), await _body(request, Asked)
        return JSONResponse(
            _kept(await self._boxes.fork(box, None, keeps=True, name=asked.name)), status_code=201
        )

    async def _delete_snapshot(self, request: Request, token: str) -> Response:
        await self._boxes.kill(self._boxes.get(token, request.path_params["id"], snapshot=True))
        return Response(status_code=204)

    async def _places(self, request: Request, token: str) -> Response:
        return JSONResponse(self._boxes.places(token))

    async def _has_folder(self, request: Request, token: str) -> Response:
        self._boxes.folders.find(token, request.path_params["name"])
        return Response(status_code=204)

    async def _keep_folder(self, request: Request, token: str) -> Response:
        name = request.path_params["name"]
        await self._boxes.folders.keep(token, name, request.stream(), self._boxes.shown())
        return Response(status_code=204)

    def _started(self, box: Box) -> dict[str, Any]:
        return {**_named(box), "domain": self._boxes.settings.domain}


def _check_memory(asked: Asked) -> None:
    if asked.memory is False:
        raise Refused(400, "memory: a paused sandbox keeps its processes; fork it for its files alone")


def _kept(box: Box) -> dict[str, Any]:
    return {"snapshotID": box.id, "names": list(box.names)}


def refusal(refused: Refused) -> Response:
    return JSONResponse({"code": refused.status, "message": refused.message}, status_code=refused.status)


async def _body(request: Request, model: type[BodyT]) -> BodyT:
    """The request's JSON. Raises Refused: it is too long, no JSON, or has a wrong value."""
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > MAX_BODY_BYTES:
            raise Refused(413, f"the body is longer than {MAX_BODY_BYTES} bytes")
    try:
        return model.model_validate_json(bytes(content) or b"{}")
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise Refused(400, f"{where}: {value_problem(first)}") from error


def _matches(box: Box, query: Any) -> bool:
    wanted = {unquote(name): unquote(value) for name, value in parse_qsl(query.get("metadata", ""))}
    states = [state for state in query.get("state", "").split(",") if state]
    return (
        wanted.items() <= box.metadata.items()
        and (not states or _state(box) in states)
        and query.get("template", box.template) == box.template
        and _time(box.started_at) >= query.get("startedAfter", "")
    )


def _named(box: Box) -> dict[str, Any]:
    return {
        "templateID": box.template,
        "sandboxID": box.id,
        "clientID": "envsdk",
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": box.access_token,
    }


def _detail(box: Box) -> dict[str, Any]:
    return {
        **_named(box),
        "startedAt": _time(box.started_at),
        "endAt": _time(box.ends_at),
        "cpuCount": 1,
        "memoryMB": box.limits.memory_mb,
        "diskSizeMB": box.limits.disk_mb,
        "state": _state(box),
        "metadata": dict(box.metadata),
    }


def _state(box: Box) -> str:
    return "paused" if box.paused else "running"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
