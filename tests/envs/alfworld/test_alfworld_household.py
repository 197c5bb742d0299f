import hashlib
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_engine import ToyGame, initial_facts

from envsdk.envs.alfworld.furniture import ABLE, FITS, ROOMS, SIZES
from envsdk.envs.alfworld.games import LOOK, SPLITS, TASK_TYPES, TWO, Game
from envsdk.envs.alfworld.household import generate_game, rooms_for

GOLDEN = "8a0b5f16dcac86b2"
"""Of the games of one seed."""

seeds = st.integers(0, 2**62)
task_types = st.sampled_from(TASK_TYPES)
sizes = st.sampled_from(sorted(SIZES))
splits = st.sampled_from(SPLITS)


def content(game: Game) -> tuple[object, ...]:
    """What a player could tell apart, read from the problem's text."""
    view = ToyGame(game).view
    placed = Counter(
        (view.object_type[thing], view.receptacle_type[place]) for thing, place in view.place.items()
    )
    return (*floor_plan(game), tuple(sorted(placed.items())), game.goal)


def floor_plan(game: Game) -> tuple[object, ...]:
    return tuple(sorted(Counter(ToyGame(game).view.receptacle_type.values()).items()))


@given(seed=seeds, task_type=task_types, size=sizes, split=splits)
@settings(max_examples=60)
def test_every_game_is_won_by_the_oracle_within_the_step_limit(seed, task_type, size, split):
    played = ToyGame(generate_game(seed, task_type, size=size, split=split))
    assert not played.won
    for _ in range(50):
        command = played.oracle()
        assert played.play(command), f"{command!r} does nothing in {played.game.id}"
        if played.won:
            return
    raise AssertionError(f"not won: {played.game.id}")


@given(seed=seeds, task_type=task_types, size=sizes, split=splits)
@settings(max_examples=30)
def test_the_same_arguments_make_the_same_game(seed, task_type, size, split):
    first, second = (generate_game(seed, task_type, size=size, split=split) for _ in range(2))
    assert first == second


def test_a_seed_makes_the_same_game_in_every_process_and_release():
    code = (
        "import hashlib\n"
        "from envsdk.envs.alfworld.games import TASK_TYPES\n"
        "from envsdk.envs.alfworld.household import generate_game\n"
        "games = [generate_game(7, t, size='small') for t in TASK_TYPES]\n"
        "print(hashlib.sha256(repr(games).encode()).hexdigest()[:16])"
    )
    for hash_seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        )
        assert run.stdout.strip() == GOLDEN, "raise GENERATOR_VERSION when games change on purpose"


def test_splits_share_no_game_and_unseen_rooms_no_floor_plan():
    games = {
        split: [
            generate_game(seed, task_type, size="small", split=split)
            for seed in range(20)
            for task_type in TASK_TYPES
        ]
        for split in SPLITS
    }
    contents = {split: set(map(content, made)) for split, made in games.items()}
    plans = {
        split: {(rooms_for_game(game), floor_plan(game)) for game in made} for split, made in games.items()
    }
    assert not contents["train"] & contents["valid_seen"]
    assert not contents["valid_unseen"] & (contents["train"] | contents["valid_seen"])
    assert not plans["valid_unseen"] & (plans["train"] | plans["valid_seen"])
    assert plans["train"] & plans["valid_seen"]


def rooms_for_game(game: Game) -> str:
    """The room, by its furniture: no two kinds of room have the same that is always there."""
    types = set(ToyGame(game).view.receptacle_type.values())
    marks = {
        "microwavetype": "Kitchen",
        "sofatype": "LivingRoom",
        "bedtype": "Bedroom",
        "toilettype": "Bathroom",
    }
    (room,) = {room for mark, room in marks.items() if mark in types}
    return room


@given(seed=seeds, task_type=task_types, size=sizes)
@settings(max_examples=60)
def test_everything_is_where_it_may_be_and_the_goal_is_not_reached_yet(seed, task_type, size):
    game = generate_game(seed, task_type, size=size)
    view, goal = ToyGame(game).view, game.goal
    targets = [thing for thing, kind in view.object_type.items() if kind == goal.object_type.lower() + "type"]
    assert len(targets) >= (2 if task_type == TWO else 1)
    for thing in targets:
        assert view.receptacle_type[view.place[thing]] != goal.receptacle_type.lower() + "type"
    for thing, place in view.place.items():
        if thing in view.those("pickupable"):
            assert (view.receptacle_type[place], view.object_type[thing]) in view.fits
    assert rooms_for_game(game) in rooms_for(task_type)
    assert game.description


@pytest.mark.parametrize("size", sorted(SIZES))
def test_sizes_grow(size):
    counts = [len(ToyGame(generate_game(seed, LOOK, size=size)).view.place) for seed in range(30)]
    lowest, highest = SIZES[size].num_objects
    assert lowest - 4 <= sum(counts) / 30 <= highest + 3


def test_hundreds_of_seeds_make_hundreds_of_games():
    games = [generate_game(seed, task_type, size="small") for seed in range(50) for task_type in TASK_TYPES]
    assert len(set(map(content, games))) > 0.99 * len(games)
    assert len({hashlib.sha256(game.problem.encode()).digest() for game in games}) == len(games)


def test_every_task_type_of_every_room_occurs():
    for task_type in TASK_TYPES:
        rooms = {rooms_for_game(generate_game(seed, task_type, size="small")) for seed in range(30)}
        assert rooms == set(rooms_for(task_type))


def test_the_tables_name_no_object_that_is_in_no_room():
    known = {thing for room in ROOMS.values() for thing in (*room.common, *room.rare, *room.fixtures)}
    for things in FITS.values():
        assert set(things) <= known
    for predicate, things in ABLE.items():
        assert predicate == "toggleable" or things <= known
    for room in ROOMS.values():
        assert set(room.furniture) <= set(FITS)


def test_coordinates_are_read_back_as_names():
    facts = initial_facts(generate_game(1, TWO, size="small"))
    assert any(predicate == "atlocation" and names[0] == "agent1" for predicate, names in facts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task_type": "pick"}, "task_type: must be one of pick_and_place_simple"),
        ({"size": "huge"}, "size: must be one of small"),
        ({"split": "test"}, "split: must be one of train"),
    ],
)
def test_an_unknown_choice_is_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        generate_game(0, **{"task_type": TWO, **arguments})
