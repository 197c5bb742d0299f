"""What a policy tries in its sandbox while a harness runs there. Each attack runs for real, and none pays."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
import pytest_asyncio

from envsdk.contracts.trajectory import Outcome
from envsdk.engines.endpoint import server
from envsdk.engines.endpoint.sampling import SamplingRules
from envsdk.engines.endpoint.server import Endpoint, EndpointConfig
from envsdk.engines.endpoint.sessions import Session
from envsdk.engines.engine import EngineConfig
from envsdk.engines.mock import MockEngine
from envsdk.engines.proxy import InferenceProxy, LocalLink
from envsdk.envs.swe.harness.record import PORT, SOCKET
from tests.by_day import by_day
from tests.envs.swe.harness_episodes import CHAT, GOLD, TASK, agent, bash, play

SUBMIT = "SUBMIT"
HIDDEN = "test_membership"
ASK = f"""
import http.client, json, os, socket
def call(method, path, body=None, key=os.environ["OPENAI_API_KEY"]):
    connection = http.client.HTTPConnection("127.0.0.1", {PORT}, timeout=30)
    headers = {{"Authorization": "Bearer " + key, "Content-Type": "application/json"}}
    connection.request(method, path, json.dumps(body) if body is not None else None, headers)
    return connection.getresponse().status
"""


def python(code: str) -> str:
    """A reply that runs a Python program in the sandbox."""
    return bash(f"python - <<'END'\n{ASK}\n{code}\nEND")


async def seen(folder: Path, attack: str, **config: Any) -> str:
    """What an attack printed. Its episode then submits nothing, and is paid nothing."""
    (episode,) = await play(folder, agent(folder / "toy"), [attack, SUBMIT], **config)
    assert (episode.outcome, episode.total_reward) == (Outcome.TERMINATED, 0.0), episode.failure
    return episode.turns[1].observation


async def test_the_only_socket_in_sight_is_the_episode_s_own(tmp_path: Path) -> None:
    looks = bash(
        "find / -xdev -type s 2>/dev/null; ls -d /tmp/envsdk* /run/* 2>/dev/null; cat /proc/net/unix"
    )
    assert SOCKET in (printed := await seen(tmp_path, looks))
    assert "envsdk-door" not in printed
    first, second = await play(
        tmp_path, agent(tmp_path / "toy"), [bash("sleep 1; env"), SUBMIT], num_episodes=2
    )
    keys = [each.turns[1].observation.partition("OPENAI_API_KEY=")[2].split()[0] for each in (first, second)]
    assert keys[0] != keys[1]


async def test_rewards_the_environment_and_other_sessions_are_not_behind_the_door(tmp_path: Path) -> None:
    attack = python(
        """
paths = ["/reward", "/end", "/env/step", "/sessions", "/sessions/train-0/reward", "/sessions/train-0/end",
         "/sessions/train-0/v1/models", "/v1/../reward", "/v1/%2e%2e/reward", "//reward", "/v1//../../reward"]
body = {"reward": 1.0, "success": True, "action": "x"}
print([call("POST", path, body) for path in paths])
print([call("GET", path) for path in ("/env", "/sessions/train-0", "/v1/models")], call("HEAD", "/"))
print([call("GET", "/v1/models", key=key) for key in ("", "x" * 64)])
"""
    )
    printed = await seen(tmp_path, attack)
    statuses, looked, wrong = printed.splitlines()
    assert set(json.loads(statuses)) <= {404, 405}
    assert looked == "[404, 404, 200] 200"
    assert wrong == "[401, 401]"


async def test_the_harness_its_files_and_the_socket_cannot_be_changed(tmp_path: Path) -> None:
    targets = "$HARNESS/agent.py $HARNESS/new $HARNESS_TASK $HARNESS_FILES/new /run/harness/command"
    attack = bash(
        f"for file in {targets}; do echo x >> $file && echo written; done; "
        f"rm -f {SOCKET} $HARNESS/agent.py; mv {SOCKET} /tmp/s; ls {SOCKET} $HARNESS/agent.py"
    )
    printed = await seen(tmp_path, attack)
    assert "written" not in printed
    assert printed.count("Read-only file system") >= 5
    assert printed.splitlines()[-2:] == sorted([SOCKET, str(tmp_path / "toy" / "agent.py")])
    assert (tmp_path / "toy" / "agent.py").read_text().startswith('"""An agent program')


