"""How explorers of one job add up: groups a second of one, two and four, and how soon a new one delivers.

    python benchmarks/explorers.py [--explorers 1,2,4] [--window_s 40] [--json FILE]

Real explorer programs with mock engines, whose replies take a lognormal time (mean 1 s): latency decides, not
the processor. A stand-in for the trainer takes every batch at once. Figures are over the same window for all
explorers, after each has delivered; the ratios are to the first number.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from envsdk.buffer.connecting import open_engine
from envsdk.buffer.contract import Role
from envsdk.buffer.sql_buffer import SqlBuffer
from envsdk.buffer.tables import groups
from envsdk.config import load_config
from envsdk.explorers.membership import buffer_path, terms_of
from envsdk.runs.run_origin import initial_model
from envsdk.weights.versions import write_version

OVERRIDES = [
    "exp_name=explorers",
    "rollout_batch_size=256",
    "train_env_manager.num_env_groups=4",
    "train_env_manager.group_size=4",
    "actor_infer.strategy_args.strategy_name=mock",
    "actor_infer.strategy_args.strategy_config={latency: {kind: lognormal, mean_s: 1.0, sigma: 0.4}}",
    "synchronizer.sync_interval=1000000",
    "max_steps=1000000",
]


@contextmanager
def explorers(folder: Path, count: int) -> Iterator[dict[str, float]]:
    """That many programs; when each was started, by name."""
    started: dict[str, float] = {}
    programs = []
    command = [sys.executable, "-m", "envsdk.train", "agentic_async.yaml", "mode=explore", *OVERRIDES]
    try:
        for index in range(count):
            name = f"e{index}"
            started[name] = time.time()
            with open(folder / f"{name}.log", "wb") as log:
                programs.append(
                    subprocess.Popen(
                        [*command, f"explorer.name={name}"],
                        cwd=folder,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
        yield started
    finally:
        for program in programs:
            program.send_signal(signal.SIGTERM)
        for program in programs:
            program.wait(timeout=60)


def measure(count: int, window_s: float) -> dict[str, Any]:
    """Groups a second, and seconds from the start of each program to its first group."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.chdir(folder)
        config = load_config("agentic_async.yaml", ["mode=explore", *OVERRIDES]).config
        model = initial_model(config)

        def fill(version: Path) -> None:
            for file in model.iterdir():
                (version / file.name).write_bytes(file.read_bytes())

        written = write_version(config.run_folder.resolve() / "weights", 0, 0, fill)
        buffer = SqlBuffer(open_engine(buffer_path(config)), lease_s=1e9)
        buffer.create(config.exp_name, terms_of(config))
        trainer = buffer.join(Role.TRAINER, "trainer")
        buffer.trainer.begin(trainer, 0)
        buffer.trainer.publish(trainer, 0, 0, {"method": "checkpoint", "folder": str(written)})
        with explorers(folder, count) as started:
            step, first, until = 0, dict[str, float](), float("inf")
            while time.time() < until:
                if buffer.trainer.take(trainer, step, version=0) is not None:
                    step += 1
                    buffer.trainer.publish(trainer, step, 0, None)
                with buffer.engine.connect() as connection:
                    by_name = sa.select(groups.c.explorer, sa.func.min(groups.c.ready_at)).group_by(
                        groups.c.explorer
                    )
                    first = {n: at for n, at in connection.execute(by_name) if at is not None}
                if len(first) == count and until == float("inf"):
                    began = time.time() + 5
                    until = began + window_s
                time.sleep(0.2)
            with buffer.engine.connect() as connection:
                done = sa.select(sa.func.count()).where(groups.c.ready_at.between(began, until))
                number = connection.execute(done).scalar_one()
    return {
        "groups/s": number / window_s,
        "start to first group, s": [round(first[n] - started[n], 1) for n in started],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Groups a second of several explorers.")
    parser.add_argument("--explorers", default="1,2,4")
    parser.add_argument("--window_s", type=float, default=40.0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found: dict[str, Any] = {}
    for count in map(int, args.explorers.split(",")):
        found[str(count)] = measure(count, args.window_s)
        first = next(iter(found.values()))
        found[str(count)]["ratio"] = found[str(count)]["groups/s"] / first["groups/s"]
        print(json.dumps({count: found[str(count)]}), flush=True)
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
