"""Terminal: tasks solved by shell commands in a sandbox, checked by their own tests in another one."""

from envsdk.contracts.env import EnvSpec, Isolation

SPEC = EnvSpec(
    id="envsdk/Terminal-v1",
    entry_point="envsdk.envs.terminal.env:TerminalEnv",
    max_steps=50,
    # An environment waits for its commands, which run in processes of their own.
    isolation=Isolation.ASYNC,
    lists_tasks=True,
    # A task may have to be built and validated before it is trained on.
    reset_timeout_s=7200.0,
    # The first command builds the image; the last one waits for the verifier.
    step_timeout_s=7200.0,
    description="Solve a task of Harbor's format by shell commands in a sandbox; its own tests decide.",
    action_format=(
        "Reply with your reasoning and exactly one command, in the format that the first message shows."
        " To submit, run: echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    ),
    local_arguments=("backend", "backend_settings", "render_mode"),
    notes="envsdk.envs.terminal.notes:notes",
    needs={"e2b_dockerfile_utils": "pip install 'envsdk[terminal]'"},
)
