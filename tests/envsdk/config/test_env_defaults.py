"""A tag that sets neither its limit of turns nor its prompt has those of its environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import envsdk
from envsdk.config import explain, load_config
from envsdk.config.env_defaults import turn_limit
from envsdk.contracts.env import EnvSpec, Isolation
from envsdk.contracts.turn_env import TurnEnv, TurnResult
from envsdk.managers.wiring import tag_setups

RUN = """\
rollout_batch_size: 16
val_batch_size: 8
sequence_length: 1024
max_steps: 2
custom_envs:
  Lake:
    env_type: envsdk/FrozenLake-v1
    env_config: {size: 4, max_steps: 9}
train_env_manager: &manager
  tags: [Lake]
  num_env_groups: 4
  group_size: 4
val_env_manager: *manager
actor_infer:
  strategy_args: {strategy_name: mock}
"""


class Attribute(TurnEnv[str]):
    """Its limit is an attribute of the class; it says what it is told."""

    max_steps = 4

    def start(self, rng: np.random.Generator, options: dict[str, Any]) -> None: ...

    def parse(self, reply: str) -> str:
        return reply

    def play(self, action: str) -> TurnResult:
        return TurnResult()

    def observe(self) -> str:
        return "?"


class Argument(Attribute):
    """Its limit is an argument."""

    def __init__(self, max_steps: int = 6) -> None:
        super().__init__(max_steps=max_steps)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    return path


def test_what_a_tag_leaves_out_is_the_environments_own(run: Path) -> None:
    loaded = load_config(run)
    lake = loaded.config.custom_envs["Lake"]
    assert lake.max_steps == 9
    spec = envsdk.spec("envsdk/FrozenLake-v1")
    assert lake.agent_system_template == f"{spec.description}\n{spec.action_format}"
    for key in ("max_steps", "agent_system_template"):
        assert loaded.provenance[f"custom_envs.Lake.{key}"] == "the environment's own"
    assert "the environment's own" in explain(loaded)
    setup = tag_setups(loaded.config, loaded.config.train_env_manager)["Lake"]
    assert (setup.max_turns, setup.prompts.system) == (9, lake.agent_system_template)


def test_what_a_tag_sets_holds(run: Path) -> None:
    changes = ["custom_envs.Lake.max_steps=5", "custom_envs.Lake.agent_system_template=''"]
    loaded = load_config(run, changes)
    lake = loaded.config.custom_envs["Lake"]
    assert (lake.max_steps, lake.agent_system_template) == (5, "")
    assert loaded.provenance["custom_envs.Lake.max_steps"] == "override"


def test_the_resolved_file_says_both(run: Path, tmp_path: Path) -> None:
    loaded = load_config(run)
    again = tmp_path / "again.yaml"
    again.write_text(loaded.resolved_yaml())
    assert load_config(again).config == loaded.config


def test_prompts_of_a_file_have_no_system_prompt_of_the_environments() -> None:
    config = load_config("rlvr_async.yaml").config
    assert {custom.agent_system_template for custom in config.custom_envs.values()} == {""}


@pytest.mark.parametrize("isolation", [Isolation.INLINE, Isolation.PROCESS])
@pytest.mark.parametrize(
    ("kind", "env_config", "spec_limit", "limit"),
    [
        (Attribute, {}, None, 4),
        (Attribute, {"max_steps": 3}, None, 3),
        (Argument, {}, 50, 6),
        (Argument, {"max_steps": 7}, None, 7),
    ],
)
def test_the_limit_is_found_wherever_the_environment_runs(
    isolation: Isolation,
    kind: type[Attribute],
    env_config: dict[str, Any],
    spec_limit: int | None,
    limit: int,
) -> None:
    spec = EnvSpec(id="limits/Any-v0", entry_point=kind, isolation=isolation, max_steps=spec_limit)
    assert turn_limit(spec, env_config) == limit


def test_an_environment_without_a_limit_has_the_specs() -> None:
    class Endless(envsdk.TextEnv):
        def reset(self, **_: Any) -> Any: ...

        def step(self, action: str) -> Any: ...

    assert turn_limit(EnvSpec(id="limits/Endless-v0", entry_point=Endless), {}) is None
    assert turn_limit(EnvSpec(id="limits/Endless-v0", entry_point=Endless, max_steps=5), {}) == 5
