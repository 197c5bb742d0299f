"""Which groups may begin, and which a batch waits for, so that what is played is trained in time. Pure.

A token of a version may be trained up to a last step, see `Terms.last_step`. A group may begin only if every
group that waits, this one included, can be in a batch up to its last step. And a batch waits for a group that
no later one may hold. Nothing grows too old then, and tags are trained in the shares in which they begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from envsdk.buffer.contract import Terms
from envsdk.buffer.selection import WaitingGroup

PATIENCE = 4.0
"""How many times as long as the longest of its tag's latest groups a batch waits for a group."""


def num_places(terms: Terms, step: int, versions: Iterable[int], version: int) -> int:
    """How many groups may begin under weights of `version`.

    Args:
        terms: Of the job.
        step: Of the next batch.
        versions: Of the groups that wait.
        version: Of the explorer's weights.
    """
    last = terms.last_step(version)
    if last < step:
        return 0
    others = [max(step, terms.last_step(each)) for each in versions]
    room = (
        terms.groups_per_batch * (until - step + 1) - sum(other <= until for other in others)
        for until in {last, *others}
        if until >= last
    )
    return max(0, min(room) + terms.num_groups_redundancy)


@dataclass(frozen=True, slots=True)
class Due:
    """What a batch has to take, so that later ones have room for the others."""

    first: Set[int]
    """Ready groups that it takes before others, by their ids."""
    is_awaited: bool
    """It waits, although there may be enough groups: without some that are played, those would be lost."""


def due_groups(
    terms: Terms, step: int, waiting: Iterable[WaitingGroup], usual_s: Mapping[str, float], now: float
) -> Due:
    """What the batch of `step` has to take.

    Args:
        terms: Of the job.
        step: Of the batch.
        waiting: Groups that were in no batch yet.
        usual_s: By tag, how long the longest of the latest groups took. A group that takes much longer is not
            waited for: it may hang, or its explorer may be dead.
        now: On the clock of `leased_at`.
    """
    expected = [
        group
        for group in waiting
        if group.ready_at is not None or now - group.leased_at <= PATIENCE * usual_s[group.tag]
    ]
    expected.sort(key=lambda group: terms.last_step(group.oldest_version))
    ready: list[int] = []
    number, is_awaited = 0, False
    for count, group in enumerate(expected, start=1):
        if group.ready_at is not None:
            ready.append(group.group_id)
        room_later = terms.groups_per_batch * max(0, terms.last_step(group.oldest_version) - step)
        number = max(number, count - room_later)
        num_played = count - len(ready) - terms.num_groups_redundancy
        is_awaited |= num_played > room_later and len(ready) < terms.groups_per_batch
    return Due(first=frozenset(ready[:number]), is_awaited=is_awaited)


def grant(free: int, asker: str, held: Mapping[str, int], wanted: Mapping[str, int]) -> int:
    """How many of `free` places `asker` gets now, so that holdings come out max-min fair.

    Places are given one at a time to the explorer that holds fewest and still wants one, by name among
    equals; those given to others stay free until these ask.

    Args:
        free: Places that nobody holds.
        asker: One of the explorers.
        held: Places by explorer.
        wanted: Places that each would like besides, when it last asked.

    >>> grant(4, "b", held={"a": 6, "b": 0}, wanted={"a": 4, "b": 8})
    4
    >>> grant(4, "b", held={"a": 2, "b": 2}, wanted={"a": 4, "b": 8})
    2
    """
    hold, want = dict(held), {name: max(0, count) for name, count in wanted.items()}
    given = 0
    for _ in range(free):
        name = min((n for n in want if want[n]), key=lambda n: (hold.get(n, 0), n), default=None)
        if name is None:
            break
        hold[name] = hold.get(name, 0) + 1
        want[name] -= 1
        given += name == asker
    return given
