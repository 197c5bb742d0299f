"""`python -m envsdk.collect ENV_OR_YAML --out DIR`: play episodes with no trainer, write them as a data set.

    collection = collect("envsdk/FrozenLake-v1", Path("demos"), num_episodes=1000, epsilon=0.3)
    for path in collection.shards:
        trajectories = read_trajectories(path)

What is in the folder, and why a killed run can be continued, is said in `envsdk.shards`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envsdk.atomic import make_folder, remove_leftovers
from envsdk.cli import run_app
from envsdk.failures import ConfigurationError, EnvsdkError, RolloutStalled
from envsdk.shards import (
    Manifest,
    ShardPlan,
    ShardRecord,
    account_for_shards,
    check_same_config,
    locked_folder,
    plan_shards,
    record_shard,
    refuse_foreign_shards,
    shard_metadata,
    share_worker_lock,
    utc_now,
    wait_for_workers,
)
from envsdk.storage import write_trajectories
from envsdk.tally import Tally
from envsdk.trajectory import Trajectory

if TYPE_CHECKING:
    from envsdk.config import RunConfig
    from envsdk.playing import Player

_MIN_SHARD_SIZE, _MAX_SHARD_SIZE, _USUAL_NUM_SHARDS = 20, 500, 16
_PROGRESS_EVERY_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """Episodes that ended since the last one of these; they are on disk once their shard is."""

    num_episodes: int
    num_successes: int
    num_failed: int


OnEvent = Callable[[Played | ShardRecord], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """A complete data set on disk."""

    folder: Path
    manifest: Manifest

    @property
    def shards(self) -> list[Path]:
        """Its Parquet files, in order; `envsdk.storage.read_trajectories` reads one."""
        return [self.folder / self.manifest.shards[number].file for number in sorted(self.manifest.shards)]


def collect(
    source: str | Path | RunConfig,
    out: Path,
    *,
    num_episodes: int,
    policy: str = "oracle",
    epsilon: float = 0.0,
    seed: int | None = None,
    split: str = "train",
    tags: Sequence[str] | None = None,
    model: Path | None = None,
    num_workers: int = 1,
    shard_size: int | None = None,
    overrides: Sequence[str] = (),
    command: Sequence[str] = (),
    on_start: Callable[[int, int], None] | None = None,
    on_played: Callable[[Played], None] | None = None,
) -> Collection:
    """Play the first `num_episodes` tasks of `split` into `out`, or what is still missing of them.

    Args:
        source: A registered environment id, a run's YAML file, or a configuration. `overrides` apply
            to it.
        out: The folder; created when absent, continued when it holds the same collection.
        policy: `oracle`, `random`, `model`, a plug-in or `package.module:Class`.
        epsilon: Share of moves replaced by random legal ones.
        seed: The run seed that task seeds and random moves follow from; the configuration's when None.
        tags: Which tags to play, in equal parts; None plays those of the YAML's env manager.
        model: For `policy="model"`: a Hugging Face folder or a checkpoint; the YAML's when None.
        num_workers: Processes that play; 1 plays in this one. More need the caller's main module to be
            importable, as `multiprocessing` does.
        shard_size: Episodes per file, which is what a kill can cost each worker; a sixteenth of
            all, but at most 500, when None.
        on_start: Called once with the number of episodes on disk and the number wanted.
        on_played: Called about ten times a second.

    Failed episodes are part of the collection. The same arguments give the same episodes, whatever the
    number of workers and however often it was killed.

    Raises:
        ConfigurationError: An argument is wrong, or `out` holds a different collection.
        StorageError: `out` cannot be written or is damaged.
    """
    from envsdk.playing import make_player, package_versions, resolve_source

    _check_positive("--episodes", num_episodes)
    _check_positive("--workers", num_workers)
    if shard_size is None:
        shard_size = min(_MAX_SHARD_SIZE, max(_MIN_SHARD_SIZE, -(-num_episodes // _USUAL_NUM_SHARDS)))
    _check_positive("--shard-size", shard_size)
    if not split:
        raise ConfigurationError("--split: name a split, such as train or val")
    resolved = resolve_source(source, overrides)
    episodes_by_tag = resolved.episodes_by_tag(num_episodes, split=split, tags=tags)
    player = make_player(
        resolved, tags=episodes_by_tag, policy=policy, epsilon=epsilon, seed=seed, model=model
    )
    plans = plan_shards(episodes_by_tag, split=split, shard_size=shard_size)
    config = {
        "episodes": dict(episodes_by_tag),
        "split": split,
        "shard_size": shard_size,
        **player.describe(),
    }

    make_folder(out)
    with locked_folder(out):
        wait_for_workers(out)
        manifest = Manifest.load(out)
        if manifest is None:
            refuse_foreign_shards(out)
            manifest = Manifest(
                config=config,
                versions=package_versions(with_model=player.model is not None),
                command=list(command),
                num_planned=len(plans),
                created_at=utc_now(),
            )
        check_same_config(out, manifest.config, config)
        remove_leftovers(out)
        missing = account_for_shards(out, plans, manifest)
        manifest.save(out)
        if on_start is not None:
            on_start(manifest.tally.num_episodes, num_episodes)

        def on_event(event: Played | ShardRecord) -> None:
            if isinstance(event, ShardRecord):
                manifest.shards[event.number] = event
                manifest.save(out)
            elif on_played is not None:
                on_played(event)

        job = _Job(player=player, out=out, fingerprint=manifest.fingerprint)
        if num_workers == 1 or len(missing) <= 1:
            _play_shards(job, missing, on_event)
        else:
            _play_in_processes(job, missing, num_workers, on_event)
    return Collection(folder=out, manifest=manifest)


def _check_positive(option: str, value: int) -> None:
    if value < 1:
        raise ConfigurationError(f"{option}: must be at least 1, not {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What a process needs to play shards; picklable."""

    player: Player
    out: Path
    fingerprint: str