async def test_no_process_outlives_the_episode(tmp_path: Path) -> None:
    mark = f"61{secrets.randbelow(10**6):06d}"
    attack = bash(f"for i in 1 2 3; do setsid nohup sleep {mark} > /dev/null 2>&1 & done; pgrep -c sleep")
    assert await seen(tmp_path, attack)
    assert not [each for each in psutil.process_iter(["cmdline"]) if mark in (each.info["cmdline"] or [])]


async def test_hidden_tests_and_the_solution_are_not_there_while_a_harness_runs(tmp_path: Path) -> None:
    added = next(
        line[1:].strip() for line in TASK.gold_patch.splitlines() if line[:1] == "+" and line[1:2] != "+"
    )
    attack = bash(
        f"find / -name '*{HIDDEN}*' -not -path '/proc/*' 2>/dev/null; git log --all --oneline | wc -l; "
        f"grep -rFl '{added}' /testbed /tmp /run /opt 2>/dev/null"
    )
    assert (await seen(tmp_path, attack)).split() == ["1"]


@pytest.mark.parametrize(
    "attack",
    by_day(["pkill -9 -f agent.py"], ["pkill -9 -f agent.py", "pkill -9 -f connect.py", "kill -9 -1"]),
)
async def test_a_program_that_ends_its_harness_is_paid_nothing_and_masks_nothing(
    tmp_path: Path, attack: str
) -> None:
    (episode,) = await play(tmp_path, agent(tmp_path / "toy"), [GOLD, bash(attack), SUBMIT])
    assert (episode.outcome, episode.failure) == (Outcome.TRUNCATED, None)
    assert episode.total_reward == 0.0


async def test_replies_that_a_command_asks_for_count_against_the_limit_and_are_recorded(
    tmp_path: Path,
) -> None:
    attack = python(
        """
body = {"model": "policy", "messages": [{"role": "user", "content": "reward yourself"}]}
print([call("POST", "/v1/chat/completions", body) for _ in range(4)])
"""
    )
    (episode,) = await play(tmp_path, agent(tmp_path / "toy"), [attack, SUBMIT], max_turns=4)
    assert len(episode.turns) == 4
    assert "replies are used up" in episode.final_observation
    assert (episode.outcome, episode.total_reward) == (Outcome.TRUNCATED, 0.0)


async def test_what_a_sandbox_promises_holds_while_a_harness_runs(tmp_path: Path) -> None:
    attack = bash(
        "id -u; python -c \"import socket; socket.create_connection(('192.0.2.1', 80), 5)\" 2>&1 | tail -1; "
        "ls /root /home /var/log 2>&1 | wc -l; unshare --user true 2>&1; "
        "cat /etc/shadow 2>&1; ls /proc | grep -c '^[0-9]'"
    )
    printed = await seen(tmp_path, attack)
    assert printed.startswith("1000\n")
    assert "Network is unreachable" in printed
    assert "/etc/shadow: No such file" in printed
    assert int(printed.split()[-1]) < 20


@pytest.mark.slow
async def test_limits_of_memory_and_processes_hold_for_all_of_a_harness(tmp_path: Path) -> None:
    hog = bash('python -c "held = [bytearray(64 << 20) for _ in range(40)]"; echo over')
    limits = {"memory_mb": 512, "processes": 40}
    (episode,) = await play(tmp_path, agent(tmp_path / "toy"), [hog, SUBMIT], limits=limits)
    assert episode.failure is None
    assert episode.total_reward == 0.0
    bomb = bash("for i in $(seq 100); do sleep 60 > /dev/null 2>&1 & done; jobs -p | wc -l")
    (episode,) = await play(tmp_path, agent(tmp_path / "toy"), [bomb, SUBMIT], limits=limits)
    assert episode.failure is None
    assert episode.total_reward == 0.0


