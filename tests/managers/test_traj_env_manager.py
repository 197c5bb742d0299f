from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from envsdk.contracts.env import EnvSpec, Info
from envsdk.contracts.failures import Boundary, ConfigurationError, Failure
from envsdk.contracts.policy import Policy, PolicyFailed, Reply, SequenceFull, TurnContext
from envsdk.contracts.prompts import AgentPrompts, TagPrompts
from envsdk.contracts.trajectory import FinishReason, Outcome, Task, Trajectory, VersionSpan
from envsdk.engines.tool_calls.reading import AttemptStatus, attempt_metric
from envsdk.managers.env_host import EnvBlueprint
from envsdk.managers.episode import EpisodeOrder
from envsdk.managers.traj_env_manager import LeaseSource, TagSetup, TrajEnvManager
from envsdk.rollouts.play.local_runner import play_tasks
from tests.managers.toy_envs import COUNTING, TROUBLESOME, CountingEnv


class TokenPolicy(Policy):
    """Writes one prompt token and two sampled tokens per turn."""

    name = "tokens"

    async def act(self, turn: TurnContext) -> Reply:
        await asyncio.sleep(0)
        turn.log.append_prompt([1])
        start = len(turn.log)
        span = VersionSpan(version=turn.turn_index, start=0, end=2)
        turn.log.append_sampled([2, 3], [-0.5, -0.25], [span])
        return Reply(text=f"{turn.prompt}!", response_start=start, response_end=len(turn.log))


class FailingPolicy(Policy):
    name = "failing"

    def __init__(self, error: Exception, after: int) -> None:
        self._error, self._after = error, after

    async def act(self, turn: TurnContext) -> Reply:
        if turn.turn_index >= self._after:
            raise self._error
        return Reply(text="go")


def setup(**changes: object) -> TagSetup:
    defaults = {"tag": "Toy", "blueprint": EnvBlueprint(spec=COUNTING), "max_turns": 10}
    return TagSetup(**(defaults | changes))  # type: ignore[arg-type]


async def play(tag_setup: TagSetup, policy: Policy, num_episodes: int = 1) -> list[Trajectory]:
    played: dict[int, Trajectory] = {}
    await play_tasks(
        [(i, Task(tag="Toy", split="train", index=i)) for i in range(num_episodes)],
        setups={"Toy": tag_setup},
        policy=lambda _: policy,
        run_seed=0,
        num_slots_per_tag=3,
        on_trajectory=played.__setitem__,
    )
    assert sorted(played) == list(range(num_episodes))
    return [played[i] for i in range(num_episodes)]


async def test_an_episode_keeps_every_turn_with_its_tokens_and_versions() -> None:
    prompts = AgentPrompts(system="Count.", template="{turn_idx} of {actions_left}: {observation}")
    (trajectory,) = await play(setup(prompts=prompts), TokenPolicy())
    assert trajectory.outcome is Outcome.TERMINATED
    assert trajectory.success
    assert trajectory.total_reward == 1.0
    seed = trajectory.seed
    assert [turn.reply for turn in trajectory.turns] == [
        f"{turn + 1} of {10 - turn}: seed {seed} turn {turn}!" for turn in range(3)
    ]
    assert trajectory.tokens is not None
    assert trajectory.tokens.ids.tolist() == [1, 2, 3] * 3
    assert trajectory.tokens.response_mask.tolist() == [0, 1, 1] * 3
    assert trajectory.tokens.versions.tolist() == [-1, 0, 0, -1, 1, 1, -1, 2, 2]
    assert trajectory.oldest_version == 0
    spans = [(turn.response_start, turn.response_end) for turn in trajectory.turns]
    assert spans == [(1, 3), (4, 6), (7, 9)]
    assert trajectory.final_observation == f"seed {seed} turn 3"
    assert [turn.state_hash for turn in trajectory.turns] == [None] * 3


class ShownEnv(CountingEnv):
    """One turn after a worked example, with a verdict."""

    HISTORY = ({"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": "2"})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        return "2 + 2", {"history": list(self.HISTORY)}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        return "", 0.0, True, False, {"details": {"verdict": "5 is not 4"}}


class ShowingPolicy(Policy):
    name = "showing"

    async def act(self, turn: TurnContext) -> Reply:
        return Reply(text=" ".join(each["content"] for each in turn.history))


async def test_a_policy_gets_the_history_and_a_turn_keeps_its_details() -> None:
    shown = EnvBlueprint(spec=EnvSpec(id="toy/Shown-v0", entry_point=ShownEnv))
    (trajectory,) = await play(setup(blueprint=shown), ShowingPolicy())
    (turn,) = trajectory.turns
    assert turn.reply == "1 + 1 2"
    assert json.loads(turn.details or "")["verdict"] == "5 is not 4"
    messages = TagPrompts(prompts=AgentPrompts(system="Count."), max_turns=1).line([turn]).messages
    assert [each["content"] for each in messages] == ["Count.", "1 + 1", "2", "2 + 2", "1 + 1 2"]


