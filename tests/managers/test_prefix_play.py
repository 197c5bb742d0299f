"""Episodes that begin with replayed turns, and those whose limit on turns grows."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from envsdk.algorithms.task_samplers.prefixes import Prefix
from envsdk.algorithms.units import as_roles
from envsdk.base import registry
from envsdk.base.store.trajectories import from_record_batch, to_record_batch
from envsdk.contracts.failures import Boundary
from envsdk.contracts.policy import Policy, Reply, SequenceFull, TurnContext
from envsdk.contracts.prompts import PREFIX, AgentPrompts
from envsdk.contracts.trajectory import Outcome, Task, Trajectory, VersionSpan
from envsdk.managers.env_host import EnvBlueprint
from envsdk.managers.episode import EpisodeOrder
from envsdk.managers.traj_env_manager import LeaseSource, TagSetup, TrajEnvManager, TurnCurriculum
from envsdk.view.trajectory_view import trajectory_view

LAKE = {"size": 4, "random_start": True, "random_goal": True, "min_distance": 4, "max_steps": 12}
PENALIZED = EnvBlueprint(spec=registry.spec("envsdk/FrozenLake-v1"), env_config={**LAKE, "step_penalty": 0.1})
TASK = Task(tag="Lake", split="train", index=3)


class Recording(Policy):
    """Follows the oracle, or steps aside; remembers what it was asked. Each turn has a prompt and a reply
    token."""

    name = "recording"

    def __init__(self, *, wins: bool = True) -> None:
        self.asked: list[TurnContext] = []
        self.wins = wins

    async def act(self, turn: TurnContext) -> Reply:
        self.asked.append(turn)
        turn.log.append_prompt([1])
        start = len(turn.log)
        turn.log.append_sampled([2], [-0.5], [VersionSpan(version=4, start=0, end=1)])
        text = await turn.env.oracle() if self.wins else "no move at all"
        return Reply(text=text, response_start=start, response_end=len(turn.log))


class Once(LeaseSource):
    def __init__(self, order: EpisodeOrder) -> None:
        self.orders = [order]
        self.played: list[Trajectory] = []

    async def lease(self, slot_id: str, tag: str) -> EpisodeOrder | None:
        return self.orders.pop() if self.orders else None

    def submit(self, slot_id: str, lease_id: int, trajectory: Trajectory) -> None:
        self.played.append(trajectory)

    def released(self, slot_id: str, lease_id: int, num_tokens: int) -> None:
        raise AssertionError


def play(policy: Policy, prefix: Prefix | None = None, group_id: int = 0, **changes: Any) -> Trajectory:
    order = EpisodeOrder(
        lease_id=0, group_id=group_id, member=0, task=TASK, seed=TASK.seed(0), policy_seed=0, prefix=prefix
    )
    blueprint = EnvBlueprint(spec=registry.spec("envsdk/FrozenLake-v1"), env_config=LAKE)
    setup = TagSetup(
        tag="Lake", blueprint=blueprint, prompts=AgentPrompts(template="{turn_idx}: {observation}")
    )
    leases = Once(order)
    manager = TrajEnvManager(
        slot_id="s", setup=replace(setup, max_turns=12, **changes), policy=policy, leases=leases
    )
    asyncio.run(manager.run_rollout_loop())
    return leases.played[0]


def replies(trajectory: Trajectory) -> Sequence[str]:
    return [turn.reply for turn in trajectory.turns]


def test_own_replies_are_replayed_shown_and_given() -> None:
    whole = play(Recording())
    policy = Recording()
    found = play(policy, Prefix(replies=replies(whole)[:2]))
    assert replies(found) == replies(whole)
    assert [turn.observation for turn in found.turns] == [turn.observation for turn in whole.turns]
    assert [turn.role for turn in found.turns] == [PREFIX, PREFIX] + [""] * (len(whole.turns) - 2)
    assert (found.success, found.num_replayed, found.seed) == (True, 2, whole.seed)

    first = policy.asked[0]
    assert (first.turn_index, first.num_actions_left, first.prompt_group) == (2, 10, None)
    assert first.prompt == f"3: {whole.turns[2].observation}"
    assert [message["role"] for message in first.history] == ["user", "assistant"] * 2
    assert first.history[2]["content"] == f"2: {whole.turns[1].observation}"
    assert len(policy.asked) == len(whole.turns) - 2

    tokens = found.tokens
    assert tokens is not None
    assert tokens.response_mask.sum() == len(policy.asked), "no token of a replayed turn is trained"
    assert all(turn.response_start == turn.response_end == 0 for turn in found.turns[:2])
    assert found.learns(found.segments()[0])
    assert as_roles([found]) == [[found]]


def test_a_replayed_turn_earns_nothing_and_stays_marked_on_disk_and_in_the_viewer() -> None:
    whole = play(Recording(), blueprint=PENALIZED)
    found = play(Recording(), Prefix(replies=replies(whole)[:2]), blueprint=PENALIZED)
    assert found.total_reward == pytest.approx(sum(turn.reward for turn in whole.turns[2:]))
    (again,) = from_record_batch(to_record_batch([found]))
    assert (again.num_replayed, again.total_reward) == (2, found.total_reward)
    about = defaultdict(lambda: None)
    turns = trajectory_view(again, key="", about=about, texts=None)["turns"]
    assert [turn["is_replayed"] for turn in turns[:3]] == [True, True, False]


def test_the_oracle_plays_the_beginning_of_a_task_that_nobody_has_solved() -> None:
    whole = play(Recording())
    found = play(Recording(wins=False), Prefix(share=0.5))
    number = round(len(whole.turns) / 2)
    assert found.num_replayed == number
    assert replies(found)[:number] == replies(whole)[:number]
    assert not found.success


def test_an_environment_that_does_not_follow_its_seed_is_named() -> None:
    whole = play(Recording())
    failed = play(Recording(), Prefix(replies=replies(whole)))
    assert failed.failure is not None
    assert (failed.failure.boundary, failed.failure.kind) == (Boundary.ENVIRONMENT, "prefix_ended")


def test_a_prefix_that_leaves_no_room_is_no_outcome() -> None:
    class Full(Policy):
        name = "full"

        async def act(self, turn: TurnContext) -> Reply:
            raise SequenceFull(num_tokens=9, max_new_tokens=9, sequence_length=9)

    whole = play(Recording())
    assert play(Full(), Prefix(replies=replies(whole)[:1])).outcome is Outcome.FAILED


@pytest.mark.parametrize(("group_id", "turns"), [(0, 2), (7, 2), (8, 5), (16, 8), (1000, 12)])
def test_the_limit_on_turns_grows_with_the_groups(group_id: int, turns: int) -> None:
    growing = TurnCurriculum(start=2, add=3, every=8)
    policy = Recording(wins=False)
    found = play(policy, group_id=group_id, turn_curriculum=growing)
    assert len(found.turns) == turns
    assert found.outcome is Outcome.TRUNCATED
    assert policy.asked[0].num_actions_left == turns


def test_replayed_turns_do_not_count_towards_the_growing_limit() -> None:
    whole = play(Recording())
    policy = Recording(wins=False)
    growing = TurnCurriculum(start=2, add=3, every=8)
    found = play(policy, Prefix(replies=replies(whole)[:2]), turn_curriculum=growing)
    assert (len(found.turns), len(policy.asked)) == (4, 2)
