"""Trainers that give their device away between all calls compute bit for bit what others do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plays import assert_close, play_on
from torch import Tensor

from envsdk.contracts.held import Held
from envsdk.contracts.trainer import TrainBatch, TrainerConfig, TrainSequence
from envsdk.trainers.offload import DeviceMemory
from envsdk.trainers.torch_trainer import TorchTrainer
from tests.by_day import by_day


class OutOfMemory(Exception):
    """The counted device has no room."""


class CountedMemory(DeviceMemory):
    """A device of a stated size that is only counted: what is moved is really copied, in main memory."""

    def __init__(self, trainer: TorchTrainer, *, size: float = float("inf")) -> None:
        super().__init__(torch.device("cpu"))
        self.size = size
        self.on_device: dict[int, int] = {}
        for tensor in held_by(trainer):
            self._take(tensor)

    def taken(self) -> int:
        return sum(self.on_device.values())

    def _take(self, tensor: Tensor) -> None:
        self.on_device[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        if self.taken() > self.size:
            raise OutOfMemory(f"{self.taken()} of {self.size}")

    def to_host(self, tensor: Tensor) -> Tensor:
        if self.on_device.pop(tensor.data_ptr(), None) is None:
            return tensor
        return tensor.clone()

    def to_device(self, tensor: Tensor) -> Tensor:
        if tensor.data_ptr() in self.on_device:
            return tensor
        copy = tensor.clone()
        self._take(copy)
        return copy

    def settle(self) -> None:
        pass


def held_by(trainer: TorchTrainer) -> list[Tensor]:
    """Its tensors, without gradients."""
    found = [each for part in trainer.model.parts() for each in (*part.parameters(), *part.buffers())]
    found += [tensor for name, tensor in trainer._optimizer.state().items() if not name.startswith("weight/")]
    return list({each.data_ptr(): each.detach() for each in found}.values())


def played(
    trainer: TorchTrainer, calls: Sequence[tuple[str, Any]], order: Sequence[Held] | None
) -> list[Any]:
    """What the calls return, and the state at the end. With an `order`, it holds these between them."""
    found = []
    if order is not None:
        trainer.memory = CountedMemory(trainer)
    needed = {"train_step": Held.ALL, "logprobs": Held.WEIGHTS, "weights": Held.NOTHING}
    for index, (name, argument) in enumerate(calls):
        if order is not None:
            trainer.hold(order[index % len(order)])
            if needed[name] > order[index % len(order)]:
                trainer.hold(needed[name])
            elif not order[index % len(order)]:
                assert trainer.memory.taken() == 0
                assert all(parameter.grad is None for _, parameter in trainer.model.parameters())
        if name == "weights":
            found.append({key: value.copy() for key, value in trainer.weights()})
        elif name == "train_step":
            metrics = trainer.train_step(argument)
            found.append({key: value for key, value in metrics.items() if not key.endswith("_s")})
        else:
            found.append(trainer.logprobs(argument))
    return [*found, trainer._optimizer.state()]


def assert_equal(found: Any, expected: Any) -> None:
    """Bit for bit."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_equal(found[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    else:
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


@pytest.fixture
def calls(make_sequences: Callable[..., list[TrainSequence]]) -> list[tuple[str, Any]]:
    ids = [sequence.ids for sequence in make_sequences(5, seed=9)]
    found: list[tuple[str, Any]] = [("logprobs", ids)]
    for step in range(3):
        batch = TrainBatch(step=step, sequences=make_sequences(8, seed=step))
        found += [("train_step", batch), ("weights", None), ("logprobs", ids)]
    return found


SETTINGS: dict[str, dict[str, Any]] = {
    "tied": {},
    "with a value head and epochs": {
        "with_value_head": True,
        "algorithm": {"ppo_epochs": 2, "ppo_mini_batch_size": 4},
    },
    "an adapter": {"strategy_config": {"lora": {"rank": 2}}},
    "averaged": {"training_args": {"ema_decay": 0.5}},
}
ORDERS = [[Held.NOTHING], [Held.WEIGHTS], [Held.ALL, Held.NOTHING, Held.WEIGHTS]]
BY_DAY = [("tied", ORDERS[2]), ("with a value head and epochs", ORDERS[1])]
BY_DAY += [(settings, ORDERS[0]) for settings in ("an adapter", "averaged")]


@pytest.mark.parametrize(
    ("settings", "order"), by_day(BY_DAY, [(each, order) for each in SETTINGS for order in ORDERS]), ids=str
)
def test_what_goes_away_comes_back_bit_for_bit(
    settings: str, order: list[Held], make_config: Callable[..., TrainerConfig], calls: list[tuple[str, Any]]
) -> None:
    if settings == "an adapter":
        pytest.importorskip("peft")
    config = make_config(**SETTINGS[settings])
    expected = played(TorchTrainer.create(config), calls, None)
    assert_equal(played(TorchTrainer.create(config), calls, order), expected)


@pytest.mark.slow
def test_ranks_that_shard_the_model_do_so_too(
    make_config: Callable[..., TrainerConfig], calls: list[tuple[str, Any]]
) -> None:
    plain = [(name,) if argument is None else (name, argument) for name, argument in calls]
    taking_turns = [
        each
        for call in plain
        for each in (("hold", Held.NOTHING), ("hold", Held.WEIGHTS), ("weights",), ("hold", Held.ALL), call)
    ]
    expected = play_on("fsdp2_train", 2, make_config(), plain)
    found = play_on("fsdp2_train", 2, make_config(), taking_turns)
    assert_close(found[4::5], expected, tolerance=0.0)


def test_a_checkpoint_is_written_and_read_whatever_is_held(
    make_config: Callable[..., TrainerConfig], calls: list[tuple[str, Any]], tmp_path: Path
) -> None:
    trainer = TorchTrainer.create(make_config())
    expected = played(trainer, calls[:3], None)[-1]
    trainer.memory = CountedMemory(trainer)
    trainer.hold(Held.NOTHING)
    trainer.save(tmp_path)
    other = TorchTrainer.create(make_config())
    other.memory = CountedMemory(other)
    other.hold(Held.NOTHING)
    other.load(tmp_path)
    other.hold(Held.ALL)
    assert_equal(other._optimizer.state(), expected)
    after = [each.train_step(calls[4][1])["actor/loss"] for each in (trainer_with_all(trainer), other)]
    assert after[0] == after[1]


def trainer_with_all(trainer: TorchTrainer) -> TorchTrainer:
    trainer.hold(Held.ALL)
    return trainer


def test_a_device_that_is_too_small_refuses(make_config: Callable[..., TrainerConfig]) -> None:
    trainer = TorchTrainer.create(make_config())
    trainer.memory = memory = CountedMemory(trainer)
    whole = memory.taken()
    trainer.hold(Held.NOTHING)
    assert memory.taken() == 0
    memory.size = whole - 1
    with pytest.raises(OutOfMemory):
        trainer.hold(Held.ALL)
