"""Past versions of the policy: which checkpoint they play before which step, and after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsdk.config import load_config
from envsdk.contracts.failures import ConfigurationError
from envsdk.engines.engine import EngineConfig
from envsdk.engines.engine_pool import PoolConfig
from envsdk.runs import opponents
from envsdk.runs.engine_group import EngineGroupSpec
from envsdk.runs.opponents import Opponents
from tests.tiny_policies import write_tiny_policy

EXAMPLE = Path(__file__).parents[3] / "examples" / "agentic_tic_tac_toe.yaml"


class Weights:
    """Instead of `GivenWeights`: remembers the folders."""

    def __init__(self, model: Path) -> None:
        self.held = str(model)

    def checked(self, folder: Path) -> str:
        return folder.name

    def hold(self, held: str) -> None:
        self.held = held


class Group:
    """Instead of `EngineGroup`: remembers what its engine played with, by publication."""

    def __init__(self, spec: EngineGroupSpec, weights: Weights | None, announce: Any, say: Any) -> None:
        self.spec = spec
        self.weights = weights
        self.published: list[tuple[int, str | None]] = []

    async def start(self) -> None:
        """Nothing is loaded."""

    async def choose_transport(self) -> None:
        """Nothing travels."""

    async def publish(self, version: int) -> None:
        self.published.append((version, self.weights and self.weights.held))


POLICY_SPEC = EngineGroupSpec(
    strategy_name="embedded",
    configs={"engine-0": EngineConfig(model=Path("policy"), sequence_length=64, max_running=4, seed=3)},
    pool=PoolConfig(),
    weight_update="inflight",
    transport="nccl",
    bucket_bytes=1,
    delta=True,
)


def opened(monkeypatch: pytest.MonkeyPatch, *overrides: str) -> Opponents:
    monkeypatch.setattr(opponents, "EngineGroup", Group)
    monkeypatch.setattr(opponents, "GivenWeights", Weights)
    config = load_config(EXAMPLE, overrides, to_explain=True).config  # where there may be no folder
    return Opponents(config, Path("policy"), POLICY_SPEC, lambda *_: None, print)  # type: ignore[arg-type, return-value]


PAST = ("opponents.past.refresh_steps=4", "save_steps=2", "custom_envs.SelfPlay.players=[policy,past]")


@settings(max_examples=25)
@given(first=st.integers(0, 12), last=st.integers(12, 24))
async def test_a_past_version_is_the_checkpoint_of_the_newest_multiple_before_and_after_a_resume(
    first: int, last: int
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        found = opened(monkeypatch, *PAST)
        for step in range(first, last + 1):
            await found.refresh(step)
    group: Any = found.groups["past"]
    # Whatever the run continues from, the opponent of a step is the same.
    steps = dict.fromkeys(step - step % 4 for step in range(first, last + 1))
    assert group.published == [(step, f"step_{step:06d}" if step else "policy") for step in steps]


async def test_a_frozen_opponent_keeps_the_weights_of_its_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = write_tiny_policy(tmp_path / "champion", ["X O"])
    found = opened(
        monkeypatch,
        f"opponents.champion.pretrain={folder}",
        "opponents.champion.device_mapping=[1]",
        "opponents.server.strategy_args={strategy_name: mock}",
        "custom_envs.SelfPlay.players=[policy,champion]",
        "custom_envs.AgainstRandom.players=[policy,server]",
        "sequence_length=256",
    )
    await found.start()
    for step in range(3):
        await found.refresh(step)
    champion, server = (found.groups[name] for name in ("champion", "server"))
    assert champion.published == [(0, None)]  # type: ignore[attr-defined]
    assert found.folders == {"champion": folder, "server": Path("policy")}
    spec: EngineGroupSpec = champion.spec  # type: ignore[attr-defined]
    assert list(spec.configs) == ["champion/engine-0"]
    assert spec.configs["champion/engine-0"].model == folder
    assert (spec.device_mapping, spec.transport, spec.delta) == ([1], "auto", False)
    assert server.spec.strategy_name == "mock"  # type: ignore[attr-defined]


def test_a_folder_that_is_none_is_named_by_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = "opponents.a.pretrain=/nowhere", "custom_envs.SelfPlay.players=[policy,a]"
    with pytest.raises(ConfigurationError, match=r"opponents\.a\.pretrain: "):
        opened(monkeypatch, *overrides)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["custom_envs.SelfPlay.players=[random]"], "none of them is policy"),
        (["custom_envs.SelfPlay.players=[policy,rndom]"], "did you mean `random`"),
        (["custom_envs.SelfPlay.players=[policy,past]"], "no player 'past' and `opponents` has none"),
        *(
            (
                [f"custom_envs.SelfPlay.players={given}"],
                r"1 problem\n.*SelfPlay\.players.*: must be a list of ",
            )
            for given in ("3", "random")
        ),
        (["custom_envs.SelfPlay.players=[]"], "1 problem\n.*none of them is policy"),
        (["custom_envs.SelfPlay.players=[policy,random,random]"], "has 2 roles"),
        (["custom_envs.SelfPlay.players={X: policy}"], "for each of the roles X, O"),
        (
            [
                "custom_envs.SelfPlay.players=[policy]",
                "custom_envs.SelfPlay.context=compact",
                "custom_envs.SelfPlay.compact_at=90",
            ],
            "context: compact takes no players",
        ),
        (["opponents.past.refresh_steps=4"], "no tag has it"),
        (["opponents.random.refresh_steps=4"], "no name for an opponent"),
        ([*PAST, "opponents.past.refresh_steps=3"], "take a multiple of save_steps, 2"),
        ([*PAST, "save_steps=0"], "take a multiple of save_steps, 0"),
        ([*PAST, "opponents.past.pretrain=x"], "checkpoints are what it plays"),
        ([*PAST, "opponents.past.strategy_args={strategy_name: embeded}"], "did you mean `embedded`"),
        (["advantage_unit=game"], "advantage_unit"),
    ],
)
def test_a_wrong_key_is_refused(overrides: list[str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        load_config(EXAMPLE, overrides)
