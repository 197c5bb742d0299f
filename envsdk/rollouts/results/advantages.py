"""Advantages of episodes in memory, by the code that training uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envsdk.algorithms.advantage_args import AdvantageKeys
from envsdk.algorithms.advantage_sample import AdvantageSample
from envsdk.algorithms.args import AlgorithmArgs
from envsdk.algorithms.batches import token_advantages
from envsdk.algorithms.masks import masked
from envsdk.algorithms.units import in_parts, parts_of
from envsdk.base.settings.validation import validated
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.trajectory import Trajectory


def advantages(
    episodes: Sequence[Trajectory],
    group_ids: Sequence[int],
    estimator: str,
    settings: Mapping[str, Any],
) -> list[NDArray[np.float32]]:
    """See `Trajectories.advantages`."""
    keys = {**settings, "adv_estimator": estimator}
    validated(AdvantageKeys, keys, "advantages")
    args = AlgorithmArgs(**keys)
    if args.needs_values:
        raise ConfigurationError(
            f"advantages: {estimator} needs the predictions of a value head, which only a trainer has; "
            "choose an estimator without one, such as grpo, rloo or reinforce_plus_plus"
        )
    if args.init_kl_coef > 0:
        raise ConfigurationError(
            "advantages: a KL penalty needs the log-probabilities of a reference model, which only a trainer "
            "has; leave `init_kl_coef` at 0 and add the penalty to your loss"
        )
    unit = args.advantage_unit
    numbered = [replace(each, group_id=group) for each, group in zip(episodes, group_ids, strict=True)]
    samples = [AdvantageSample.of(each) for each in in_parts(numbered, unit)]
    if args.needs_state_hashes and any(each.state_hashes is None for each in samples):
        raise ConfigurationError(
            f"advantages: {estimator} needs a hash of the state that each turn was played in, and some of "
            "these episodes have none; a run records them where its YAML names this estimator"
        )
    samples, _ = masked(args, samples)
    results = token_advantages(args, samples)
    found, left = [], iter(result.advantages for result in results)
    for episode in episodes:
        values = np.zeros(len(episode.turns if episode.tokens is None else episode.tokens), np.float32)
        for part in parts_of(episode, unit):
            part.put(values, next(left))
        found += [segment.take(values) for segment in episode.segments()]
    return found
