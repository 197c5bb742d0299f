"""Keys of a job that do nothing where they stand, or name what is not there, are named."""

from __future__ import annotations

import pytest

from envsdk.config import load_config
from envsdk.contracts.failures import ConfigurationError

BUFFER = "buffer.trainer_input.experience_buffer"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["synchronizer.sync_interval=2"], "synchronizer.sync_interval"),
        (["mode=bench", "val_batch_size=0"], "no held-out tasks to play"),
        ([f"{BUFFER}.cool_down_steps=2"], "does nothing while max_uses is 1"),
        ([f"{BUFFER}.mixture={{FrozenLak: 1}}"], "no explorer plays this tag; did you mean `FrozenLake`"),
        (["explorer.may_differ=[FrozenLak]"], "'FrozenLak' is no tag that this explorer plays"),
        (["synchronizer.path=/tmp/weights", "synchronizer.sync_method=memory"], "synchronizer.path"),
        (["buffer.retry_s=20", "buffer.lease_s=30"], "20 is below lease_s 30"),
    ],
)
def test_a_key_of_a_job_that_cannot_have_its_effect_is_named(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        load_config("agentic_async.yaml", overrides)
    assert said in str(error.value)


@pytest.mark.parametrize(
    "overrides",
    [
        ["mode=train", "synchronizer.sync_interval=2"],
        ["mode=bench"],
        [f"{BUFFER}.cool_down_steps=2", f"{BUFFER}.max_uses=2"],
        [f"{BUFFER}.mixture={{FrozenLake: 1, SimpleSokoban: 1}}"],
        ["explorer.may_differ=[FrozenLake]"],
        ["buffer.retry_s=30", "buffer.lease_s=30"],
    ],
)
def test_the_same_keys_are_taken_where_they_have_an_effect(overrides: list[str]) -> None:
    load_config("agentic_async.yaml", overrides)
