"""Each promise broken on purpose: the checker then finds it, in a scenario or in random events.

A mutation replaces one piece of the ledger's source. The table is also in docs/ledger.md.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from ledger_machine import LedgerMachine
from ledger_model import LedgerFactory, PromiseBroken
from ledger_scenarios import SCENARIOS

LEDGER = "envsdk.managers.ledger"
PARTS = "envsdk.managers.ledger_parts"
GROUPS = "envsdk.managers.ledger_groups"


@dataclass(frozen=True)
class Mutation:
    promise: int
    name: str
    old: str
    new: str
    module: str = LEDGER


MUTATIONS = [
    Mutation(
        1,
        "a failed episode that is leased again is counted a second time",
        "        elif member.status is Status.FAILED:\n            del",
        "        elif member.status is Status.FAILED:\n"
        "            self.ends[LeaseEnd.FAILED] += 1\n            del",
        module=GROUPS,
    ),
    Mutation(
        1,
        "the leases of a lost worker vanish without an end",
        "                self._vacate(member, LeaseEnd.CANCELLED, CancelReason.WORKER_LOST)\n",
        "                self._leave_running(member)\n",
        module=GROUPS,
    ),
    Mutation(
        1,
        "a slot is granted while its cancelled episode still runs",
        "                self.commands.append(self._cancel(member, reason))\n",
        "                self.commands.append(self._cancel(member, reason))\n"
        "                self.pool.free(member.lease_id)\n",
        module=GROUPS,
    ),
    Mutation(
        4,
        "a retired slot is granted again",
        "        if slot.is_retired:\n            del self._slots[slot_id]\n        else:\n"
        "            self._tags",
        "        if True:\n            self._tags",
        module=PARTS,
    ),
    Mutation(
        2,
        "the batch in training takes no room",
        "config.num_groups_redundancy - self.num_in_training\n",
        "config.num_groups_redundancy\n",
    ),
    Mutation(
        2,
        "the synchronous pipeline starts its spare groups during training",
        "            return 0\n        return self.capacity",
        "            pass\n        return self.capacity",
    ),
    Mutation(
        2,
        "the share of a batch that alpha adds is rounded up",
        "self.capacity + config.num_groups_redundancy",
        "config.groups_per_batch * math.ceil(1 + self.alpha) + config.num_groups_redundancy",
    ),
    Mutation(
        2,
        "groups are started at the depth of the start after the depth was reduced",
        "        self._tasks.set_depth(alpha)\n",
        "",
    ),
    Mutation(
        3,
        "no sweep when a batch is taken",
        "        groups.sweep(groups.ready.values(), self.version - config.staleness_bound)\n",
        "",
    ),
    Mutation(
        3,
        "the version at the grant stands for the tokens' versions",
        "version = member.version if member.status is Status.RUNNING else member.oldest_version",
        "version = None if member.status is Status.PENDING else member.version",
        module=GROUPS,
    ),
    Mutation(
        3,
        "the bound is off by one",
        "version is not None and version < min_version:",
        "version is not None and version < min_version - 1:",
        module=GROUPS,
    ),
    Mutation(
        4,
        "spare members that finished are delivered too",
        "                self._vacate(member, LeaseEnd.CANCELLED, CancelReason.SPARE)\n",
        "                if member.status in (Status.PENDING, Status.RUNNING):\n"
        "                    self._vacate(member, LeaseEnd.CANCELLED, CancelReason.SPARE)\n",
        module=GROUPS,
    ),
    Mutation(
        4,
        "a group with too few valid members is delivered",
        "group.num_outstanding == 0 and group.num_valid >= config.min_valid",
        "group.num_outstanding == 0",
        module=GROUPS,
    ),
    Mutation(
        5,
        "groups are delivered in the order they were started",
        "        if len(groups.ready) < num_groups:\n            return None, []\n",
        "        if any(i not in groups.ready for i in list(groups.open)[:num_groups]):\n"
        "            return None, []\n"
        "        if len(groups.ready) < num_groups:\n            return None, []\n",
    ),
    Mutation(
        5,
        "deadlines are not checked",
        "            if member.deadline > clock:\n",
        "            if True:\n",
        module=GROUPS,
    ),
    Mutation(
        5,
        "deadlines run during a suspension",
        "            self._suspended_s += now - self._suspended_at\n",
        "",
    ),
    Mutation(
        5,
        "a member to be played again is never queued",
        "        self.pool.queue(member, first=True)\n",
        "",
        module=GROUPS,
    ),
    Mutation(
        6,
        "the cursor goes back to a delivered task",
        "        batch = Batch(",
        "        for group in chosen:\n"
        "            self._tasks.sampler.cursors[group.task.tag] = group.task.index\n"
        "        batch = Batch(",
    ),
    Mutation(
        6,
        "a resumed run starts at the first task",
        "        tasks.sampler.restore(state.cursors, state.shares, state.tag_weights)\n",
        "",
    ),
    Mutation(
        7,
        "the slot is drawn from the global random generator",
        "yield member, next(iter(tag.idle))",
        "yield member, random.choice(list(tag.idle))",
        module=PARTS,
    ),
    Mutation(
        8,
        "a member is leased again without end",
        "        if member.attempt >= self._config.max_group_attempts:\n",
        "        if False:\n",
        module=GROUPS,
    ),
    Mutation(
        8,
        "an episode that is handed over uses up an attempt",
        "                self._queue_again(member)\n",
        "                self._lease_again(member)\n",
        module=GROUPS,
    ),
    Mutation(
        8,
        "no stall is reported when everything is thrown away",
        "            self.guard.waste(reason)\n",
        "            pass\n",
        module=GROUPS,
    ),
    Mutation(
        8,
        "no stall is reported when a tag has no environments",
        "                starved = starved or name\n",
        "                pass\n",
        module=PARTS,
    ),
]


@pytest.fixture
def broken_ledger(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> LedgerFactory:
    """The ledger with the mutation; the real modules are back in place afterwards."""
    source_of = {}
    for name in (PARTS, GROUPS, LEDGER):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        source_of[name] = spec.loader.get_source(name)  # type: ignore[attr-defined]
    assert source_of[mutation.module].count(mutation.old) == 1, "the table no longer fits the source"
    source_of[mutation.module] = source_of[mutation.module].replace(mutation.old, mutation.new)
    source_of[PARTS] += "\nimport random\n"
    source_of[LEDGER] += "\nimport math\n"
    for name in (PARTS, GROUPS, LEDGER):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(source_of[name], spec.origin or name, "exec"), module.__dict__)
    return module.RolloutLedger  # type: ignore[no-any-return]


def run_all(make_ledger: LedgerFactory) -> None:
    class Machine(LedgerMachine):
        make = staticmethod(make_ledger)

    for scenario in SCENARIOS:
        scenario(make_ledger)
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=200,
            stateful_step_count=60,
            deadline=None,
            database=None,
            derandomize=True,
            report_multiple_bugs=False,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: f"promise {m.promise}: {m.name}")
def test_a_broken_promise_is_found(mutation: Mutation, broken_ledger: LedgerFactory) -> None:
    with pytest.raises(PromiseBroken) as caught:
        run_all(broken_ledger)
    assert caught.value.number == mutation.promise


def test_the_table_in_the_documentation_names_every_mutation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "ledger.md").read_text()
    assert [m.name for m in MUTATIONS if f"| {m.name} |" not in page] == []


def test_every_promise_is_broken_at_least_once() -> None:
    assert {m.promise for m in MUTATIONS} == set(range(1, 9))
