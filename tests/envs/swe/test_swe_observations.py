"""What the policy is shown."""

from hypothesis import given
from hypothesis import strategies as st

from envsdk.envs.shell.commands import SENTINEL, render_output, submitted_text
from envsdk.envs.shell.replies import parse_reply
from envsdk.envs.swe.observations import Ending, holds_diff, read_ending, render_task

DIFF = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-1\n+2\n"

endings = st.builds(
    Ending,
    instance_id=st.text(),
    exit_status=st.sampled_from(["Submitted", "LimitsExceeded"]),
    resolved=st.booleans(),
    detail=st.text().map(lambda text: " ".join(text.split())),
    submission=st.one_of(st.text(), st.just(DIFF), st.just("</submission>\n</episode>\n<submission>\n")),
)


@given(endings)
def test_an_ending_is_read_back_as_it_was_written(ending: Ending) -> None:
    assert read_ending(ending.render()) == ending


@given(st.text(), st.integers(-1, 255))
def test_no_output_of_a_command_is_taken_for_an_ending(output: str, returncode: int) -> None:
    assert read_ending(render_output(output, returncode)) is None
    assert read_ending(render_output(ENDING, returncode)) is None


ENDING = Ending(instance_id="a", exit_status="Submitted", resolved=True, detail="", submission="").render()


def test_a_short_output_is_shown_in_full() -> None:
    assert render_output("a\nb\n", 2) == "<returncode>2</returncode>\n<output>\na\nb\n</output>"


def test_a_long_output_is_shown_at_both_ends_with_what_is_left_out_counted() -> None:
    shown = render_output("h" * 6000 + "t" * 6000, 0)
    assert f"<output_head>\n{'h' * 5000}\n</output_head>" in shown
    assert f"<output_tail>\n{'t' * 5000}\n</output_tail>" in shown
    assert "2000 characters elided" in shown
    assert "990000 characters elided" in render_output("x" * 60_000, 0, num_bytes=1_000_000)


def test_ten_thousand_characters_are_too_long_and_one_less_is_not() -> None:
    assert "<output_head>" in render_output("x" * 10_000, 0)
    assert "<output_head>" not in render_output("x" * 9_999, 0)


def test_a_killed_command_is_told_from_one_that_failed() -> None:
    shown = render_output("half", -1, note="The command was killed.")
    assert shown.startswith("<returncode>-1</returncode>\n<exception>The command was killed.</exception>\n")


def test_only_the_sentinel_on_the_first_line_of_a_success_submits() -> None:
    assert submitted_text(f"{SENTINEL}\n{DIFF}", 0) == DIFF
    assert submitted_text(f"\n  {SENTINEL} \nrest", 0) == "rest"
    assert submitted_text(SENTINEL, 0) == ""
    assert submitted_text(f"{SENTINEL}\n{DIFF}", 1) is None
    assert submitted_text(f"ok\n{SENTINEL}\n", 0) is None
    assert submitted_text(f"{SENTINEL}!\n", 0) is None
    assert submitted_text("", 0) is None


def test_a_diff_with_bytes_that_an_output_cannot_show_is_not_taken_from_it() -> None:
    assert holds_diff(DIFF)
    assert holds_diff(f"warning: x\n{DIFF}")
    assert not holds_diff("I am done.\n")
    assert not holds_diff(DIFF.replace("+2", "+\\x0c2"))
    assert not holds_diff(DIFF.replace("+2", "+�"))


def test_the_first_observation_holds_the_issue_and_a_reply_that_submits() -> None:
    for action_format in ("bash", "tool"):
        shown = render_task(
            "It breaks.\n",
            hints="Look there.",
            instructions=True,
            action_format=action_format,
            workdir="/testbed",
        )
        assert shown.startswith("<pr_description>\nIt breaks.\n</pr_description>")
        assert "<hints>\nLook there.\n</hints>" in shown
        submit = shown.partition("This ends the episode:")[2].removesuffix("</instructions>")
        assert parse_reply(submit, action_format)[0].startswith(f"echo {SENTINEL}")
    assert render_task("a", hints="", instructions=False, action_format="bash", workdir="/") == (
        "<pr_description>\na\n</pr_description>"
    )
