"""Files of projects that are not translated are recognized, and none of ours is taken for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from envsdk.config import load_config
from envsdk.config.reading import OTHERS, said_of_other_project
from envsdk.contracts.failures import ConfigurationError

ROOT = Path(__file__).parents[3]
REFERENCE = Path(__file__).parent / "reference"
FILES = {
    "verl": (
        "data: {train_files: a}\nactor_rollout_ref:\n"
        "  model: {path: some/model}\ntrainer: {n_gpus_per_node: 8}"
    ),
    "verl, as Hydra's defaults": (
        "defaults:\n  - model_engine: dp\n  - actor@actor_rollout_ref.actor: x\n  - _self_"
    ),
    "verl, with an asynchronous trainer": (
        "defaults:\n  - ppo_trainer\n  - _self_\nasync_training: {batches: 1}"
    ),
    "verl, one part": "_target_: verl.workers.config.FSDPActorConfig\nstrategy: fsdp",
    "OpenRLHF": (
        "pretrain: a\nreward_pretrain: b\nactor_num_nodes: 1\nvllm_num_engines: 4\nrollout_batch_size: 8"
    ),
    "OpenRLHF, in sections": (
        "actor: {model_name_or_path: a, num_nodes: 1}\ndata:\n  max_len: 10\n  prompt_dataset: b\ntrain: {}"
    ),
    "NeMo RL": (
        "grpo:\n  num_prompts_per_step: 32\npolicy:\n  model_name: some/model\ncluster: {num_nodes: 1}"
    ),
    "NeMo RL, over another file": "defaults: ../../grpo_math_1B.yaml\ngrpo:\n  num_prompts_per_step: 64",
    "SkyRL": (
        "data: {train_data: [a]}\ntrainer:\n"
        "  policy: {model: {path: a}}\ngenerator: {n_samples_per_prompt: 5}"
    ),
    "AReaL": "experiment_name: gsm8k-grpo\ntrial_name: trial0\ngconfig: {n_samples: 4}\nactor: {path: a}",
    "TRL": "model_name_or_path:\n  some/model\ndataset_name:\n  some/data\nlearning_rate:\n  0.0001",
    "TRL, without what is GRPO's": "model_name_or_path: a\noutput_dir: out\nlearning_rate: 1.0e-6",
    "Accelerate": "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 8",
}
SCRIPTS = {
    "verl": ("run.sh", "set -x\npython3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo"),
    "OpenRLHF": ("run.sh", "set -x\n\npython3 -m openrlhf.cli.train_ppo_ray \\\n   --ref.num_nodes 1"),
    "NeMo RL": ("run.sh", "uv run python examples/run_grpo.py --config a.yaml"),
    "SkyRL": ("run.sh", ': "${NUM_GPUS:=4}"\nuv run -m skyrl.train.entrypoints.main_base trainer.epochs=20'),
    "AReaL": ("run.sh", "python3 -m areal.launcher.local train.py --config a.yaml"),
    "slime": ("run.sh", "source scripts/models/qwen3-4B.sh\npython3 train.py --actor-num-gpus-per-node 8"),
    "TRL": ("train.py", "from datasets import load_dataset\nfrom trl import GRPOConfig, GRPOTrainer"),
    "Accelerate": ("run.sh", "accelerate launch train.py"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_project_is_answered_with_one_message(name: str, tmp_path: Path) -> None:
    path = tmp_path / "theirs.yaml"
    path.write_text(FILES[name] + "\n")
    with pytest.raises(ConfigurationError) as error:
        load_config(path)
    assert f"is a file for {name.partition(',')[0]}. " in str(error.value)
    assert "docs/coming-from.md" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_of_another_project_is_recognized_by_what_it_starts(name: str, tmp_path: Path) -> None:
    path = tmp_path / SCRIPTS[name][0]
    path.write_text(SCRIPTS[name][1] + "\n")
    with pytest.raises(ConfigurationError, match=f"is a script for {name}"):
        load_config(path)


def test_another_script_is_told_from_a_file_of_settings(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("trinity run --config gsm8k.yaml\n")
    with pytest.raises(ConfigurationError, match="is a script: give the YAML file"):
        load_config(path)


@pytest.mark.parametrize(
    "path",
    [*sorted((ROOT / "examples").glob("*.yaml")), *sorted(REFERENCE.glob("*.yaml"))],
    ids=lambda path: path.name,
)
def test_files_of_ours_of_roll_and_of_trinity_are_not_taken_for_others(path: Path) -> None:
    assert said_of_other_project(path.suffix, path.read_text()) is None


def test_a_key_of_ours_makes_it_ours() -> None:
    assert said_of_other_project(".yaml", "rewards: {a: {worker_cls: math}}\nnum_generations: 3\n") is None


def test_the_page_names_every_one_of_them() -> None:
    page = (ROOT / "docs" / "coming-from.md").read_text()
    assert [name for name in OTHERS if name not in page] == []
