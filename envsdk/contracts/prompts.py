"""What the policy is shown: a system message per tag, and a template around each observation."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envsdk.contracts.trajectory import Turn

PLACEHOLDERS = ("observation", "turn_idx", "actions_left", "max_response_length")
"""What `agent_template` may contain in braces; other braces are plain text."""

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

    def messages(self, turns: Sequence[Turn], numbers: Sequence[int] | None = None) -> list[Message]:
        """The conversation as the policy saw and wrote it, from the system prompt to the last reply.

        `numbers`: which turns of the episode they are; absent, the first ones.
        """
        return conversation(
            turns,
            self.prompts,
            max_turns=self.max_turns,
            max_new_tokens=self.max_new_tokens,
            numbers=numbers,
        )


def opening(system: str, history: Sequence[Mapping[str, Any]] = ()) -> list[Message]:
    """The messages before the first user message: the system prompt, if there is one, and `history`.

    A message of `history` in the role `system` takes the place of the system prompt.
    """
    has_own = any(each["role"] == "system" for each in history)
    return [*([{"role": "system", "content": system}] if system and not has_own else []), *map(dict, history)]


def own_history(turns: Sequence[Turn]) -> Sequence[Message]:
    """The messages before the first observation, where the first turn's details name some."""
    details = turns[0].details if turns else None
    history: Sequence[Message] = json.loads(details).get("history", ()) if details else ()
    return history


def conversation(
    turns: Sequence[Turn],
    prompts: AgentPrompts,
    *,
    max_turns: int,
    max_new_tokens: int,
    history: Sequence[Message] | None = None,
    numbers: Sequence[int] | None = None,
) -> list[Message]:
    """Turns as chat messages; no system message when the tag has no system prompt.

    `history` are messages before the first user message; absent, those that the first turn's details name.
    `numbers`: which turns of the episode they are; absent, the first ones.
    """
    messages = opening(prompts.system, own_history(turns) if history is None else history)
    for index, turn in zip(numbers or range(len(turns)), turns, strict=True):
        user = prompts.user(
            observation=turn.observation,
            turn_index=index,
            num_actions_left=max_turns - index,
            max_response_length=max_new_tokens,
        )
        messages.append({"role": "user", "content": user})
        messages.append({"role": "assistant", "content": turn.reply})
    return messages
