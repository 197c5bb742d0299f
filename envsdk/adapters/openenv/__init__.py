"""OpenEnv: a running OpenEnv server as an environment here, and our environments on its server."""

from envsdk.contracts.env import EnvSpec, Isolation

SPEC = EnvSpec(
    id="envsdk/OpenEnv-v1",
    entry_point="envsdk.adapters.openenv.client:OpenEnvClientEnv",
    isolation=Isolation.THREAD,
    reset_timeout_s=180.0,
    step_timeout_s=120.0,
    description="An environment behind a running OpenEnv server (url=http://HOST:PORT).",
    action_format="As the server's environment wants it: text, or a JSON object that agrees with its schema.",
    prompt="envsdk.adapters.openenv.client:openenv_prompt",
    needs={"openenv": "pip install 'envsdk[openenv]'"},
)
