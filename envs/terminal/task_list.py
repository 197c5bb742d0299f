"""The tasks that an environment plays: those of a folder, of a data set of Harbor's, or the shipped ones."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from envsdk.base.settings.extras import require
from envsdk.base.store.cache import cache_folder
from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.shell import env as shell
from envsdk.envs.shell.env import SplitName, chosen
from envsdk.envs.terminal.harbor.compose import read_compose
from envsdk.envs.terminal.harbor.folder import HarborTask, find_folders, read_folder, strays
from envsdk.envs.terminal.harbor.support import refusals
from envsdk.envs.terminal.shipped import shipped_folder

HELD_OUT = frozenset({"held_out", "held-out", "validation", "val", "test", "eval"})
"""Folders whose tasks are not trained on."""
HELD_OUT_SHARE = 0.2
"""Share of the other tasks outside of a folder `train` that is held out, by their names."""
BUILDER = "bubblewrap"
"""The backend that builds images without a daemon."""
ENGINES = ("podman", "docker")
"""The backends whose sandboxes may have services beside them."""
_SHOWN = 10
_DOWNLOAD_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True)
class TaskList(shell.TaskList[HarborTask]):
    """Tasks by number."""

    refused: Mapping[str, str]
    """Why tasks of the folder are left out, by name."""


@lru_cache(maxsize=16)
def task_list(
    data: str | None,
    split: SplitName = "auto",
    instance_ids: tuple[str, ...] | None = None,
    num_tasks: int | None = None,
    *,
    skips_refused: bool = False,
    has_network: bool = False,
    backend: str = BUILDER,
) -> TaskList:
    """The tasks that an environment with these arguments plays.

    Raises ConfigurationError: there are none, one cannot be played here, or `instance_ids` names one that is
    not there.
    """
    root = shipped_folder() if data is None else folder_of(data)
    wanted = "train" if data is None and split == "auto" else split
    tasks, refused = read_tasks(root, has_network=has_network, backend=backend)
    listed = {task.id: task for task in tasks if wanted in ("auto", "all") or split_of(task.id) == wanted}
    if refused and not (skips_refused or instance_ids):
        shown = "".join(f"\n  {name}: {why}" for name, why in list(refused.items())[:_SHOWN])
        more = f"\n  and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
        raise ConfigurationError(
            f"{root}: {len(refused)} of {len(tasks) + len(refused)} tasks cannot be played here; "
            f"`skip_refused: true` leaves them out:{shown}{more}"
        )
    found = chosen(listed, instance_ids, f"{root} (split {split})", refused)
    return TaskList(found[:num_tasks], {} if instance_ids else refused)


def read_tasks(
    root: Path, *, has_network: bool = False, backend: str = BUILDER
) -> tuple[list[HarborTask], dict[str, str]]:
    """The tasks below a folder, and why others cannot be played; both by name, in order.

    The builder without a daemon must know every instruction of their Dockerfiles. Raises ConfigurationError:
    there is none.
    """
    tasks, refused = [], {}
    for folder in find_folders(root):
        name = folder.name if folder == root else folder.relative_to(root).as_posix()
        try:
            task = read_folder(folder, name)
        except ConfigurationError as error:
            here = str(folder.absolute())
            refused[name] = str(error).replace(f"{here}/", "").replace(f"{here}: ", "").replace("\n", " ")
            continue
        problems = refusals(task, has_network=has_network, has_engine=backend in ENGINES)
        if problems := [*problems, *(_unbuildable(task) if backend == BUILDER else ())]:
            refused[name] = "; ".join(problems)
        else:
            tasks.append(task)
    if not tasks and not refused:
        almost = "".join(f"\n  {line}" for line in strays(root))
        raise ConfigurationError(
            f"{root}: no folder in it has a task.toml (hidden ones are left out), so there is no task{almost}"
        )
    return tasks, refused


def _unbuildable(task: HarborTask) -> Iterator[str]:
    """What is wrong with the Dockerfiles of a task, by file and line."""
    require("a build", "e2b_dockerfile_utils")
    from envsdk.rewards.sandbox.images.dockerfile import read_dockerfile

    for context, compose in dict.fromkeys((box.context, box.compose) for box in task.boxes):
        if context is None:
            continue
        build = (read_compose(compose, task.box.config).main.build if compose else None) or {}
        file = context / build.get("context", ".") / build.get("dockerfile", "Dockerfile")
        if file.is_file():
            text = file.read_text(encoding="utf-8", errors="surrogateescape")
            name = os.path.relpath(file, task.folder)
            try:
                read_dockerfile(text, file=name, args={}, base_env=lambda _: {"PATH": "/usr/bin"})
            except ConfigurationError as error:
                yield str(error).replace("\n", " ")


def split_of(id: str) -> str:
    """`train` or `held_out`, by the folders that a task is in, else by its name."""
    *folders, name = id.split("/")
    if "train" in folders:
        return "train"
    drawn = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) / 2**32
    return "held_out" if HELD_OUT & set(folders) or drawn < HELD_OUT_SHARE else "train"


def folder_of(data: str) -> Path:
    """The folder `data`, or that of the data set of this name, downloaded once by the command `harbor`.

    Raises ConfigurationError: there is no such folder, and `harbor` is not there or knows no such data set.
    """
    folder = Path(data).expanduser()
    if folder.is_dir():
        return folder
    command = shutil.which("harbor")
    if command is None:
        raise ConfigurationError(
            f"data: there is no folder {folder}; for a data set by name, put the command `harbor` on the "
            "PATH (Python 3.12: pip install harbor)"
        )
    target = cache_folder() / "terminal" / "harbor" / hashlib.sha256(data.encode()).hexdigest()[:16]
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        argv = [command, "download", data, "--export", "--output-dir", str(partial)]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise ConfigurationError(
                f"data: harbor download {data}: not done in {_DOWNLOAD_TIMEOUT_S:g} s"
            ) from None
        if done.returncode or not partial.is_dir():
            why = (done.stderr or done.stdout).strip()[-500:]
            raise ConfigurationError(f"data: there is no folder {folder}, and harbor download says: {why}")
        partial.rename(target)
    return target
