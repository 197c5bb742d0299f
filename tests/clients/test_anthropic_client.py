"""Anthropic's own client, and Claude Code, the program."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

anthropic = pytest.importorskip("anthropic", reason="needs anthropic: make test-clients")
pytestmark = pytest.mark.clients

from policies import MODEL, Served, call, program, sampling, scripted  # noqa: E402

LOOK = {"name": "look", "input_schema": {"type": "object", "properties": {"where": {"type": "string"}}}}
ASKED: dict[str, Any] = {
    "model": MODEL, "max_tokens": 500, "messages": [{"role": "user", "content": "answer the task"}],
}  # fmt: skip
LENGTH = 1 << 18
"""Room for the prompt of Claude Code, whose words the test's tokenizer splits into bytes."""


def client_of(served: Served) -> Any:
    return anthropic.Anthropic(base_url=served.url, api_key=served.key, max_retries=0)


@pytest.mark.parametrize("streams", [False, True])
def test_a_conversation_with_thoughts_and_tools_is_one_line(folder: Path, streams: bool) -> None:
    steps = [
        "<think>\nIce is slippery.\n</think>\n\nI look." + call("look", where="up"),
        "\n" + call("look", where="down"),
        "<think>no end",
        "done",
    ]

    def ask(messages: list[Any]) -> Any:
        asked = {**ASKED, "messages": messages, "tools": [LOOK]}
        if not streams:
            return client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            return stream.get_final_message()

    with scripted(folder, steps) as served, client_of(served) as client:
        messages = list(ASKED["messages"])
        first = ask(messages)
        assert [block.type for block in first.content] == ["thinking", "text", "tool_use"]
        assert (first.content[0].thinking, first.content[1].text) == ("\nIce is slippery.\n", "\n\nI look.")
        assert (first.content[2].input, first.stop_reason) == ({"where": "up"}, "tool_use")
        for answer in (first, None):
            answer = answer or ask(messages)
            result = {"type": "tool_result", "tool_use_id": answer.content[-1].id, "content": "ice"}
            messages += [
                {"role": "assistant", "content": answer.content},
                {"role": "user", "content": [result]},
            ]
        thought = ask(messages)
        assert [block.type for block in thought.content] == ["thinking"]
        messages += [{"role": "assistant", "content": thought.content}, {"role": "user", "content": "go on"}]
        last = ask(messages)
        assert (last.content[0].text, last.stop_reason) == ("done", "end_turn")
        assert last.usage.output_tokens == len(served.replies[-1].token_ids)
        assert (len(served.replies), served.num_lines) == (4, 1)


def test_a_real_model_is_sampled_streamed_and_held_to_a_tool(folder: Path) -> None:
    with sampling(folder) as served, client_of(served) as client:
        whole = client.messages.create(**ASKED, extra_body={"temperature": 0})
        with client.messages.stream(**ASKED, extra_body={"temperature": 0}) as stream:
            streamed = stream.get_final_message()
        assert streamed.content[0].text == whole.content[0].text
        assert streamed.usage == whole.usage
        counted = client.messages.count_tokens(model=MODEL, messages=ASKED["messages"])
        assert counted.input_tokens == whole.usage.input_tokens
        forced = client.messages.create(
            **ASKED,
            tools=[{"name": "go", "input_schema": {"type": "object", "properties": {"up": {"enum": [True]}},
                                                   "required": ["up"]}}],
            tool_choice={"type": "any"},
        )  # fmt: skip
        assert (forced.content[0].name, forced.content[0].input) == ("go", {"up": True})


def test_errors_are_the_clients_own(folder: Path) -> None:
    with scripted(folder, ["Up"]) as served, client_of(served) as client:
        with pytest.raises(anthropic.NotFoundError, match="`policy` is served"):
            client.messages.create(**{**ASKED, "model": "claude-haiku-4-5"})
        source = {"type": "base64", "media_type": "image/png", "data": ""}
        shown = [{"role": "user", "content": [{"type": "image", "source": source}]}]
        with pytest.raises(anthropic.BadRequestError, match="of type `image`"):
            client.messages.create(**{**ASKED, "messages": shown})
        with (
            anthropic.Anthropic(base_url=served.url, api_key="wrong", max_retries=0) as stranger,
            pytest.raises(anthropic.AuthenticationError, match="x-api-key"),
        ):
            stranger.messages.create(**ASKED)


def test_claude_code_edits_a_folder_and_thirty_turns_are_one_line(folder: Path, tmp_path: Path) -> None:
    claude = program("claude", "@anthropic-ai/claude-code-*/claude")
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    home.mkdir()
    (work / "a.py").write_text("x = 1\n")
    path = str(work / "a.py")
    steps = [
        "<think>\nI look.\n</think>\n\nI look first.\n" + call("Read", file_path=path),
        "\n" + call("Edit", file_path=path, old_string="x = 1", new_string="x = 2"),
        call("Bash", command="exit 3", timeout=1000.0) + "\n" + call("Bash", command="echo two"),
        call("Write", file_path=str(work / "b.txt"), content="hello  \n"),
        call("Nothing", a=1),
        *(f"Step {step}." + call("Bash", command=f"echo {step} >> steps") for step in range(24)),
        "All done.",
    ]
    with scripted(folder, steps, LENGTH) as served:
        variables = {
            "ANTHROPIC_BASE_URL": served.url,
            "ANTHROPIC_AUTH_TOKEN": served.key,
            "ANTHROPIC_MODEL": MODEL,
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "HOME": str(home),
            "PATH": os.environ["PATH"],
        }
        command = [claude, "-p", "Set x to 2.", "--allowedTools", "Bash,Read,Edit,Write"]
        ran = subprocess.run(command, cwd=work, env=variables, capture_output=True, text=True, timeout=100)
        assert (ran.returncode, ran.stdout.strip()) == (0, "All done."), ran.stderr
        assert (work / "a.py").read_text() == "x = 2\n"
        assert len((work / "steps").read_text().splitlines()) == 24
        assert (len(served.replies), served.num_lines) == (30, 1)
        assert "system[].x-anthropic-billing-header" in served.ignored
