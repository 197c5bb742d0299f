"""Collecting from a server of OpenAI's protocol, over real sockets."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import tests.system.toy_envs  # noqa: F401 - registers the environments
from envsdk.base.store.shards import MANIFEST
from envsdk.base.store.trajectories import read_trajectories
from envsdk.collect import collect, main
from envsdk.evaluate import main as evaluate_main
from envsdk.replay import replay
from envsdk.rollouts.play.options import PlayOptions
from tests.envsdk.engines.chat_server import ChatServer, completion
from tests.envsdk.engines.openai_server import FakeServer
from tests.system.test_collect import episodes_in, manifest_of

pytestmark = pytest.mark.system


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer() as running:
        yield running


def at(server: ChatServer, **options: object) -> PlayOptions:
    return PlayOptions(endpoint=server.base_url, endpoint_model="tiny", **options)  # type: ignore[arg-type]


def test_a_chat_endpoint_plays_whole_conversations(tmp_path: Path, server: ChatServer) -> None:
    collection = collect(
        "toys/Fast-v1", tmp_path, num_episodes=12, policy="endpoint", options=at(server, concurrency=4),
        formats=["messages"],
    )  # fmt: skip
    episodes = episodes_in(tmp_path)
    assert collection.manifest.tally.num_successes == len(episodes) == 12
    assert all(episode.tokens is None for episode in episodes)
    longest = max(server.behavior.bodies, key=lambda body: len(body["messages"]))
    roles = [message["role"] for message in longest["messages"]]
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
    assert longest["messages"][1]["content"] == "go"
    assert longest["model"] == "tiny"
    assert (longest["temperature"], longest["top_p"]) == (1.0, 1.0)
    assert longest["max_tokens"] > 0
    model = manifest_of(tmp_path)["config"]["model"]
    assert model["endpoint_model"] == "tiny"
    assert server.base_url not in (tmp_path / MANIFEST).read_text()
    assert replay(tmp_path).difference is None


def test_the_seed_of_a_request_depends_on_the_turn_and_not_on_the_order(
    tmp_path: Path, server: ChatServer
) -> None:
    def seeds(out: Path, concurrency: int) -> set[int]:
        server.behavior.bodies.clear()
        collect(
            "toys/Fast-v1",
            out,
            num_episodes=6,
            policy="endpoint",
            options=at(server, concurrency=concurrency),
        )
        found = [body["seed"] for body in server.behavior.bodies]
        assert len(set(found)) == len(found)
        return set(found)

    assert seeds(tmp_path / "one", 1) == seeds(tmp_path / "many", 6)
    # Small enough for every server.
    assert all(0 <= seed < 2**31 for seed in seeds(tmp_path / "again", 2))


def test_a_busy_server_is_asked_again_and_one_that_refuses_is_data(
    tmp_path: Path, server: ChatServer
) -> None:
    server.behavior.answers += [
        (429, {"error": {"message": "slow down"}}, {"Retry-After": "0.01"}),
        (503, {"error": {"message": "busy"}}, {}),
    ]
    first = collect("toys/Fast-v1", tmp_path / "busy", num_episodes=2, policy="endpoint",
                    options=at(server, concurrency=1))  # fmt: skip
    assert first.manifest.tally.num_failed == 0
    server.behavior.answers += [
        (400, {"error": {"message": "context too long"}}, {}),
        (200, completion(None), {}),
        (200, completion("go", finish_reason="content_filter"), {}),
        (200, {"unexpected": True}, {}),
    ]
    second = collect("toys/Fast-v1", tmp_path / "refuses", num_episodes=6, policy="endpoint",
                     options=at(server, concurrency=1))  # fmt: skip
    tally = second.manifest.tally
    assert tally.failures == {"engine/reply_refused": 4}
    messages = [t.failure.message for t in episodes_in(tmp_path / "refuses") if t.failure is not None]
    for expected in ("context too long", "has no content", "`content_filter`", "no chat completion"):
        assert any(expected in message for message in messages), messages


def test_a_chat_endpoint_is_evaluated(
    tmp_path: Path, server: ChatServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a log of another test's server at the same port is none of this one's
    file = tmp_path / "result.json"
    arguments = ["toys/Fast-v1", "-n", "6", "--policy", "endpoint", "--endpoint-model", "tiny"]
    assert evaluate_main([*arguments, "--endpoint", server.base_url, "--greedy", "--json", str(file)]) == 0
    assert json.loads(file.read_text())["total"]["successes"] == 6
    assert {body["temperature"] for body in server.behavior.bodies} == {0.0}
    assert evaluate_main(arguments) == 2
    assert "--policy endpoint needs --endpoint URL" in capsys.readouterr().err


def test_no_more_requests_are_open_than_was_said(tmp_path: Path, server: ChatServer) -> None:
    open_now, most, lock = 0, 0, threading.Lock()
    gathered = threading.Barrier(3)

    def reply(messages: list[dict[str, str]]) -> str:
        nonlocal open_now, most
        with lock:
            open_now += 1
            most = max(most, open_now)
        # Three must be there at once, or this breaks.
        gathered.wait(timeout=120)
        with lock:
            open_now -= 1
        return "go"

    server.behavior.reply = reply
    # Each of the three plays as many turns: their requests come in threes.
    collect("toys/Even-v1", tmp_path, num_episodes=6, policy="endpoint", options=at(server, concurrency=3))
    assert most == 3


def test_the_key_and_further_fields_are_sent_and_the_key_is_kept_nowhere(
    tmp_path: Path, server: ChatServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret")
    server.behavior.api_key = "sk-secret"
    arguments = [
        *("toys/Fast-v1", "--out", str(tmp_path), "-n", "3", "--policy", "endpoint"),
        *("--endpoint", server.base_url, "--endpoint-model", "tiny", "--api-key-env", "MY_KEY"),
        *("--requests-per-minute", "60000"),
        *("--endpoint-body", '{"seed": null, "reasoning_effort": "low"}'),
        "actor_infer.generating_args.temperature=0.7",
    ]  # fmt: skip
    assert main(arguments) == 0, capsys.readouterr().err
    body = server.behavior.bodies[0]
    assert "seed" not in body
    assert body["reasoning_effort"] == "low"
    assert body["temperature"] == 0.7
    told = capsys.readouterr()
    for text in (told.out, told.err, *(p.read_bytes().decode(errors="replace") for p in tmp_path.iterdir())):
        assert "sk-secret" not in text
    monkeypatch.setenv("MY_KEY", "wrong")
    arguments[2] = str(tmp_path / "other")
    assert main(arguments) == 1
    assert "bad key" in capsys.readouterr().err


def test_a_server_that_returns_token_ids_gives_a_collection_with_tokens(
    tmp_path: Path, tokenizer_folder: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tokenizer_folder, model)
    (model / "config.json").write_text('{"max_position_embeddings": 512}')
    with FakeServer() as server:
        collect(
            "toys/Fast-v1", tmp_path / "out", num_episodes=4, policy="endpoint", model=model,
            options=PlayOptions(endpoint=server.base_url, endpoint_model="tiny", concurrency=2),
            overrides=["actor_infer.generating_args.max_new_tokens=4"],
        )  # fmt: skip
        assert server.behavior.bodies[-1]["model"] == "tiny"
    episodes = read_trajectories(tmp_path / "out" / "part-00000.parquet")
    assert all(episode.tokens is not None and len(episode.tokens) for episode in episodes)
    described = manifest_of(tmp_path / "out")["config"]["model"]
    assert described["engine"] == "openai"
    assert described["settings"]["model"] == "tiny"
    assert re.fullmatch(r"[0-9a-f]{32}", described["content"])
