"""What is imitated stands behind the very prompts with which an engine is asked in play."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsdk.algorithms.task_samplers.prefixes import Prefix
from envsdk.contracts.chat import ChatTokenizer
from envsdk.contracts.env import EnvSpec, Info
from envsdk.contracts.prompts import AgentPrompts
from envsdk.contracts.trajectory import Task, Trajectory
from envsdk.engines.engine_policy import EnginePolicy
from envsdk.engines.sampling import SamplingParams
from envsdk.managers.env_host import EnvBlueprint
from envsdk.managers.episode import EpisodeOrder
from envsdk.managers.traj_env_manager import TagSetup, TrajEnvManager
from envsdk.rollouts.datasets.conversations import read_conversations
from envsdk.rollouts.datasets.formats import export, make_formats
from envsdk.rollouts.datasets.reading import open_dataset
from envsdk.rollouts.datasets.saving import save_episodes
from envsdk.trainers.warm_start.fine_tuning import _tokenize
from envsdk.trainers.warm_start.imitation import Demonstration
from envsdk.trainers.warm_start.prepare import demonstrations_of
from tests.envsdk.engines.endpoint_models import CHATS
from tests.envsdk.engines.test_engine_policy import ScriptedProxy
from tests.managers.test_prefix_play import Once
from tests.managers.toy_envs import CountingEnv

LOOK = {"name": "look", "description": "Look around.", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": LOOK}]
EXAMPLE = [{"role": "user", "content": "1 <|im_end|> 1"}, {"role": "assistant", "content": " hello\n"}]
OWN_SYSTEM = [{"role": "system", "content": "Mine <|end|> alone."}]
REPLIES = ("hello", "<answer>Up</answer>", "walk on ice", "Down", "world")
TASK = Task(tag="Talk", split="train", index=0)


class TalkingEnv(CountingEnv):
    """Says at its beginning whatever `start` holds; where there are two players, they take turns."""

    def __init__(self, start: Info) -> None:
        super().__init__(num_turns=5)
        self._start = start

    def _next(self) -> Info:
        roles = self._start.get("roles")
        return {"role": roles[self._turn % 2]} if roles else {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        observation, _ = super().reset(seed=seed)
        return observation, {**self._start, **self._next()}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, {**info, **self._next()}


def play(
    chat: ChatTokenizer, start: Info, prefix: Prefix | None, system: str, **context: int
) -> tuple[Trajectory, list[list[int]]]:
    """An episode, and the prompts with which the engine was asked."""
    spec = EnvSpec(id="toy/Talk-v0", entry_point=TalkingEnv)
    setup = TagSetup(
        tag="Talk",
        blueprint=EnvBlueprint(spec=spec, env_config={"start": start}),
        prompts=AgentPrompts(system=system, template="{turn_idx} of {actions_left}: {observation}"),
        max_turns=9,
        max_new_tokens=32,
        compact_prompt="What do you remember?",
        **context,
    )
    proxy = ScriptedProxy(*(chat.reply(REPLIES[number % len(REPLIES)]) for number in range(20)))
    policy = EnginePolicy(proxy, chat, SamplingParams(max_new_tokens=32), sequence_length=4096)
    order = EpisodeOrder(lease_id=0, group_id=0, member=0, task=TASK, seed=7, policy_seed=0, prefix=prefix)
    leases = Once(order)
    manager = TrajEnvManager(slot_id="s", setup=setup, policy=policy, leases=leases)
    asyncio.run(manager.run_rollout_loop())
    (trajectory,) = leases.played
    assert trajectory.failure is None
    asked = [request.prompt_ids.tolist() for request in proxy.requests]
    return replace(trajectory, shown=setup.shown), asked


def prompts_of(demonstrations: list[Demonstration]) -> list[list[int]]:
    """What stands before each reply that is learned."""
    return [
        demo.ids[:start].tolist()
        for demo in demonstrations
        for start in np.flatnonzero(np.diff(demo.response_mask, prepend=0) == 1)
    ]


CASES = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(sorted(CHATS)),
        "tools": st.booleans(),
        "history": st.sampled_from([[], EXAMPLE, [*OWN_SYSTEM, *EXAMPLE], OWN_SYSTEM]),
        "system": st.sampled_from(["", "You walk <|end|> on ice."]),
        "context": st.sampled_from([{}, {"window": 1}, {"window": 3}, {"compact_at": 60}, "prefix", "roles"]),
    }
)


@settings(max_examples=25, deadline=None)
@given(case=CASES)
def test_a_demonstration_and_a_collected_episode_have_the_prompts_of_play(case: dict[str, Any]) -> None:
    chat, context = CHATS[case["kind"]], case["context"]
    start: Info = {"history": case["history"]} | ({"tools": TOOLS} if case["tools"] else {})
    prefix = Prefix(replies=("go left", "go right")) if context == "prefix" else None
    start |= {"roles": ["one", "two"]} if context == "roles" else {}
    limits = context if isinstance(context, dict) else {}
    trajectory, asked = play(chat, start, prefix, case["system"], **limits)
    assert trajectory.shown is not None
    imitated = prompts_of(demonstrations_of(trajectory, chat, trajectory.shown, 4096))
    assert sorted(imitated) == sorted(asked)
    with tempfile.TemporaryDirectory() as folder:
        save_episodes([trajectory], Path(folder) / "kept", policy="model")
        demos, num_cut = _tokenize(read_conversations([Path(folder) / "kept"]), chat, 4096)
        assert (sorted(prompts_of(demos)), num_cut) == (sorted(asked), 0)


@pytest.mark.parametrize("kind", sorted(CHATS))
@pytest.mark.parametrize("name", ["messages", "messages-parquet"])
def test_exported_messages_keep_the_tools(kind: str, name: str, tmp_path: Path) -> None:
    chat = CHATS[kind]
    trajectory, asked = play(chat, {"tools": TOOLS}, None, "You walk.")
    save_episodes([trajectory], tmp_path / "kept", policy="model")
    dataset = open_dataset(tmp_path / "kept")
    assert dataset.manifest is not None
    export(dataset, *make_formats([name]), dataset.manifest)
    demos, _ = _tokenize(read_conversations([tmp_path / "kept" / name]), chat, 4096)
    assert prompts_of(demos) == asked