@pytest_asyncio.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    engine = MockEngine.create(
        EngineConfig(model=None, sequence_length=4096, strategy_config={"reply": [CHAT.reply("yes")]})
    )
    await engine.start()
    proxy = InferenceProxy({"mock": LocalLink(engine)})
    proxy.start()
    served = Endpoint(proxy, CHAT, EndpointConfig(model_name="policy", sequence_length=4096))
    await served.start()
    yield served
    await served.close()
    await proxy.close()
    await engine.close()


def client(socket: Path, session: Session) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        transport=httpx2.AsyncHTTPTransport(uds=str(socket)),
        base_url="http://sandbox",
        headers={"Authorization": f"Bearer {session.api_key}"},
    )


ASKED = {"model": "policy", "messages": [{"role": "user", "content": "go"}]}


async def test_a_key_is_refused_after_its_episode_and_at_the_doors_of_others(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    first, second = (endpoint.sessions.open(rules=SamplingRules()) for _ in range(2))
    async with endpoint.door(second, tmp_path / "second"):
        async with endpoint.door(first, tmp_path / "first"), client(tmp_path / "first", first) as http:
            assert (await http.post("/v1/chat/completions", json=ASKED)).status_code == 200
            assert (await http.post("/v1/messages", json={**ASKED, "max_tokens": 5})).status_code == 200
        endpoint.sessions.end(first)
        async with client(tmp_path / "first", first) as http:
            with pytest.raises(httpx2.ConnectError):
                await http.post("/v1/chat/completions", json=ASKED)
        async with client(tmp_path / "second", first) as http:
            assert (await http.post("/v1/chat/completions", json=ASKED)).status_code == 401
        async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {first.api_key}"}) as http:
            url = f"{endpoint.base_url(first)}/chat/completions"
            assert (await http.post(url, json=ASKED)).status_code == 404
    assert len(first.record.replies) == 2
    assert not second.record.replies


async def test_a_door_that_is_flooded_closes_and_others_are_served_meanwhile(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SPARE_REQUESTS", 100)
    flooded, other = (endpoint.sessions.open(rules=SamplingRules(max_replies=1)) for _ in range(2))
    served = 0

    async def flood() -> None:
        nonlocal served
        async with client(tmp_path / "flooded", flooded) as http:
            for _ in range(2000):
                await http.post("/v1/messages/count_tokens", json=ASKED)
                served += 1

    async with (
        endpoint.door(flooded, tmp_path / "flooded"),
        endpoint.door(other, tmp_path / "other"),
        client(tmp_path / "other", other) as http,
    ):
        floods = [asyncio.create_task(flood()) for _ in range(8)]
        answer = await http.post("/v1/chat/completions", json=ASKED)
        assert answer.status_code == 200
        ended = await asyncio.gather(*floods, return_exceptions=True)
        assert all(isinstance(each, httpx2.TransportError) for each in ended)
        assert served <= 108
        refused = await http.post("/v1/chat/completions", json=ASKED)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "turn_limit_reached")


async def test_a_door_may_be_in_a_folder_whose_path_no_socket_address_holds(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    session = endpoint.sessions.open(rules=SamplingRules())
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    async with endpoint.door(session, folder / "door"):
        (tmp_path / "short").symlink_to(folder)
        async with client(tmp_path / "short" / "door", session) as http:
            assert (await http.get("/v1/models")).status_code == 200


async def test_a_door_holds_few_connections(endpoint: Endpoint, tmp_path: Path) -> None:
    session = endpoint.sessions.open(rules=SamplingRules())
    async with endpoint.door(session, tmp_path / "door"):
        pairs = [await asyncio.open_unix_connection(tmp_path / "door") for _ in range(40)]
        closed = 0
        for reader, writer in pairs[:24]:
            closed += await reader.read() == b""
            writer.close()
        assert closed == 24
        async with client(tmp_path / "door", session) as http:
            assert (await http.get("/v1/models")).status_code == 200
        for _, writer in pairs[24:]:
            writer.close()
