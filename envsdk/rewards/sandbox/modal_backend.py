"""The `modal` backend: sandboxes on Modal's machines, through its SDK (the `modal` extra).

Modal cannot mount folders of this machine, so an image's binds are laid anew, as copies, before every
command: what a command does to them lasts until it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envsdk.rewards.sandbox.containers import has_died, this_process
from envsdk.rewards.sandbox.contract import ExecEnd, Image, Limits, SandboxError, SandboxUnavailable
from envsdk.rewards.sandbox.output import HeadTail
from envsdk.rewards.sandbox.process import Finished
from envsdk.rewards.sandbox.remote import WAIT, Container, RemoteBackend, RemoteSandbox, Shell
from envsdk.rewards.sandbox.settings import ModalSettings, parse_settings

log = logging.getLogger(__name__)

TAG = "envsdk_sandbox"
HOLDER = "envsdk_holder"
_CHUNK_BYTES = 1 << 20
_SERVER_MARGIN_S = 30
"""Seconds by which Modal's own limit on a command is longer than ours, which says more."""
_WAITING = "until [ -s /tmp/.waiting ]; do sleep 0.1; done; cat /tmp/.waiting; rm /tmp/.waiting"


@dataclass(slots=True, kw_only=True)
class ModalContainer(Container):
    """One sandbox of Modal's."""

    sdk: Any
    options: Mapping[str, Any]
    """What `modal.Sandbox.create` is given besides the image."""
    time_to_live_s: int
    running: Any = None
    kept: dict[str, Any] = field(default_factory=dict)
    """Images made of it, by name."""

    async def start(self, image: Any) -> None:
        """Raises SandboxError: Modal refused."""
        command = ("bash", "-c", WAIT, "bash", str(self.time_to_live_s))
        async with self.starts:
            self.running = await self._answer(
                self.sdk.Sandbox.create.aio(*command, image=image, **self.options)
            )
        await self.meet(_WAITING)

    async def shell(self, shell: Shell) -> Finished:
        kept = HeadTail(shell.keep)
        began = time.perf_counter()
        reason, code = ExecEnd.EXIT, 137
        try:
            async with asyncio.timeout(shell.timeout_s):
                code = await self._run(shell, kept)
        except TimeoutError:
            reason = ExecEnd.TIMEOUT
        except self.sdk.exception.Error as error:
            raise SandboxError(f"modal: {error}") from error
        if kept.total > shell.max_output:
            reason = ExecEnd.OUTPUT_LIMIT
        elapsed_s = time.perf_counter() - began
        return Finished(reason=reason, returncode=code, output=kept, elapsed_s=elapsed_s)

    async def _run(self, shell: Shell, kept: HeadTail) -> int:
        timeout = math.ceil(shell.timeout_s) + _SERVER_MARGIN_S
        process = await self.running.exec.aio(*shell.argv, env=dict(shell.env), timeout=timeout, text=False)
        assert not isinstance(shell.stdin, int)
        while shell.stdin is not None and (chunk := shell.stdin.read(_CHUNK_BYTES)):
            process.stdin.write(chunk)
            await process.stdin.drain.aio()
        process.stdin.write_eof()
        await process.stdin.drain.aio()
        async for chunk in process.stdout:
            kept.feed(chunk)
            if kept.total > shell.max_output:
                return 137
        code: int = await process.wait.aio()
        return code

    async def is_running(self) -> bool:
        with contextlib.suppress(SandboxError):
            return await self._answer(self.running.poll.aio()) is None
        return False

    async def keep(self) -> str:
        name = f"kept-{len(self.kept)}"
        self.kept[name] = await self._answer(self.running.snapshot_filesystem.aio())
        return name

    async def replaced_by(self, kept: str) -> None:
        await self._answer(self.running.terminate.aio())
        await self.start(self.kept[kept])

    async def end(self) -> None:
        if self.running is not None:
            await self._answer(self.running.terminate.aio())

    async def _answer(self, call: Any) -> Any:
        """What the SDK answers; its errors become SandboxError."""
        try:
            return await call
        except self.sdk.exception.Error as error:
            raise SandboxError(f"modal: {error}") from error


class ModalBackend(RemoteBackend):
    """Runs sandboxes on Modal.

    Raises ConfigurationError: a setting is unknown or wrong.
    """

    name = "modal"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = parse_settings(ModalSettings, settings, backend=self.name)
        super().__init__(self.settings)
        self._sdk: Any = None
        self._app: Any = None

    async def _probe(self) -> None:
        try:
            import modal
        except ImportError as error:
            raise SandboxUnavailable("modal is not installed: pip install 'envsdk[modal]'") from error
        self._sdk = modal
        try:
            self._app = await modal.App.lookup.aio(self.settings.app, create_if_missing=True)
            await self._sweep()
            await self._try_out()
        except (modal.exception.Error, SandboxError) as error:
            raise SandboxUnavailable(
                f"Modal cannot run sandboxes for this account: {error}. Run `modal setup` and see that "
                f"the image {self.settings.image} has bash: docs/swe-sandbox.md"
            ) from error

    def _make(self, image: Image, limits: Limits) -> tuple[RemoteSandbox, Any]:
        container = ModalContainer(
            sdk=self._sdk,
            options={
                "app": self._app,
                "timeout": self.settings.time_to_live_s,
                "block_network": True,
                "cpu": self.settings.cpu,
                "memory": (min(512, limits.memory_mb), limits.memory_mb),
                "tags": {TAG: "1", HOLDER: this_process()},
            },
            time_to_live_s=self.settings.time_to_live_s,
            starts=self._starts,
        )
        source = self._sdk.Image.from_registry(image.container or self.settings.image)
        return self._relaying(image, limits, container), source

    async def _sweep(self) -> None:
        """End the sandboxes of this machine's programs that have died."""
        async for sandbox in self._sdk.Sandbox.list.aio(app_id=self._app.app_id, tags={TAG: "1"}):
            tags = await sandbox.get_tags.aio()
            if has_died(tags.get(HOLDER, "")):
                await sandbox.terminate.aio()
                log.info("ended a sandbox of a program that had died")
