"""The Megatron trainer on a machine without a GPU, for tests and for comparisons of trainers.

`strategy_name: tests.trainers.megatron.cpu_trainer:MegatronOnCpu` uses it in a run.
"""

from __future__ import annotations

from envsdk.trainers.megatron.trainer import MegatronTrainer
from tests.trainers.megatron import cpu_shim


class MegatronOnCpu(MegatronTrainer):
    """`megatron_train` with ranks that are CPU processes."""

    @classmethod
    def check_device(cls) -> None:
        cpu_shim.install()
