"""The embedded engine: PyTorch in this process, on a CPU or any device. Importing it imports torch."""

from envsdk.inference.embedded.engine import EmbeddedEngine
from envsdk.inference.embedded.settings import EmbeddedSettings

__all__ = ["EmbeddedEngine", "EmbeddedSettings"]
