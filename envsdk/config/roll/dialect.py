"""ROLL's files, as one of the dialects that are translated."""

from envsdk.config.foreign.row import Dialect
from envsdk.config.roll.environments import pending_keys
from envsdk.config.roll.keys import ROLL_DEFAULTS, ROWS
from envsdk.config.roll.kinds import is_roll_file, kind_problems

ROLL = Dialect(
    name="ROLL",
    is_theirs=is_roll_file,
    rows=ROWS,
    defaults=ROLL_DEFAULTS,
    kind_problems=kind_problems,
    pending=pending_keys,
    sections=frozenset({"reward_normalization", "env_monitor"}),
)
