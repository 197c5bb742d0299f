"""Trinity-RFT's files, as one of the dialects that are translated."""

from envsdk.config.foreign.row import Dialect
from envsdk.config.trinity.keys import DEFAULTS, ROWS
from envsdk.config.trinity.kinds import SECTIONS, is_trinity_file, kind_problems
from envsdk.config.trinity.workflows import pending_keys

__all__ = ["TRINITY", "is_trinity_file"]

TRINITY = Dialect(
    name="Trinity-RFT",
    is_theirs=lambda data: True,
    rows=ROWS,
    defaults=DEFAULTS,
    kind_problems=kind_problems,
    pending=pending_keys,
    sections=SECTIONS,
)
