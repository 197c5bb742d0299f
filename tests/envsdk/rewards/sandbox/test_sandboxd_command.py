"""The command `envsdk sandboxd` as a program."""

from __future__ import annotations

from pathlib import Path

import pytest

from envsdk.rewards.sandbox.sandboxd.__main__ import main


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "tokens"),
        ('[tokens.me]\ntoken = "short"', "tokens.me.token"),
        ('[tokens.me]\ntoken = "e2b_0123456789abcdef"\n[limits]\nram = 1', "limits: there is no ram"),
        ("backend = 1", "backend: must be text"),
        ("=", "sandboxd.toml"),
    ],
)
def test_a_settings_file_is_told_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, problem: str
) -> None:
    (tmp_path / "sandboxd.toml").write_text(text)
    assert main([str(tmp_path / "sandboxd.toml")]) == 2
    assert problem in capsys.readouterr().err
