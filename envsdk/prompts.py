"""What the policy is shown: a system message per tag, and a template around each observation."""

from __future__ import annotations

import re
from dataclasses import dataclass

PLACEHOLDERS = ("observation", "turn_idx", "actions_left", "max_response_length")
"""What `agent_template` may contain in braces; other braces are plain text."""

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
