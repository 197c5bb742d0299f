"""Real rollouts for system tests: Ray on this machine, mock engines, workers that play toy environments."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from envsdk.config.ray_models import RayArgs
from envsdk.contracts.env import EnvSpec, Isolation
from envsdk.contracts.prompts import AgentPrompts
from envsdk.contracts.trajectory import RolloutBatch
from envsdk.engines.engine import EngineConfig
from envsdk.engines.engine_host import EngineHost
from envsdk.engines.sampling import SamplingParams
from envsdk.managers.env_host import EnvBlueprint
from envsdk.managers.env_worker import WorkerSetup
from envsdk.managers.ledger_types import LedgerConfig, LedgerState
from envsdk.managers.ray_runtime import ray_runtime
from envsdk.managers.scheduler import RolloutScheduler, SchedulerSetup
from envsdk.managers.traj_env_manager import TagSetup
from envsdk.trainers.warm_start.tiny_policy import build_tokenizer, write_tokenizer
from tests.managers.toy_envs import ASYNC_TROUBLESOME, COUNTING, TROUBLESOME
from tests.tiny_policies import both_games

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE_S = 180.0
"""Nothing here takes that long, however busy the machine."""


@pytest.fixture(scope="module")
def running_ray() -> Iterator[None]:
    """Workers import the toy environments from the repository."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(REPOSITORY), before]))
    try:
        with ray_runtime(RayArgs(num_cpus=2)):
            yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = build_tokenizer(["seed 0 1 2 3 4 5 6 7 8 9 turn go"] * 3)
    write_tokenizer(folder, tokenizer, sequence_length=1024)
    return folder


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer, random, with a tokenizer of both games."""
    return both_games(tmp_path_factory.mktemp("model"))


RunHere = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run_here(capsys: pytest.CaptureFixture[str]) -> RunHere:
    """`run_here(main, *arguments)`: a command line in this process, for what needs no new interpreter."""

    def run(main: Callable[[list[str]], int], *arguments: object) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        argv = [*map(str, arguments)]
        code = main(argv)
        return subprocess.CompletedProcess(argv, code, *capsys.readouterr())

    return run


Refused = Callable[..., None]


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_here: RunHere) -> Refused:
    """`refused(main, arguments, expected)`: run in `tmp_path`, a command line ends with 2 and says why."""

    def check(
        main: Callable[[list[str]], int],
        arguments: Sequence[str],
        expected: str,
        codes: Sequence[int] = (2,),
    ) -> None:
        monkeypatch.chdir(tmp_path)
        done = run_here(main, *arguments)
        assert done.returncode in codes
        assert expected in done.stderr
        assert "Traceback" not in done.stderr

    return check


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Logs go into the working directory."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def toy_tag(
    tag: str,
    spec: EnvSpec = COUNTING,
    *,
    isolation: Isolation = Isolation.INLINE,
    system: str = "",
    **env_config: Any,
) -> TagSetup:
    """A tag whose steps may take half a second."""
    return TagSetup(
        tag=tag,
        blueprint=EnvBlueprint(
            spec=spec, env_config=env_config, isolation=isolation, reset_timeout_s=30.0, step_timeout_s=0.5
        ),
        prompts=AgentPrompts(system=system),
        max_turns=5,
        max_new_tokens=8,
    )


def troublesome(tag: str, how: str, isolation: Isolation = Isolation.INLINE, **env_config: Any) -> TagSetup:
    spec = ASYNC_TROUBLESOME if isolation is Isolation.ASYNC else TROUBLESOME
    return toy_tag(tag, spec, isolation=isolation, how=how, **env_config)


@dataclass(kw_only=True)
class Rollouts:
    """A scheduler with its workers and engines, driven as a pipeline would."""

    actor: Any
    engines: dict[str, Any]
    batch_size: int
    worker_pids: set[int] = field(default_factory=set)
    num_batches: int = 0

    def __getattr__(self, method: str) -> Callable[..., Any]:
        """Calls a method of the scheduler and waits for its answer."""
        return lambda *args: ray.get(getattr(self.actor, method).remote(*args), timeout=PATIENCE_S)

    def next_batch(self) -> RolloutBatch:
        self.num_batches += 1
        batch: RolloutBatch = self.get_batch(self.batch_size, self.num_batches - 1)
        return batch

    def advance(self, version: int) -> None:
        """New weights everywhere."""
        self.update_engines(version)
        self.publish(version)

    def update_engines(self, version: int) -> None:
        update = f"update {version}"
        begun = [e.begin_update.remote(update, version, "continue") for e in self.engines.values()]
        ray.get(begun, timeout=PATIENCE_S)
        ray.get([e.complete_update.remote(update) for e in self.engines.values()], timeout=PATIENCE_S)

    def num_prompt_tokens(self) -> int:
        looks = ray.get([engine.health.remote() for engine in self.engines.values()], timeout=PATIENCE_S)
        return sum(look.num_prompt_tokens for look in looks)


def worker_processes() -> set[int]:
    """Pids of the EnvWorkers of this machine's Ray."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.cmdline()[:1] and process.cmdline()[0].startswith("ray::EnvWorker"):
                found.add(process.pid)
    return found


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


