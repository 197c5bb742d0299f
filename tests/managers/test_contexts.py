"""What a prompt shows: all turns, the last ones, or a summary; and what becomes of it when it is learned."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from envsdk.collect import collect
from envsdk.contracts.failures import Boundary
from envsdk.contracts.policy import Policy, Reply, TurnContext
from envsdk.contracts.prompts import SUMMARY
from envsdk.contracts.trajectory import Outcome, Trajectory
from envsdk.managers.traj_env_manager import TagSetup, TrajEnvManager
from envsdk.replay import replay
from envsdk.rollouts.datasets.conversations import read_conversations
from envsdk.rollouts.datasets.reading import open_dataset
from envsdk.trainers.warm_start.tiny_policy import build_tokenizer, write_tokenizer
from tests.managers import lake_agents
from tests.managers.test_agent_env_manager import CHAT, REPLIES, play, setup
from tests.managers.test_traj_env_manager import play as play_with

WHOLE = {"reply": REPLIES[:3]}
"""Replies that end with the token that ends a turn, as templates write them."""
ASKED = "What do you remember?"


async def played(*, num_turns: int = 6, **changes: Any) -> tuple[TagSetup, Trajectory]:
    tag_setup = setup(env_config={"num_turns": num_turns}, compact_prompt=ASKED, **changes)
    (trajectory,) = await play(TrajEnvManager, tag_setup, script=WHOLE)
    assert trajectory.outcome is Outcome.TERMINATED
    assert trajectory.total_reward == 1.0
    return tag_setup, replace(trajectory, shown=tag_setup.shown)


CONTEXTS = [{}, {"window": 1}, {"window": 2}, {"window": 3}, {"compact_at": 60}, {"compact_at": 1}]


@pytest.mark.parametrize("context", CONTEXTS)
async def test_the_tokens_of_a_segment_are_those_of_its_messages_and_each_reply_is_learned_once(
    context: dict[str, int],
) -> None:
    _, trajectory = await played(with_state_hashes=True, **context)
    assert trajectory.tokens is not None
    num_learned = 0
    for segment in trajectory.segments():
        messages = trajectory.to_messages(segment)
        assert segment.tokens is not None
        assert segment.tokens.ids.tolist() == CHAT.encode(CHAT.render(messages, add_generation_prompt=False))
        num_learned += int(segment.tokens.response_mask.sum())
    assert num_learned == sum(turn.response_end - turn.response_start for turn in trajectory.turns)
    for turn in trajectory.turns:
        ids = trajectory.tokens.ids[turn.response_start : turn.response_end].tolist()
        assert turn.reply == CHAT.decode(ids)
        assert turn.state_hash is not None
    assert len([turn for turn in trajectory.turns if turn.role != SUMMARY]) == 6


@pytest.mark.parametrize("window", [1, 2, 3])
async def test_a_window_shows_the_last_turns_with_their_numbers(window: int) -> None:
    _, trajectory = await played(window=window)
    prompts = []
    for segment in trajectory.segments():
        users = [each["content"] for each in trajectory.to_messages(segment) if each["role"] == "user"]
        own = len(segment.turns)
        # A segment of several turns is the first one: its prompts show what there is.
        prompts += [users[: len(users) - own + 1 + turn] for turn in range(own)]
    assert [len(users) for users in prompts] == [min(window, turn + 1) for turn in range(6)]
    for turn, users in enumerate(prompts):
        numbers = range(max(0, turn - window + 1), turn + 1)
        assert [user.split(":")[0] for user in users] == [f"{n + 1} of {10 - n}" for n in numbers]
    assert [turn.follows for turn in trajectory.turns] == [None] * window + [-1] * (6 - window)


async def test_a_summary_is_asked_for_at_the_mark_and_begins_the_next_segment() -> None:
    _, trajectory = await played(compact_at=60)
    lengths = [len(segment.tokens or ()) for segment in trajectory.segments()]
    assert len(lengths) > 1
    for number, turn in enumerate(trajectory.turns[:-1]):
        if turn.role == SUMMARY:
            assert (turn.observation, turn.reward) == (ASKED, 0.0)
            assert trajectory.turns[number + 1].follows == -1
    *before, _ = trajectory.segments()
    assert all(segment.role == SUMMARY for segment in before)
    second = trajectory.to_messages(trajectory.segments()[1])
    summary = before[0].turns[-1].reply
    assert [each["content"] for each in second[:3]] == ["You walk.", ASKED, summary]
    # The number of the step, not of the turn.
    step = sum(turn.role != SUMMARY for turn in before[0].turns)
    assert second[3]["content"].startswith(f"{step + 1} of {10 - step}:")


class Reader(Policy):
    """Replies with what a chat endpoint is sent, and with the number of turns that there were."""

    name = "reader"

    def __init__(self, tag_setup: TagSetup) -> None:
        self._setup = tag_setup

    async def act(self, turn: TurnContext) -> Reply:
        contents = [each["content"] for each in self._setup.shown.asked(turn)]
        return Reply(text=f"{len(turn.turns)}|" + "|".join(each.split(" turn ")[-1] for each in contents[1:]))


async def test_a_policy_that_writes_text_is_shown_the_window_too_and_knows_every_turn() -> None:
    tag_setup = setup(env_config={"num_turns": 4}, window=2)
    (trajectory,) = await play_with(tag_setup, Reader(tag_setup))
    replies = [turn.reply for turn in trajectory.turns]
    assert replies[0] == "0|0"
    for turn in range(1, 4):
        assert replies[turn] == f"{turn}|{turn - 1}|{replies[turn - 1]}|{turn}"


async def test_what_does_not_fit_one_sequence_is_played_to_its_end_with_a_window_or_summaries() -> None:
    long = {"env_config": {"num_turns": 9}}
    (cut,) = await play(TrajEnvManager, setup(**long), script=WHOLE, sequence_length=130)
    assert cut.outcome is Outcome.TRUNCATED
    for context in ({"window": 2}, {"compact_at": 60, "compact_prompt": ASKED}):
        (whole,) = await play(TrajEnvManager, setup(**long, **context), script=WHOLE, sequence_length=130)
        assert whole.outcome is Outcome.TERMINATED
        assert max(len(segment.tokens or ()) for segment in whole.segments()) <= 130


@pytest.mark.parametrize("mark", [100, 140, 190])
async def test_a_summary_is_asked_for_early_where_it_would_not_fit_after_the_next_turn(mark: int) -> None:
    long = {"env_config": {"num_turns": 9}, "compact_prompt": f"{ASKED} {ASKED}"}
    (whole,) = await play(TrajEnvManager, setup(**long, compact_at=mark), script=WHOLE, sequence_length=200)
    assert whole.outcome is Outcome.TERMINATED
    *before, _ = whole.segments()
    assert before
    for segment in before:
        assert segment.role == SUMMARY
        assert len(segment.tokens or ()) <= 200


@pytest.mark.parametrize("sequence_length", range(115, 200, 6))
async def test_an_episode_with_summaries_ends_early_only_where_neither_turn_nor_summary_fits(
    sequence_length: int,
) -> None:
    tag_setup = setup(env_config={"num_turns": 9}, compact_at=60, compact_prompt=ASKED)
    (played,) = await play(TrajEnvManager, tag_setup, script=WHOLE, sequence_length=sequence_length)
    assert played.failure is None
    if played.outcome is Outcome.TRUNCATED:
        *_, last = played.segments()
        ends = [0, *(turn.response_end for turn in last.turns)]
        longest = max(after - before for before, after in pairwise(ends[1:])) + 8
        assert len(last.tokens or ()) > sequence_length - longest


async def test_a_compact_prompt_that_never_fits_is_refused_with_the_numbers() -> None:
    tag_setup = setup(env_config={"num_turns": 9}, compact_at=60, compact_prompt=ASKED * 9)
    (failed,) = await play(TrajEnvManager, tag_setup, script=WHOLE, sequence_length=130)
    assert failed.failure is not None
    assert failed.failure.boundary is Boundary.CONFIGURATION
    assert "sequence_length=130 leaves no room for compact_prompt" in failed.failure.message
    least = int(failed.failure.message.split("at least ")[1].split()[0])
    (whole,) = await play(TrajEnvManager, tag_setup, script=WHOLE, sequence_length=least + 30)
    assert whole.outcome is Outcome.TERMINATED


@pytest.mark.parametrize("manager", [TrajEnvManager, lake_agents.TurnByTurn])
async def test_an_episode_with_enough_tokens_is_truncated(manager: type[TrajEnvManager]) -> None:
    (whole,) = await play(manager, script=WHOLE)
    assert whole.tokens is not None
    limit = whole.turns[1].response_end
    (cut,) = await play(manager, setup(max_episode_tokens=limit), script=WHOLE)
    assert cut.outcome is Outcome.TRUNCATED
    assert len(cut.turns) == 2


async def test_an_agent_decides_by_itself_what_its_prompts_show() -> None:
    with pytest.raises(Exception, match="context: TurnByTurn runs an agent"):
        await play(lake_agents.TurnByTurn, setup(window=2))


@pytest.mark.parametrize(
    "context",
    [["context=window", "context_window=2"], ["context=compact", "compact_at=100"], ["context=step"]],
)
def test_a_collection_of_short_contexts_is_replayed_and_learned_from(
    context: list[str], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    write_tokenizer(model, build_tokenizer(["You walk. Up"]), sequence_length=1024)
    (model / "config.json").write_text("{}")
    collect(
        "agentic_async.yaml",
        tmp_path / "out",
        num_episodes=4,
        policy="model",
        tags=["FrozenLake"],
        model=model,
        overrides=[
            *(f"custom_envs.FrozenLake.{each}" for each in context),
            "actor_infer.strategy_args.strategy_name=mock",
            "sequence_length=1024",
        ],
        formats=["messages", "atif"],
    )
    dataset = open_dataset(tmp_path / "out")
    episodes = list(dataset.episodes())
    assert any(len(episode.segments()) > 1 for episode in episodes)
    result = replay(tmp_path / "out")
    assert (result.num_episodes, result.difference) == (4, None)
    num_replies = num_learned = 0
    for conversation in read_conversations([tmp_path / "out"]):
        said = sum(message["role"] == "assistant" for message in conversation.messages)
        num_learned += said - conversation.num_given_replies
    num_replies = sum(len(episode.turns) for episode in episodes)
    assert num_learned == num_replies
    again = list(read_conversations([tmp_path / "out" / "messages"]))
    assert [each.num_given_replies for each in again] == [
        each.num_given_replies for each in read_conversations([tmp_path / "out"])
    ]
