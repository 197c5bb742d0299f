"""`envsdk serve-env ENV_ID`: an environment on OpenEnv's server, for training elsewhere.

The token is taken from the environment variable `ENVSDK_ENV_TOKEN`, or made up and printed once.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from envsdk.adapters.missing import import_extra
from envsdk.base.display.model_command import command_of
from envsdk.base.display.terminal import say
from envsdk.base.net.serving import serve_until_stopped
from envsdk.base.registry import system_prompt
from envsdk.base.settings.options import Argument, Options
from envsdk.config.env_arguments import EnvArguments, env_config_from, spec_named
from envsdk.contracts.env import EnvSpec, Isolation

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

    def on_serving() -> None:
        say(f"serving {server.config.name} at {server.url}", flush=True)
        if not server.config.token:
            say(f"token, shown only here: {server.token}", flush=True)

    asyncio.run(serve_until_stopped(server, f"{options.host}:{options.port}", on_serving))


def env_server(
    spec: EnvSpec,
    env_config: Mapping[str, Any] | None = None,
    *,
    isolation: Isolation | None = None,
    **config: Any,
) -> OpenEnvServer:
    """A server for an environment; `config` as in `ServerConfig`. Makes one first, to try the arguments.

    Raises ConfigurationError for arguments that the environment refuses, and without the extra `openenv`.
    """
    import_extra("openenv.core", extra="openenv", shown_as="openenv")
    from envsdk.adapters.openenv.server import OpenEnvServer, ServerConfig
    from envsdk.managers.env_host import EnvBlueprint
    from envsdk.managers.hosts import open_host

    blueprint = EnvBlueprint.of(spec, dict(env_config or {}))
    if isolation is not None:
        blueprint = replace(blueprint, isolation=isolation)
    blueprint.build().close()
    named = ServerConfig(name=spec.id, description=system_prompt(spec, env_config or {}), **config)
    return OpenEnvServer(lambda: open_host(blueprint), named)


app, main = command_of(ServeEnvOptions, command, name="envsdk serve-env")

if __name__ == "__main__":
    sys.exit(main())
