"""gem's environments here (`envsdk.adapters.gem.env`), and ours in gem (`envsdk.adapters.gem.export`)."""

from envsdk.contracts.env import EnvSpec

SPEC = EnvSpec(
    id="envsdk/Gem-v1",
    entry_point="envsdk.adapters.gem.env:make_gem_env",
    description="Any environment of gem (gem-llm), by its id: games, reasoning, math.",
    action_format=r"Reply as the first observation says; in most of them the answer stands in \boxed{}.",
    prompt="envsdk.adapters.hosted:explains_itself",
    needs={"gem": "pip install 'envsdk[gem]'"},
)
