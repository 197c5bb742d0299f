"""Reward workers: whose fault it is that a response was not scored, and that no process is left over."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.reward import Reward, RewardError, Sample
from envsdk.rewards.workers import RewardWorkers, shared_workers
from tests.envsdk.rewards import unruly_rewards
from tests.managers.test_env_processes import is_running, wait_until

HERE = unruly_rewards.__name__


def sample(response: str, ground_truth: str | None = "yes", **row: Any) -> Sample:
    return Sample(response=response, row={"ground_truth": ground_truth, **row})


@asynccontextmanager
async def opened(name: str = "Unruly", timeout_s: float = 5.0, **sizes: Any) -> AsyncIterator[RewardWorkers]:
    settings = sizes.pop("settings", {})
    workers = RewardWorkers(f"{HERE}:{name}", settings, timeout_s=timeout_s, **sizes)
    try:
        yield workers
    finally:
        await workers.close()


def descendants() -> list[int]:
    """Those of this process that were started since the test began."""
    found = psutil.Process().children(recursive=True)
    return [child.pid for child in found if is_running(child.pid) and child.pid not in BEFORE]


BEFORE: set[int] = set()
"""Of other tests of this process, such as multiprocessing's fork server."""


@pytest.fixture(autouse=True)
def begun() -> None:
    BEFORE.clear()
    BEFORE.update(descendants())


async def test_a_response_is_scored_in_another_process() -> None:
    async with opened() as workers:
        right, wrong = await workers.score(sample("yes")), await workers.score(sample("no"))
        assert (right.value, right.success, dict(right.parts)) == (1.0, True, {"length": 3.0})
        assert (wrong.value, wrong.success) == (0.0, False)
        assert int(right.verdict.split()[0]) != os.getpid()
        assert right.verdict.split()[0] == wrong.verdict.split()[0], "a worker scores many"
        assert (workers.counts.scored, workers.counts.restarts) == (2, 0)


FAULTS = [
    ("loop", "deadline", r"scoring it took longer than timeout_s=0\.5"),
    ("sleep", "deadline", r"scoring it took longer than timeout_s=0\.5"),
    ("swallow", "deadline", r"scoring it took longer than timeout_s=0\.5"),
    (
        "raise no parser",
        "raised",
        r"raised RuntimeError: no parser \(at \S+rewards.py:\d+ obey\)$",
    ),
    ("recurse", "raised", "scoring it raised RecursionError"),
    ("exit", "raised", "scoring it raised SystemExit: 3"),
    ("nan", "raised", "must be finite"),
    (f"die {signal.SIGSEGV}", "died", r"the scorer died on it \(signal 11\)"),
    (f"die {signal.SIGKILL}", "died", r"the scorer died on it \(signal 9\)"),
    ("leave 7", "died", r"the scorer died on it \(exit code 7\)"),
    ("allocate 4096", "memory", "more memory than a worker may have"),
]
"""What a response orders, the kind of its fault, and its verdict."""


async def test_what_a_response_does_to_its_scorer_makes_it_a_wrong_answer() -> None:
    async with opened(timeout_s=0.5, memory_mb=512) as workers:
        for order, kind, verdict in FAULTS:
            reward = await workers.score(sample(order))
            assert (reward.value, reward.success, reward.fault) == (0.0, False, kind), order
            assert re.search(verdict, reward.verdict), order
            assert (await workers.score(sample("yes"))).success, "the workers go on"
        assert workers.counts.faults == Counter(kind for _, kind, _ in FAULTS)
        assert workers.counts.infrastructure == 0
    wait_until(lambda: not descendants())


@pytest.mark.parametrize(
    ("order", "why"),
    [("text", "must return a Reward, not str"), ("await", "derive from AsyncRewardFunction")],
)
async def test_a_function_that_returns_no_reward_masks_the_episode_whatever_the_response(
    order: str, why: str
) -> None:
    async with opened() as workers:
        with pytest.raises(RewardError, match=why):
            await workers.score(sample(order))
        assert (await workers.score(sample("yes"))).success, "the worker goes on"
        assert (workers.counts.infrastructure, workers.counts.restarts) == (1, 0)


