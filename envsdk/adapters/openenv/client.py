"""`OpenEnvClientEnv`: an environment that runs behind an OpenEnv server."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

from envsdk.adapters.hosted import Answer, HostedEnv
from envsdk.adapters.missing import import_extra
from envsdk.adapters.text import REPLY_FORMATS, ReplyFormat, tagged_answer
from envsdk.contracts.failures import ConfigurationError

_SCHEMES = ("http", "https", "ws", "wss")


class OpenEnvFailed(Exception):
    """The server is gone or full, or its environment failed: the episode has no outcome and is masked."""


class ServerError(Exception):
    """An error message of the server. The session is still open."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.code = str(data.get("code", ""))
        self.message = str(data.get("message", ""))
        self.errors = data.get("errors")
        """What is wrong with the action, as pydantic says it."""
        super().__init__(f"{self.message} ({self.code})")


def openenv_prompt(
    *,
    url: str = "",
    token_variable: str = "",
    reply: ReplyFormat = "whole",
    action_field: str | None = None,
    **_: Any,
) -> str:
    """The system prompt: the task in the server's words (`/metadata`), and what an action is (`/schema`).

    Where the server does not answer now, the form of a reply alone.
    """
    description, fields = "", dict[str, Any]()
    with contextlib.suppress(*_unreadable(), ConfigurationError):
        headers = _headers(token_variable)
        schema = _page(url, "schema", headers, timeout_s=_PROMPT_TIMEOUT_S)["action"]
        action_field = text_field(schema) or "" if action_field is None else action_field
        fields = own_fields(schema)
        description = str(
            _page(url, "metadata", headers, timeout_s=_PROMPT_TIMEOUT_S).get("description") or ""
        )
    form = " as a JSON object" if action_field == "" else ""
    lines = [
        description,
        f"Reply with the action{form} in tags: <answer>...</answer>."
        if reply == "tag"
        else f"Reply with the action{form} and nothing else.",
    ]
    if fields and action_field == "":
        lines.append(f"Its fields: {json.dumps(fields, ensure_ascii=False)}")
    elif rules := {key: value for key, value in fields.get(action_field or "", {}).items() if key in _RULES}:
        lines.append(f"The action: {json.dumps(rules, ensure_ascii=False)}")
    return "\n".join(filter(None, lines))


_RULES = ("description", "enum", "examples", "pattern", "maxLength")
"""Keys of a text field's schema that tell which texts are actions."""

_PROMPT_TIMEOUT_S = 5.0
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError)
"""Errors over an answer that is not as it should be."""


def _unreadable() -> tuple[type[Exception], ...]:
    """What comes of a page that is not there, or not as it should be."""
    httpx2 = import_extra("httpx2", extra="openenv")
    return (*_UNREADABLE, httpx2.HTTPError)


def _page(url: str, name: str, headers: Mapping[str, str], *, timeout_s: float) -> Any:
    """The JSON of one of the server's pages."""
    parts = urlsplit(url)
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    address = urlunsplit((scheme, parts.netloc, f"{parts.path.rstrip('/')}/{name}", "", ""))
    answer = import_extra("httpx2", extra="openenv").get(address, headers=headers, timeout=timeout_s)
    answer.raise_for_status()
    return answer.json()


def _headers(token_variable: str) -> dict[str, str]:
    if not token_variable:
        return {}
    token = os.environ.get(token_variable)
    if not token:
        raise ConfigurationError(f"envsdk/OpenEnv-v1: the environment variable {token_variable} is not set")
    return {"Authorization": f"Bearer {token}"}


