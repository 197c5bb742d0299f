from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.collect import collect
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.players import Players
from envsdk.contracts.prompts import AgentPrompts, TagPrompts
from envsdk.contracts.support import Support
from envsdk.contracts.trajectory import Trajectory
from envsdk.rollouts.datasets.atif import read_atif
from envsdk.rollouts.datasets.atif_documents import from_document, to_document
from envsdk.rollouts.results.trajectories import Trajectories
from tests.envsdk.contracts.trees import Node, planted, trees
from tests.envsdk.rollouts.data_sets.episodes import episode
from tests.envsdk.rollouts.results.sampled import sampled, sampled_episodes
from tests.managers.test_players import TokenPolicy, play, setup_of

CALL = '<tool_call>\n{"name": "look", "arguments": {"far": true}}\n</tool_call>'
HISTORY = '{"history": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]}'
SHOWN = TagPrompts(prompts=AgentPrompts(system="Walk."), max_turns=5, max_new_tokens=8)
TEMPLATED = TagPrompts(prompts=AgentPrompts(template="{actions_left}: {observation}"), max_turns=5)


def same(one: Trajectory, other: Trajectory) -> bool:
    """Fields that are stored, and what they were shown with."""
    tokens = [each.tokens for each in (one, other)]
    are_equal = tokens[0] is tokens[1] is None or all(
        np.array_equal(getattr(tokens[0], name), getattr(tokens[1], name))
        for name in ("ids", "response_mask", "behavior_logprobs", "versions")
    )
    turns = [tuple(each.turns) for each in (one, other)]
    stripped = [replace(each, tokens=None, turns=()) for each in (one, other)]
    return are_equal and turns[0] == turns[1] and stripped[0] == stripped[1] and one.shown == other.shown


texts = st.sampled_from(
    ["", "Up", CALL, f"I look.{CALL}", CALL * 2, "<tool_response>\n1\n</tool_response>", "é\n"]
)
told = st.builds(
    lambda base, shown, written, final, details: replace(
        base,
        shown=shown,
        final_observation=final,
        turns=tuple(
            replace(turn, observation=seen, reply=said, details=details if number == 0 else None)
            for number, (turn, (seen, said)) in enumerate(zip(base.turns, written, strict=False))
        ),
    ),
    sampled_episodes | trees(max_turns=3).map(planted),
    st.sampled_from([SHOWN, TEMPLATED]),
    st.lists(st.tuples(texts, texts), min_size=3, max_size=3),
    texts,
    st.sampled_from([None, HISTORY]),
)


@given(told)
def test_a_trajectory_comes_back_as_it_was(trajectory: Trajectory) -> None:
    document = json.loads(json.dumps(to_document(trajectory, agent="policy"), allow_nan=False))
    assert same(from_document(document), trajectory)


@given(told)
def test_the_tokens_that_could_be_drawn_come_back(trajectory: Trajectory) -> None:
    tokens = trajectory.tokens
    if tokens is None:
        return
    sampled_tokens = zip(tokens.ids, tokens.response_mask, strict=True)
    support = Support.of([[token, 7] if mask else [] for token, mask in sampled_tokens])
    told = replace(trajectory, tokens=replace(tokens, support=support))
    read = from_document(json.loads(json.dumps(to_document(told, agent="policy"))))
    assert same(read, trajectory)
    assert read.tokens is not None
    assert read.tokens.support is not None
    assert read.tokens.support.counts.tolist() == support.counts.tolist()
    assert read.tokens.support.ids.tolist() == support.ids.tolist()


