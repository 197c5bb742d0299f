"""One job of a soak: programs that are started again until it has finished."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from benchmarks.soak_parts.patience import Patience
from benchmarks.soak_parts.recipes import MAIN, Recipe

REPOSITORY = Path(__file__).resolve().parents[2]
INSIDE = Path(__file__).resolve().parent / "inside"

ROLES = {
    "worker": ("ray::EnvWorker",),
    "engine": ("ray::EngineHost",),
    "scheduler": ("ray::RolloutScheduler",),
    "trainer": ("ray::TrainerHost",),
    "raylet": ("raylet/raylet",),
    "gcs": ("gcs_server",),
    "sandbox": ("bwrap ",),
}


class Job:
    """A run folder, and the programs that work on it. The first of them decides when the job is over."""

    def __init__(
        self, folder: Path, name: str, recipe: Recipe, environment: Mapping[str, str], **settings: object
    ) -> None:
        self.folder = folder
        self.name = name
        self.recipe = recipe
        self.run = folder / "runs" / name
        self.max_steps = int(str(settings["steps"]))
        self.file = folder / f"{name}.yaml"
        self.file.write_text(recipe.file({"name": name, "runs": folder / "runs", **settings}))
        (folder / "logs").mkdir(exist_ok=True)
        self._environment = environment
        self._programs: dict[str, subprocess.Popen[bytes]] = {}
        self._done: set[str] = set()

    def start(self) -> None:
        """Start the programs that do not run, as a supervisor would; those that ended well stay ended."""
        for name, overrides in self.recipe.programs().items():
            running = self._programs.get(name)
            if name in self._done or (running is not None and running.poll() is None):
                continue
            with self._log(name).open("ab") as log:
                log.write(f"\n$ envsdk train {self.file.name} {' '.join(overrides)}\n".encode())
                log.flush()
                self._programs[name] = subprocess.Popen(
                    [sys.executable, "-m", "envsdk.train", str(self.file), *overrides],
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env={**os.environ, **self._environment},
                )

    def tend(self) -> dict[str, int]:
        """Start explorers again that ended while the trainer runs. Returns the codes that they ended with."""
        ended = {
            name: code
            for name, program in self._programs.items()
            if name != MAIN and name not in self._done and (code := program.poll()) is not None
        }
        self._done |= {name for name, code in ended.items() if code == 0}
        if any(ended.values()) and self.exit_code is None:
            self.start()
        return {name: code for name, code in ended.items() if code}

    def wait_for_explorers(self, patience: Patience) -> dict[str, int | None]:
        """Once the trainer has finished: exit codes of explorers that did not end well; None: not at all."""
        while any(program.poll() is None for program in self._programs.values()) and not patience.is_over():
            time.sleep(0.1)
        return {name: code for name, program in self._programs.items() if (code := program.poll()) != 0}

    @property
    def exit_code(self) -> int | None:
        """Of the program that decides; None while it runs."""
        return None if MAIN not in self._programs else self._programs[MAIN].poll()

    def num_batches(self) -> int:
        """Batches on disk."""
        return sum(1 for _ in (self.run / "trajectories").glob("step_*.parquet"))

    def processes(self, role: str) -> list[psutil.Process]:
        """Living processes of this role, in a fixed order."""
        found = []
        for name, program in self._programs.items():
            try:
                top = psutil.Process(program.pid)
                children = top.children(recursive=True)
            except psutil.NoSuchProcess:
                continue
            if role == ("driver" if name == MAIN else "explorer"):
                found.append(top)
            found += [process for process in children if _is(process, role)]
        return sorted(found, key=lambda process: process.pid)

    def last_words(self, number: int = 12, name: str = "") -> str:
        """The end of what a program printed."""
        return "\n".join(self._log(name or MAIN).read_text(errors="replace").splitlines()[-number:])

    def end(self) -> None:
        """Kill the programs and what they started."""
        for program in self._programs.values():
            try:
                everything = [psutil.Process(program.pid), *psutil.Process(program.pid).children(True)]
            except psutil.NoSuchProcess:
                everything = []
            for process in everything:
                try:
                    process.send_signal(signal.SIGKILL)
                except psutil.NoSuchProcess:
                    continue
            program.wait()

    def _log(self, program: str) -> Path:
        return self.folder / "logs" / f"{self.name}{'' if program == MAIN else '-' + program}.log"


def _is(process: psutil.Process, role: str) -> bool:
    try:
        if role == "environment":
            # Forked by the one parent of environments, which a worker started.
            names = [" ".join(parent.cmdline()) for parent in process.parents()[:2]]
            return len(names) == 2 and "EnvWorker" not in names[0] and "ray::EnvWorker" in names[1]
        title = " ".join(process.cmdline())
        return any(pattern in title for pattern in ROLES.get(role, ()))
    except psutil.NoSuchProcess:
        return False
