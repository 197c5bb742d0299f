"""One prompt, one response, one reward."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envsdk.contracts.env import Isolation
from envsdk.contracts.failures import Boundary
from envsdk.contracts.trajectory import Task
from envsdk.envs.prompts import SPEC
from envsdk.managers.env_host import EnvBlueprint, EnvHost, EpisodeFailed
from envsdk.managers.hosts import open_host

EXAMPLE = [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]
ROWS: list[dict[str, Any]] = [
    {"id": "a", "prompt": "2+2=", "ground_truth": "4", "tag": "sums", "mistakes": ["5", "22"]},
    {
        "id": "b",
        "difficulty": "0.75",
        "messages": [*EXAMPLE, {"role": "user", "content": "3+3="}],
        "ground_truth": "6",
        "tag": "sums",
    },
    {
        "id": "c",
        "difficulty": "hard",
        "prompt": "Larger: 3 or 5?",
        "ground_truth": "5",
        "solution": "5",
        "tag": "comparisons",
    },
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    return path


def host_of(file: Path, **env_config: Any) -> EnvHost:
    config = {"files": str(file), "reward": "tests.envs.prompts.toy_rewards:SameText", **env_config}
    assert SPEC.isolation is Isolation.ASYNC
    return open_host(EnvBlueprint(spec=SPEC, env_config=config, isolation=SPEC.isolation))


async def asked(host: EnvHost, number: int) -> tuple[str, dict[str, Any]]:
    options = host.blueprint.reset_options(Task(tag="Prompts", split="train", index=number))
    return await host.reset(0, options)


async def closed(host: EnvHost) -> None:
    host.close()
    await host.closed()


async def test_a_row_is_asked_and_its_response_scored_with_everything_that_shows_why(file: Path) -> None:
    host = host_of(file)
    assert await asked(host, 0) == ("2+2=", {})
    verdict, reward, terminated, truncated, info = await host.step("5")
    assert (verdict, reward, terminated, truncated) == ("5 is wrong", 0.0, True, False)
    assert not info["success"]
    assert info["metrics"] == {"same": 0.0, "unscorable": 0.0}
    details = json.loads(info["details"])
    assert details == {
        "verdict": "5 is wrong",
        "parts": {"same": 0.0},
        "place": f"{file}:1",
        "ground_truth": "4",
        "id": "a",
        "tag": "sums",
    }
    await closed(host)


async def test_the_difficulty_of_a_row_is_a_metric_where_it_is_a_number(file: Path) -> None:
    host = host_of(file)
    found = []
    for row in range(3):
        await asked(host, row)
        *_, info = await host.step("5")
        found.append(info["metrics"].get("difficulty"))
    assert found == [None, 0.75, None]
    await closed(host)


async def test_messages_before_the_last_are_the_history(file: Path) -> None:
    host = host_of(file)
    assert await asked(host, 1) == ("3+3=", {"history": EXAMPLE})
    _, reward, _, _, info = await host.step("6")
    assert reward == 1.0
    assert info["success"]
    await closed(host)


@pytest.mark.parametrize("as_text", [False, True])
async def test_the_tools_of_a_row_are_told_to_the_chat_template(tmp_path: Path, as_text: bool) -> None:
    tools = [{"name": "buy", "parameters": {"type": "object"}}]
    rows = [{**ROWS[0], "tools": json.dumps(tools) if as_text else tools}, {**ROWS[0], "tools": "none"}]
    path = tmp_path / "tools.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    host = host_of(path)
    assert (await asked(host, 0))[1] == {"tools": [{"type": "function", "function": tools[0]}]}
    assert (await asked(host, 1))[1] == {}
    await closed(host)


async def test_tags_choose_rows_and_numbers_go_round(file: Path) -> None:
    host = host_of(file, tags=["sums"])
    seen = [(await asked(host, number))[0] for number in range(4)]
    assert seen == ["2+2=", "3+3=", "2+2=", "3+3="]
    await closed(host)


async def test_a_shuffled_epoch_asks_each_row_once_in_an_order_of_its_own(file: Path) -> None:
    host, again = (host_of(file, shuffle=True, order_seed=7) for _ in range(2))
    seen = [(await asked(host, number))[0] for number in range(30)]
    assert seen == [(await asked(again, number))[0] for number in range(30)]
    epochs = [tuple(seen[start : start + 3]) for start in range(0, 30, 3)]
    assert {frozenset(epoch) for epoch in epochs} == {frozenset(seen)}
    assert len(set(epochs)) > 1
    await closed(host)
    await closed(again)


async def test_a_judge_that_cannot_be_reached_fails_the_episode_at_the_reward(file: Path) -> None:
    host = host_of(file)
    await asked(host, 0)
    with pytest.raises(EpisodeFailed) as caught:
        await host.step("unreachable")
    assert caught.value.failure.boundary is Boundary.REWARD
    await closed(host)


async def test_the_oracle_solves_and_the_others_are_mistakes(file: Path) -> None:
    host = host_of(file)
    await asked(host, 0)
    assert (await host.oracle(), await host.legal_actions()) == ("4", ["4", "5", "22"])
    await asked(host, 2)
    assert (await host.oracle(), await host.legal_actions()) == ("5", ["5", "4", "6"])
    await closed(host)
