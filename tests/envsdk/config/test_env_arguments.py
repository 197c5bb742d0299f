"""`ENV_ID key=value`: which keys are the environment's, and which a run's."""

from __future__ import annotations

import pytest

from envsdk.config.env_arguments import PLAYED_RUN_KEYS, split_overrides
from envsdk.contracts.failures import ConfigurationError
from envsdk.rollouts.play.source import resolve_source
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


def test_the_turns_of_an_environment_are_limited_by_its_own_argument() -> None:
    config = resolve_source("FrozenLake", ["max_steps=7"]).config
    tag = config.custom_envs["envsdk/FrozenLake-v1"]
    assert tag.env_config == {"max_steps": 7}
    assert tag.max_steps == 7


def test_the_keys_of_a_run_that_plays_are_keys_of_a_run() -> None:
    from envsdk.config import RunConfig

    assert set(RunConfig.model_fields) >= PLAYED_RUN_KEYS
    resolve_source("FrozenLake", ["custom_envs.envsdk/FrozenLake-v1.max_steps=3", "val_batch_size=8"])
