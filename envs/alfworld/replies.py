"""How a reply names a command, and how the observation says that it names none."""

from __future__ import annotations

from typing import Literal

from envsdk.contracts.turn_env import last_between

ActionFormat = Literal["tag", "text"]

NO_TAG = "Invalid action: no <action> found."
EMPTY = "Invalid action: no command found."
TOO_LONG = "Invalid action: longer than any command."
NOTES = (NO_TAG, EMPTY, TOO_LONG)

_OPEN, _CLOSE = "<action>", "</action>"
_PROMPTS = (">", "action:")
_MAX_COMMAND_LENGTH = 200


def format_reply(command: str, action_format: ActionFormat) -> str:
    """The reply that plays `command`."""
    return f"{_OPEN}{command}{_CLOSE}" if action_format == "tag" else command


def parse_reply(reply: str, action_format: ActionFormat) -> tuple[str, str]:
    """`(command, "")`, or `("", note)` when the reply names none.

    `tag`: what stands in the last complete `<action>`. `text`: the last line that is not empty, without a
    `>` or `Action:` before it. Letter case and runs of spaces do not matter. Takes time linear in the
    reply, whatever it holds.
    """
    text = reply.lower()
    if action_format == "tag":
        found = last_between(text, _OPEN, _CLOSE)
        if found is None:
            return "", NO_TAG
        command = text[found]
    else:
        command = _last_line(text)
    command = " ".join(command.split())
    if not command:
        return "", EMPTY
    return (command, "") if len(command) <= _MAX_COMMAND_LENGTH else ("", TOO_LONG)


def _last_line(text: str) -> str:
    line = text.rstrip().rpartition("\n")[2].strip()
    for prompt in _PROMPTS:
        line = line.removeprefix(prompt).strip()
    return line
