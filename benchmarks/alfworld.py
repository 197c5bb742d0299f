"""What ALFWorld costs: steps, resets and new games, against the stock engine, and over a long time.

    make install-alfworld
    python benchmarks/alfworld.py [--json FILE] [--games N] [--sizes small,medium,large]
    python benchmarks/alfworld.py --endurance MINUTES [--instances 200]

The stock engine is TextWorld's `PddlEnv` with ALFWorld's own wrapper, as installed, in a process of its
own. Both play the same games by the same commands, after one that does not count; figures are CPU time of
the process that plays. To begin an episode of another game, the stock engine must `load` and `reset`. The
exit code is 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from envsdk.envs.alfworld.games import TASK_TYPES, Game
from envsdk.envs.alfworld.household import generate_game

# This file must not be what `import alfworld` finds.
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).resolve().parent]

STEPS_PER_GAME = 20
GENERATED_GAMES = 300


def games_of(size: str, num_games: int) -> list[Game]:
    return [
        generate_game(number // len(TASK_TYPES), TASK_TYPES[number % len(TASK_TYPES)], size=size)
        for number in range(num_games)
    ]


def warm_up_game() -> Game:
    return generate_game(0, TASK_TYPES[0], size="small", split="valid_seen")


def play_stock(size: str, num_games: int) -> dict[str, list[float]]:
    """CPU seconds by the stock engine, in this process, where ours must not have been imported."""
    import envsdk.envs.alfworld.textworld_import  # noqa: F401

    # isort: split
    import alfworld.info
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from textworld.envs import PddlEnv

    domain = Path(alfworld.info.ALFRED_PDDL_PATH).read_text()
    grammar = Path(alfworld.info.ALFRED_TWL2_PATH).read_text()
    env = AlfredDemangler(PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True)))
    figures: dict[str, list[float]] = {"load": [], "reset": [], "again": [], "step": []}
    clock = time.process_time
    for game in [warm_up_game(), *games_of(size, num_games)]:
        data = {
            "pddl_domain": domain,
            "grammar": grammar.replace("UNKNOWN GOAL", game.description),
            "pddl_problem": game.problem,
        }
        started = clock()
        env.load(data)
        loaded = clock()
        state = env.reset()
        figures["load"].append(loaded - started)
        figures["reset"].append(clock() - loaded)
        rng = random.Random(game.id)
        started = clock()
        for _ in range(STEPS_PER_GAME):
            state, _, _ = env.step(rng.choice(state["admissible_commands"]))
        figures["step"].append((clock() - started) / STEPS_PER_GAME)
        started = clock()
        env.reset()
        figures["again"].append(clock() - started)
    return {name: seconds[1:] for name, seconds in figures.items()}


def play_ours(size: str, num_games: int, cache: Path | None) -> dict[str, list[float]]:
    """The same in our engine, in this process. `reset` is a game never seen, `again` one still loaded."""
    from envsdk.envs.alfworld.engine import Engine
    from envsdk.envs.alfworld.libraries import strip_library

    strip_library(cache or Path(tempfile.mkdtemp()))
    engine = Engine(cache_folder=cache, max_games=2 * num_games)
    figures: dict[str, list[float]] = {"reset": [], "again": [], "step": []}
    clock = time.process_time
    for game in [warm_up_game(), *games_of(size, num_games)]:
        started = clock()
        scene = engine.start("game", game)
        figures["reset"].append(clock() - started)
        rng = random.Random(game.id)
        started = clock()
        for _ in range(STEPS_PER_GAME):
            scene = engine.step("game", rng.choice(scene.admissible))
        figures["step"].append((clock() - started) / STEPS_PER_GAME)
        started = clock()
        engine.start("game", game)
        figures["again"].append(clock() - started)
    return {name: seconds[1:] for name, seconds in figures.items()}


def weigh(size: str, num_games: int) -> dict[str, list[float]]:
    """Megabytes: of this process with one game, per further game, and per further player of a game."""
    import psutil

    from envsdk.envs.alfworld.engine import Engine
    from envsdk.envs.alfworld.libraries import strip_library

    def resident_mb() -> float:
        return float(psutil.Process().memory_info().rss / 1e6)

    strip_library(Path(tempfile.mkdtemp()))
    engine = Engine(cache_folder=None, max_games=1)
    games = games_of(size, num_games + 1)
    engine.start("0", games[0])
    figures = [resident_mb()]
    for number, game in enumerate(games[1:], start=1):
        engine.start(str(number), game)
    figures.append((resident_mb() - figures[0]) / num_games)
    before = resident_mb()
    for number in range(10 * num_games):
        engine.start(f"again {number}", games[-1])
    figures.append((resident_mb() - before) / (10 * num_games))
    return {"memory": figures}


def in_own_process(verb: str, *arguments: Any) -> dict[str, list[float]]:
    command = [sys.executable, __file__, "--only", verb, *map(str, arguments)]
    run = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": "0"}
    )
    figures: dict[str, list[float]] = json.loads(run.stdout.splitlines()[-1])
    return figures


def measure(sizes: Sequence[str], num_games: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of figures, and checks of the bounds."""
    rows, ratios = [], []
    for size in sizes:
        with tempfile.TemporaryDirectory() as cache:
            stock = in_own_process("stock", size, num_games)
            fresh = in_own_process("ours", size, num_games, cache)
            known = in_own_process("ours", size, num_games, cache)
            memory = in_own_process("memory", size, num_games)["memory"]
            disk = sum(file.stat().st_size for file in Path(cache).glob("*.json.z")) / num_games
        whole = np.add(stock["load"], stock["reset"])
        row = {
            "size": size,
            "stock steps/s": 1 / np.mean(stock["step"]),
            "steps/s": 1 / np.mean([*fresh["step"], *known["step"]]),
            "stock load + reset ms": 1e3 * np.mean(whole),
            "new game ms": 1e3 * np.mean(fresh["reset"]),
            "game on disk ms": 1e3 * np.mean(known["reset"]),
            "stock reset ms": 1e3 * np.mean(stock["again"]),
            "loaded game ms": 1e3 * np.mean([*fresh["again"], *known["again"]]),
            "translation kB": disk / 1e3,
            "process MB": memory[0],
            "MB per game": memory[1],
            "MB per player": memory[2],
        }
        rows.append({name: value if isinstance(value, str) else float(value) for name, value in row.items()})
        ratios.append(
            {
                "steps/s over the stock engine's": row["steps/s"] / row["stock steps/s"],
                "resets/s, game never seen": row["stock load + reset ms"] / row["new game ms"],
                "resets/s, game on disk": row["stock load + reset ms"] / row["game on disk ms"],
                "resets/s, game loaded": row["stock reset ms"] / row["loaded game ms"],
            }
        )
    checks = []
    for name in ratios[0]:
        bound = 12.0 if name.startswith("steps") else 5.0
        for size, ratio in zip(sizes, ratios, strict=True):
            value = float(ratio[name])
            checks.append(
                {"what": f"{name}, {size}", "value": value, "bound": bound, "passed": value >= bound}
            )
    return rows, checks


