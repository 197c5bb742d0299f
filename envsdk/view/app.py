"""The pages over HTTP: a thin shell around `Library`. Everything is read, nothing is ever changed.

    /                             the page
    /assets/NAME                  its style and scripts
    /api/sources                  and below: JSON, see the routes

A stranger on the same machine cannot read along: every request needs the token, from the address that was
printed and then from a cookie. Other sites cannot reach it by a name of their own: the Host header must be
the address that is served. The page may load nothing from elsewhere and runs no script but its own.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from envsdk.contracts.failures import EnvsdkError
from envsdk.view.filters import Filter, FilterError
from envsdk.view.library import Library, OpenSource
from envsdk.view.page import ASSETS, served_page

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_MEDIA = {"css": "text/css", "js": "text/javascript"}


def make_app(library: Library, *, token: str, hosts: frozenset[str] | None) -> ASGIApp:
    """The ASGI application. `hosts` are the host names that are served, without ports; None for any."""

    def of_source(path: str, answer: Answer) -> Route:
        return Route(f"/api/sources/{{source}}{path}", _of_source(library, answer))

    routes = [
        Route("/", _page),
        Route("/assets/{name}", _asset),
        Route("/api/sources", _sources(library)),
        of_source("", lambda one, _: one.overview(time.time())),
        of_source("/progress", lambda one, _: one.progress(time.time())),
        of_source("/timeline", lambda one, _: one.timeline()),
        of_source("/programs", lambda one, _: one.programs(time.time())),
        of_source("/failures", lambda one, _: one.failures()),
        of_source("/trajectories", lambda one, asked: one.search(_filter(asked))),
        of_source(
            "/trajectories/{key}", lambda one, asked: one.trajectory(asked.path_params["key"], _filter(asked))
        ),
        of_source("/groups/{group:path}", lambda one, asked: one.group(asked.path_params["group"])),
        of_source("/tasks/{task:path}", lambda one, asked: one.same_task(asked.path_params["task"])),
    ]
    return _Guard(Starlette(routes=routes), token=token, hosts=hosts)


Answer = Callable[[OpenSource, Request], dict[str, Any] | None]


def _of_source(library: Library, answer: Answer) -> Callable[[Request], Response]:
    """An endpoint below one source; synchronous, so Starlette runs it in a thread."""

    def endpoint(request: Request) -> Response:
        try:
            source = library.get(request.path_params["source"])
            if source is None:
                return _error(404, "there is no such run or data set any more")
            found = answer(source, request)
        except FilterError as error:
            return _error(400, str(error))
        except EnvsdkError as error:
            return _error(500, str(error))
        return _error(404, "there is nothing of that name any more") if found is None else JSONResponse(found)

    return endpoint


def _sources(library: Library) -> Callable[[Request], Response]:
    def endpoint(_: Request) -> Response:
        try:
            now = time.time()
            listed = [source.listed(now) for source in library.sources()]
        except EnvsdkError as error:
            return _error(500, str(error))
        return JSONResponse({"folder": str(library.root.absolute()), "sources": listed})

    return endpoint


def _filter(request: Request) -> Filter:
    return Filter.from_params(dict(request.query_params))


def _page(_: Request) -> Response:
    return Response(served_page(), media_type="text/html")


def _asset(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in ASSETS:
        return _error(404, "there is no such file")
    content = (files("envsdk.view") / "assets" / name).read_bytes()
    return Response(content, media_type=_MEDIA[name.rpartition(".")[2]])


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": message}, status_code=status)


def _without_port(host: str) -> str:
    """`[::1]` of `[::1]:8000`."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


class _Guard:
    """Lets in who names the right host and has the token; puts the security headers on every answer."""

    def __init__(self, app: ASGIApp, *, token: str, hosts: frozenset[str] | None) -> None:
        self._app = app
        self._token = token
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = HTTPConnection(scope)
        host = request.headers.get("host", "")
        answer: ASGIApp = self._app
        # Cookies know no ports: several viewers on one machine each have their own.
        cookie = f"envsdk_view_{host.rpartition(':')[2]}"
        given = request.query_params.get("token")
        if self._hosts is not None and _without_port(host) not in self._hosts:
            answer = PlainTextResponse("this host name is not served\n", status_code=421)
        elif given is not None and self._is_token(given):
            rest = [pair for pair in request.query_params.multi_items() if pair[0] != "token"]
            # A path that begins with two slashes would name another host.
            path = "/" + request.url.path.lstrip("/")
            answer = RedirectResponse(path + (f"?{urlencode(rest)}" if rest else ""), 303)
            answer.set_cookie(cookie, self._token, httponly=True, samesite="strict")
        elif not self._is_token(request.cookies.get(cookie, "")):
            message = "the token is missing or wrong: open the address that `envsdk view` printed\n"
            answer = PlainTextResponse(message, status_code=401)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *own]}
            await send(message)

        await answer(scope, receive, send_guarded)

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self._token.encode())
