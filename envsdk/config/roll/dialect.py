"""ROLL's files, as one of the dialects that are translated."""

from functools import partial

from envsdk.config.foreign.dialect import Dialect
from envsdk.config.foreign.table import read_table
from envsdk.config.roll.distillation import student_as_policy
from envsdk.config.roll.kinds import is_roll_file, kind_problems
from envsdk.config.roll.rewards import pending_keys

ROLL = Dialect(
    name="ROLL",
    is_theirs=is_roll_file,
    table=partial(read_table, "envsdk.config.roll"),
    holds_in_ours=True,
    renamed=student_as_policy,
    kind_problems=kind_problems,
    pending=pending_keys,
    sections=frozenset({"reward_normalization", "env_monitor"}),
)
