"""Trinity-RFT's files, as one of the dialects that are translated."""

from functools import partial

from envsdk.config.foreign.dialect import Dialect
from envsdk.config.foreign.table import read_table
from envsdk.config.trinity.kinds import SECTIONS, is_trinity_file, kind_problems
from envsdk.config.trinity.tasks import fetch_data_sets
from envsdk.config.trinity.workflows import pending_keys

TRINITY = Dialect(
    name="Trinity-RFT",
    is_theirs=is_trinity_file,
    table=partial(read_table, "envsdk.config.trinity"),
    kind_problems=kind_problems,
    pending=pending_keys,
    fetch=fetch_data_sets,
    sections=SECTIONS,
)
