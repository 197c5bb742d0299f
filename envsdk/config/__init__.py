"""A run's configuration: one YAML file, `key=value` overrides, strict types.

loaded = load_config("agentic_async.yaml", ["max_steps=20"])
loaded.config.train_env_manager.num_envs
print(explain(loaded))
"""

from envsdk.config.env_models import CustomEnv, EnvManagerArgs
from envsdk.config.explanation import explain
from envsdk.config.loading import LoadedConfig, load_config
from envsdk.config.models import EMBEDDED_DEFAULT, RunConfig, WarmStartArgs
from envsdk.config.ray_models import RayArgs
from envsdk.config.reading import find_config
from envsdk.config.role_models import ActorInfer, ActorTrain, Reference, StrategyArgs
from envsdk.config.section import GeneratingArgs

__all__ = [
    "EMBEDDED_DEFAULT",
    "ActorInfer",
    "ActorTrain",
    "CustomEnv",
    "EnvManagerArgs",
    "GeneratingArgs",
    "LoadedConfig",
    "RayArgs",
    "Reference",
    "RunConfig",
    "StrategyArgs",
    "WarmStartArgs",
    "explain",
    "find_config",
    "load_config",
]
