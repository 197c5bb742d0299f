"""The policy contract. A policy replies to observations: a model, a script, an oracle or a human."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from envsdk.contracts.failures import Boundary, Failure, raised_at
from envsdk.contracts.prompts import Message
from envsdk.contracts.trajectory import FinishReason, TokenLog, Turn


class EnvView(ABC):
    """What an oracle or a random player may ask the environment, which may run in another process.

    A model never uses it. The episode fails when the environment does not implement the method.
    """

    @abstractmethod
    async def oracle(self) -> str:
        """`TextEnv.oracle` of the current state."""

    @abstractmethod
    async def legal_actions(self) -> Sequence[str]:
        """`TextEnv.legal_actions` of the current state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnContext:
    """What a policy gets for one turn."""

    system: str
    """The tag's system prompt, rendered; empty for none."""
    prompt: str
    """The user message of this turn: the tag's template around the observation."""
    observation: str
    turn_index: int
    """Number of the turn, from 0."""
    num_actions_left: int
    """Turns left, including this one."""
    env: EnvView
    """For oracles and random players: `await turn.env.oracle()`."""
    seed: int
    """For sampling. Differs between the turns and between the members of a group; the same in every run."""
    log: TokenLog
    """The episode's token log. A policy that samples tokens appends each prompt and each reply."""
    session_id: str
    """The episode's id. Engines use it to find the cached prefix of the prompt."""
    prompt_group: int | None = None
    """Turns with this number have the same prompt: the first ones of a group. None at later turns."""
    tools: Sequence[Mapping[str, Any]] = ()
    """Functions that a reply may call, for the chat template: `info["tools"]` of the reset."""
    turns: Sequence[Turn] = ()
    """The episode's turns before this one, those of other players included. Read only."""
    line_start: int = 0
    """Which of them is the first that the prompt shows as a turn; those before it are left out, or in
    `history`."""
    role: str = ""
    """Whom to play, among several players. `log` is that role's alone; others see things it must not."""
    history: Sequence[Message] = ()
    """Messages before the first user message, such as worked examples: `info["history"]` of the reset. One
    in the role `system` takes the place of the tag's."""
    reserved_prompt: str = ""
    """A user message for which, and for a reply to it, this turn must leave room; otherwise SequenceFull."""

    @property
    def shown(self) -> Sequence[int]:
        """Which of `turns` the prompt shows as turns: of the present line, and of `role` alone."""
        return [n for n in range(self.line_start, len(self.turns)) if self.turns[n].role == self.role]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One action of the policy."""

    text: str
    finish_reason: FinishReason = FinishReason.STOP
    response_start: int = 0
    """Index of the reply's first token in the token log; 0 when the policy has no tokens."""
    response_end: int = 0
    """One past the reply's last token."""
    learned: bool = True
    """False: nobody is to imitate it, such as a random move. The episode keeps it; `envsdk sft` learns the
    replies after it."""


class SequenceFull(Exception):
    """Another reply does not fit into `sequence_length`: the episode is truncated."""

    def __init__(self, *, num_tokens: int, max_new_tokens: int, sequence_length: int) -> None:
        super().__init__(
            f"{num_tokens} tokens leave no room for a reply of {max_new_tokens} "
            f"within sequence_length={sequence_length}"
        )
        self.num_tokens = num_tokens
        self.max_new_tokens = max_new_tokens
        self.sequence_length = sequence_length

    @property
    def num_needed(self) -> int:
        """The `sequence_length` into which the reply would fit."""
        return self.num_tokens + self.max_new_tokens


class ContextFull(SequenceFull):
    """A server says that prompt and reply do not fit into its model's context; the text is the server's."""

    def __init__(self, message: str) -> None:
        Exception.__init__(self, message)


class PolicyFailed(Exception):
    """The policy has no reply, so the episode has no outcome; `failure` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure

    @classmethod
    def by(cls, error: BaseException) -> PolicyFailed:
        """For an exception that the policy did not handle. The message ends with where it was raised."""
        failure = Failure.from_exception(Boundary.POLICY, error)
        return cls(replace(failure, message=f"{failure.message} ({raised_at(error, 6)})"))


class Policy(ABC):
    """Plays turns. One instance may play many episodes at once and keeps no state between calls."""

    name: str

    @abstractmethod
    async def act(self, turn: TurnContext) -> Reply:
        """The reply to one observation.

        SequenceFull truncates the episode because the next reply does not fit. PolicyFailed fails it, and so
        does any other exception (as `policy/raised`), except EnvsdkError, which ends the run.
        """
