"""Trainers: the contract of one, and those that ship.

A trainer takes batches of token sequences with advantages and gives weights under Hugging Face names. It
plugs in under the entry-point group `envsdk.trainers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envsdk.base.settings.public import public_names

if TYPE_CHECKING:
    from envsdk.contracts.trainer import TrainBatch, Trainer, TrainerConfig, TrainerRank, TrainSequence
    from envsdk.trainers.fsdp2_trainer import Fsdp2Trainer
    from envsdk.trainers.megatron.trainer import MegatronTrainer
    from envsdk.trainers.torch_trainer import TorchTrainer

_LAZY = {
    "Fsdp2Trainer": "envsdk.trainers.fsdp2_trainer",
    "MegatronTrainer": "envsdk.trainers.megatron.trainer",
    "TorchTrainer": "envsdk.trainers.torch_trainer",
    "TrainBatch": "envsdk.contracts.trainer",
    "TrainSequence": "envsdk.contracts.trainer",
    "Trainer": "envsdk.contracts.trainer",
    "TrainerConfig": "envsdk.contracts.trainer",
    "TrainerRank": "envsdk.contracts.trainer",
}

__all__ = [
    "Fsdp2Trainer",
    "MegatronTrainer",
    "TorchTrainer",
    "TrainBatch",
    "TrainSequence",
    "Trainer",
    "TrainerConfig",
    "TrainerRank",
]

__getattr__, __dir__ = public_names(__name__, _LAZY)
