"""The best action in each state of an environment that shows its transition table, as toy texts do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Transitions = Mapping[int, Mapping[int, Sequence[tuple[float, int, float, bool]]]]
"""`table[state][action]`: (probability, next state, reward, whether it is the end) of each outcome."""

DISCOUNT = 0.99
_PRECISION = 1e-9
_ROUNDING = 1e-7
_MAX_SWEEPS = 10_000


def best_actions(table: Transitions) -> npt.NDArray[np.int64]:
    """Best actions by value iteration: the first with the highest discounted return: `[num_states]`.

    Args:
        table: States and actions are numbered from 0.
    """
    num_states, num_actions = len(table), len(table[0])
    num_outcomes = max(len(outcomes) for actions in table.values() for outcomes in actions.values())
    shape = (num_states, num_actions, num_outcomes)
    weights, following, expected = np.zeros(shape), np.zeros(shape, np.int64), np.zeros(shape[:2])
    for state, actions in table.items():
        for action, outcomes in actions.items():
            for index, (probability, then, reward, is_last) in enumerate(outcomes):
                expected[state, action] += probability * reward
                weights[state, action, index] = 0.0 if is_last else DISCOUNT * probability
                following[state, action, index] = then
    values = np.zeros(num_states)
    for _ in range(_MAX_SWEEPS):
        returns = expected + (weights * values[following]).sum(axis=2)
        change = np.abs(returns.max(axis=1) - values).max()
        values = returns.max(axis=1)
        if change < _PRECISION:
            break
    is_best = returns >= returns.max(axis=1, keepdims=True) - _ROUNDING
    best: npt.NDArray[np.int64] = is_best.argmax(axis=1)
    return best