def time_generator(sizes: Sequence[str]) -> dict[str, float]:
    """Games made per second of CPU."""
    figures = {}
    for size in sizes:
        started = time.process_time()
        games_of(size, GENERATED_GAMES)
        figures[size] = GENERATED_GAMES / (time.process_time() - started)
    return figures


def endure(minutes: float, num_instances: int, size: str) -> dict[str, Any]:
    """Environments that play by their oracles, one thread each, and what they use as time goes by."""
    from envsdk.envs.alfworld.env import ALFWorldEnv

    os.environ["ENVSDK_CACHE"] = tempfile.mkdtemp(prefix="alfworld-cache-")
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="alfworld-endurance-")
    envs = [ALFWorldEnv(size=size, games_per_process=500) for _ in range(num_instances)]
    counts = {"steps": 0, "episodes": 0, "won": 0, "failed": 0}
    counting, is_over = threading.Lock(), threading.Event()

    def play(env: ALFWorldEnv, seed: int) -> None:
        while not is_over.is_set():
            steps, info = 0, {}
            try:
                env.reset(seed=seed)
                ended = False
                while not (ended or is_over.is_set()):
                    _, _, terminated, truncated, info = env.step(env.oracle())
                    ended, steps = terminated or truncated, steps + 1
            except RuntimeError as error:
                print("failed episode:", error, file=sys.stderr)
                info = {"failed": True}
            seed += num_instances
            with counting:
                counts["steps"] += steps
                counts["episodes"] += 1
                counts["won"] += bool(info.get("success"))
                counts["failed"] += bool(info.get("failed"))

    threads = [threading.Thread(target=play, args=(env, seed), daemon=True) for seed, env in enumerate(envs)]
    for thread in threads:
        thread.start()
    samples = []
    started = time.monotonic()
    columns = {"minute": ".2f", "episodes": "", "won": "", "failed": "", "steps/s": ".0f", "host MB": ".0f"}
    columns |= {"engines": "", "engines MB": ".0f", "temporary files": ""}
    print("  ".join(f"{name:>{len(name) + 2}}" for name in columns))
    while (passed := time.monotonic() - started) < 60 * minutes:
        time.sleep(min(15.0, 60 * minutes - passed + 0.1))
        samples.append(sample(envs[0], counts, time.monotonic() - started))
        cells = (f"{samples[-1][name]:>{len(name) + 2}{form}}" for name, form in columns.items())
        print("  ".join(cells), flush=True)
    is_over.set()
    for thread in threads:
        thread.join()
    for env in envs:
        env.close()
    return {"instances": num_instances, "size": size, "samples": samples}


