"""The log of a ledger's events: enough to make the same decisions again. Pure, but for `LedgerLog`.

    recorded(ledger, log) -> the shell calls the ledger as before -> log.flush() with each batch

    events/ledger.log:  section frame | event frame | ... | section frame (the next process) | ...

A section begins with the configuration and the state that the ledger was made from. An event is a method of
the ledger with its arguments, and a checksum of the commands that it returned. Times are whole milliseconds:
the recorder rounds the clock down before the ledger sees it, so that a replay sees the same.
"""

from __future__ import annotations

import json
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter

from envsdk.base.store.appendfile import AppendFile
from envsdk.contracts.failures import StorageError
from envsdk.managers.ledger import RolloutLedger
from envsdk.managers.ledger_types import (
    Batch,
    Cancel,
    CancelReason,
    Command,
    Discard,
    Grant,
    GroupDropped,
    GroupReady,
    LeaseEnd,
    LedgerConfig,
    LedgerState,
    Stalled,
)

LOG_NAME = "events/ledger.log"
LOG_FORMAT = 4
CHECK_BITS = 0xF
_HEADER = struct.Struct("<4sIII")
"""Header of a frame: magic, bytes stored, bytes of text, checksum of what is stored."""
_MAGIC = b"evl1"
_CODEC = "zstd"
_CONFIG = TypeAdapter(LedgerConfig)
_REASONS = list(CancelReason)
_ENDS = list(LeaseEnd)

EVENTS = (
    *("add_slots", "remove_slots", "slots_idle", "finished", "reject_group", "publish", "tick", "set_depth"),
    *("suspend", "resume", "take", "retire_slots", "hand_over", "asked", "wrote"),
)
"""Methods of the ledger by their number in a log: append only. `asked` and `wrote` are marks for readers: a
batch was asked for, and written as that of a step."""
_MARKS = ("asked", "wrote")
_OF_SLOTS = ("remove_slots", "slots_idle", "retire_slots", "hand_over")


@dataclass(frozen=True, slots=True)
class Event:
    """One call of the ledger, or a mark."""

    name: str
    at_ms: int
    """Time from the section's start."""
    args: Mapping[str, Any]
    check: int
    """`CHECK_BITS` of the checksum after it, xor those before; 0 for a mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What one process of a run decided."""

    config: LedgerConfig
    state: LedgerState | None
    began_unix_s: float
    began_ms: int
    """On the shell's clock."""
    events: Sequence[Event]


def checksum(commands: Sequence[Command], before: int, batch: Batch | None = None) -> int:
    """Checksum of all decisions so far; `before` is that of the event before, `batch` what it delivered.

    A log keeps 4 bits for each event. A difference stays in all that follow, so none is missed for long.
    """
    if batch is not None:
        before = zlib.crc32(repr(batch.lease_ids).encode(), before)
    if not commands:
        return before
    return zlib.crc32(repr([_signature(command) for command in commands]).encode(), before)


def _signature(command: Command) -> tuple[object, ...]:
    match command:
        case Grant(lease=lease, slot_id=slot_id):
            return ("g", lease.lease_id, lease.group_id, lease.member, slot_id)
        case Cancel(lease_id=lease_id, reason=reason):
            return ("c", lease_id, _REASONS.index(reason))
        case Discard(lease_id=lease_id, end=end, reason=reason):
            return ("d", lease_id, _ENDS.index(end), _REASONS.index(reason))
        case GroupReady(group_id=group_id, lease_ids=lease_ids):
            return ("r", group_id, *lease_ids)
        case GroupDropped(group_id=group_id, reason=reason):
            return ("x", group_id, _REASONS.index(reason))
        case Stalled():
            return ("s",)


class LedgerLog:
    """Writes the log of one process. Owner: the scheduler."""

    def __init__(self, folder: Path, config: LedgerConfig, state: LedgerState | None) -> None:
        self._file = AppendFile(folder / LOG_NAME)
        whole = self._file.read()
        self._file.truncate(sum(_HEADER.size + len(stored) for stored, _ in _frames(whole)))
        self._began_ms = int(time.monotonic() * 1000)
        self._events: list[Event] = []
        """Since the last `flush`."""
        self._last_ms = self._checksum = 0
        section = {
            "format": LOG_FORMAT,
            "began_unix_s": time.time(),
            "began_ms": self._began_ms,
            "config": asdict(config) | {"tag_weights": dict(config.tag_weights)},
            "state": None if state is None else state.to_dict(),
        }
        self._file.append(_frame(section))

    def at(self, now: float) -> int:
        """Milliseconds from the section's start."""
        return max(self._last_ms, int(now * 1000) - self._began_ms)

    def clock(self, at_ms: int) -> float:
        """What the ledger is told: seconds on the shell's clock."""
        return (self._began_ms + at_ms) / 1000

    def add(
        self,
        name: str,
        at_ms: int,
        args: Mapping[str, Any],
        commands: Sequence[Command],
        batch: Batch | None = None,
    ) -> None:
        """Remember one event until the next `flush`."""
        self._last_ms, check = at_ms, 0
        if name not in _MARKS:
            after = checksum(commands, self._checksum, batch)
            check = (after ^ self._checksum) & CHECK_BITS
            self._checksum = after
        self._events.append(Event(name, at_ms, args, check))

    def mark(self, name: str, now: float, step: int) -> None:
        """A mark for readers: `asked` or `wrote`."""
        self.add(name, self.at(now), {"step": step}, ())

    def flush(self) -> None:
        """Write what was remembered. Raises StorageError."""
        events, self._events = self._events, []
        if events:
            rows = [(EVENTS.index(each.name), each.at_ms, each.args, each.check) for each in events]
            self._file.append(_frame(rows))


