"""Credit of single turns from the states that episodes of a group share. Pure NumPy. Shapes: K turns."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from pydantic import Field

from envsdk.algorithms.advantage_sample import AdvantageSample, Floats, TokenAdvantages, steps_of
from envsdk.algorithms.advantages import GiGPOArgs, beside_episodes, state_hashes_of, turn_credit
from envsdk.algorithms.args import AlgorithmArgs
from envsdk.algorithms.estimator_contract import advantage_estimator
from envsdk.algorithms.estimators import group_advantages

_Node: TypeAlias = tuple[Hashable, str, Hashable]
"""A state of a group, its goal, or the end of one of its episodes."""


class GraphGPOArgs(GiGPOArgs):
    """`graphgpo`."""

    omega: float = Field(default=0.1, gt=0.0, lt=1.0)
    """Factor of a step's reward for each further step to the goal."""
    step_weight: float = Field(default=1.0, ge=0.0)
    """Weight of the advantage in the graph, added to that of the episode."""


class HGPOArgs(GiGPOArgs):
    """`hgpo`."""

    history_length: int = Field(default=2, ge=0)
    """States before the present one that the deepest groups agree in, K."""
    length_weight_alpha: float = Field(default=1.0, ge=0.0)
    """A group of k earlier states weighs (k + 1) to this power."""


@advantage_estimator(GraphGPOArgs)
def graphgpo(
    samples: Sequence[AdvantageSample], args: AlgorithmArgs, own: GraphGPOArgs
) -> list[TokenAdvantages]:
    """A = A^E + `step_weight` A^G: the episode among its group, the turn among those from the same state.

    Source: arXiv:2605.26684. Without a solved episode in the group this is `grpo`.
    """
    per_turn = graph_step_advantages(
        state_hashes_of(samples, "graphgpo"),
        [sample.group_id for sample in samples],
        success=[sample.success for sample in samples],
        valid=[sample.valid for sample in samples],
        omega=own.omega,
        normalize_std=args.grpo_normalize_std,
    )
    return beside_episodes(samples, args, per_turn, own.step_weight)


@advantage_estimator(HGPOArgs)
def hgpo(samples: Sequence[AdvantageSample], args: AlgorithmArgs, own: HGPOArgs) -> list[TokenAdvantages]:
    """The return from each turn on, among turns with the same state and history; see `hgpo_advantages`.

    Source: arXiv:2602.22817.
    """
    history_length, alpha = own.history_length, own.length_weight_alpha
    per_turn = turn_credit(samples, args, "hgpo", history_length=history_length, alpha=alpha)
    return [
        TokenAdvantages(advantages=steps_of(sample, "turn").spread(values))
        for sample, values in zip(samples, per_turn, strict=True)
    ]


def graph_step_advantages(
    state_hashes: Sequence[Sequence[Hashable]],
    group_ids: Sequence[Hashable],
    *,
    success: Sequence[bool],
    valid: Sequence[bool],
    omega: float,
    normalize_std: bool = True,
) -> list[Floats]:
    """GraphGPO's graph level: each turn against all that left the same state, `[K_i]` each.

        d(s) = min over turns s -> s' of 1 + d(s'), 0 at the goal        R(s -> s') = omega^(d(s') + 1)
        A^G = (R - mean) / (std + 1e-6)        over the turns of one group's episodes that left s

    The last turn of a solved episode leads to the goal, that of another to a state of its own. A state
    without a path to the goal is one step farther than the farthest that has one. A factor of R changes no
    normalized A^G, so R is taken as omega^(d(s') + 1 - d(s)): otherwise the 1e-6 would outweigh what is far
    from the goal. Source: arXiv:2605.26684, sec. 4, with the costs 1 as there.
    """
    turns: list[tuple[_Node, _Node]] = []
    for number, (group, hashes, solved) in enumerate(zip(group_ids, state_hashes, success, strict=True)):
        end = (group, "goal", 0) if solved else (group, "end", number)
        turns += pairwise([*((group, "state", state) for state in hashes), end])
    lengths = [len(hashes) for hashes in state_hashes]
    alive = np.repeat(np.asarray(valid, bool), lengths)
    goals: list[_Node] = [(group, "goal", 0) for group in group_ids]
    distances = distances_to(goals, [turns[at] for at in np.flatnonzero(alive)])
    no_path: dict[Hashable, int] = defaultdict(int)
    for (group, *_), distance in distances.items():
        no_path[group] = max(no_path[group], distance + 1)
    found = [[distances.get(node, no_path[node[0]]) for node in turn] for turn in turns]
    before, after = np.array(found, np.float64).reshape(-1, 2).T
    rewards = omega ** (after + 1 - (before if normalize_std else 0))
    sources = [source for source, _ in turns]
    advantages = group_advantages(rewards, sources, valid=alive, normalize_std=normalize_std)
    return np.split(advantages, np.cumsum(lengths)[:-1]) if lengths else []


def distances_to(goals: Iterable[_Node], edges: Iterable[tuple[_Node, _Node]]) -> dict[_Node, int]:
    """Fewest edges from each node to one of the goals; nodes without a path are left out."""
    before: dict[_Node, list[_Node]] = defaultdict(list)
    for source, target in edges:
        before[target].append(source)
    distances = dict.fromkeys(goals, 0)
    waiting = deque(distances)
    while waiting:
        node = waiting.popleft()
        for source in before[node]:
            if source not in distances:
                distances[source] = distances[node] + 1
                waiting.append(source)
    return distances
