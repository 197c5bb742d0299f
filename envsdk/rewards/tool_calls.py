"""The `tool_calls` reward: the response makes the calls of the row's `ground_truth`, and no others."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from envsdk.base.settings.strict import StrictSettings
from envsdk.engines.tool_calls.formats import read_reply
from envsdk.engines.tool_calls.reading import split_thought
from envsdk.rewards.reward import InlineReward, Reward, RewardError, Sample

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


class ToolCallsArgs(StrictSettings):
    """The settings of `tool_calls`."""

    require_think: bool = False
    """The response begins with one `<think>...</think>`, and only its calls follow."""


class ToolCallsReward(InlineReward[ToolCallsArgs]):
    """1 when names and arguments of all calls are those of `ground_truth`, in any order; otherwise 0.

    A call is `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, whose tags may hold a list, or as
    another family of models writes it. `ground_truth` is such a list, as data or as JSON; an empty one wants
    no call.
    """

    Args = ToolCallsArgs

    def score(self, sample: Sample) -> Reward:
        """Raises RewardError when the row's calls cannot be read."""
        if (expected := _calls(sample.row.get("ground_truth"))) is None:
            raise RewardError("its row's ground_truth is no list of calls")
        text = sample.response
        if self.args.require_think:
            thought, closing, text = text.partition("</think>")
            if not closing or thought.strip()[:7] != "<think>" or "<think>" in thought.strip()[7:] + text:
                return Reward(value=0.0, verdict="does not begin with one <think>...</think>", correct=False)
        reading, text = read_reply(text), split_thought(text)[1]
        read = [{"name": call.name, "arguments": json.loads(call.arguments)} for call in reading.calls]
        found: Counter[str] = Counter()
        for part in [read] if read else _CALL.findall(text) or [""] * bool(reading.problem):
            if (calls := _calls(part)) is None:
                return Reward(value=0.0, verdict="has a call that cannot be read", correct=False)
            found += calls
        if found == expected:
            return Reward(value=1.0, verdict="makes the right calls", correct=True)
        wrong = next(iter(found - expected), "") or f"no {next(iter(expected - found))}"
        return Reward(value=0.0, verdict=f"calls {wrong[:120]}", correct=False)

    def reference(self, sample: Sample) -> str | None:
        calls = _calls(sample.row.get("ground_truth")) or Counter()
        shown = "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls.elements())
        return f"<think>\n\n</think>\n{shown}" if self.args.require_think else shown or None

    def problem(self, row: Mapping[str, Any]) -> str | None:
        return None if _calls(row.get("ground_truth")) is not None else "its ground_truth is no list of calls"


def _calls(value: Any) -> Counter[str] | None:
    """The calls as canonical JSON, with their numbers; None where they cannot be read."""
    try:
        value = json.loads(value) if isinstance(value, str) else value
        calls = [value] if isinstance(value, Mapping) else value
        plain = [{"name": call["name"], "arguments": call["arguments"]} for call in calls]
        return Counter(json.dumps(call, sort_keys=True) for call in plain)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
