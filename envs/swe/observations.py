"""What the policy is shown: the issue, what a command printed, and how the episode ended."""

from __future__ import annotations

import re
from dataclasses import dataclass

from envsdk.envs.shell import SHOWN_OUTPUT
from envsdk.envs.swe.replies import ActionFormat, format_reply
from envsdk.rewards.sandbox import ExecEnd, ExecResult

SENTINEL = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""A command that succeeds and whose output starts with this line submits."""
SUBMIT_COMMAND = f"echo {SENTINEL} && git add -A && git diff --cached"

_ENDED_BY = {
    ExecEnd.TIMEOUT: "The command was killed: it took longer than {timeout_s:g} s.",
    ExecEnd.OUTPUT_LIMIT: "The command was killed: it printed too much.",
    ExecEnd.DISK_LIMIT: "The command was killed: it wrote too much.",
    ExecEnd.OUT_OF_MEMORY: "The command was killed: it used too much memory.",
}
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """How a command ended, and its output."""

    output: str
    returncode: int
    """-1 where the command was killed."""
    note: str
    """What a policy is told of why it was killed; empty where it was not."""
    elapsed_s: float
    num_bytes: int
    """Size of all of the output; `output` may lack the middle."""

    def render(self, shown: int) -> str:
        """As `render_output`."""
        num_bytes = self.num_bytes
        return render_output(self.output, self.returncode, note=self.note, num_bytes=num_bytes, shown=shown)


def command_result(result: ExecResult, timeout_s: float) -> CommandResult:
    """What became of a command that had so much time."""
    note = _ENDED_BY.get(result.reason, "").format(timeout_s=timeout_s)
    return CommandResult(
        output=result.output,
        returncode=-1 if note or result.returncode is None else result.returncode,
        note=note,
        elapsed_s=result.elapsed_s,
        num_bytes=result.total_bytes,
    )


def render_output(
    output: str, returncode: int, *, note: str = "", num_bytes: int = 0, shown: int = SHOWN_OUTPUT
) -> str:
    """What a command printed, both ends of it where it is long.

    Args:
        returncode: -1 where the command did not end by itself.
        note: What happened to it besides, such as a timeout.
        num_bytes: Of all that it printed, where `output` lacks the middle.
        shown: Characters from which on it is cut.
    """
    lines = [f"<returncode>{returncode}</returncode>"]
    if note:
        lines.append(f"<exception>{note}</exception>")
    if len(output) < shown:
        lines.append(f"<output>\n{output}</output>")
        return "\n".join(lines)
    end = shown // 2
    num_left_out = max(len(output), num_bytes) - 2 * end
    lines += [
        "<warning>\nThe output is too long to be shown in full. Ask for less (head, tail, sed -n, a narrower"
        " search), or write it to a file and look through that.\n</warning>",
        f"<output_head>\n{output[:end]}\n</output_head>",
        f"<elided_chars>\n{num_left_out} characters elided\n</elided_chars>",
        f"<output_tail>\n{output[-end:]}\n</output_tail>",
    ]
    return "\n".join(lines)


def submitted_text(output: str, returncode: int) -> str | None:
    """What follows the sentinel, when the output of a command submits; None when it does not."""
    first, _, rest = output.lstrip().partition("\n")
    return rest if returncode == 0 and first.strip() == SENTINEL else None


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
    return f"""<instructions>
You work on the repository in {workdir} by shell commands, and see what each prints before you give the next.
Change its source so that the description above is met in general, in the style of the code around it.
Hidden tests decide. Changes to tests and to configuration files are not counted.

Every reply gives a reason, and then exactly {one} with one command or several joined by && or ||:

<format_example>
{example}
</format_example>

- Each command runs in a new shell in {workdir}: `cd` and variables do not last, files do.
- There is no network and nobody answers a prompt. A command that takes too long is killed.
- Edit with sed, a heredoc or a short Python script; look at parts of long files with sed -n.

Steps that work well: find the code, reproduce the problem, fix it, run your reproduction again, think of edge
cases. When you are done, submit. This ends the episode:

{submit}
</instructions>"""
