"""Shell: an SGLang server as a child process.

start -> (process) -> stop
             |-> ended by itself: `exit_status`, and what it last said
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

STOP_GRACE_S = 20.0
"""Between the request to end and the kill; SGLang looks for the request every 5 s."""
_TAIL_BYTES = 2000
_GUARD = "envsdk.engines.sglang.guard"


class ServerProcess:
    """The server and its schedulers; they end when this process does, however it ends."""

    def __init__(self, python: str, arguments: Sequence[str]) -> None:
        self._command = [python, "-m", "sglang.launch_server", *arguments]
        self._process: asyncio.subprocess.Process | None = None
        self._log = tempfile.NamedTemporaryFile(prefix="sglang-", suffix=".log")  # noqa: SIM115 - until `stop`

    async def start(self) -> None:
        """Returns at once; OSError when the command cannot be run."""
        environment = os.environ | {"SGLANG_RETURN_ORIGINAL_LOGPROB": "false"}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", _GUARD, str(STOP_GRACE_S), *self._command,
            stdin=asyncio.subprocess.PIPE, stdout=self._log, stderr=self._log,
            start_new_session=True, env=environment,
        )  # fmt: skip

    @property
    def exit_status(self) -> int | None:
        """None while it runs."""
        return self._process.returncode if self._process is not None else None

    async def ends_within(self, timeout_s: float) -> bool:
        """Wait for its end."""
        assert self._process is not None, "start first"
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), timeout_s)
        return self._process.returncode is not None

    def last_words(self) -> str:
        """The end of what it printed."""
        path = Path(self._log.name)
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            return log.read().decode(errors="replace").strip()

    async def stop(self) -> None:
        """End it and wait until it has ended. Idempotent."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            assert process.stdin is not None
            with suppress(ConnectionError):
                process.stdin.write(b"\n")
                await process.stdin.drain()
            process.stdin.close()
            try:
                await asyncio.wait_for(process.wait(), 2 * STOP_GRACE_S)
            except TimeoutError:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        self._log.close()
