"""`python -m envsdk.serve` as a process, played by the example's agent as another one."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from envsdk import Trajectories
from envsdk.base.store.trajectories import read_trajectories
from envsdk.config import load_config
from envsdk.contracts.trajectory import Outcome
from envsdk.replay import main as replay
from envsdk.rollouts.datasets.conversations import read_conversations
from envsdk.trainers.warm_start.tiny_policy import build_tokenizer, write_tokenizer
from envsdk.view.token_text import load_decoder, token_texts

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "scripted_replies.jsonl"
TOKEN = "a-token-that-is-long-enough"
MOCK = "actor_infer.strategy_args.strategy_name=mock"


def environment(**variables: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **variables}


@contextmanager
def serve(*arguments: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its address."""
    command = [sys.executable, "-m", "envsdk.serve", *arguments, "--port", "0"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(**variables),
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"at (http://127\.0\.0\.1:\d+)/v1", line)
        assert found, line + process.stdout.read()
        yield process, found[1]
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def lake_model(tmp_path: Path) -> Path:
    """What an engine without weights needs of a model."""
    lake = load_config("agentic_async.yaml").config.custom_envs["FrozenLake"]
    folder = tmp_path / "model"
    folder.mkdir()
    tokenizer = build_tokenizer([lake.agent_system_template, "Left Right Up Down P_OG\n <answer>Up</answer>"])
    write_tokenizer(folder, tokenizer, sequence_length=2048)
    (folder / "config.json").write_text('{"max_position_embeddings": 2048}')
    return folder


