"""Evaluations sample as `val_env_manager.generating_args` says, down to the workers that play them."""

from pathlib import Path
from typing import Any

import pytest

from envsdk.config import RunConfig, explain, load_config
from envsdk.managers.wiring import VAL_SPLIT, worker_setups

GREEDY = "val_env_manager.generating_args={temperature: 0.0, max_new_tokens: 8}"


def loaded(*overrides: str) -> Any:
    return load_config("agentic_async.yaml", overrides)


def played(config: RunConfig, split: str) -> Any:
    manager = config.val_env_manager if split == VAL_SPLIT else config.train_env_manager
    return next(iter(worker_setups(config, manager, split=split, model=Path("m"), engines={}).values()))


@pytest.mark.parametrize("mode", ["both", "bench"])
def test_workers_of_evaluations_ask_for_their_own_sampling(mode: str) -> None:
    config = loaded(GREEDY, f"mode={mode}").config
    held_out, train = played(config, VAL_SPLIT), played(config, "train")
    shared = config.actor_infer.generating_args.sampling
    assert (held_out.generating.temperature, held_out.generating.top_p) == (0.0, shared.top_p)
    assert train.generating == shared
    for tag, setup in held_out.setups.items():
        assert setup.max_new_tokens == (config.custom_envs[tag].max_tokens_per_step or 8)


def test_the_explanation_and_the_resolved_file_have_it(tmp_path: Path) -> None:
    found = loaded(GREEDY)
    assert "val_env_manager.generating_args.temperature" in explain(found)
    path = tmp_path / "resolved.yaml"
    path.write_text(found.resolved_yaml())
    assert load_config(path).config == found.config


def test_without_it_evaluations_sample_as_training() -> None:
    config = loaded().config
    assert config.val_generating_args == config.actor_infer.generating_args
