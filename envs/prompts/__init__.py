"""Prompts: rows of files as tasks of one turn, scored by a reward function."""

from envsdk.contracts.env import EnvSpec, Isolation

SPEC = EnvSpec(
    id="envsdk/Prompts-v1",
    entry_point="envsdk.envs.prompts.env:PromptEnv",
    max_steps=1,
    # An environment waits for reward workers, judges and sandboxes.
    isolation=Isolation.ASYNC,
    lists_tasks=True,
    # The first one reads its files, to learn where each row is.
    start_timeout_s=3600.0,
    # Waiting for a reward worker is no fault; the deadline of scoring is the reward's own.
    step_timeout_s=3600.0,
    description="Answer prompts of a file; a reward function scores each response.",
    action_format="Reply with the response: any text, as the prompt asks for it.",
    prompt=None,
)
