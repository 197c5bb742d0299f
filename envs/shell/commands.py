"""What became of a command, how it is shown, and which one submits."""

from __future__ import annotations

from dataclasses import dataclass

from envsdk.rewards.sandbox import ExecEnd, ExecResult

SHOWN_OUTPUT = 10_000
"""Characters from which on an output is cut; half as many are shown of each end."""
KEPT_OUTPUT_BYTES = 1 << 20
"""Bytes of a command's output: room for a patch that is submitted by printing it."""
SENTINEL = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""A command that succeeds and whose output starts with this line submits."""
_ENDED_BY = {
    ExecEnd.TIMEOUT: "The command was killed: it took longer than {timeout_s:g} s.",
    ExecEnd.OUTPUT_LIMIT: "The command was killed: it printed too much.",
    ExecEnd.DISK_LIMIT: "The command was killed: it wrote too much.",
    ExecEnd.OUT_OF_MEMORY: "The command was killed: it used too much memory.",
}


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
