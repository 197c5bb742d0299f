"""Pure: the messages of OpenEnv's WebSocket and HTTP protocol, as openenv-core 0.3 sends and reads them.

-> {"type": "reset", "data": {"seed": 7}}
<- {"type": "observation", "data": {"observation": {...}, "reward": null, "done": false}}
-> {"type": "step", "data": {...the action...}}
<- {"type": "observation", "data": {"observation": {...}, "reward": 1.0, "done": true}}
-> {"type": "state"}                    <- {"type": "state", "data": {...}}
-> {"type": "close"}                    <- the connection is closed
                                        <- {"type": "error", "data": {"message": ..., "code": ...}}
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt


class ErrorCode(StrEnum):
    """What went wrong, for programs."""

    INVALID_JSON = "INVALID_JSON"
    UNKNOWN_TYPE = "UNKNOWN_TYPE"
    VALIDATION_ERROR = "VALIDATION_ERROR"
    EXECUTION_ERROR = "EXECUTION_ERROR"
    CAPACITY_REACHED = "CAPACITY_REACHED"
    FACTORY_ERROR = "FACTORY_ERROR"
    SESSION_ERROR = "SESSION_ERROR"


class ProtocolError(Exception):
    """An error message, sent or received."""

    def __init__(self, code: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = dict(details or {})

    def data(self) -> dict[str, Any]:
        return {"message": self.message, "code": str(self.code), **self.details}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TextAction(_Strict):
    """One reply of the policy."""

    text: str
    """All of the reply."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Not looked at."""


class TextObservation(_Strict):
    """What an environment of ours answers."""

    text: str
    success: bool | None = None
    """Whether the task is solved; null before the first action."""
    truncated: bool = False
    """Whether the episode ended at its limit of turns."""
    metrics: dict[str, float] = Field(default_factory=dict)
    done: bool = False
    reward: float | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)

    def data(self) -> dict[str, Any]:
        """As it is sent: `reward` and `done` next to the observation."""
        inside = self.model_dump(exclude={"done", "reward", "metadata"})
        return {"observation": inside, "reward": self.reward, "done": self.done}


class EpisodeState(BaseModel):
    """What `state` answers."""

    episode_id: str | None = None
    step_count: NonNegativeInt = 0
    seed: int | None = None
    done: bool = False


class ResetData(BaseModel):
    """Arguments of `reset`; those that are not known are ignored, as there."""

    model_config = ConfigDict(extra="ignore")

    seed: NonNegativeInt | None = None
    episode_id: Annotated[str, Field(min_length=1, max_length=255)] | None = None


class StepBody(BaseModel):
    """Body of `POST /step`; its `episode_id` names the session that `POST /reset` opened."""

    model_config = ConfigDict(extra="ignore")

    action: TextAction
    episode_id: str | None = None


class ResetMessage(_Strict):
    type: Literal["reset"]
    data: ResetData = Field(default_factory=ResetData)


class StepMessage(_Strict):
    type: Literal["step"]
    data: TextAction


class StateMessage(_Strict):
    type: Literal["state"]


class CloseMessage(_Strict):
    type: Literal["close"]


MESSAGES: Mapping[str, type[ResetMessage | StepMessage | StateMessage | CloseMessage]] = {
    "reset": ResetMessage,
    "step": StepMessage,
    "state": StateMessage,
    "close": CloseMessage,
}


def schemas() -> dict[str, Any]:
    """What `GET /schema` answers for any environment of ours."""
    return {
        "action": TextAction.model_json_schema(),
        "observation": TextObservation.model_json_schema(),
        "state": EpisodeState.model_json_schema(),
    }


def own_fields(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Properties of an action's or an observation's schema that are not common to all of them."""
    properties = schema.get("properties", {})
    common = ("metadata", "done", "reward")
    return {name: field for name, field in properties.items() if name not in common}


def text_field(schema: Mapping[str, Any]) -> str | None:
    """The field of an action or an observation that holds its text; None when it is more than a text.

    It is the one named `text`, when it is a string and no other field is required; else the only one.
    """
    fields = own_fields(schema)
    required = set(schema.get("required", ())) & fields.keys()
    strings = [name for name, field in fields.items() if field.get("type") == "string"]
    if "text" in strings and required <= {"text"}:
        return "text"
    return strings[0] if len(fields) == 1 and strings else None