class _ShardWriter:
    """Puts episodes that end in any order into their shards; writes a shard when it is full."""

    def __init__(self, job: _Job, plans: Sequence[ShardPlan], on_event: OnEvent) -> None:
        self._job = job
        self._plans = plans
        self._first_positions = [plan.first_position for plan in plans]
        self._on_event = on_event
        self._open: dict[int, dict[int, Trajectory]] = {}
        self._since = Tally()
        self._told_at = time.monotonic()

    def add(self, position: int, trajectory: Trajectory) -> None:
        plan = self._plans[bisect_right(self._first_positions, position) - 1]
        shard = self._open.setdefault(plan.number, {})
        shard[position] = trajectory
        self._since.add(trajectory)
        if len(shard) == plan.num_episodes:
            self._write(plan, self._open.pop(plan.number))
        elif time.monotonic() - self._told_at >= _PROGRESS_EVERY_S:
            self._tell()

    def _write(self, plan: ShardPlan, shard: Mapping[int, Trajectory]) -> None:
        trajectories = [shard[position] for position in sorted(shard)]
        write_trajectories(
            self._job.out / plan.file_name,
            trajectories,
            metadata=shard_metadata(self._job.fingerprint, plan),
        )
        self._tell()
        self._on_event(record_shard(self._job.out, plan, Tally.of(trajectories)))

    def _tell(self) -> None:
        since, self._since, self._told_at = self._since, Tally(), time.monotonic()
        self._on_event(
            Played(
                num_episodes=since.num_episodes,
                num_successes=since.num_successes,
                num_failed=since.num_failed,
            )
        )


def _play_shards(job: _Job, plans: Sequence[ShardPlan], on_event: OnEvent) -> None:
    """Play and write `plans` in this process."""
    if plans:
        writer = _ShardWriter(job, plans, on_event)
        job.player.play(chain.from_iterable(plan.tasks() for plan in plans), writer.add)


def _play_in_processes(job: _Job, plans: Sequence[ShardPlan], num_workers: int, on_event: OnEvent) -> None:
    """Play and write `plans` in worker processes, each its share of the shards."""
    context = multiprocessing.get_context("spawn")
    workers: dict[Connection, SpawnProcess] = {}
    try:
        for number in range(min(num_workers, len(plans))):
            ours, theirs = context.Pipe(duplex=False)
            worker = context.Process(
                target=_worker_main, args=(job, plans[number::num_workers], theirs), daemon=True
            )
            worker.start()
            theirs.close()
            workers[ours] = worker
        unfinished = set(workers)
        while unfinished:
            for pipe in wait(list(unfinished)):
                assert isinstance(pipe, Connection)
                event = _receive(pipe, workers[pipe])
                if event is None:
                    unfinished.discard(pipe)
                else:
                    on_event(event)
    finally:
        for pipe, worker in workers.items():
            worker.kill()
            worker.join()
            pipe.close()
        remove_leftovers(job.out)


def _receive(pipe: Connection, worker: SpawnProcess) -> Played | ShardRecord | None:
    """What a worker says next, None when it is done; raises what it raised."""
    try:
        event = pipe.recv()
    except EOFError:
        worker.join()
        raise EnvsdkError(
            f"a worker process died (exit code {worker.exitcode}). Run the same command again to continue; "
            "use fewer --workers if the machine ran out of memory"
        ) from None
    if isinstance(event, BaseException):
        raise event
    assert event is None or isinstance(event, Played | ShardRecord)
    return event


