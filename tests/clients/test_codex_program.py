"""Codex, over Responses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from policies import program
from scripted_programs import Session, git, playing, reply

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

CONFIG = """
model = "{model}"
model_provider = "envsdk"

[model_providers.envsdk]
name = "envsdk"
base_url = "{session.base_url}"
env_key = "ENVSDK_KEY"
wire_api = "responses"
supports_websockets = {websockets}
"""


@pytest.fixture
def codex() -> str:
    return str(program("codex", "@openai/codex/bin/codex.js"))


def play(
    codex: str, session: Session, repository: Path, *, model: str = "policy", websockets: bool = False
) -> str:
    home = repository.parent / "codex"
    home.mkdir()
    config = CONFIG.format(model=model, session=session, websockets=str(websockets).lower())
    (home / "config.toml").write_text(config)
    command = ["node", codex, "exec", "--dangerously-bypass-approvals-and-sandbox", "Mend the sum."]
    return session.run(command, repository, CODEX_HOME=str(home), ENVSDK_KEY=session.key)


def shell(command: str) -> dict[str, Any]:
    return {"cmd": command}


def test_thirty_turns_are_one_line(codex: str, tmp_path: Path, repository: Path) -> None:
    looks = [reply("<think>Hm.</think>\n\n", exec_command=shell("git status --short")) for _ in range(27)]
    replies = [
        *looks,
        reply("I mend it.", exec_command=shell("sed -i 's/a - b/a + b/' sums.py")),
        reply(exec_command=shell("git commit --quiet --all --message Mend")),
        reply("<think>Well.</think>It adds now."),
    ]
    with playing(tmp_path / "script.jsonl", replies) as session:
        assert "It adds now." in play(codex, session, repository)
        assert session.end() == [30]
    assert "+    return a + b" in git(repository, "show", "HEAD")


def test_it_edits_with_its_tool_of_free_form_and_falls_back_from_a_websocket(
    codex: str, tmp_path: Path, repository: Path
) -> None:
    lines = ["*** Begin Patch", "*** Update File: sums.py", "@@", " def add(a, b):", "-    return a - b",
             "+    return a + b", "*** End Patch"]  # fmt: skip
    replies = [reply("I mend it.", apply_patch={"input": "\n".join(lines)}), reply("It adds now.")]
    model = "gpt-5.5"  # one that Codex gives the tool to
    with playing(tmp_path / "script.jsonl", replies, model=model) as session:
        assert "It adds now." in play(codex, session, repository, model=model, websockets=True)
        assert session.end() == [2]
    assert "+    return a + b" in git(repository, "diff")
