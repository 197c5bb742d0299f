"""What the fleet's core tells its shell, and what it remembers."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from envsdk.rewards.sandbox.settings import FleetLimits, HostSettings

FULL_S = 2.0
"""A host that says it is full is asked again after so long."""
PATIENCE_S = 10.0
"""A user is told of a request that waits longer."""
_MAX_DOUBLINGS = 32


@dataclass(frozen=True, slots=True)
class Start:
    """Start this sandbox; `started`, `failed` or `unfit` follows."""

    sandbox: int
    host: str
    kind: Hashable


@dataclass(frozen=True, slots=True)
class End:
    """Close this sandbox, or cancel its start and close what it may have left; `ended` follows."""

    sandbox: int


@dataclass(frozen=True, slots=True)
class Lease:
    """Hand this sandbox to the caller that waits."""

    request: int
    sandbox: int
    was_warm: bool
    """It was started some time ago: it may be gone by now."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Tell the caller that waits why there is no sandbox."""

    request: int
    why: str
    is_unfit: bool = False
    """No host takes such an image: the caller is at fault."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Tell the holder of this sandbox that it is gone; it still gives it back."""

    sandbox: int
    why: str


@dataclass(frozen=True, slots=True)
class Release:
    """Nothing of this drained host is left: let go of it."""

    host: str


@dataclass(frozen=True, slots=True)
class News:
    """A line for the user's log."""

    text: str


Command = Start | End | Lease | Refuse | Lost | Release | News


class SandboxState(StrEnum):
    STARTING = "starting"
    WARM = "warm"
    LEASED = "leased"
    LOST = "lost"
    """Leased, and its holder has been told that it is gone."""
    ENDING = "ending"


UP = frozenset({SandboxState.WARM, SandboxState.LEASED})


@dataclass(slots=True, eq=False)
class Host:
    """A host and how it has behaved."""

    config: HostSettings
    num_held: int = 0
    """Sandboxes in any state; one that ends holds its place until it is gone."""
    num_starting: int = 0
    """Those that start, or were given up while they did and have not ended."""
    full_until_s: float = -math.inf
    """It has said that it has no place."""
    is_draining: bool = False
    failures: int = 0
    """In a row."""
    last_failed: int = -1
    """Only a sandbox started after this one shows that the host works again."""
    failed_at_s: float = -math.inf
    problem: str = ""
    """Its last one."""
    heard_at_s: float = 0.0
    quarantined_until_s: float | None = None
    """Set until a sandbox starts there again; once it is over, the host is doubted."""
    num_quarantines: int = 0
    """In a row."""

    @property
    def name(self) -> str:
        return self.config.name

    def has_room(self, now_s: float) -> bool:
        at_once = 1 if self.is_doubted else self.config.starts_at_once
        is_below = self.num_held < self.config.places and self.num_starting < at_once
        return is_below and now_s >= self.full_until_s

    @property
    def is_doubted(self) -> bool:
        """It was quarantined, and no sandbox has started on it since."""
        return self.quarantined_until_s is not None

    def is_open(self, now_s: float) -> bool:
        return not self.is_draining and now_s >= (self.quarantined_until_s or 0.0)

    def worked(self, sandbox: int, now_s: float) -> None:
        self.heard_at_s = now_s
        if sandbox > self.last_failed and not self.is_doubted:
            self.failures = self.num_quarantines = 0

    def started(self) -> Iterator[News]:
        """A sandbox has started; until something works there, one failure closes a host that was doubted."""
        if self.is_doubted:
            self.quarantined_until_s = None
            yield News(f"sandbox host {self.name} starts sandboxes again")

    def failed(self, sandbox: int, why: str, now_s: float, config: FleetLimits) -> list[News]:
        """Something went wrong there."""
        self.failures += 1
        self.last_failed = max(self.last_failed, sandbox)
        self.failed_at_s, self.problem = now_s, why
        is_enough = now_s >= (self.quarantined_until_s or 0.0) and self.failures >= config.max_failures
        return [self.quarantine(now_s, config)] if is_enough else []

    def quarantine(self, now_s: float, config: FleetLimits) -> News:
        """Until its back-off is over, which doubles with each quarantine in a row."""
        doubled = config.first_backoff_s * 2.0 ** min(self.num_quarantines, _MAX_DOUBLINGS)
        backoff_s = min(doubled, config.max_backoff_s)
        self.num_quarantines += 1
        self.quarantined_until_s, self.failures = now_s + backoff_s, config.max_failures - 1
        return News(f"sandbox host {self.name} is left out for {backoff_s:g} s: {self.problem}")


@dataclass(slots=True, eq=False)
class Kind:
    """Sandboxes that can stand in for each other."""

    key: Hashable
    waiting: dict[int, float] = field(default_factory=dict)
    """Requests in their order, and when their budgets are over."""
    has_said: bool = False
    """Whether a user was told that they wait; until all are answered."""
    warm: deque[Sandbox] = field(default_factory=deque)
    num_starting: int = 0
    num_sandboxes: int = 0
    unfit: dict[str, str] = field(default_factory=dict)
    """Hosts that cannot start it, and why."""
    start_s: float = 0.0
    """How long a start takes, on average."""
    asked_at_s: float = 0.0
    _asked: float = 0.0
    """Requests, each counted less the longer ago it came."""

    def ask(self, request: int, until_s: float, now_s: float, demand_s: float) -> None:
        self.has_said = self.has_said and bool(self.waiting)
        self.waiting[request] = until_s
        self._asked = 1.0 + self._asked * math.exp((self.asked_at_s - now_s) / demand_s)
        self.asked_at_s = now_s

    def wanted(self, now_s: float, demand_s: float) -> float:
        """Requests to be expected while a sandbox starts."""
        return self.start_s * self._asked / demand_s * math.exp((self.asked_at_s - now_s) / demand_s)

    def took(self, start_s: float) -> None:
        self.start_s = start_s if not self.start_s else 0.8 * self.start_s + 0.2 * start_s


@dataclass(slots=True, eq=False)
class Sandbox:
    number: int
    host: Host
    kind: Kind
    state: SandboxState
    since_s: float
    """When it came into its state."""
    is_start: bool = False
    """Its host may still be busy with its start."""
