"""Engine processes, reused and recycled, and the games that environments play in them.

    pool = shared_pool(PoolSettings())
    played = RemoteGame(pool, game)
    scene = played.begin()
    scene = played.step("go to desk 1")
    played.close()

    process:  started -> answering -> retired (no new games) -> ended when its last game is over
                             \\-> lost: it died or hung

TextWorld leaks with every game and may crash, so a process is retired after so many games or MB. When one is
lost, the call it was answering fails; every other game in it is played again, command by command, in
another process at its next turn. The engine is deterministic: its player notices nothing.
"""

from __future__ import annotations

import atexit
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from typing import Any

from envsdk.base.store.cache import cache_folder
from envsdk.envs.alfworld.games import Answer, Game, GameDataError, Request, Scene

_MOST_PROCESSES = 8
_SLACK = 4
"""Games by which a process may be ahead of the least busy one and still be chosen for what it has loaded."""
_TRIES = 5
_CLOSED_WAIT_S = 5.0
_BUSY_WAIT_S = 1.0

_session_numbers = itertools.count()


class EngineCrashed(RuntimeError):
    """The engine's process died or hung while it answered this call."""


class EngineFailed(RuntimeError):
    """The engine raised."""


class _ProcessLost(Exception):
    """The process was gone before the call was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """What a pool is made of; equal settings share one pool per process."""

    num_processes: int | None = None
    """At most; half the machine's cores, from 1 to 8, when None."""
    games_per_process: int = 500
    """Games after which a process is retired."""
    process_mb: int = 1500
    """Memory at which a process is retired."""
    loaded_games: int = 32
    """Games that a process keeps loaded when nobody plays them."""
    cache_mb: int = 1024
    """Size of the folder of translations."""
    answer_timeout_s: float = 60.0
    """An engine that takes longer for one answer hangs."""
    start_timeout_s: float = 300.0
    """The same for its first answer, which waits for the process to start."""

    @property
    def most_processes(self) -> int:
        if self.num_processes is not None:
            return self.num_processes
        return min(_MOST_PROCESSES, max(1, (os.cpu_count() or 1) // 2))


def choose_process(loads: Sequence[int], *, most_processes: int, preferred: int) -> int | None:
    """Index of the process that gets the next game, or None for a new one.

    Args:
        loads: Games being played in each.
        preferred: A number that is the same for the same game: it is likely to be loaded where it was played.
    """
    if len(loads) < most_processes and all(loads):
        return None
    fewest = min(loads)
    slot = preferred % len(loads)
    return slot if loads[slot] <= fewest + _SLACK else loads.index(fewest)


class EngineProcess:
    """One process. Answers one call at a time; safe for threads."""

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        ours, theirs = Pipe()
        self._pipe = ours
        folder = cache_folder() / "alfworld"
        arguments = [str(theirs.fileno()), str(folder), str(settings.cache_mb), str(settings.loaded_games)]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "envsdk.envs.alfworld.worker", *arguments],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            # Importing alfworld makes the folder that this variable names.
            env={**os.environ, "ALFWORLD_DATA": tempfile.gettempdir(), "PYTHONHASHSEED": "0"},
        )
        theirs.close()
        self.ended: deque[str] = deque()
        """Sessions to end with the next call."""
        self.is_lost = False
        self._has_answered = False
        self.num_games = 0
        self.resident_mb = 0
        """The most so far, so that a process which is spent stays so."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_spent(self) -> bool:
        settings = self._settings
        return self.num_games >= settings.games_per_process or self.resident_mb >= settings.process_mb

    def call(self, verb: str, *arguments: Any, **options: Any) -> Any:
        """Raises _ProcessLost, EngineCrashed, EngineFailed or GameDataError."""
        with self._lock:
            if self.is_lost:
                raise _ProcessLost
            ended = tuple(self.ended.popleft() for _ in range(len(self.ended)))
            answer = self._exchange(Request(verb=verb, arguments=arguments, options=options, ended=ended))
        self.resident_mb = max(self.resident_mb, answer.resident_mb)
        if answer.bad_game:
            raise GameDataError(answer.bad_game)
        if answer.error:
            raise EngineFailed(answer.error)
        return answer.value

    def _exchange(self, request: Request) -> Answer:
        settings = self._settings
        limit_s = settings.answer_timeout_s if self._has_answered else settings.start_timeout_s
        try:
            self._pipe.send(request)
            if not self._pipe.poll(limit_s):
                self._lose()
                raise EngineCrashed(f"the engine did not answer `{request.verb}` within {limit_s:g} s")
            answer: Answer = self._pipe.recv()
            self._has_answered = True
        except (EOFError, OSError) as error:
            self._lose()
            raise EngineCrashed(f"the engine {self._last_words()} during `{request.verb}`") from error
        return answer

    def _lose(self) -> None:
        self.is_lost = True
        self._pipe.close()
        self._process.kill()
        self._process.wait()

    def _last_words(self) -> str:
        code = self._process.returncode
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def end(self, *, wait_s: float = 0.0) -> None:
        """Let it go: it ends by itself when its pipe closes, and is killed where it is busy. Idempotent."""
        if self._lock.acquire(timeout=_BUSY_WAIT_S):
            self.is_lost = True
            self._pipe.close()
            self._lock.release()
        else:
            self._process.kill()
        if wait_s:
            try:
                self._process.wait(wait_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def has_exited(self) -> bool:
        return self._process.poll() is not None


class EnginePool:
    """The engine processes of one environment worker. Safe for threads."""

    def __init__(self, settings: PoolSettings) -> None:
        self.settings = settings
        self._lock = threading.RLock()
        self._players: dict[EngineProcess, set[str]] = {}
        """Sessions by process, of those that answer: the spent ones get no new games."""
        self._ending: list[EngineProcess] = []
        """Ended, but perhaps not reaped yet."""
        self._abandoned: deque[tuple[EngineProcess, str]] = deque()

    def take(self, game: Game, session: str) -> EngineProcess:
        """A process for a session of `game`, counted as its player until `release`."""
        with self._lock:
            self._tidy()
            active = [process for process in self._players if not process.is_spent]
            loads = [len(self._players[process]) for process in active]
            slot = choose_process(
                loads, most_processes=self.settings.most_processes, preferred=zlib.crc32(game.id.encode())
            )
            process = EngineProcess(self.settings) if slot is None else active[slot]
            self._players.setdefault(process, set()).add(session)
            process.num_games += 1
            return process

    def release(self, process: EngineProcess, session: str) -> None:
        self.abandon(process, session)
        with self._lock:
            self._tidy()

    def abandon(self, process: EngineProcess, session: str) -> None:
        """`release` for garbage collection: takes no lock, and takes effect at the next call of another."""
        self._abandoned.append((process, session))

    def processes(self) -> list[EngineProcess]:
        """Those that answer."""
        with self._lock:
            return list(self._players)

    def close(self) -> None:
        """End all processes. Games that are still played go on in new ones."""
        with self._lock:
            ending = [*self._players, *self._ending]
            self._players, self._ending = {}, []
        for process in ending:
            process.end()
        for process in ending:
            process.end(wait_s=_CLOSED_WAIT_S)

    def _tidy(self) -> None:
        while self._abandoned:
            process, session = self._abandoned.popleft()
            players = self._players.get(process)
            if players is not None and session in players:
                players.discard(session)
                process.ended.append(session)
        for process, players in list(self._players.items()):
            if process.is_lost or (process.is_spent and not players):
                del self._players[process]
                self._ending.append(process)
                if not process.is_lost:
                    process.end()
        self._ending = [process for process in self._ending if not process.has_exited()]


class RemoteGame:
    """One course through a game, in the process that plays it. Used by one thread at a time."""

    def __init__(
        self, pool: EnginePool, game: Game, commands: Sequence[str] = (), *, with_stages: bool = False
    ) -> None:
        """
        Args:
            commands: Those it has been through already.
            with_stages: Scenes tell the stages on the way to the goal.
        """
        self.game = game
        self.commands = list(commands)
        self._pool = pool
        self._with_stages = with_stages
        self._session = f"{os.getpid()}-{next(_session_numbers)}"
        self._process: EngineProcess | None = None
        self._let_go: weakref.finalize[..., Any] | None = None

    def begin(self) -> Scene:
        """Play through `commands`; returns the scene after the last."""
        for _ in range(_TRIES):
            self.close()
            process = self._pool.take(self.game, self._session)
            self._process = process
            self._let_go = weakref.finalize(self, self._pool.abandon, process, self._session)
            self._let_go.atexit = False
            try:
                scene: Scene = process.call(
                    "start", self._session, self.game, tuple(self.commands), with_stages=self._with_stages
                )
                return scene
            except _ProcessLost:
                continue
            except BaseException:
                self.close()
                raise
        raise EngineCrashed(f"{_TRIES} engine processes in a row died before they could load {self.game.id}")

    def step(self, command: str) -> Scene:
        scene: Scene = self._call("step", command)
        self.commands.append(command)
        return scene

    def oracle(self, *, explores: bool = False) -> str:
        command: str = self._call("oracle", explores=explores)
        return command

    def state_hash(self) -> str:
        digest: str = self._call("state_hash")
        return digest

    def _call(self, verb: str, *arguments: Any, **options: Any) -> Any:
        for _ in range(_TRIES):
            if self._process is None or self._process.is_lost:
                self.begin()
            assert self._process is not None
            try:
                return self._process.call(verb, self._session, *arguments, **options)
            except _ProcessLost:
                continue
            except EngineCrashed:
                self.close()
                raise
        raise EngineCrashed(f"{_TRIES} engine processes in a row died before they could answer `{verb}`")

    def close(self) -> None:
        """Leave the process. Idempotent; playing on afterwards starts again from `commands`."""
        if self._process is not None:
            assert self._let_go is not None
            self._let_go.detach()
            self._pool.release(self._process, self._session)
            self._process = None


_pools: dict[tuple[int, PoolSettings], EnginePool] = {}
_pools_lock = threading.Lock()


def shared_pool(settings: PoolSettings) -> EnginePool:
    """The pool that all environments of this process with these settings share."""
    with _pools_lock:
        # A forked child has a copy of the table, but must not talk to its parent's engines.
        key = (os.getpid(), settings)
        if key not in _pools:
            _pools[key] = EnginePool(settings)
        return _pools[key]


@atexit.register
def close_pools() -> None:
    """End the engine processes of this process."""
    with _pools_lock:
        own = [pool for (pid, _), pool in _pools.items() if pid == os.getpid()]
        _pools.clear()
    for pool in own:
        pool.close()