def recorded(ledger: RolloutLedger, log: LedgerLog) -> RolloutLedger:
    """The same ledger, whose events are remembered in the log."""
    for name in EVENTS:
        if name not in _MARKS:
            setattr(ledger, name, _recording(name, getattr(ledger, name), log, ledger.next_deadline))
    return ledger


def _recording(
    name: str, method: Callable[..., Any], log: LedgerLog, next_deadline: Callable[[], float | None]
) -> Callable[..., Any]:
    argument = {
        **dict.fromkeys(_OF_SLOTS, "slot_ids"),
        **{"add_slots": "slots", "finished": "lease_id", "reject_group": "group_id", "publish": "version"},
        **{"set_depth": "alpha", "take": "num_trajectories"},
    }.get(name)

    def call(*positional: Any, **named: Any) -> Any:
        names = [argument, "now"] if argument else ["now"]
        args = dict(zip(names, positional, strict=False)) | named
        at_ms = log.at(args.pop("now"))
        if argument == "slot_ids":
            args["slot_ids"] = list(args["slot_ids"])
        if name == "finished":
            args.setdefault("failed", False)
        due = next_deadline() if name == "tick" else None
        result = method(**args, now=log.clock(at_ms))
        if name == "tick" and not result and next_deadline() == due:
            pass  # nothing was late, and nothing has begun to wait
        elif name != "take":
            log.add(name, at_ms, args, result)
        elif result != (None, []):
            # A `take` that finds too few groups changes nothing.
            log.add(name, at_ms, args, result[1], result[0])
        return result

    return call


def read_log(run: Path) -> list[Section]:
    """Every section of a run's log. A torn last frame is left out: its batch was never handed out.

    StorageError when there is no log, or it is damaged.
    """
    path = run / LOG_NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise StorageError(
            f"{run} has no {LOG_NAME}: the log is written by training runs that play by themselves "
            "(mode: both), since they record the decisions of their ledger"
        ) from None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error}") from error
    try:
        return _sections(data, path)
    except (LookupError, TypeError, ValueError) as error:
        raise StorageError(f"{path} was not written by this version of envsdk: {error!r}") from error


def _sections(data: bytes, path: Path) -> list[Section]:
    sections: list[Section] = []
    for _, text in _frames(data, path):
        content = json.loads(text)
        if "config" in content:
            if content["format"] != LOG_FORMAT:
                raise StorageError(
                    f"{path} has format {content['format']}, this version reads {LOG_FORMAT}: "
                    "replay it with the version that wrote it"
                )
            state = content["state"]
            events: list[Event] = []
            sections.append(
                Section(
                    config=_CONFIG.validate_python(content["config"]),
                    state=None if state is None else LedgerState.from_dict(state),
                    began_unix_s=content["began_unix_s"],
                    began_ms=content["began_ms"],
                    events=events,
                )
            )
        else:
            events += [Event(EVENTS[number], *rest) for number, *rest in content]
    return sections


def _frame(content: Mapping[str, Any] | Sequence[Any]) -> bytes:
    """JSON, compressed: some seven bytes for each trajectory."""
    text = json.dumps(content, separators=(",", ":")).encode()
    stored: bytes = pa.Codec(_CODEC, compression_level=9).compress(text, asbytes=True)
    return _HEADER.pack(_MAGIC, len(stored), len(text), zlib.crc32(stored)) + stored


def _frames(data: bytes, path: Path | None = None) -> Iterator[tuple[bytes, bytes]]:
    """Whole frames: as stored, and their text. With `path`, StorageError for damage before the end."""
    at = 0
    while at + _HEADER.size <= len(data):
        magic, length, size, check = _HEADER.unpack_from(data, at)
        stored = data[at + _HEADER.size : at + _HEADER.size + length]
        if magic == _MAGIC and len(stored) < length:
            return
        if magic != _MAGIC or zlib.crc32(stored) != check:
            if path is not None:
                raise StorageError(f"{path} is damaged at byte {at}: what comes after is not read")
            return
        yield stored, pa.decompress(stored, decompressed_size=size, codec=_CODEC, asbytes=True)
        at += _HEADER.size + length
