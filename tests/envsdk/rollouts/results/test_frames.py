from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.prompts import AgentPrompts, TagPrompts
from envsdk.contracts.trajectory import Outcome, Trajectory
from envsdk.rollouts.results.frames import training_rows
from envsdk.rollouts.results.trajectories import Trajectories
from tests.envsdk.rollouts.data_sets.episodes import episode
from tests.envsdk.rollouts.results.sampled import sampled

SHOWN = TagPrompts(prompts=AgentPrompts(system="Walk."), max_turns=5)
BROKEN = episode("a", outcome=Outcome.FAILED, index=1)


def told(*replies: str, **settings: object) -> Trajectory:
    return replace(episode(*replies, **settings), shown=SHOWN)  # type: ignore[arg-type]


def test_a_row_per_episode_has_no_score_where_it_failed() -> None:
    table = Trajectories([episode("a", "b"), BROKEN, sampled(version=3, index=2)]).to_frame("arrow")
    rows = table.to_pylist()
    assert [row["total_reward"] for row in rows] == [1.0, None, 1.0]
    assert [row["success"] for row in rows] == [True, None, True]
    assert [row["num_turns"] for row in rows] == [2, 1, 1]
    assert [row["num_sampled_tokens"] for row in rows] == [None, None, 1]
    assert [row["oldest_version"] for row in rows] == [None, None, 3]
    assert [row["group"] for row in rows] == [0, 1, 2]
    assert rows[1]["failure"] == str(BROKEN.failure)
    assert rows[0]["failure"] is None


def test_a_row_per_turn_has_a_column_for_each_metric() -> None:
    first = episode("a", "b")
    counted = replace(first, turns=[replace(first.turns[0], metrics={"valid": 1.0}), first.turns[1]])
    table = Trajectories([counted, BROKEN]).to_frame("arrow", per="turn")
    rows = table.to_pylist()
    assert [(row["index"], row["turn"], row["reply"]) for row in rows] == [
        (0, 0, "a"),
        (0, 1, "b"),
        (1, 0, "a"),
    ]
    assert [row["metrics.valid"] for row in rows] == [1.0, None, None]
    assert [row["group"] for row in rows] == [0, 0, 1]


@pytest.mark.parametrize("per", ["episode", "turn"])
def test_no_episodes_are_a_table_without_rows_and_with_all_columns(per: str) -> None:
    empty = Trajectories().to_frame("arrow", per=per)  # type: ignore[arg-type]
    full = Trajectories([episode("a")]).to_frame("arrow", per=per)  # type: ignore[arg-type]
    assert empty.num_rows == 0
    assert empty.schema == full.schema
    assert isinstance(empty, pa.Table)


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envsdk.base.settings.extras.find_spec", lambda name: None)
    with pytest.raises(
        ConfigurationError, match=r"pandas, not installed here: pip install 'envsdk\[pandas\]'"
    ):
        Trajectories().to_frame()
    with pytest.raises(ConfigurationError, match=r"pip install 'envsdk\[datasets\]'"):
        Trajectories().to_dataset()
    with pytest.raises(ConfigurationError, match="library: must be one of pandas, arrow"):
        Trajectories().to_frame("polars")  # type: ignore[arg-type]


def test_a_row_to_learn_from_parts_the_prompt_from_what_follows() -> None:
    (row,) = training_rows([told("a", "b", rewards=(0.25, 0.5)), told(), BROKEN], [0, 1, 2])
    assert [message["content"] for message in row["prompt"]] == ["Walk.", "start"]
    assert [message["role"] for message in row["completion"]] == ["assistant", "user", "assistant"]
    assert row["messages"] == row["prompt"] + row["completion"]
    assert (row["reward"], row["group"], row["tools"]) == (0.75, 0, None)


def test_examples_in_the_history_belong_to_the_prompt() -> None:
    shown = told("a")
    details = '{"history": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]}'
    (row,) = training_rows([replace(shown, turns=[replace(shown.turns[0], details=details)])], [0])
    assert [message["content"] for message in row["prompt"]] == ["Walk.", "1", "2", "start"]
    assert [message["content"] for message in row["completion"]] == ["a"]


def test_a_reply_that_is_not_to_be_learned_says_so() -> None:
    shown = told('<tool_call>{"name": "look", "arguments": {}}</tool_call>', "b")
    slip = replace(shown, turns=[replace(shown.turns[0], details='{"reply_learned": false}'), shown.turns[1]])
    for tool_calls in (False, True):
        (conversation,) = Trajectories([slip]).to_messages(tool_calls=tool_calls)
        replies = [each.get("weight") for each in conversation if each["role"] == "assistant"]
        assert replies == [0, None], tool_calls
    (row,) = training_rows([slip], [0])
    assert row["masked_replies"] == [0]


def test_messages_of_all_episodes_with_calls_taken_out() -> None:
    call = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    trajectories = Trajectories([told(call, "done"), told("a")])
    as_text, as_calls = trajectories.to_messages(), trajectories.to_messages(tool_calls=True)
    assert as_text[0][2] == {"role": "assistant", "content": call}
    assert as_calls[0][2]["tool_calls"][0]["function"]["name"] == "look"
    assert as_calls[0][3]["role"] == "tool"
    assert as_calls[1] == as_text[1]
