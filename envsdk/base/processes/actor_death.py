"""How an actor of Ray's ended, and the answers of those that live.

except ACTOR_DIED as error:
    say(f"the engine died: {reason_of_death(error)}")
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

from ray.exceptions import OutOfMemoryError, RayActorError

ACTOR_DIED = (RayActorError, OutOfMemoryError)
"""Ray reports an actor that it killed for memory by a class of its own."""

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
