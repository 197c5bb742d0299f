"""Any Gymnasium environment as a text environment. The way back needs no adapter: every `TextEnv` is one."""

from envsdk.contracts.env import EnvSpec

SPEC = EnvSpec(
    id="envsdk/Gymnasium-v1",
    entry_point="envsdk.adapters.gymnasium.env:make_gymnasium_env",
    description="Any Gymnasium environment with a text rendering or a small observation, by its id.",
    action_format="Reply with one action in tags: <answer>...</answer>.",
    prompt="envsdk.adapters.gymnasium.env:gymnasium_prompt",
)
