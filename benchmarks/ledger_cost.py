"""What the ledger itself costs: CPU time per lease, from the grant to the delivery.

    python benchmarks/ledger_cost.py

Whole pipelines (grant, finish, take, publish) at several sizes: the cost per lease must not grow with
the number of slots. A wasteful run, in which one episode in four fails, stands beside the plain one.
"""

from __future__ import annotations

import time
from collections import deque

from envsdk.managers.ledger import RolloutLedger
from envsdk.managers.ledger_types import Command, Grant, Lease, LedgerConfig


def microseconds_per_lease(num_slots: int, *, fail_every: int | None, num_leases: int = 30_000) -> float:
    ledger = RolloutLedger(
        LedgerConfig(batch_size=num_slots, group_size=8, alpha=1, tag_weights={"a": 1, "b": 1})
    )
    playing: deque[Lease] = deque()

    def carry_out(commands: list[Command]) -> None:
        playing.extend(command.lease for command in commands if isinstance(command, Grant))

    start_s = time.process_time()
    carry_out(ledger.add_slots({f"slot{i}": "ab"[i % 2] for i in range(num_slots)}, 0.0))
    num_finished = 0
    while num_finished < num_leases:
        lease = playing.popleft()
        num_finished += 1
        failed = fail_every is not None and num_finished % fail_every == 0
        carry_out(ledger.finished(lease.lease_id, 0.0, oldest_version=lease.version, failed=failed))
        batch, commands = ledger.take(num_slots, 0.0)
        carry_out(commands)
        if batch is not None:
            carry_out(ledger.publish(ledger.version + 1, 0.0))
    return (time.process_time() - start_s) / num_finished * 1e6


def main() -> None:
    print("slots  us per lease  us per lease, 1 in 4 fails")
    for num_slots in (64, 1024, 8192):
        plain = min(microseconds_per_lease(num_slots, fail_every=None) for _ in range(3))
        failing = min(microseconds_per_lease(num_slots, fail_every=4) for _ in range(3))
        print(f"{num_slots:5d} {plain:13.1f} {failing:27.1f}")


if __name__ == "__main__":
    main()
