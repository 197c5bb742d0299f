"""A run's configuration: one YAML file, `key=value` overrides, strict types.

loaded = load_config("agentic_async.yaml", ["max_steps=20"])
loaded.config.train_env_manager.num_envs
print(explain(loaded))
"""

from __future__ import annotations

from envsdk.base.settings.public import names_in_stub, public_names

_NAMES = names_in_stub(__file__)
__all__ = sorted(_NAMES)
__getattr__, __dir__ = public_names(__name__, _NAMES)
