"""The policy contract: what plays. Engine-backed, scripted, random, oracle or human."""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from envsdk.failures import Boundary, Failure
from envsdk.trajectory import TokenLog, Turn


class EnvView(ABC):
    """What an oracle or a random player may ask the environment, wherever it runs.

    An engine-backed policy never looks. Asking an environment that lacks the ability fails the episode.
    """

    @abstractmethod
    async def oracle(self) -> str:
        """`TextEnv.oracle` of the current state."""

    @abstractmethod
    async def legal_actions(self) -> Sequence[str]:
        """`TextEnv.legal_actions` of the current state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnContext:
    """What a policy may look at before it replies."""

    system: str
    """The tag's system prompt, rendered; empty for none."""
    prompt: str
    """The user message of this turn: the tag's template around the observation."""
    observation: str
    turn_index: int
    """From 0."""
    num_actions_left: int
    """Turns left, this one included."""
    env: EnvView
    """For oracles and random players: `await turn.env.oracle()`."""
    seed: int
    """Differs between members of a group and between turns; the same in every run."""
    log: TokenLog
    """The episode's token log. An engine-backed policy appends the prompt and what it sampled."""
    session_id: str
    """The episode's id: the key of prefix reuse and affinity."""
    tools: Sequence[Mapping[str, Any]] = ()
    """Functions that a reply may call, for the chat template: `info["tools"]` of the environment's reset."""
    turns: Sequence[Turn] = ()
    """The episode's turns before this one. Read only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One action of the policy."""

    text: str
    finish_reason: str = "stop"
    """`stop`, `length` or `abort`."""
    response_start: int = 0
    """Index of the reply's first token in the token log; 0 when the policy has no tokens."""
    response_end: int = 0
    """One past the reply's last token."""


class SequenceFull(Exception):
    """There is no room for another reply within `sequence_length`: the episode is truncated here."""

    def __init__(self, *, num_tokens: int, max_new_tokens: int, sequence_length: int) -> None:
        super().__init__(
            f"{num_tokens} tokens leave no room for a reply of {max_new_tokens} "
            f"within sequence_length={sequence_length}"
        )
        self.num_tokens = num_tokens
        self.max_new_tokens = max_new_tokens
        self.sequence_length = sequence_length


class PolicyFailed(Exception):
    """The policy has no reply and the episode no outcome; carries why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure

    @classmethod
    def by(cls, error: Exception) -> PolicyFailed:
        """Of an exception that a policy did not foresee; the message ends with where it was raised."""
        failure = Failure.from_exception(Boundary.POLICY, error)
        frames = traceback.extract_tb(error.__traceback__)[1:][-_FRAMES:]
        places = [f"{'/'.join(Path(each.filename).parts[-2:])}:{each.lineno} {each.name}" for each in frames]
        return cls(replace(failure, message=f"{failure.message} (at {' > '.join(places)})"))


_FRAMES = 6
"""Innermost calls that are named; the first of all, which called the policy, is none of its own."""


class Policy(ABC):
    """Plays turns. One instance may play many episodes at once and keeps nothing between them."""

    name: str

    @abstractmethod
    async def act(self, turn: TurnContext) -> Reply:
        """The reply to one observation.

        Raises SequenceFull when the token log has no room, which truncates the episode, and PolicyFailed when
        there is none to be had. Any other exception fails the episode too (`policy/raised`); an EnvsdkError
        ends the run.
        """