async def test_when_the_reference_answer_fails_as_well_the_episode_is_masked() -> None:
    async with opened(timeout_s=0.3) as workers:
        for order in ("raise no parser", f"die {signal.SIGSEGV}", "loop", "leave 0"):
            before = workers.counts.restarts
            with pytest.raises(
                RewardError, match="No fault of the response: with the row's reference answer"
            ):
                await workers.score(sample(order, ground_truth=order))
            restarts = workers.counts.restarts - before
            assert restarts >= 2
            with pytest.raises(RewardError):
                await workers.score(sample(order, ground_truth=order))
            assert workers.counts.restarts - before - restarts < restarts, "the row is known"
            assert (await workers.score(sample("yes"))).success, "another row"
        assert (workers.counts.infrastructure, workers.counts.scored) == (8, 4)


async def test_a_function_that_always_fails_is_never_the_response_s_fault() -> None:
    async with opened(settings={"broken": "raise no license"}) as workers:
        with pytest.raises(RewardError, match="no license"):
            await workers.score(sample("no"))
    async with opened("NoReference", settings={"broken": "raise no license"}) as workers:
        with pytest.raises(RewardError, match="with an empty response"):
            await workers.score(sample("no"))
    async with opened("NoReference") as workers:
        assert (await workers.score(sample("raise x"))).verdict.startswith(
            "scoring it raised RuntimeError: x"
        )


async def test_a_fault_of_the_worker_s_past_is_not_the_response_s() -> None:
    async with opened() as workers:
        await workers.score(sample("yes"))
        assert (await workers.score(sample("second", ground_truth="second"))).success
        assert not workers.counts.faults


async def test_a_function_that_cannot_be_built_in_a_worker_masks_the_episode() -> None:
    async with opened("Broken", settings={"pid": os.getpid()}) as workers:
        for _ in range(2):
            with pytest.raises(RewardError, match=r"cannot start.*no model file"):
                await workers.score(sample("yes"))


async def test_a_wrong_name_or_setting_is_an_error_of_the_configuration() -> None:
    with pytest.raises(ConfigurationError, match="nothing"):
        RewardWorkers(f"{HERE}:Unruly", {"nothing": 1})
    with pytest.raises(ConfigurationError, match="Unruli"):
        RewardWorkers(f"{HERE}:Unruli", {})


async def test_a_reward_error_of_the_function_masks_the_episode_and_keeps_the_worker() -> None:
    async with opened() as workers:
        with pytest.raises(RewardError, match=r"^a server is down$"):
            await workers.score(sample("blame"))
        assert (await workers.score(sample("yes"))).verdict.endswith(" 2")
        assert workers.counts.restarts == 0


async def test_no_worker_is_left_and_children_of_a_scoring_end_with_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    async with opened() as workers:
        assert (await workers.score(sample(f"spawn {note}", ground_truth=f"spawn {note}"))).success
        wait_until(lambda: not is_running(int(note.read_text())))
        reward = await workers.score(sample("fork", ground_truth="fork"))
        assert reward.success, "the parent answers, and not the child that it forked"
        assert (await workers.score(sample("yes"))).success
        assert len(descendants()) == 2, "the worker and its parent"
    wait_until(lambda: not descendants())


async def test_odd_and_large_texts_are_scored(capfd: pytest.CaptureFixture[str]) -> None:
    async with opened() as workers:
        for text in ("x" * 10**6, "\ud800", "\0", "", "🙂" * 10**5, f"print {10**6}"):
            assert (await workers.score(sample(text, ground_truth=text))).success
        long = await workers.score(sample("long"))
        assert len(long.verdict) <= 2000
        long.verdict.encode()
    assert capfd.readouterr() == ("", "")


async def test_a_cancelled_call_leaves_its_worker_to_the_next() -> None:
    async with opened(timeout_s=1.0) as workers:
        await workers.score(sample("yes"))
        calls = [asyncio.create_task(workers.score(sample(order))) for order in ("loop", "no", "yes")]
        await asyncio.sleep(0)
        for call in calls[:2]:
            call.cancel()
        assert (await calls[2]).success
        assert workers.queue_length == 0
        assert len(descendants()) == 2


async def test_many_responses_share_few_workers() -> None:
    async with opened(world_size=2) as workers:
        rewards = await asyncio.gather(*(workers.score(sample("yes")) for _ in range(200)))
        assert all(reward.success for reward in rewards)
        assert len({reward.verdict.split()[0] for reward in rewards}) <= 2
        assert workers.counts.scored == 200
        assert workers.counts.seconds > 0


