"""Public names of the package, and where each is defined: `__init__.py` imports them at their first use."""

from envsdk.contracts.trainer import TrainBatch as TrainBatch
from envsdk.contracts.trainer import Trainer as Trainer
from envsdk.contracts.trainer import TrainerConfig as TrainerConfig
from envsdk.contracts.trainer import TrainerRank as TrainerRank
from envsdk.contracts.trainer import TrainSequence as TrainSequence
from envsdk.trainers.fsdp2_trainer import Fsdp2Trainer as Fsdp2Trainer
from envsdk.trainers.megatron.trainer import MegatronTrainer as MegatronTrainer
from envsdk.trainers.torch_trainer import TorchTrainer as TorchTrainer
