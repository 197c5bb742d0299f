"""ALFWorld: household tasks in text, played by the packages `alfworld` and `textworld`."""

from envsdk.contracts.env import EnvSpec, Isolation

SPEC = EnvSpec(
    id="envsdk/ALFWorld-v1",
    entry_point="envsdk.envs.alfworld.installed:ALFWorldEnv",
    max_steps=50,
    # The engine runs in processes of its own; an environment waits for its answers.
    isolation=Isolation.THREAD,
    reset_timeout_s=300.0,
    step_timeout_s=120.0,
    description="Do a household task in a home: find things, heat, cool or clean them, put them away.",
    action_format=(
        "Reply with one command in tags, such as <action>go to cabinet 1</action>. Commands: look, inventory,"
        " go to R, open R, close R, take O from R, move O to R, examine X, use O, heat O with R,"
        " clean O with R, cool O with R, slice O with O."
    ),
    local_arguments=("num_processes", "games_per_process", "process_mb", "cache_mb", "render_mode"),
    needs=dict.fromkeys(("alfworld", "textworld", "fast_downward"), "pip install 'envsdk[alfworld]'"),
)