async def test_waiting_in_the_queue_does_not_count_for_the_deadline() -> None:
    """Those that spend their whole time delay the last one far beyond its own."""
    async with opened(timeout_s=0.3) as workers:
        rewards = await asyncio.gather(
            *(workers.score(sample("loop")) for _ in range(4)), workers.score(sample("yes"))
        )
        assert [reward.success for reward in rewards] == [False] * 4 + [True]
        assert workers.counts.faults == {"deadline": 4}


async def test_a_killed_parent_of_workers_is_replaced() -> None:
    async with opened() as workers:
        first = await workers.score(sample("yes"))
        for child in psutil.Process().children():
            if child.pid not in BEFORE:
                child.kill()
                child.wait()
        second = await workers.score(sample("yes"))
        assert second.success
        assert second.verdict.split()[0] != first.verdict.split()[0]
        assert not workers.counts.faults


async def test_waiting_responses_are_scored_together_and_alone_when_that_fails() -> None:
    async with opened("InBatches", infer_batch_size=4) as workers:
        rewards = await asyncio.gather(*(workers.score(sample("yes")) for _ in range(8)))
        assert {reward.verdict for reward in rewards} == {"one of 4"}
        texts = ["yes", "raise x", "no", "yes"]
        rewards = await asyncio.gather(*(workers.score(sample(text)) for text in texts))
        assert [reward.value for reward in rewards] == [1.0, 0.0, 0.0, 1.0]
        assert workers.counts.faults == {"raised": 1}


VALUES = {"yes": 1.0, "no": 0.0, "raise x": 0.0, "leave 3": 0.0, "nan": 0.0, "second": 0.0, "blame": None}
"""What each response is worth in any company; None: masked."""


def test_a_response_gets_the_same_reward_in_any_company() -> None:
    """Whatever is scored before, beside and after it, in batches and by several workers."""
    with asyncio.Runner() as runner:

        async def opened() -> RewardWorkers:
            return RewardWorkers(f"{HERE}:InBatches", {}, world_size=2, infer_batch_size=3)

        workers = runner.run(opened())

        @settings(max_examples=20, deadline=None, derandomize=True)
        @given(st.lists(st.sampled_from(sorted(VALUES)), max_size=8))
        def same(texts: list[str]) -> None:
            async def scored() -> list[Reward | BaseException]:
                calls = (workers.score(sample(text)) for text in texts)
                return await asyncio.gather(*calls, return_exceptions=True)

            for text, found in zip(texts, runner.run(scored()), strict=True):
                if VALUES[text] is None:
                    assert isinstance(found, RewardError)
                else:
                    assert isinstance(found, Reward)
                    assert found.value == VALUES[text]

        try:
            same()
        finally:
            runner.run(workers.close())


async def test_inline_functions_follow_the_same_rule() -> None:
    async with opened("UnrulyInline") as workers:
        reward = await workers.score(sample("yes"))
        assert reward.verdict.split()[0] == str(os.getpid())
        assert (await workers.score(sample("raise x"))).verdict.startswith(
            "scoring it raised RuntimeError: x"
        )
        with pytest.raises(RewardError, match="No fault of the response"):
            await workers.score(sample("exit", ground_truth="exit"))
        assert descendants() == []


async def test_awaited_functions_follow_the_same_rule_and_are_closed() -> None:
    async with opened("Awaited", timeout_s=0.5, world_size=3) as workers:
        rewards = await asyncio.gather(*(workers.score(sample("yes")) for _ in range(20)))
        assert all(reward.success for reward in rewards)
        function = workers.function
        assert isinstance(function, unruly_rewards.Awaited)
        assert function.most_at_once == 3
        assert (await workers.score(sample("wait"))).verdict == "scoring it took longer than timeout_s=0.5"
        assert (await workers.score(sample("exit"))).verdict.startswith("scoring it raised SystemExit: 3 (at")
        with pytest.raises(RewardError, match="a server is down"):
            await workers.score(sample("blame"))
        with pytest.raises(RewardError, match="No fault of the response"):
            await workers.score(sample("wait", ground_truth="wait"))
    assert function.is_closed


async def test_an_awaited_function_that_blocks_the_event_loop_misses_its_deadline() -> None:
    late = r"longer than timeout_s=0.1 without an await"
    async with opened("Awaited", timeout_s=0.1) as workers:
        with pytest.warns(
            RuntimeWarning, match=r"reward '\S+:Awaited' kept the event loop.* asyncio.to_thread"
        ):
            reward = await workers.score(sample("block"))
        assert re.search(late, reward.verdict)
        assert reward.fault == "deadline"
        assert (await workers.score(sample("yes"))).success
        with pytest.raises(RewardError, match=f"{late}.* No fault of the response"):
            await workers.score(sample("block", ground_truth="block"))


