"""What a sandbox of a task starts from."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path, PurePosixPath

from envsdk.base.store.atomic import made_once, make_folder, write_json_atomically
from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.swe.tasks.archives import unpack_tar
from envsdk.envs.swe.tasks.runtime import cached, empty_folder, hidden_packages, runtime_python
from envsdk.envs.swe.tasks.task import ImageSource, Task
from envsdk.envs.swe.tasks.trees import PatchDoesNotApply, base_folder, base_tree, finish_base
from envsdk.rewards.sandbox.contract import WORKDIR, Image, Limits, SandboxBackend, SandboxError
from envsdk.rewards.sandbox.threads import in_thread

SITE = "/opt/site"
"""Where a sandbox shows `TestPlan.site`."""
_MAX_TREE_BYTES = 2 << 30
_PACK_TIMEOUT_S = 600.0
# R2E-Gym keeps its tests next to the repository in some images and inside in others.
_PACK = """set -e
if [ -d /r2e_tests ] && [ ! -e r2e_tests ]; then cp -r /r2e_tests r2e_tests; fi
tar --exclude=./.git --exclude=__pycache__ -cf /tmp/tree.tar .
"""


_MODULES_TIMEOUT_S = 120.0
_MODULES = """\
import json, os, sys
root = os.getcwd() + os.sep
shown = [path for path in sys.path if os.path.isdir(path)]
mine = [path for path in shown if not (path + os.sep).startswith(root) or path.endswith("-packages")]
names = {name.split(".")[0] for path in mine for name in os.listdir(path)}
print(json.dumps(sorted(names | set(sys.builtin_module_names))))
"""
"""Prints the names of what is installed, the repository's own folders left out."""


async def prepare_image(
    task: Task, backend: SandboxBackend, *, packages: tuple[str, ...] = ("pytest",)
) -> Image:
    """The image of the agent's sandbox: the base tree, the interpreter and what the tests import.

    The first call for a task makes its tree; one in a container image is fetched from there.

    Args:
        packages: What is installed in the interpreter, as it is installed here.

    Raises ConfigurationError: the tree cannot be made.
    Raises SandboxError: the sandbox that fetches it failed.
    """
    if isinstance(task.source, ImageSource):
        return await _from_container(task, task.source, backend)
    tree = await asyncio.to_thread(base_tree, task)
    python = await asyncio.to_thread(runtime_python, packages)
    binds = {str(folder): empty_folder() for folder in hidden_packages()}
    further = []
    if task.tests.site is not None:
        binds[SITE] = task.tests.site
        further = [SITE]
    env = {"PYTHONDONTWRITEBYTECODE": "1", **_python_path(task, WORKDIR, *further), **task.tests.env}
    return Image(tree=tree, python=python, env=env, binds=binds)


def _python_path(task: Task, workdir: str, *further: str) -> dict[str, str]:
    """What lets `python -m pytest` import what grading imports; the root it finds by itself."""
    inside = [str(PurePosixPath(workdir) / path) for path in task.tests.python_path if path != "."]
    return {"PYTHONPATH": ":".join([*inside, *further])} if inside or further else {}


async def installed_modules(task: Task, backend: SandboxBackend) -> frozenset[str]:
    """Names of the modules that the image of `task` has installed, asked once; none where it has no image.

    Raises SandboxError: the image's interpreter does not tell.
    """
    if not isinstance(task.source, ImageSource):
        return frozenset()
    interpreter = task.tests.python or "python"
    file = cached("modules", f"{task.source.image} {task.source.workdir} {interpreter}", ".json")
    if not file.is_file():
        image = Image(container=task.source.image, workdir=task.source.workdir)
        sandbox = await backend.start(image)
        try:
            script = f"'{interpreter}' -I - <<'EOF'\n{_MODULES}EOF\n"
            listing = await sandbox.exec(script, timeout_s=_MODULES_TIMEOUT_S, cwd=task.source.workdir)
        finally:
            await sandbox.close()
        if not listing.ok:
            raise SandboxError(f"{task.instance_id}: {interpreter} of its image: {listing.output[-500:]}")
        make_folder(file.parent)
        write_json_atomically(file, json.loads(listing.output))
    return frozenset(json.loads(file.read_text()))


async def _from_container(task: Task, source: ImageSource, backend: SandboxBackend) -> Image:
    target = base_folder(source, task.setup_patch, task.hidden_tests)
    if not (target / ".git").is_dir():
        data = await _fetch(task, source, backend)
        await in_thread(_unpack, task, data, target)
    env = {**_python_path(task, source.workdir), **task.tests.env}
    return Image(tree=target, container=source.image, workdir=source.workdir, env=env)


async def _fetch(task: Task, source: ImageSource, backend: SandboxBackend) -> bytes:
    """The files of the image's repository as a tar archive, without its history."""
    limits = Limits(disk_mb=_MAX_TREE_BYTES >> 20, file_mb=_MAX_TREE_BYTES >> 20)
    try:
        sandbox = await backend.start(Image(container=source.image, workdir=source.workdir), limits=limits)
    except ConfigurationError as error:
        clone = f"; nor is there a clone {task.looked_for}" if task.looked_for else ""
        raise ConfigurationError(f"{task.instance_id}: {error}{clone}") from None
    try:
        packed = await sandbox.exec(_PACK, timeout_s=_PACK_TIMEOUT_S, cwd=source.workdir)
        if not packed.ok:
            raise SandboxError(f"{task.instance_id}: cannot pack {source.workdir}: {packed.output[-500:]}")
        return await sandbox.read("/tmp/tree.tar", max_bytes=_MAX_TREE_BYTES)
    finally:
        await sandbox.close()


def _unpack(task: Task, data: bytes, target: Path) -> None:
    with made_once(target) as folder:
        unpack_tar(data, folder)
        try:
            finish_base(folder, target, task.setup_patch, task.hidden_tests)
        except PatchDoesNotApply as error:
            raise ConfigurationError(f"{task.instance_id}: set-up patch: {error}") from None
