"""Body of an engine's process: answers the requests of one `EngineProcess` until its pipe closes.

python -m envsdk.envs.alfworld.worker PIPE_FD CACHE_FOLDER CACHE_MB MAX_GAMES
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envsdk.base.processes.garbage import resident_bytes
from envsdk.envs.alfworld.games import Answer, GameDataError, Request

if TYPE_CHECKING:
    from envsdk.envs.alfworld.engine import Engine

_LOOK_FOR_PARENT_EVERY_S = 10.0


def serve(pipe: Connection, engine: Engine) -> None:
    parent = os.getppid()
    with contextlib.suppress(EOFError, ConnectionResetError, BrokenPipeError):
        while True:
            # Another process may hold a copy of the pipe's other end, and then it does not close.
            while not pipe.poll(_LOOK_FOR_PARENT_EVERY_S):
                if os.getppid() != parent:
                    return
            request: Request = pipe.recv()
            for session in request.ended:
                engine.end(session)
            pipe.send(_answer(request, engine))


def _answer(request: Request, engine: Engine) -> Answer:
    said: dict[str, Any]
    try:
        said = {"value": getattr(engine, request.verb)(*request.arguments, **request.options)}
    except GameDataError as error:
        said = {"bad_game": str(error)}
    except Exception as error:  # noqa: BLE001 - boundary: the engine, raised in the parent
        said = {"error": f"{type(error).__name__}: {error}"}
    return Answer(**said, resident_mb=resident_bytes() >> 20)


def main(arguments: list[str]) -> int:
    # Ctrl-C reaches the entire process group; the parent ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The planner's library writes to standard output, which is the user's.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    pipe = Connection(int(arguments[0]))
    cache_folder, cache_mb, max_games = Path(arguments[1]), int(arguments[2]), int(arguments[3])

    from envsdk.envs.alfworld.engine import Engine
    from envsdk.envs.alfworld.libraries import strip_library

    with contextlib.suppress(OSError):
        strip_library(cache_folder)
    engine = Engine(cache_folder=cache_folder / "translations", cache_mb=cache_mb, max_games=max_games)
    # What is imported stays: garbage is looked for among the games alone.
    gc.freeze()
    serve(pipe, engine)
    sys.stderr.flush()
    # The interpreter's own way out would unload the planner's libraries, which crashes.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
