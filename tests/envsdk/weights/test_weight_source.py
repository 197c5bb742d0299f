"""Weights that a trainer of one's own gives: checked before anything is sent, and kept as they were given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from envsdk.contracts.failures import ConfigurationError
from envsdk.weights.source import GivenWeights
from tests.tiny_policies import write_tiny_policy


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_policy(
        tmp_path_factory.mktemp("model"), ["a b c"] * 3, hidden_size=32, sequence_length=64
    )


@pytest.fixture
def weights(model: Path) -> dict[str, torch.Tensor]:
    return load_file(model / "model.safetensors")


def held(source: GivenWeights) -> dict[str, Any]:
    return dict(source._weights())


def test_it_begins_with_the_models_own(model: Path, weights: dict[str, torch.Tensor]) -> None:
    found = held(GivenWeights(model))
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], weights[name]) for name in weights)


def test_what_is_given_is_copied_whatever_its_kind(model: Path, weights: dict[str, torch.Tensor]) -> None:
    source = GivenWeights(model)
    given = {name: torch.nn.Parameter(tensor + 1) for name, tensor in weights.items()}
    source.hold(source.checked(given))
    with torch.no_grad():
        for parameter in given.values():
            parameter.zero_()
    assert all(torch.equal(tensor, weights[name] + 1) for name, tensor in held(source).items())
    source.hold(source.checked({name: tensor.numpy() for name, tensor in weights.items()}))
    assert all(torch.equal(tensor, weights[name]) for name, tensor in held(source).items())


def test_a_tied_head_may_be_given_or_left_out(model: Path, weights: dict[str, torch.Tensor]) -> None:
    source = GivenWeights(model)
    body = {name: tensor for name, tensor in weights.items() if name != "lm_head.weight"}
    embeddings = weights["model.embed_tokens.weight"]
    if "lm_head.weight" in weights:
        pytest.skip("the tiny policy's head is its own")
    source.hold(source.checked({**body, "lm_head.weight": embeddings}))
    assert held(source).keys() == body.keys()


def test_a_checkpoint_is_read_when_it_is_sent(
    model: Path, tmp_path: Path, weights: dict[str, torch.Tensor]
) -> None:
    (tmp_path / "model").symlink_to(model)
    source = GivenWeights(model)
    source.hold(source.checked(tmp_path))
    assert held(source).keys() == weights.keys()


def test_what_does_not_fit_is_refused_and_the_earlier_weights_stay(
    model: Path, tmp_path: Path, weights: dict[str, torch.Tensor]
) -> None:
    source = GivenWeights(model)
    name = next(iter(weights))
    wrong: list[tuple[Any, str]] = [
        ({f"module.{each}": tensor for each, tensor in weights.items()}, r"inside the wrapper"),
        ({**weights, name: torch.zeros(1, 1)}, rf"`{name}` has shape \[1, 1\]; the model needs"),
        ({each: tensor for each, tensor in weights.items() if each != name}, rf"`{name}` is missing"),
        ({}, "is missing"),
        ({**weights, name: "nothing"}, rf"`{name}`.*tensor or an array"),
        ({**weights, name: weights[name] * float("nan")}, rf"`{name}` has values that are NaN or infinite"),
        ({**weights, name: (weights[name] / 0).numpy()}, rf"`{name}` has values that are NaN or infinite"),
        (tmp_path, "no weights in"),
        (torch.nn.Linear(1, 1), "from a Linear: give model.state_dict"),
    ]
    for given, message in wrong:
        with pytest.raises(ConfigurationError, match=message):
            source.hold(source.checked(given))
    assert all(torch.equal(tensor, weights[each]) for each, tensor in held(source).items())
