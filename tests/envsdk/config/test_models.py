"""Derived numbers, and the promises of the typed keys."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from envsdk.algorithms.args import AlgorithmArgs, AlgorithmKeys
from envsdk.config.env_models import EnvManagerArgs, StructuredOutput
from envsdk.config.models import RunConfig
from envsdk.config.reference import meanings, reference
from envsdk.config.section import Section, interleave, split_evenly
from envsdk.engines.sampling import OutputStructure
from envsdk.managers.wiring import output_structure

SECTIONS = [each for each in Section.__subclasses__() if each is not RunConfig]


def run_config(**changes: Any) -> RunConfig:
    manager = {"num_env_groups": 4, "group_size": 4, "tags": ["A"]}
    return RunConfig.model_validate(
        {
            "exp_name": "run",
            "rollout_batch_size": 16,
            "val_batch_size": 16,
            "sequence_length": 256,
            "max_steps": 2,
            "custom_envs": {"A": {"env_type": "envsdk/FrozenLake-v1"}},
            "train_env_manager": manager,
            "val_env_manager": manager,
            **changes,
        }
    )


@given(st.integers(0, 10_000), st.lists(st.integers(1, 50), min_size=1, max_size=12))
def test_a_split_adds_up_and_no_share_is_a_whole_unit_off(total: int, weights: list[int]) -> None:
    shares = split_evenly(total, weights)
    assert sum(shares) == total
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share - Fraction(total * weight, sum(weights))) < 1


@given(st.integers(1, 500), st.integers(0, 4), st.integers(1, 20), st.integers(1, 100))
def test_workers_have_room_for_every_environment_and_none_is_idle(
    num_groups: int, spares: int, group_size: int, per_worker: int
) -> None:
    manager = EnvManagerArgs(
        num_env_groups=num_groups,
        group_size=group_size,
        tags=["A"],
        group_size_redundancy=spares,
        max_env_num_per_worker=per_worker,
    )
    assert (manager.num_workers - 1) * per_worker < manager.num_envs <= manager.num_workers * per_worker
    assert sum(manager.envs_per_tag.values()) == manager.num_envs


@pytest.mark.parametrize(
    ("num_groups", "per_worker", "num_workers"),
    [(1, 64, 1), (64, 64, 8), (128, 128, 8), (1024, 1024, 8), (1280, 1024, 10)],
)
def test_by_default_a_worker_hosts_an_eighth_of_the_environments_within_bounds(
    num_groups: int, per_worker: int, num_workers: int
) -> None:
    manager = EnvManagerArgs(num_env_groups=num_groups, group_size=8, tags=["A"])
    assert (manager.envs_per_worker, manager.num_workers) == (per_worker, num_workers)


@given(
    st.dictionaries(st.sampled_from("ABCDE"), st.integers(1, 6), min_size=1), st.integers(1, 60), st.data()
)
def test_every_beginning_of_an_interleaving_keeps_the_proportions(
    weights: dict[str, int], count: int, data: st.DataObject
) -> None:
    names = interleave(weights, count)
    beginning = names[: data.draw(st.integers(0, count))]
    for name, weight in weights.items():
        for other, other_weight in weights.items():
            assert (beginning.count(name) - 1) * other_weight <= beginning.count(other) * weight
    assert set(names[: len(weights)]) == set(weights) or count < len(weights)


@pytest.mark.parametrize(
    ("keys", "between", "num_workers", "num_envs"),
    [
        ({}, (3, 3), 3, 20),
        ({"min_workers": 2, "max_workers": 8}, (2, 8), 3, 24),
        ({"min_workers": 4}, (4, 4), 4, 32),
        ({"min_workers": 1}, (1, 3), 3, 24),
        ({"max_workers": 2}, (2, 2), 2, 16),
        ({"max_workers": 5}, (3, 5), 3, 24),
    ],
)
def test_the_number_of_environments_follows_that_of_the_workers(
    keys: dict[str, int], between: tuple[int, int], num_workers: int, num_envs: int
) -> None:
    manager = EnvManagerArgs(
        num_env_groups=5, group_size=4, tags=["A", "B"], max_env_num_per_worker=8, **keys
    )
    assert (manager.workers_between, manager.num_workers) == (between, num_workers)
    assert (manager.num_envs, sum(manager.envs_per_tag.values())) == (num_envs, num_envs)


@pytest.mark.parametrize(
    ("alpha", "capacity", "max_staleness"),
    [(0, 20, 0), (0.5, 30, 1), (1, 40, 1), (1.15, 43, 2), (2.0, 60, 2)],
)
def test_capacity_and_staleness_follow_from_alpha(alpha: float, capacity: int, max_staleness: int) -> None:
    config = run_config(async_generation_ratio=alpha, rollout_batch_size=20)
    assert (config.capacity, config.staleness_bound) == (capacity, max_staleness)


@pytest.mark.parametrize(
    ("given", "engines", "shares"),
    [
        (None, {}, True),
        (None, {"num_engines": 2}, False),
        (None, {"num_engines": 1, "max_engines": 2}, False),
        (True, {}, False),
        (False, {"num_engines": 2}, True),
    ],
)
def test_the_prompt_of_a_group_is_computed_once_where_there_is_one_engine(
    given: bool | None, engines: dict[str, int], shares: bool
) -> None:
    config = run_config(is_num_return_sequences_expand=given, actor_infer=engines)
    assert config.shares_prompts is shares


def test_the_algorithm_gets_every_key_and_the_sampling_temperature() -> None:
    config = run_config(
        pg_clip_high=0.28, kl_loss_coef=0.1, actor_infer={"generating_args": {"temperature": 0.7}}
    )
    algorithm = config.algorithm
    assert isinstance(algorithm, AlgorithmArgs)
    assert (algorithm.pg_clip_high, algorithm.kl_loss_coef, algorithm.temperature) == (0.28, 0.1, 0.7)
    assert AlgorithmKeys.model_fields.keys() <= RunConfig.model_fields.keys()


def test_a_tag_may_have_its_own_reply_length() -> None:
    config = run_config(
        custom_envs={
            "A": {"env_type": "envsdk/FrozenLake-v1"},
            "B": {"env_type": "envsdk/FrozenLake-v1", "max_tokens_per_step": 7},
        },
        actor_infer={"generating_args": {"max_new_tokens": 9}},
    )
    assert [config.max_response_tokens(tag) for tag in "AB"] == [9, 7]


@pytest.mark.parametrize("value", [True, "8", 8.5, None])
def test_types_are_strict(value: object) -> None:
    with pytest.raises(ValidationError, match="rollout_batch_size"):
        run_config(rollout_batch_size=value)


def test_a_configuration_cannot_be_rewritten() -> None:
    config = run_config()
    with pytest.raises(ValidationError, match="frozen"):
        config.max_steps = 3  # type: ignore[misc]


def test_every_key_is_described() -> None:
    undescribed = [
        f"{model.__name__}.{name}"
        for model in (RunConfig, *SECTIONS)
        for name in model.model_fields
        if not meanings(model).get(name)
    ]
    assert undescribed == []


def test_the_reference_has_every_key_with_its_default_and_its_text() -> None:
    keys = reference()
    for name in RunConfig.model_fields:
        assert f"- `{name}` (" in keys
        assert meanings(RunConfig)[name] in keys
    assert "- `max_staleness` (whole number or null, default `null`): Weight versions" in keys
    assert "### `training_args` of the `torch` trainer" in keys


def test_the_reference_has_the_sections_in_sections_and_a_text_for_every_key() -> None:
    assert "### `train_infer_correction`\n\n- `routing_replay` (" in reference("routing_replay")
    for key in ("gpu_hour", "target_modules", "choose"):
        assert f"- `{key}` (" in reference(key)
    undescribed = [
        f"{section.splitlines()[0]} {line}"
        for section in reference().split("### ")
        for line in section.splitlines()
        if line.rstrip().endswith("):") and "`mock`" not in section.splitlines()[0]
    ]
    assert undescribed == []


def test_a_word_picks_keys_and_sections_of_the_reference() -> None:
    assert reference("max_staleness").count("\n- ") == 1
    assert "### `serve`\n\n- `name`" in reference("`serve`")
    assert reference("no_such_key") == ""


@pytest.mark.parametrize(
    ("keys", "structure"),
    [
        ({"regex": "a|b"}, OutputStructure(regex="a|b")),
        ({"choices": ["a", "b"]}, OutputStructure(choices=("a", "b"))),
        ({"json_schema": {"type": "object"}}, OutputStructure(json_schema='{"type": "object"}')),
    ],
)
def test_a_tag_may_hold_its_replies_to_a_structure(keys: dict[str, Any], structure: OutputStructure) -> None:
    args = StructuredOutput.model_validate(keys)
    assert output_structure(args) == structure


@pytest.mark.parametrize("keys", [{}, {"regex": "a", "choices": ["a"]}, {"choices": []}, {"grammar": "a"}])
def test_a_structure_is_of_one_known_kind(keys: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        StructuredOutput.model_validate(keys)
