"""OpenCode, over chat completions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from policies import program
from scripted_programs import git, playing, reply

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]


@pytest.fixture
def opencode() -> str:
    return str(program("opencode", "opencode-linux-*/bin/opencode"))


def test_thirty_turns_are_one_line_and_its_title_another(
    opencode: str, tmp_path: Path, repository: Path
) -> None:
    edit = {"filePath": str(repository / "sums.py"), "oldString": "a - b", "newString": "a + b"}
    look = {"command": "git status --short", "description": "Looks"}
    commit = {"command": "git commit --quiet --all --message Mend", "description": "Commits"}
    replies = [
        {"match": "You are a title generator", "content": "A sum"},
        reply("I read it.", read={"filePath": edit["filePath"]}),
        *[reply(bash=look) for _ in range(26)],
        reply("I mend it.", edit=edit),
        reply(bash=commit),
        reply("It adds now."),
    ]
    with playing(tmp_path / "script.jsonl", replies) as session:
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": session.base_url, "apiKey": session.key},
            "models": {"policy": {}},
        }
        config = {"provider": {"envsdk": provider}, "model": "envsdk/policy", "permission": "allow"}
        file = tmp_path / "opencode.json"
        file.write_text(json.dumps(config))
        printed = session.run(
            [opencode, "run", "Mend the sum."],
            repository,
            OPENCODE_CONFIG=str(file),
            OPENCODE_DISABLE_MODELS_FETCH="1",
            OPENCODE_DISABLE_AUTOUPDATE="1",
        )
        assert "It adds now." in printed
        assert session.end() == [30, 1]
    assert "+    return a + b" in git(repository, "show", "HEAD")
