"""What `Rollouts.state()` gives, as far as it is checked when rollouts continue from it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envsdk.config.models import RunConfig
from envsdk.contracts.failures import ConfigurationError, StorageError
from envsdk.managers.ledger_types import LedgerState

STATE_FORMAT = "envsdk.rollouts/1"


def checked_state(state: Mapping[str, Any], config: RunConfig) -> Mapping[str, Any]:
    """`state`, if a run of this configuration can continue from it; else ConfigurationError."""
    if not isinstance(state, Mapping) or state.get("format") != STATE_FORMAT:
        raise ConfigurationError(f"state: give what Rollouts.state() returned, of format {STATE_FORMAT}")
    for name in ("step", "version", "seed"):
        number = state.get(name)
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise ConfigurationError(f"state: `{name}` must be a whole number from 0 on, not {number!r}")
    ledger = state.get("ledger")
    if state["step"] and not isinstance(ledger, Mapping):
        raise ConfigurationError(
            f"state: it is of step {state['step']} and has no ledger, so that tasks would be played again"
        )
    try:
        if ledger is not None:
            LedgerState.from_dict(ledger)
    except (KeyError, TypeError, ValueError, AttributeError, StorageError) as error:
        raise ConfigurationError(f"state: its ledger is damaged ({type(error).__name__}: {error})") from error
    if state["seed"] != config.seed:
        raise ConfigurationError(
            f"state: it is of a run with seed {state['seed']}, but the configuration has {config.seed}"
        )
    return state
