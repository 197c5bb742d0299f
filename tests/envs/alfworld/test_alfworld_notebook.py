"""What is read from the texts is what the facts say, and the searcher finds its way by it."""

import asyncio
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_engine import ToyGame

from envsdk.contracts.policy import TurnContext
from envsdk.contracts.trajectory import TokenLog, Turn
from envsdk.envs.alfworld.games import LOOK, PICK, TASK_TYPES, Goal
from envsdk.envs.alfworld.household import generate_game
from envsdk.envs.alfworld.notebook import Notebook, parse_task
from envsdk.envs.alfworld.searcher import SearchingPolicy, search
from envsdk.managers.policies import make_policy

seeds = st.integers(0, 2**62)
task_types = st.sampled_from(TASK_TYPES)
NAME = re.compile(r"[a-z]+ \d+")


def some_command(played: ToyGame, data: st.DataObject) -> str:
    """Mostly one that does something."""
    view = played.view
    here = sorted(place for place, location in view.location.items() if location == view.here)
    things = sorted(thing for thing, place in view.place.items() if place in here)
    choices = [f"go to {place}" for place in sorted(view.location)] + ["look", ""]
    choices += [f"{verb} {place}" for verb in ("open", "close", "examine") for place in here]
    choices += [f"take {thing} from {view.place[thing]}" for thing in things]
    if view.held:
        choices += [f"move {view.held} to {place}" for place in here]
        choices += [
            f"{verb} {view.held} with {place}" for verb in ("clean", "heat", "cool") for place in here
        ]
    return data.draw(st.sampled_from(choices))


@given(seed=seeds, task_type=task_types, data=st.data())
@settings(max_examples=40)
def test_the_texts_tell_what_has_been_seen_and_done(seed, task_type, data):
    played = ToyGame(generate_game(seed, task_type, size="small"))
    notebook = Notebook.begin(played.intro())
    for _ in range(data.draw(st.integers(1, 25))):
        command = some_command(played, data)
        notebook = notebook.after(
            command, played.tell(command) + "\n\nAdmissible commands: look, open desk 9"
        )
    view = played.view
    assert notebook.held == view.held
    assert view.location.get(notebook.here, "") == view.here or not notebook.here
    assert set(notebook.contents) == played.seen
    assert set(notebook.unseen) == set(view.location) - played.seen
    for place, inside in notebook.contents.items():
        assert set(inside) == {thing for thing, where in view.place.items() if where == place}
    known = notebook.view()
    for predicate in ("isclean", "ishot", "iscool"):
        assert known.those(predicate) == view.those(predicate)
    for thing in known.place:
        assert known.object_type[thing] == view.object_type[thing]
        assert (thing in known.those("pickupable")) == (thing in view.those("pickupable"))


@given(seed=seeds, task_type=task_types, size=st.sampled_from(["small", "medium"]), data=st.data())
@settings(max_examples=40)
def test_the_searcher_wins_by_what_the_texts_have_named(seed, task_type, size, data):
    played = ToyGame(generate_game(seed, task_type, size=size))
    text = played.intro()
    named = set(NAME.findall(text))
    notebook = Notebook.begin(text)
    slips = data.draw(st.integers(0, 8))
    for turn in range(120):
        command = some_command(played, data) if turn < slips else search(notebook)
        assert turn < slips or set(NAME.findall(command)) <= named
        text = played.tell(command)
        if played.won:
            return
        named.update(NAME.findall(text))
        notebook = notebook.after(command, text)
    raise AssertionError(f"{played.game.id}: not won; last {command!r}, {text!r}")


@given(seed=seeds, task_type=task_types)
@settings(max_examples=60)
def test_the_task_is_read_as_it_was_written(seed, task_type):
    game = generate_game(seed, task_type, size="small")
    goal = game.goal
    assert parse_task(game.description) == Goal(
        task_type=goal.task_type,
        object_type=goal.object_type.lower(),
        receptacle_type=goal.receptacle_type.lower(),
        lamp_type=goal.lamp_type.lower(),
    )


@pytest.mark.parametrize("task", ["", "tidy up", "put some mug on the nice desk"])
def test_a_task_in_other_words_is_none(task):
    assert parse_task(task) is None
    assert search(Notebook(task=task, receptacles=("desk 1",))) == "look"


def test_notes_say_what_is_in_hand_what_has_been_found_and_where_one_has_not_looked():
    notebook = Notebook.begin(
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. "
        "Looking quickly around you, you see a cabinet 1, a sinkbasin 1, and a desk 1.\n\n"
        "Your task is to: put a clean mug in desk."
    )
    assert notebook.notes() == (
        "Task: put a clean mug in desk. In hand: nothing.\nNot looked into: cabinet 1, sinkbasin 1, desk 1."
    )
    for command, text in [
        ("go to cabinet 1", "You arrive at cabinet 1. The cabinet 1 is closed."),
        (
            "open cabinet 1",
            "You open the cabinet 1. The cabinet 1 is open. In it, you see a cup 1, and a mug 1.",
        ),
    ]:
        notebook = notebook.after(command, text)
    assert notebook.notes() == (
        "Task: put a clean mug in desk. In hand: nothing. Seen: mug 1 at cabinet 1.\n"
        "Not looked into: sinkbasin 1, desk 1."
    )
    for command, text in [
        ("take mug 1 from cabinet 1", "You pick up the mug 1 from the cabinet 1."),
        ("go to sinkbasin 1", "You arrive at sinkbasin 1. On the sinkbasin 1, you see nothing."),
        ("clean mug 1 with sinkbasin 1", "You clean the mug 1 using the sinkbasin 1."),
    ]:
        notebook = notebook.after(command, text)
    assert (
        notebook.notes() == "Task: put a clean mug in desk. In hand: clean mug 1.\nNot looked into: desk 1."
    )
    assert notebook.contents == {"cabinet 1": ("cup 1",), "sinkbasin 1": ()}


def test_the_other_command_for_putting_is_tried_where_the_first_does_nothing():
    held = Notebook(
        task="put some mug on desk", receptacles=("desk 1",), contents={"desk 1": ()}, held="mug 1"
    )
    at_desk = held.after("go to desk 1", "You arrive at desk 1. On the desk 1, you see nothing.")
    assert search(at_desk) == "move mug 1 to desk 1"
    told = at_desk.after("move mug 1 to desk 1", "Nothing happens.")
    assert search(told) == "put mug 1 in/on desk 1"
    assert told.after("put mug 1 in/on desk 1", "You put the mug 1 in/on the desk 1.").held == ""


@pytest.mark.parametrize("task_type", [PICK, LOOK])
def test_the_policy_reads_the_turns_before(task_type):
    played = ToyGame(generate_game(3, task_type, size="small"))
    policy = make_policy("envsdk.envs.alfworld.searcher:SearchingPolicy")
    assert isinstance(policy, SearchingPolicy)
    turns: list[Turn] = []
    observation = played.intro()
    notebook = Notebook.begin(observation)
    while not played.won:
        turn = TurnContext(
            system="", prompt=observation, observation=observation, turn_index=len(turns), num_actions_left=1,
            env=None, seed=0, log=TokenLog(), session_id="1", turns=turns,
        )  # fmt: skip
        reply = asyncio.run(policy.act(turn)).text
        command = search(notebook)
        assert reply == f"<action>{command}</action>"
        turns.append(Turn(observation=observation, reply=reply, reward=0, response_start=0, response_end=0))
        observation = played.tell(command)
        notebook = notebook.after(command, observation)
