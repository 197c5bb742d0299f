"""What the policy is shown, apart from what its commands print."""

from __future__ import annotations

import json

from envsdk.envs.shell.commands import SENTINEL
from envsdk.envs.terminal.harbor.config import Environment
from envsdk.envs.terminal.harbor.folder import Stage
from envsdk.envs.terminal.replies import EXAMPLE, ActionFormat, format_command


def render_task(
    stage: Stage,
    *,
    instructions: bool,
    action_format: ActionFormat,
    keeps_processes: bool = True,
    box: Environment | None = None,
) -> str:
    """The first observation of a step."""
    text = f"<task>\n{stage.instruction.strip()}\n</task>"
    if stage.history:
        text = f"<earlier_conversation>\n{stage.history}\n</earlier_conversation>\n\n{text}"
    if box is not None and (skills := box.skills_dir):
        text += f"\n\nEach folder in {skills} has a SKILL.md that says how to do something: read what fits."
    if box is not None and box.mcp_servers:
        servers = (json.dumps(each.model_dump(exclude_unset=True)) for each in box.mcp_servers)
        text += "\n".join(("\n\nMCP servers that help:", *servers))
    return f"{text}\n\n{_instructions(action_format, keeps_processes)}" if instructions else text


def _instructions(action_format: ActionFormat, keeps_processes: bool) -> str:
    if action_format == "keys":
        done = json.dumps({"commands": [], "task_complete": True})
        return f"""<instructions>
You work at a terminal of 80 columns and 24 lines, and see its screen after each reply. A reply is one JSON
object:

{json.dumps(EXAMPLE)}

`keystrokes` are typed as they stand, \\n being Enter, or are the name of one key (C-c, Escape, Up).
`duration` is how many seconds to wait for the screen at most. When the task is done, reply:

{done}
</instructions>"""
    left = "go on in the background" if keeps_processes else "end with their command"
    one = "one call of the tool `bash`" if action_format == "tool" else "one bash block"
    return f"""<instructions>
You solve the task by shell commands, and see what each prints before you give the next. Tests that you do not
see decide. Every reply gives a reason, and then exactly {one}:

{format_command("ls -la", action_format)}

- Each command runs in a new shell: `cd` and variables do not last, files do; programs {left}.
- Nobody answers a prompt. A command that takes too long is killed.

When you are done, submit:

{format_command(f"echo {SENTINEL}", action_format)}
</instructions>"""


def render_end(id: str, reward: float, how: str, gate: str) -> str:
    """The last observation."""
    ended = f" The steps that follow were left out: {gate}." if gate else ""
    return f'<episode instance_id="{id}" reward="{reward:g}">\n{how.capitalize()}.{ended}\n</episode>'