StartRollouts = Callable[..., Rollouts]


@pytest.fixture
def start_rollouts(running_ray: None, tokenizer_folder: Path) -> Iterator[StartRollouts]:
    """Starts engines, workers and a scheduler; they end with the test."""
    actors: list[Any] = []

    def start(
        *tags: TagSetup,
        batch_size: int = 4,
        num_workers: int = 1,
        slots_per_tag: int = 4,
        num_engines: int = 1,
        engine: Mapping[str, Any] | None = None,
        sequence_length: int = 512,
        turn_timeout_s: float = 30.0,
        manager_class: str = "TrajEnvManager",
        state: LedgerState | None = None,
        folder: Path | None = None,
        stop_grace_s: float = 1.0,
        begin: bool = True,
        group_filters: Sequence[str] = (),
        max_filtered_groups: int = 1000,
        discarded_per_file: int = 256,
        **ledger: Any,
    ) -> Rollouts:
        setups = {setup.tag: setup for setup in tags or [toy_tag("Toy")]}
        config = EngineConfig(
            model=None, sequence_length=sequence_length, max_running=1000, strategy_config=dict(engine or {})
        )
        host: Any = ray.remote(num_cpus=0, max_restarts=0)(EngineHost)
        engines = {f"engine-{i}": host.remote("mock", config) for i in range(num_engines)}
        actors.extend(engines.values())
        ray.get([engine.start.remote() for engine in engines.values()], timeout=PATIENCE_S)
        workers = {
            f"w{index}": WorkerSetup(
                slots={f"w{index}/{tag}/{slot}": tag for tag in setups for slot in range(slots_per_tag)},
                setups=setups,
                model=tokenizer_folder,
                generating=SamplingParams(max_new_tokens=8),
                sequence_length=sequence_length,
                turn_timeout_s=turn_timeout_s,
                engines=engines,
                manager_classes=dict.fromkeys(setups, manager_class),
            )
            for index in range(num_workers)
        }
        setup = SchedulerSetup(
            ledger=LedgerConfig(
                batch_size=batch_size,
                tag_weights=dict.fromkeys(setups, 1),
                **({"group_size": 2, "alpha": 1} | ledger),
            ),
            workers=workers,
            run_seed=0,
            folder=folder,
            stop_grace_s=stop_grace_s,
            group_filters=group_filters,
            max_filtered_groups=max_filtered_groups,
            discarded_per_file=discarded_per_file,
        )
        before = worker_processes()
        actor = ray.remote(num_cpus=0, max_restarts=0)(RolloutScheduler).remote(setup, state)
        actors.append(actor)
        rollouts = Rollouts(actor=actor, engines=engines, batch_size=batch_size)
        rollouts.start()
        rollouts.worker_pids = worker_processes() - before
        if begin:
            rollouts.advance(0 if state is None else state.version)
        return rollouts

    yield start
    for actor in actors:
        if hasattr(actor, "get_batch"):
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(actor.close.remote(), timeout=PATIENCE_S)
        ray.kill(actor)
    wait_until(lambda: not worker_processes())
