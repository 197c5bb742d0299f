"""The programs of examples/ as a person starts them: wrongly, and with Ctrl-C."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
PROGRAMS = {
    "own_trainer.py": ["agentic_async.yaml", "1"],
    "trl_grpo.py": ["model", "envsdk/FrozenLake-v1", "1"],
    "start_explorers.py": ["agentic_trainer.yaml", "agentic_explorer.yaml", "1"],
    "outside_agent.py": ["--episodes", "1"],
}
"""Each with arguments that are right."""


@pytest.fixture(autouse=True)
def _an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVSDK_ENDPOINT_TOKEN", "a token")


def ended(program: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The exit code, or the message that stands for 1."""
    if program == "trl_grpo.py" and importlib.util.find_spec("trl") is None:
        pytest.skip("needs trl: make test-datasets")
    monkeypatch.setattr(sys, "argv", [program, *arguments])
    with pytest.raises(SystemExit) as ending:
        runpy.run_path(str(EXAMPLES / program), run_name="__main__")
    return ending.value.code


def interrupted(*arguments: Any, **more: Any) -> None:
    raise KeyboardInterrupt


def test_every_program_is_known_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PROGRAMS)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_wrong_argument_is_answered_with_the_usage(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = ["--url", "127.0.0.1:8000"] if program == "outside_agent.py" else []
    for arguments in (absent, [*PROGRAMS[program][:-1], "many"]):
        assert ended(program, arguments, monkeypatch) == 2
        assert capsys.readouterr().err.startswith("usage: ")


@pytest.mark.parametrize(
    ("program", "where"),
    [
        ("own_trainer.py", "envsdk.Rollouts"),
        ("trl_grpo.py", "envsdk.LocalEngine"),
        ("outside_agent.py", "urllib.request.urlopen"),
    ],
)
def test_ctrl_c_is_answered_with_one_line(
    program: str, where: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(where, interrupted)
    assert ended(program, PROGRAMS[program], monkeypatch) == 130
    assert [line[:11] for line in capsys.readouterr().err.splitlines()] == ["interrupted"]


@pytest.mark.parametrize(
    ("program", "arguments", "said"),
    [
        ("own_trainer.py", ["absent.yaml", "1"], "error: there is no file absent.yaml"),
        ("outside_agent.py", ["--url", "http://127.0.0.1:9"], "is `envsdk serve` running there?"),
    ],
)
def test_what_is_not_there_is_named_in_one_line(
    program: str, arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = ended(program, arguments, monkeypatch)
    assert said in code
    assert "\n" not in code


def test_no_program_is_started_whose_log_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("explorer2.log").mkdir()
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("started"))
    arguments = ["agentic_trainer.yaml", "agentic_explorer.yaml", "2"]
    assert "explorer2.log" in ended("start_explorers.py", arguments, monkeypatch)
