"""Which ready groups a batch takes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field

from envsdk.buffer.contract import Terms


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingGroup:
    """A group that is played, or ready for a batch."""

    group_id: int
    tag: str
    explorer: str
    oldest_version: int
    """Oldest version among its tokens; that of the weights when it was claimed, while it is played."""
    leased_at: float
    ready_at: float | None
    """None while it is played."""
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


_ORDERS: Mapping[str, Callable[[WaitingGroup], tuple[float, ...]]] = {
    "oldest": lambda group: (group.oldest_version, group.ready_at or 0.0, group.group_id),
    "freshest": lambda group: (-group.oldest_version, -(group.ready_at or 0.0), -group.group_id),
    "priority": lambda group: (group.uses, -group.oldest_version, group.ready_at or 0.0, group.group_id),
}


def choose(
    ready: Sequence[WaitingGroup], count: int, selection: Selection, *, first: Container[int] = ()
) -> list[int] | None:
    """The ids of `count` groups, those of `first` before others, in ascending order; None while too few.

    With a mixture, each name gets its share of the batch, remainders to the largest fractions; None until
    each has enough, see `fill`.
    """
    ordered = _in_order(ready, selection, first)
    if not selection.mixture:
        return sorted(group.group_id for group in ordered[:count]) if len(ordered) >= count else None
    chosen: list[int] = []
    for name, share in shares_of(count, selection.mixture).items():
        own = [group.group_id for group in ordered if getattr(group, selection.mixture_by) == name]
        if len(own) < share:
            return None
        chosen += own[:share]
    return sorted(chosen)


def lacks_for_good(waiting: Sequence[WaitingGroup], terms: Terms, selection: Selection) -> bool:
    """Whether the mixture cannot come about: there is no place left, and nobody plays what is lacking."""
    if sum(not group.uses for group in waiting) < terms.capacity_groups:
        return False
    played = {getattr(each, selection.mixture_by) for each in waiting if each.ready_at is None}
    have = Counter(getattr(each, selection.mixture_by) for each in waiting if each.ready_at is not None)
    shares = shares_of(terms.groups_per_batch, selection.mixture)
    return played.isdisjoint(name for name, share in shares.items() if have[name] < share)


def fill(
    ready: Sequence[WaitingGroup], count: int, selection: Selection, *, first: Container[int] = ()
) -> list[int] | None:
    """As `choose`, for a mixture that cannot come about: what names lack is made up from the others."""
    ordered = _in_order(ready, selection, first)
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


def _in_order(
    ready: Sequence[WaitingGroup], selection: Selection, first: Container[int]
) -> list[WaitingGroup]:
    order = _ORDERS[selection.order]
    return sorted(ready, key=lambda group: (group.group_id not in first, order(group)))


def shares_of(count: int, mixture: Mapping[str, float]) -> dict[str, int]:
    """`count` divided in proportion to `mixture`, remainders to the largest fractions, then by name."""
    total = sum(mixture.values())
    exact = {name: count * weight / total for name, weight in mixture.items()}
    shares = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: (shares[name] - exact[name], name))
    for name in by_remainder[: count - sum(shares.values())]:
        shares[name] += 1
    return shares
