"""Applies the group filters to complete groups. Pure: groups in, verdicts and counts out.

    judge -> judge ... -> delivered (starts counting again)

The ledger starts another task for each dropped group. A limit on dropped groups between two batches turns a
filter that drops every group into an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from envsdk.algorithms.group_filters import GroupFilter, GroupFilterEntry, load_filter
from envsdk.algorithms.units import as_roles
from envsdk.contracts.failures import RolloutStalled, describe_error
from envsdk.contracts.trajectory import Trajectory


class GroupFilters:
    """The filters of one run, in the order of the configuration. Owner: the scheduler."""

    def __init__(self, filters: Sequence[str | GroupFilterEntry], *, limit: int) -> None:
        self._entries = [GroupFilterEntry(name=each) if isinstance(each, str) else each for each in filters]
        self._filters: list[GroupFilter] = [load_filter(entry) for entry in self._entries]
        self._limit = limit
        self._dropped: Counter[str] = Counter()
        self._num_in_a_row = 0
        self._last_reason = ""

    def judge(self, group: Sequence[Trajectory], *, is_awaited: bool) -> str | None:
        """Why the group is dropped, as `FILTER: reason`; None keeps it.

        `is_awaited` is False when a batch is ready without this group. The run then waits for the trainer,
        and a dropped group does not count towards the limit. RolloutStalled at the limit, or when a filter
        raises or returns neither text nor None.
        """
        for entry, function in zip(self._entries, self._filters, strict=True):
            reason = _judged(entry.name, function, group) if entry.judges(group) else None
            if reason is None:
                continue
            name = entry.label
            self._dropped[name] += 1
            self._num_in_a_row += is_awaited
            self._last_reason = f"{name}: {reason}"
            if self._num_in_a_row >= self._limit:
                raise RolloutStalled(self._exhausted())
            return self._last_reason
        return None

    def delivered(self) -> dict[str, int]:
        """A batch was delivered. Returns how many groups each filter dropped since the last one."""
        dropped, self._dropped, self._num_in_a_row = self._dropped, Counter(), 0
        return {entry.label: dropped[entry.label] for entry in self._entries}

    def _exhausted(self) -> str:
        counted = ", ".join(f"{count} by {name}" for name, count in self._dropped.most_common())
        return (
            f"no batch could be delivered while group_filters dropped {self._num_in_a_row} groups in a row "
            f"({counted}; the last one because {self._last_reason!r}). The limit is max_filtered_groups "
            f"{self._limit}. Loosen the filter, give the policy tasks it sometimes solves, raise "
            "actor_infer.generating_args.temperature or train_env_manager.group_size, or raise the limit"
        )


def _judged(name: str, function: GroupFilter, group: Sequence[Trajectory]) -> str | None:
    """Each role of the policy is asked about: the group goes where all are to go."""
    reasons = [_ask(name, function, lived) for lived in as_roles(group)]
    return reasons[0] if all(reasons) else None


def _ask(name: str, function: GroupFilter, group: Sequence[Trajectory]) -> str | None:
    try:
        reason = function(group)
    except Exception as error:
        raise RolloutStalled(f"group filter {name!r} raised {describe_error(error)}") from error
    if reason is None or (isinstance(reason, str) and reason):
        return reason
    raise RolloutStalled(
        f"group filter {name!r} returned {reason!r}; it must return a reason to drop the group, as text, "
        "or None to keep it"
    )
