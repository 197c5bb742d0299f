"""Which roles take turns on devices, what --explain says of it, and what is refused."""

from __future__ import annotations

import pytest

from envsdk.config import RunConfig, explain, load_config
from envsdk.config.device_sharing import device_groups
from envsdk.contracts.failures import ConfigurationError

MAPPED = (
    "actor_train.strategy_args.strategy_name=fsdp2_train",
    "reference.strategy_args.strategy_name=fsdp2_train",
    "actor_infer.strategy_args.strategy_name=vllm",
)


def config(*overrides: str, file: str = "agentic_sync.yaml") -> RunConfig:
    return load_config(file, [*MAPPED, *overrides], to_explain=True).config


def groups(*overrides: str) -> list[dict[str, str]]:
    return [{role.name: role.offload for role in group} for group in device_groups(config(*overrides))]


ALL, KL = "all", "init_kl_coef=0.1"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], []),
        (["actor_train.device_mapping=[0]", "actor_infer.device_mapping=[1]"], []),
        (
            ["actor_train.device_mapping=[0,1]", "actor_infer.device_mapping=[1]"],
            [{"actor_infer": "all", "actor_train": "all"}],
        ),
        (
            # The reference model shares with the trainer alone, and so with the engines too.
            [
                "actor_train.device_mapping=[0,1]",
                "actor_infer.device_mapping=[1]",
                "reference.device_mapping=[0]",
                "actor_train.offload=optimizer",
                KL,
            ],
            [{"actor_infer": "all", "actor_train": "optimizer", "reference": "all"}],
        ),
        (["actor_train.device_mapping=[0]", "reference.device_mapping=[0]", KL], []),
        (
            ["actor_train.device_mapping=[0]", "reference.device_mapping=[0]", "reference.offload=all", KL],
            [{"actor_train": "none", "reference": "all"}],
        ),
        (
            ["actor_train.offload=all", "actor_infer.offload=all"],
            [{"actor_infer": "all", "actor_train": "all"}],
        ),
        (
            [
                "actor_train.device_mapping=[0]",
                "actor_infer.device_mapping=[0]",
                "actor_train.offload=none",
                "actor_infer.offload=none",
            ],
            [],
        ),
    ],
)
def test_roles_on_the_same_devices_take_turns(overrides: list[str], expected: list[dict[str, str]]) -> None:
    assert groups(*overrides) == expected


@pytest.mark.parametrize(
    ("overrides", "key", "what_to_do"),
    [
        (["actor_train.offload=all"], "actor_train.offload", "set `offload` of the other one too"),
        (["actor_infer.offload=optimizer"], "actor_infer.offload", "'none' or 'all'"),
        (
            ["async_generation_ratio=1", "actor_train.device_mapping=[0]", "actor_infer.device_mapping=[0]"],
            "async_generation_ratio",
            "set async_generation_ratio=0, or give actor_infer devices of its own",
        ),
    ],
)
def test_what_cannot_take_turns_is_refused_with_what_to_set(
    overrides: list[str], key: str, what_to_do: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        config(*overrides)
    assert key in str(refused.value)
    assert what_to_do in str(refused.value)


def test_explain_says_who_shares() -> None:
    def told(*overrides: str) -> str:
        text = explain(load_config("agentic_sync.yaml", [*MAPPED, *overrides], to_explain=True))
        [line] = [line for line in text.splitlines() if line.startswith("devices shared ")]
        return line.removeprefix("devices shared").strip()

    mapped = "actor_train.device_mapping=[0]", "actor_infer.device_mapping=[0]"
    assert told() == "no: each role has its own"
    assert told(*mapped) == "in turns: actor_infer (offload: all), actor_train (offload: all)"
    assert told(mapped[0], "reference.device_mapping=[0]", KL) == "side by side: actor_train, reference"
    torch = "actor_train.strategy_args={strategy_name: torch, strategy_config: {device: 'cuda:0'}}"
    assert told(torch, mapped[1]) == "side by side: actor_infer, actor_train"
    teacher = "teachers.old={pretrain: any, device_mapping: [0]}"
    assert told(mapped[0], teacher) == "teachers.old takes no turns: it stays beside actor_train"
