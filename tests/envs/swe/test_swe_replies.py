"""Which replies hold a command."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from envsdk.envs.shell.replies import ACTION_FORMATS, format_reply, parse_reply

commands = st.text(min_size=1).map(str.strip).filter(lambda text: text and "\n```" not in text)


@given(commands, st.text().filter(lambda text: "```" not in text))
@example("cat <<'EOF' > a.md\n x ```bash\n y\nEOF", "")
def test_a_bash_block_is_read_whatever_stands_before_it(command: str, thought: str) -> None:
    assert parse_reply(format_reply(command, "bash", thought=thought), "bash") == (command, "")


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1).map(str.strip).filter(bool))
def test_a_tool_call_is_read(command: str) -> None:
    reply = format_reply(command, "tool", thought="I look.")
    if "</tool_call>" not in command:
        assert parse_reply(reply, "tool") == (command, "")


@pytest.mark.parametrize(
    ("reply", "num_found"),
    [
        ("", 0),
        ("ls", 0),
        ("```\nls\n```", 0),
        ("```bashrc\nls\n```", 0),
        ("```bash ls```", 0),
        ("```bash\nls", 0),
        ("```bash\nls```", 0),
        ("```bash\n\n```", 0),
        ("```bash\n```", 0),
        ("```bash\nls\n```\nand\n```bash\npwd\n```", 2),
        ("```bash\nls\n```" * 3, 3),
    ],
)
def test_a_reply_without_exactly_one_block_is_an_error_that_counts_them(reply: str, num_found: int) -> None:
    command, note = parse_reply(reply, "bash")
    assert command == ""
    assert f"this one holds {num_found}." in note
    assert "```bash" in note


@pytest.mark.parametrize(
    ("reply", "command"),
    [
        ("```bash \t\nls\n```", "ls"),
        ("x ```bash\n\n\n  ls -l \n\n```", "ls -l"),
        ("```bash\nls\n``````", "ls"),
        ("```python\nx\n```\n```bash\nls\n```", "ls"),
        ("```bash\nls\r\n```", "ls"),
    ],
)
def test_blanks_around_a_command_and_other_blocks_do_not_matter(reply: str, command: str) -> None:
    assert parse_reply(reply, "bash") == (command, "")


@pytest.mark.parametrize(
    "reply",
    [
        "```bash\nls\n```",
        '<tool_call>\n{"name": "python", "arguments": {"command": "ls"}}\n</tool_call>',
        '<tool_call>\n{"name": "bash", "arguments": {"cmd": "ls"}}\n</tool_call>',
        '<tool_call>\n{"name": "bash", "arguments": {"command": ["ls"]}}\n</tool_call>',
        '<tool_call>\n{"name": "bash", "arguments": {"command": " "}}\n</tool_call>',
        '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}',
    ],
)
def test_a_reply_without_one_call_of_bash_is_an_error(reply: str) -> None:
    assert parse_reply(reply, "tool")[0] == ""
    assert "<tool_call>" in parse_reply(reply, "tool")[1]


@given(st.text(), st.sampled_from(ACTION_FORMATS))
def test_any_reply_gives_a_command_or_a_note(reply: str, action_format) -> None:
    command, note = parse_reply(reply, action_format)
    assert bool(command) != bool(note)
