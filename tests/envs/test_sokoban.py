import random
from collections import deque

import gymnasium
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import envsdk
from envsdk.envs.grid import MOVES
from envsdk.envs.sokoban import PRESETS, SPEC, SokobanEnv
from envsdk.envs.sokoban.room import Room, bits, generate_room, push_distances
from envsdk.envs.sokoban.solver import solve
from envsdk.testing import TextEnvSuite

seeds = st.integers(0, 2**31 - 1)


class TestSimpleSokoban(TextEnvSuite):
    observations_show_state = True

    def make_env(self):
        return envsdk.make("envsdk/Sokoban-v1", legend=False)


class TestSokobanWithCompass(TextEnvSuite):
    max_examples = 3

    def make_env(self):
        return SokobanEnv(preset="LargerSokoban", compass=True)


def test_the_compass_leads_to_the_box_and_the_box_to_its_target():
    env = SokobanEnv(compass=True, legend=False)
    observation, _ = env.reset(seed=3)
    room = "######\n#__O##\n#_X###\n##___#\n###_P#\n######"
    assert observation == f"{room}\nLeft _ Down # Right # Up _\nX Up 2 Left 2 O Up 1 Right 1"


class TestLargerSokoban(TextEnvSuite):
    max_examples = 3
    observations_show_state = True

    def make_env(self):
        return SokobanEnv(preset="LargerSokoban", step_penalty=0.1, box_on_target_reward=1.0, legend=False)


class TestSokobanDifferentGridVocab(TextEnvSuite):
    max_examples = 3

    def make_env(self):
        return SokobanEnv(**PRESETS["SokobanDifferentGridVocab"])


class TestSokobanWithFourBoxes(TextEnvSuite):
    max_examples = 3

    def make_env(self):
        return SokobanEnv(dim=(10, 10), num_boxes=4, max_steps=120)


def read_room(*rows: str) -> Room:
    """A room from its text, in the default symbols."""
    width, height = len(rows[0]), len(rows)
    text = "\n".join(rows)

    def cells(symbols: str) -> int:
        return sum(1 << index for index, symbol in enumerate(text) if symbol in symbols)

    return Room(
        width=width,
        height=height,
        floor=cells("_OXVPS"),
        targets=cells("OVS"),
        boxes=cells("XV"),
        player=cells("PS").bit_length() - 1,
        solution=(),
    )


def after(room: Room, player: int, boxes: int, moves) -> tuple[int, int]:
    """Where `moves` lead by the rules, which are written here once more."""
    for move in moves:
        offset = room.offsets[move]
        if not room.floor >> (player + offset) & 1:
            continue
        if boxes >> (player + offset) & 1:
            beyond = player + 2 * offset
            if boxes >> beyond & 1 or not room.floor >> beyond & 1:
                continue
            boxes = boxes & ~(1 << (player + offset)) | 1 << beyond
        player += offset
    return player, boxes


def fewest_moves(room: Room) -> int | None:
    """By breadth-first search over single moves."""
    queue = deque([(room.player, room.boxes, 0)])
    seen = {(room.player, room.boxes)}
    while queue:
        player, boxes, moves = queue.popleft()
        if boxes == room.targets:
            return moves
        for move in range(4):
            there = after(room, player, boxes, [move])
            if there not in seen:
                seen.add(there)
                queue.append((*there, moves + 1))
    return None


