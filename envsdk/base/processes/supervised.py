"""Plays in watched processes, so that no environment can block the command.

    play_supervised(shares, on_event)

    share --spawn--> process: share.play(send) --events--> on_event
                        |  shared memory: the call that each environment is in
                        +--> past its limit: killed; another process plays the rest of the share

An environment that blocks or crashes its process may do so again. The second process therefore runs each
environment in a process of its own, where this ends only one episode.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.sharedctypes import RawArray
from types import FrameType
from typing import Any, Generic, NoReturn, TypeVar

from envsdk.base.display.terminal import say
from envsdk.base.processes.call_watch import CALLS, CHECK_S, overdue, table_bytes, turns_in
from envsdk.base.processes.forked import NO_GUARD, NO_GUARD_EXIT
from envsdk.base.processes.interrupts import ThreadInterrupted, ignore_ctrl_c
from envsdk.base.processes.process_tree import die_with_parent, kill_tree
from envsdk.contracts.failures import EnvsdkError

Event = TypeVar("Event")
CLOSE_S = 5.0
"""How long processes may close their environments when they are asked to end."""


class Share(ABC, Generic[Event]):
    """The work of one process. Picklable."""

    @property
    @abstractmethod
    def num_environments(self) -> int:
        """Maximum number of environments open at the same time."""

    @abstractmethod
    def play(self, send: Callable[[Event], None]) -> None:
        """In the process: play the remaining work and send events about it."""

    @abstractmethod
    def heard(self, event: Event) -> None:
        """In the supervisor: the work that `event` reports is done."""

    @abstractmethod
    def isolated(self) -> Share[Event]:
        """The remaining work, with each environment in a process of its own."""


@dataclass(slots=True)
class _Player(Generic[Event]):
    """A process and its share."""

    share: Share[Event]
    is_isolated: bool = False
    """Its environments run in processes of their own."""
    pipe: Connection = field(init=False)
    process: SpawnProcess = field(init=False)
    calls: memoryview[float] = field(init=False)

    def __post_init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        calls = RawArray("b", table_bytes(self.share.num_environments))
        self.calls = memoryview(calls).cast("B").cast("d")
        self.pipe, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=_main, args=(self.share, theirs, calls), daemon=True)
        self.process.start()
        theirs.close()

    def receive(self) -> Event | None:
        """The next event; None at the end. Raises the error of the process, or EOFError when it died."""
        event = self.pipe.recv()
        if isinstance(event, BaseException):
            raise event
        if event is not None:
            self.share.heard(event)
        found: Event | None = event
        return found

    def late(self) -> str:
        """A description of the call that blocks the process; empty when none does."""
        if self.process.pid is None or self.pipe.poll():
            return ""
        call = overdue(self.calls, time.monotonic(), self.process.pid)
        return "" if call is None else f"{call.during} took longer than {call.limit_name}={call.limit_s:g}"

    def exit_code(self) -> int | None:
        self.process.join()
        return self.process.exitcode

    def ask_to_end(self) -> None:
        if self.process.pid is not None and self.process.is_alive():
            os.kill(self.process.pid, signal.SIGTERM)

    def end(self) -> None:
        if self.process.pid is not None and self.process.is_alive():
            kill_tree(self.process.pid)
        self.process.join()
        self.pipe.close()


def play_supervised(
    shares: Sequence[Share[Event]],
    on_event: Callable[[Event], None],
    on_turns: Callable[[int], None] | None = None,
) -> None:
    """Play all shares, each in a process, and call `on_event` with their events, in order for each share.

    `on_turns` is called now and then with the number of turns that the present processes have played.
    Errors of a share or of `on_event` are raised. After these and Ctrl-C, processes have `CLOSE_S` to close
    their environments; a second Ctrl-C ends them at once. All processes have ended on return.
    """
    players: dict[Any, _Player[Event]] = {}

    def start(share: Share[Event], *, is_isolated: bool = False) -> None:
        player = _Player(share, is_isolated)
        players[player.pipe] = player

    def replace(player: _Player[Event], why: str) -> None:
        players.pop(player.pipe).end()
        say(f"note: {why}: its environments run in processes of their own from now on", err=True)
        start(player.share.isolated(), is_isolated=True)

    try:
        for share in shares:
            start(share)
        while players:
            for pipe in wait(list(players), timeout=CHECK_S):
                player = players[pipe]
                try:
                    event = player.receive()
                except (EOFError, OSError):
                    if (code := player.exit_code()) == NO_GUARD_EXIT:
                        raise EnvsdkError(NO_GUARD) from None
                    died = f"a worker process died (exit code {code})"
                    if player.is_isolated:
                        raise EnvsdkError(
                            f"{died}. Run the same command again to continue; use fewer --workers if the "
                            "machine ran out of memory"
                        ) from None
                    replace(player, died)
                    continue
                if event is None:
                    players.pop(pipe).end()
                else:
                    on_event(event)
            if on_turns is not None:
                on_turns(sum(turns_in(player.calls) for player in players.values()))
            for player in list(players.values()):
                if late := player.late():
                    replace(player, f"{late}, and nothing can end it where it runs")
    finally:
        try:
            for player in players.values():
                player.ask_to_end()
            until = time.monotonic() + CLOSE_S
            for player in players.values():
                player.process.join(max(0.0, until - time.monotonic()))
        finally:
            for player in players.values():
                player.end()


def _main(share: Share[Any], pipe: Connection, calls: Any) -> None:
    """Body of a process."""
    ignore_ctrl_c()
    signal.signal(signal.SIGTERM, _end)
    die_with_parent()
    CALLS.share(memoryview(calls).cast("B").cast("d"))
    with contextlib.suppress(ThreadInterrupted):  # asked for, also while it sends
        pipe.send(_played(share, pipe.send))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends by itself


def _played(share: Share[Any], send: Callable[[Any], None]) -> BaseException | None:
    """The error that ended it, and is to end the program."""
    try:
        share.play(send)
    except ThreadInterrupted:
        raise
    except (EnvsdkError, KeyboardInterrupt, SystemExit) as error:
        return error
    except Exception:  # noqa: BLE001 - boundary: the supervisor raises it
        return RuntimeError(f"in a worker process:\n{traceback.format_exc()}")
    return None


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """Leave `play`, whose event loop closes the environments."""
    raise ThreadInterrupted
