"""`python -m envsdk.train` with a trainer of two rank processes: killed, one or all, and continued."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from envsdk.base.store.trajectories import read_trajectories
from envsdk.tracking import read_metrics
from tests.system.jobs import Job, wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

TWO_RANKS = (
    "actor_train.strategy_args.strategy_name=fsdp2_train",
    "actor_train.device_mapping=list(range(0,2))",
)


MEGATRON = (
    "actor_train.strategy_args.strategy_name=tests.trainers.megatron.cpu_trainer:MegatronOnCpu",
    "actor_train.strategy_args.strategy_config.tensor_model_parallel_size=2",
    "actor_train.device_mapping=list(range(0,2))",
)


@pytest.fixture
def importable_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the processes of a run import this checkout's `tests`."""
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


def rank_processes(run: subprocess.Popen[str]) -> list[psutil.Process]:
    found = []
    for process in psutil.Process(run.pid).children(recursive=True):
        try:
            if process.cmdline()[0].startswith("ray::TrainerHost"):
                found.append(process)
        except (psutil.Error, IndexError):
            continue
    return found


def assert_gone(processes: list[psutil.Process]) -> None:
    assert processes
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert not alive


def run_whose_second_rank_is_killed(job: Job, *overrides: str) -> str:
    """Its output. It ends by itself, with both of its ranks."""
    run = job.start(*overrides)
    wait_until(job.checkpoint(2).is_dir, run)
    first, second = rank_processes(run)
    second.kill()
    output, _ = run.communicate(timeout=120)
    assert run.returncode == 1, output
    assert f"of 2 died: pid {second.pid}: " in output
    assert "Traceback" not in output
    assert_gone([first, second])
    return output


@pytest.mark.slow
def test_whatever_ends_a_run_no_rank_outlives_it_and_the_same_command_goes_on(
    tmp_path: Path, model: Path
) -> None:
    job = Job(tmp_path, model, max_steps=6)

    run = job.start(*TWO_RANKS)
    wait_until(job.batch(0).is_file, run)
    ranks = rank_processes(run)
    assert len(ranks) == 2
    run.kill()
    run.communicate()
    assert_gone(ranks)

    assert "error: actor_train: rank " in run_whose_second_rank_is_killed(job, *TWO_RANKS)

    run = job.start(*TWO_RANKS)
    wait_until(job.batch(4).is_file, run)
    ranks = rank_processes(run)
    os.killpg(run.pid, signal.SIGINT)
    output, _ = run.communicate(timeout=120)
    assert run.returncode in (0, 130), output
    assert_gone(ranks)

    code, output = job.finish(*TWO_RANKS)
    assert code == 0, output
    job.assert_each_step_once(6)
    assert not list(job.run.glob("**/.*.partial"))


@pytest.mark.slow
@pytest.mark.usefixtures("importable_tests")
def test_a_killed_megatron_rank_ends_the_run_and_another_layout_goes_on(tmp_path: Path, model: Path) -> None:
    job = Job(tmp_path, model, max_steps=6)
    run_whose_second_rank_is_killed(job, *MEGATRON)

    two_copies = "actor_train.strategy_args.strategy_config.tensor_model_parallel_size=1"
    code, output = job.finish(*MEGATRON, two_copies)
    assert code == 0, output
    job.assert_each_step_once(6)


@pytest.mark.slow
@pytest.mark.usefixtures("importable_tests")
def test_two_megatron_ranks_play_and_learn_what_one_torch_process_does(tmp_path: Path, model: Path) -> None:
    runs: list[tuple[list[list[int]], list[dict[str, float]], dict[str, np.ndarray]]] = []
    for name, overrides in (("torch", ()), ("megatron", MEGATRON)):
        (tmp_path / name).mkdir()
        job = Job(tmp_path / name, model, max_steps=4, alpha=0)
        # Without the entropy's tiny gradients, of which Adam makes steps as large as any other.
        code, output = job.finish("save_steps=0", "eval_steps=0", "entropy_loss_coef=0", *overrides)
        assert code == 0, output
        batches = [read_trajectories(job.batch(step)) for step in range(4)]
        tokens = [t.tokens.ids.tolist() for batch in batches for t in batch if t.tokens is not None]
        weights = load_file(job.checkpoint(4) / "model" / "model.safetensors")
        runs.append((tokens, read_metrics(job.run / "metrics.jsonl"), weights))
    (torch_tokens, torch_rows, torch_weights), (tokens, rows, weights) = runs

    # In a synchronous run sampling follows from seeds and weights: a real difference would be other tokens.
    assert tokens == torch_tokens
    norms = [row["actor/grad_norm"] for row in rows[:4]]
    assert max(norms) > 0.1
    assert norms == pytest.approx([row["actor/grad_norm"] for row in torch_rows[:4]], rel=1e-3, abs=1e-6)
    assert weights.keys() == torch_weights.keys()
    for name, array in torch_weights.items():
        np.testing.assert_allclose(weights[name], array, atol=2e-4, err_msg=name)


@pytest.mark.slow
def test_two_ranks_train_an_adapter_and_engines_get_nothing_else(tmp_path: Path, model: Path) -> None:
    job = Job(tmp_path, model, max_steps=4, alpha=0)
    lora = "actor_train.strategy_args.strategy_config.lora={rank: 2}"
    code, output = job.finish("save_steps=0", "eval_steps=0", *TWO_RANKS, lora)
    assert code == 0, output
    whole = load_file(job.checkpoint(4) / "model" / "model.safetensors")
    assert not any("lora" in name for name in whole)
    before = load_file(model / "model.safetensors")
    assert {name for name in whole if not np.array_equal(whole[name], before[name])}
    rows = read_metrics(job.run / "metrics.jsonl")[:4]
    num_bytes = [row["weight_update/bytes"] for row in rows if "weight_update/bytes" in row]
    assert num_bytes
    assert max(num_bytes) < 0.3 * sum(weight.nbytes for weight in whole.values())
    assert max(row["actor/logprob_gap_max"] for row in rows) < 1e-4
