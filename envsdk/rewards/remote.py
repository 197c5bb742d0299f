"""The reward `remote`: a server of your own scores responses over HTTP.

A request holds the sample, and the answer is the reward; `verdict`, `correct` and `parts` may be left out:

    {"response": "...", "messages": [{"role": "user", "content": "..."}], "row": {"ground_truth": "12"}}
    {"value": 1.0, "verdict": "12 is right", "correct": true, "parts": {"accuracy": 1.0}}
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from envsdk.base.settings.strict import StrictSettings
from envsdk.engines.engine_support.failures import ReplyRefused
from envsdk.rewards.reward import Reward, Sample
from envsdk.rewards.server_reward import Address, ServerArgs, ServerReward


class RemoteArgs(ServerArgs):
    """Settings of the reward `remote`."""

    url: Address
    """Where requests are sent, such as `http://127.0.0.1:9000/score`."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Further fields of every request."""


class _Answer(StrictSettings):
    value: float
    verdict: str = ""
    correct: bool | None = None
    parts: dict[str, float] = Field(default_factory=dict)

    model_config = ConfigDict(strict=True)


_ANSWER = TypeAdapter(_Answer)


class Remote(ServerReward):
    """See the module's text."""

    Args = RemoteArgs

    def __init__(self, args: RemoteArgs) -> None:
        super().__init__(args, url=args.url, name="remote")
        self._extra = args.extra_body

    async def ask(self, sample: Sample, *, afresh: bool = False) -> Reward:
        row = json.loads(json.dumps(dict(sample.row), default=_plain))
        answer = await self.post(
            {"response": sample.response, "messages": list(sample.messages), "row": row, **self._extra}
        )
        try:
            read = _ANSWER.validate_json(answer)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            where = ".".join(map(str, problem["loc"])) or "the answer"
            raise ReplyRefused(f"{self._url} sent no reward: {where}: {problem['msg']}") from error
        return Reward(value=read.value, verdict=read.verdict, correct=read.correct, parts=read.parts)


def _plain(value: Any) -> Any:
    """Lists of NumPy's as lists, everything else as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
