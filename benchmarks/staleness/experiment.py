"""The runs of the experiment, each in a folder of its own, one after the other.

    OUT/cache/                    the warm-started policy all runs begin with
    OUT/runs/<cell>/              the folder of one training run
    OUT/records/<cell>.json       written when that run has ended well: its clock and the machine's load
    OUT/records/<cell>.log        what it printed

A cell with a record is done and skipped; one without is begun anew, so that its clock is whole.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

CONFIG = Path(__file__).parents[2] / "examples" / "staleness_experiment.yaml"
ALPHAS = (0, 1, 2, 4)
SEEDS = (1, 2, 3)
TIMEOUT_S = 1800.0
"""Of one run; the slowest take a minute or two on a busy machine."""
_STOPPING_S = 60.0
"""A run that is asked to stop writes a checkpoint first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to learn from stale samples."""

    name: str
    about: str
    """For the figure and the table: what it does about staleness."""
    overrides: tuple[str, ...]
    """`key=value` for the command line."""


VARIANTS = (
    Variant(
        name="vanilla",
        about="no correction",
        overrides=("pg_variant=vanilla", "train_infer_correction.is_weight.enabled=false"),
    ),
    Variant(
        name="ppo",
        about="clips current / behavior",
        overrides=("pg_variant=ppo", "pg_args.ratio_over=behavior"),
    ),
    # What `pg_variant: ppo` does by default, through `train_infer_correction`.
    Variant(
        name="decoupled_ppo",
        about="weighs by proximal / behavior, at most 2",
        overrides=("pg_variant=decoupled_ppo", "pg_args.weight_cap=2", "pg_args.beyond_cap=truncate"),
    ),
    Variant(
        name="topr",
        about="weighs failures by current / behavior, at most 1",
        overrides=("pg_variant=topr",),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Cell:
    """One run of the matrix."""

    seed: int
    variant: str
    alpha: int

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.variant}-alpha{self.alpha}-seed{self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What the harness saw of a finished run."""

    cell: Cell
    overrides: tuple[str, ...]
    """The settings that make this run, as on its command line."""
    alone: bool
    """Whether it had the machine to itself."""
    wall_s: float
    """The whole process: start, training, evaluations, end."""
    load_average: float
    """Of the machine over the last minute, when the run began; the run before it leaves about 2."""
    load_average_after: float
    """When it ended; the run itself counts for about 2."""


class RunFailed(Exception):
    """A run ended with an error (the message ends with its log), or its record is of other settings."""


class Experiment:
    """A folder with the runs of a matrix.

    experiment = Experiment(Path("/tmp/staleness"))
    for cell in cells(["vanilla"], [0, 4], [1]):
        experiment.run(cell)
    """

    def __init__(self, folder: Path, *, overrides: Sequence[str] = (), alone: bool = True) -> None:
        self.folder = folder.resolve()
        self.overrides = tuple(overrides)
        """For every run, after those of its cell."""
        self.alone = alone
        """Whether the runs have the machine to themselves."""

    def record(self, cell: Cell) -> Record | None:
        """That of a finished run; None where there is none yet. RunFailed when its settings were others."""
        file = self._record_file(cell)
        if not file.is_file():
            return None
        values = json.loads(file.read_text())
        record = Record(**values | {"cell": Cell(**values["cell"]), "overrides": tuple(values["overrides"])})
        if record.overrides != self._settings(cell):
            found, wanted = " ".join(record.overrides), " ".join(self._settings(cell))
            raise RunFailed(
                f"{file} is of a run with {found}, not {wanted}; "
                f"remove it to train that cell again, or choose another folder"
            )
        return record

    def run_folder(self, cell: Cell) -> Path:
        """What `envsdk.train` wrote."""
        return self.folder / "runs" / cell.name

    def run(self, cell: Cell) -> Record:
        """Train, unless it was done before. RunFailed says how a run ended and what it printed last."""
        if (done := self.record(cell)) is not None:
            return done
        shutil.rmtree(self.run_folder(cell), ignore_errors=True)
        log = self._record_file(cell).with_suffix(".log")
        log.parent.mkdir(parents=True, exist_ok=True)
        load_average, began = os.getloadavg()[0], time.monotonic()
        with log.open("w") as output:
            ended = _run_process(self.command(cell), self._environment(), output)
        if ended != 0:
            tail = "\n".join(log.read_text().splitlines()[-15:])
            raise RunFailed(f"{cell.name} ended with {ended}; the end of {log}:\n{tail}")
        record = Record(
            cell=cell,
            overrides=self._settings(cell),
            alone=self.alone,
            wall_s=time.monotonic() - began,
            load_average=load_average,
            load_average_after=os.getloadavg()[0],
        )
        beside = self._record_file(cell).with_suffix(".tmp")
        beside.write_text(json.dumps(asdict(record), indent=1) + "\n")
        beside.rename(self._record_file(cell))
        return record

    def command(self, cell: Cell) -> list[str]:
        """The command line of one run."""
        return [
            *(sys.executable, "-m", "envsdk.train", str(CONFIG)),
            f"output_dir={self.folder / 'runs'}",
            f"exp_name={cell.name}",
            *self._settings(cell),
        ]

    def _settings(self, cell: Cell) -> tuple[str, ...]:
        return (
            f"seed={cell.seed}",
            f"async_generation_ratio={cell.alpha}",
            *variant(cell.variant).overrides,
            *self.overrides,
        )

    def _record_file(self, cell: Cell) -> Path:
        return self.folder / "records" / f"{cell.name}.json"

    def _environment(self) -> dict[str, str]:
        return os.environ | {"ENVSDK_CACHE": str(self.folder / "cache"), "OMP_NUM_THREADS": "1"}


def variant(name: str) -> Variant:
    """The variant of that name; KeyError lists the known ones."""
    for one in VARIANTS:
        if one.name == name:
            return one
    raise KeyError(f"unknown variant {name!r}; known are {', '.join(one.name for one in VARIANTS)}")


def cells(variants: Iterable[str], alphas: Iterable[int], seeds: Iterable[int]) -> list[Cell]:
    """The matrix, seed by seed: a part of it that is done compares all variants and alphas.

    Under alpha 0 the variants compute the same gradient but for rounding: the first one stands for all.
    """
    names, ratios = list(variants), list(alphas)
    return [
        Cell(variant=name, alpha=alpha, seed=seed)
        for seed in seeds
        for name in names
        for alpha in ratios
        if alpha or name == names[0]
    ]


def _run_process(command: Sequence[str], environment: dict[str, str], output: object) -> int | str:
    """The exit status, or words when it took too long. Leaves no process behind."""
    process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)  # type: ignore[call-overload]
    try:
        return process.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"no end within {TIMEOUT_S:.0f} s"
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_STOPPING_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
