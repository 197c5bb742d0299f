"""`envsdk.Rollouts` under a training loop of one's own: examples/own_trainer.py, killed and continued."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import envsdk
from envsdk.base.store.trajectories import read_trajectories
from tests.system.jobs import REPOSITORY, Job, wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

EXAMPLE = str(REPOSITORY / "examples" / "own_trainer.py")
NUM_STEPS = 11
"""One more than the example's first checkpoint."""


def rewards_of(output: str) -> dict[int, str]:
    return {int(step): reward for step, reward in re.findall(r"^step (\d+): reward (\S+),", output, re.M)}


def ids_of(batch: envsdk.Batch) -> list[str]:
    return [each.trajectory_id for each in batch]


def checkpoint_of(job: Job) -> dict[str, Any]:
    saved: dict[str, Any] = torch.load(job.folder / "own_trainer.pt", weights_only=False)
    return saved


@pytest.mark.slow
def test_a_loop_that_is_killed_goes_on_as_if_nothing_had_happened(tmp_path: Path, model: Path) -> None:
    outputs, jobs = {}, {}
    for name in ("undisturbed", "killed"):
        (tmp_path / name).mkdir()
        job = jobs[name] = Job(tmp_path / name, model, alpha=0)
        if name == "killed":
            process = job.start_program(EXAMPLE, "run.yaml", str(NUM_STEPS))
            wait_until(job.batch(NUM_STEPS - 1).is_file, process)
            process.kill()
            process.communicate()
            assert checkpoint_of(job)["rollouts"]["step"] == NUM_STEPS - 1
        process = job.start_program(EXAMPLE, "run.yaml", str(NUM_STEPS))
        outputs[name], _ = process.communicate(timeout=300)
        assert process.returncode == 0, outputs[name]
        assert "held-out success: " in outputs[name]

    rewards = rewards_of(outputs["undisturbed"])
    assert list(rewards) == list(range(1, NUM_STEPS + 1))
    assert rewards_of(outputs["killed"]) == {NUM_STEPS: rewards[NUM_STEPS]}
    killed, undisturbed = checkpoint_of(jobs["killed"]), checkpoint_of(jobs["undisturbed"])
    assert all(torch.equal(killed["model"][name], tensor) for name, tensor in undisturbed["model"].items())
    ids = [
        each.trajectory_id for s in range(NUM_STEPS) for each in read_trajectories(jobs["killed"].batch(s))
    ]
    assert len(ids) == 8 * NUM_STEPS == len(set(ids))


async def test_what_would_never_come_is_refused_and_what_was_given_up_comes_later(
    tmp_path: Path, model: Path
) -> None:
    job = Job(tmp_path, model, alpha=1)
    source = str(job.folder / "run.yaml")
    with pytest.raises(envsdk.ConfigurationError, match="not started"):
        await envsdk.AsyncRollouts(source).get_batch()
    async with envsdk.AsyncRollouts(source, [f"output_dir={tmp_path / 'runs'}"]) as rollouts:
        with pytest.raises(envsdk.ConfigurationError, match=r"get_batch\(6\): ask for a multiple of .* 4"):
            await rollouts.get_batch(6)
        half = await rollouts.get_batch(4)
        assert (half.step, half.version, len(half.groups)) == (0, 0, 1)
        with pytest.raises(envsdk.ConfigurationError, match="4 were taken since the last publish"):
            await rollouts.get_batch(8)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await rollouts.get_batch(4)
        rest = await rollouts.get_batch(4)
        assert rest.step == 1
        assert {each.trajectory_id for each in half}.isdisjoint(each.trajectory_id for each in rest)
        assert half[0].to_messages()[-1] == {"role": "assistant", "content": half[0].turns[-1].reply}
        with pytest.raises(envsdk.ConfigurationError, match="cannot be published: weight `x`"):
            await rollouts.publish({"x": torch.zeros(2)})
        assert await rollouts.publish(rollouts.model) == 1
        with pytest.raises(envsdk.ConfigurationError, match="version 1 cannot be published after version 1"):
            await rollouts.publish(rollouts.model, version=1)
        held_out = await rollouts.validate()
        assert len(held_out) == 4
        assert {each.task.split for each in held_out} == {"val"}
        (health,) = (await rollouts.engines()).values()
        assert health.version == 1
        with pytest.raises(envsdk.ConfigurationError, match="another process"):
            await envsdk.AsyncRollouts(source, [f"output_dir={tmp_path / 'runs'}"]).start()
        state = json.loads(json.dumps(rollouts.state()))
        both = await asyncio.gather(rollouts.get_batch(4), rollouts.get_batch(4))
        assert [batch.step for batch in both] == [2, 3]
        assert await rollouts.publish(rollouts.model) == 2
        later = await rollouts.get_batch(4)
    with pytest.raises(envsdk.ConfigurationError, match="closed"):
        await rollouts.start()
    assert (state["step"], state["version"]) == (2, 1)
    left = [*both, later]
    continued = envsdk.Rollouts(source, [f"output_dir={tmp_path / 'runs'}"], state=state)
    with continued:
        with pytest.raises(envsdk.ConfigurationError, match="belong to `state` before validate"):
            continued.validate()
        assert continued.publish(continued.model) == 1
        assert [ids_of(continued.get_batch()) for _ in both] == [ids_of(batch) for batch in both]
        assert continued.publish(continued.model) == 2
        assert ids_of(continued.get_batch()) == ids_of(later)
        rest_of_it = continued.get_batch(4)
        assert (rest_of_it.step, rest_of_it.version) == (5, 2)
        seen = {each.trajectory_id for batch in (half, rest, *left) for each in batch}
        assert len(seen) == 20
        assert seen.isdisjoint(each.trajectory_id for each in rest_of_it)
        continued.suspend()
        continued.validate()
        assert continued.publish(continued.model) == 3
        with pytest.raises(envsdk.ConfigurationError, match=r"call resume\(\) first"):
            continued.get_batch()
        continued.resume()
        assert continued.get_batch().version == 3


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"format": "x"}, "give what Rollouts.state"),
        ({"step": -3}, "`step` must be a whole number"),
        ({"step": 2.7}, "`step` must be a whole number"),
        ({"version": "x"}, "`version` must be"),
        ({"seed": None}, "`seed` must be"),
        ({"step": 50, "ledger": None}, "has no ledger"),
        ({"ledger": {"a": 1}}, "its ledger is damaged"),
        ({"seed": 4}, "of a run with seed 4"),
    ],
)
def test_a_state_that_is_not_one_is_refused(
    tmp_path: Path, model: Path, changed: dict[str, Any], said: str
) -> None:
    job = Job(tmp_path, model)
    state = {"format": "envsdk.rollouts/1", "step": 0, "version": 0, "seed": 3, "ledger": None, **changed}
    with pytest.raises(envsdk.ConfigurationError, match=said):
        envsdk.Rollouts(str(job.folder / "run.yaml"), state=state)
