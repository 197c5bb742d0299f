"""Which ready groups a batch takes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyGroup:
    """What a strategy knows of a group."""

    group_id: int
    tag: str
    explorer: str
    oldest_version: int
    ready_at: float
    uses: int = 0
    """Batches that it was in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """`buffer.trainer_input.experience_buffer` as far as it concerns the choice."""

    order: str = "oldest"
    """`oldest`, `freshest` or `priority`."""
    max_uses: int = 1
    cool_down_steps: int = 0
    mixture: Mapping[str, float] = field(default_factory=dict)
    mixture_by: str = "tag"


_ORDERS: Mapping[str, Callable[[ReadyGroup], tuple[float, ...]]] = {
    "oldest": lambda group: (group.oldest_version, group.ready_at, group.group_id),
    "freshest": lambda group: (-group.oldest_version, -group.ready_at, -group.group_id),
    "priority": lambda group: (group.uses, -group.oldest_version, group.ready_at, group.group_id),
}


def choose(ready: Sequence[ReadyGroup], count: int, selection: Selection) -> list[int] | None:
    """The ids of `count` groups, in ascending order; None while there are too few.

    With a mixture, each name gets its share of the batch, remainders to the largest fractions; None until
    each has enough, see `fill`.
    """
    ordered = sorted(ready, key=_ORDERS[selection.order])
    if not selection.mixture:
        return sorted(group.group_id for group in ordered[:count]) if len(ordered) >= count else None
    chosen: list[int] = []
    for name, share in shares_of(count, selection.mixture).items():
        own = [group.group_id for group in ordered if getattr(group, selection.mixture_by) == name]
        if len(own) < share:
            return None
        chosen += own[:share]
    return sorted(chosen)


def lacking_of(ready: Sequence[ReadyGroup], count: int, selection: Selection) -> list[str]:
    """The names of the mixture that have fewer groups than their share of `count`."""
    have = Counter(getattr(group, selection.mixture_by) for group in ready)
    return [name for name, share in shares_of(count, selection.mixture).items() if have[name] < share]


def fill(ready: Sequence[ReadyGroup], count: int, selection: Selection) -> list[int] | None:
    """As `choose`, for a mixture that cannot come about: what names lack is made up from the others."""
    ordered = sorted(ready, key=_ORDERS[selection.order])
    if len(ordered) < count:
        return None
    shares = shares_of(count, selection.mixture)
    own: list[int] = []
    for group in ordered:
        name = getattr(group, selection.mixture_by)
        if shares.get(name, 0) > 0:
            shares[name] -= 1
            own.append(group.group_id)
    others = [group.group_id for group in ordered if group.group_id not in own]
    return sorted(own + others[: count - len(own)])


def shares_of(count: int, mixture: Mapping[str, float]) -> dict[str, int]:
    """`count` divided in proportion to `mixture`, remainders to the largest fractions, then by name."""
    total = sum(mixture.values())
    exact = {name: count * weight / total for name, weight in mixture.items()}
    shares = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: (shares[name] - exact[name], name))
    for name in by_remainder[: count - sum(shares.values())]:
        shares[name] += 1
    return shares
