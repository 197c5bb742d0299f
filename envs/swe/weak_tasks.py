"""Which tasks are trained on, where some hide so little that a guess may be paid.

    refuse        a weak task is not played; another one takes its place
    down_weight   it is played as often as it hides bits, of those that are enough
    pay           it is played and paid as any other

The number of an episode's task alone decides, so that the members of a group play the same one.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.swe.evaluator.sealing.strength import ENOUGH_BITS
from envsdk.envs.swe.evaluator.validation import known_hidden_bits
from envsdk.envs.swe.task_list import TaskList, task_list
from envsdk.envs.swe.tasks import Task

WeakTasks = Literal["refuse", "down_weight", "pay"]
BitsOf = Callable[[Task], Awaitable[float | None]]
"""How many bits a task hides; None where nobody knows."""


async def task_to_train_on(tasks: TaskList, number: int, how: WeakTasks, bits_of: BitsOf) -> Task:
    """The task of a training episode: number `number`, unless that is weak and passed over.

    Raises ConfigurationError: all tasks are weak, and none of them is to be played.
    """
    wanted = tasks.at(number)
    chance = random.Random(number)
    if how == "pay" or _is_played(await bits_of(wanted), how, chance):
        return wanted
    for place in chance.sample(range(len(tasks)), len(tasks)):
        other = tasks.at(place)
        bits = await bits_of(other)
        if bits is None or bits >= ENOUGH_BITS:
            return other
    if how == "down_weight":
        return wanted
    raise ConfigurationError(
        f"all {len(tasks)} tasks are weak: each hides fewer than {ENOUGH_BITS:g} bits of what its tests "
        "expect, so a patch that solves nothing may be paid; add other tasks, or train on these with "
        "weak_tasks: pay"
    )


def _is_played(bits: float | None, how: WeakTasks, chance: random.Random) -> bool:
    if bits is None or bits >= ENOUGH_BITS:
        return True
    return how == "down_weight" and chance.random() < bits / ENOUGH_BITS


def notes(
    *,
    data: str | None = None,
    split: Any = "auto",
    instance_ids: Sequence[str] | None = None,
    num_tasks: int | None = None,
    repositories: str | None = None,
    weak_tasks: str = "refuse",
    **_: Any,
) -> list[str]:
    """What is said before a run trains on tasks of a file."""
    if data is None:
        return []
    ids = tuple(instance_ids) if instance_ids else None
    tasks = task_list(data, split, ids, num_tasks, repositories).tasks
    bits = [known_hidden_bits(task) for task in tasks]
    weak = sum(known is not None and known < ENOUGH_BITS for known in bits)
    becomes = {
        "refuse": "not trained on",
        "down_weight": "trained on less often, the fewer bits they hide",
        "pay": "trained on and paid as any other, so a guess may be rewarded",
    }[weak_tasks]
    said = [f"{weak} of {len(tasks)} tasks of {data} are weak and {becomes} (weak_tasks: {weak_tasks})"]
    if unknown := bits.count(None):
        said.append(
            f"{unknown} of {len(tasks)} tasks of {data} are not validated yet; each is before it is first "
            f"played. To do so now: python -m envsdk.envs.swe.tasks {data}"
        )
    return said
