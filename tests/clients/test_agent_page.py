"""docs/agent-of-your-own.md, followed with mini-swe-agent; the last step plays without training."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import envsdk

pytest.importorskip("minisweagent", reason="needs mini-swe-agent: make test-clients")
pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]

PAGE = Path(__file__).parents[2] / "docs" / "agent-of-your-own.md"
DEADLINE_S = 600


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_its_steps_lead_from_a_recorded_session_to_episodes_of_a_tiny_policy(tmp_path: Path) -> None:
    install, serve, play, fine_tune, train = blocks("bash")
    tasks, agents = blocks("python")
    (replies,), (settings,) = blocks("json"), blocks("yaml")
    for name, text in (("replies.jsonl", replies), ("agents.py", agents), ("agent.yaml", settings)):
        (tmp_path / name).write_text(text)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    exports = "\n".join(line for line in install.splitlines() if line.startswith("export"))
    waiting = f"until curl -s 127.0.0.1:{port}; do sleep 0.2; done"
    serve = serve.replace(" &", f" --port {port} &").replace("envsdk ", f"{sys.executable} -m envsdk ")
    collect = "envsdk collect agent.yaml --policy model --episodes 2 --out played\n"
    steps = [exports, serve, waiting, play.replace(":8000", f":{port}"), fine_tune + collect]
    script = "set -em\n" + "\n".join(steps).replace("\nenvsdk ", f"\n{sys.executable} -m envsdk ")
    paths = [str(Path(sys.executable).parent), os.environ["PATH"]]
    subprocess.run([sys.executable, "-c", tasks], cwd=tmp_path, check=True)
    ended = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={
            **os.environ,
            "HOME": str(tmp_path),
            "PATH": os.pathsep.join(paths),
            "PYTHONPATH": os.pathsep.join([".", *filter(None, [os.environ.get("PYTHONPATH")])]),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "envsdk train agent.yaml" in train
    (session,) = envsdk.Trajectories.from_folder(tmp_path / "demos")
    assert (len(session.turns), session.success, session.total_reward) == (2, True, 1.0)
    played = envsdk.Trajectories.from_folder(tmp_path / "played")
    assert [episode.failure for episode in played] == [None, None]
    assert all(turn.reply.startswith("<tool_call>") for episode in played for turn in episode.turns)
