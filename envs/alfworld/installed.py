"""The environment where it can be built: importing this fails, and says what to do, without the engine."""

from importlib.util import find_spec

from envsdk.envs.alfworld.env import ALFWorldEnv

_missing = [name for name in ("alfworld", "textworld", "fast_downward") if find_spec(name) is None]
if _missing:
    raise ImportError(
        f"ALFWorld's engine is not installed (no {', '.join(_missing)}). `pip install 'envsdk[alfworld]'`"
        " builds it with cmake and a C++ compiler; docs/alfworld.md tells a leaner way."
    )

__all__ = ["ALFWorldEnv"]
