"""Whether a task can be graded at all, checked once: its content is the key in the cache.

no copy of the solution in sight -> gold patch resolves it -> empty patch does not
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from envsdk.base.store.atomic import make_folder, write_json_atomically
from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.swe.evaluator.evaluation import Evaluation
from envsdk.envs.swe.evaluator.grade import evaluate
from envsdk.envs.swe.evaluator.stripping import gold_paths
from envsdk.envs.swe.tasks.images import prepare_image
from envsdk.envs.swe.tasks.leaks import leaks
from envsdk.envs.swe.tasks.runtime import cached, hidden_packages, library_folders
from envsdk.envs.swe.tasks.task import ImageSource, Task
from envsdk.envs.swe.tasks.trees import base_tree
from envsdk.rewards.sandbox.contract import Image, SandboxBackend, SandboxError

VERSION = 5
"""Counted up when the evaluator judges differently, so that tasks are validated again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """What validating one task has found."""

    instance_id: str
    problem: str
    """Why the task cannot be used; "" where it can."""
    hidden_bits: float = 0.0
    """At most how many bits of what tests expect a patch that solves nothing must guess to be rewarded."""
    weak: bool = False
    """Those are so few that a rewarded patch may have forged its verdict."""

    @property
    def sound(self) -> bool:
        return not self.problem


def known_hidden_bits(task: Task) -> float | None:
    """`Validation.hidden_bits` where `task` was found to be sound on this machine, else what its row says;
    None where neither is there."""
    file = _bits_file(task)
    said = json.loads(file.read_text()) if file.is_file() else task.metadata.get("hidden_bits")
    return float(said) if isinstance(said, int | float) else None


async def validate(
    tasks: Sequence[Task],
    backend: SandboxBackend,
    *,
    on_done: Callable[[Validation], None] | None = None,
) -> list[Validation]:
    """Validate `tasks`, all at once as far as the backend has slots; what is in the cache costs nothing.

    Args:
        on_done: Called with each result as it comes.

    Raises SandboxError: a task could not be judged, because the evaluation itself failed.
    """
    made = await asyncio.gather(*(_image(task, backend) for task in tasks))
    images = dict(zip(tasks_by_id(tasks), made, strict=True))
    files = await asyncio.to_thread(
        lambda: {task.instance_id: _cache_file(task, images[task.instance_id], backend) for task in tasks}
    )
    unknown = [task for task in tasks if not files[task.instance_id].is_file()]
    copies = await asyncio.to_thread(_copies, unknown, images) if unknown else {}

    async def one(task: Task) -> Validation:
        file = files[task.instance_id]
        if file.is_file():
            validation = Validation(**json.loads(file.read_text()))
        else:
            image = images[task.instance_id]
            problem = (image if isinstance(image, str) else "") or _leaked(copies[task.instance_id])
            validation = Validation(instance_id=task.instance_id, problem=problem)
            if not problem:
                validation = await _judge(task, backend)
            make_folder(file.parent)
            write_json_atomically(file, asdict(validation))
        if validation.sound:
            bits = _bits_file(task)
            make_folder(bits.parent)
            write_json_atomically(bits, validation.hidden_bits)
        if on_done is not None:
            on_done(validation)
        return validation

    return list(await asyncio.gather(*(one(task) for task in tasks)))


def tasks_by_id(tasks: Sequence[Task]) -> dict[str, Task]:
    """Tasks by `instance_id`. ConfigurationError where one is there twice."""
    found: dict[str, Task] = {}
    for task in tasks:
        if task.instance_id in found:
            places = f"{found[task.instance_id].origin} and {task.origin}"
            raise ConfigurationError(f"{task.instance_id}: two tasks of this id: {places}")
        found[task.instance_id] = task
    return found


async def _image(task: Task, backend: SandboxBackend) -> Image | str:
    """The image, or why there is none."""
    try:
        return await prepare_image(task, backend)
    except ConfigurationError as error:
        return str(error)


def _cache_file(task: Task, image: Image | str, backend: SandboxBackend) -> Path:
    shown = image if isinstance(image, str) else f"{image.tree} {image.python}"
    return cached("validated", f"{VERSION} {backend.name} {task.content_hash()} {shown}", ".json")


def _bits_file(task: Task) -> Path:
    return cached("strengths", f"{VERSION} {task.content_hash()}", ".json")


def _copies(tasks: Sequence[Task], images: dict[str, Image | str]) -> dict[str, list[str]]:
    """Files with a piece of a task's solution, among those that its sandbox shows."""
    patches = {task.instance_id: task.gold_patch for task in tasks}
    local = {task.instance_id for task in tasks if _runs_here(images[task.instance_id])}
    mine = {name: patches[name] for name in local}
    found = leaks(mine, library_folders(), hidden=hidden_packages(), indexed=True)
    for task in tasks:
        image = images[task.instance_id]
        if isinstance(image, Image) and image.tree is not None:
            # The files to repair may well hold a twin of the changed place.
            repaired = {str(image.tree / path) for path in gold_paths(task)}
            own = leaks({"": patches[task.instance_id]}, [image.tree, *image.binds.values()])[""]
            copies = [path for path in own if path not in repaired]
            found.setdefault(task.instance_id, []).extend(copies)
    return {task.instance_id: found.get(task.instance_id, []) for task in tasks}


def _runs_here(image: Image | str) -> bool:
    """Whether its sandbox shows this machine's packages."""
    return isinstance(image, Image) and image.container is None


def _leaked(paths: list[str]) -> str:
    return f"the solution is in sight: {', '.join(paths[:3])}" if paths else ""


async def _judge(task: Task, backend: SandboxBackend) -> Validation:
    gold, empty = await asyncio.gather(evaluate(task, task.gold_patch, backend), evaluate(task, "", backend))
    for name, verdict in (("gold", gold), ("empty", empty)):
        if verdict.infrastructure:
            raise SandboxError(f"{task.instance_id}: cannot grade its {name} patch: {verdict.detail}")
    problem = ""
    if not gold.resolved:
        lacking = await asyncio.to_thread(_lacking, task, gold)
        problem = f"its gold patch does not resolve it: {gold.reason.value}: {gold.detail}{lacking}"
    elif empty.resolved:
        problem = "an empty patch resolves it"
    return Validation(
        instance_id=task.instance_id, problem=problem, hidden_bits=gold.hidden_bits, weak=gold.weak
    )


def _lacking(task: Task, gold: Evaluation) -> str:
    """Which module the tests import and do not find, and where it has to be named."""
    found = re.search(r"No module named '(\w+)", f"{gold.detail}\n{gold.output_tail}")
    if found is None:
        return ""
    name = found[1]
    if isinstance(task.source, ImageSource):
        return f"; its image lacks the module {name}"
    tree = base_tree(task)
    own = next((path for path in sorted(tree.rglob(name)) if path.is_dir()), None)
    own = own or next(iter(sorted(tree.rglob(f"{name}.py"))), None)
    if own is not None:
        folder = own.parent.relative_to(tree).as_posix()
        return f"; its own module {name} is in {folder}: name that folder in `tests.python_path` of `envsdk`"
    return (
        f"; the module {name} is not installed: `pip install --target FOLDER` it, and name the folder as "
        "`tests.site` in `envsdk`"
    )
