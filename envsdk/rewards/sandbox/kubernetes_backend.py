"""The `kubernetes` backend: Pods of a cluster with agent-sandbox, through its client (extra `kubernetes`).

A cluster's `SandboxWarmPool` says what a Pod is; this claims one, and runs commands in it. The client takes
no standard input and gives text, so input and output go through files. A command is no child of a shell of
ours, which would be killed with what the command leaves behind.
"""

from __future__ import annotations

import base64
import contextlib
import secrets
import shlex
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from envsdk.base.settings.validation import validated
from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.sandbox.contract import ExecEnd, Image, Limits, SandboxError, SandboxUnavailable
from envsdk.rewards.sandbox.output import HeadTail
from envsdk.rewards.sandbox.process import Finished
from envsdk.rewards.sandbox.remote import Container, RemoteBackend, RemoteSandbox, Shell
from envsdk.rewards.sandbox.settings import KubernetesSettings, parse_settings

_READ_TIMEOUT_S = 300.0
"""For what a command has printed."""
_CONNECTIONS = {
    "in_cluster": "SandboxInClusterConnectionConfig",
    "gateway": "SandboxGatewayConnectionConfig",
    "direct": "SandboxDirectConnectionConfig",
}


@dataclass(slots=True, kw_only=True)
class ClaimedPod(Container):
    """One sandbox of the cluster."""

    backend: KubernetesBackend
    running: Any = None

    async def start(self, image: str) -> None:
        """Raises SandboxError: the cluster refused, or had none in time."""
        settings = self.backend.settings
        async with self.starts, told():
            self.running = await self.backend.client.create_sandbox(
                image,
                settings.namespace,
                settings.ready_timeout_s,
                shutdown_after_seconds=settings.time_to_live_s,
            )
        await self.meet()

    async def shell(self, shell: Shell) -> Finished:
        kept = HeadTail(shell.keep)
        began = time.perf_counter()
        env = shlex.join(f"{name}={value}" for name, value in shell.env.items())
        # In the folder of the client's files: scripts of ours may clear `/tmp` and the work tree.
        name = f".envsdk-{secrets.token_hex(8)}"
        given, printed = "/dev/null", f"{name}.out"
        async with told():
            assert not isinstance(shell.stdin, int)
            if shell.stdin is not None:
                given = f"{name}.in"
                await self.running.files.write(given, shell.stdin, timeout=int(shell.timeout_s) + 60)
            enter = f"exec < {given} > {printed} 2>&1; rm -f {name}.in; cd /; exec env {env}"
            ended = await self._run(f"{enter} {shlex.join(shell.argv)}", shell.timeout_s)
            length = shell.max_output + 1
            read = f"head -c {length} {printed} | base64 -w 0; rm -f {printed}"
            kept.feed(base64.b64decode((await self._run(read, _READ_TIMEOUT_S)).stdout))
        reason = ExecEnd.OUTPUT_LIMIT if kept.total > shell.max_output else ExecEnd.EXIT
        return Finished(
            reason=ExecEnd.TIMEOUT if ended.timed_out else reason,
            returncode=ended.exit_code if ended.exit_code >= 0 else 128 - ended.exit_code,
            output=kept,
            elapsed_s=time.perf_counter() - began,
        )

    async def _run(self, script: str, timeout_s: float) -> Any:
        return await self.running.commands.run(shlex.join(["bash", "-c", script]), command_timeout=timeout_s)

    async def is_running(self) -> bool:
        with contextlib.suppress(SandboxError):
            async with told():
                status, _ = await self.running.status()
                return bool(status == "SandboxReady")
        return False

    async def end(self) -> None:
        if self.running is not None:
            async with told():
                await self.running.terminate()


class KubernetesBackend(RemoteBackend):
    """Runs sandboxes in Pods of a cluster with the agent-sandbox controller.

    Raises ConfigurationError: a setting is unknown or wrong.
    """

    name = "kubernetes"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = parse_settings(KubernetesSettings, settings, backend=self.name)
        super().__init__(self.settings)
        self.client: Any = None

    async def aclose(self) -> None:
        await super().aclose()
        if self.client is not None:
            await self.client.close()
            self.client = None

    async def _probe(self) -> None:
        try:
            from k8s_agent_sandbox import models
            from k8s_agent_sandbox.async_sandbox_client import AsyncSandboxClient
        except ImportError as error:
            raise SandboxUnavailable(
                "k8s-agent-sandbox is not installed: pip install 'envsdk[kubernetes]'"
            ) from error
        settings = self.settings
        model = getattr(models, _CONNECTIONS[settings.connect])
        connection = validated(model, settings.connection, "`connection` of sandbox backend `kubernetes`")
        self.client = self.client or AsyncSandboxClient(connection_config=connection)
        try:
            await self._try_out(Image())
        except SandboxError as error:
            raise SandboxUnavailable(
                f"warm pool {settings.warmpool} of namespace {settings.namespace} gives no sandboxes: {error}"
            ) from error

    def _make(self, image: Image, limits: Limits) -> tuple[RemoteSandbox, Any]:
        settings, container = self.settings, image.container
        pool = settings.warmpool if container is None else settings.warmpools.get(container)
        if pool is None:
            raise ConfigurationError(
                f"backend `kubernetes`: `warmpools` names no pool of container image {container}"
            )
        sandbox = RemoteSandbox(
            id=secrets.token_hex(6),
            image=image,
            limits=limits,
            container=ClaimedPod(backend=self, starts=self._starts),
            slots=self._slots,
            relays_binds=bool(image.binds),
        )
        return sandbox, pool


@contextlib.asynccontextmanager
async def told() -> AsyncIterator[None]:
    """What the client raises as SandboxError."""
    from aiohttp import ClientError
    from kubernetes_asyncio.client import ApiException

    try:
        yield
    # The client's own errors are RuntimeErrors; a ValueError is an answer that was cut off.
    except (RuntimeError, ValueError, ApiException, ClientError, OSError) as error:
        raise SandboxError(f"kubernetes: {error}") from error
