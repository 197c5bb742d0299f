"""Public names of a run's configuration; `__init__.py` imports each when it is first used."""

from envsdk.config.env_models import CustomEnv as CustomEnv
from envsdk.config.env_models import EnvManagerArgs as EnvManagerArgs
from envsdk.config.explanation import explain as explain
from envsdk.config.loading import LoadedConfig as LoadedConfig
from envsdk.config.loading import load_config as load_config
from envsdk.config.models import (
    EMBEDDED_DEFAULT as EMBEDDED_DEFAULT,
)
from envsdk.config.models import (
    RunConfig as RunConfig,
)
from envsdk.config.models import (
    WarmStartArgs as WarmStartArgs,
)
from envsdk.config.ray_models import RayArgs as RayArgs
from envsdk.config.reading import find_config as find_config
from envsdk.config.role_models import (
    ActorInfer as ActorInfer,
)
from envsdk.config.role_models import (
    ActorTrain as ActorTrain,
)
from envsdk.config.role_models import (
    Reference as Reference,
)
from envsdk.config.role_models import (
    StrategyArgs as StrategyArgs,
)
from envsdk.config.section import GeneratingArgs as GeneratingArgs
