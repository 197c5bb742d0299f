"""Public names of the package, and where each is defined: `__init__.py` imports them at their first use."""

from envsdk.rewards.loading import load_reward as load_reward
from envsdk.rewards.reward import AsyncRewardFunction as AsyncRewardFunction
from envsdk.rewards.reward import Reward as Reward
from envsdk.rewards.reward import RewardError as RewardError
from envsdk.rewards.reward import RewardFunction as RewardFunction
from envsdk.rewards.reward import Runs as Runs
from envsdk.rewards.reward import Sample as Sample
from envsdk.rewards.workers import RewardWorkers as RewardWorkers
