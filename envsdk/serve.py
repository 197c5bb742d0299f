"""`envsdk serve MODEL_OR_YAML`: a model behind OpenAI's HTTP protocol, its sessions recorded.

`envsdk serve --scripted FILE` serves written replies in its place.

The token is taken from the environment variable `ENVSDK_ENDPOINT_TOKEN`, or made up and printed once. It is
in no file and no log.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from envsdk.base.display.model_command import command_of
from envsdk.base.settings.options import Argument, Option, Options
from envsdk.base.store.named_models import is_named_model
from envsdk.contracts.failures import ConfigurationError
from envsdk.engines.tool_calls.reading import ToolParser
from envsdk.trainers.warm_start import make_tiny_policy

if TYPE_CHECKING:
    from envsdk.engines.endpoint.server import Endpoint


class ServeOptions(Options):
    """What `envsdk serve` takes."""

    source: Annotated[str | None, Argument("MODEL_OR_YAML")] = None
    """A Hugging Face folder, a checkpoint, a model's name such as smollm2, or a run's YAML file: a path, or
    the name of a shipped example. The YAML's engine, sampling settings and sequence length are used."""
    overrides: Annotated[tuple[str, ...], Argument("KEY=VALUE")] = ()
    """Replace single keys of the YAML, or of the defaults: sequence_length=1024
    actor_infer.strategy_args.strategy_name=embedded ..."""
    model: Annotated[Path | None, Option(metavar="FOLDER")] = None
    """With a YAML: a Hugging Face folder or a checkpoint instead of its `pretrain`."""
    scripted: Annotated[Path | None, Option(metavar="FILE")] = None
    """Replies from this file instead of a model's, a line each: text, or JSON with `content`, `tool_calls`,
    `match`. Every conversation begins at the first one. MODEL_OR_YAML may be absent, or lends its tokenizer
    and chat template."""
    out: Annotated[Path | None, Option("--out", "-o", metavar="DIR")] = None
    """Where ended sessions go as trajectories; without it nothing is kept."""
    name: Annotated[str | None, Option(metavar="NAME")] = None
    """What requests give as `model`, beside `policy`, which always does; the model's name when absent."""
    host: str = "127.0.0.1"
    """Address to serve on. Anything but loopback sends the token and all texts unencrypted: only in a network
    you trust."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """0 takes a free one."""
    tool_parser: ToolParser = "auto"
    """The format in which tool calls are read; auto takes the one that the model's chat template writes."""
    fixed_sampling: bool = False
    """Refuse requests that ask for another temperature, top_p, top_k or seed than the settings': what is
    recorded is to be trained on."""


def command(options: ServeOptions) -> None:
    """Serve a model over OpenAI's protocol, for agents that play outside of envsdk.

    Clients need the token: from the environment variable ENVSDK_ENDPOINT_TOKEN, or made up and shown once.
    """
    try:
        from envsdk.base.net.web_server import check_address
        from envsdk.engines.endpoint.sampling import SamplingRules
        from envsdk.engines.endpoint.server import EndpointConfig
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"envsdk serve needs {error.name}: pip install 'envsdk[endpoint]'"
        ) from error
    from envsdk.engines.scripted import SCRIPTED_LENGTH
    from envsdk.rollouts.play.model_server import (
        find_model,
        given_token,
        script_length,
        serve_model,
        serve_script,
    )

    token, source, overrides = given_token(), options.source, options.overrides
    if source is not None and "=" in source and not Path(source).exists():
        overrides, source = (source, *overrides), None
    if source is None and options.scripted is None:
        raise ConfigurationError("there is nothing to serve: give MODEL_OR_YAML, or --scripted FILE")
    check_address(options.host, options.port)
    model, rules, sequence_length = None, SamplingRules(is_fixed=options.fixed_sampling), SCRIPTED_LENGTH
    if source is not None:
        model = find_model(source, overrides, options.model, make_tiny_policy=make_tiny_policy)
        longest = model.generating.max_new_tokens if options.fixed_sampling else None
        rules = replace(rules, **model.generating.shape(), max_new_tokens=longest)
        sequence_length = model.sequence_length
    elif overrides:
        sequence_length = script_length(overrides)
    config = EndpointConfig(
        model_name=options.name or (source if source and is_named_model(source) else "policy"),
        sequence_length=sequence_length,
        host=options.host,
        port=options.port,
        token=token,
        tool_parser=options.tool_parser,
        rules=rules,
    )
    folder = None if model is None else model.folder
    if options.scripted is not None:
        serving = serve_script(options.scripted, folder, config, options.out)
    else:
        assert model is not None, "checked above"
        serving = serve_model(model, config, options.out)
    asyncio.run(_serve(serving, str(options.scripted or folder)))


async def _serve(serving: AbstractAsyncContextManager[Endpoint], what: str) -> None:
    from envsdk.rollouts.play.model_server import announce

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with serving as endpoint:
        announce(endpoint, what)
        await stop.wait()


app, main = command_of(ServeOptions, command, name="envsdk serve")

if __name__ == "__main__":
    sys.exit(main())
