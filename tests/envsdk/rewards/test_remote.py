"""Rewards from a server of one's own, on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.loading import load_reward
from envsdk.rewards.remote import Remote
from envsdk.rewards.reward import RewardError, Sample
from tests.envsdk.engines.chat_server import ChatServer

NAME = "envsdk.rewards.remote:Remote"


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer() as started:
        yield started


@pytest.fixture
async def remote(server: ChatServer) -> AsyncIterator[Remote]:
    settings = {"url": server.base_url + "/score", "backoff_s": 0.001, "extra_body": {"kind": "x"}}
    reward = load_reward(NAME, settings)
    assert isinstance(reward, Remote)
    yield reward
    await reward.close()


SAMPLE = Sample(
    response="12",
    messages=[{"role": "user", "content": "6 + 6?"}],
    row={"ground_truth": "twelve", "sizes": np.arange(2), "when": object},
)


async def test_the_sample_goes_out_and_the_reward_comes_back(server: ChatServer, remote: Remote) -> None:
    answer = {"value": 0.5, "verdict": "half right", "correct": False, "parts": {"style": 1}}
    server.behavior.answers = [(200, answer, {})]
    reward = await remote.score_async(SAMPLE)
    assert (reward.value, reward.verdict, reward.correct) == (0.5, "half right", False)
    assert reward.parts == {"style": 1.0}
    (body,) = server.behavior.bodies
    assert body["response"] == "12"
    assert body["messages"] == SAMPLE.messages
    assert body["row"] == {"ground_truth": "twelve", "sizes": [0, 1], "when": str(object)}
    assert body["kind"] == "x"


async def test_a_value_alone_is_a_reward(server: ChatServer, remote: Remote) -> None:
    server.behavior.answers = [(200, {"value": 1}, {})]
    assert (await remote.score_async(SAMPLE)).success


async def test_a_busy_server_is_asked_again(server: ChatServer, remote: Remote) -> None:
    server.behavior.answers = [(503, {}, {"Retry-After": "0"}), (200, {"value": 1}, {})]
    assert (await remote.score_async(SAMPLE)).value == 1


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({}, "value: Field required"),
        ({"value": "1"}, "value: Input should be a valid number"),
        ({"value": 1, "reward": 1}, "reward: Extra inputs are not permitted"),
        ({"value": 1, "parts": {"a": None}}, r"parts\.a"),
    ],
)
async def test_an_answer_that_is_no_reward_masks_the_episode(
    server: ChatServer, remote: Remote, answer: dict[str, Any], message: str
) -> None:
    server.behavior.answers = [(200, answer, {})] * 2
    with pytest.raises(RewardError, match=f"sent no reward: {message}"):
        await remote.score_async(SAMPLE)


async def test_a_response_on_which_the_server_fails_is_wrong_where_it_scores_the_reference(
    server: ChatServer, remote: Remote
) -> None:
    server.behavior.answers = [(413, {"detail": "too large"}, {}), (200, {"value": 1}, {})]
    reward = await remote.score_async(SAMPLE)
    assert (reward.value, reward.success) == (0, False)
    assert [body["response"] for body in server.behavior.bodies] == ["12", "twelve"]


@pytest.mark.parametrize(
    "settings", [{}, {"url": "ftp://h/score"}, {"url": "http://a:b@h/"}, {"url": "http://h/?key=1"}]
)
def test_bad_settings_are_told_at_the_start(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="url"):
        load_reward(NAME, settings)
