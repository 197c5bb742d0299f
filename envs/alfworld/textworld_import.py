"""Import this before TextWorld, which imports `jericho`: a package built from source that brings spaCy."""

import importlib.util
import sys
from types import ModuleType

if importlib.util.find_spec("jericho") is None:
    # It plays Z-machine games; those of ALFWorld are none. Its warnings are named on import.
    _jericho = ModuleType("jericho")
    for _name in ("UnsupportedGameWarning", "TruncatedInputActionWarning"):
        setattr(_jericho, _name, type(_name, (UserWarning,), {}))
    sys.modules["jericho"] = _jericho
