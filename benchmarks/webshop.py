"""What WebShop costs: a step, a search, and building a store, against bounds.

    python benchmarks/webshop.py [--json FILE] [--products N] [--goals N]

Figures are CPU time of one process, so that they hold on a busy machine; the wall time of the build is
printed beside it. Steps are those of the oracle's episodes and of random clicks, on the generated catalogue
of 1,000 products, searches included. Searches are timed one by one, without the cache of results, for
instructions, titles and attributes. The exit code is 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from envsdk.envs.webshop.analyzer import tokens
from envsdk.envs.webshop.env import WebShopEnv
from envsdk.envs.webshop.generate import generated_store, write_catalogue
from envsdk.envs.webshop.oracle import plain_query
from envsdk.envs.webshop.pages import MODES, Mode
from envsdk.envs.webshop.store import Store

NUM_QUERIES = 1000
RESULTS = 50

_BUILD = """
import json, resource, sys, threading, time
from pathlib import Path
from envsdk.envs.webshop.builder import BuildOptions, build
peak, is_over = [0], threading.Event()
def watch():
    while not is_over.wait(0.02):
        status = Path("/proc/self/status").read_text().split()
        peak[0] = max(peak[0], int(status[status.index("RssAnon:") + 1]))
threading.Thread(target=watch).start()
started, spent = time.monotonic(), time.process_time()
build(Path(sys.argv[1]), Path(sys.argv[2]), BuildOptions(tagger="rules"))
wall, cpu = time.monotonic() - started, time.process_time() - spent
is_over.set()
memory = {
    "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    "peak_anonymous_mb": peak[0] / 1024,
}
print(json.dumps({"wall_s": wall, "cpu_s": cpu, **memory}))
"""


def record_episodes(env: WebShopEnv, num_goals: int) -> list[tuple[int, list[str]]]:
    """Goals with the replies of an episode each: the oracle's, and every second time random clicks."""
    episodes = []
    for number in range(num_goals):
        rng, replies, over = random.Random(number), [], False
        env.reset(options={"goal": number})
        while not over:
            legal = env.legal_actions()
            replies.append(env.oracle() if number % 2 else rng.choice(legal))
            _, _, terminated, truncated, _ = env.step(replies[-1])
            over = terminated or truncated
        episodes.append((number, replies))
    return episodes


def time_steps(env: WebShopEnv, episodes: Sequence[tuple[int, list[str]]]) -> float:
    """CPU seconds per step, without resets."""
    spent, num_steps, clock = 0.0, 0, time.process_time
    for number, replies in episodes:
        env.reset(options={"goal": number})
        started = clock()
        for reply in replies:
            env.step(reply)
        spent += clock() - started
        num_steps += len(replies)
    return spent / num_steps


def measure_steps(num_goals: int) -> dict[str, float]:
    """Milliseconds per step, by observation mode: in a new process (median of five), and later."""
    figures = {}
    for mode in MODES:
        env = _env(mode)
        episodes = record_episodes(env, num_goals)
        figures[f"{mode}, nothing read yet"] = float(
            np.median([_time_cold(mode, episodes) for _ in range(5)])
        )
        figures[mode] = float(np.median([time_steps(env, episodes) for _ in range(5)])) * 1e3
    return figures


def _env(mode: Mode) -> WebShopEnv:
    return WebShopEnv(observation_mode=mode, max_steps=15)


def _time_cold(mode: Mode, episodes: Sequence[tuple[int, list[str]]]) -> float:
    command = [sys.executable, __file__, "--cold", mode]
    answer = subprocess.run(command, check=True, input=json.dumps(episodes), capture_output=True, text=True)
    return float(answer.stdout)


def measure_searches(store: Store) -> tuple[float, float]:
    """Median and 99th percentile of a search, milliseconds, analysis of the query included."""
    queries = []
    for number in range(NUM_QUERIES):
        goal = store.goal("human", number % store.num_goals("human"))
        queries.append(
            (plain_query(goal.text), goal.wanted.title.lower(), " ".join(goal.attributes))[number % 3]
        )
    search, milliseconds = store._index.search, []
    for query in queries:
        started = time.process_time()
        search(tokens(query), RESULTS)
        milliseconds.append((time.process_time() - started) * 1e3)
    return float(np.percentile(milliseconds, 50)), float(np.percentile(milliseconds, 99))


def measure_build(folder: Path, num_products: int) -> dict[str, float]:
    """Wall and CPU seconds of a build in a process of its own, its peak memory and what of it maps no file.

    Linux only.
    """
    write_catalogue(folder, num_products=num_products, seed=0)
    command = [sys.executable, "-c", _BUILD, str(folder), str(folder / "store")]
    figures: dict[str, float] = json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout
    )
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    parser.add_argument(
        "--products", type=int, default=100_000, help="of the large store (default %(default)s)"
    )
    parser.add_argument(
        "--goals", type=int, default=400, help="episodes that are timed (default %(default)s)"
    )
    parser.add_argument("--cold", choices=MODES, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)

    if options.cold:
        # Episodes come by standard input.
        print(time_steps(_env(options.cold), json.load(sys.stdin)) * 1e3)
        return 0
    steps = measure_steps(options.goals)
    small = Store(generated_store())
    searches = {f"{small.num_products:,}": measure_searches(small)}
    with tempfile.TemporaryDirectory() as name:
        build = measure_build(Path(name), options.products)
        large = Store(Path(name) / "store")
        searches[f"{large.num_products:,}"] = measure_searches(large)
        build["disk_mb"] = sum(file.stat().st_size for file in (Path(name) / "store").iterdir()) / 1e6
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    for mode, milliseconds in steps.items():
        print(f"step, {mode:28} {milliseconds:8.4f} ms")
    for products, (p50, p99) in searches.items():
        print(f"search among {products:>9} products  p50 {p50:8.3f} ms   p99 {p99:8.3f} ms")
    print(
        f"build of {options.products:,} products: {build['cpu_s']:.0f} s of CPU, {build['wall_s']:.0f} s, "
        f"peak memory {build['peak_mb']:.0f} MB, {build['peak_anonymous_mb']:.0f} MB without mapped files, "
        f"{build['disk_mb']:.0f} MB on disk"
    )
    print(f"peak memory of this process: {own:.0f} MB\n")

    checks = [(f"step, {mode}", milliseconds, 0.06) for mode, milliseconds in steps.items()]
    for what, value, bound in checks:
        print(f"{'PASS' if value <= bound else 'FAIL'}  {what}: {value:.4f} ms (at most {bound:g} ms)")
    if options.json:
        figures = {
            "step_ms": steps,
            "search_ms_p50_p99": searches,
            "build": {"products": options.products, **build},
        }
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if all(value <= bound for _, value, bound in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
