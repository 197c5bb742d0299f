"""Whether a task pays its own solution, and more than doing nothing; found out once and kept."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from envsdk.base.processes.loop_locks import lock_of
from envsdk.base.store.atomic import make_folder, write_json_atomically
from envsdk.base.store.cache import cache_folder
from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.terminal.artifacts import Bounds
from envsdk.envs.terminal.boxes import Boxes, resolved
from envsdk.envs.terminal.harbor.folder import CONFIG, HarborTask, Stage
from envsdk.envs.terminal.harbor.inputs import inputs, packed
from envsdk.envs.terminal.harbor.rewards import NoReward, combined, gate_failed, scalar
from envsdk.envs.terminal.judge import Checked
from envsdk.envs.terminal.services import BoxBroken
from envsdk.envs.terminal.session import Session
from envsdk.rewards.sandbox import SandboxError

_PRINTED = 500
"""Characters of a verifier's output that an error shows."""
_DEFAULT_LIMIT_S = 3600.0
_NEEDS_ITS_FOLDER = re.compile(r"/solution\b|\$\{?0\b|BASH_SOURCE|```")
_SHELL = re.compile(r"#!\s*(/usr)?/bin/(env )?(ba)?sh\b.*\n")
"""A first line that a shell may as well leave out."""
_ENTRYPOINT = re.compile(r"^ENTRYPOINT (?!\[\])", re.MULTILINE)
_problems: dict[str, str] = {}
"""What this process has found; empty for a sound task."""


def solution_command(task: HarborTask, stage: Stage, variables: Mapping[str, str]) -> str:
    """A command that solves a stage: the text of solve.sh, or one that brings all files of the solution."""
    if stage.solution is None:
        return ""
    env = resolved(task.config.solution.env, variables, f"{CONFIG}: solution.env")
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())
    files = [path for path in inputs(stage.solution) if path.is_file()]
    text = (stage.solution / "solve.sh").read_text(encoding="utf-8", errors="surrogateescape")
    is_plain = not text.startswith("#!") or _SHELL.match(text)
    if len(files) == 1 and is_plain and not _NEEDS_ITS_FOLDER.search(text):
        return (exports + _SHELL.sub("", text, count=1)).strip()
    # Without the time of compression: the same solution is the same command.
    archive = base64.b64encode(gzip.compress(packed(stage.solution, runs="solve.sh"), mtime=0)).decode()
    return (
        f"{exports}mkdir -p /solution && base64 -d <<< {archive} | tar -xzC /solution && /solution/solve.sh"
    )


async def demand_sound(task: HarborTask, boxes: Boxes, bounds: Bounds, reward_key: str) -> None:
    """Raises ConfigurationError: the task has a solution, and it is not paid, or nothing is paid as much."""
    if not task.has_solution:
        return
    digest = await asyncio.to_thread(_digest, task.folder, f"{boxes.identity}\n{reward_key}")
    async with lock_of(("sound", digest)):
        file = cache_folder() / "terminal" / "sound" / f"{digest}.json"
        if digest not in _problems:
            try:
                found = "" if file.is_file() else await _problem(task, boxes, bounds, reward_key)
            except (BoxBroken, ConfigurationError, SandboxError) as error:
                raise type(error)(f"{task.id}: {str(error).removeprefix(f'{task.id}: ')}") from error
            _problems[digest] = found
        if _problems[digest]:
            raise ConfigurationError(f"{task.id} cannot be used: {_problems[digest]}")
        make_folder(file.parent)
        write_json_atomically(file, {"id": task.id})


async def _problem(task: HarborTask, boxes: Boxes, bounds: Bounds, reward_key: str) -> str:
    said: list[str] = []
    try:
        found = await play(task, boxes, bounds, said, solves=True)
        solved = _paid(task, found, reward_key)
    except NoReward as error:
        return f"its own solution gets no reward: {error}{_hints(task, said)}"
    try:
        idle = _paid(task, await play(task, boxes, bounds, [], solves=False), reward_key)
    except (NoReward, BoxBroken):
        return ""
    if solved <= idle:
        output = found[-1].output.strip()
        said += [f"its verifier printed: {output[-_PRINTED:]}"] if output else []
        return f"its own solution is paid {solved:g}, and doing nothing {idle:g}{_hints(task, said)}"
    return ""


def _paid(task: HarborTask, found: Sequence[Checked], reward_key: str) -> float:
    return scalar(combined([each.rewards for each in found], task.strategy), reward_key)


def _hints(task: HarborTask, said: Sequence[str]) -> str:
    """What may be the reason, in front of what was said."""
    file = task.box.context / "Dockerfile" if task.box.context else None
    starts = file is not None and _ENTRYPOINT.search(file.read_text(encoding="utf-8", errors="replace"))
    hints = ["the ENTRYPOINT of its Dockerfile does not run here"] if starts else []
    return "".join(f"; {each}" for each in (*hints, *said))


async def play(
    task: HarborTask, boxes: Boxes, bounds: Bounds, said: list[str], *, solves: bool
) -> list[Checked]:
    """What is found of the task's own solution, or of doing nothing, stage by stage.

    `said` gets how solutions ended that failed.

    Raises NoReward, SandboxError, ConfigurationError.
    """
    session, found = Session(boxes, task, task.stages[0]), list[Checked]()
    try:
        for number, stage in enumerate(task.stages):
            if number:
                await session.enter(stage)
            if solves:
                command = solution_command(task, stage, boxes.variables)
                done = await session.run(command, timeout_s=stage.timeout_s or _DEFAULT_LIMIT_S)
                if done.returncode:
                    how = done.note or f"It ended with code {done.returncode}."
                    said.append(f"solve.sh: {how} {done.output.strip()[-_PRINTED:]}")
            found.append(await session.check(stage, bounds))
            if gate := gate_failed(found[-1].rewards, stage.gates):
                if solves and stage is not task.stages[-1]:
                    raise NoReward(f"step {stage.name}: {gate}")
                break
    finally:
        await session.close()
    return found


def _digest(folder: Path, identity: str) -> str:
    digest = hashlib.sha256(identity.encode())
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(
                f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode(errors="surrogateescape")
            )
            digest.update(path.read_bytes())
    return digest.hexdigest()[:24]
