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

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from envsdk.contracts.prompts import PREFIX

if TYPE_CHECKING:
    from envsdk.contracts.trajectory import TokenArrays, Turn

Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
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
        """Those of the episode's tokens `[T]` that the segment has; 0 where it is given."""
        if self.positions is None:
            return values
        taken = values[self.positions]
        taken[: self.num_given_tokens] = 0
        return taken

    def put(self, values: NDArray[Number], own: NDArray[Number]) -> None:
        """Write the segment's `own` values into those of the episode's tokens `[T]`, except where given."""
        places = np.arange(len(values)) if self.positions is None else self.positions
        values[places[self.num_given_tokens :]] = own[self.num_given_tokens :]


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
    """The segments of an episode, in the order in which they begin.

    The first turn that follows another one continues its segment, a later one begins a segment of its own.
    """
    if all(turn.follows is None for turn in turns):
        return [Segment(turns=turns, numbers=range(len(turns)), tokens=tokens)]
    before, continued, owners = followed(turns), {-1}, list[int]()
    own_turns: list[list[int]] = []
    for number, earlier in enumerate(before):
        if earlier in continued:
            owners.append(len(own_turns))
            own_turns.append([])
        else:
            owners.append(owners[earlier])
            continued.add(earlier)
        own_turns[owners[-1]].append(number)
    chunks, segments = _chunks(turns), []
    for own in own_turns:
        path, number = list[int](), before[own[0]]
        parent = owners[number] if number >= 0 else None
        while number >= 0:
            path.insert(0, number)
            number = before[number]
        segments.append(_segment(turns, tokens, [*path, *own], chunks, num_given=len(path), parent=parent))
    return segments


def lines_of(turns: Sequence[Turn], tokens: TokenArrays | None, role: str) -> Segment:
    """The turns of one of several players, with all of its lines as they follow one another in time."""
    numbers = [number for number, turn in enumerate(turns) if turn.role == role]
    joined = _segment(turns, tokens, numbers, _chunks(turns), num_given=0, parent=None)
    begins = [before < 0 for before in followed(turns)]
    own = [
        replace(turn, follows=-1) if place and begins[number] else turn
        for place, (number, turn) in enumerate(zip(numbers, joined.turns, strict=True))
    ]
    return replace(joined, turns=own)


def _chunks(turns: Sequence[Turn]) -> list[NDArray[np.int64]]:
    """The tokens of each turn, as places in the episode's log."""
    ends = [0, *(turn.response_end for turn in turns)]
    return [np.arange(start, end) for start, end in pairwise(ends)]


def last_segment(segments: Sequence[Segment]) -> Segment:
    """The one with the episode's last reply."""
    return max(segments, key=lambda segment: max(segment.numbers, default=-1))


def is_learned(turn: Turn) -> bool:
    """Whether one may imitate its reply: `Reply.learned`, which the details keep."""
    return json.loads(turn.details or "{}").get("reply_learned") is not False


def given_and_masked_replies(
    messages: Sequence[Mapping[str, str]], segment: Segment
) -> tuple[int, list[int]]:
    """How many of the assistant's first messages in a segment's conversation are not the segment's own, and
    which of its own are not to be learned: `Reply.learned`."""
    own = [turn for turn in segment.turns[segment.num_given_turns :] if turn.role != PREFIX]
    num_given = sum(message["role"] == "assistant" for message in messages) - len(own)
    return num_given, [number for number, turn in enumerate(own, start=num_given) if not is_learned(turn)]


def _segment(
    turns: Sequence[Turn],
    tokens: TokenArrays | None,
    path: Sequence[int],
    chunks: Sequence[NDArray[np.int64]],
    *,
    num_given: int,
    parent: int | None,
) -> Segment:
    ends = np.cumsum([len(chunks[number]) for number in path]).tolist()
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
    positions = None if tokens is None else np.concatenate([chunks[number] for number in path])
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
        for name in ("ids", "response_mask", "behavior_logprobs", "versions", "experts")
        if getattr(tokens, name) is not None
    }
    given = slice(0, num_given)
    arrays["response_mask"][given] = 0
    arrays["behavior_logprobs"][given] = 0
    arrays["versions"][given] = -1
    if tokens.support is not None:
        arrays["support"] = tokens.support.take(positions)
    return replace(tokens, **arrays)
