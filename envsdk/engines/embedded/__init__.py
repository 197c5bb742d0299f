"""The embedded engine: PyTorch in this process, on a CPU or any device.

torch is imported when the engine is first asked for; its settings can be checked without.
"""

from typing import TYPE_CHECKING, Any

from envsdk.engines.embedded.settings import EmbeddedSettings

if TYPE_CHECKING:
    from envsdk.engines.embedded.engine import EmbeddedEngine

__all__ = ["EmbeddedEngine", "EmbeddedSettings"]


def __getattr__(name: str) -> Any:
    if name == "EmbeddedEngine":
        from envsdk.engines.embedded.engine import EmbeddedEngine

        return EmbeddedEngine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
