"""Shell: a ledger with its clock and the slots on which it plays.

event -> ledger -> execute: Grant and Cancel go to the workers, all other commands to the owner
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from envsdk.algorithms.task_samplers.prefixes import Prefix
from envsdk.managers.env_worker import Play, Stop
from envsdk.managers.episode import EpisodeOrder
from envsdk.managers.ledger import Ledger
from envsdk.managers.ledger_types import Cancel, CancelReason, Command, Grant, Lease
from envsdk.managers.slot_activity import AwakeClock, SlotActivity
from envsdk.managers.worker_group import WorkerGroup

AnyLedger = TypeVar("AnyLedger", bound=Ledger)

TICK_S = 0.5
"""Between two looks at the deadlines."""


class LedgerShell(Generic[AnyLedger]):
    """Owner: the scheduler.

    shell.execute(shell.ledger.publish(3, shell.now()))
    """

    def __init__(
        self,
        ledger: AnyLedger,
        workers: WorkerGroup,
        decided: Callable[[Command], None],
        executed: Callable[[], None],
        *,
        run_seed: int,
        stop_grace_s: float,
    ) -> None:
        """`decided` is called with each command that concerns results, `executed` after every event.

        The ledger begins suspended.
        """
        self.ledger = ledger
        self.slots = SlotActivity()
        self._workers = workers
        self._decided = decided
        self._executed = executed
        self._run_seed = run_seed
        self._stop_grace_s = stop_grace_s
        self.prefix_of: Callable[[Lease], Prefix | None] = lambda lease: None
        """What the episode of a lease replays."""
        self._clock = AwakeClock(time.monotonic(), longest_s=2 * TICK_S)
        ledger.suspend(self.now())

    def now(self) -> float:
        """Seconds for the ledger."""
        return self._clock.at(time.monotonic())

    def execute(self, commands: Iterable[Command]) -> None:
        """Carry out what the ledger decided."""
        for command in commands:
            if isinstance(command, Grant):
                order = self._order(command.lease)
                self.slots.play(command.slot_id, order, self.now())
                self._workers.send(command.slot_id, Play(command.slot_id, order))
            elif isinstance(command, Cancel):
                self.stop(command.slot_id, command.lease_id, command.reason)
            else:
                self._decided(command)
        self._executed()

    def stop(self, slot_id: str, lease_id: int, reason: CancelReason) -> None:
        """Tell the slot's worker to stop this episode."""
        self.slots.stop(slot_id, self.now() + self._stop_grace_s, reason)
        self._workers.send(slot_id, Stop(slot_id, lease_id))

    def _order(self, lease: Lease) -> EpisodeOrder:
        task, seed = lease.task, self._run_seed
        return EpisodeOrder(
            lease_id=lease.lease_id,
            group_id=lease.group_id,
            member=lease.member,
            task=task,
            seed=task.seed(seed),
            policy_seed=task.policy_seed(
                seed,
                member=lease.member,
                attempt=lease.attempt,
                # A task that is played again is to be played otherwise.
                visit=0 if self.ledger.config.task_sampler is None else lease.group_id,
            ),
            prefix=self.prefix_of(lease),
        )
