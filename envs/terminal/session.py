"""The agent's box of one episode: commands or keys, then checks, step after step.

not started -> first command: started, the step's files laid -> ... -> check -> enter the next step -> closed
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from envsdk.envs.shell.commands import CommandResult, command_result
from envsdk.envs.terminal.artifacts import Bounds
from envsdk.envs.terminal.boxes import (
    CHECKS,
    AgentsBox,
    Boxes,
    box_healthy,
    demand,
    demand_user,
    lay_folder,
    named,
    ours,
)
from envsdk.envs.terminal.harbor.config import Mode
from envsdk.envs.terminal.harbor.folder import HarborTask, Stage
from envsdk.envs.terminal.judge import EMPTY, Checked, check
from envsdk.envs.terminal.services import BoxBroken
from envsdk.rewards.sandbox import Sandbox

if TYPE_CHECKING:
    from envsdk.rewards.sandbox.terminal import Terminal

SETUP_TIMEOUT_S = 600.0
Strokes = Sequence[tuple[Sequence[str], float]]
"""Keys, and the seconds to wait after them."""


class Session:
    """One episode's box, which nobody else uses."""

    def __init__(self, boxes: Boxes, task: HarborTask, stage: Stage) -> None:
        self._boxes, self._task, self._stage = boxes, task, stage
        self.box = AgentsBox(partial(_started, boxes, task, stage))
        self._terminal: Terminal | None = None

    async def run(self, command: str, *, timeout_s: float) -> CommandResult:
        """Run a command in a new shell. Raises SandboxError: the box fails."""
        script = command.encode(errors="replace").decode()
        result = await self.box.exec(script, timeout_s=timeout_s, user=named(self._stage.user))
        return command_result(result, timeout_s)

    async def type(self, strokes: Strokes, *, left_s: float) -> tuple[str, float]:
        """The screen, and the seconds that it took, after keys were typed into the terminal.

        After each is waited as long as is said, or until the shell waits.
        """
        from envsdk.rewards.sandbox.terminal import open_terminal

        clock = asyncio.get_running_loop().time
        began = clock()
        if self._terminal is None:
            self._terminal = await open_terminal(await self.box.started(), user=named(self._stage.user))
        screen = await self._terminal.send([], wait_s=0.0) if not strokes else None
        for keys, wait_s in strokes:
            screen = await self._terminal.send(keys, wait_s=min(wait_s, max(0.0, left_s - (clock() - began))))
        assert screen is not None
        if screen.ended:  # `exit`: the next keys get a new shell
            if self._terminal.result is not None:
                await self.box.seen(self._terminal.result)
            await self._leave_terminal()
        return screen.text, clock() - began

    async def check(self, stage: Stage, bounds: Bounds) -> Checked:
        """Have the step checked, while what the agent has left goes on where the box keeps it."""
        if not self._boxes.keeps_processes:
            await self._leave_terminal()
        return await check(self._boxes, self._task, stage, self.box, bounds)

    async def enter(self, stage: Stage) -> None:
        """Go on to the next step: what checked the last one goes, and the step's own files come."""
        box = await self.box.started()
        if self._stage.verifier.mode is Mode.SHARED:
            await box.renew()
            await ours(box, EMPTY)
        await ours(box, "find /logs/agent -mindepth 1 -delete")
        self._stage = stage
        await _prepare(box, stage)

    async def close(self) -> None:
        """Remove the box. Idempotent."""
        await self._leave_terminal()
        await self.box.close()

    async def _leave_terminal(self) -> None:
        terminal, self._terminal = self._terminal, None
        if terminal is not None:
            await terminal.close()


async def _started(boxes: Boxes, task: HarborTask, stage: Stage) -> Sandbox:
    renewed = CHECKS if any(each.verifier.box is None for each in task.stages) else ()
    box = await boxes.start(task.id, task.box, "environment", stage.network[0], renewed=renewed)
    try:
        await _prepare(box, stage)
    except BaseException:
        await box.close()
        raise
    return box


async def _prepare(box: Sandbox, stage: Stage) -> None:
    """Lay a step's files, run its set-up and wait for its health."""
    user = named(stage.user)
    await demand_user(box, user, "agent.user")
    if stage.workdir is not None:
        await lay_folder(box, stage.workdir, box.image.workdir)
        if (stage.workdir / "setup.sh").is_file():
            done = await box.exec("bash ./setup.sh", timeout_s=SETUP_TIMEOUT_S, user=user)
            demand(done, box)
            if not done.ok:
                raise BoxBroken(f"steps/{stage.name}/workdir/setup.sh: {done.output.strip()[-300:]}")
    if stage.healthcheck is not None:
        await box_healthy(box, stage.healthcheck, f"steps: {stage.name}.healthcheck", user)
