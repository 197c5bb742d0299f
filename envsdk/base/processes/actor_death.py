"""How an actor of Ray's ended, and the answers of those that live.

except ACTOR_DIED as error:
    say(f"the engine died: {reason_of_death(error)}")
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ray.exceptions import OutOfMemoryError, RayActorError

from envsdk.contracts.failures import EnvsdkError

ACTOR_DIED = (RayActorError, OutOfMemoryError)
"""Ray reports an actor that it killed for memory by a class of its own."""

CAUSE_GRACE_S = 5.0
"""An actor that lost its peer may say so before Ray notices that the peer died."""

_ADVICE = re.compile(r" (If the process was killed|Some common causes include)")
_MEMORY = re.compile(r"was (\S+) used / (\S+) limit")


def reason_of_death(error: BaseException) -> str:
    """Ray's account of how a process ended, on one line, without its advice."""
    text = str(error)
    if isinstance(error, OutOfMemoryError):
        used = _MEMORY.search(text)
        return "Ray killed it because its machine ran out of memory" + (
            f": {used[1]} of {used[2]} were used" if used else ""
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    pid = next((line for line in lines if line.startswith("pid:")), "")
    detail = _ADVICE.split(lines[-1].partition("Worker exit detail: ")[2] or lines[-1])[0]
    if "connection error code" in detail:
        detail = "it was killed, ran out of memory, or crashed"
    return f"{pid.replace(':', '')}: {detail}".removeprefix(": ")


async def on_the_living(actors: Mapping[str, Any], method: str, *args: Any) -> dict[str, Any]:
    """What each actor's `method` answers, by name; those that died are left out.

    Raises the first error of an actor that lives, when all have answered.
    """
    calls = [getattr(actor, method).remote(*args) for actor in actors.values()]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    living = {}
    for name, answer in zip(actors, answers, strict=True):
        if isinstance(answer, ACTOR_DIED):
            continue
        if isinstance(answer, BaseException):
            raise answer
        living[name] = answer
    return living


async def until_cause(answers: Sequence[asyncio.Future[Any]]) -> None:
    """Wait a little for the failure that explains the others."""
    deadline = time.monotonic() + CAUSE_GRACE_S
    while not any(is_cause(error) for answer in answers if (error := error_of(answer))):
        hanging = [answer for answer in answers if not answer.done()]
        left = deadline - time.monotonic()
        if not hanging or left <= 0:
            return
        await asyncio.wait(hanging, timeout=left, return_when=asyncio.FIRST_COMPLETED)


def error_of(answer: asyncio.Future[Any]) -> BaseException | None:
    """With which it ended."""
    return answer.exception() if answer.done() and not answer.cancelled() else None


def is_death(error: BaseException) -> bool:
    """Whether the actor died of it."""
    return isinstance(error, ACTOR_DIED)


def is_cause(error: BaseException) -> bool:
    """Whether it cannot be the mere loss of a peer."""
    return is_death(error) or isinstance(getattr(error, "cause", None) or error, EnvsdkError)


def remote_lines(error: BaseException) -> str:
    """The lines of the actor's code that the error came through, without Ray's own."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).splitlines()
    first = next((index for index, line in enumerate(lines) if line.lstrip().startswith("File ")), 0)
    return "\n".join(line for line in lines[first:] if line.strip(" ^~"))
