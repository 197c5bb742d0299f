"""`envsdk sandboxd [SETTINGS.toml]`: this machine's sandboxes for E2B's own Python SDK.

Without a file the token is taken from the environment variable `ENVSDK_SANDBOXD_TOKEN`, or made up and
printed once.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from envsdk.base.display.model_command import command_of
from envsdk.base.display.terminal import say
from envsdk.base.net.serving import serve_until_stopped
from envsdk.base.settings.extras import require
from envsdk.base.settings.options import Argument, Options
from envsdk.base.settings.validation import validated
from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.sandbox.sandboxd.settings import ServerSettings

TOKEN_VARIABLE = "ENVSDK_SANDBOXD_TOKEN"


class SandboxdOptions(Options):
    """What `envsdk sandboxd` takes."""

    settings: Annotated[Path | None, Argument("SETTINGS.toml")] = None
    """Backend, templates, tokens and their quotas; without it, one token and the template `base`."""
    backend: str | None = None
    """Where sandboxes run, in place of the file's: bubblewrap, docker, podman."""
    host: str = "127.0.0.1"
    """Address to serve on. Anything but loopback sends tokens and files unencrypted: put a proxy with TLS in
    front."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8700
    """0 takes a free one."""
    sandboxes: Annotated[int, Field(ge=1)] = 64
    """At once, of the one token; with a file, each token has its own number."""


def command(options: SandboxdOptions) -> None:
    """Serve this machine's sandboxes over E2B's protocol, until Ctrl-C; then they end.

    Clients need a token: one of the file's, or that of the environment variable ENVSDK_SANDBOXD_TOKEN, or one
    that is made up and shown once.
    """
    require("envsdk sandboxd", "e2b", "starlette", "uvicorn")
    from envsdk.rewards.sandbox.sandboxd.app import SandboxServer

    settings = _settings(options)
    server = SandboxServer(settings, host=options.host, port=options.port)

    def on_serving() -> None:
        say(f"serving sandboxes of {settings.backend} at {server.url}", flush=True)

    asyncio.run(serve_until_stopped(server, f"{options.host}:{options.port}", on_serving))


def _settings(options: SandboxdOptions) -> ServerSettings:
    values: dict[str, Any] = {}
    if options.settings is not None:
        try:
            values = tomllib.loads(options.settings.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{options.settings}: {error}") from error
    else:
        given = os.environ.get(TOKEN_VARIABLE)
        token = given or f"e2b_{secrets.token_hex(20)}"
        if not given:
            say(f"token, shown only here: {token}", flush=True)
        values["tokens"] = {"default": {"token": token, "sandboxes": options.sandboxes}}
    if options.backend is not None:
        values["backend"] = options.backend
    return validated(ServerSettings, values, str(options.settings or TOKEN_VARIABLE))


app, main = command_of(SandboxdOptions, command, name="envsdk sandboxd")

if __name__ == "__main__":
    sys.exit(main())
