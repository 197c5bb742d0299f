import json

import pytest
from official_data import write_official_game

from envsdk.envs.alfworld import sources
from envsdk.envs.alfworld.env import ALFWorldEnv
from envsdk.envs.alfworld.games import COOL, HEAT, LOOK, PICK, SPLITS, TASK_TYPES, GameDataError
from envsdk.envs.alfworld.sources import OfficialGames


@pytest.fixture(autouse=True)
def fresh_tables():
    """What was found in one test's folder is no business of the next."""
    sources.find_games.cache_clear()
    sources.load_game.cache_clear()


@pytest.fixture
def data(tmp_path):
    for split in SPLITS:
        for number, task_type in enumerate([*TASK_TYPES, PICK, HEAT]):
            write_official_game(tmp_path, split, number, task_type)
    return tmp_path


def games_of(data, *, split="train", task_types=TASK_TYPES, num_games=None):
    return OfficialGames(data, split=split, task_types=task_types, num_games=num_games)


@pytest.mark.parametrize("split", SPLITS)
def test_all_games_of_a_split_are_found_in_the_order_of_their_paths(data, split):
    games = games_of(data, split=split)
    ids = [games.game(number).id for number in range(games.num_games)]
    assert len(ids) == 8
    assert ids == sorted(ids)
    assert all(id.startswith(f"{split}/") for id in ids)


def test_games_are_filtered_by_type_and_count_and_the_order_of_types_does_not_matter(data):
    one, other = games_of(data, task_types=[PICK, HEAT]), games_of(data, task_types=[HEAT, PICK])
    assert one.num_games == other.num_games == 4
    assert [one.game(n) for n in range(4)] == [other.game(n) for n in range(4)]
    assert games_of(data, task_types=[PICK, HEAT], num_games=3).num_games == 3


def test_a_game_has_its_own_texts_and_goal(data):
    game = games_of(data, task_types=[LOOK]).game(0)
    assert game.goal.task_type == LOOK
    assert game.goal.lamp_type in ("DeskLamp", "FloorLamp")
    assert game.description
    assert game.description in game.grammar
    assert game.domain == "(define (domain alfred))"


def test_games_marked_unsolvable_and_those_with_movable_or_sliced_things_are_left_out(tmp_path):
    write_official_game(tmp_path, "train", 1, PICK)
    write_official_game(tmp_path, "train", 2, PICK, solvable=False)
    write_official_game(tmp_path, "train", 3, PICK, mark="movable")
    write_official_game(tmp_path, "train", 4, PICK, mark="AppleSliced")
    assert games_of(tmp_path).num_games == 1


def test_a_missing_folder_is_answered_with_how_to_get_the_data(tmp_path):
    with pytest.raises(GameDataError, match=r"no folder .*json_2\.1\.1/train .*alfworld-download"):
        games_of(tmp_path)


def test_a_split_without_games_of_the_types_says_so(tmp_path):
    write_official_game(tmp_path, "train", 1, PICK)
    with pytest.raises(GameDataError, match="of the types pick_cool_then_place_in_recep"):
        games_of(tmp_path, task_types=[COOL])


def test_a_file_that_is_cut_off_is_named(tmp_path):
    path = write_official_game(tmp_path, "train", 1, PICK)
    path.write_text(path.read_text()[:500])
    with pytest.raises(GameDataError, match=r"game\.tw-pddl: is cut off after 500 bytes"):
        games_of(tmp_path)


def test_a_file_that_is_no_textworld_game_is_named_with_what_it_lacks(tmp_path):
    path = write_official_game(tmp_path, "train", 1, PICK)
    path.write_text('{"pddl_domain": "", "grammar": ""}')
    with pytest.raises(GameDataError, match=r"game\.tw-pddl: is no TextWorld game: it has no `pddl_problem`"):
        games_of(tmp_path)


def test_a_game_whose_text_is_half_of_a_surrogate_pair_is_named(tmp_path):
    write_official_game(tmp_path, "train", 1, PICK, domain="\ud800")
    with pytest.raises(GameDataError, match=r"game\.tw-pddl: `pddl_domain` is no Unicode text"):
        games_of(tmp_path).game(0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "traj_data.json: is no JSON"),
        ("[" * 10_000, "traj_data.json: is no JSON: .*recursion"),
        ("[]", "traj_data.json: must hold a JSON object, not a list"),
        ("{}", "traj_data.json: `task_type` is missing"),
        ('{"task_type": "pick_nothing"}', "traj_data.json: unknown task_type 'pick_nothing'"),
        ('{"task_type": "pick_and_place_simple"}', "traj_data.json: `pddl_params` is missing"),
        (
            '{"task_type": "pick_and_place_simple", "pddl_params": {"object_target": 3}}',
            "traj_data.json: `object_target` is missing or no text",
        ),
    ],
)
def test_a_damaged_trial_is_named_with_its_field(tmp_path, content, message):
    path = write_official_game(tmp_path, "train", 1, PICK)
    path.with_name("traj_data.json").write_text(content)
    with pytest.raises(GameDataError, match=message):
        games_of(tmp_path).game(0)


def test_a_trial_without_its_description_file_is_named(tmp_path):
    path = write_official_game(tmp_path, "train", 1, PICK)
    path.with_name("traj_data.json").unlink()
    with pytest.raises(GameDataError, match=r"traj_data\.json: cannot be read: No such file"):
        games_of(tmp_path).game(0)


def test_a_game_whose_parts_are_no_text_is_named(tmp_path):
    path = write_official_game(tmp_path, "train", 1, PICK)
    path.write_text(json.dumps({**json.loads(path.read_text()), "grammar": None}))
    with pytest.raises(GameDataError, match=r"game\.tw-pddl: `grammar` is missing or no text"):
        games_of(tmp_path).game(0)


def test_the_variable_names_the_folder_unless_the_argument_does(data, monkeypatch, tmp_path_factory):
    monkeypatch.setenv("ALFWORLD_DATA", str(data))
    assert ALFWorldEnv(split="valid_seen")._source.num_games == 8
    assert ALFWorldEnv(games="generated")._source.num_games is None
    other = tmp_path_factory.mktemp("other")
    write_official_game(other, "train", 1, PICK)
    assert ALFWorldEnv(data_dir=str(other))._source.num_games == 1
    monkeypatch.delenv("ALFWORLD_DATA")
    assert ALFWorldEnv()._source.num_games is None
    with pytest.raises(ValueError, match="the official ones need `data_dir`"):
        ALFWorldEnv(games="official")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"games": "mine"}, "games: must be one of auto"),
        ({"split": "test"}, "split: must be one of train"),
        ({"size": "tiny"}, "size: must be one of small"),
        ({"action_format": "json"}, "action_format: must be one of tag"),
        ({"task_types": []}, "task_types: name at least one"),
        ({"task_types": ["pick"]}, "task_types: must be one of pick_and_place_simple"),
        ({"num_games": 0}, "num_games: must be at least 1"),
        ({"max_steps": 0}, "max_steps: must be at least 1"),
        ({"num_processes": 0}, "num_processes: must be at least 1"),
    ],
)
def test_a_value_that_makes_no_environment_is_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        ALFWorldEnv(**arguments)