class CallingEnv(CountingEnv):
    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, True, truncated, {**info, "metrics": attempt_metric(AttemptStatus.CUT)}


class EndingPolicy(Policy):
    name = "ending"

    def __init__(self, finish_reason: FinishReason) -> None:
        self._finish_reason = finish_reason

    async def act(self, turn: TurnContext) -> Reply:
        return Reply(text="go", finish_reason=self._finish_reason)


@pytest.mark.parametrize(
    ("ends", "status"),
    [(FinishReason.STOP, AttemptStatus.MALFORMED), (FinishReason.LENGTH, AttemptStatus.CUT)],
)
async def test_a_call_is_recorded_as_cut_where_a_limit_ended_it(
    ends: FinishReason, status: AttemptStatus
) -> None:
    calling = EnvBlueprint(spec=EnvSpec(id="toy/Calling-v0", entry_point=CallingEnv))
    (trajectory,) = await play(setup(blueprint=calling), EndingPolicy(ends))
    assert trajectory.turns[0].metrics == attempt_metric(status)


async def test_each_turn_carries_the_hash_of_the_state_it_was_played_in_where_asked() -> None:
    (trajectory,) = await play(setup(with_state_hashes=True), TokenPolicy())
    assert [turn.state_hash for turn in trajectory.turns] == [
        f"{trajectory.seed}/{turn}" for turn in range(3)
    ]


async def test_the_turn_limit_truncates() -> None:
    (trajectory,) = await play(setup(max_turns=2), TokenPolicy())
    assert trajectory.outcome is Outcome.TRUNCATED
    assert len(trajectory.turns) == 2
    assert not trajectory.success


class SolvedEarlyEnv(CountingEnv):
    """Solved with the first turn, and goes on."""

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        observation, _, _, _, info = super().step(action)
        return observation, 0.0, False, False, {**info, "success": True}


async def test_success_is_that_of_the_last_step_whoever_ended_the_episode() -> None:
    solved = EnvBlueprint(spec=EnvSpec(id="toy/SolvedEarly-v0", entry_point=SolvedEarlyEnv))
    full = SequenceFull(num_tokens=90, max_new_tokens=16, sequence_length=100)
    for tag_setup, policy in (
        (setup(blueprint=solved, max_turns=2), TokenPolicy()),
        (setup(blueprint=solved), FailingPolicy(full, after=2)),
    ):
        (trajectory,) = await play(tag_setup, policy)
        assert (trajectory.outcome, trajectory.success) == (Outcome.TRUNCATED, True)


async def test_a_full_sequence_truncates_but_a_first_prompt_too_long_is_a_configuration_failure() -> None:
    full = SequenceFull(num_tokens=90, max_new_tokens=16, sequence_length=100)
    (later,) = await play(setup(), FailingPolicy(full, after=2))
    assert later.outcome is Outcome.TRUNCATED
    assert len(later.turns) == 2
    (first,) = await play(setup(), FailingPolicy(full, after=0))
    assert first.outcome is Outcome.FAILED
    assert first.failure is not None
    assert first.failure.boundary is Boundary.CONFIGURATION
    assert "sequence_length=100" in first.failure.message
    assert "custom_envs.Toy.agent_system_template" in first.failure.message


async def test_an_engine_failure_is_data() -> None:
    failure = Failure(boundary=Boundary.ENGINE, kind="turn_timeout", message="no reply")
    (trajectory,) = await play(setup(), FailingPolicy(PolicyFailed(failure), after=1))
    assert trajectory.failure == failure
    assert not trajectory.success
    assert len(trajectory.turns) == 1


async def test_an_exception_of_the_policy_fails_its_episode_and_says_where_it_was_raised() -> None:
    failed, other = await play(setup(), FailsAtFirst(), num_episodes=2)
    assert failed.failure is not None
    assert (failed.failure.boundary, failed.failure.kind) == (Boundary.POLICY, "raised")
    message = failed.failure.message
    assert message.startswith("KeyError: 'reply' (at managers/test_traj_env_manager.py:")
    assert message.endswith(" parsed)")
    assert other.failure is None
    assert other.success


class FailsAtFirst(Policy):
    name = "fails-at-first"
    num_asked = 0

    async def act(self, turn: TurnContext) -> Reply:
        self.num_asked += 1
        return Reply(text=self.parsed({} if self.num_asked == 1 else {"reply": "go"}))

    def parsed(self, answer: dict[str, str]) -> str:
        return answer["reply"]


