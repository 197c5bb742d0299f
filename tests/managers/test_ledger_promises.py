"""The promises of the ledger hold under random events."""

from hypothesis import HealthCheck, settings
from ledger_machine import LedgerMachine

from tests.by_day import examples

TestLedgerPromises = LedgerMachine.TestCase
TestLedgerPromises.settings = settings(
    max_examples=examples(40),
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