async def test_a_function_that_keeps_its_deadline_has_no_other_and_no_limit_of_calls() -> None:
    async with opened("AwaitedItself", timeout_s=1e-9, world_size=1) as workers:
        rewards = await asyncio.gather(*(workers.score(sample("yes")) for _ in range(20)))
        assert all(reward.success for reward in rewards)
        assert isinstance(workers.function, unruly_rewards.Awaited)
        assert workers.function.most_at_once == 20


async def test_what_is_preloaded_is_there_in_every_worker() -> None:
    async with opened("Preloaded") as workers:
        first = await workers.score(sample("yes"))
        await workers.score(sample("leave 1"))
        second = await workers.score(sample("yes"))
        assert (first.value, second.value) == (1.0, 1.0)
        assert first.verdict == second.verdict, "one preparation for all"


async def test_closing_ends_calls_under_way() -> None:
    async with opened(timeout_s=600) as workers:
        await workers.score(sample("yes"))
        calls = [asyncio.create_task(workers.score(sample("loop"))) for _ in range(3)]
        await asyncio.sleep(0)
        await workers.close()
        for call in calls:
            with pytest.raises(RewardError, match="closed"):
                await call
        with pytest.raises(RewardError, match="closed"):
            await workers.score(sample("yes"))
    wait_until(lambda: not descendants())


def test_workers_are_shared_by_an_event_loop_and_closed_with_it() -> None:
    async def scored() -> None:
        first = shared_workers(f"{HERE}:Unruly", {}, world_size=1)
        assert shared_workers(f"{HERE}:Unruly", {}, world_size=1) is first
        assert shared_workers(f"{HERE}:Unruly", {"broken": "no"}, world_size=1) is not first
        await first.score(sample("yes"))
        assert len(descendants()) == 2
        opened.append(first)

    opened: list[RewardWorkers] = []
    for _ in range(2):
        asyncio.run(scored())
        wait_until(lambda: not descendants())
    assert opened[0] is not opened[1]


SCORES = """
import asyncio
from tests.envsdk.rewards.test_workers import HERE, descendants, sample
from envsdk.rewards.workers import RewardWorkers
async def main():
    workers = RewardWorkers(f"{HERE}:Unruly", {}, timeout_s=600)
    await workers.score(sample("yes"))
    scoring = asyncio.create_task(workers.score(sample("loop")))
    await asyncio.sleep(0)
    print(*descendants(), flush=True)
    await scoring
asyncio.run(main())
"""


def test_no_worker_outlives_a_killed_process() -> None:
    scores = subprocess.Popen([sys.executable, "-c", SCORES], stdout=subprocess.PIPE, text=True)
    assert scores.stdout is not None
    with scores, scores.stdout:
        pids = [int(pid) for pid in scores.stdout.readline().split()]
        assert len(pids) == 2
        scores.kill()
    wait_until(lambda: not any(map(is_running, pids)))


async def test_a_machine_that_is_busy_elsewhere_does_not_make_an_answer_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker waits for a processor most of the time, by a clock that says so."""
    from envsdk.rewards.worker_process import Worker

    ticks: Callable[[Worker], tuple[float, float]] = _Starved()
    monkeypatch.setattr(Worker, "_times", lambda self: ticks(self))
    async with opened(timeout_s=0.05) as workers:
        with pytest.raises(RewardError, match="for a processor"):
            await workers.score(sample("loop"))
        assert not workers.counts.faults


class _Starved:
    """Of each second that passes, the process waits nine tenths."""

    def __call__(self, worker: Any) -> tuple[float, float]:
        now = asyncio.get_running_loop().time()
        return 0.0, 0.999 * now


@pytest.mark.parametrize(
    "sizes",
    [{"timeout_s": -1}, {"timeout_s": 0}, {"timeout_s": float("nan")}, {"world_size": 0}, {"memory_mb": -5}],
)
def test_a_size_that_is_not_above_zero_is_refused(sizes: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(sizes))} must be a number above 0"):
        RewardWorkers(f"{HERE}:Unruly", {}, **sizes)
