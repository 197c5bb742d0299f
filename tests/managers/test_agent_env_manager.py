"""Outside agents on an environment slot: what they sampled is the trajectory, whatever becomes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from envsdk.algorithms.args import AlgorithmArgs
from envsdk.algorithms.batches import ModelScores, learnable, prepare_batch
from envsdk.base.store.trajectories import read_trajectories
from envsdk.collect import collect
from envsdk.contracts.failures import Boundary
from envsdk.contracts.prompts import AgentPrompts
from envsdk.contracts.trajectory import Outcome, Task, Trajectory
from envsdk.engines.engine import EngineConfig
from envsdk.engines.engine_policy import EnginePolicy
from envsdk.engines.mock import MockEngine
from envsdk.engines.proxy import InferenceProxy, LocalLink
from envsdk.engines.sampling import SamplingParams
from envsdk.managers.env_host import EnvBlueprint
from envsdk.managers.episode import EpisodeOrder
from envsdk.managers.traj_env_manager import LeaseSource, TagSetup, TrajEnvManager
from envsdk.rollouts.play.local_runner import play_tasks
from envsdk.trainers.warm_start.tiny_policy import build_tokenizer, write_tokenizer
from tests.envsdk.engines.endpoint_models import CHATS
from tests.managers import lake_agents
from tests.managers.toy_envs import COUNTING, TROUBLESOME

CHAT = CHATS["tiny_chat"]
REPLIES = [CHAT.reply(text) for text in ("hello", "Up Down", "<answer>Up</answer>")] + [CHAT.encode("hel")]


def setup(spec: Any = COUNTING, **changes: Any) -> TagSetup:
    env_config = changes.pop("env_config", {})
    prompts = AgentPrompts(system="You walk.", template="{turn_idx} of {actions_left}: {observation}")
    blueprint = EnvBlueprint(spec=spec, env_config=env_config, step_timeout_s=0.5)
    return TagSetup(**({"tag": "Toy", "blueprint": blueprint, "max_turns": 10, "prompts": prompts} | changes))


async def play(
    manager: type[TrajEnvManager],
    tag_setup: TagSetup | None = None,
    *,
    num_episodes: int = 1,
    sequence_length: int = 512,
    script: Mapping[str, Any] | None = None,
) -> list[Trajectory]:
    config = {"reply": REPLIES, **(script or {})}
    engine = MockEngine.create(
        EngineConfig(model=None, sequence_length=sequence_length, strategy_config=config)
    )
    await engine.start()
    proxy = InferenceProxy({"mock": LocalLink(engine)})
    proxy.start()
    policy = EnginePolicy(proxy, CHAT, SamplingParams(max_new_tokens=8), sequence_length=sequence_length)
    played: dict[int, Trajectory] = {}
    try:
        await play_tasks(
            [(i, Task(tag="Toy", split="train", index=i)) for i in range(num_episodes)],
            setups={"Toy": tag_setup or setup()},
            policy=lambda _: policy,
            run_seed=0,
            num_slots_per_tag=3,
            on_trajectory=played.__setitem__,
            manager_classes={"Toy": manager},
        )
    finally:
        await proxy.close()
        await engine.close()
    assert sorted(played) == list(range(num_episodes))
    return [played[i] for i in range(num_episodes)]


@pytest.mark.parametrize(
    "manager",
    [lake_agents.TurnByTurn, lake_agents.SendsMore, lake_agents.Program, lake_agents.ProgramOfMessages],
)
async def test_an_agent_that_plays_turn_by_turn_gets_the_tokens_that_the_usual_manager_gets(
    manager: type[TrajEnvManager],
) -> None:
    num_episodes = 8 if manager is lake_agents.TurnByTurn else 2
    hashed = setup(with_state_hashes=True)
    expected = await play(TrajEnvManager, hashed, num_episodes=num_episodes)
    found = await play(manager, hashed, num_episodes=num_episodes)
    assert any(turn.finish_reason == "length" or len(e.turns) == 3 for e in expected for turn in e.turns)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.tokens is not None
        assert theirs.tokens is not None
        for name in ("ids", "response_mask", "behavior_logprobs", "versions"):
            assert np.array_equal(getattr(ours.tokens, name), getattr(theirs.tokens, name)), name
        assert (ours.trajectory_id, ours.task, ours.seed, ours.group_id) == (
            theirs.trajectory_id,
            theirs.task,
            theirs.seed,
            theirs.group_id,
        )
        assert (ours.outcome, ours.success, ours.final_observation) == (
            theirs.outcome,
            theirs.success,
            theirs.final_observation,
        )
        for turn, other in zip(ours.turns, theirs.turns, strict=True):
            assert turn.observation.endswith(other.observation)
            assert (turn.reply, turn.reward, turn.response_start, turn.response_end) == (
                other.reply,
                other.reward,
                other.response_start,
                other.response_end,
            )
            metrics = {name: value for name, value in turn.metrics.items() if name != "ignored_fields"}
            assert (metrics, turn.state_hash) == (other.metrics, other.state_hash)
        # Of each request its user and metadata, of each reply that it repeats one field.
        num_turns = len(ours.turns)
        num_ignored = 2 * num_turns + num_turns * (num_turns - 1) // 2
        told = ours.turns[-1].metrics.get("ignored_fields", 0.0)
        assert told == (num_ignored if manager is lake_agents.SendsMore else 0.0)


async def test_the_turn_limit_truncates() -> None:
    (trajectory,) = await play(lake_agents.TurnByTurn, setup(max_turns=2))
    assert trajectory.outcome is Outcome.TRUNCATED
    assert len(trajectory.turns) == 2


async def test_a_full_context_truncates_but_a_first_prompt_too_long_is_a_configuration_failure() -> None:
    (later,) = await play(lake_agents.TurnByTurn, sequence_length=60)
    assert later.outcome is Outcome.TRUNCATED
    assert 0 < len(later.turns) < 3
    (first,) = await play(lake_agents.TurnByTurn, sequence_length=20)
    assert first.outcome is Outcome.FAILED
    assert first.failure is not None
    assert (first.failure.boundary, first.failure.kind) == (Boundary.CONFIGURATION, "prompt_too_long")


async def test_failures_are_put_down_to_whose_they_are() -> None:
    raising = setup(TROUBLESOME, env_config={"how": "raise"})
    raising_early = setup(TROUBLESOME, env_config={"how": "raise", "where": "reset"})
    cases: list[tuple[type[TrajEnvManager], TagSetup | None, dict[str, Any], tuple[Boundary, str]]] = [
        (lake_agents.BrokenProgram, None, {}, (Boundary.AGENT, "no lake here")),
        (lake_agents.Stubborn, raising, {}, (Boundary.ENVIRONMENT, "the lake is closed")),
        (lake_agents.Program, raising, {}, (Boundary.ENVIRONMENT, "the lake is closed")),
        (lake_agents.TurnByTurn, raising_early, {}, (Boundary.ENVIRONMENT, "the lake is closed")),
        (lake_agents.Stubborn, None, {"failure": {"rate": 1.0}}, (Boundary.ENGINE, "")),
    ]
    for manager, tag_setup, script, (boundary, message) in cases:
        (trajectory,) = await play(manager, tag_setup, script=script)
        assert trajectory.outcome is Outcome.FAILED
        assert trajectory.failure is not None, manager
        assert trajectory.failure.boundary is boundary, trajectory.failure
        assert message in trajectory.failure.message


async def test_an_agent_that_fails_after_the_end_changes_nothing() -> None:
    (trajectory,) = await play(lake_agents.StepsTooOften)
    assert trajectory.outcome is Outcome.TERMINATED
    assert trajectory.success
    assert trajectory.turns == ()
    assert trajectory.tokens is None


async def test_an_agent_that_leaves_early_is_truncated() -> None:
    (trajectory,) = await play(lake_agents.Idle)
    assert (trajectory.outcome, trajectory.failure) == (Outcome.TRUNCATED, None)


async def test_every_conversation_of_an_agent_is_a_segment_of_one_episode() -> None:
    (trajectory,) = await play(lake_agents.Forgetful, setup(env_config={"num_turns": 2}))
    assert trajectory.success
    assert trajectory.total_reward == 1.0
    assert [turn.follows for turn in trajectory.turns] == [None, -1, -1, -1]
    assert [turn.reward for turn in trajectory.turns] == [0.0, 0.0, 0.0, 1.0]
    assert [len(segment.turns) for segment in trajectory.segments()] == [1, 1, 1, 1]


async def test_an_agent_that_starts_another_one_learns_from_both() -> None:
    (trajectory,) = await play(lake_agents.Delegating, setup(env_config={"num_turns": 2}))
    assert [turn.follows for turn in trajectory.turns] == [None, -1, None, 0, 1]
    main, helper, other = trajectory.segments()
    assert (main.numbers, helper.numbers, other.numbers) == ([0, 3], [1, 2], [1, 4])
    assert (main.parent, helper.parent, other.parent, other.num_given_turns) == (None, None, 1, 1)
    assert sum(turn.reward for turn in main.turns) == trajectory.total_reward
    batch = prepare_batch(AlgorithmArgs(adv_estimator="reinforce"), 0, learnable([trajectory]), ModelScores())
    learned = sum(int(sequence.response_mask.sum()) for sequence in batch.batch.sequences)
    assert learned == sum(turn.response_end - turn.response_start for turn in trajectory.turns)


def test_a_collection_is_played_by_the_agent_that_the_configuration_names(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    write_tokenizer(model, build_tokenizer(["You walk. Up"]), sequence_length=1024)
    (model / "config.json").write_text("{}")
    overrides = [
        "custom_envs.FrozenLake.env_manager_cls=tests.managers.lake_agents:TurnByTurn",
        "actor_infer.strategy_args.strategy_name=mock",
        "sequence_length=1024",
    ]

    def play_into(folder: str, more: Sequence[str]) -> tuple[list[Trajectory], Mapping[str, Any]]:
        collection = collect(
            "agentic_async.yaml",
            tmp_path / folder,
            num_episodes=4,
            policy="model",
            tags=["FrozenLake"],
            model=model,
            overrides=[*more, *overrides[1:]],
        )
        (shard,) = collection.shards
        return read_trajectories(shard), collection.manifest.config["tags"]["FrozenLake"]

    by_agent, described = play_into("agent", overrides[:1])
    as_usual, described_as_usual = play_into("usual", [])
    assert described["env_manager_cls"] == "tests.managers.lake_agents:TurnByTurn"
    assert "env_manager_cls" not in described_as_usual
    for ours, theirs in zip(by_agent, as_usual, strict=True):
        assert ours.tokens is not None
        assert theirs.tokens is not None
        assert ours.tokens.ids.tolist() == theirs.tokens.ids.tolist()


class OneLease(LeaseSource):
    """An episode that nobody wants to see finished."""

    def __init__(self) -> None:
        task = Task(tag="Toy", split="train", index=0)
        self.orders = [EpisodeOrder(lease_id=0, group_id=0, member=0, task=task, seed=0, policy_seed=0)]
        self.released_ids: list[int] = []

    async def lease(self, slot_id: str, tag: str) -> EpisodeOrder | None:
        return self.orders.pop() if self.orders else None

    def submit(self, slot_id: str, lease_id: int, trajectory: Trajectory) -> None:
        raise AssertionError("it was canceled")

    def released(self, slot_id: str, lease_id: int, num_tokens: int) -> None:
        self.released_ids.append(lease_id)


async def test_a_canceled_episode_ends_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[asyncio.subprocess.Process] = []
    create = asyncio.create_subprocess_exec

    async def spy(*args: Any, **kwargs: Any) -> asyncio.subprocess.Process:
        started.append(await create(*args, **kwargs))
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", spy)
    policy = EnginePolicy(InferenceProxy({}), CHAT, SamplingParams(max_new_tokens=8), sequence_length=512)
    leases = OneLease()
    manager = lake_agents.HangingProgram(slot_id="s", setup=setup(), policy=policy, leases=leases)
    looping = asyncio.create_task(manager.run_rollout_loop())
    while not started or not (children := psutil.Process(started[0].pid).children()):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    manager.cancel(0)
    await looping
    assert leases.released_ids == [0]
    assert started[0].returncode is not None
    psutil.wait_procs(children, timeout=30)
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
