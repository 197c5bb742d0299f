"""`python -m envsdk.serve MODEL_OR_YAML`: a model behind OpenAI's HTTP protocol, its sessions recorded.

The token is taken from the environment variable `ENVSDK_ENDPOINT_TOKEN`, or made up and printed once. It is
in no file and no log.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envsdk.display.command_line import run_app
from envsdk.display.terminal import say
from envsdk.failures import ConfigurationError
from envsdk.warm_start import make_tiny_policy

if TYPE_CHECKING:
    from envsdk.inference.endpoint.server import EndpointConfig
    from envsdk.play.model import ModelSource

TOKEN_VARIABLE = "ENVSDK_ENDPOINT_TOKEN"

app = typer.Typer(add_completion=False)


@app.command()
def command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="MODEL_OR_YAML",
            help="A Hugging Face folder or a checkpoint, or a run's YAML file: a path, or the name of a "
            "shipped example. The YAML's engine, sampling settings and sequence length are used.",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Replace single keys of the YAML, or of the defaults: sequence_length=1024 "
            "actor_infer.strategy_args.strategy_name=embedded ...",
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="With a YAML: a Hugging Face folder or a checkpoint instead of its `pretrain`.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="Where ended sessions go as trajectories; without it nothing is kept.",
        ),
    ] = None,
    name: Annotated[str, typer.Option(metavar="NAME", help="What requests give as `model`.")] = "policy",
    host: Annotated[
        str,
        typer.Option(
            help="Address to serve on. Anything but loopback sends the token and all texts unencrypted: only "
            "in a network you trust."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    trained_on: Annotated[
        bool,
        typer.Option(
            "--fixed-sampling",
            help="Refuse requests that ask for another temperature, top_p, top_k or seed than the "
            "settings': what is recorded is to be trained on.",
        ),
    ] = False,
) -> None:
    """Serve a model over OpenAI's protocol, for agents that play outside of envsdk.

    Clients need the token: from the environment variable ENVSDK_ENDPOINT_TOKEN, or made up and shown once.
    """
    try:
        from envsdk.inference.endpoint.sampling import SamplingRules
        from envsdk.inference.endpoint.server import EndpointConfig, check_token
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"envsdk serve needs {error.name}: pip install 'envsdk[endpoint]'"
        ) from error

    token = os.environ.get(TOKEN_VARIABLE, "")
    check_token(token)
    found = _model_source(source, overrides or (), model)
    generating = found.generating
    config = EndpointConfig(
        model_name=name,
        sequence_length=found.sequence_length,
        host=host,
        port=port,
        token=token,
        rules=SamplingRules(
            **generating.shape(),
            max_new_tokens=generating.max_new_tokens if trained_on else None,
            is_fixed=trained_on,
        ),
    )
    asyncio.run(_serve(found, config, out))


def _model_source(source: str, overrides: list[str] | tuple[()], model: Path | None) -> ModelSource:
    from envsdk.play.model import find_model_folder, model_source
    from envsdk.play.player import resolve_source

    if not source.endswith((".yaml", ".yml")) and Path(source).expanduser().is_dir():
        if model is not None:
            raise ConfigurationError(f"--model: {source} is a model already")
        # A configuration that plays something, as every one must; nothing of it but its engine is used.
        around = resolve_source("envsdk/FrozenLake-v1", overrides)
        return model_source(around, find_model_folder(Path(source)), False, around.config.seed)
    resolved = resolve_source(source, overrides)
    return model_source(resolved, model, False, resolved.config.seed, make_tiny_policy)


async def _serve(model: ModelSource, config: EndpointConfig, out: Path | None) -> None:
    from envsdk.inference.endpoint.recorder import SessionRecorder
    from envsdk.inference.endpoint.server import Endpoint
    from envsdk.play.model import open_model

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with ExitStack() as stack:
        recorder = None
        if out is not None:
            recorder = stack.enter_context(SessionRecorder(out, model_name=config.model_name))
        async with open_model(model) as (proxy, chat):
            on_ended = recorder.add if recorder is not None else None
            endpoint = Endpoint(proxy, chat, config, on_ended=on_ended)
            await endpoint.start()
            try:
                say(f"serving `{config.model_name}` ({model.folder}) at {endpoint.base_url()}", flush=True)
                if not config.token:
                    say(f"token, shown only here: {endpoint.token}", flush=True)
                await stop.wait()
            finally:
                await endpoint.close()
                if endpoint.ignored:
                    counts = ", ".join(
                        f"{name} ({count})" for name, count in sorted(endpoint.ignored.items())
                    )
                    say(f"ignored in requests, since it changes nothing: {counts}", flush=True)


def main(argv: list[str] | None = None) -> int:
    return run_app(app, argv, name="envsdk serve")


if __name__ == "__main__":
    sys.exit(main())
