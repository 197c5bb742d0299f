"""A server of an environment of ours on a thread, and as a process of the command line."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from envsdk.adapters.openenv.server import OpenEnvServer
from envsdk.config.env_arguments import spec_named
from envsdk.contracts.env import EnvSpec
from envsdk.serve_env import TOKEN_VARIABLE, env_server

TOKEN = "a-token-for-tests"


@contextmanager
def served(
    environment: str | EnvSpec, env_config: dict[str, Any] | None = None, **config: Any
) -> Iterator[OpenEnvServer]:
    """It serves within the block."""
    spec = environment if isinstance(environment, EnvSpec) else spec_named(environment)
    server = env_server(spec, env_config, **{"token": TOKEN, **config})
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(30)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


@contextmanager
def server_process(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`python -m envsdk.serve_env ARGUMENTS`: the process and its address."""
    command = [sys.executable, "-m", "envsdk.serve_env", *arguments, "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, TOKEN_VARIABLE: TOKEN}
    )
    assert process.stdout is not None
    try:
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found, "it did not start"
        yield process, found.group()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
