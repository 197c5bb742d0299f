"""Short runs in which some promise of the ledger is at stake; each works on any ledger it is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ledger_model import CheckedLedger, LedgerFactory

from envsdk.managers.ledger import RolloutLedger
from envsdk.managers.ledger_types import LedgerConfig

DEADLINE_S = 100.0


def started(make: LedgerFactory = RolloutLedger, num_slots: int = 8, **changes: Any) -> CheckedLedger:
    """A ledger with batches of two groups of four and slots named `slot0`, `slot1` ... ."""
    settings: dict[str, Any] = {
        "batch_size": 8,
        "group_size": 4,
        "alpha": 0,
        "tag_weights": {"maze": 1},
        "episode_deadline_s": DEADLINE_S,
    }
    model = CheckedLedger(LedgerConfig(**{**settings, **changes}), make)
    model.add_slots({f"slot{i}": "maze" for i in range(num_slots)})
    return model


def finish_all(model: CheckedLedger, *, failed: bool = False) -> None:
    for lease_id in model.running():
        if lease_id in model.running():
            version = model.records[lease_id].lease.version
            model.finish(lease_id, oldest_version=version, failed=failed)


def _must_stall(model: CheckedLedger, throw_away: Callable[[], None]) -> None:
    limit = model.config.max_fruitless_batches * model.config.batch_size
    while not model.stalls and model.num_wasted < 2 * limit:
        before = model.num_wasted
        throw_away()
        model.promise(5, model.num_wasted > before, "nothing is played and nobody is told")
    model.promise(8, bool(model.stalls), "everything is thrown away and nobody is told")
    model.promise(8, model.num_wasted >= limit, "stalled before the limit")
    for _ in range(3):
        throw_away()
    model.promise(8, len(model.stalls) == 1, "told more than once")


def every_episode_fails(make: LedgerFactory) -> None:
    model = started(make)
    _must_stall(model, lambda: finish_all(model, failed=True))


def every_group_is_filtered(make: LedgerFactory) -> None:
    model = started(make)

    def throw_away() -> None:
        finish_all(model)
        for group_id in list(model.ready):
            del model.ready[group_id]
            model.reject(group_id)

    _must_stall(model, throw_away)


def every_episode_gets_too_old(make: LedgerFactory) -> None:
    model = started(make, alpha=1)

    def throw_away() -> None:
        model.publish(model.version + 2)
        model.slots_idle(list(model.slots))

    _must_stall(model, throw_away)


def every_worker_dies(make: LedgerFactory) -> None:
    model = started(make)
    _must_stall(model, lambda: model.add_slots(dict(model.slots)))


def every_environment_hangs_for_ever(make: LedgerFactory) -> None:
    model = started(make)
    for _ in range(3):
        model.pass_time(DEADLINE_S + 1)
        model.tick()
    model.promise(8, len(model.stalls) == 1, "all environments hang and nobody is told")


def a_tag_has_no_environments(make: LedgerFactory) -> None:
    model = started(make, tag_weights={"maze": 1, "garden": 1})
    for _ in range(3):
        finish_all(model)
        due = model.ledger.next_deadline()
        model.promise(8, due is not None or bool(model.stalls), "the ledger waits for nothing")
        model.pass_time(DEADLINE_S + 1)
        model.tick()
    model.promise(8, len(model.stalls) == 1, "a tag has no environments and nobody is told")


def a_member_gets_too_old_again_and_again(make: LedgerFactory) -> None:
    model = started(make, alpha=1, max_group_attempts=3)
    first = model.records[0].lease.group_id
    for _ in range(8):
        model.publish(model.version + 2)
        model.slots_idle(list(model.slots))
    running = {model.records[lease_id].lease.group_id for lease_id in model.running()}
    model.promise(8, first not in running, "a group is played for ever")


def one_environment_hangs_in_each_group_but_two(make: LedgerFactory) -> None:
    model = started(make, num_slots=32, alpha=3)
    by_group: dict[int, list[int]] = {}
    for lease_id in model.running():
        by_group.setdefault(model.records[lease_id].lease.group_id, []).append(lease_id)
    *hung, one, other = by_group.values()
    for members in hung:
        for lease_id in members[1:]:
            model.finish(lease_id, oldest_version=0)
    for lease_id in one + other:
        model.finish(lease_id, oldest_version=0)
    model.promise(5, model.take(8) is not None, "hung environments hold back two complete groups")


def a_synchronous_run_has_spare_groups(make: LedgerFactory) -> None:
    model = started(make, num_slots=16, num_groups_redundancy=1, group_size_redundancy=1)
    for _ in range(3):
        finish_all(model)
        model.promise(5, model.take(8) is not None, "spare groups hold the batch back")
        model.slots_idle(list(model.slots))
        model.publish(model.version + 1)


def an_engine_lags_behind_the_publications(make: LedgerFactory) -> None:
    model = started(make, alpha=1, num_slots=16)
    model.publish(2)
    model.slots_idle(list(model.slots))
    for lease_id in model.running():
        model.finish(lease_id, oldest_version=0)
    model.promise(3, model.take(8) is None, "a batch of tokens two versions old")


def validation_takes_longer_than_a_deadline(make: LedgerFactory) -> None:
    model = started(make)
    model.pass_time(DEADLINE_S / 2)
    model.suspend()
    model.pass_time(DEADLINE_S * 5)
    model.tick()
    model.resume()
    model.tick()
    model.promise(5, len(model.running()) == 8, "episodes ended while they could not go on")
    model.pass_time(DEADLINE_S / 2)
    model.tick()


SCENARIOS = [
    every_episode_fails,
    every_group_is_filtered,
    every_episode_gets_too_old,
    every_worker_dies,
    every_environment_hangs_for_ever,
    a_tag_has_no_environments,
    a_member_gets_too_old_again_and_again,
    one_environment_hangs_in_each_group_but_two,
    a_synchronous_run_has_spare_groups,
    an_engine_lags_behind_the_publications,
    validation_takes_longer_than_a_deadline,
]
