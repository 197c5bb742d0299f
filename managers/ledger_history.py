"""What the ledger of a run decided, made again from its log, and why. Pure.

history = replay(read_log(run))
history.difference            the first event at which this version of the ledger decides differently
history.why_group(17)         the life of a group, in sentences
history.why_step(40)          what the trainer waited for before that step
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from envsdk.managers.ledger import RolloutLedger
from envsdk.managers.ledger_log import CHECK_BITS, Event, Section, checksum
from envsdk.managers.ledger_types import (
    Batch,
    Cancel,
    CancelReason,
    Command,
    Discard,
    Grant,
    GroupReady,
    Lease,
    LedgerConfig,
    LedgerState,
    Stalled,
)

MakeLedger = Callable[[LedgerConfig, LedgerState | None], RolloutLedger]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first decision that is another one than that of the run."""

    section: int
    """Process of the run, from 0."""
    number: int
    """Event of that process, from 0."""
    at_s: float
    event: str
    decided: str
    """The decision of this version of the ledger."""

    def __str__(self) -> str:
        return (
            f"event {self.number} of process {self.section + 1}, {self.at_s:.3f} s after it began: "
            f"{self.event}. This version decides otherwise than the run did: {self.decided}"
        )


@dataclass(slots=True, kw_only=True)
class GroupLife:
    """What became of one group."""

    group_id: int
    tag: str
    index: int
    moments: list[tuple[float, str]] = field(default_factory=list)
    """Seconds from the run's start, and what happened."""
    ready_s: float | None = None
    """When it was last complete."""
    slowest: Played | None = None
    """The episode that completed it."""
    end: str | None = None
    """`delivered with step N`, or why it was dropped; None while it is open."""

    @property
    def name(self) -> str:
        """As a reader knows it."""
        return f"group {self.group_id} ({self.tag} {self.index})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One episode that ended."""

    lease: Lease
    slot_id: str
    began_s: float
    ended_s: float


@dataclass(slots=True, kw_only=True)
class Wait:
    """The trainer's wait for the batch of one step."""

    step: int
    asked_s: float
    taken_s: float = 0.0
    num_ready: int
    """Groups that were ready when the batch was asked for."""
    num_needed: int = 0
    late: Sequence[int] = ()
    """Groups of the batch that were completed after that, in the order of completion."""
    num_playing: int
    """Slots that played when the batch was asked for."""
    num_slots: int
    lost_slots: int = 0
    """Slots lost during the wait."""
    thrown_away: Mapping[str, int] = field(default_factory=dict)
    """Leases that ended without use since the batch before, by reason."""
    suspended_s: float = 0.0


@dataclass(slots=True)
class History:
    """Everything that was decided."""

    num_events: int = 0
    num_sections: int = 0
    difference: Difference | None = None
    groups: dict[int, GroupLife] = field(default_factory=dict)
    waits: dict[int, Wait] = field(default_factory=dict)
    """Waits by step."""
    batches: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Groups of each step's batch, in order."""

    def why_group(self, group_id: int) -> list[str]:
        """The life of a group in sentences; ValueError when the log knows no such group."""
        life = self.groups.get(group_id)
        if life is None:
            known = f"{min(self.groups)} to {max(self.groups)}" if self.groups else "none"
            raise ValueError(f"the log has no group {group_id}; it has {known}")
        first = f"{life.name} was {life.end or 'still open when the log ended'}."
        return [first, *(f"{at_s:9.3f} s  {what}" for at_s, what in life.moments)]

    def why_step(self, step: int) -> list[str]:
        """What the trainer waited for before this step; ValueError when the log has no batch of it."""
        wait = self.waits.get(step)
        if wait is None:
            known = f"{min(self.waits)} to {max(self.waits)}" if self.waits else "none"
            raise ValueError(f"the log has no batch of step {step}; it has {known}")
        waited_s = wait.taken_s - wait.asked_s
        if not wait.late:
            return [
                f"Step {step} did not wait: {wait.num_ready} groups were ready, and {wait.num_needed} needed."
            ]
        said = [
            f"Step {step} waited {waited_s:.1f} s: {wait.num_ready} of {wait.num_needed} groups were ready "
            f"when it asked, and {wait.num_playing} of {wait.num_slots} environments were playing."
        ]
        last = self.groups[wait.late[-1]]
        said.append(_last(last, wait))
        if wait.num_playing < wait.num_slots // 2:
            said.append(
                "Most environments had nothing to play: a greater async_generation_ratio would let them "
                "begin earlier."
            )
        if wait.suspended_s > 0.05 * waited_s:
            said.append(f"Rollouts stood still for {wait.suspended_s:.1f} s of it, as in an evaluation.")
        if wait.lost_slots:
            said.append(f"{wait.lost_slots} environments were lost with their workers meanwhile.")
        if wait.thrown_away:
            reasons = ", ".join(f"{count} {reason}" for reason, count in wait.thrown_away.items())
            said.append(f"Episodes without use since the batch before: {reasons}.")
        return said


