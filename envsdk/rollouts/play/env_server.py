"""An environment on OpenEnv's server, for training elsewhere.

server = env_server(registry.spec("envsdk/FrozenLake-v1"), {"size": 6}, port=8000)
await server.start()
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from envsdk.adapters.missing import import_extra
from envsdk.base.registry import system_prompt
from envsdk.contracts.env import EnvSpec, Isolation

if TYPE_CHECKING:
    from envsdk.adapters.openenv.server import OpenEnvServer


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
