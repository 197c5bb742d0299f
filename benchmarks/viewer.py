"""How long the viewer takes with very many trajectories: reading them once, the first page, filters.

Writes a data set of generated episodes as `envsdk collect` would (shards and a manifest), opens it with an
empty cache, and asks the pages' questions over the ASGI application, so that everything but the socket and
the browser is measured. Texts are random words, so the text index is as large as one of natural text.

    python benchmarks/viewer.py [--trajectories 100000]
"""

from __future__ import annotations

import argparse
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from starlette.testclient import TestClient

from envsdk.base.store.shard_plan import plan_shards
from envsdk.base.store.shards import Manifest, record_shard, shard_metadata, utc_now
from envsdk.base.store.tally import Tally
from envsdk.base.store.trajectories import write_trajectories
from envsdk.contracts.failures import Boundary, Failure
from envsdk.contracts.trajectory import Outcome, Task, TokenArrays, Trajectory, Turn
from envsdk.view.app import make_app
from envsdk.view.library import Library

SHARD_SIZE = 1000
NUM_WORDS = 20_000
TOKENS_PER_OBSERVATION, TOKENS_PER_REPLY = 60, 20
REPEATS = 5
TOKEN = "benchmark-token-of-the-viewer"


def vocabulary() -> list[str]:
    """Pronounceable words, the most frequent first."""
    rng = random.Random(1)
    syllables = [first + second for first in "bdfgklmnprst" for second in "aeiou"]
    return ["".join(rng.choices(syllables, k=rng.randint(2, 4))) for _ in range(NUM_WORDS)]


def questions() -> dict[str, dict[str, str]]:
    """What is asked for, and with which parameters."""
    words = vocabulary()
    return {
        "first page": {},
        "a tag": {"tag": "tag-3"},
        "not solved, 3 to 5 turns": {"success": "no", "turns_min": "3", "turns_max": "5"},
        "reward at least 0.5, highest first": {"reward_min": "0.5", "sort": "-reward"},
        "one kind of failure": {"failure": "environment/step_timeout"},
        "sampled by version 7": {"version": "7"},
        "the most frequent word": {"q": f'"{words[0]}"'},
        "a rare word": {"q": f'"{words[19_000]}"'},
        "the first three letters of a word": {"q": words[0][:3]},
        "two words and a tag": {"q": f"{words[12]} {words[40]}", "tag": "tag-1"},
        "page 1000 by log-probability": {"sort": "logprob", "offset": "49950"},
    }


