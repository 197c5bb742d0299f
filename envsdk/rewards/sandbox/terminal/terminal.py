"""A terminal on a sandbox: one command that waits for keys, on a pseudo-terminal of this machine.

    open_terminal -> send ... send -> close
                           -> the shell exits: screens say `ended`

Only the terminal's other end is inside; the screen is kept out here.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import struct
import termios
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envsdk.base.settings.extras import require
from envsdk.rewards.sandbox.contract import ExecResult, Sandbox
from envsdk.rewards.sandbox.terminal.keys import bytes_of

if TYPE_CHECKING:
    from envsdk.rewards.sandbox.terminal.emulator import Emulator

MAX_KEYS_BYTES = 64 << 10
"""Limit of one `send`."""
MAX_PENDING_BYTES = 64 << 10
"""What is kept of output that has not been shown."""
_SHOWN_BYTES = 16 << 10
"""What is shown of more than that: many screens."""
_LASTING = re.compile(rb"\x1b(?:\[\?[0-9;]{1,64}[hl]|\[[0-9;]{0,64}r|c)")
"""What outlasts the text around it: modes, such as the alternate screen, and margins."""
_LOOK_S = 0.02
_READ_BYTES = 512 << 10
"""What is read within `_LOOK_S`."""
_TIOCGSID = 0x5429
_LIFE_S = 24 * 3600.0
_SHARE_OF_TIME = 0.2
"""What showing output may take of the time while nobody asks for a screen."""
_ENV = {"TERM": "xterm-256color", "NCURSES_NO_UTF8_ACS": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """What a terminal shows at one moment."""

    text: str
    """As many lines as the terminal has rows, without spaces at their ends."""
    ended: bool
    """Whether the shell has exited: keys have no effect."""


async def open_terminal(
    sandbox: Sandbox,
    *,
    rows: int = 24,
    cols: int = 80,
    user: str | None = None,
    start_timeout_s: float = 20.0,
) -> Terminal:
    """A terminal with a shell on it. All else asked of the sandbox waits until `close`.

    Args:
        user: As in `Sandbox.exec`.
        start_timeout_s: How long to wait for the first prompt: of a shell that edits lines, in bubblewrap.

    Raises ConfigurationError: the sandbox's backend has no terminals.
    """
    require("a terminal", "pyte")
    from envsdk.rewards.sandbox.terminal.emulator import Emulator

    outside, inside = os.openpty()
    terminal = Terminal(Emulator(rows, cols), outside, inside)
    try:
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("4H", rows, cols, 0, 0))
        # Some backends make the terminal the command's own already.
        script = "exec >&0 2>&0; (: < /dev/tty) 2> /dev/null || set setsid --ctty --wait; exec $@ bash -i"
        await terminal.run(
            sandbox.exec(script, timeout_s=_LIFE_S, env=_ENV, stdin=inside, waits=True, user=user),
            start_timeout_s,
        )
    except BaseException:
        await terminal.close()
        raise
    return terminal


@dataclass(slots=True, eq=False)
class Terminal:
    """Made by `open_terminal`. Belongs to one event loop."""

    emulator: Emulator
    outside: int
    """Descriptor of this machine's end."""
    inside: int
    """Descriptor of the other end, open here too: so what was printed last can be read after the end."""
    _command: asyncio.Task[ExecResult] | None = None
    _keys: bytes = b""
    _pending: bytes = b""
    """Output that is not on the screen."""
    _num_read: int = 0
    """Bytes printed so far."""
    _budget: int = _READ_BYTES
    _printed: asyncio.Event = field(default_factory=asyncio.Event)
    _showing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _shower: asyncio.Task[None] | None = None
    _closed: bool = False

    async def run(self, command: Coroutine[Any, Any, ExecResult], timeout_s: float) -> None:
        """Start the shell, and wait for its first prompt. For `open_terminal`."""
        os.set_blocking(self.outside, False)
        asyncio.get_running_loop().add_reader(self.outside, self._read)
        self._command = asyncio.create_task(command)
        self._shower = asyncio.create_task(self._keep_showing())
        await self.send((), timeout_s)
        if self._command.done():
            self._command.result()

    async def send(self, keys: Sequence[str], wait_s: float) -> Screen:
        """Press keys; the screen after `wait_s` seconds, or as soon as the shell waits for keys again.

        Args:
            keys: Names (`keys.NAMES`) and texts to type; none only waits.

        Raises ValueError: they are too many.
        """
        data = bytes_of(keys, application=self.emulator.wants_application_keys)
        if len(data) > MAX_KEYS_BYTES:
            raise ValueError(f"{len(data):,} bytes of keys are too many: at most {MAX_KEYS_BYTES:,} at once")
        self._type(data)
        until = time.monotonic() + wait_s
        num_quiet = 0
        while num_quiet < 2 and not self._has_ended() and (left := until - time.monotonic()) > 0:
            num_read = self._num_read
            await asyncio.sleep(min(_LOOK_S, left))
            num_quiet = num_quiet + 1 if self._is_idle() and self._num_read == num_read else 0
        self._read()
        await self._show()
        return Screen(text=self.emulator.text, ended=self._has_ended())

    @property
    def result(self) -> ExecResult | None:
        """How the shell ended by itself or at a limit; None while it runs, and where `close` ended it."""
        ended = self._command is not None and self._command.done() and not self._command.cancelled()
        return self._command.result() if ended and self._command is not None else None

    async def close(self) -> None:
        """End all that runs in it. Closing again does nothing."""
        if self._closed:
            return
        self._closed = True
        loop = asyncio.get_running_loop()
        loop.remove_reader(self.outside)
        loop.remove_writer(self.outside)
        for task in (self._command, self._shower):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        async with self._showing:
            pass
        os.close(self.outside)
        os.close(self.inside)

    def _has_ended(self) -> bool:
        return self._command is None or self._command.done()

    def _type(self, data: bytes = b"") -> None:
        """Press keys, as many as the terminal takes now; the rest when it takes more."""
        loop = asyncio.get_running_loop()
        self._keys = (self._keys + data)[: 2 * MAX_KEYS_BYTES]
        with contextlib.suppress(BlockingIOError):
            while self._keys:
                self._keys = self._keys[os.write(self.outside, self._keys) :]
        if self._keys:
            loop.add_writer(self.outside, self._type)
        else:
            loop.remove_writer(self.outside)

    def _read(self) -> None:
        """Take what was printed, up to a budget: a program that prints more waits, as on any terminal."""
        with contextlib.suppress(BlockingIOError):
            while self._budget > 0:
                chunk = os.read(self.outside, 1 << 16)
                self._pending = shortened(self._pending + chunk)
                self._budget -= len(chunk)
                self._num_read += len(chunk)
        if self._budget <= 0:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self.outside)
            loop.call_later(_LOOK_S, self._read_on)
        self._printed.set()

    def _read_on(self) -> None:
        self._budget = _READ_BYTES
        if not self._closed:
            asyncio.get_running_loop().add_reader(self.outside, self._read)

    async def _show(self) -> None:
        """Put what was printed on the screen, and answer what it asks."""
        async with self._showing:
            printed, self._pending = self._pending, b""
            if printed and (answers := await asyncio.to_thread(self.emulator.feed, printed)):
                self._type(answers)

    async def _keep_showing(self) -> None:
        while True:
            await self._printed.wait()
            self._printed.clear()
            started = time.monotonic()
            await self._show()
            await asyncio.sleep((time.monotonic() - started) / _SHARE_OF_TIME)

    def _is_idle(self) -> bool:
        """Whether the shell, inside, edits a line, has read all keys, and sleeps."""
        # A shell reads single characters while it waits for a line, and only then.
        if self._keys or termios.tcgetattr(self.inside)[3] & termios.ICANON:
            return False
        with contextlib.suppress(OSError):
            (unread,) = struct.unpack("i", fcntl.ioctl(self.inside, termios.FIONREAD, b"\0" * 4))
            (leader,) = struct.unpack("i", fcntl.ioctl(self.outside, _TIOCGSID, b"\0" * 4))
            return not unread and os.tcgetpgrp(self.outside) == leader and _sleeps_inside(leader)
        return False


def _sleeps_inside(pid: int) -> bool:
    """Whether a process sleeps, and is in another PID namespace: no program that only leads to it."""
    status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return fields["State"].split()[0] == "S" and len(fields["NSpid"].split()) > 1


def shortened(pending: bytes) -> bytes:
    """Output of a flood without its middle, but with the modes that are set there."""
    if len(pending) <= MAX_PENDING_BYTES:
        return pending
    start = pending.find(b"\n", len(pending) - _SHOWN_BYTES) + 1 or len(pending) - _SHOWN_BYTES
    kept = b"".join(_LASTING.findall(pending, 0, start)[-500:])
    return kept + pending[start:]
