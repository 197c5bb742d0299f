"""What the policy is shown besides what commands print: the issue, and how the episode ended."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from envsdk.envs.shell.commands import SENTINEL
from envsdk.envs.shell.replies import ActionFormat, format_reply

SUBMIT_COMMAND = f"echo {SENTINEL} && git add -A && git diff --cached"

_INSTRUCTIONS: str = tomllib.loads(Path(__file__).with_name("instructions.toml").read_text(encoding="utf-8"))[
    "text"
]
_WRITTEN_OUT = re.compile(r"\\x[0-9a-f]{2}|\ufffd")
_PIECE_CHARS = 1 << 20
_ENDED = re.compile(
    r"\A<episode instance_id=\"(?P<instance_id>[^\"]*)\" exit_status=\"(?P<exit_status>\w*)\""
    r" resolved=\"(?P<resolved>\w*)\">\n(?P<detail>[^\n]*)\n"
    r"<submission>\n(?P<submission>.*)</submission>\n</episode>\Z",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an episode ended; the last observation in full."""

    instance_id: str
    exit_status: str
    """As mini-swe-agent names it, `Submitted` or `LimitsExceeded`; or `NonZeroExit` of a harness."""
    resolved: bool
    detail: str
    """One line for a person."""
    submission: str
    """The patch that was graded; empty when none was submitted."""

    def render(self) -> str:
        resolved = str(self.resolved).lower()
        return (
            f'<episode instance_id="{_quoted(self.instance_id)}" exit_status="{self.exit_status}"'
            f' resolved="{resolved}">\n{" ".join(self.detail.split())}\n'
            f"<submission>\n{self.submission}</submission>\n</episode>"
        )


def read_ending(observation: str) -> Ending | None:
    """What `Ending.render` wrote; None for any other observation."""
    match = _ENDED.match(observation)
    if match is None:
        return None
    return Ending(
        instance_id=match["instance_id"].replace("&quot;", '"').replace("&amp;", "&"),
        exit_status=match["exit_status"],
        resolved=match["resolved"] == "true",
        detail=match["detail"],
        submission=match["submission"],
    )


def _quoted(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;")


def without_surrogates(text: str) -> str:
    """`text` with "?" for every lone surrogate, so that it can be encoded."""
    if text.isascii():
        return text
    starts = range(0, len(text), _PIECE_CHARS)
    # One call for all of a large text would hold Python's global lock, which the event loop's thread needs.
    return "".join(text[start : start + _PIECE_CHARS].encode(errors="replace").decode() for start in starts)


def holds_diff(text: str) -> bool:
    """Whether a submitted text is a patch that output shows as it is.

    One with control characters or bytes that are not UTF-8 is not: outputs have others in their place.
    """
    is_diff = text.startswith(("diff --git ", "--- ")) or "\ndiff --git " in text or "\n--- " in text
    return is_diff and not _WRITTEN_OUT.search(text)


def render_task(
    problem_statement: str, *, hints: str, instructions: bool, action_format: ActionFormat, workdir: str
) -> str:
    """The first observation: the issue, and with `instructions` how to work on it."""
    text = f"<pr_description>\n{problem_statement.strip()}\n</pr_description>"
    if hints.strip():
        text += f"\n\n<hints>\n{hints.strip()}\n</hints>"
    if instructions:
        text += "\n\n" + render_instructions(action_format, workdir)
    return text


def render_instructions(action_format: ActionFormat, workdir: str) -> str:
    """How to work on an issue and how to submit."""
    one = "one call of the tool `bash`" if action_format == "tool" else "one bash block"
    example = format_reply("grep -rn 'def parse' .", action_format, thought="THOUGHT: why this command.")
    submit = format_reply(SUBMIT_COMMAND, action_format)
    return _INSTRUCTIONS.format(workdir=workdir, one=one, example=example, submit=submit)
