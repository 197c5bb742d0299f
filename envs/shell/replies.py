"""How a reply names a command: one ```bash block, as in mini-swe-agent, or one call of the tool `bash`."""

from __future__ import annotations

import json
from typing import Literal

from envsdk.engines.tool_calls.formats import CLOSING, OPENING, read_reply, schemas_of

ActionFormat = Literal["bash", "tool"]
ACTION_FORMATS: tuple[ActionFormat, ...] = ("bash", "tool")

TOOL_NAME = "bash"
TOOL_SCHEMA = {
    "type": "function",
    "function": {
        "name": TOOL_NAME,
        "description": "Run a bash command in a new shell.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "What to run."}},
            "required": ["command"],
        },
    },
}
"""The tool of the format `tool`, for chat templates that list tools."""

SCHEMAS = schemas_of([TOOL_SCHEMA])

_FENCE = "```"
_OPEN, _CLOSE = f"{_FENCE}bash", f"\n{_FENCE}"


def format_reply(command: str, action_format: ActionFormat, *, thought: str = "") -> str:
    """The reply that runs `command`."""
    if action_format == "tool":
        call = json.dumps({"name": TOOL_NAME, "arguments": {"command": command}}, ensure_ascii=False)
        block = f"{OPENING}\n{call}\n{CLOSING}"
    else:
        block = f"{_OPEN}\n{command}{_CLOSE}"
    return f"{thought}\n\n{block}" if thought else block


def parse_reply(reply: str, action_format: ActionFormat) -> tuple[str, str]:
    """`(command, "")`, or `("", note)` when the reply does not hold exactly one command.

    The command has no white space at its ends. Takes time linear in the reply, whatever it holds.
    """
    commands = _tool_commands(reply) if action_format == "tool" else _bash_blocks(reply)
    if len(commands) == 1 and commands[0]:
        return commands[0], ""
    return "", format_error(0 if len(commands) == 1 else len(commands), action_format)


def format_error(num_found: int, action_format: ActionFormat) -> str:
    """The observation after a reply that does not hold exactly one command."""
    if action_format == "tool":
        wanted = f"exactly one call of the tool `{TOOL_NAME}`"
        example = format_reply("your_command_here", action_format)
    else:
        wanted = "exactly one bash block"
        example = format_reply("your_command_here", action_format, thought="THOUGHT: what you do and why")
    return (
        f"<error>\nNothing was run: a reply must hold {wanted}, and this one holds {num_found}.\n"
        f"</error>\n<format_example>\n{example}\n</format_example>"
    )


def _bash_blocks(reply: str) -> list[str]:
    """What stands in each closed ```bash block."""
    blocks: list[str] = []
    position = 0
    while (start := reply.find(_OPEN, position)) >= 0:
        position = start + len(_OPEN)
        line_end = reply.find("\n", position)
        if line_end < 0:
            break
        if reply[position:line_end].strip():
            continue  # Another language, such as ```bashrc.
        end = reply.find(_CLOSE, line_end)
        if end < 0:
            break
        blocks.append(reply[line_end:end].strip())
        position = end + len(_CLOSE)
    return blocks


def _tool_commands(reply: str) -> list[str]:
    """The command of each call; empty for a call that is not one of `bash` with a command."""
    commands = []
    for call in read_reply(reply, tools=SCHEMAS).calls:
        command = json.loads(call.arguments).get("command")
        is_command = call.name == TOOL_NAME and isinstance(command, str)
        commands.append(command.strip() if is_command else "")
    return commands
