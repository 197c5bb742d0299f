"""SWE: repair a repository in a sandbox; hidden tests decide the reward."""

from envsdk.contracts.env import EnvSpec, Isolation

SPEC = EnvSpec(
    id="envsdk/SWE-v1",
    entry_point="envsdk.envs.swe.env:SWEEnv",
    max_steps=50,
    # An environment waits for its commands, which run in processes of their own.
    isolation=Isolation.ASYNC,
    lists_tasks=True,
    # A task may have to be validated before it is trained on.
    reset_timeout_s=1800.0,
    # All of a harness' episode, or the longest command; the evaluation, and the wait for a slot before each.
    step_timeout_s=3600.0,
    description="Repair a repository by shell commands in a sandbox; hidden tests decide.",
    action_format=(
        "Reply with your reasoning and exactly one command, in the format that the first message shows."
        " To submit, run: echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git add -A && git diff --cached"
    ),
    local_arguments=("repositories", "backend", "backend_settings", "render_mode"),
    notes="envsdk.envs.swe.task_list:notes",
    program_argument="harness",
    lacks="envsdk.envs.swe.env:lacks",
    needs=dict.fromkeys(("coverage", "packaging", "pytest"), "pip install 'envsdk[swe]'"),
)
