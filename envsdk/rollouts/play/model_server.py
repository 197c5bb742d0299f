"""A model behind OpenAI's HTTP protocol, with its sessions recorded.

model = find_model("runs/NAME")
async with serve_model(model, EndpointConfig(...), out=Path("sessions")) as endpoint:
    print(endpoint.base_url())
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from envsdk.base.display.terminal import say
from envsdk.base.plugins import plugin_names
from envsdk.base.processes.garbage import collect_rarely, collect_when_grown
from envsdk.base.settings.nearest import did_you_mean
from envsdk.base.store.atomic import write_atomically
from envsdk.base.store.best import why_no_best
from envsdk.base.store.named_models import GROUP, is_named_model
from envsdk.contracts.failures import ConfigurationError
from envsdk.rollouts.play.model import (
    ModelSource,
    TinyPolicyMaker,
    find_model_folder,
    max_positions,
    model_source,
    open_model,
    running,
)
from envsdk.rollouts.play.source import DEFAULT_SEQUENCE_LENGTH, is_configuration, resolve_source

if TYPE_CHECKING:
    from envsdk.contracts.chat import ChatTokenizer
    from envsdk.engines.endpoint.server import Endpoint, EndpointConfig
    from envsdk.engines.proxy import InferenceProxy

TOKEN_VARIABLE = "ENVSDK_ENDPOINT_TOKEN"
SERVED_LENGTH = 8192
"""Longest context of a model without a YAML: the prompts of agents alone may have thousands of tokens."""
_AROUND = "envsdk/FrozenLake-v1"
"""Every configuration must play something; only the engine and the lengths of this one are used."""


def find_model(
    source: str,
    overrides: Sequence[str] = (),
    model: Path | None = None,
    *,
    make_tiny_policy: TinyPolicyMaker | None = None,
) -> ModelSource:
    """The model of a folder, of a name, or of a run's YAML file; `model` replaces that of the file.

    Raises ConfigurationError.
    """
    is_file = source.endswith((".yaml", ".yml"))
    if not is_file and (is_named_model(source) or Path(source).expanduser().is_dir()):
        if model is not None:
            raise ConfigurationError(f"--model: {source} is a model already")
        around = resolve_source(_AROUND, overrides)
        found = model_source(around, find_model_folder(Path(source)), False, around.config.seed)
        if around.config.sequence_length != DEFAULT_SEQUENCE_LENGTH:
            return found
        return replace(found, sequence_length=min(max_positions(found.folder), SERVED_LENGTH))
    if not (is_file or is_configuration(source)):
        if why := why_no_best(Path(source)):
            raise ConfigurationError(f"cannot serve {source!r}: {why}")
        names = plugin_names(GROUP)
        raise ConfigurationError(
            f"cannot serve {source!r}: it is neither a folder, a checkpoint, a run's YAML file nor a model's "
            f"name ({', '.join(names)}).{did_you_mean(source, names)}"
        )
    resolved = resolve_source(source, overrides)
    return model_source(resolved, model, False, resolved.config.seed, make_tiny_policy)


def script_length(overrides: Sequence[str]) -> int:
    """The context of a script without a model, from `sequence_length=N`. Raises ConfigurationError."""
    for each in overrides:
        if each.partition("=")[0] != "sequence_length":
            raise ConfigurationError(f"without MODEL, --scripted reads sequence_length=N, and no {each!r}")
    return resolve_source(_AROUND, overrides).config.sequence_length


@asynccontextmanager
async def serve_model(
    model: ModelSource, config: EndpointConfig, out: Path | None
) -> AsyncIterator[Endpoint]:
    """The started endpoint; ended sessions are written to `out`, or not kept where it is None."""
    async with open_model(model) as (proxy, chat), serve_proxy(proxy, chat, config, out) as endpoint:
        yield endpoint


@asynccontextmanager
async def serve_script(
    script: Path, folder: Path | None, config: EndpointConfig, out: Path | None
) -> AsyncIterator[Endpoint]:
    """The same with written replies, in the tokens and the chat template of the model in `folder`."""
    from envsdk.engines.engine import EngineConfig
    from envsdk.engines.scripted import ScriptedEngine

    engine = ScriptedEngine.create(
        EngineConfig(model=folder, sequence_length=config.sequence_length, strategy_config={"script": script})
    )
    async with running(engine) as proxy, serve_proxy(proxy, engine.core.chat, config, out) as endpoint:
        yield endpoint


@asynccontextmanager
async def serve_proxy(
    proxy: InferenceProxy, chat: ChatTokenizer, config: EndpointConfig, out: Path | None
) -> AsyncIterator[Endpoint]:
    """The same, in front of engines that run already."""
    from envsdk.engines.endpoint.recorder import SessionRecorder
    from envsdk.engines.endpoint.server import Endpoint

    with ExitStack() as stack:
        recorder = None
        if out is not None:
            recorder = stack.enter_context(SessionRecorder(out, model_name=config.model_name))
            if not (tokenizer := out / "tokenizer.json").exists():  # the viewer reads token ids with it
                write_atomically(tokenizer, chat.tokenizer_json().encode())
        on_ended, used = (None, None) if recorder is None else (recorder.add, recorder.used)
        endpoint = Endpoint(proxy, chat, config, on_ended=on_ended, used=used)
        await endpoint.start()
        collect_rarely()  # a search while a long request is read takes ten times as long as reading it
        collecting = asyncio.create_task(collect_when_grown())
        try:
            yield endpoint
        finally:
            collecting.cancel()
            lost = [num for each in endpoint.sessions.all() if (num := len(each.record.replies))]
            await endpoint.close()
            if recorder is not None:
                kept = recorder.num_trajectories
                look = f": envsdk view {out}" if kept else ""
                say(f"kept {kept} ended session{'s' * (kept != 1)}{look}", flush=True)
            if recorder is not None and lost:
                sessions = f"{len(lost)} open session{'s' * (len(lost) > 1)}"
                replies = f"{sum(lost)} repl{'ies' if sum(lost) > 1 else 'y'}"
                was = "were" if len(lost) > 1 else "was"
                say(f"{sessions} with {replies} {was} not kept: end them before the server", err=True)
            if endpoint.ignored:
                counts = ", ".join(f"{name} ({count})" for name, count in sorted(endpoint.ignored.items()))
                say(f"ignored in requests, as unknown or without effect: {counts}", flush=True)


def given_token() -> str:
    """The token in the environment variable, or an empty one. ConfigurationError when it is too short."""
    from envsdk.engines.endpoint.server import check_token

    token = os.environ.get(TOKEN_VARIABLE, "")
    check_token(token)
    return token


def announce(endpoint: Endpoint, what: str) -> None:
    """Show where `what` is served, and a token that was made up: it is in no file and no log."""
    config = endpoint.config
    say(f"serving `{config.model_name}` ({what}) at {endpoint.base_url()}", flush=True)
    if not config.token:
        say(f"token, shown only here: {endpoint.token}", flush=True)
