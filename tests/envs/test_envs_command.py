"""`python -m envsdk.envs`: the list, and a person who plays at a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from envsdk.base import plugins, registry
from envsdk.contracts.env import EnvSpec
from envsdk.contracts.failures import ConfigurationError, EnvsdkError
from envsdk.envs.__main__ import main
from envsdk.envs.frozen_lake import FrozenLakeEnv
from envsdk.envs.play import play
from envsdk.envs.tic_tac_toe.env import TicTacToeEnv

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "envsdk.envs", "--play", "FrozenLake", "--seed", "3", "legend=false"]


def test_the_list_has_a_line_for_each_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(registry.known_ids())
    (line,) = [line for line in lines if line.startswith("envsdk/ALFWorld-v1")]
    assert line.split()[:5] == ["envsdk/ALFWorld-v1", "50", "Do", "a", "household"]


def test_the_list_fits_the_terminal_and_says_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    words = printed.split()
    for spec in registry.list_specs():
        assert set(spec.description.split()) <= set(words)


def test_an_environment_that_lacks_a_package_says_what_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    there = EnvSpec(id="test/There-v0", entry_point=FrozenLakeEnv, needs={"json": "pip install json"})
    lacking = EnvSpec(
        id="test/Lacking-v0",
        entry_point=FrozenLakeEnv,
        needs=dict.fromkeys(("no_such_package", "nor_this"), "pip install 'mine[all]'"),
    )
    specs = {spec.id: spec for spec in (there, lacking)}
    monkeypatch.setattr(registry, "_specs", specs)
    monkeypatch.setattr(plugins, "_entry_points", lambda group: {})
    assert main([]) == 0
    of_lacking, of_there = capsys.readouterr().out.splitlines()[1:]
    assert of_lacking.rstrip().endswith("(needs pip install 'mine[all]')")
    assert "needs" not in of_there
    assert main(["--json"]) == 0
    assert [entry["missing"] for entry in json.loads(capsys.readouterr().out)] == [
        ["pip install 'mine[all]'"],
        [],
    ]


def test_the_list_is_there_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json"]) == 0
    by_id = {entry["id"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert by_id["envsdk/Sokoban-v1"]["max_steps"] == 30


def test_a_package_that_does_not_load_hides_no_other(monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    spec = registry.spec

    def broken(id: str):
        if id == "envsdk/Sokoban-v1":
            raise ConfigurationError("entry point 'envsdk/Sokoban-v1': cannot be loaded")
        return spec(id)

    monkeypatch.setattr(registry, "spec", broken)
    assert main([]) == 0
    printed = capsys.readouterr()
    assert "envsdk/FrozenLake-v1" in printed.out
    assert "envsdk/Sokoban-v1" not in printed.out
    assert "cannot be loaded" in printed.err


def test_what_is_typed_is_played_and_colons_are_for_the_program() -> None:
    said: list[str] = []
    env = FrozenLakeEnv(size=2, p=1.0, legend=False)
    lines = [":h", ":l", "Right", ":9", ":again", ":o", ":2\n", "no move", "Right"]
    played = play(env, lines, said.append, seed=0)
    assert str(played) == "solved: reward 1 in 3 turns"
    assert said[0] == "P_\n_G"
    assert "  :2 <answer>Down</answer>" in said[2]
    assert said[3] == "_P\n_G"
    assert said[5] == "P_\n_G"
    assert said[6] in ("[oracle: <answer>Down</answer>]", "[oracle: <answer>Right</answer>]")
    assert said[7:9] == ["[<answer>Down</answer>]", "__\nPG"]
    assert "Invalid action" in said[9]
    assert said[-1] == "[reward 1]"


def test_several_roles_are_told_whose_turn_it_is_and_what_each_got() -> None:
    said: list[str] = []
    env = TicTacToeEnv(opening=0)
    played = play(env, [f"<answer>{square}</answer>" for square in (1, 2, 4, 5, 7)], said.append, seed=0)
    assert said[1::2] == [
        "[X to play]",
        "[O to play]",
        "[X to play]",
        "[O to play]",
        "[X to play]",
        "[reward X 1, O -1]",
    ]
    assert str(played) == "over: reward X 1, O -1 in 5 turns"
    assert str(play(env, [":again", "1"], said.append, seed=0)).startswith("stopped: reward X ")


def test_the_turns_of_the_spec_end_an_episode_that_does_not_end_by_itself() -> None:
    said: list[str] = []
    env = FrozenLakeEnv(size=2, p=1.0)
    played = play(env, ["Left"] * 5, said.append, seed=0, max_turns=2)
    assert str(played) == "not solved: reward 0 in 2 turns"
    assert said[-1] == "[no turns left]"


def test_an_environment_that_raises_ends_with_a_message() -> None:
    class Broken(FrozenLakeEnv):
        def step(self, action):
            raise KeyError(action)

    with pytest.raises(EnvsdkError, match=r"step\(\) raised KeyError: 'x' "):
        play(Broken(), ["x"], lambda text: None, seed=0)


def test_a_person_plays_at_a_terminal() -> None:
    env = FrozenLakeEnv(legend=False)
    env.reset(seed=3)
    terminal, theirs = pty.openpty()
    process = subprocess.Popen(COMMAND, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT)
    os.close(theirs)
    seen = ""

    def read_until(awaited: str) -> None:
        nonlocal seen
        while awaited not in seen:
            seen += os.read(terminal, 4096).decode(errors="replace")
        seen = seen.partition(awaited)[2]

    def type_line(text: str) -> None:
        os.write(terminal, f"{text}\n".encode())

    read_until("> ")
    type_line("")
    for seed in (3, 4):
        env.reset(seed=seed)
        over, turns = False, 0
        while not over:
            read_until("> ")
            reply = env.oracle()
            # The arrow to the left goes back by one character, and is none itself.
            type_line(f"{reply[:-2]}>\x1b[Dr" if turns == 0 else reply)
            over = env.step(reply)[2]
            turns += 1
        read_until(f"solved: reward 1 in {turns} turn")
        read_until("stop. ")
        type_line("n" if seed == 3 else "")
    assert process.wait() == 0
    os.close(terminal)


def test_the_end_of_the_input_stops_the_game() -> None:
    done = subprocess.run(COMMAND, input="Up\n", capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0
    assert done.stdout.endswith("stopped: reward 0 in 1 turn\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--play", "envsdk/FrozenLak-v1"], "Did you mean 'envsdk/FrozenLake-v1'"),
        (["--play", "FrozenLake", "sise=3"], "Did you mean 'size'"),
        (["size=3"], "--play ENV_ID"),
    ],
)
def test_wrong_input_is_refused_with_a_hint(arguments, message, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
