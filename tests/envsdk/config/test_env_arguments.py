"""`ENV_ID key=value`: which keys are the environment's, and which a run's."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.config.env_arguments import PLAYED_RUN_KEYS, env_config_from, split_overrides
from envsdk.contracts.failures import ConfigurationError
from envsdk.rollouts.play.eval_spec import evaluations_named
from envsdk.rollouts.play.source import evaluation_source, resolve_source
from tests.envsdk.testing.broken_envs import Line


class WithoutLimit(Line):
    def __init__(self, *, size: int = 3):
        super().__init__()


def made_by(**options) -> Line:
    return Line(**options)


def test_a_key_that_the_constructor_takes_is_the_environments_though_a_run_has_one_of_that_name() -> None:
    run_keys, env_config = split_overrides(
        ["max_steps=7", "sequence_length=512", "actor_infer.generating_args.temperature=0.5"],
        "mine/Line-v0",
        Line,
    )
    assert env_config == {"max_steps": 7}
    assert run_keys == {"sequence_length": 512, "actor_infer": {"generating_args": {"temperature": 0.5}}}


def test_a_constructor_that_takes_any_keyword_gets_what_is_no_key_of_a_run_that_plays() -> None:
    run_keys, env_config = split_overrides(
        ["max_steps=7", "seed=3", "depth.of.it=2"], "mine/Line-v0", made_by
    )
    assert run_keys == {"seed": 3}
    assert env_config == {"max_steps": 7, "depth": {"of": {"it": 2}}}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "max_steps=7",
            r"takes no `max_steps`, and of a run only training reads it.*custom_envs.mine/Line-v0.max_steps",
        ),
        ("pg_clip_low=0.1", "takes no `pg_clip_low`, and of a run only training reads it"),
        ("sizes=7", "takes no `sizes`, and a run has no such key.* `size`"),
        ("sequence_lenght=7", "takes no `sequence_lenght`.* `sequence_length`"),
        ("size", "is no override; write key=value"),
    ],
)
def test_a_key_that_nothing_reads_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        split_overrides([override], "mine/Line-v0", WithoutLimit)


@given(st.text(alphabet="ab.[]{}$:,='\"\n 01&*", max_size=20))
def test_any_argument_is_read_or_refused_as_a_wrong_configuration(value: str) -> None:
    with suppress(ConfigurationError):
        assert env_config_from([f"size={value}"]).keys() == {"size"}


def test_an_argument_that_is_no_yaml_is_told_with_what_to_write() -> None:
    with pytest.raises(
        ConfigurationError, match=r"argument `size=\[1`: is no valid YAML.* a list is \[a, b\]"
    ):
        env_config_from(["size=[1"])


@pytest.mark.parametrize("source", ["FrozenLake", "sums"])
@pytest.mark.parametrize("value", ["[]", "3", "[1]"])
def test_a_list_in_place_of_a_section_is_told_where_only_episodes_are_played(source: str, value: str) -> None:
    specs = evaluations_named(source)
    resolve = partial(evaluation_source, specs[0]) if specs else partial(resolve_source, source)
    with pytest.raises(ConfigurationError, match=r"custom_envs.*: must be a section of keys, not"):
        resolve([f"custom_envs={value}"])


def test_the_turns_of_an_environment_are_limited_by_its_own_argument() -> None:
    config = resolve_source("FrozenLake", ["max_steps=7"]).config
    tag = config.custom_envs["envsdk/FrozenLake-v1"]
    assert tag.env_config == {"max_steps": 7}
    assert tag.max_steps == 7


def test_the_keys_of_a_run_that_plays_are_keys_of_a_run() -> None:
    from envsdk.config import RunConfig

    assert set(RunConfig.model_fields) >= PLAYED_RUN_KEYS
    resolve_source("FrozenLake", ["custom_envs.envsdk/FrozenLake-v1.max_steps=3", "val_batch_size=8"])
