"""`envsdk.LocalEngine`: tokens, versions, weights of the program's own, from any loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import envsdk
from envsdk.contracts.failures import EngineError
from tests.tiny_policies import write_tiny_policy

LAKE = "envsdk/FrozenLake-v1"
PLAY: dict[str, Any] = {"tasks": 2, "group_size": 2, "sampling": {"max_new_tokens": 3}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_policy(
        tmp_path_factory.mktemp("tiny"), ["S F H G <answer>Up</answer>"], sequence_length=2048
    )


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[envsdk.LocalEngine]:
    with envsdk.LocalEngine(folder) as engine:
        yield engine


def _model(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder)


def _check_tokens(trajectory: envsdk.Trajectory, model: Any, version: int) -> None:
    """The log-probabilities are those of `model`, and the tokens say that `version` sampled them."""
    tokens = trajectory.tokens
    assert tokens is not None
    sampled = tokens.response_mask == 1
    assert sampled.any()
    assert set(tokens.versions[sampled].tolist()) == {version}
    ids = torch.from_numpy(tokens.ids.astype(np.int64))[None]
    with torch.no_grad():
        logprobs = model(ids).logits[0].log_softmax(-1)
    expected = logprobs[:-1].gather(1, ids[0, 1:, None])[:, 0].numpy()
    np.testing.assert_allclose(expected[sampled[1:]], tokens.behavior_logprobs[sampled], atol=1e-4)


def test_published_weights_sample_the_next_tokens(engine: envsdk.LocalEngine, folder: Path) -> None:
    model = _model(folder)
    before = engine.version
    played = envsdk.rollout_sync(LAKE, policy=engine, **PLAY)
    _check_tokens(played[0], model, before)
    assert len({tuple(each.turns[0].reply for each in group) for group in played.groups}) == 2
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    engine.publish(model.state_dict(), version=before + 5)
    assert engine.version == before + 5
    _check_tokens(envsdk.rollout_sync(LAKE, policy=engine, **PLAY)[0], model, before + 5)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    model.load_state_dict(weights)
    _check_tokens(envsdk.rollout_sync(LAKE, policy=engine, **PLAY)[1], model, before + 5)
    engine.publish(folder)
    _check_tokens(envsdk.rollout_sync(LAKE, policy=engine, **PLAY)[0], _model(folder), before + 6)


async def test_rollouts_of_two_loops_and_a_publication_share_the_engine(
    engine: envsdk.LocalEngine, folder: Path
) -> None:
    weights = _model(folder).state_dict()

    async def play(seed: int) -> list[envsdk.Trajectory]:
        return [each async for each in envsdk.rollout(LAKE, policy=engine, seed=seed, **PLAY)]

    first, second, third, _ = await asyncio.gather(
        play(1),
        play(2),
        asyncio.to_thread(envsdk.rollout_sync, LAKE, policy=engine, seed=3, **PLAY),
        asyncio.to_thread(engine.publish, weights),
    )
    for each in [*first, *second, *third]:
        assert each.failure is None
        assert each.tokens is not None
        _check_tokens_are_versioned(each)


def _check_tokens_are_versioned(trajectory: envsdk.Trajectory) -> None:
    assert trajectory.tokens is not None
    sampled = trajectory.tokens.versions[trajectory.tokens.response_mask == 1]
    assert sampled.min() >= 0
    assert (np.diff(sampled) >= 0).all()


def test_weights_that_do_not_fit_leave_the_former_ones(engine: envsdk.LocalEngine, folder: Path) -> None:
    version = engine.version
    broken = {name: tensor * float("nan") for name, tensor in _model(folder).state_dict().items()}
    for weights in ({}, {"x": torch.zeros(3)}, broken):
        with pytest.raises(EngineError):
            engine.publish(weights)
    for wrong, said in ((_model(folder), "module.state_dict()"), (Path("nowhere"), "no folder nowhere")):
        with pytest.raises(envsdk.ConfigurationError, match=said):
            engine.publish(wrong)
    with pytest.raises(envsdk.ConfigurationError, match="is not above"):
        engine.publish(_model(folder).state_dict(), version=version)
    assert engine.version == version
    assert not envsdk.rollout_sync(LAKE, policy=engine, **PLAY).failed


async def test_it_starts_at_its_first_use_and_ends_once_closed(folder: Path) -> None:
    async with envsdk.LocalEngine(folder, max_running=4) as engine:
        played = [each async for each in envsdk.rollout(LAKE, policy=engine, **PLAY)]
        assert [each.failure for each in played] == [None] * 4
    with pytest.raises(envsdk.ConfigurationError, match="is closed"):
        engine.start()
    lazy = envsdk.LocalEngine(folder)
    assert not envsdk.rollout_sync(LAKE, policy=lazy, **PLAY).failed
    lazy.close()
    lazy.close()


def test_a_folder_as_the_policy_has_an_engine_of_its_own(folder: Path) -> None:
    played = envsdk.rollout_sync(LAKE, policy=folder, **PLAY)
    _check_tokens(played[0], _model(folder), 0)
    assert envsdk.rollout_sync(LAKE, policy=str(folder), **PLAY)[0].turns == played[0].turns


def test_a_wrong_folder_or_engine_is_named() -> None:
    with pytest.raises(envsdk.ConfigurationError, match=r"^model: there is no folder nowhere"):
        envsdk.LocalEngine("nowhere")


def test_an_unknown_engine_is_named(folder: Path) -> None:
    with pytest.raises(envsdk.ConfigurationError, match="embeded"):
        envsdk.LocalEngine(folder, engine="embeded")
