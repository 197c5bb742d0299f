"""`envsdk serve-env ENV_ID`: an environment on OpenEnv's server, for training elsewhere.

The token is taken from the environment variable `ENVSDK_ENV_TOKEN`, or made up and printed once.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from envsdk.base.display.model_command import command_of
from envsdk.base.display.terminal import say
from envsdk.base.processes.interrupts import on_stop_signals
from envsdk.base.settings.options import Argument, Options
from envsdk.config.env_arguments import EnvArguments, env_config_from, spec_named
from envsdk.contracts.env import Isolation
from envsdk.contracts.failures import ConfigurationError
from envsdk.rollouts.play.env_server import env_server as env_server

if TYPE_CHECKING:
    from envsdk.adapters.openenv.server import OpenEnvServer

TOKEN_VARIABLE = "ENVSDK_ENV_TOKEN"


class ServeEnvOptions(Options):
    """What `envsdk serve-env` takes."""

    environment: Annotated[str, Argument("ENV_ID")]
    """Which one; package.module:Class works too."""
    arguments: EnvArguments = ()
    host: str = "127.0.0.1"
    """Address to serve on. Anything but loopback sends the token unencrypted: only in a network you trust."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """0 takes a free one."""
    max_sessions: Annotated[int, Field(ge=1)] = 64
    """Open at the same time."""
    isolation: Isolation | None = None
    """Where it runs; as the environment asks when not given."""


def command(options: ServeEnvOptions) -> None:
    """Serve an environment on OpenEnv's server: one session for each WebSocket.

    Clients need the token: from the environment variable ENVSDK_ENV_TOKEN, or made up and shown once.
    """
    server = env_server(
        spec_named(options.environment),
        env_config_from(options.arguments),
        isolation=options.isolation,
        host=options.host,
        port=options.port,
        token=os.environ.get(TOKEN_VARIABLE, ""),
        max_sessions=options.max_sessions,
    )
    asyncio.run(_serve(server))


async def _serve(server: OpenEnvServer) -> None:
    stop = asyncio.Event()
    on_stop_signals(stop.set)
    try:
        await server.start()
    except OSError as error:
        where = f"{server.config.host}:{server.config.port}"
        raise ConfigurationError(
            f"cannot serve on {where}: {error.strerror}; give another --host or --port"
        ) from error
    try:
        say(f"serving {server.config.name} at {server.url}", flush=True)
        if not server.config.token:
            say(f"token, shown only here: {server.token}", flush=True)
        await stop.wait()
    finally:
        await server.close()


app, main = command_of(ServeEnvOptions, command, name="envsdk serve-env")

if __name__ == "__main__":
    sys.exit(main())
