"""What an advantage estimator is: a function, the settings it takes, and what it needs. Pure NumPy.

    class DecayArgs(EstimatorArgs):
        decay: float = 0.9

        compares_groups: ClassVar[bool] = True


    @advantage_estimator(DecayArgs)
    def decaying(samples, args, own):
        return [TokenAdvantages(advantages=...) for sample in samples]

The YAML names it as `adv_estimator` and gives its settings as `adv_args`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from envsdk.algorithms.advantage_sample import AdvantageSample, TokenAdvantages
from envsdk.base.plugins import load_plugin
from envsdk.base.settings.strict import StrictSettings
from envsdk.base.settings.validation import validated
from envsdk.contracts.failures import ConfigurationError

if TYPE_CHECKING:
    from envsdk.algorithms.args import AlgorithmArgs

ADVANTAGE_ESTIMATORS = "envsdk.advantage_estimators"
"""Entry-point group whose names `adv_estimator` takes."""


class EstimatorArgs(StrictSettings):
    """Settings of one estimator, and what it needs. This one takes none and needs nothing."""

    needs_values: ClassVar[bool] = False
    """The trainer has a value head, and `AdvantageSample.values` are its predictions. The estimator returns
    `TokenAdvantages.returns`, the targets that the head learns."""
    needs_state_hashes: ClassVar[bool] = False
    """`AdvantageSample.state_hashes` are there; environments without `state_hash()` are refused."""
    compares_groups: ClassVar[bool] = False
    """Compares the members of a group: a group of one has nothing to learn from."""
    reads_discount_level: ClassVar[bool] = True
    """Whether the key `discount_level` has an effect."""


Own = TypeVar("Own", bound=EstimatorArgs)
EstimatorFunction = Callable[[Sequence[AdvantageSample], "AlgorithmArgs", Own], list[TokenAdvantages]]
"""Turns samples, the algorithm's keys and the estimator's settings into a result per sample, in their order.

The samples' rewards are normalized and clipped; the KL penalty is in `token_rewards`. Pure: the same
samples in another order give the same results in that order, and invalid samples enter no statistic and
get 0. ValueError when a sample lacks what is needed.
"""


@dataclass(frozen=True, slots=True)
class AdvantageEstimator(Generic[Own]):
    """What `adv_estimator` names: a function, and the model of the `adv_args` it takes."""

    function: EstimatorFunction[Own]
    settings: type[Own]


def advantage_estimator(settings: type[Own]) -> Callable[[EstimatorFunction[Own]], AdvantageEstimator[Own]]:
    """Decorator: make a function an estimator that takes `settings` as `adv_args`."""

    def declare(function: EstimatorFunction[Own]) -> AdvantageEstimator[Own]:
        return AdvantageEstimator(function, settings)

    return declare


def load_estimator(name: str) -> AdvantageEstimator[Any]:
    """An entry point in `envsdk.advantage_estimators`, or `package.module:function`.

    A function without the decorator takes samples and keys, has no settings and needs nothing.
    ConfigurationError names the nearest known one.
    """
    found = load_plugin(ADVANTAGE_ESTIMATORS, name)
    if isinstance(found, AdvantageEstimator):
        return found
    if not callable(found):
        raise ConfigurationError(
            f"adv_estimator: {name} is no estimator but {type(found).__name__}; decorate a function with "
            "@advantage_estimator(...) of envsdk.algorithms"
        )
    return AdvantageEstimator(lambda samples, args, own: found(samples, args), EstimatorArgs)


def estimator_args(name: str, adv_args: Mapping[str, Any]) -> EstimatorArgs:
    """`adv_args` as the model of the estimator's settings. ConfigurationError names what is wrong."""
    model: type[EstimatorArgs] = load_estimator(name).settings
    return validated(model, adv_args, "adv_args", owner=name)
