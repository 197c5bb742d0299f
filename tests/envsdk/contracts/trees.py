"""Episodes whose turns form any tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from envsdk.contracts.trajectory import Outcome, Task, TokenLog, Trajectory, Turn, VersionSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A turn to be."""

    follows: int | None
    num_prompt: int
    num_reply: int
    role: str = ""

    def before(self, number: int) -> int:
        return number - 1 if self.follows is None else self.follows


@st.composite
def trees(draw: st.DrawFn, *, max_turns: int = 7, min_reply: int = 0) -> list[Node]:
    """A turn that begins a line has a prompt; others may go on without one."""
    nodes: list[Node] = []
    for number in range(draw(st.integers(1, max_turns))):
        follows = draw(st.none() | st.integers(-1, number - 1))
        begins = follows == -1 or (follows is None and number == 0)
        nodes.append(
            Node(
                follows=follows,
                num_prompt=draw(st.integers(int(begins), 3)),
                num_reply=draw(st.integers(min_reply, 3)),
                role=draw(st.sampled_from(["", "main", "helper"])),
            )
        )
    return nodes


def planted(
    nodes: Sequence[Node], *, reward: float = 1.0, group: int = 0, name: str = "train-0", vocabulary: int = 0
) -> Trajectory:
    """The episode; the tokens are 1, 2, 3, ..., below `vocabulary` where it is given."""
    log, turns, last = TokenLog(), list[Turn](), 0

    def tokens(count: int) -> list[int]:
        nonlocal last
        last += count
        ids = range(last - count + 1, last + 1)
        return [1 + (7 * each + group) % (vocabulary - 1) if vocabulary else each for each in ids]

    for number, node in enumerate(nodes):
        log.append_prompt(tokens(node.num_prompt))
        start, count = len(log), node.num_reply
        span = VersionSpan(version=3 + number, start=0, end=count)
        log.append_sampled(tokens(count), [-0.5 - number] * count, [span] if count else [])
        is_last = number == len(nodes) - 1
        turns.append(
            Turn(
                observation=f"see {number}",
                reply=f"do {number}",
                reward=reward if is_last else 0.0,
                response_start=start,
                response_end=len(log),
                follows=node.follows,
                role=node.role,
            )
        )
    return Trajectory(
        trajectory_id=name,
        group_id=group,
        task=Task(tag="Tree", split="train", index=group),
        seed=0,
        outcome=Outcome.TERMINATED,
        success=reward > 0,
        turns=tuple(turns),
        tokens=log.arrays(),
        started_at=0.0,
        ended_at=1.0,
    )


def path_ids(nodes: Sequence[Node], leaf: int) -> list[int]:
    """The tokens of the path to a turn, for `planted` without a vocabulary."""
    ends = [0]
    for node in nodes:
        ends.append(ends[-1] + node.num_prompt + node.num_reply)
    ids: list[int] = []
    number = leaf
    while number >= 0:
        ids = [*range(ends[number] + 1, ends[number + 1] + 1), *ids]
        number = nodes[number].before(number)
    return ids
