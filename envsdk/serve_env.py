"""`python -m envsdk.serve_env ENV_ID`: an environment behind OpenEnv's protocol, for who trains elsewhere.

The token is taken from the environment variable `ENVSDK_ENV_TOKEN`, or made up and printed once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envsdk.adapters.missing import import_extra
from envsdk.display.command_line import run_app
from envsdk.display.terminal import say
from envsdk.env import EnvSpec, Isolation
from envsdk.failures import ConfigurationError
from envsdk.play.env_arguments import env_config_from, spec_named

if TYPE_CHECKING:
    from envsdk.adapters.openenv.server import OpenEnvServer

TOKEN_VARIABLE = "ENVSDK_ENV_TOKEN"

app = typer.Typer(add_completion=False)


@app.command()
def command(
    environment: Annotated[
        str, typer.Argument(metavar="ENV_ID", help="Which one; package.module:Class works too.")
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Arguments of the environment, such as size=6."),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            help="Address to serve on. Anything but loopback sends the token unencrypted: only in a network "
            "you trust."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    max_sessions: Annotated[int, typer.Option(min=1, help="Open at the same time.")] = 64,
    isolation: Annotated[
        Isolation | None,
        typer.Option(help="Where it runs; as the environment asks when not given."),
    ] = None,
) -> None:
    """Serve an environment over OpenEnv's protocol: a WebSocket or HTTP session each.

    Clients need the token: from the environment variable ENVSDK_ENV_TOKEN, or made up and shown once.
    """
    spec = spec_named(environment)
    asyncio.run(
        _serve(
            env_server(
                spec,
                env_config_from(arguments or ()),
                host=host,
                port=port,
                token=os.environ.get(TOKEN_VARIABLE, ""),
                max_sessions=max_sessions,
                isolation=isolation,
            )
        )
    )


def env_server(
    spec: EnvSpec,
    env_config: Mapping[str, Any] | None = None,
    *,
    isolation: Isolation | None = None,
    **config: Any,
) -> OpenEnvServer:
    """A server for an environment; `config` as in `ServerConfig`. One is made first, to try the arguments.

    Raises ConfigurationError for arguments that the environment refuses, and without the extra `openenv`.
    """
    for module in ("uvicorn", "starlette", "websockets"):
        import_extra(module, extra="openenv")
    from envsdk.adapters.openenv.server import OpenEnvServer, ServerConfig
    from envsdk.managers.env_host import EnvBlueprint, open_host

    blueprint = EnvBlueprint(
        spec=spec,
        env_config=dict(env_config or {}),
        isolation=isolation or spec.isolation,
        start_timeout_s=spec.start_timeout_s,
        reset_timeout_s=spec.reset_timeout_s,
        step_timeout_s=spec.step_timeout_s,
    )
    blueprint.build().close()
    named = ServerConfig(name=spec.id, description=spec.description, **config)
    return OpenEnvServer(lambda: open_host(blueprint), named)


async def _serve(server: OpenEnvServer) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
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


def main(argv: list[str] | None = None) -> int:
    return run_app(app, argv, name="envsdk serve-env")


if __name__ == "__main__":
    sys.exit(main())
