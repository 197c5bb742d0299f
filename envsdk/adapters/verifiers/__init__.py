"""Tasksets of verifiers here (`envsdk.adapters.verifiers.env`), and our environments there (`.taskset`)."""

from envsdk.contracts.env import EnvSpec, Isolation

SPEC = EnvSpec(
    id="envsdk/Verifiers-v1",
    entry_point="envsdk.adapters.verifiers.env:make_verifiers_env",
    # A reward may ask a judge: an environment waits.
    isolation=Isolation.ASYNC,
    lists_tasks=True,
    reset_timeout_s=300.0,
    step_timeout_s=120.0,
    description="Any taskset of verifiers whose tasks are played in text, by the name of its module.",
    action_format="Reply as the first observation says.",
    prompt="envsdk.adapters.hosted:explains_itself",
    needs={"verifiers": "pip install 'envsdk[verifiers]'"},
)
