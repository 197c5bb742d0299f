"""Checks a stage of a task: in a box that the agent never saw, or in place.

    separate:  collect hooks, the agent's processes ended (at the last stage), artifacts taken <- agent's box;
               its own box: artifacts, tests laid, test.sh
    shared:    old tests and rewards removed, tests laid, test.sh, all in the agent's box

What a separate verifier gets of the agent is what the task names, made safe (`artifacts.py`): no process, no
variable, no file beside it, no time stamp.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from envsdk.envs.terminal.artifacts import Bounds, Refused, Safe
from envsdk.envs.terminal.boxes import (
    CHECKS,
    MOVE_TIMEOUT_S,
    ROOT,
    TESTS,
    VERIFIER_LOGS,
    AgentsBox,
    Boxes,
    absolute,
    demand,
    demand_user,
    lay,
    lay_folder,
    named,
    resolved,
    taken,
)
from envsdk.envs.terminal.harbor.config import Mode, covers_checks
from envsdk.envs.terminal.harbor.folder import CONFIG, HarborTask, Stage
from envsdk.envs.terminal.harbor.rewards import NoReward, Rewards, read_rewards
from envsdk.envs.terminal.services import failed_services
from envsdk.rewards.sandbox import ExecEnd, Sandbox, SandboxFileError

TEST = f"{TESTS}/test.sh"
MAX_REWARD_BYTES = 1 << 20
KILLED = 137
SHOWN_OUTPUT = 4000
EMPTY = f"""\
[ -d /logs ] || rm -f /logs
for folder in {" ".join(CHECKS)}; do
    if [ -d $folder ] && [ ! -h $folder ]; then chmod -R u+rwX $folder; find $folder -mindepth 1 -delete
    else rm -rf $folder && mkdir -p $folder; fi || exit
done
chmod 777 {VERIFIER_LOGS}
"""
"""Removes what checked before, or what an agent has put in its place; a folder may be a mount."""
CHECKED = {Mode.SEPARATE: "checked in a separate box", Mode.SHARED: "checked in place"}
"""What is said of a task's check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a verifier has found."""

    rewards: Rewards
    how: str
    """A value of CHECKED."""
    left_out: tuple[str, ...]
    """Artifacts of the agent that the verifier did not get, and what else failed before it: collect hooks,
    services; with why."""
    output: str
    """The end of what the verifier printed."""
    time_share: float = 0.0
    """Share of the verifier's time-out that it took."""


Again = Callable[[], Awaitable[Checked]]


class CutOff(NoReward):
    """A verifier has run out of time, or of anything else, or was killed."""

    def __init__(self, why: str, again: Again) -> None:
        super().__init__(why)
        self.again = again
        """Checks the same once more."""


async def check(boxes: Boxes, task: HarborTask, stage: Stage, agents: AgentsBox, bounds: Bounds) -> Checked:
    """Run the stage's verifier.

    Raises NoReward: it leaves no usable reward. Raises CutOff.
    Raises SandboxError, ConfigurationError: a box failed, or cannot be made.
    """
    sandbox = await agents.started()
    failed = await failed_services(sandbox)
    if stage.verifier.box is None:
        await sandbox.renew()
        done = await agents.exec(EMPTY, timeout_s=MOVE_TIMEOUT_S, cwd="/", user=ROOT)
        if not done.ok:
            raise NoReward(f"the agent's box cannot be checked in place: {done.output.strip()[-300:]}")
        again = partial(check, boxes, task, stage, agents, bounds)
        return await _run(boxes, stage, sandbox, failed, again)
    is_last = stage is task.stages[-1]
    left_out, archives = await _artifacts(stage, agents, bounds, failed, is_last=is_last)
    if is_last:
        await sandbox.close()  # two at once for each episode could be more than there is room for
    return await _separately(boxes, task.id, stage, left_out, archives)


async def _separately(
    boxes: Boxes, id: str, stage: Stage, left_out: tuple[str, ...], archives: Sequence[tuple[str, Safe]]
) -> Checked:
    """As `check`, of what was taken from the agent's box."""
    assert stage.verifier.box is not None
    box = await boxes.start(id, stage.verifier.box, "verifier.environment", stage.verifier.network[0])
    try:
        await demand_user(box, named(stage.verifier.user), "verifier.user")
        for source, safe in archives:
            # As in Harbor, a folder takes the place of the image's own.
            target = source if safe.is_folder else posixpath.dirname(source)
            await lay(box, safe.archive, target, empties=safe.is_folder)
        again = partial(_separately, boxes, id, stage, left_out, archives)
        return await _run(boxes, stage, box, left_out, again)
    finally:
        await box.close()


