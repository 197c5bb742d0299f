"""How a policy plays, besides its name: endpoint, script, concurrency, retries, rate limits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envsdk.failures import ConfigurationError
from envsdk.inference.rate_limits import RateLimits
from envsdk.inference.settings import api_key_of

if TYPE_CHECKING:
    from envsdk.inference.openai.chat import ChatEndpoint
    from envsdk.inference.sampling import SamplingParams
    from envsdk.play.model import ModelSource

ENDPOINT = "endpoint"
"""Name of the policy that asks a server of OpenAI's protocol."""
SCRIPTED = "scripted"
_OPENAI_ENGINE = "openai"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayOptions:
    """What `collect` may say about a policy besides its name and its model."""

    replies: Sequence[str] = ()
    """Of the policy `scripted`: one per turn, from the start again after the last."""
    endpoint: str | None = None
    """Of the policy `endpoint`: the server's URL, such as `http://127.0.0.1:8000/v1`."""
    endpoint_model: str | None = None
    """Name of the model as the server knows it."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the server's key."""
    endpoint_body: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of every request; null leaves out one that would be sent."""
    concurrency: int | None = None
    """Episodes at the same time in each process."""
    max_attempts: int = 1
    """How often a task is played until its episode does not fail."""
    limits: RateLimits = field(default_factory=RateLimits)
    """Of each process."""

    def check(self, policy: str) -> None:
        """ConfigurationError when these do not go with the policy of this name."""
        if self.concurrency is not None and self.concurrency < 1:
            raise ConfigurationError(f"--concurrency: must be at least 1, not {self.concurrency}")
        if self.max_attempts < 1:
            raise ConfigurationError(f"--retries: must be at least 0, not {self.max_attempts - 1}")
        if policy != SCRIPTED and self.replies:
            raise ConfigurationError(f"--replies are for --policy {SCRIPTED}, not {policy}")
        given = [
            option
            for option, value in (
                ("--endpoint", self.endpoint),
                ("--endpoint-model", self.endpoint_model),
                ("--api-key-env", self.api_key_env),
                ("--endpoint-body", self.endpoint_body),
            )
            if value
        ]
        if policy != ENDPOINT:
            if given:
                raise ConfigurationError(f"{given[0]} is for --policy {ENDPOINT}, not {policy}")
            return
        if not (self.endpoint and self.endpoint_model):
            raise ConfigurationError(
                f"--policy {ENDPOINT} needs --endpoint URL and --endpoint-model NAME, "
                "such as --endpoint http://127.0.0.1:8000/v1 --endpoint-model Qwen/Qwen3-0.6B"
            )
        if not self.endpoint.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"--endpoint: {self.endpoint!r} is no URL; it begins with http:// or https://"
            )
        api_key_of(self.api_key_env, where="--api-key-env")

    def applied_to(self, model: ModelSource) -> ModelSource:
        """A model's source as these options have it run: where, and how many episodes at a time."""
        if self.concurrency is not None:
            model = replace(model, max_running=self.concurrency)
        if self.endpoint is None:
            return model
        settings: dict[str, Any] = {"base_url": self.endpoint, "model": self.endpoint_model}
        if self.api_key_env is not None:
            settings["api_key_env"] = self.api_key_env
        if self.endpoint_body:
            settings["extra_body"] = dict(self.endpoint_body)
        before = model.settings if model.engine == _OPENAI_ENGINE else {}
        return replace(model, engine=_OPENAI_ENGINE, settings={**before, **settings})

    def chat_endpoint(self, generating: SamplingParams, greedy: bool) -> ChatEndpoint | None:
        """The endpoint as a server of chat completions; None when there is none."""
        if self.endpoint is None or self.endpoint_model is None:
            return None
        try:
            from envsdk.inference.openai.chat import ChatEndpoint
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"--policy {ENDPOINT} needs the extra `openai` ({error.name} is missing): "
                "pip install 'envsdk[openai]'"
            ) from error
        return ChatEndpoint(
            base_url=self.endpoint,
            model=self.endpoint_model,
            generating=replace(generating, temperature=0.0) if greedy else generating,
            api_key_env=self.api_key_env,
            extra_body=self.endpoint_body,
        )


def read_replies(path: Path) -> tuple[str, ...]:
    """The replies of a scripted policy: a JSON list of strings, or a text file with one reply per line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--replies: cannot read {path}: {error}") from error
    if path.suffix != ".json":
        replies = text.splitlines()
    else:
        try:
            replies = json.loads(text)
        except ValueError as error:
            raise ConfigurationError(f"--replies: {path} is not JSON: {error}") from error
    if not isinstance(replies, list) or not replies or not all(isinstance(reply, str) for reply in replies):
        raise ConfigurationError(f"--replies: {path} must hold at least one reply, as a list of texts")
    return tuple(replies)


def read_body(text: str) -> dict[str, Any]:
    """`--endpoint-body` as an object."""
    try:
        body = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"--endpoint-body: not JSON: {error}") from error
    if not isinstance(body, dict):
        raise ConfigurationError('--endpoint-body: must be an object, such as {"top_k": 20}')
    return body