def make_trajectories(number: int, tags: list[str]) -> Iterator[Trajectory]:
    """Episodes of 2 to 12 turns of random words, the frequent ones much more frequent."""
    rng = random.Random(0)
    numbers = np.random.default_rng(0)
    words = vocabulary()
    weights = np.cumsum(1 / np.arange(1, NUM_WORDS + 1))
    for index in range(number):
        num_turns = rng.randint(2, 12)
        places = np.searchsorted(weights, numbers.random(num_turns * 40) * weights[-1])
        texts = [words[place] for place in places]
        failed = index % 50 == 0
        success = not failed and rng.random() < 0.4
        turns, start = [], 0
        for turn in range(num_turns):
            start += TOKENS_PER_OBSERVATION
            said = texts[turn * 40 : (turn + 1) * 40]
            turns.append(
                Turn(
                    observation=" ".join(said[:30]),
                    reply=" ".join(said[30:]),
                    reward=1.0 if success and turn == num_turns - 1 else -0.05,
                    response_start=start,
                    response_end=start + TOKENS_PER_REPLY,
                    metrics={"action_is_valid": 1.0},
                )
            )
            start += TOKENS_PER_REPLY
        mask = np.tile(np.repeat([0, 1], [TOKENS_PER_OBSERVATION, TOKENS_PER_REPLY]), num_turns).astype(
            np.int8
        )
        oldest = rng.randint(0, 19)
        versions = np.where(np.arange(len(mask)) < len(mask) // 2, oldest, oldest + 1)
        yield Trajectory(
            trajectory_id=f"episode-{index}",
            group_id=index // 8,
            task=Task(tag=tags[index // SHARD_SIZE % len(tags)], split="train", index=index // 8),
            seed=index // 8,
            outcome=Outcome.FAILED if failed else Outcome.TERMINATED,
            success=success,
            turns=tuple(turns),
            tokens=TokenArrays(
                ids=numbers.integers(0, 50_000, len(mask)).astype(np.int32),
                response_mask=mask,
                behavior_logprobs=np.where(mask == 1, -numbers.exponential(0.5, len(mask)), 0).astype(
                    np.float32
                ),
                versions=np.where(mask == 1, versions, -1).astype(np.int32),
            ),
            failure=Failure(boundary=Boundary.ENVIRONMENT, kind="step_timeout", message="waited 30 s")
            if failed
            else None,
            started_at=float(index),
            ended_at=float(index + num_turns),
        )


def write_data_set(folder: Path, number: int) -> None:
    """Shards and a manifest, as `envsdk collect` leaves them."""
    tags = [f"tag-{at}" for at in range(4)]
    episodes = make_trajectories(number, tags)
    plans = plan_shards({tag: number // len(tags) for tag in tags}, split="train", shard_size=SHARD_SIZE)
    manifest = Manifest(
        config={"benchmark": number}, versions={}, command=[], num_planned=len(plans), created_at=utc_now()
    )
    for plan in plans:
        shard = [next(episodes) for _ in range(plan.num_episodes)]
        metadata = shard_metadata(manifest.fingerprint, plan)
        write_trajectories(folder / plan.file_name, shard, metadata=metadata)
        manifest.shards[plan.number] = record_shard(folder, plan, Tally.of(shard))
    manifest.save(folder)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trajectories", type=int, default=100_000)
    number = parser.parse_args().trajectories
    with tempfile.TemporaryDirectory() as name:
        folder, cache = Path(name, "data"), Path(name, "cache")
        folder.mkdir()
        write_data_set(folder, number)
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"data set: {number} trajectories, {size / 1e6:.0f} MB")

        library = Library(folder, index_folder=cache)
        (source,) = library.sources()
        began, cpu_began = time.perf_counter(), time.process_time()
        source.refresh()
        built_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
        size = sum(file.stat().st_size for file in cache.iterdir())
        print(f"index built in {built_s:.1f} s, {cpu_s:.1f} s of CPU time, {size / 1e6:.0f} MB")

        client = TestClient(make_app(library, token=TOKEN, hosts=frozenset({"testserver"})))
        client.get(f"/?token={TOKEN}")
        at = f"/api/sources/{source.source.source_id}"
        print(f"{'asked for':40} {'found':>8} {'median':>9} {'CPU time':>9}")
        for question, params in questions().items():
            answer, median_s, cpu_s = ask(client, f"{at}/trajectories", params)
            print(f"{question:40} {answer['total']:8} {1000 * median_s:6.0f} ms {1000 * cpu_s:6.0f} ms")
        for question, path in {
            "overview": "",
            "one trajectory, its place in the list": f"/trajectories/part-{number // 2000:05d}:100",
            "one group of 8": f"/groups/data/{number // 16}",
            "failures": "/failures",
        }.items():
            _, median_s, cpu_s = ask(client, f"{at}{path}", {})
            print(f"{question:40} {'':8} {1000 * median_s:6.0f} ms {1000 * cpu_s:6.0f} ms")
        again = Library(folder, index_folder=cache)
        began = time.perf_counter()
        again.sources()[0].refresh()
        print(f"opened again in {1000 * (time.perf_counter() - began):.0f} ms")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"peak memory of this process, writing included: {peak:.0f} MB")


def ask(client: TestClient, path: str, params: dict[str, str]) -> tuple[dict[str, Any], float, float]:
    """The answer, and the median time and CPU time of `REPEATS` requests, seconds."""
    taken, cpu_taken = [], []
    for _ in range(REPEATS):
        began, cpu_began = time.perf_counter(), time.process_time()
        answer = client.get(path, params=params)
        taken.append(time.perf_counter() - began)
        cpu_taken.append(time.process_time() - cpu_began)
        if answer.status_code != 200:
            sys.exit(f"{path}: {answer.status_code} {answer.text}")
    return answer.json(), statistics.median(taken), statistics.median(cpu_taken)


if __name__ == "__main__":
    main()
