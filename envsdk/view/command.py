"""`envsdk view FOLDER`: runs and data sets as local pages, or as one file.

The token of the address is taken from the environment variable `ENVSDK_VIEW_TOKEN`, or made up.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from envsdk.base.display.model_command import command_of
from envsdk.base.display.terminal import say
from envsdk.base.net.serving import serve_until_stopped
from envsdk.base.settings.options import Argument, Option, Options
from envsdk.contracts.failures import ConfigurationError, StorageError

if TYPE_CHECKING:
    from envsdk.view.library import Library

TOKEN_VARIABLE = "ENVSDK_VIEW_TOKEN"
MIN_TOKEN_LENGTH = 16
GRACE_S = 2
"""How long answers that are under way are waited for at the end, seconds."""


class ViewOptions(Options):
    """What `envsdk view` takes."""

    folder: Annotated[Path, Argument("FOLDER")]
    """A run (runs/NAME), a data set, or a folder with several of them (runs)."""
    export: Annotated[Path | None, Option(metavar="FILE.html")] = None
    """Write the pages of one run or data set to one file and serve nothing."""
    trajectories: Annotated[int, Option(metavar="N"), Field(ge=0)] = 200
    """With --export: trajectories in the file, spread evenly, in complete groups."""
    tokenizer: Annotated[Path | None, Option(metavar="FOLDER")] = None
    """Hugging Face folder, its tokenizer.json or a model's name, that the tokens were made with; a run's own
    is found by itself."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """0 takes a free one."""
    host: str = "127.0.0.1"
    """Address to serve on. Anything but loopback sends token and texts unencrypted: only in a network you
    trust."""
    open_browser: Annotated[bool, Option("--open")] = False
    """Open the page in this machine's browser."""


def view(options: ViewOptions) -> None:
    """Look at runs and data sets in a browser: curves, progress, trajectories token by token, failures.

    Works without a network. Pages of a run that is still training update themselves.
    """
    from envsdk.view.library import Library

    library = Library(options.folder, tokenizer=options.tokenizer)
    folder, export = options.folder, options.export
    if export is None:
        _serve(library, options)
        return

    from envsdk.view.export import write_export

    sources = library.sources()
    if len(sources) > 1:
        names = ", ".join(each.source.name for each in sources[:5])
        raise ConfigurationError(f"--export: {folder} holds {len(sources)} sources ({names} ...): name one")
    number = write_export(sources[0], export, num_trajectories=options.trajectories)
    problems = sources[0].problems()
    for problem in problems:
        say(f"warning: not in the file: {problem}", err=True)
    if problems and number == 0 < options.trajectories:
        raise StorageError(f"{export} has no trajectories: none of {folder} could be read")
    say(f"{export} with {number} trajectories")


def _serve(library: Library, options: ViewOptions) -> None:
    host = options.host
    try:
        from envsdk.base.net.web_server import WebServer
        from envsdk.view.app import make_app
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"envsdk view needs {error.name}: pip install 'envsdk[view]', or write a file with --export"
        ) from error

    token = os.environ.get(TOKEN_VARIABLE, "") or secrets.token_urlsafe(24)
    if len(token) < MIN_TOKEN_LENGTH:
        raise ConfigurationError(f"{TOKEN_VARIABLE} has fewer than {MIN_TOKEN_LENGTH} characters")
    # A machine that listens everywhere goes by names that only its network knows.
    is_everywhere = host in ("0.0.0.0", "::")
    hosts = None if is_everywhere else frozenset({f"[{host}]" if ":" in host else host, "localhost"})
    server = WebServer(
        make_app(library, token=token, hosts=hosts), host=host, port=options.port, grace_s=GRACE_S
    )

    def on_serving() -> None:
        number = server.url.rpartition(":")[2]
        url = f"http://{socket.gethostname()}:{number}" if is_everywhere else server.url
        address = f"{url}/?token={token}"
        say(f"{library.root}: {address}\nCtrl-C ends it.", flush=True)
        if options.open_browser:
            webbrowser.open(address)

    asyncio.run(serve_until_stopped(server, f"{host}:{options.port}", on_serving))


app, main = command_of(ViewOptions, view, name="envsdk view")