def _last(group: GroupLife, wait: Wait) -> str:
    played = group.slowest
    at = f"The last group that it needed was {group.name}"
    if played is None:
        return f"{at}."
    lasted_s = played.ended_s - played.began_s
    before = wait.asked_s - played.began_s
    began = f"{before:.1f} s before" if before >= 0 else f"{-before:.1f} s after"
    again = f", its attempt {played.lease.attempt + 1}" if played.lease.attempt else ""
    return (
        f"{at}: member {played.lease.member} played for {lasted_s:.1f} s on {played.slot_id}, "
        f"from {began} the batch was asked for{again}."
    )


def replay(sections: Iterable[Section], make: MakeLedger = RolloutLedger) -> History:
    """Feed the events to a ledger and compare what it decides. Ends at the first difference."""
    history = History()
    origin_s: float | None = None
    for number, section in enumerate(sections):
        if origin_s is None:
            origin_s = section.began_unix_s
        history.num_sections += 1
        history.difference = _Replay(history, section, number, section.began_unix_s - origin_s, make).run()
        if history.difference is not None:
            break
    return history


class _Replay:
    """One section."""

    def __init__(
        self, history: History, section: Section, number: int, offset_s: float, make: MakeLedger
    ) -> None:
        self._history = history
        self._section = section
        self._number = number
        self._offset_s = offset_s
        self._ledger = make(section.config, section.state)
        self._checksum = 0
        self._running: dict[int, tuple[Lease, str, float]] = {}
        """Leases, each with its slot and its beginning."""
        self._leases: dict[int, Lease] = {}
        """All that were granted."""
        self._played: dict[int, Played] = {}
        self._open: set[int] = set()
        """Groups that a slot has played, and that are neither delivered nor dropped."""
        self._slots: set[str] = set()
        self._thrown_away: Counter[str] = Counter()
        self._wait: Wait | None = None
        """For the batch that was asked for last."""
        self._suspended_at: float | None = None
        self._taken: tuple[Batch, float] | None = None
        """The last batch and when it was taken, until it is written."""
        for group in () if section.state is None else section.state.unfinished:
            life = history.groups.setdefault(
                group.group_id, GroupLife(group_id=group.group_id, tag=group.tag, index=group.index)
            )
            life.moments.append((offset_s, "is played again: the process before ended"))
            life.end = None
            self._open.add(group.group_id)

    def run(self) -> Difference | None:
        for number, event in enumerate(self._section.events):
            self._history.num_events += 1
            at_s = event.at_ms / 1000
            if event.name in ("asked", "wrote"):
                self._mark(event, at_s + self._offset_s)
                continue
            now = (self._section.began_ms + event.at_ms) / 1000
            self._before(event, at_s + self._offset_s)
            try:
                result = getattr(self._ledger, event.name)(**event.args, now=now)
            except Exception as error:  # noqa: BLE001 - boundary: the ledger under test
                return self._difference(event, number, f"it raises {error!r}")
            batch: Batch | None
            commands: list[Command]
            batch, commands = result if event.name == "take" else (None, result)
            after = checksum(commands, self._checksum, batch)
            is_same = (after ^ self._checksum) & CHECK_BITS == event.check
            self._checksum = after
            if not is_same:
                return self._difference(event, number, _described(batch, commands))
            if batch is not None:
                self._taken = batch, at_s + self._offset_s
            for command in commands:
                self._follow(command, at_s + self._offset_s)
            self._end_groups(batch, commands, at_s + self._offset_s)
        return None

    def _difference(self, event: Event, number: int, decided: str) -> Difference:
        return Difference(
            section=self._number,
            number=number,
            at_s=event.at_ms / 1000,
            event=f"{event.name}({', '.join(f'{k}={v!r}' for k, v in event.args.items())})",
            decided=decided,
        )

    def _before(self, event: Event, at_s: float) -> None:
        args = event.args
        if event.name == "add_slots":
            self._slots |= set(args["slots"])
        elif event.name in ("remove_slots", "retire_slots"):
            lost = self._slots & set(args["slot_ids"])
            self._slots -= lost
            if event.name == "remove_slots":
                if self._wait is not None:
                    self._wait.lost_slots += len(lost)
                for lease_id, (lease, slot_id, _) in list(self._running.items()):
                    if slot_id in lost:
                        del self._running[lease_id]
                        self._moment(lease.group_id, at_s, f"member {lease.member} was lost with its worker")
        elif event.name == "finished" and (found := self._running.pop(args["lease_id"], None)) is not None:
            lease, slot_id, began_s = found
            self._played[lease.lease_id] = Played(lease=lease, slot_id=slot_id, began_s=began_s, ended_s=at_s)
            how = "failed" if args["failed"] else "ended"
            oldest = args["oldest_version"]
            tokens = "" if oldest is None else f", its oldest token of version {oldest}"
            self._moment(
                lease.group_id, at_s, f"member {lease.member} {how} after {at_s - began_s:.1f} s{tokens}"
            )
        elif event.name == "suspend" and self._suspended_at is None:
            self._suspended_at = at_s
        elif event.name == "resume" and self._suspended_at is not None:
            if self._wait is not None:
                self._wait.suspended_s += at_s - self._suspended_at
            self._suspended_at = None

    def _follow(self, command: Command, at_s: float) -> None:
        match command:
            case Grant(lease=lease, slot_id=slot_id):
                self._running[lease.lease_id] = (lease, slot_id, at_s)
                self._leases[lease.lease_id] = lease
                self._open.add(lease.group_id)
                if lease.group_id not in self._history.groups:
                    self._history.groups[lease.group_id] = GroupLife(
                        group_id=lease.group_id, tag=lease.task.tag, index=lease.task.index
                    )
                again = f", attempt {lease.attempt + 1}" if lease.attempt else ""
                self._moment(
                    lease.group_id,
                    at_s,
                    f"member {lease.member} began on {slot_id}, version {lease.version}{again}",
                )
            case Cancel(lease_id=lease_id, reason=reason):
                self._thrown_away[str(reason)] += 1
                if (found := self._running.pop(lease_id, None)) is not None:
                    lease = found[0]
                    self._moment(lease.group_id, at_s, f"member {lease.member} was stopped: {reason}")
            case Discard(reason=CancelReason.LATE):
                pass  # its end was counted when it was stopped
            case Discard(lease_id=lease_id, end=end, reason=reason):
                if (lost := self._leases.get(lease_id)) is not None:
                    played = self._played.pop(lease_id, None)
                    if played is not None:  # else it was counted when it was stopped
                        self._thrown_away[str(reason)] += 1
                    self._moment(
                        lost.group_id, at_s, f"member {lost.member} was thrown away: {end}, {reason}"
                    )
            case GroupReady(group_id=group_id, lease_ids=lease_ids):
                life = self._history.groups[group_id]
                life.ready_s = at_s
                played_by = [self._played[lease] for lease in lease_ids if lease in self._played]
                life.slowest = max(played_by, key=lambda played: played.ended_s, default=None)
                life.moments.append((at_s, "was complete"))
            case Stalled():
                pass

    def _end_groups(self, batch: Batch | None, commands: Sequence[Command], at_s: float) -> None:
        """Say of groups that the ledger no longer has, and did not deliver, that they were dropped."""
        reasons = {
            self._leases[command.lease_id].group_id: command.reason
            for command in commands
            if isinstance(command, Cancel | Discard) and command.lease_id in self._leases
        }
        if batch is not None:
            self._open -= {group.group_id for group in batch.groups}
        # A group without an episode is dropped without a command, and only with a batch.
        for group_id in sorted(self._open if batch is not None else self._open & reasons.keys()):
            if not self._ledger.is_open(group_id):
                self._open.remove(group_id)
                life = self._history.groups[group_id]
                life.end = f"dropped: {reasons.get(group_id, CancelReason.SURPLUS)}"
                life.moments.append((at_s, life.end))

    def _moment(self, group_id: int, at_s: float, what: str) -> None:
        life = self._history.groups.get(group_id)
        if life is not None:
            life.moments.append((at_s, what))

    def _mark(self, event: Event, at_s: float) -> None:
        step = event.args["step"]
        if event.name == "asked":
            self._wait = Wait(
                step=step,
                asked_s=at_s,
                num_ready=self._ledger.num_ready_groups,
                num_playing=len(self._running),
                num_slots=len(self._slots),
            )
            return
        if self._taken is None or self._wait is None:
            return
        (batch, taken_s), wait = self._taken, self._wait
        groups = tuple(group.group_id for group in batch.groups)
        self._history.batches[step] = groups
        lives = [self._history.groups[group] for group in groups]
        late = [(life.ready_s, life.group_id) for life in lives if (life.ready_s or 0.0) > wait.asked_s]
        for life in lives:
            life.end = f"delivered with step {step}"
            life.moments.append((taken_s, life.end))
        wait.taken_s, wait.num_needed = taken_s, len(groups)
        wait.late = [group_id for _, group_id in sorted(late, key=itemgetter(0))]
        wait.thrown_away, self._thrown_away = self._thrown_away, Counter()
        self._history.waits[step] = wait
        self._taken = None


def _described(batch: Batch | None, commands: Sequence[Command]) -> str:
    counted = Counter(type(command).__name__ for command in commands)
    said = [] if batch is None else [f"a batch of groups {[group.group_id for group in batch.groups]}"]
    said += [f"{count} x {name}" for name, count in counted.items()]
    return ", ".join(said) or "nothing"