async def _artifacts(
    stage: Stage, agents: AgentsBox, bounds: Bounds, failed: Sequence[str], *, is_last: bool
) -> tuple[tuple[str, ...], Sequence[tuple[str, Safe]]]:
    """What the verifier does not get, and what it does, by where it was."""
    left_out, sandbox = [*failed], await agents.started()
    for hook in stage.collect:
        done = await agents.exec(hook.command, timeout_s=hook.timeout_sec, user=named(hook.user))
        if not done.ok:  # as in Harbor, this is no reason not to check
            how = f"code {done.returncode}" if done.reason is ExecEnd.EXIT else f"its {done.reason}"
            said = done.output.strip()[-300:]
            left_out.append(f"verifier.collect: {hook.command[:80]!r} ended with {how}: {said}")
    if is_last:
        await sandbox.end_processes()
    archives: list[tuple[str, Safe]] = []
    now, until = time.time(), time.monotonic() + MOVE_TIMEOUT_S
    for artifact in stage.artifacts:
        source = absolute(artifact.source, sandbox.image.workdir)
        if covers_checks(source):
            left_out.append(f"{source}: the verifier's own files are there")
            continue
        try:
            left_s = max(1.0, until - time.monotonic())
            safe = await taken(agents, artifact, bounds, mtime=now, timeout_s=left_s)
        except Refused as error:
            left_out.append(f"{source}: {error}")
            continue
        if safe is None:
            left_out.append(f"{source}: it is not there")
        else:
            bounds = Bounds(bytes=bounds.bytes - safe.num_bytes, files=bounds.files - safe.num_files)
            left_out += [f"{source}: {entry}" for entry in safe.left_out]
            archives.append((source, safe))
    return tuple(left_out), archives


async def _run(boxes: Boxes, stage: Stage, box: Sandbox, left_out: tuple[str, ...], again: Again) -> Checked:
    """Lay the tests, run them and read the rewards."""
    plan = stage.verifier
    for folder in plan.tests:
        await lay_folder(box, folder, TESTS)
    rewards = f"{VERIFIER_LOGS}/reward.json", f"{VERIFIER_LOGS}/reward.txt"
    cleared = f"rm -rf {' '.join(rewards)} && chmod +x {TEST}"
    ready = await box.exec(cleared, timeout_s=MOVE_TIMEOUT_S, cwd="/", user=ROOT)
    if ready.reason is ExecEnd.EXIT and not ready.ok:
        raise NoReward(f"{TEST} cannot be run: {ready.output.strip()[-300:]}")
    ended = await box.exec(
        f"exec {TEST}",
        timeout_s=plan.timeout_s,
        env=resolved(plan.env, boxes.variables, f"{CONFIG}: verifier.env"),
        user=named(plan.user),
    )
    demand(ended, box)
    output = ended.output[-SHOWN_OUTPUT:]
    if ended.reason is not ExecEnd.EXIT:
        raise CutOff(f"the verifier was ended by its {ended.reason}: {output[-300:].strip()}", again)
    try:
        found = read_rewards(*[await _content(box, path) for path in rewards])
    except NoReward as error:
        why = f"{error}; the verifier ended with code {ended.returncode}: {output[-300:].strip()}"
        raise CutOff(why, again) if ended.returncode == KILLED else NoReward(why) from None
    share = ended.elapsed_s / plan.timeout_s
    return Checked(rewards=found, how=CHECKED[plan.mode], left_out=left_out, output=output, time_share=share)


async def _content(box: Sandbox, path: str) -> bytes | None:
    if (await box.exec(f"[ -e {path} ]", timeout_s=MOVE_TIMEOUT_S, cwd="/", user=ROOT)).returncode == 1:
        return None
    try:
        return await box.read(path, max_bytes=MAX_REWARD_BYTES)
    except SandboxFileError as error:
        raise NoReward(str(error)) from None
