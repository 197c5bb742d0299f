"""Several players in one episode: turn order, whose tokens are trained, and who earns what."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from envsdk.algorithms.args import AlgorithmArgs
from envsdk.algorithms.batches import ModelScores, learnable, prepare_batch
from envsdk.algorithms.units import in_parts
from envsdk.base.store.tally import results_by_role
from envsdk.base.store.trajectories import read_trajectories, write_trajectories
from envsdk.config.env_models import CustomEnv
from envsdk.contracts.env import EnvSpec, Info, TextEnv
from envsdk.contracts.failures import Boundary
from envsdk.contracts.players import POLICY, Players, Result, seated
from envsdk.contracts.policy import Policy, Reply, TurnContext
from envsdk.contracts.prompts import AgentPrompts
from envsdk.contracts.trajectory import Outcome, RolloutBatch, Task, Trajectory, VersionSpan
from envsdk.contracts.turn_env import AnyTextSpaces
from envsdk.envs.tic_tac_toe import SPEC
from envsdk.managers.env_host import EnvBlueprint
from envsdk.managers.episode import EpisodeOrder
from envsdk.managers.group_judge import GroupFilters
from envsdk.managers.policies import opponents
from envsdk.managers.traj_env_manager import TagSetup, TrajEnvManager
from envsdk.rollouts.play.local_runner import TaskListLeases
from envsdk.rollouts.results.advantages import advantages as advantages_of
from envsdk.runs.rollout_metrics import rollout_metrics


class TokenPolicy(Policy):
    """Plays at random and keeps tokens: characters of what it is shown, and of what it says."""

    name = "tokens"

    def __init__(self, *, version: int = 5, invalid: float = 0.0) -> None:
        self._version = version
        self._invalid = invalid
        self.seen: list[tuple[str, str, str]] = []
        """Of each turn: role, system prompt and user message."""

    async def act(self, turn: TurnContext) -> Reply:
        self.seen.append((turn.role, turn.system, turn.prompt))
        actions = await turn.env.legal_actions()
        text = "?" if turn.seed % 100 < 100 * self._invalid else actions[turn.seed % len(actions)]
        carried = "".join(each["content"] for each in turn.history)
        new = turn.prompt if len(turn.log) else f"{turn.system}\n{carried}{turn.prompt}"
        turn.log.append_prompt([ord(each) for each in new])
        start = len(turn.log)
        span = VersionSpan(version=self._version, start=0, end=len(text))
        turn.log.append_sampled([ord(each) for each in text], [-0.5] * len(text), [span])
        return Reply(text=text, response_start=start, response_end=len(turn.log))


def setup_of(players: Players = (), spec: Any = SPEC, **changes: Any) -> TagSetup:
    given: dict[str, Any] = {
        "tag": "Game",
        "blueprint": EnvBlueprint(spec=spec),
        "prompts": AgentPrompts(system="You are {role}.", template="{turn_idx}: {observation}"),
        "max_turns": 30,
        "players": players,
    }
    return TagSetup(**given | changes)


async def play(
    setup: TagSetup,
    policy: Policy,
    *,
    others: Mapping[str, Policy] | None = None,
    seed: int = 0,
    task: int = 0,
    member: int = 0,
) -> Trajectory:
    manager = TrajEnvManager(
        slot_id="0",
        setup=setup,
        policy=policy,
        leases=TaskListLeases((), 0, lambda position, trajectory: None),
        opponents=opponents(setup.players, others),
    )
    return await manager.play(
        EpisodeOrder(
            lease_id=member,
            group_id=task,
            member=member,
            task=Task(tag="Game", split="train", index=task),
            seed=seed,
            policy_seed=1000 * seed + member,
        )
    )


PLAYERS = st.sampled_from([(), [POLICY], [POLICY, "random"], ["past", POLICY], {"X": "past", "O": POLICY}])


@given(players=PLAYERS, seed=st.integers(0, 10**6), task=st.integers(0, 3), invalid=st.floats(0, 0.5))
@settings(deadline=None, max_examples=60)
async def test_each_token_is_trained_once_and_only_where_the_policy_played(
    players: Players, seed: int, task: int, invalid: float
) -> None:
    policy, past = TokenPolicy(invalid=invalid), TokenPolicy(version=1)
    episode = await play(setup_of(players), policy, others={"past": past}, seed=seed, task=task)
    assert episode.failure is None
    assert episode.tokens is not None
    # Whose turn it is: the other role's, unless the reply did not parse.
    for turn, following in zip(episode.turns, episode.turns[1:], strict=False):
        assert (turn.role == following.role) == (turn.metrics["action_is_valid"] == 0)
    assert {role: seat.player for role, seat in episode.seats.items()} == seated(players, ["X", "O"], task)
    # What is trained: the policy's replies, each in one part, whose line has only what its role was shown.
    parts = in_parts([episode], None)
    trained = 0
    for part in parts:
        assert part.tokens is not None
        (role,) = {turn.role for turn in part.turns}
        assert episode.seats[role].player == POLICY
        line = "".join(map(chr, part.tokens.ids))
        own = [turn for turn in episode.turns if turn.role == role]
        numbers = [number + 1 for number, turn in enumerate(episode.turns) if turn.role == role]
        shown = [f"{n}: {turn.observation}{turn.reply}" for n, turn in zip(numbers, own, strict=True)]
        assert line == f"You are {role}.\n" + "".join(shown)
        trained += int(part.tokens.response_mask.sum())
    replies = [turn for turn in episode.turns if episode.is_own(turn.role)]
    assert trained == sum(len(turn.reply) for turn in replies) == int(episode.tokens.response_mask.sum())
    assert len(parts) == len({turn.role for turn in replies})
    # Staleness looks at trained tokens alone: the opponent's are of version 1.
    assert episode.oldest_version == (5 if replies else None)
    assert not episode.tokens.behavior_logprobs[episode.tokens.response_mask == 0].any()


@given(players=PLAYERS, seed=st.integers(0, 10**6), window=st.integers(1, 4), invalid=st.floats(0, 0.5))
@settings(deadline=None, max_examples=60)
async def test_a_window_shows_a_player_its_own_last_turns_and_each_reply_is_trained_once(
    players: Players, seed: int, window: int, invalid: float
) -> None:
    setup, others = setup_of(players, window=window), {"past": TokenPolicy(version=1)}
    episode = await play(setup, TokenPolicy(invalid=invalid), others=others, seed=seed)
    episode = replace(episode, shown=setup.shown)
    assert episode.tokens is not None
    parts = in_parts([episode], None)
    assert [part.turns[0].role for part in parts] == [
        role for role in episode.own_roles if any(turn.role == role for turn in episode.turns)
    ]
    for part in parts:
        role = part.turns[0].role
        own = [(n, turn) for n, turn in enumerate(episode.turns) if turn.role == role]
        assert [turn.reply for turn in part.turns] == [turn.reply for _, turn in own]
        assert part.total_reward == sum(turn.reward for _, turn in own)
        said = [f"{n + 1}: {turn.observation}{turn.reply}" for n, turn in own]
        lines = [
            "".join(said[:window]),
            *("".join(said[: n + 1][-window:]) for n in range(window, len(said))),
        ]
        segments = part.segments()
        assert ["".join(map(chr, s.tokens.ids)) for s in segments if s.tokens is not None] == [
            f"You are {role}.\n{line}" for line in lines
        ]
        sampled = [s.tokens.ids[s.tokens.response_mask == 1] for s in segments if s.tokens is not None]
        assert "".join(map(chr, np.concatenate(sampled))) == "".join(turn.reply for _, turn in own)
    trained = sum(
        int(segment.tokens.response_mask.sum())
        for part in parts
        for segment in part.segments()
        if segment.tokens
    )
    assert trained == int(episode.tokens.response_mask.sum())
    for segment in filter(episode.learns, episode.segments()):
        assert segment.tokens is not None
        contents = [each["content"] for each in episode.to_messages(segment)]
        assert "".join(map(chr, segment.tokens.ids)) == "\n".join([contents[0], "".join(contents[1:])])
    # Advantages come back to the segments of the episode, whichever the parts were.
    batch = prepare_batch(AlgorithmArgs(grpo_normalize_std=False), 0, parts, ModelScores()).batch
    assert len(batch.sequences) == sum(len(part.segments()) for part in parts)
    assert {sequence.trajectory_id for sequence in batch.sequences} <= {episode.trajectory_id}


async def test_advantages_of_players_with_a_window_come_back_to_their_segments() -> None:
    episodes = [await play(setup_of(window=1), TokenPolicy(), seed=1, member=member) for member in range(6)]
    settings_ = {"grpo_normalize_std": False, "advantage_unit": "role"}
    found = iter(advantages_of(episodes, [0] * 6, "grpo", settings_))
    for episode in episodes:
        for segment in episode.segments():
            paid = [sum(t.reward for t in e.turns if t.role == segment.role) for e in episodes]
            own = sum(turn.reward for turn in episode.turns if turn.role == segment.role)
            assert segment.tokens is not None
            advantages = next(found)[segment.tokens.response_mask == 1]
            assert advantages == pytest.approx(own - np.mean(paid))


def test_a_summary_is_nobodys_turn() -> None:
    with pytest.raises(ValidationError, match="takes no players"):
        CustomEnv(env_type="envsdk/TicTacToe-v1", players=["policy"], context="compact", compact_at=50)


@given(players=PLAYERS, seed=st.integers(0, 10**6), invalid=st.floats(0, 0.6))
@settings(deadline=None, max_examples=60)
async def test_each_role_earns_what_the_rules_pay_it(players: Players, seed: int, invalid: float) -> None:
    policy = TokenPolicy(invalid=invalid)
    episode = await play(setup_of(players), policy, others={"past": TokenPolicy()}, seed=seed)
    scores = {role: seat.score for role, seat in episode.seats.items()}
    assert sum(scores.values()) == 0
    results = {role: episode.result_of(role) for role in scores}
    tie = Result.DRAW if episode.outcome is Outcome.TERMINATED else Result.UNFINISHED
    assert set(results.values()) in ({Result.WIN, Result.LOSS}, {tie})
    paid = {Result.WIN: 1, Result.LOSS: -1, tie: 0}
    assert all(scores[role] == paid[results[role]] for role in scores)
    for role, score in scores.items():
        own = [turn for turn in episode.turns if turn.role == role]
        penalties = 0.25 * sum(turn.metrics["action_is_valid"] == 0 for turn in own)
        if own:
            assert sum(turn.reward for turn in own) == score - penalties
    assert episode.success == any(results[role] is Result.WIN for role in episode.own_roles)
    won = sum(turn.reward for turn in episode.turns if episode.is_own(turn.role))
    assert episode.total_reward == won


async def test_an_episode_with_seats_is_the_same_after_pickling_and_on_disk(tmp_path: Path) -> None:
    episode = await play(setup_of([POLICY, "random"]), TokenPolicy(), seed=3)
    write_trajectories(tmp_path / "x.parquet", [episode])
    for read in (pickle.loads(pickle.dumps(episode)), *read_trajectories(tmp_path / "x.parquet")):
        assert dict(read.seats) == episode.seats
        assert [turn.role for turn in read.turns] == [turn.role for turn in episode.turns]
        assert [turn.follows for turn in read.turns] == [turn.follows for turn in episode.turns]


async def test_the_messages_of_a_role_are_what_it_was_shown() -> None:
    policy, setup = TokenPolicy(), setup_of()
    episode = replace(await play(setup, policy, seed=4), shown=setup.shown)
    for segment in episode.segments():
        messages = episode.to_messages(segment)
        seen = [each for each in policy.seen if each[0] == segment.role]
        assert messages[0] == {"role": "system", "content": f"You are {segment.role}."}
        assert [each["content"] for each in messages if each["role"] == "user"] == [each[2] for each in seen]


async def self_play(num_groups: int, group_size: int, players: Players = ()) -> list[Trajectory]:
    return [
        await play(setup_of(players), TokenPolicy(), seed=task, task=task, member=member)
        for task in range(num_groups)
        for member in range(group_size)
    ]


async def test_advantages_compare_a_role_with_the_same_role_of_its_group() -> None:
    episodes = await self_play(3, 6)
    parts = learnable(episodes, None)
    batch = prepare_batch(AlgorithmArgs(grpo_normalize_std=False), 0, parts, ModelScores()).batch
    assert len(batch.sequences) == len(parts) == 36
    for part, sequence in zip(parts, batch.sequences, strict=True):
        role, group = part.turns[0].role, part.task.index
        same = [
            sum(turn.reward for turn in each.turns if turn.role == role)
            for each in episodes
            if each.task.index == group
        ]
        found = sequence.advantages[sequence.response_mask == 1]
        assert found == pytest.approx(part.total_reward - np.mean(same))
        assert sequence.trajectory_id == part.trajectory_id
    # Summed up over both roles, a game of this kind teaches nothing.
    whole = prepare_batch(AlgorithmArgs(), 0, learnable(episodes, "episode"), ModelScores()).batch
    assert not any(sequence.advantages.any() for sequence in whole.sequences)


async def test_rates_count_the_roles_of_the_policy_alone() -> None:
    episodes = await self_play(8, 2, [POLICY, "random"])
    counted = results_by_role(episodes)
    assert set(counted) == {("Game", "X"), ("Game", "O")}
    assert [results.total() for results in counted.values()] == [8, 8]


class OddEnv(AnyTextSpaces, TextEnv):
    """Names its roles as it was told to."""

    def __init__(self, roles: list[str], role: str = "a", paid: str = "a") -> None:
        self._start: Info = {"roles": roles, "role": role} if roles else {}
        self._paid = paid

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, Info]:
        super().reset(seed=seed)
        return "o", self._start

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        return "o", 0.0, False, False, {"role": "a", "rewards": {self._paid: 1.0}}

    def legal_actions(self) -> list[str]:
        return ["x"]


@pytest.mark.parametrize(
    ("env_config", "changes", "kind", "says"),
    [
        ({"roles": []}, {"players": [POLICY]}, "players", "has one player"),
        ({"roles": ["a"]}, {"players": [POLICY, "random"]}, "players", "has 1 roles"),
        ({"roles": ["a", "b"]}, {"players": {"a": POLICY}}, "players", "for each of the roles a, b"),
        ({"roles": ["a", "b"]}, {"compact_at": 1}, "players", "context: compact takes one player"),
        ({"roles": ["a", "b"], "role": "c"}, {}, "role_unknown", "the role 'c'"),
        ({"roles": ["a", "b"], "paid": "c"}, {}, "role_unknown", "the role 'c'"),
        ({"roles": ["a", 3]}, {}, "reset_invalid", "roles are a list of str"),
    ],
)
async def test_roles_that_do_not_fit_fail_the_episode(
    env_config: dict[str, Any], changes: dict[str, Any], kind: str, says: str
) -> None:
    blueprint = EnvBlueprint(spec=EnvSpec(id="toy/Odd-v0", entry_point=OddEnv), env_config=env_config)
    episode = await play(setup_of(**{"blueprint": blueprint, "max_turns": 3, **changes}), TokenPolicy())
    assert episode.outcome is Outcome.FAILED
    assert episode.failure is not None
    assert episode.failure.kind == kind
    assert episode.failure.boundary in (Boundary.CONFIGURATION, Boundary.ENVIRONMENT)
    assert says in episode.failure.message


async def test_an_opponent_that_breaks_fails_the_episode() -> None:
    class Broken(Policy):
        name = "broken"

        async def act(self, turn: TurnContext) -> Reply:
            raise RuntimeError("no server")

    episode = await play(setup_of([POLICY, "past"]), TokenPolicy(), others={"past": Broken()})
    assert episode.failure is not None
    assert episode.failure.boundary is Boundary.POLICY
    assert not episode.success


@pytest.mark.parametrize(
    ("players", "task", "found"),
    [
        ([], 5, [POLICY] * 3),
        ([POLICY], 5, [POLICY] * 3),
        ([POLICY, "random"], 0, [POLICY, "random", "random"]),
        ([POLICY, "random"], 1, ["random", "random", POLICY]),
        (["a", POLICY, "b"], 4, [POLICY, "b", "a"]),
        ({"x": "a", "y": POLICY, "z": "b"}, 4, ["a", POLICY, "b"]),
    ],
)
def test_a_list_of_players_moves_on_by_one_role_from_task_to_task(
    players: Players, task: int, found: list[str]
) -> None:
    assert list(seated(players, ["x", "y", "z"], task).values()) == found


async def test_a_group_of_self_play_is_dropped_only_where_no_role_has_anything_to_learn() -> None:
    filters = GroupFilters(["zero_variance"], limit=100)
    groups = [await self_play(1, 6), await self_play(1, 1) * 3]
    # The sum over both roles never differs in a zero-sum game; what each role earned does.
    assert [filters.judge(group, is_awaited=True) is None for group in groups] == [True, False]
    shares = [
        rollout_metrics(RolloutBatch(version=5, groups=[group]))["rollout/zero_variance_groups_share"]
        for group in groups
    ]
    assert shares == [0.0, 1.0]


async def test_metrics_count_wins_by_role_and_validity_of_the_policy_alone() -> None:
    invalid = TokenPolicy(invalid=0.5)
    group = [
        await play(setup_of([POLICY, "past"]), TokenPolicy(), others={"past": invalid}, seed=seed, task=seed)
        for seed in range(8)
    ]
    metrics = rollout_metrics(RolloutBatch(version=5, groups=[group]))
    assert metrics["env/action_is_valid"] == 1.0
    for role in "XO":
        rates = [metrics[f"players/{result}/Game/{role}"] for result in Result]
        assert sum(rates) == pytest.approx(1.0)
    assert metrics["success/Game"] == np.mean([each.has_won for each in group])