def test_an_agent_outside_leaves_trajectories_with_what_was_sampled(tmp_path: Path, lake_model: Path) -> None:
    out = tmp_path / "played"
    arguments = [str(lake_model), MOCK, "--out", str(out), "--fixed-sampling"]
    arguments.append("actor_infer.generating_args.max_new_tokens=3")
    with serve(*arguments, ENVSDK_ENDPOINT_TOKEN=TOKEN) as (process, url):
        agent = subprocess.run(
            [sys.executable, str(ROOT / "examples" / "outside_agent.py"), "--url", url, "--episodes", "3"],
            env=environment(ENVSDK_ENDPOINT_TOKEN=TOKEN),
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert agent.returncode == 0, agent.stderr
        assert "of 3 lakes" in agent.stdout
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output
        assert TOKEN not in output
    parts = sorted(out.glob("part-*.parquet"))
    assert [part.name for part in parts] == [f"part-{number:05d}.parquet" for number in range(3)]
    played = [trajectory for part in parts for trajectory in read_trajectories(part)]
    assert [trajectory.task.index for trajectory in played] == [0, 1, 2]
    lake = load_config("agentic_async.yaml").config.custom_envs["FrozenLake"]
    for trajectory in played:
        num_segments = len(trajectory.turns) if lake.context == "step" else 1
        assert len(trajectory.segments()) == num_segments, "a prompt shows what the policy was trained on"
        assert trajectory.outcome is Outcome.TERMINATED
        tokens = trajectory.tokens
        assert tokens is not None
        assert tokens.response_mask.sum() == sum(t.response_end - t.response_start for t in trajectory.turns)
        assert (tokens.behavior_logprobs[tokens.response_mask == 1] < 0).all()
    assert not any(TOKEN.encode() in path.read_bytes() for path in out.rglob("*") if path.is_file())


def test_written_replies_are_served_without_a_model(lake_model: Path) -> None:
    asked = {"model": "policy", "messages": [{"role": "user", "content": "title generator"}]}
    for model in ([], ["sequence_length=200"], [str(lake_model)]):
        with serve(*model, "--scripted", str(SCRIPT), ENVSDK_ENDPOINT_TOKEN=TOKEN) as (_, url):
            headers = {"Authorization": f"Bearer {TOKEN}"}
            answer: Any = httpx2.post(f"{url}/v1/chat/completions", json=asked, headers=headers).json()
            assert answer["choices"][0]["message"]["content"] == "A greeting"


def post(url: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    answer = httpx2.post(f"{url}{path}", json=body, headers={"Authorization": f"Bearer {TOKEN}"})
    return answer.status_code, answer.json()


def ask(url: str, session_id: str, *messages: tuple[str, str], **fields: Any) -> Any:
    given = [{"role": role, "content": content} for role, content in messages]
    body = {"model": "policy", "messages": given, **fields}
    return post(url, f"/sessions/{session_id}/v1/chat/completions", body)[1]["choices"][0]["message"]


def test_sessions_of_two_servers_are_one_data_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, out = tmp_path / "script.jsonl", tmp_path / "played"
    script.write_text("Hello.\nBye.\n")
    arguments = ["--scripted", str(script), "--out", str(out)]
    with serve(*arguments, ENVSDK_ENDPOINT_TOKEN=TOKEN) as (process, url):
        assert post(url, "/sessions", {"id": "first"})[0] == 201
        opening = [("system", "Be polite."), ("user", "Hi")]
        ask(url, "first", *opening)
        ask(url, "first", ("user", "no system prompt"))
        ask(url, "first", *opening, ("assistant", "Hello."), ("user", "I go"))
        assert post(url, "/sessions/first/end", {"reward": 1.0})[0] == 200
        assert post(url, "/sessions", {"id": "first"})[0] == 409
        assert post(url, "/sessions", {"id": "lost"})[0] == 201
        assert post(url, "/sessions", {"id": "empty"})[0] == 201
        ask(url, "lost", ("user", "Hi"))
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
        assert f"kept 1 ended session: envsdk view {out}\n" in output
        assert "1 open session with 1 reply was not kept" in output
    with serve(*arguments, ENVSDK_ENDPOINT_TOKEN=TOKEN) as (process, url):
        status, told = post(url, "/sessions", {"id": "first"})
        assert (status, told["error"]["code"]) == (409, "session_exists")
        assert "is recorded" in told["error"]["message"]
        assert post(url, "/sessions", {"id": "second"})[1]["index"] == 1
        tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
        ask(url, "second", ("user", "Hi"), tools=[tool])
        post(url, "/sessions/second/end", {})
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
        assert f"kept 1 ended session: envsdk view {out}\n" in output
        assert "not kept" not in output

    played = Trajectories.from_folder(out)
    texts = token_texts(played[0], load_decoder(out))
    assert texts is not None
    assert "".join(texts).count("Hello.") == 2  # each token once
    assert [(each.trajectory_id, each.task.index, each.group_id) for each in played] == [
        ("first", 0, 0),
        ("second", 1, 1),
    ]
    polite, plain, with_tools = [
        [(message["role"], message["content"]) for message in each] for each in played.to_messages()
    ]
    assert polite == [*opening, ("assistant", "Hello."), ("user", "I go"), ("assistant", "Bye.")]
    assert plain == [("user", "no system prompt"), ("assistant", "Hello.")]
    assert with_tools[0][0] == "system"
    assert '"name": "look"' in with_tools[0][1]
    assert [[*each.messages] for each in read_conversations([out])] == played.to_messages()

    assert replay([str(out)]) == 2
    assert "sessions of `envsdk serve` have no environment to replay" in capsys.readouterr().err
    rescore = [str(out), "--rescore", "--rewards", "builtins:len", "--out", str(tmp_path / "new")]
    assert replay(rescore) == 2
    assert "`Trajectories.save` makes one" in capsys.readouterr().err


def test_a_token_is_made_up_and_shown_once(lake_model: Path) -> None:
    with serve(str(lake_model), MOCK, ENVSDK_ENDPOINT_TOKEN="") as (process, url):
        assert process.stdout is not None
        token = process.stdout.readline().rpartition(" ")[2].strip()
        answer: Any = httpx2.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {token}"})
        assert answer.json()["data"][0]["id"] == "policy"
        assert httpx2.get(f"{url}/v1/models").status_code == 401
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "Traceback" not in output


def test_a_short_token_is_refused_before_the_model_is_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from envsdk.rollouts.play.model_server import TOKEN_VARIABLE
    from envsdk.serve import main

    monkeypatch.setenv(TOKEN_VARIABLE, "short")
    assert main(["nowhere"]) == 2
    assert "token has fewer than" in capsys.readouterr().err


def test_an_address_that_cannot_be_bound_is_named_before_the_model_is_looked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from envsdk.serve import main

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["nowhere", "--port", str(port)]) == 1
        assert f"127.0.0.1:{port}: the port is in use" in capsys.readouterr().err
    for host in ("192.0.2.1", "no host"):
        assert main(["nowhere", "--host", host]) == 1
        assert f"{host}:8000: is no address of this machine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give MODEL_OR_YAML, or --scripted FILE"),
        (["--scripted", "nowhere.jsonl"], "cannot read nowhere.jsonl"),
        (
            ["nowhere"],
            "'nowhere': it is neither a folder, a checkpoint, a run's YAML file nor",
        ),
        (["FrozenLake"], "nor a model's name (smollm2)"),
        (["smolm2"], "Did you mean 'smollm2'?"),
        (["sequence_length=2000"], "give MODEL_OR_YAML, or --scripted FILE"),
        (["--scripted", "SCRIPT", "sequence_length=many"], "sequence_length: must be a whole number"),
        (["--scripted", "SCRIPT", "sequence_length=99", "seed=1"], "and no 'seed=1'"),
        (["MODEL", "--model", "x"], "is a model already"),
        (["MODEL", "sequence_lenght=5"], "sequence_lenght"),
    ],
)
def test_wrong_arguments_are_told_in_one_line(
    arguments: list[str], message: str, lake_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from envsdk.serve import main

    given = {"MODEL": str(lake_model), "SCRIPT": str(SCRIPT)}
    assert main([given.get(each, each) for each in arguments]) == 2
    assert message in capsys.readouterr().err