def _worker_main(job: _Job, plans: Sequence[ShardPlan], pipe: Connection) -> None:
    """Body of a worker process."""
    # Ctrl-C reaches the whole process group; the parent ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    share_worker_lock(job.out)
    try:
        _play_shards(job, plans, pipe.send)
        pipe.send(None)
    except EnvsdkError as error:
        pipe.send(error)
    except Exception:  # noqa: BLE001 - boundary: the parent raises it
        pipe.send(RuntimeError(f"in a worker process:\n{traceback.format_exc()}"))


def _die_with_parent() -> None:
    """A worker whose parent was killed must not go on writing into the folder."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


app = typer.Typer(add_completion=False)


@app.command()
def command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="ENV_OR_YAML",
            help="A registered environment id, whole or its name alone (`envsdk envs` lists them), or a "
            "run's YAML file: a path, or the name of a shipped example. The YAML's tags, prompts and limits "
            "are used.",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Replace single keys of the YAML; with an environment id, arguments of the environment, "
            "such as size=6.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="Where the data set goes; continued if it is there. `data/NAME` when absent.",
        ),
    ] = None,
    episodes: Annotated[int, typer.Option("--episodes", "-n", help="Episodes, over all tags.")] = 100,
    policy: Annotated[
        str,
        typer.Option(help="Who plays: oracle, random, model, a plug-in's name or package.module:Class."),
    ] = "oracle",
    epsilon: Annotated[
        float, typer.Option(help="Share of moves, from 0 to 1, replaced by random legal ones.")
    ] = 0.0,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="For --policy model: a Hugging Face folder or a checkpoint. "
            "The YAML's `pretrain` when absent.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of tasks and random moves; the YAML's, or 42, when absent.")
    ] = None,
    split: Annotated[str, typer.Option(help="Which tasks: train, val, or any other name.")] = "train",
    tags: Annotated[
        list[str] | None,
        typer.Option(
            help="Tags to play, in equal parts: repeat the option, or separate them by commas. "
            "Those of the YAML's env manager when absent.",
        ),
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes that play.")] = 1,
    shard_size: Annotated[
        int | None,
        typer.Option(
            help="Episodes per file: what a kill can cost each worker. "
            "A sixteenth of all, within 20 to 500, when absent."
        ),
    ] = None,
) -> None:
    """Play episodes with no trainer and write them as a data set.

    DIR receives part-00000.parquet, part-00001.parquet ... and manifest.json. A run that was
    interrupted or killed is continued by the same command, without duplicates or gaps.
    """
    from envsdk.episode_progress import EpisodeProgress

    progress = EpisodeProgress("collecting", total=episodes)
    try:
        with progress:
            collection = collect(
                source,
                out or default_folder(source),
                num_episodes=episodes,
                policy=policy,
                epsilon=epsilon,
                seed=seed,
                split=split,
                tags=split_names(tags),
                model=model,
                num_workers=workers,
                shard_size=shard_size,
                overrides=overrides or (),
                command=[Path(sys.argv[0]).name, *sys.argv[1:]],
                on_start=progress.start,
                on_played=lambda played: progress.played(
                    played.num_episodes, played.num_successes, played.num_failed
                ),
            )
    except KeyboardInterrupt:
        print("interrupted: the same command continues where it stopped", file=sys.stderr)
        raise
    _print_summary(collection)


def default_folder(source: str) -> Path:
    """Where a collection goes that is given no folder: `data/` and the name of the environment or file."""
    name = Path(source).name
    return Path("data") / (name.removesuffix(".yaml").removesuffix(".yml") or "collection")


def split_names(names: Sequence[str] | None) -> list[str] | None:
    """`["a,b", "c"]` as `["a", "b", "c"]`; None when nothing is named."""
    split = [name.strip() for entry in names or () for name in entry.split(",")]
    return list(dict.fromkeys(filter(None, split))) or None


def _print_summary(collection: Collection) -> None:
    manifest = collection.manifest
    for tag, tally in manifest.tally_by_tag.items():
        rate = "-" if tally.success_rate is None else f"{tally.success_rate:.1%}"
        print(f"{tag}: {tally.num_episodes} episodes, solved {rate}, failed {tally.num_failed}")
    tally = manifest.tally
    if tally.num_failed and tally.num_scored:
        print(f"failures: {tally.describe_failures()}")
    print(f"{tally.num_episodes} episodes in {len(collection.shards)} file(s): {collection.folder}")
    if not tally.num_scored:
        raise RolloutStalled(f"all {tally.num_episodes} episodes failed: {tally.describe_failures()}")


def main(argv: list[str] | None = None) -> int:
    return run_app(app, argv, name="envsdk collect")


if __name__ == "__main__":
    sys.exit(main())
