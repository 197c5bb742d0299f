import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_engine import ToyGame

from envsdk.envs.alfworld.games import CLEAN, HEAT, LOOK, PICK, TASK_TYPES, TWO
from envsdk.envs.alfworld.household import generate_game
from envsdk.envs.alfworld.solver import STAGES, listing_order, reached_stages

seeds = st.integers(0, 2**62)
task_types = st.sampled_from(TASK_TYPES)


def commands_to(played: ToyGame, *, explores: bool, limit: int = 200) -> list[str]:
    commands = []
    while not played.won:
        assert len(commands) < limit, f"{played.game.id}: {commands[-6:]}"
        commands.append(played.oracle(explores=explores))
        assert played.play(commands[-1]), f"{commands[-1]!r} does nothing in {played.game.id}"
    return commands


@given(seed=seeds, task_type=task_types, data=st.data())
@settings(max_examples=40)
def test_the_oracle_finds_its_way_from_wherever_it_is_led(seed, task_type, data):
    played = ToyGame(generate_game(seed, task_type, size="small"))
    for _ in range(data.draw(st.integers(1, 12))):
        view = played.view
        choices = [f"go to {place}" for place in sorted(view.location)]
        here = sorted(place for place, location in view.location.items() if location == view.here)
        choices += [f"{verb} {place}" for verb in ("open", "close") for place in here]
        choices += [
            f"take {thing} from {place}" for thing, place in sorted(view.place.items()) if place in here
        ]
        choices += [f"move {view.held} to {place}" for place in here if view.held]
        played.play(data.draw(st.sampled_from(choices)))
        if played.won:
            return
    commands_to(played, explores=False, limit=40)


@given(seed=seeds, task_type=task_types, size=st.sampled_from(["small", "medium"]))
@settings(max_examples=40)
def test_the_exploring_oracle_wins_without_knowing_where_things_are(seed, task_type, size):
    game = generate_game(seed, task_type, size=size)
    commands = commands_to(ToyGame(game), explores=True)
    played = ToyGame(game)
    for command in commands:
        if command.startswith("take "):
            _, _, place = command.partition(" from ")
            assert place in played.seen, "it took what it had not seen"
        played.play(command)


def test_the_exploring_oracle_takes_longer_than_the_one_that_knows():
    games = [generate_game(seed, PICK, size="medium") for seed in range(30)]
    knowing = sum(len(commands_to(ToyGame(game), explores=False)) for game in games)
    exploring = sum(len(commands_to(ToyGame(game), explores=True)) for game in games)
    assert exploring > 1.5 * knowing


@given(seed=seeds, task_type=task_types)
@settings(max_examples=30)
def test_stages_are_reached_one_after_the_other(seed, task_type):
    played = ToyGame(generate_game(seed, task_type, size="small"))
    assert reached_stages(played.view, played.game.goal) == ()
    reached = []
    while not played.won:
        played.play(played.oracle())
        for stage in reached_stages(played.view, played.game.goal):
            if stage not in reached:
                reached.append(stage)
    assert tuple(reached) == STAGES.get(task_type, ("take",))


@pytest.mark.parametrize(
    ("task_type", "stages"),
    [
        (PICK, ("take",)),
        (LOOK, ("take",)),
        (TWO, ("take", "place_one")),
        (CLEAN, ("take", "clean")),
        (HEAT, ("take", "heat")),
    ],
)
def test_stages_are_those_of_the_task(task_type, stages):
    assert STAGES.get(task_type, ("take",)) == stages


def test_names_are_ordered_as_the_first_observation_lists_them():
    names = ["shelf 2", "desk 1", "shelf 10", "bed 1", "shelf 1"]
    assert sorted(names, key=listing_order) == ["bed 1", "desk 1", "shelf 10", "shelf 2", "shelf 1"]


def test_a_game_without_a_way_is_answered_with_a_look():
    game = generate_game(3, HEAT, size="small")
    played = ToyGame(game)
    played.facts = {fact for fact in played.facts if "microwavetype" not in fact[1]}
    for _ in range(4):
        played.play(played.oracle())
    assert played.oracle() == "look"
