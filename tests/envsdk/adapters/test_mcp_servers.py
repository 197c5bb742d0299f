"""Tools of real MCP servers: processes of the official SDK, over stdio and over HTTP."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pydantic import ValidationError

from envsdk.adapters.tools import CallStatus, McpConnection, McpServer, Toolbox, ToolUnavailable
from envsdk.contracts.failures import ConfigurationError

CLOCK = [sys.executable, str(Path(__file__).with_name("mcp_clock_server.py"))]
TOKEN = "a-token-for-tests"


def call(name: str, arguments: str = "{}") -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def answered(connection: McpConnection, reply: str) -> tuple[str, CallStatus]:
    answer = Toolbox(connection.tools).answer(reply)
    assert answer is not None
    (status,) = answer.statuses
    return answer.observation.split("\n")[1], status


@pytest.fixture(scope="module")
def clock() -> Iterator[McpConnection]:
    with McpServer(command=CLOCK, call_timeout_s=1.0).connect("clock") as connection:
        yield connection


@pytest.fixture
def http_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[subprocess.Popen[str], McpServer]]:
    process = subprocess.Popen([*CLOCK, TOKEN], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = int(process.stdout.readline())
    monkeypatch.setenv("CLOCK_TOKEN", TOKEN)
    try:
        yield process, McpServer(url=f"http://127.0.0.1:{port}/mcp", token_variable="CLOCK_TOKEN")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_its_tools_are_found_with_their_schemas(clock: McpConnection) -> None:
    add = next(tool for tool in clock.tools if tool.name == "add")
    assert add.description == "Add two numbers."
    assert add.parameters["required"] == ["a", "b"]


@pytest.mark.parametrize(
    ("reply", "output", "status"),
    [
        (call("add", '{"a": 1, "b": 2}'), "3", CallStatus.OK),
        (call("add", '{"a": 1}'), "Error: add: 'b' is a required property", CallStatus.INVALID_ARGUMENTS),
        (call("refuse"), "Error: Error executing tool refuse: not today", CallStatus.TOOL_FAILED),
        (call("nap", '{"seconds": 3}'), "Error: nap gave no answer within 1 s", CallStatus.TOOL_FAILED),
        (call("add", '{"a": 3, "b": 2}'), "5", CallStatus.OK),
    ],
)
def test_calls_are_answered(clock: McpConnection, reply: str, output: str, status: CallStatus) -> None:
    assert answered(clock, reply) == (output, status)


def test_a_server_that_dies_is_no_answer() -> None:
    with McpServer(command=CLOCK).connect("clock") as clock:
        for _ in range(2):
            with pytest.raises(ToolUnavailable, match=r"'clock' .*Connection closed"):
                answered(clock, call("die"))


def test_closing_ends_the_process() -> None:
    before = {child.pid for child in psutil.Process().children()}
    connection = McpServer(command=CLOCK).connect("clock")
    (started,) = {child.pid for child in psutil.Process().children()} - before
    connection.close()
    connection.close()
    assert not psutil.pid_exists(started)


def test_a_connection_that_nobody_closes_keeps_no_process_alive() -> None:
    script = (
        "import psutil\n"
        "from envsdk.adapters.tools import McpServer\n"
        f"clock = McpServer(command={CLOCK!r}).connect('clock')\n"
        "print(*(child.pid for child in psutil.Process().children()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(done.stdout)).wait(60)


def test_the_same_over_http_with_a_token(
    http_clock: tuple[subprocess.Popen[str], McpServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    process, server = http_clock
    with pytest.raises(ToolUnavailable, match="'clock'"):
        McpServer(url=server.url).connect("clock")
    with server.connect("clock") as clock:
        assert answered(clock, call("add", '{"a": 1, "b": 2}')) == ("3", CallStatus.OK)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        with pytest.raises(ToolUnavailable, match="'clock'"):
            answered(clock, call("tick"))
    with pytest.raises(ToolUnavailable, match=r"'clock' \(http://127.0.0.1:.*ConnectError"):
        server.connect("clock")
    monkeypatch.delenv("CLOCK_TOKEN")
    with pytest.raises(ConfigurationError, match="the environment variable CLOCK_TOKEN is not set"):
        server.connect("clock")


def test_tools_can_be_chosen_and_renamed() -> None:
    server = McpServer(command=CLOCK, only=["tick", "add"], prefix="clock_")
    with server.connect("clock") as clock:
        assert [tool.name for tool in clock.tools] == ["clock_add", "clock_tick"]
        assert answered(clock, call("clock_tick")) == ("1", CallStatus.OK)
    with pytest.raises(ConfigurationError, match=r"no tool 'tock'. Did you mean 'tick'\?"):
        McpServer(command=CLOCK, only=["tock"]).connect("clock")


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["/no/such/program"], "FileNotFoundError"),
        ([sys.executable, "-c", "import sys; sys.exit('no clock here')"], "it said: no clock here"),
    ],
)
def test_a_server_that_does_not_start_is_named_with_what_it_said(command: list[str], says: str) -> None:
    with pytest.raises(ToolUnavailable, match="MCP server 'clock'") as raised:
        McpServer(command=command).connect("clock")
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "either `command` or `url`"),
        ({"command": ["x"], "url": "http://x"}, "either `command` or `url`"),
        ({"url": "ws://x"}, "must begin with http"),
        ({"comand": ["x"]}, "comand"),
    ],
)
def test_settings_that_reach_nothing_are_refused(settings: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        McpServer.model_validate(settings)


def test_without_the_sdk_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ConfigurationError, match=r"envsdk\[mcp\]"):
        McpServer(command=CLOCK).connect("clock")