@pytest.mark.parametrize("answer", ["go", None, Reply(text=None)])  # type: ignore[arg-type]
async def test_what_is_no_reply_fails_the_policy_and_not_the_environment(answer: object) -> None:
    class Loose(Policy):
        name = "loose"

        async def act(self, turn: TurnContext) -> Reply:
            return answer  # type: ignore[return-value]

    (trajectory,) = await play(setup(), Loose())
    assert trajectory.failure is not None
    assert trajectory.failure.boundary is Boundary.POLICY
    assert "must return a Reply with text" in trajectory.failure.message


async def test_an_error_of_envsdk_in_a_policy_ends_the_run() -> None:
    with pytest.raises(BaseExceptionGroup) as ended:
        await play(setup(), FailingPolicy(ConfigurationError("no key"), after=0))
    assert ended.group_contains(ConfigurationError)


async def test_a_raising_environment_fails_its_own_episodes_only() -> None:
    blueprint = EnvBlueprint(spec=TROUBLESOME, env_config={"how": "raise", "share": 0.5})
    trajectories = await play(setup(blueprint=blueprint), TokenPolicy(), num_episodes=40)
    for trajectory in trajectories:
        troubled = trajectory.seed % 100 < 50
        assert (trajectory.failure is not None) == troubled
        assert trajectory.success != troubled
    assert any(t.failure for t in trajectories)
    assert not all(t.failure for t in trajectories)


class OneByOne(LeaseSource):
    """Hands out the given orders and records what comes back."""

    def __init__(self, orders: Sequence[EpisodeOrder]) -> None:
        self._orders = list(orders)
        self.submitted: list[int] = []
        self.returned: list[int] = []
        self.num_returned_tokens = 0

    async def lease(self, slot_id: str, tag: str) -> EpisodeOrder | None:
        return self._orders.pop(0) if self._orders else None

    def submit(self, slot_id: str, lease_id: int, trajectory: Trajectory) -> None:
        self.submitted.append(lease_id)

    def released(self, slot_id: str, lease_id: int, num_tokens: int) -> None:
        self.returned.append(lease_id)
        self.num_returned_tokens += num_tokens


class StuckPolicy(Policy):
    """Never replies to the first episode."""

    name = "stuck"

    def __init__(self) -> None:
        self.stuck = asyncio.Event()

    async def act(self, turn: TurnContext) -> Reply:
        if turn.session_id == "train-0":
            self.stuck.set()
            await asyncio.Event().wait()
        return Reply(text="go")


async def test_a_cancelled_lease_is_released_and_the_slot_plays_on() -> None:
    task = Task(tag="Toy", split="train", index=0)
    orders = [
        EpisodeOrder(lease_id=i, group_id=0, member=i, task=task, seed=1, policy_seed=i) for i in range(3)
    ]
    leases, policy = OneByOne(orders), StuckPolicy()
    manager = TrajEnvManager(slot_id="s", setup=setup(), policy=policy, leases=leases)
    loop = asyncio.ensure_future(manager.run_rollout_loop())
    await policy.stuck.wait()
    manager.cancel(17)
    manager.cancel(0)
    manager.cancel(0)
    await loop
    assert leases.returned == [0]
    assert leases.submitted == [1, 2]


class StuckAfterATurn(TokenPolicy):
    """Replies once."""

    def __init__(self) -> None:
        self.stuck = asyncio.Event()

    async def act(self, turn: TurnContext) -> Reply:
        if turn.turn_index:
            self.stuck.set()
            await asyncio.Event().wait()
        return await super().act(turn)


async def test_the_replies_of_a_cancelled_episode_are_counted() -> None:
    task = Task(tag="Toy", split="train", index=0)
    order = EpisodeOrder(lease_id=0, group_id=0, member=0, task=task, seed=1, policy_seed=0)
    leases, policy = OneByOne([order]), StuckAfterATurn()
    manager = TrajEnvManager(slot_id="s", setup=setup(), policy=policy, leases=leases)
    loop = asyncio.ensure_future(manager.run_rollout_loop())
    await policy.stuck.wait()
    manager.cancel(0)
    await loop
    assert leases.returned == [0]
    assert leases.num_returned_tokens == 2


async def test_cancelling_the_loop_itself_ends_it() -> None:
    task = Task(tag="Toy", split="train", index=0)
    order = EpisodeOrder(lease_id=0, group_id=0, member=0, task=task, seed=1, policy_seed=0)
    policy = StuckPolicy()
    manager = TrajEnvManager(slot_id="s", setup=setup(), policy=policy, leases=OneByOne([order]))
    loop = asyncio.ensure_future(manager.run_rollout_loop())
    await policy.stuck.wait()
    loop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loop
