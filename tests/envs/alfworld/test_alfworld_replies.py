import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.envs.alfworld.replies import EMPTY, NO_TAG, TOO_LONG, format_reply, parse_reply

commands = st.from_regex(r"[a-z]+( [a-z0-9]+){0,5}", fullmatch=True)
formats = st.sampled_from(["tag", "text"])


@given(command=commands, action_format=formats)
def test_a_reply_that_is_formatted_parses_to_its_command(command, action_format):
    if not command.startswith("action"):
        assert parse_reply(format_reply(command, action_format), action_format) == (command, "")


@pytest.mark.parametrize(
    "reply",
    [
        "<action>go to desk 1</action>",
        "<ACTION> Go  to\ndesk 1 </ACTION>",
        "<think>The mug is in <action>look</action>, no.</think><action>go to desk 1</action>",
        "<action>go to desk 1</action> and then <action>",
    ],
)
def test_the_last_complete_tag_counts(reply):
    assert parse_reply(reply, "tag") == ("go to desk 1", "")


@pytest.mark.parametrize(
    "reply",
    ["go to desk 1", "> go to desk 1", "Action: go to desk 1", "I need a mug.\nAction: Go to desk 1\n\n"],
)
def test_without_tags_the_last_line_counts(reply):
    assert parse_reply(reply, "text") == ("go to desk 1", "")


@pytest.mark.parametrize(
    ("reply", "action_format", "note"),
    [
        ("go to desk 1", "tag", NO_TAG),
        ("<action>go to desk 1", "tag", NO_TAG),
        ("</action>look<action>", "tag", NO_TAG),
        ("<action> </action>", "tag", EMPTY),
        ("", "text", EMPTY),
        ("> ", "text", EMPTY),
        (f"<action>{'a' * 300}</action>", "tag", TOO_LONG),
    ],
)
def test_what_names_no_command_is_told_apart_by_why(reply, action_format, note):
    assert parse_reply(reply, action_format) == ("", note)


@given(reply=st.text(), action_format=formats)
def test_any_text_is_answered(reply, action_format):
    command, note = parse_reply(reply, action_format)
    assert bool(command) != bool(note)


def test_a_long_hostile_reply_is_read_in_linear_time():
    started = time.process_time()
    parse_reply("<action>" * 200_000, "tag")
    parse_reply("<action>" * 200_000 + "</action>" * 200_000, "tag")
    assert time.process_time() - started < 2.0
