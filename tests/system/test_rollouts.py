"""Scheduler, workers and engines as real processes: what a pipeline may rely on."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import ray

from envsdk.base.store.trajectories import read_metadata, read_trajectories
from envsdk.contracts.env import Isolation
from envsdk.contracts.failures import ConfigurationError, RolloutStalled
from envsdk.contracts.trajectory import Outcome, RolloutBatch, Task
from envsdk.engines.engine import EngineConfig, EngineHealth
from envsdk.engines.engine_host import EngineHost
from envsdk.managers.ledger_types import LedgerState
from envsdk.managers.slot_activity import MAX_RESTARTS_WITHOUT_PROGRESS
from tests.system.conftest import Rollouts, StartRollouts, toy_tag, troublesome, wait_until, worker_processes

pytestmark = pytest.mark.system
slow = pytest.mark.slow

SLOW_REPLIES = {"latency": {"kind": "lognormal", "mean_s": 0.05, "sigma": 1.0}}


def assert_complete_groups(batch: RolloutBatch, group_size: int) -> None:
    for group in batch.groups:
        assert len(group) == group_size
        assert len({trajectory.task for trajectory in group}) == 1
        assert len({trajectory.trajectory_id for trajectory in group}) == group_size
        assert len({trajectory.seed for trajectory in group}) == 1


def test_a_batch_is_complete_groups_of_one_task_each_on_disk_and_a_new_scheduler_goes_on_behind_it(
    start_rollouts: StartRollouts, tmp_path: Path
) -> None:
    tags = toy_tag("A"), toy_tag("B")
    rollouts = start_rollouts(*tags, group_size=4, batch_size=8, num_workers=2, folder=tmp_path)
    delivered: Counter[Task] = Counter()
    for version in range(1, 4):
        batch = rollouts.next_batch()
        path = tmp_path / f"step_{version - 1:06d}.parquet"
        assert [t.trajectory_id for t in read_trajectories(path)] == [
            t.trajectory_id for t in batch.trajectories
        ]
        assert_complete_groups(batch, 4)
        for group in batch.groups:
            delivered[group[0].task] += 1
            assert all(trajectory.success and len(trajectory.turns) == 3 for trajectory in group)
            sampled = {tuple(t.tokens.ids.tolist()) for t in group if t.tokens is not None}
            assert len(sampled) == 4
        rollouts.advance(version)
    ray.kill(rollouts.actor)

    state = LedgerState.from_dict(json.loads(read_metadata(path)["ledger_state"]))
    again = start_rollouts(*tags, group_size=4, batch_size=8, folder=tmp_path, state=state)
    again.num_batches = 3
    ids = {t.trajectory_id for t in batch.trajectories}
    for version in range(state.version + 1, state.version + 4):
        batch = again.next_batch()
        assert ids.isdisjoint(t.trajectory_id for t in batch.trajectories)
        delivered.update(group[0].task for group in batch.groups)
        again.advance(version)
    assert set(delivered.values()) == {1}
    indices = {tag: sorted(task.index for task in delivered if task.tag == tag) for tag in "AB"}
    assert indices == {tag: list(range(6)) for tag in "AB"}


@slow
def test_without_asynchrony_nothing_is_sampled_between_a_batch_and_the_next_publication(
    start_rollouts: StartRollouts,
) -> None:
    rollouts = start_rollouts(alpha=0)
    for version in range(1, 4):
        batch = rollouts.next_batch()
        assert {t.oldest_version for t in batch.trajectories} == {version - 1}
        assert batch.ledger_counts["started"] == 4 * version
        sampled = rollouts.num_prompt_tokens()
        time.sleep(0.3)
        assert rollouts.num_prompt_tokens() == sampled
        rollouts.advance(version)


@pytest.mark.parametrize("alpha", [pytest.param(0.5, marks=slow), 2])
def test_no_sample_is_older_than_alpha_allows_whatever_the_latencies(
    start_rollouts: StartRollouts, alpha: float
) -> None:
    rollouts = start_rollouts(alpha=alpha, engine=SLOW_REPLIES, batch_size=8, slots_per_tag=24)
    pause = random.Random(1)
    staleness: Counter[int] = Counter()
    for version in range(1, 12):
        batch = rollouts.next_batch()
        assert_complete_groups(batch, 2)
        assert batch.version == version - 1
        staleness.update(batch.version - t.oldest_version for t in batch.trajectories)  # type: ignore[operator]
        time.sleep(pause.choice([0.0, 0.0, 0.1, 0.3]))
        rollouts.advance(version)
    assert max(staleness) <= math.ceil(alpha)
    assert max(staleness) >= 1, "nothing ran ahead"


@pytest.mark.parametrize(
    ("isolation", "how", "kind"),
    [
        (Isolation.THREAD, "hang", "step_timeout"),
        pytest.param(Isolation.ASYNC, "hang", "step_timeout", marks=slow),
        pytest.param(Isolation.PROCESS, "hang", "step_timeout", marks=slow),
        pytest.param(Isolation.PROCESS, "die", "process_died", marks=slow),
        pytest.param(Isolation.INLINE, "raise", "step_raised", marks=slow),
    ],
)
def test_a_bad_environment_never_holds_a_batch_back_and_fails_alone(
    start_rollouts: StartRollouts, isolation: Isolation, how: str, kind: str
) -> None:
    rollouts = start_rollouts(toy_tag("Good"), troublesome("Bad", how, isolation), max_group_attempts=2)
    failures: Counter[str] = Counter()
    for version in range(1, 100):
        batch = rollouts.next_batch()
        assert {t.task.tag for t in batch.trajectories} == {"Good"}
        assert not any(t.failure for t in batch.trajectories)
        failures.update(batch.failures)
        if failures:
            break
        rollouts.advance(version)
        time.sleep(0.2)
    assert set(failures) == {f"environment/{kind}"}


@slow
def test_a_group_with_one_bad_member_is_delivered_with_its_failure(start_rollouts: StartRollouts) -> None:
    rollouts = start_rollouts(
        engine={"failure": {"rate": 0.1}}, group_size=4, batch_size=16, slots_per_tag=16
    )
    failed = []
    for version in range(1, 4):
        batch = rollouts.next_batch()
        assert_complete_groups(batch, 4)
        failed += [t for t in batch.trajectories if t.failure is not None]
        assert all(sum(t.failure is None for t in group) >= 2 for group in batch.groups)
        rollouts.advance(version)
    assert failed
    assert all(t.outcome is Outcome.FAILED and not t.success for t in failed)
    assert {str(t.failure).partition(":")[0] for t in failed} == {"engine/request_failed"}


@slow
def test_a_task_that_does_not_fit_ends_a_run_that_begins_and_not_one_that_has_delivered(
    start_rollouts: StartRollouts,
) -> None:
    too_long = [Task(tag="Bad", split="train", index=i).seed(0) % 100 < 10 for i in range(8)]
    assert too_long.index(True) == 5
    rollouts = start_rollouts(troublesome("Bad", "flood", share=0.1), alpha=0, max_group_attempts=2)
    played: list[int] = []
    failures: Counter[str] = Counter()
    for version in range(1, 4):
        batch = rollouts.next_batch()
        played += [group[0].task.index for group in batch.groups]
        failures.update(batch.failures)
        rollouts.advance(version)
    assert sorted(played) == [0, 1, 2, 3, 4, 6]
    assert failures.keys() == {"configuration/prompt_too_long"}

    rollouts = start_rollouts(troublesome("Bad", "flood", share=0.1), alpha=0, batch_size=12)
    with pytest.raises(ConfigurationError, match="raise sequence_length"):
        rollouts.next_batch()


@slow  # by day, test_proxy.py waits for a reply that never comes
def test_a_reply_that_never_comes_fails_its_turn_alone(start_rollouts: StartRollouts) -> None:
    rollouts = start_rollouts(
        engine={"hang_rate": 0.05}, turn_timeout_s=0.5, group_size=4, batch_size=16, slots_per_tag=16
    )
    failures: Counter[str] = Counter()
    for version in range(1, 4):
        batch = rollouts.next_batch()
        assert_complete_groups(batch, 4)
        failures.update(batch.failures)
        rollouts.advance(version)
    assert set(failures) == {"engine/turn_timeout"}


@pytest.mark.parametrize(
    ("isolation", "how"),
    [
        pytest.param(Isolation.INLINE, "hang", marks=slow),
        (Isolation.INLINE, "hog"),
        pytest.param(Isolation.THREAD, "hog", marks=slow),
        pytest.param(Isolation.ASYNC, "block", marks=slow),
    ],
)
def test_an_environment_that_holds_up_its_worker_costs_its_own_episode_and_no_other(
    start_rollouts: StartRollouts, isolation: Isolation, how: str
) -> None:
    rollouts = start_rollouts(
        toy_tag("Good"),
        troublesome("Bad", how, isolation, share=0.1),
        num_workers=2,
        max_group_attempts=2,
        batch_size=8,
        engine=SLOW_REPLIES,
    )
    failures: Counter[str] = Counter()
    for version in range(1, 200):
        batch = rollouts.next_batch()
        assert_complete_groups(batch, 2)
        assert all(t.success for t in batch.trajectories if t.task.tag == "Good" or t.seed % 100 >= 10)
        failures.update(batch.failures)
        if failures["scheduler/worker_died"] >= 1:
            break
        rollouts.advance(version)
    assert set(failures) == {"environment/step_timeout", "scheduler/worker_died"}


@pytest.mark.slow
def test_tasks_whose_environment_always_hangs_are_given_up_and_the_run_goes_on(
    start_rollouts: StartRollouts,
) -> None:
    rollouts = start_rollouts(
        troublesome("Bad", "hang", share=0.9),
        batch_size=2,
        alpha=0,
        max_group_attempts=2,
        max_fruitless_batches=100,
    )
    batch = rollouts.next_batch()
    assert_complete_groups(batch, 2)
    assert all(t.success for t in batch.trajectories)
    assert batch.failures["scheduler/worker_died"] > MAX_RESTARTS_WITHOUT_PROGRESS


def test_a_worker_that_does_not_stop_after_the_episode_deadline_is_replaced(
    start_rollouts: StartRollouts,
) -> None:
    rollouts = start_rollouts(toy_tag("Good"), num_workers=2, batch_size=8, episode_deadline_s=2.0)
    rollouts.next_batch()
    os.kill(min(rollouts.worker_pids), signal.SIGSTOP)
    failures: Counter[str] = Counter()
    for version in range(1, 2000):
        rollouts.advance(version)
        batch = rollouts.next_batch()
        assert_complete_groups(batch, 2)
        failures.update(batch.failures)
        if failures["scheduler/worker_died"]:
            break
        time.sleep(0.05)
    assert failures["scheduler/worker_died"] == 1


def test_a_killed_worker_is_replaced_and_what_it_played_is_played_again(
    start_rollouts: StartRollouts,
) -> None:
    rollouts = start_rollouts(engine=SLOW_REPLIES, num_workers=2, batch_size=8, max_group_attempts=100)
    assert len(rollouts.worker_pids) == 2
    delivered: list[int] = []
    failures: Counter[str] = Counter()
    for version in range(1, 7):
        if version in (2, 4):
            os.kill(min(rollouts.worker_pids), signal.SIGKILL)
            rollouts.worker_pids.remove(min(rollouts.worker_pids))
        batch = rollouts.next_batch()
        assert_complete_groups(batch, 2)
        assert all(t.success for t in batch.trajectories)
        delivered += [group[0].task.index for group in batch.groups]
        failures.update(batch.failures)
        rollouts.advance(version)
    wait_until(lambda: rollouts.num_ready() > 0)
    batch = rollouts.next_batch()
    failures.update(batch.failures)
    counts = batch.ledger_counts
    assert failures == {"scheduler/worker_died": 2}
    assert counts["delivered"] == 7 * 8
    assert counts["cancelled"] > 0
    assert counts["failed"] == counts["filtered"] == 0
    ended = sum(count for name, count in counts.items() if name != "started")
    assert 0 <= counts["started"] - ended <= 16
    assert len(set(delivered)) == len(delivered)


def test_a_worker_that_cannot_even_start_ends_the_run_with_its_reason(start_rollouts: StartRollouts) -> None:
    with pytest.raises(ConfigurationError, match="did you mean `TrajEnvManager`"):
        start_rollouts(manager_class="TrajEnvManger")


def episodes(batch: RolloutBatch) -> dict[object, object]:
    found = {
        (t.task, member): (t.seed, t.success, None if t.tokens is None else t.tokens.ids.tolist())
        for group in batch.groups
        for member, t in enumerate(group)
    }
    assert len(found) == len(batch.trajectories)
    return found


@slow  # by day, test_train.py compares the evaluations of a run
def test_every_evaluation_plays_the_same_tasks_and_the_same_weights_the_same_episodes(
    start_rollouts: StartRollouts,
) -> None:
    rollouts = start_rollouts(
        engine=SLOW_REPLIES, alpha=0, min_group_size=0, split="val", batch_size=8, begin=False
    )
    seen: list[dict[object, object]] = []
    ids: set[str] = set()
    for version in range(3):
        rollouts.update_engines(version)
        if version == 2:
            # An evaluation that is begun and given up must leave no trace in the next.
            rollouts.begin_again(version)
            time.sleep(0.1)
        rollouts.begin_again(version)
        batch = rollouts.next_batch()
        assert batch.version == version
        assert ids.isdisjoint(t.trajectory_id for t in batch.trajectories)
        ids.update(t.trajectory_id for t in batch.trajectories)
        seen.append(episodes(batch))
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.slow
def test_an_evaluation_begun_while_an_environment_hangs_waits_for_no_one(
    start_rollouts: StartRollouts,
) -> None:
    rollouts = start_rollouts(
        troublesome("Bad", "hang", share=0.5),
        alpha=0,
        min_group_size=0,
        episode_deadline_s=15.0,
        batch_size=8,
        num_workers=4,
        slots_per_tag=2,
        begin=False,
    )
    for version in range(2):
        rollouts.update_engines(version)
        rollouts.begin_again(version)
        batch = rollouts.next_batch()
        assert_complete_groups(batch, 2)
        assert sorted({t.task.index for t in batch.trajectories}) == [0, 1, 2, 3]
        assert all(t.failure for t in batch.trajectories if t.seed % 100 < 50)
        assert any(t.success for t in batch.trajectories)


def test_a_suspended_scheduler_lets_nothing_be_sampled_until_it_is_resumed(
    start_rollouts: StartRollouts,
) -> None:
    rollouts = start_rollouts(engine={"latency": {"kind": "constant", "mean_s": 0.5}}, alpha=4)
    wait_until(lambda: rollouts.num_prompt_tokens() > 0)
    rollouts.suspend()
    time.sleep(0.3)  # the word is out; all episodes are between their first turn and their last
    asked = rollouts.num_prompt_tokens()
    time.sleep(1.0)
    rollouts.publish(1)
    time.sleep(0.3)
    assert rollouts.num_prompt_tokens() == asked
    rollouts.resume()
    wait_until(lambda: rollouts.num_prompt_tokens() > asked)
    assert_complete_groups(rollouts.next_batch(), 2)


def test_when_everything_fails_the_run_ends_and_says_what_failed(
    start_rollouts: StartRollouts, tmp_path: Path
) -> None:
    rollouts = start_rollouts(troublesome("Bad", "raise"), folder=tmp_path)
    with pytest.raises(
        RolloutStalled, match=r"thrown away.*\d+ x environment/step_raised \(.*the lake is closed"
    ):
        rollouts.next_batch()
    (discarded,) = tmp_path.glob("discarded_step_*.parquet")
    failures = [trajectory.failure for trajectory in read_trajectories(discarded)]
    assert failures
    assert all(failures)


@slow  # by day, test_ledger.py replaces such groups
@pytest.mark.parametrize("alpha", [0, 1])
def test_a_group_that_a_filter_drops_is_replaced_and_the_batch_stays_whole(
    start_rollouts: StartRollouts, tmp_path: Path, alpha: float
) -> None:
    mine = "tests.system.toy_filters:odd_tasks"
    rollouts = start_rollouts(group_filters=[mine], folder=tmp_path, alpha=alpha)
    num_dropped = 0
    for version in range(1, 4):
        batch = rollouts.next_batch()
        assert len(batch.groups) == 2
        assert_complete_groups(batch, 2)
        assert all(group[0].task.index % 2 == 0 for group in batch.groups)
        num_dropped += batch.filtered[mine]
        assert batch.ledger_counts["filtered"] == 2 * num_dropped
        rollouts.advance(version)
    # Six groups with even tasks were delivered: the odd ones between them are gone.
    assert num_dropped >= 5
    ends = json.loads(read_metadata(tmp_path / "discarded_step_000000.parquet")["ends"])
    assert f"filtered: {mine}: task 1 is odd" in ends


@slow  # by day, test_batch_files.py writes them
def test_what_is_thrown_away_is_written_as_it_comes_and_does_not_wait_for_a_batch(
    start_rollouts: StartRollouts, tmp_path: Path
) -> None:
    (tmp_path / "discarded_step_000000_7.parquet").write_text("left by a killed run")
    start_rollouts(
        group_filters=["zero_variance"], max_filtered_groups=6, folder=tmp_path, discarded_per_file=4
    )
    wait_until(lambda: len(list(tmp_path.glob("discarded_*.parquet"))) >= 2)
    first, second = sorted(tmp_path.glob("discarded_*.parquet"))[:2]  # the run's end writes the rest
    assert (first.name, second.name) == ("discarded_step_000000.parquet", "discarded_step_000000_1.parquet")
    for file in (first, second):
        assert len(read_trajectories(file)) == 4
        ends = json.loads(read_metadata(file)["ends"])
        assert ends == ["filtered: zero_variance: every reward is 1"] * 4


@pytest.mark.slow
def test_a_filter_that_drops_everything_ends_the_run_and_is_named(start_rollouts: StartRollouts) -> None:
    rollouts = start_rollouts(group_filters=["zero_variance"], max_filtered_groups=6)
    with pytest.raises(RolloutStalled, match=r"dropped 6 groups.*every reward is 1.*max_filtered_groups 6"):
        rollouts.next_batch()


@pytest.mark.slow
def test_a_first_prompt_over_the_sequence_length_names_the_keys_to_change(
    start_rollouts: StartRollouts,
) -> None:
    rollouts = start_rollouts(toy_tag("Wordy", system="go " * 100), sequence_length=64)
    with pytest.raises(ConfigurationError, match=r"sequence_length=64.*custom_envs\.Wordy\.agent_system"):
        rollouts.next_batch()


@pytest.mark.slow
def test_with_two_engines_losing_one_costs_nothing_but_time(start_rollouts: StartRollouts) -> None:
    rollouts = start_rollouts(engine=SLOW_REPLIES, num_engines=2, num_workers=2)
    rollouts.next_batch()
    lost = rollouts.engines.pop("engine-0")
    ray.kill(lost)
    for version in range(1, 4):
        rollouts.advance(version)
        batch = rollouts.next_batch()
        assert all(t.success for t in batch.trajectories)
        assert not batch.failures


@pytest.mark.slow
def test_an_engine_that_comes_back_answers_all_workers_and_those_that_are_replaced(
    start_rollouts: StartRollouts,
) -> None:
    rollouts = start_rollouts(engine=SLOW_REPLIES, num_workers=2, batch_size=8, max_group_attempts=100)
    rollouts.next_batch()
    ray.kill(rollouts.engines.pop("engine-0"))
    host: Any = ray.remote(num_cpus=0, max_restarts=0)(EngineHost)
    config = EngineConfig(model=None, sequence_length=512, strategy_config=SLOW_REPLIES)
    again = rollouts.engines["engine-0"] = host.remote("mock", config)
    try:
        ray.get(again.start.remote(), timeout=60)
        rollouts.update_engines(0)
        rollouts.engine_joined("engine-0", again)
        for version in range(1, 4):
            rollouts.advance(version)
            batch = rollouts.next_batch()
            assert all(t.success for t in batch.trajectories)
            if version == 1:
                os.kill(min(rollouts.worker_pids), signal.SIGKILL)
        wait_until(lambda: len(worker_processes() - {min(rollouts.worker_pids)}) == 2)
    finally:
        ray.kill(again)


@slow  # by day, an engine leaves in test_engine_group.py and the router's tests
def test_an_engine_that_leaves_gets_no_more_requests_also_from_workers_that_are_replaced(
    start_rollouts: StartRollouts,
) -> None:
    rollouts = start_rollouts(
        engine=SLOW_REPLIES, num_engines=2, num_workers=2, batch_size=8, max_group_attempts=100
    )
    leaving = rollouts.engines["engine-0"]

    def num_asked() -> int:
        look = ray.get(leaving.health.remote(), timeout=60)
        assert isinstance(look, EngineHealth)
        return look.num_prompt_tokens

    rollouts.next_batch()
    rollouts.engine_left("engine-0")
    for version in range(1, 3):
        rollouts.advance(version)
        assert all(t.success for t in rollouts.next_batch().trajectories)
    before = num_asked()
    assert before > 0
    os.kill(min(rollouts.worker_pids), signal.SIGKILL)
    for version in range(3, 6):
        rollouts.advance(version)
        assert all(t.success for t in rollouts.next_batch().trajectories)
    assert num_asked() == before

    rollouts.engine_joined("engine-0", leaving)
    rollouts.advance(6)
    rollouts.next_batch()
    wait_until(lambda: num_asked() > before)


@pytest.mark.slow
def test_an_engine_that_breaks_says_so_in_its_health(start_rollouts: StartRollouts) -> None:
    rollouts: Rollouts = start_rollouts(engine={"failure": {"rate": 1.0, "kind": "crash"}})
    (engine,) = rollouts.engines.values()
    wait_until(lambda: "the mock engine crashed" in ray.get(engine.health.remote(), timeout=60).error)
    with contextlib.suppress(ray.exceptions.RayError, RolloutStalled):
        rollouts.next_batch()