@settings(max_examples=60)
@example(seed=1094, width=5, height=5, num_boxes=2, max_moves=32)
@given(
    seed=seeds,
    width=st.integers(5, 10),
    height=st.integers(5, 10),
    num_boxes=st.integers(1, 4),
    max_moves=st.integers(32, 150),
)
def test_every_room_is_solved_by_its_own_solution_within_the_moves_asked_for(
    seed, width, height, num_boxes, max_moves
):
    num_boxes = min(num_boxes, (width - 2) * (height - 2) // 4)
    room = generate_room(
        random.Random(seed),
        width=width,
        height=height,
        num_boxes=num_boxes,
        max_moves=max_moves,
        min_pushes=2,
    )
    assert room.boxes.bit_count() == room.targets.bit_count() == num_boxes
    assert (room.boxes | room.targets | 1 << room.player) & ~room.floor == 0
    assert not room.boxes >> room.player & 1
    assert room.boxes != room.targets
    assert 1 <= len(room.solution) <= max_moves
    assert after(room, room.player, room.boxes, room.solution)[1] == room.targets


@settings(max_examples=40)
@given(seed=seeds, num_boxes=st.integers(1, 2), min_pushes=st.integers(1, 4))
def test_a_room_needs_at_least_the_pushes_asked_for_and_every_box_starts_off_target(
    seed, num_boxes, min_pushes
):
    room = generate_room(
        random.Random(seed), width=7, height=7, num_boxes=num_boxes, max_moves=80, min_pushes=min_pushes
    )
    assert room.boxes & room.targets == 0
    distances = push_distances(room.floor, room.targets, room.width)
    assert sum(distances[box] for box in bits(room.boxes)) >= min_pushes
    plan = solve(room, player=room.player, boxes=room.boxes)
    assert plan is not None
    player, boxes, pushes = room.player, room.boxes, 0
    for move in plan:
        player, moved = after(room, player, boxes, [move])
        pushes += moved != boxes
        boxes = moved
    assert boxes == room.targets
    assert pushes >= min_pushes


@settings(max_examples=30)
@given(seed=seeds, size=st.integers(5, 6), num_boxes=st.integers(1, 2))
def test_the_solver_finds_the_fewest_moves_for_one_or_two_boxes(seed, size, num_boxes):
    room = generate_room(
        random.Random(seed), width=size, height=6, num_boxes=num_boxes, max_moves=60, min_pushes=1
    )
    plan = solve(room, player=room.player, boxes=room.boxes)
    assert plan is not None
    assert after(room, room.player, room.boxes, plan)[1] == room.targets
    assert len(plan) == fewest_moves(room)


@settings(max_examples=40)
@given(seed=seeds, moves=st.lists(st.integers(0, 3), max_size=25))
def test_the_solver_gives_up_exactly_where_no_moves_help(seed, moves):
    room = generate_room(random.Random(seed), width=6, height=6, num_boxes=2, max_moves=60, min_pushes=1)
    player, boxes = after(room, room.player, room.boxes, moves)
    plan = solve(room, player=player, boxes=boxes)
    elsewhere = Room(
        width=room.width,
        height=room.height,
        floor=room.floor,
        targets=room.targets,
        boxes=boxes,
        player=player,
        solution=(),
    )
    assert (plan is None) == (fewest_moves(elsewhere) is None)


def test_the_solver_knows_a_box_in_a_corner_is_lost():
    room = read_room("#####", "#X__#", "#__O#", "#_P_#", "#####")
    assert solve(room, player=room.player, boxes=room.boxes) is None


def test_more_pushes_than_a_room_can_hold_give_the_hardest_room_there_is():
    room = generate_room(random.Random(0), width=5, height=5, num_boxes=1, max_moves=40, min_pushes=1000)
    assert after(room, room.player, room.boxes, room.solution)[1] == room.targets
    assert room.boxes != room.targets


def push_into_a_corner(env: SokobanEnv) -> None:
    """Play at random until the position has no solution."""
    rng = random.Random(0)
    for seed in range(1000):
        env.reset(seed=seed)
        for _ in range(20):
            if any(env.step(MOVES[rng.randrange(4)])[2:4]):
                break
            (room, player, boxes), *_ = env.snapshot()
            if solve(room, player=player, boxes=boxes) is None:
                return
    raise AssertionError("never lost")


@pytest.mark.parametrize("preset", list(PRESETS))
def test_the_oracle_answers_with_a_legal_action_in_a_lost_position(preset):
    env = SokobanEnv(preset=preset)
    push_into_a_corner(env)
    assert env.oracle() in env.legal_actions()
    env.step(env.oracle())
    assert env.oracle() in env.legal_actions()


@settings(max_examples=25)
@given(seed=seeds, detour=st.lists(st.integers(0, 3), max_size=8), preset=st.sampled_from(list(PRESETS)))
def test_the_oracle_solves_the_room_after_a_detour_unless_the_detour_lost_it(seed, detour, preset):
    env = SokobanEnv(preset=preset, max_steps=300)
    env.reset(seed=seed)
    for move in detour:
        env.oracle()
        if any(env.step(MOVES[move])[2:4]):
            return
    (room, player, boxes), *_ = env.snapshot()
    can_be_solved = solve(room, player=player, boxes=boxes) is not None
    success = over = False
    while not over:
        _, _, terminated, truncated, info = env.step(env.oracle())
        over, success = terminated or truncated, info["success"]
        if not can_be_solved:
            break
    assert success == can_be_solved


def test_four_boxes_are_solved_after_a_detour():
    env = SokobanEnv(dim=(10, 10), num_boxes=4, max_steps=300)
    rng = random.Random(3)
    solved = 0
    for seed in range(8):
        env.reset(seed=seed)
        for _ in range(5):
            env.step(MOVES[rng.randrange(4)])
        over = False
        while not over:
            _, _, terminated, truncated, info = env.step(env.oracle())
            over = terminated or truncated
        solved += info["success"]
    assert solved >= 5


def place(env: SokobanEnv, *rows: str) -> None:
    env.reset(seed=0)
    room = read_room(*rows)
    _, course, generator = env.snapshot()
    env.restore(((room, room.player, room.boxes), course, generator))


def test_moves_push_boxes_and_rewards_follow():
    env = SokobanEnv(legend=False, step_penalty=0.1, box_on_target_reward=1.0, success_reward=10.0)
    place(env, "######", "#PXO_#", "#____#", "#____#", "#____#", "######")
    observation, reward, terminated, truncated, info = env.step("<answer>Right</answer>")
    assert observation.splitlines()[1] == "#_PV_#"
    assert reward == pytest.approx(-0.1 + 1.0 + 10.0)
    assert (terminated, truncated, info["success"]) == (True, False, True)


def test_pushing_a_box_off_its_target_takes_the_reward_back():
    env = SokobanEnv(legend=False, box_on_target_reward=1.0)
    place(env, "######", "#_PV_#", "#____#", "#XO__#", "#____#", "######")
    observation, reward, terminated, *_ = env.step("Right")
    assert observation.splitlines()[1] == "#__SX#"
    assert (reward, terminated) == (-1.0, False)


def test_a_box_does_not_move_into_a_wall_or_another_box():
    env = SokobanEnv(legend=False)
    place(env, "######", "#PXX_#", "#X___#", "#____#", "#OOO_#", "######")
    for blocked in ("Right", "Up", "Left"):
        before = env.state_hash()
        info = env.step(blocked)[4]
        assert info["metrics"] == {"action_is_valid": 1.0, "action_is_effective": 0.0}
        assert env.state_hash() == before


def test_a_reply_without_a_move_costs_a_turn_and_the_observation_says_why():
    env = SokobanEnv(legend=False, max_steps=8, invalid_penalty=0.5)
    start, _ = env.reset(seed=0)
    observation, reward, *_, info = env.step("hmm")
    assert observation == start + "\nInvalid action: no <answer> found."
    assert (reward, info["metrics"]["action_is_valid"]) == (-0.5, 0.0)
    flags = [env.step("hmm")[2:4] for _ in range(7)]
    assert flags == [(False, False)] * 6 + [(False, True)]
    assert env.step("hmm")[1:4] == (0.0, False, True)


def test_other_symbols_replace_the_default_ones_everywhere():
    env = SokobanEnv(preset="SokobanDifferentGridVocab", legend=False)
    plain = SokobanEnv(legend=False)
    table = str.maketrans("#_OXVPS", "W.TBDAC")
    assert env.reset(seed=5)[0] == plain.reset(seed=5)[0].translate(table)
    for _ in range(10):
        reply = plain.oracle()
        shown, expected = env.step(reply), plain.step(reply)
        assert shown[0] == expected[0].translate(table)
        assert shown[1:] == expected[1:]
        if expected[2]:
            break


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"preset": "Huge"}, "preset: must be one of SimpleSokoban"),
        ({"dim": (4, 8)}, "dim: must be at least 5 by 5"),
        ({"dim": 6}, "dim: must be two whole numbers"),
        ({"dim": "66"}, "dim: must be two whole numbers"),
        ({"num_boxes": 5}, "num_boxes: must be from 1 to 4 in 6x6"),
        ({"max_steps": 7}, "max_steps: 1 boxes take at least 8"),
        ({"min_pushes": 0}, "min_pushes: must be at least 1"),
    ],
)
def test_a_value_that_makes_no_room_is_refused_by_name(kwargs, message):
    with pytest.raises(ValueError, match=message):
        SokobanEnv(**kwargs)


def test_step_before_reset_says_so():
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset"):
        SokobanEnv().step("Left")


def test_it_renders_the_room_in_ansi_mode():
    env = gymnasium.make(SPEC.id, render_mode="ansi", legend=False)
    observation, _ = env.reset(seed=0)
    assert env.render() == observation


def test_rooms_of_different_seeds_are_different():
    env = SokobanEnv()
    assert len({env.reset(seed=seed)[0] for seed in range(500)}) > 480
