"""Which tasks are played by which policy, and how: the options that `collect` and `evaluate` share."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from envsdk.base.settings.options import Argument, Count, Option, Options, at_least, split_names
from envsdk.config import RunConfig
from envsdk.contracts.failures import ConfigurationError
from envsdk.engines.rate_limits import RateLimits
from envsdk.engines.settings import api_key_of

if TYPE_CHECKING:
    from envsdk.engines.openai.chat import ChatEndpoint
    from envsdk.engines.sampling import SamplingParams
    from envsdk.rollouts.play.model import ModelSource

ENDPOINT = "endpoint"
"""Name of the policy that asks a server of OpenAI's protocol."""
SCRIPTED = "scripted"
_OPENAI_ENGINE = "openai"
_OPTION = re.compile(r"--([a-z]+(?:-[a-z]+)*)")


def in_python(error: ConfigurationError) -> ConfigurationError:
    """The same error with options of the command line (`--max-turns`) named as arguments (`max_turns`)."""
    return ConfigurationError(_OPTION.sub(lambda option: option[1].replace("-", "_"), str(error)))


def read_replies(path: Path) -> tuple[str, ...]:
    """The replies in a file: a JSON list of strings, or a text file with one reply per line."""
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


class PlayOptions(Options):
    """How a policy plays: endpoint, script, concurrency, retries, rate limits."""

    replies: Annotated[tuple[str, ...], Option(metavar="FILE", reads=read_replies)] = ()
    """For --policy scripted: a JSON list of replies, or a text file with one per line; one is played per
    turn."""
    endpoint: Annotated[str | None, Option(metavar="URL")] = None
    """For --policy endpoint: a server of OpenAI's protocol, such as http://127.0.0.1:8000/v1."""
    endpoint_model: Annotated[str | None, Option(metavar="NAME")] = None
    """The model as the server knows it."""
    api_key_env: Annotated[str | None, Option(metavar="VARIABLE")] = None
    """Name of the environment variable that holds the server's key."""
    endpoint_body: Annotated[dict[str, Any], Option(metavar="JSON", reads=read_body)] = Field(
        default_factory=dict
    )
    """Further fields of every request; null leaves one out that would be sent."""
    concurrency: Count | None = None
    """Episodes at the same time in each process; what suits policy and environments when absent."""
    retries: Annotated[int, at_least(0)] = 0
    """How often a task is played again whose episode failed."""
    limits: RateLimits = RateLimits()

    def check(self, policy: str) -> None:
        """ConfigurationError when these do not go with the policy of this name."""
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
            from envsdk.engines.openai.chat import ChatEndpoint
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


class TaskOptions(Options):
    """Which tasks are played, and by which policy."""

    source: Annotated[str | Path | RunConfig, Argument("ENV_OR_YAML")]
    """A registered environment id, whole or its name alone (`envsdk envs` lists them), or a run's YAML file:
    a path, or the name of a shipped example. The YAML's tags, prompts and limits are used."""
    overrides: Annotated[tuple[str, ...], Argument("KEY=VALUE")] = ()
    """Replace single keys of the YAML; with an environment id, arguments of the environment, such as size=6,
    or else keys of the run, such as sequence_length=512."""
    num_episodes: Annotated[Count | None, Option("--episodes", "-n")] = 100
    """Episodes, over all tags."""
    samples_per_task: Annotated[Count | None, Option("--samples-per-task", "-k")] = 1
    """Episodes of each task; their sampling differs."""
    policy: str = "oracle"
    """Who plays: oracle, random, scripted, model, endpoint, a plug-in's name or package.module:Class."""
    epsilon: float = 0.0
    """Share of moves, from 0 to 1, replaced by random legal ones."""
    model: Annotated[Path | None, Option(metavar="FOLDER")] = None
    """For --policy model: a Hugging Face folder, a checkpoint, a run, or a model's name, such as smollm2;
    the YAML's `pretrain` when absent.
    For --policy endpoint: a folder with the served model's tokenizer, to keep tokens."""
    seed: Annotated[int | None, Field(ge=0)] = None
    """Seed of tasks and random moves; the YAML's, or 42, when absent."""
    split: str = "train"
    """Which tasks: train, val, or any other name."""
    tags: Annotated[tuple[str, ...] | None, Option(reads=split_names)] = None
    """Tags to play, in equal parts: repeat the option, or separate them by commas. Those of the YAML's env
    manager when absent."""