@given(told)
def test_documents_keep_the_rules_of_the_format(trajectory: Trajectory) -> None:
    whole = to_document(trajectory, agent="policy", model="m")
    documents = [whole, *whole.get("subagent_trajectories", ())]
    assert len({each["trajectory_id"] for each in documents}) == len(documents) == len(trajectory.segments())
    for document in documents:
        assert document["schema_version"] == "ATIF-v1.7"
        assert [step["step_id"] for step in document["steps"]] == list(range(1, len(document["steps"]) + 1))
        for step in document["steps"]:
            if step["source"] != "agent":
                assert not {"metrics", "tool_calls", "model_name"} & step.keys()
            ids = [call["tool_call_id"] for call in step.get("tool_calls", ())]
            assert len(ids) == len(set(ids))
            results = step.get("observation", {"results": []})["results"]
            assert {each["source_call_id"] for each in results if "source_call_id" in each} <= set(ids)


def test_segments_are_subagents_and_turns_of_another_one_are_copied_context() -> None:
    nodes = [
        Node(follows=None, num_prompt=2, num_reply=1),
        Node(follows=None, num_prompt=1, num_reply=1),
        Node(follows=0, num_prompt=1, num_reply=2),
    ]
    document = to_document(replace(planted(nodes), shown=SHOWN), agent="policy")
    (other,) = document["subagent_trajectories"]
    assert [step["message"] for step in other["steps"]] == ["Walk.", "see 0", "do 0", "do 1"]
    assert not any("is_copied_context" in step for step in other["steps"])
    assert [step["message"] for step in document["steps"]] == ["Walk.", "see 0", "do 0", "do 2"]
    assert [step.get("is_copied_context", False) for step in document["steps"]] == [False, True, True, False]
    assert document["steps"][3]["metrics"]["prompt_tokens"] == 4
    assert document["final_metrics"]["total_completion_tokens"] == 2


@pytest.mark.parametrize("window", [0, 1, 2])
@pytest.mark.parametrize("players", [(), ["policy", "random"], {"X": "past", "O": "policy"}])
async def test_each_line_of_a_game_says_who_played_it_in_which_role(players: Players, window: int) -> None:
    setup = setup_of(players, window=window)
    game = await play(setup, TokenPolicy(invalid=0.2), others={"past": TokenPolicy(version=1)}, seed=3)
    game = replace(game, shown=setup.shown)
    document = json.loads(json.dumps(to_document(game, agent="me", model="m"), allow_nan=False))
    read = from_document(document)
    assert same(read, game)
    assert [read.result_of(role) for role in read.seats] == [game.result_of(role) for role in game.seats]
    for one, other in zip(read.segments(), game.segments(), strict=True):
        assert read.to_messages(one) == game.to_messages(other)
    lines = [document, *document["subagent_trajectories"]]
    assert len(lines) == len(game.segments())
    for line in lines:
        role = line["agent"]["extra"]["role"]
        player = game.seats[role].player
        assert line["agent"]["name"] == ("me" if player == "policy" else player)
        assert ("model_name" in line["agent"]) == (player == "policy")
        assert line["steps"][0]["message"] == f"You are {role}."


@pytest.mark.datasets
def test_documents_are_valid_by_the_models_of_the_package_atif() -> None:
    models = pytest.importorskip("atif", reason="needs the package atif: make test-datasets")

    @given(told)
    def is_valid(trajectory: Trajectory) -> None:
        models.Trajectory.model_validate(to_document(trajectory, agent="policy", model="m"))

    is_valid()
    models.Trajectory.model_validate({**foreign(), "schema_version": "ATIF-v1.7"})