class OpenEnvClientEnv(HostedEnv):
    """One session of a running OpenEnv server, over a WebSocket of OpenEnv's own client.

        reset -> connect, if it is not connected -> reset message -> text
        step  -> step message -> text, reward, done

    Which field of an action the reply fills, and which of an observation is shown, is read off the
    server's `/schema`. An action that the server refuses is an invalid reply: it costs a turn and the
    observation says why. A server that is gone, full, silent or whose environment raises fails the episode.
    """

    def __init__(
        self,
        *,
        url: str,
        token_variable: str = "",
        action_field: str | None = None,
        observation_field: str | None = None,
        reply: ReplyFormat = "whole",
        success: Literal["rewarded"] | float | None = None,
        reset_options: Mapping[str, Any] | None = None,
        max_steps: int = 100,
        invalid_penalty: float = 0.0,
        connect_timeout_s: float = 30.0,
        message_timeout_s: float = 60.0,
        max_message_mb: float = 16.0,
    ) -> None:
        """
        Args:
            url: The server, such as `http://127.0.0.1:8000`.
            token_variable: Environment variable with the bearer token that the server wants.
            action_field: Field of the action that the reply fills. Without it the only text field of the
                action's schema; where there is more to fill, the reply is a JSON object. `""`: JSON always.
            observation_field: Field of the observation that is shown. Without it `text` or the only text
                field; else all of the observation as JSON. `""`: JSON always.
            reply: The action in a reply: `whole`, all of it, or `tag`, the content of the last `<answer>`.
            success: When a task counts as solved: `rewarded`, it is done with a reward above zero in the
                last turn; or a number that the return must reach. By default what the observation says under
                `success`, else `rewarded`.
            reset_options: More arguments of the server's `reset`.
            max_steps: Replies before the episode is truncated.
            invalid_penalty: Taken off the reward of a turn whose action the server refuses.
            connect_timeout_s: For connecting and for `/schema`.
            message_timeout_s: For the answer to one message.
            max_message_mb: Longest answer.
        """
        super().__init__(max_steps=max_steps, invalid_penalty=invalid_penalty)
        if reply not in REPLY_FORMATS:
            raise ValueError(f"reply: must be one of {', '.join(REPLY_FORMATS)}, not {reply!r}")
        is_number = isinstance(success, int | float) and not isinstance(success, bool)
        if success not in (None, "rewarded") and not is_number:
            raise ValueError(f"success: must be rewarded, or a number, not {success!r}")
        parts = urlsplit(url)
        if parts.scheme not in _SCHEMES or not parts.hostname:
            raise ValueError(f"url: must look like http://HOST:PORT, not {url!r}")
        if "seed" in (reset_options or {}):
            raise ValueError("reset_options: the seed is the task's")
        self.url = url.rstrip("/")
        self._token_variable = token_variable
        self._action_field = action_field
        self._observation_field = observation_field
        self._reply_format = reply
        self._is_solved = success
        self._reset_options = dict(reset_options or {})
        self._connect_timeout_s = connect_timeout_s
        self._message_timeout_s = message_timeout_s
        self._max_message_mb = max_message_mb
        self._connection: Any = None
        """A `Connection` that waits for its answers."""
        self._return = 0.0

    def _start(self, seed: int) -> object:
        self._return = 0.0
        return self._text(self._asked("reset", **self._reset_options, seed=seed).observation)

    def _answer(self, reply: str) -> Answer:
        action, why = self._action(reply)
        if action is None:
            return Answer(note=why)
        try:
            result = self._ask("step", action)
        except ServerError as error:
            if error.code == "VALIDATION_ERROR":
                return Answer(note=f"Invalid action: {_refusal(error)}")
            raise self._failed("step", error) from error
        said = {**_mapping(result.metadata), **_mapping(result.observation)}
        reward, done = float(result.reward or 0.0), bool(result.done)
        self._return += reward
        truncated = done and said.get("truncated") is True
        return Answer(
            observation=self._text(result.observation),
            reward=reward,
            terminated=done and not truncated,
            truncated=truncated,
            success=done and self._solved(reward, said),
            metrics={"action_is_valid": 1.0, **_mapping(said.get("metrics"))},
        )

    def state(self) -> dict[str, Any]:
        """What the server tells of the episode's state. Raises OpenEnvFailed."""
        state: dict[str, Any] = self._asked("state")
        return state

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()

    def _solved(self, reward: float, said: Mapping[str, Any]) -> bool:
        match self._is_solved:
            case None if isinstance(said.get("success"), bool):
                return bool(said["success"])
            case None | "rewarded":
                return reward > 0
            case needed:
                return self._return >= needed

    def _action(self, reply: str) -> tuple[dict[str, Any] | None, str]:
        """The action that a reply stands for; None and why when it stands for none."""
        text = reply.encode("utf-8", "replace").decode()
        if self._reply_format == "tag":
            answer = tagged_answer(text)
            if answer is None:
                return None, "Invalid action: no <answer> found."
            text = answer
        if self._action_field:
            return {self._action_field: text}, ""
        try:
            action = json.loads(text)
        except (ValueError, RecursionError):
            return None, "Invalid action: not a JSON object."
        return (action, "") if isinstance(action, dict) else (None, "Invalid action: not a JSON object.")

    def _text(self, observation: Any) -> object:
        if not isinstance(observation, Mapping):
            return json.dumps(observation, ensure_ascii=False)
        if self._observation_field:
            return observation.get(self._observation_field, "")
        shown = {name: value for name, value in observation.items() if name != "metadata"}
        return json.dumps(shown, ensure_ascii=False)

    def _asked(self, kind: str, *action: Any, **options: Any) -> Any:
        """As `_ask`; an error message fails the episode, too."""
        try:
            return self._ask(kind, *action, **options)
        except ServerError as error:
            raise self._failed(kind, error) from error

    def _ask(self, kind: str, *action: Any, **options: Any) -> Any:
        """The answer to one message. Raises ServerError, and OpenEnvFailed when there is no answer."""
        if self._connection is None:
            self._connection = self._connected()
        try:
            return getattr(self._connection, kind)(*action, **options)
        except TimeoutError as error:
            raise self._lost(f"no answer to {kind} within {self._message_timeout_s:g} s") from error
        except (*_UNREADABLE, OSError, _openenv().WebSocketException) as error:
            raise self._lost(f"{kind}: {type(error).__name__}: {error}") from error

    def _connected(self) -> Any:
        headers = _headers(self._token_variable)
        if self._action_field is None or self._observation_field is None:
            self._read_schema(headers)
        client = _openenv().Connection(
            base_url=self.url,
            headers=headers,
            connect_timeout_s=self._connect_timeout_s,
            message_timeout_s=self._message_timeout_s,
            max_message_size_mb=self._max_message_mb,
            mode="simulation",
        )
        connection = client.sync()
        try:
            return connection.connect()
        except OSError as error:
            connection.close()
            raise self._lost(f"cannot connect: {error}") from error

    def _failed(self, kind: str, error: ServerError) -> OpenEnvFailed:
        self.close()
        is_full = error.code == "CAPACITY_REACHED"
        advice = "; raise its max_concurrent_envs, or play fewer at once" if is_full else ""
        return OpenEnvFailed(f"{self.url}: {kind}: {error}{advice}")

    def _read_schema(self, headers: Mapping[str, str]) -> None:
        """Find out which fields hold the texts."""
        try:
            schemas = _page(self.url, "schema", headers, timeout_s=self._connect_timeout_s)
            action, observation = text_field(schemas["action"]), text_field(schemas["observation"])
        except _unreadable() as error:
            raise self._lost(f"cannot read /schema: {type(error).__name__}: {error}") from error
        if self._action_field is None:
            self._action_field = action or ""
        if self._observation_field is None:
            self._observation_field = observation or ""

    def _lost(self, what: str) -> OpenEnvFailed:
        self.close()
        return OpenEnvFailed(f"OpenEnv server {self.url}: {what}")


def _openenv() -> ModuleType:
    """The module that needs OpenEnv's package. ConfigurationError when that is not installed."""
    module: ModuleType = import_extra(
        "envsdk.adapters.openenv.connection", extra="openenv", shown_as="openenv"
    )
    return module


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


def _mapping(value: object) -> Mapping[str, Any]:
    """What a server sent, where it is an object; it sends other values at will."""
    return value if isinstance(value, Mapping) else {}


def _refusal(error: ServerError) -> str:
    """Why the server refused an action, in one line."""
    match error.errors:
        case [{"loc": where, "msg": why}, *_] if where:
            return f"{'.'.join(map(str, where))}: {why}"
        case [{"msg": why}, *_]:
            return str(why)
    return error.message
