"""Segments: the lines of tokens that an episode consists of. Pure.

The turns of an episode form a tree: each one continues the tokens of the turn that it `follows`. A segment is
the path to a turn that nothing follows, as one sequence of tokens: what a model computes at once.

    turns    0   1   2   3         2 follows 1, and 3 follows 0
    tokens  aA  bB  cC  dD         the episode's log, in the order of time: each token once
    segments    aA bB cC           trains A, B and C
                aA dD              trains D; A is trained in the segment before

An episode whose turns follow one another is one segment, which is the episode itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from envsdk.contracts.trajectory import TokenArrays, Turn

Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One line of an episode, from its beginning to a reply that nothing follows."""

    turns: Sequence[Turn]
    """Those of the line; `response_start` and `response_end` are places in the segment's tokens."""
    numbers: Sequence[int]
    """Which turns of the episode they are."""
    tokens: TokenArrays | None
    """The line from its first token on; tokens that an earlier segment trains are given here, with mask 0.
    None where the policy has no tokens."""
    num_given_turns: int = 0
    """How many of the first turns belong to an earlier segment."""
    num_given_tokens: int = 0
    """How many of the first tokens do: where the segment branches off."""
    parent: int | None = None
    """The earlier segment that they belong to, by its place among the segments; None when there are none."""
    positions: NDArray[np.int64] | None = None
    """`[num_tokens]`: where the tokens stand in the episode's log; None when they are the log."""

    @property
    def role(self) -> str:
        """Who played its last turn."""
        return self.turns[-1].role if self.turns else ""

    def take(self, values: NDArray[Number]) -> NDArray[Number]:
        """Of values of the episode's tokens, those of the segment's, 0 where an earlier segment has them."""
        if self.positions is None:
            return values
        taken = values[self.positions]
        taken[: self.num_given_tokens] = 0
        return taken


def followed(turns: Sequence[Turn]) -> list[int]:
    """The turn that each turn follows, -1 where it begins a line. ValueError when it is no earlier turn."""
    found = [number - 1 if turn.follows is None else turn.follows for number, turn in enumerate(turns)]
    for number, before in enumerate(found):
        if not -1 <= before < number:
            raise ValueError(f"turn {number} follows turn {before}, which is not before it")
    return found


def prompt_lengths(turns: Sequence[Turn]) -> list[int]:
    """Tokens before each turn's reply, as the policy was shown them; 0 where it has no tokens."""
    ends, own_start, lengths = {-1: 0}, 0, []
    for number, (before, turn) in enumerate(zip(followed(turns), turns, strict=True)):
        lengths.append(ends[before] + turn.response_start - own_start)
        ends[number] = ends[before] + turn.response_end - own_start
        own_start = turn.response_end
    return lengths


def segments_of(turns: Sequence[Turn], tokens: TokenArrays | None) -> list[Segment]:
    """The segments of an episode, in the order in which their last turns ended."""
    if all(turn.follows is None for turn in turns):
        return [Segment(turns=turns, numbers=range(len(turns)), tokens=tokens)]
    before = followed(turns)
    has_next = set(before)
    ends = [0, *(turn.response_end for turn in turns)]
    chunks = [np.arange(start, end) for start, end in pairwise(ends)]
    owners: dict[int, int] = {}
    segments: list[Segment] = []
    for leaf in range(len(turns)):
        if leaf in has_next:
            continue
        path = [leaf]
        while (number := before[path[-1]]) >= 0:
            path.append(number)
        path.reverse()
        num_given = next(place for place, number in enumerate(path) if number not in owners)
        owners.update(dict.fromkeys(path[num_given:], len(segments)))
        segments.append(
            _segment(
                turns,
                tokens,
                path,
                [chunks[number] for number in path],
                num_given=num_given,
                parent=owners[path[num_given - 1]] if num_given else None,
            )
        )
    return segments


def _segment(
    turns: Sequence[Turn],
    tokens: TokenArrays | None,
    path: Sequence[int],
    chunks: Sequence[NDArray[np.int64]],
    *,
    num_given: int,
    parent: int | None,
) -> Segment:
    ends = np.cumsum([len(chunk) for chunk in chunks]).tolist()
    placed = [
        replace(
            turns[number],
            response_start=end - (turns[number].response_end - turns[number].response_start),
            response_end=end,
            follows=None,
        )
        for number, end in zip(path, ends, strict=True)
    ]
    num_given_tokens = ends[num_given - 1] if num_given else 0
    positions = None if tokens is None else np.concatenate(chunks)
    return Segment(
        turns=placed,
        numbers=path,
        tokens=None if tokens is None or positions is None else _line(tokens, positions, num_given_tokens),
        num_given_turns=num_given,
        num_given_tokens=num_given_tokens,
        parent=parent,
        positions=positions,
    )


def _line(tokens: TokenArrays, positions: NDArray[np.int64], num_given: int) -> TokenArrays:
    """The tokens at `positions`, the first of them as if the policy had not sampled them."""
    arrays: dict[str, Any] = {
        name: getattr(tokens, name)[positions]
        for name in ("ids", "response_mask", "behavior_logprobs", "versions")
    }
    given = slice(0, num_given)
    arrays["response_mask"][given] = 0
    arrays["behavior_logprobs"][given] = 0
    arrays["versions"][given] = -1
    return replace(tokens, **arrays)