def test_a_document_as_documented() -> None:
    trajectory = replace(sampled([((1, 2), (3, 4), 0.0), ((5,), (6,), 1.0)], version=2), shown=SHOWN)
    first = replace(trajectory.turns[0], observation="dark", reply=f"Hm.{CALL}")
    second = replace(trajectory.turns[1], observation="<tool_response>\na door\n</tool_response>", reply="Go")
    document = to_document(
        replace(trajectory, turns=(first, second), final_observation="out"), agent="policy", model="tiny"
    )
    assert document["agent"]["model_name"] == "tiny"
    system, user, looked, went = document["steps"]
    assert (system["source"], system["message"]) == ("system", "Walk.")
    assert (user["source"], user["message"]) == ("user", "dark")
    assert looked["message"] == "Hm."
    (call,) = looked["tool_calls"]
    assert (call["function_name"], call["arguments"]) == ("look", {"far": True})
    assert looked["observation"]["results"] == [{"source_call_id": call["tool_call_id"], "content": "a door"}]
    assert went["observation"]["results"] == [{"content": "out"}]
    assert went["metrics"] == {
        "prompt_tokens": 5,
        "completion_tokens": 1,
        "completion_token_ids": [6],
        "logprobs": [-1.0],
        "extra": {"appended_token_ids": [5], "versions": [[2, 0, 1]]},
    }
    assert document["final_metrics"] == {
        "total_steps": 4, "total_prompt_tokens": 7, "total_completion_tokens": 3
    }  # fmt: skip
    assert document["extra"]["reward"] == 1.0


def test_examples_are_copied_context() -> None:
    one = episode("a")
    trajectory = replace(one, shown=SHOWN, turns=(replace(one.turns[0], details=HISTORY),))
    steps = to_document(trajectory, agent="policy")["steps"]
    assert [step.get("is_copied_context", False) for step in steps] == [False, True, True, False, False]


def foreign(**changes: Any) -> dict[str, Any]:
    """A document as an agent of another package writes it."""
    return {
        "schema_version": "ATIF-v1.5",
        "session_id": "s-1",
        "agent": {"name": "terminus-2", "version": "2.0"},
        "steps": [
            {"step_id": 1, "source": "system", "message": "Be brief.", "timestamp": "2026-01-01T00:00:00Z"},
            {"step_id": 2, "source": "user", "message": "List the files."},
            {
                "step_id": 3,
                "source": "agent",
                "message": "Listing.",
                "reasoning_content": "ls does it",
                "tool_calls": [
                    {"tool_call_id": "1", "function_name": "bash", "arguments": {"command": "ls"}}
                ],
                "observation": {"results": [{"source_call_id": "1", "content": "a.txt"}]},
            },
            {"step_id": 4, "source": "user", "message": [{"type": "text", "text": "And then?"}]},
            {"step_id": 5, "source": "agent", "message": "Done.", "timestamp": "2026-01-01T00:01:00Z"},
        ],
        **changes,
    }


def test_a_document_of_another_program_becomes_turns() -> None:
    trajectory = from_document(foreign(), index=4)
    first, second = trajectory.turns
    assert first.observation == "List the files."
    assert first.reply == (
        "<think>\nls does it\n</think>\n\nListing.\n"
        '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
    )
    assert second.observation == "<tool_response>\na.txt\n</tool_response>\n\nAnd then?"
    assert (trajectory.trajectory_id, trajectory.task.tag, trajectory.group_id) == ("s-1", "terminus-2", 4)
    assert trajectory.ended_at - trajectory.started_at == 60
    assert trajectory.tokens is None
    messages = trajectory.to_messages()
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert messages[0]["content"] == "Be brief."


def test_a_reward_that_nobody_gave_is_not_known() -> None:
    assert math.isnan(from_document(foreign()).total_reward)
    assert from_document(foreign(extra={"reward": 0.5, "success": True})).total_reward == 0.5


def with_tokens(first: list[int], second: list[int]) -> dict[str, Any]:
    document = foreign()
    for step, prompt in zip((document["steps"][2], document["steps"][4]), (first, second), strict=True):
        step["metrics"] = {"prompt_token_ids": prompt, "completion_token_ids": [7, 8], "logprobs": [-1, -2]}
    return document


def test_tokens_are_kept_where_each_prompt_continues_the_one_before() -> None:
    trajectory = from_document(with_tokens([1, 2], [1, 2, 7, 8, 3]))
    assert trajectory.tokens is not None
    assert trajectory.tokens.ids.tolist() == [1, 2, 7, 8, 3, 7, 8]
    assert trajectory.tokens.response_mask.tolist() == [0, 0, 1, 1, 0, 1, 1]
    assert [(turn.response_start, turn.response_end) for turn in trajectory.turns] == [(2, 4), (5, 7)]


