"""What samples and what learns needs neither Ray nor PyArrow."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

PACKAGES = [
    "envsdk.algorithms",
    "envsdk.engines.embedded",
    "envsdk.trainers",
    "envsdk.trainers.warm_start",
]
"""Imported with all their modules."""

MODULES = [
    "envsdk.config.loading",
    "envsdk.engines.openai",
    "envsdk.engines.vllm",
    "envsdk.rollouts.play.local_engine",
    "envsdk.rollouts.play.rollout",
    "envsdk.rollouts.results.trajectories",
    "envsdk.rewards.reward",
    "envsdk.weights.senders",
    "envsdk.weights.receiver",
    "envsdk.weights.group",
]

DATA = ["envsdk.trainers.warm_start.fine_tuning"]
"""Modules that read or write Parquet."""

ABSENT = """
import sys
from importlib import import_module

sys.modules.update(ray=None, pyarrow=None)  # an import of either fails
"""

IMPORTS = """
from pkgutil import walk_packages

for package in packages:
    path = getattr(import_module(package), "__path__", [])
    modules += [each.name for each in walk_packages(path, f"{package}.") if not each.name.startswith(skipped)]
for module in modules:
    import_module(module)
print(len(modules))
"""

LEARNING = """
from pathlib import Path

import envsdk
from envsdk.algorithms.args import AlgorithmArgs
from envsdk.config.loading import load_config
from envsdk.algorithms.batches import ModelScores, learnable, prepare_batch
from envsdk.contracts.trainer import TrainerConfig
from envsdk.trainers.torch_trainer import TorchTrainer
from envsdk.trainers.warm_start.prepare import prepare_policy

config = load_config("agentic_async.yaml", ["warm_start={num_episodes: 16, hidden_size: 32}"]).config
folder = prepare_policy(config)
trainer = TorchTrainer.create(TrainerConfig(model=folder, sequence_length=config.sequence_length, seed=1))
with envsdk.LocalEngine(folder) as engine:
    for version in range(2):
        played = envsdk.rollout_sync(config, policy=engine, tasks=4, group_size=2)
        assert all(each.tokens.versions.max() == version for each in played)
        batch = prepare_batch(AlgorithmArgs(), version, learnable(list(played)), ModelScores()).batch
        print(len(played), trainer.train_step(batch)["actor/grad_norm"] >= 0)
        engine.publish(dict(trainer.weights()))
"""


def test_it_learns_in_one_process_and_is_imported(tmp_path: Path) -> None:
    has_megatron = "megatron-core" in {each.name for each in metadata.distributions()}
    skipped = (*DATA, *([] if has_megatron else ["envsdk.trainers.megatron"]))
    code = f"{ABSENT + LEARNING}\npackages, modules, skipped = {PACKAGES}, {MODULES}, {skipped}\n{IMPORTS}"
    environment = {**os.environ, "ENVSDK_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    *learned, num_modules = done.stdout.split()
    assert learned == ["8", "True"] * 2
    assert int(num_modules) > 50