def sample(env: Any, counts: dict[str, int], passed_s: float) -> dict[str, Any]:
    import psutil

    from envsdk.envs.alfworld.pool import shared_pool

    processes = shared_pool(env._pool_settings).processes()
    megabytes = []
    for process in processes:
        try:
            megabytes.append(psutil.Process(process.pid).memory_info().rss / 1e6)
        except psutil.Error:
            continue
    return {
        **counts,
        "minute": passed_s / 60,
        "steps/s": counts["steps"] / passed_s,
        "host MB": psutil.Process().memory_info().rss / 1e6,
        "engines MB": sum(megabytes),
        "engines": len(megabytes),
        "temporary files": sum(len(files) for _, _, files in os.walk(tempfile.gettempdir())),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    parser.add_argument("--games", type=int, default=12, help="games per size (default %(default)s)")
    parser.add_argument("--sizes", default="small,medium,large")
    parser.add_argument("--endurance", type=float, metavar="MINUTES", help="play for so long instead")
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--only", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.only:
        verb, size, num_games, *cache = options.only
        if verb == "stock":
            figures = play_stock(size, int(num_games))
        elif verb == "memory":
            figures = weigh(size, int(num_games))
        else:
            figures = play_ours(size, int(num_games), Path(cache[0]) if cache else None)
        print(json.dumps(figures))
        return 0
    if find_spec("textworld") is None:
        print("left out: needs ALFWorld's engine; run `make install-alfworld`")
        return 0
    sizes = options.sizes.split(",")
    result: dict[str, Any]
    if options.endurance:
        result = endure(options.endurance, options.instances, sizes[0])
        passed = True
    else:
        rows, checks = measure(sizes, options.games)
        for row in rows:
            print(
                "  ".join(
                    f"{name} {value:.4g}" if not isinstance(value, str) else value
                    for name, value in row.items()
                )
            )
        generator = time_generator(sizes)
        print(
            "games made per second:", ", ".join(f"{size} {value:,.0f}" for size, value in generator.items())
        )
        print()
        for check in checks:
            verdict = "PASS" if check["passed"] else "FAIL"
            print(f"{verdict}  {check['what']}: {check['value']:.1f} times (at least {check['bound']:g})")
        result = {"figures": rows, "checks": checks, "games_per_second": generator}
        passed = all(check["passed"] for check in checks)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
