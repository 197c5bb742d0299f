"""How a reply works the terminal: a command as SWE reads it, or the keys of a terminal as JSON.

    {"commands": [{"keystrokes": "vim notes.txt\\n", "duration": 0.5}], "task_complete": false}

That is the form of Harbor's Terminus: `keystrokes` is typed as it stands, or is the name of one key (`C-c`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from envsdk.envs.shell.replies import format_reply

ActionFormat = Literal["bash", "tool", "keys"]
MAX_WAIT_S = 60.0
_WAIT_S = 1.0
EXAMPLE = {"commands": [{"keystrokes": "ls -la\n", "duration": 0.5}], "task_complete": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """What a reply types, and whether it says that the task is done."""

    strokes: tuple[tuple[tuple[str, ...], float], ...]
    """Keys, and the seconds to wait after them."""
    is_done: bool


def read_keys(reply: str) -> tuple[Typed | None, str]:
    """`(typed, "")`, or `(None, note)` where the reply holds no such object. Takes linear time."""
    start, end = reply.find("{"), reply.rfind("}")
    try:
        said = json.loads(reply[start : end + 1])
        strokes = tuple(_stroke(each) for each in said["commands"])
        return Typed(strokes=strokes, is_done=said.get("task_complete", False) is True), ""
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None, (
            "<error>\nNothing was typed: a reply must hold one JSON object with the list `commands`, each"
            f" with `keystrokes`, and no other braces.\n</error>\n<format_example>\n{json.dumps(EXAMPLE)}\n"
            "</format_example>"
        )


def _stroke(command: dict[str, Any]) -> tuple[tuple[str, ...], float]:
    from envsdk.rewards.sandbox.terminal import keys

    text = command["keystrokes"]
    seconds = float(command.get("duration", _WAIT_S))
    if not isinstance(text, str) or not 0 <= seconds < float("inf"):
        raise ValueError
    if keys.is_key(text):
        return (text,), min(seconds, MAX_WAIT_S)
    lines = text.split("\n")
    typed = [part for line in lines[:-1] for part in (line, "Enter")] + lines[-1:]
    return tuple(part for part in typed if part), min(seconds, MAX_WAIT_S)


def format_command(command: str, action_format: ActionFormat) -> str:
    """The reply that runs a command, of one line or several."""
    if action_format != "keys":
        return format_reply(command, action_format)
    typed = {"keystrokes": f"{command}\n", "duration": MAX_WAIT_S}
    return json.dumps({"commands": [typed], "task_complete": False})
