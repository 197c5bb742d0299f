"""Runs that are killed at any moment and continued, from the disk alone: what they train in the end."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envsdk.base.store.trajectories import read_trajectories, write_trajectories
from envsdk.config import RunConfig, load_config
from envsdk.contracts.trajectory import Trajectory
from envsdk.managers.ledger import RolloutLedger
from envsdk.managers.ledger_types import Grant, LedgerConfig
from envsdk.runs.checkpoints import RunState, find_checkpoint, write_checkpoint
from envsdk.runs.run_folder import RunFolder
from tests.trajectories import trajectory_with

NUM_STEPS = 6
LEDGER = LedgerConfig(batch_size=2, group_size=1, alpha=1, tag_weights={"a": 2, "b": 1})


class Killed(Exception):
    """Nothing after this reached the disk."""


@cache
def base_config() -> RunConfig:
    return load_config("agentic_async.yaml", ["exp_name=run", "seed=1"]).config


class Process:
    """One process of a run, which is killed after so many events; `None`: it runs to its end."""

    def __init__(self, config: RunConfig, save_steps: int, events_left: int | None) -> None:
        self.config, self.save_steps, self.events_left = config, save_steps, events_left

    def may_die(self) -> None:
        if self.events_left is not None:
            self.events_left -= 1
            if self.events_left < 0:
                raise Killed

    def run(self) -> list[str]:
        """Ids of what the weights have learned from, in order: the weights are that list."""
        folder = RunFolder.open(self.config)
        weights: list[str] = []
        if folder.checkpoint is not None:
            weights = json.loads((folder.checkpoint.folder / "weights.json").read_text())
        ledger = RolloutLedger(LEDGER, folder.state)
        self.commands = ledger.add_slots({f"{tag}{i}": tag for tag in "ab" for i in range(4)}, 0.0)
        for step in range(folder.first_step, NUM_STEPS):
            self.may_die()
            path = folder.batches.pop(step, None)
            if path is None:
                self.commands += ledger.publish(step, 0.0)
                path = self._write_batch(folder.path, ledger, step)
            self.may_die()
            weights += [trajectory.trajectory_id for trajectory in read_trajectories(path)]
            if (step + 1) % self.save_steps == 0 or step + 1 == NUM_STEPS:
                self._checkpoint(folder, step + 1, weights)
        return weights

    def _write_batch(self, run: Path, ledger: RolloutLedger, step: int) -> Path:
        played: dict[int, Trajectory] = {}
        for command in self._grants(ledger):
            lease = command.lease
            played[lease.lease_id] = trajectory_with(
                trajectory_id=f"{lease.lease_id}:{lease.task.tag}{lease.task.index}",
                group_id=lease.group_id,
                task=lease.task,
                ended_at=0.0,
            )
            self.commands += ledger.finished(lease.lease_id, 0.0, oldest_version=None)
        self.held = getattr(self, "held", {}) | played
        batch, commands = ledger.take(LEDGER.batch_size, 0.0)
        assert batch is not None
        self.commands += commands
        self.may_die()
        path = run / "trajectories" / f"step_{step:06d}.parquet"
        metadata = {"ledger_state": json.dumps(ledger.state().to_dict()), "version": "0", "group_size": "1"}
        write_trajectories(path, [self.held.pop(i) for i in batch.lease_ids], metadata=metadata)
        return path

    def _grants(self, ledger: RolloutLedger) -> Iterator[Grant]:
        while self.commands:
            command = self.commands.pop(0)
            if isinstance(command, Grant):
                yield command

    def _checkpoint(self, folder: RunFolder, step: int, weights: list[str]) -> None:
        def save(partial: Path) -> None:
            self.may_die()
            (partial / "weights.json").write_text(json.dumps(weights))
            self.may_die()

        state = RunState(step=step, seed=1, ledger=folder.ledger_before(step))
        write_checkpoint(folder.path, state, save)
        self.may_die()


def task_of(trajectory_id: str) -> str:
    return trajectory_id.partition(":")[2]


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    kills=st.lists(st.tuples(st.integers(0, 14), st.booleans()), max_size=5),
    save_steps=st.integers(1, 4),
    loses_batches=st.booleans(),
)
def test_a_run_killed_anywhere_learns_from_each_task_once_and_in_order(
    kills: list[tuple[int, bool]], save_steps: int, loses_batches: bool
) -> None:
    with tempfile.TemporaryDirectory() as output_dir:
        config = base_config().model_copy(update={"output_dir": Path(output_dir)})
        for events_left, goes_back in kills:
            checkpoints = sorted((config.run_folder / "checkpoints").glob("step_*"))
            resume = str(checkpoints[0]) if goes_back and checkpoints else "auto"
            process = Process(config.model_copy(update={"resume": resume}), save_steps, events_left)
            try:
                process.run()
            except Killed:
                continue
        newest = find_checkpoint(config.run_folder, "auto")
        if loses_batches and newest is not None:
            # Somebody made room: the checkpoint alone must do.
            for path in (config.run_folder / "trajectories").iterdir():
                path.unlink()
        Process(config, save_steps, None).run()
        final = find_checkpoint(config.run_folder, "auto")
        assert final is not None
        assert final.state.step == NUM_STEPS
        weights = json.loads((final.folder / "weights.json").read_text())
        assert len(set(weights)) == NUM_STEPS * LEDGER.batch_size
        tasks = [task_of(each) for each in weights]
        assert len(set(tasks)) == len(tasks), "a task was learned from twice"
        # Everything takes the same time here: tasks are learned from in the order of the mixture.
        for tag in "ab":
            of_tag = [int(task[1:]) for task in tasks if task[0] == tag]
            assert of_tag == list(range(len(of_tag)))
