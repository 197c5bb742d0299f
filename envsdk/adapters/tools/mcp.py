"""Tools of an MCP server: a process that is started here (stdio), or one that runs elsewhere (HTTP).

    connect -> its tools are known -> call* -> close

    with McpServer(command=["python", "clock_server.py"]).connect("clock") as clock:
        toolbox = Toolbox(clock.tools)

By the official SDK, on the event loop that all synchronous environments of the process share: calls block, as
an environment's `step` does.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO, cast

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, model_validator

from envsdk.adapters.missing import import_extra
from envsdk.adapters.tools.definition import Tool, ToolError, ToolUnavailable
from envsdk.base.processes.as_sync import loop_thread
from envsdk.base.settings.nearest import did_you_mean
from envsdk.contracts.failures import ConfigurationError

if TYPE_CHECKING:
    import mcp

_LONGEST_REASON = 400


class McpServer(BaseModel):
    """How to reach one server: by `command` or by `url`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: list[str] = Field(default_factory=list)
    """Program and arguments of a server that speaks over its standard input and output."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of that process. Of this one's it gets PATH, HOME and the like, and no more."""
    cwd: str | None = None
    """Working directory of that process."""
    url: str = ""
    """Address of a server that speaks streamable HTTP, such as `http://127.0.0.1:8000/mcp`."""
    token_variable: str = ""
    """Environment variable with the bearer token that `url` wants."""
    only: list[str] | None = None
    """The tools to take; all of them when absent."""
    prefix: str = ""
    """Put before the names of its tools, where two servers have tools of one name."""
    is_fresh: bool = False
    """Connect anew for each episode: for servers that remember."""
    connect_timeout_s: PositiveFloat = 30.0
    call_timeout_s: PositiveFloat = 20.0
    """A call without an answer within that time fails, and the policy is answered so."""

    @model_validator(mode="after")
    def _is_reached_one_way(self) -> McpServer:
        if bool(self.command) == bool(self.url):
            raise ValueError("give either `command` or `url`")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url: must begin with http:// or https://, not {self.url!r}")
        return self

    def connect(self, name: str) -> McpConnection:
        """Start it or reach it, and ask for its tools; `name` is for messages.

        Raises ToolUnavailable when it cannot be reached, ConfigurationError for a tool it does not have, for
        a token that is not set, and without the package `mcp`.
        """
        return McpConnection(name, self)


class McpConnection:
    """An open connection and its tools. Owner: the caller of `connect`, who also closes it."""

    def __init__(self, name: str, server: McpServer) -> None:
        self.name = name
        self.tools: list[Tool] = []
        self._server = server
        self._thread = loop_thread()
        self._stack = ExitStack()
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> McpConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect, and end the process that was started. Idempotent."""
        # One that broke complains once more as it is closed.
        with suppress(Exception):
            self._stack.close()

    def _open(self) -> None:
        import_extra("mcp", extra="mcp")
        # The error output of a server that does not start.
        file = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        said = cast(TextIO, self._stack.enter_context(file))
        try:
            client, found = self._thread.run(self._connected(said))
        except ConfigurationError:
            raise
        except Exception as error:
            raise self._unavailable(error, said) from error
        self.tools = [
            Tool(
                name=self._server.prefix + each.name,
                description=each.description or "",
                parameters=each.input_schema,
                call=partial(self._call, client, each.name),
            )
            for each in self._taken(found)
        ]

    async def _connected(self, said: TextIO) -> tuple[mcp.Client, list[Any]]:
        """The client, held open until `close`, and the tools of its server."""
        ready: asyncio.Future[tuple[mcp.Client, list[Any]]] = asyncio.get_running_loop().create_future()
        over = asyncio.Event()
        # Entered and left in one task, as the SDK demands.
        holding = asyncio.create_task(self._hold(said, ready, over))
        self._stack.callback(lambda: self._thread.run(_end(holding, ready, over)))
        either: set[asyncio.Future[Any]] = {ready, holding}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            holding.result()
        return ready.result()

    async def _hold(
        self, said: TextIO, ready: asyncio.Future[tuple[mcp.Client, list[Any]]], over: asyncio.Event
    ) -> None:
        import mcp

        async with AsyncExitStack() as stack:
            transport = await self._transport(stack, said)
            client = mcp.Client(transport, read_timeout_seconds=self._server.connect_timeout_s)
            await stack.enter_async_context(client)
            ready.set_result((client, await _all_tools(client)))
            await over.wait()

    async def _transport(self, stack: AsyncExitStack, said: TextIO) -> AbstractAsyncContextManager[Any]:
        server = self._server
        if server.command:
            from mcp.client.stdio import StdioServerParameters, stdio_client

            program, *arguments = server.command
            parameters = StdioServerParameters(
                command=program, args=arguments, env=server.env, cwd=server.cwd
            )
            return stdio_client(parameters, errlog=said)
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        headers = {}
        if server.token_variable:
            token = os.environ.get(server.token_variable)
            if not token:
                raise ConfigurationError(
                    f"MCP server {self.name!r}: the environment variable {server.token_variable} is not set"
                )
            headers["Authorization"] = f"Bearer {token}"
        timeout = httpx2.Timeout(server.connect_timeout_s, read=None)
        client = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=timeout))
        return streamable_http_client(server.url, http_client=client)

    def _taken(self, found: Sequence[Any]) -> list[Any]:
        """The tools that `only` names, in the server's order."""
        only, names = self._server.only, [each.name for each in found]
        if only is None:
            return list(found)
        for name in only:
            if name not in names:
                raise ConfigurationError(
                    f"MCP server {self.name!r} has no tool {name!r}.{did_you_mean(name, names)}"
                    f" Its tools: {', '.join(names)}"
                )
        return [each for each in found if each.name in only]

    def _call(self, client: mcp.Client, tool: str, arguments: dict[str, Any]) -> str:
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        timeout_s = self._server.call_timeout_s
        try:
            result = self._thread.run(client.call_tool(tool, arguments, read_timeout_seconds=timeout_s))
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise self._unavailable(error) from error
            if error.code == REQUEST_TIMEOUT:
                raise ToolError(f"{tool} gave no answer within {timeout_s:g} s") from error
            raise ToolError(error.message) from error
        except Exception as error:
            raise self._unavailable(error) from error
        text = "\n".join(_text(block) for block in result.content)
        if result.is_error:
            raise ToolError(text)
        return text

    def _unavailable(self, error: Exception, said: TextIO | None = None) -> ToolUnavailable:
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        server = self._server
        where = server.url or " ".join(server.command)
        message = f"MCP server {self.name!r} ({where}): {type(error).__name__}: {error}"
        if said is not None:
            said.seek(0)
            tail = " ".join(said.read().split())[-_LONGEST_REASON:]
            message += f"; it said: {tail}" if tail else ""
        return ToolUnavailable(message)


async def _end(holding: asyncio.Task[None], ready: asyncio.Future[Any], over: asyncio.Event) -> None:
    over.set()
    if not ready.done():
        holding.cancel()
    await asyncio.wait({holding})


async def _all_tools(client: mcp.Client) -> list[Any]:
    page = await client.list_tools()
    found = list(page.tools)
    while page.next_cursor:
        page = await client.list_tools(cursor=page.next_cursor)
        found += page.tools
    return found


def _text(block: Any) -> str:
    """What a policy reads of one block of a result."""
    if block.type == "text":
        return str(block.text)
    text = getattr(getattr(block, "resource", None), "text", None)
    if isinstance(text, str):
        return text
    kind = getattr(block, "mime_type", None) or getattr(block, "uri", "")
    return f"[{block.type} {kind}]"
