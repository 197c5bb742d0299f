"""Environments of verifiers here (`envsdk.adapters.verifiers.env`), and ours there (`.export`).

Versions up to 0.3 have `load_environment`, `MultiTurnEnv` and rubrics (`.classic`, `.export`); later ones
have tasksets, agents and harnesses (`.hosted_taskset`, `.taskset`).
"""

from envsdk.env import EnvSpec, Isolation

SPEC = EnvSpec(
    id="envsdk/Verifiers-v1",
    entry_point="envsdk.adapters.verifiers.env:make_verifiers_env",
    # Rubrics may ask a judge: an environment waits.
    isolation=Isolation.ASYNC,
    lists_tasks=True,
    reset_timeout_s=300.0,
    step_timeout_s=120.0,
    description="Any environment of verifiers that answers in text, by the name load_environment takes.",
    action_format="Reply as the first observation says.",
    prompt="envsdk.adapters.hosted:explains_itself",
    needs={"verifiers": "pip install 'envsdk[verifiers]'"},
)

__all__ = ["SPEC"]