def test_a_history_that_was_rewritten_has_no_token_log() -> None:
    trajectory = from_document(with_tokens([1, 2], [1, 3, 3]))
    assert trajectory.tokens is None
    assert [turn.response_end for turn in trajectory.turns] == [0, 0]


def test_steps_that_no_model_wrote_are_what_the_next_reply_saw() -> None:
    document = foreign()
    document["steps"][2]["llm_call_count"] = 0
    del document["steps"][2]["reasoning_content"]
    (turn,) = from_document(document).turns
    assert turn.observation.startswith("List the files.\n\nListing.")
    assert "a.txt" in turn.observation


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "schema_version is None"),
        ({"schema_version": "ATIF-v2.0"}, "'ATIF-v2.0'"),
        ({"schema_version": "ATIF-v1.7"}, "not a complete ATIF-v1.7 document: KeyError: 'steps'"),
        (
            foreign(steps=[{"source": "user", "message": [{"type": "image", "source": {}}]}]),
            "parts that are not text: image",
        ),
        (foreign(steps=[{"source": "agent"}]), "KeyError: 'message'"),
    ],
)
def test_what_cannot_be_read_is_named(document: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        from_document(document)


def test_a_folder_is_searched_and_other_files_are_passed_over(tmp_path: Path) -> None:
    agent = tmp_path / "job" / "task__1" / "agent"
    agent.mkdir(parents=True)
    (agent / "trajectory.json").write_text(json.dumps(foreign()))
    (agent / "mini-swe-agent.trajectory.json").write_text('{"messages": []}')
    (agent / "config.json").write_text("no JSON")
    (trajectory,) = read_atif(tmp_path)
    assert trajectory.trajectory_id == "s-1"
    lines = tmp_path / "many.jsonl"
    lines.write_text(json.dumps(foreign()) + "\n" + json.dumps(foreign(session_id="s-2")) + "\n")
    assert [(each.trajectory_id, each.group_id) for each in read_atif(lines)] == [("s-1", 0), ("s-2", 1)]


def test_a_folder_without_documents_and_a_broken_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds no ATIF document"):
        list(read_atif(tmp_path))
    broken = tmp_path / "broken.jsonl"
    broken.write_text("{}\n{")
    with pytest.raises(ConfigurationError, match="line 2 is not JSON"):
        list(read_atif(broken))


def test_a_collected_data_set_comes_back_from_its_documents(tmp_path: Path) -> None:
    out = tmp_path / "lake"
    collect("envsdk/FrozenLake-v1", out, num_episodes=6, epsilon=0.3, formats=["atif"])
    (first, *_) = sorted((out / "atif").rglob("*.trajectory.json"))
    assert json.loads(first.read_text())["agent"]["name"] == "oracle"
    played = {each.trajectory_id: each for each in Trajectories.from_folder(out)}
    again = Trajectories.from_atif(out / "atif")
    assert len(again) == len(played) == 6
    assert all(same(each, played[each.trajectory_id]) for each in again)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to every value in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


junk = st.sampled_from([None, 0, -1, 2**40, 1.5, "", "x", [], [None], [[1]], {}, {"type": "image"}, True])


@given(st.sampled_from(["ours", "theirs"]), st.data())
def test_a_damaged_document_is_refused_or_read(whose: str, data: st.DataObject) -> None:
    ours = to_document(replace(sampled([((1, 2), (3, 4), 0.0)], failed=True), shown=SHOWN), agent="policy")
    document = json.loads(json.dumps(ours if whose == "ours" else with_tokens([1, 2], [1, 2, 7, 8, 3])))
    *path, last = data.draw(st.sampled_from(list(places(document))))
    inner = document
    for key in path:
        inner = inner[key]
    inner[last] = data.draw(junk)
    with contextlib.suppress(ConfigurationError):
        assert isinstance(from_document(document), Trajectory)
