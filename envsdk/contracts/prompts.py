"""What the policy is shown: a system message per tag, and a template around each observation."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envsdk.contracts.policy import TurnContext
    from envsdk.contracts.trajectory import Turn

PLACEHOLDERS = ("observation", "turn_idx", "actions_left", "max_response_length")
"""What `agent_template` may contain in braces; other braces are plain text."""

SUMMARY = "summary"
"""Role of a turn in which the policy is asked what to remember: it begins the next line."""

PREFIX = "prefix"
"""Role of a turn that is replayed from an earlier episode, where this one begins: see `prefix_sampling`."""

Message = dict[str, str]
"""`role` and `content`."""

_FIELD = re.compile(r"\{(" + "|".join(PLACEHOLDERS) + r")\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPrompts:
    """The two templates of a tag.

    prompts = AgentPrompts(system="You walk on ice.", template="Turn {turn_idx}:\\n{observation}")
    prompts.user(observation="S F\\nF G", turn_index=0, num_actions_left=8, max_response_length=8)
    """

    system: str = ""
    template: str = "{observation}"

    def system_of(self, role: str) -> str:
        """The system prompt of one of several players, whose name replaces `{role}`."""
        return self.system.replace("{role}", role) if role else self.system

    def user(
        self, *, observation: str, turn_index: int, num_actions_left: int, max_response_length: int
    ) -> str:
        """The user message of one turn. `turn_idx` counts from 1; `max_response_length` is in tokens."""
        if self.template == "{observation}":
            return observation
        values = {
            "observation": observation,
            "turn_idx": str(turn_index + 1),
            "actions_left": str(num_actions_left),
            "max_response_length": str(max_response_length),
        }
        return _FIELD.sub(lambda match: values[match.group(1)], self.template)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of an episode as messages, in the parts with which an engine is asked for its first reply."""

    system: str = ""
    history: Sequence[Message] = ()
    """What the first prompt shows before its user message; its replies are given, not learned."""
    spoken: Sequence[Message]
    """All from that user message to the last reply."""
    tools: Sequence[Mapping[str, Any]] = ()

    @property
    def messages(self) -> list[Message]:
        """The conversation, from the system prompt to the last reply."""
        return [*opening(self.system, self.history), *self.spoken]


@dataclass(frozen=True, slots=True, kw_only=True)
class TagPrompts:
    """What it takes to write the conversations of a tag's episodes: templates, and the limits they show.

    The environment is named for those who keep the episodes.
    """

    prompts: AgentPrompts = field(default_factory=AgentPrompts)
    max_turns: int
    """Turns before an episode is truncated; templates show how many are left as `{actions_left}`."""
    max_new_tokens: int = 0
    """Maximum length of a reply in tokens; templates show it as `{max_response_length}`."""
    env_type: str = field(default="", compare=False)
    """The environment's id; empty where it is not known."""
    env_config: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Its arguments."""
    window: int = 0
    """How many turns a prompt shows, this one included; 0: all."""

    def line(
        self,
        turns: Sequence[Turn],
        numbers: Sequence[int] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Line:
        """A line as the policy saw and wrote it.

        `turns` are those of the episode; `numbers` says which of them a segment has, absent all.
        """
        numbers = range(len(turns)) if numbers is None else numbers
        first = numbers[0] if numbers else 0
        role = turns[first].role if turns else ""
        replayed = [n for n in numbers if turns[n].role == PREFIX]
        shown = self.spoken(turns, [*self.carried(turns, first, role), *replayed])
        return Line(
            system=self.prompts.system_of(role),
            history=[*own_history(turns, first), *shown],
            spoken=self.spoken(turns, numbers[len(replayed) :]),
            tools=tools,
        )

    def carried(self, turns: Sequence[Turn], first: int, role: str) -> Sequence[int]:
        """Turns before a line's `first` that its prompt shows again: a summary, or those of the window.

        `role`: whose line it is, among several players; a window has that role's turns alone.
        """
        if first and turns[first - 1].role == SUMMARY:
            return [first - 1]
        own = [n for n in range(first) if not role or turns[n].role == role] if self.window else []
        return own[max(0, len(own) - self.window + 1) :]

    def asked(self, turn: TurnContext) -> list[Message]:
        """The conversation that a policy is to continue, up to the user message with the new observation."""
        shown = self.spoken(turn.turns, turn.shown)
        return [*opening(turn.system, turn.history), *shown, {"role": "user", "content": turn.prompt}]

    def spoken(self, turns: Sequence[Turn], numbers: Sequence[int]) -> list[Message]:
        """These turns of the episode as messages; requests for a summary are no steps of the environment."""
        messages: list[Message] = []
        steps = list(accumulate((turn.role != SUMMARY for turn in turns), initial=0))
        for number in numbers:
            turn, step = turns[number], steps[number]
            user = turn.observation
            if turn.role != SUMMARY:
                user = self.prompts.user(
                    observation=turn.observation,
                    turn_index=step,
                    num_actions_left=self.max_turns - step,
                    max_response_length=self.max_new_tokens,
                )
            messages.append({"role": "user", "content": user})
            messages.append({"role": "assistant", "content": turn.reply})
        return messages


def opening(system: str, history: Sequence[Mapping[str, Any]] = ()) -> list[Message]:
    """The messages before the first user message: the system prompt, if there is one, and `history`.

    A message of `history` in the role `system` takes the place of the system prompt.
    """
    has_own = any(each["role"] == "system" for each in history)
    return [*([{"role": "system", "content": system}] if system and not has_own else []), *map(dict, history)]


def own_history(turns: Sequence[Turn], first: int = 0) -> Sequence[Message]:
    """The messages before turn `first`, or else those before the first turn, where its details name some."""
    details = (json.loads(turns[number].details or "{}") for number in (first, 0) if turns)
    history: Sequence[Message] = next((each["history"] for each in details if "history" in each), ())
    return history
