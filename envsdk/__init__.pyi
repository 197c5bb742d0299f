"""Public names of the package, and where each is defined: `__init__.py` imports them at their first use."""

from envsdk.base.processes.as_sync import as_sync as as_sync
from envsdk.base.registry import list_specs as list_specs
from envsdk.base.registry import make as make
from envsdk.base.registry import register as register
from envsdk.base.registry import spec as spec
from envsdk.contracts.env import AsyncTextEnv as AsyncTextEnv
from envsdk.contracts.env import EnvSpec as EnvSpec
from envsdk.contracts.env import Isolation as Isolation
from envsdk.contracts.env import TextEnv as TextEnv
from envsdk.contracts.failures import Boundary as Boundary
from envsdk.contracts.failures import ConfigurationError as ConfigurationError
from envsdk.contracts.failures import EnvsdkError as EnvsdkError
from envsdk.contracts.failures import Failure as Failure
from envsdk.contracts.policy import Policy as Policy
from envsdk.contracts.policy import Reply as Reply
from envsdk.contracts.policy import TurnContext as TurnContext
from envsdk.contracts.trajectory import FinishReason as FinishReason
from envsdk.contracts.trajectory import Outcome as Outcome
from envsdk.contracts.trajectory import Task as Task
from envsdk.contracts.trajectory import TokenArrays as TokenArrays
from envsdk.contracts.trajectory import TokenLog as TokenLog
from envsdk.contracts.trajectory import Trajectory as Trajectory
from envsdk.contracts.trajectory import Turn as Turn
from envsdk.contracts.trajectory import VersionSpan as VersionSpan
from envsdk.contracts.turn_env import InvalidAction as InvalidAction
from envsdk.contracts.turn_env import TurnEnv as TurnEnv
from envsdk.contracts.turn_env import TurnResult as TurnResult
from envsdk.rollouts.play.local_engine import LocalEngine as LocalEngine
from envsdk.rollouts.play.rollout import rollout as rollout
from envsdk.rollouts.play.rollout import rollout_sync as rollout_sync
from envsdk.rollouts.results.trajectories import Batch as Batch
from envsdk.rollouts.results.trajectories import Trajectories as Trajectories
from envsdk.runs.rollouts import AsyncRollouts as AsyncRollouts
from envsdk.runs.rollouts import Rollouts as Rollouts

__version__: str
