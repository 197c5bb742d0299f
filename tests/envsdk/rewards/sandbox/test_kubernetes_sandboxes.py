"""The `kubernetes` backend with the real client of agent-sandbox. The cluster is a stand-in: claims are kept
in memory, and each Pod's runtime is a real HTTP server, whose commands run in a bubblewrap sandbox."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.sandbox import ExecEnd, Image, Limits, SandboxError, SandboxUnavailable, open_backend
from envsdk.rewards.sandbox.bubblewrap import BubblewrapBackend
from envsdk.rewards.sandbox.bubblewrap.sandbox import BubblewrapSandbox
from envsdk.rewards.sandbox.kubernetes_backend import KubernetesBackend
from tests.envsdk.rewards.sandbox.boxes import said

pytest.importorskip("k8s_agent_sandbox.async_sandbox_client", reason="make test-kubernetes")
from aiohttp import web
from k8s_agent_sandbox.async_k8s_helper import AsyncK8sHelper
from k8s_agent_sandbox.exceptions import SandboxWarmPoolNotFoundError
from k8s_agent_sandbox.models import ExecutionResult, LegacyExecuteRequest

pytestmark = pytest.mark.kubernetes
POOL = "python"
LIMITS = Limits(output_bytes=64 << 20, kept_output_bytes=64 << 20)
ROOT = "/app"
"""Where commands start and files go, in a Pod."""


@dataclass
class Cluster:
    """Claims, each with a Pod, and the router in front of the Pods."""

    machine: BubblewrapBackend
    pods: dict[str, BubblewrapSandbox] = field(default_factory=dict)
    claims: dict[str, dict[str, Any]] = field(default_factory=dict)
    url: str = ""

    async def create_sandbox_claim(
        self, helper: Any, name: str, warmpool: str, namespace: str, **given: Any
    ) -> dict[str, Any]:
        if warmpool != POOL:
            raise SandboxWarmPoolNotFoundError(f"no warm pool {warmpool}")
        self.claims[name] = given
        self.pods[name] = await self.machine.start(Image(workdir=ROOT), limits=LIMITS)
        return {"metadata": {"name": name, "namespace": namespace, "resourceVersion": "1", "uid": name}}

    async def wait_for_claim_ready(self, helper: Any, claim_name: str, *_: Any, **__: Any) -> str:
        return claim_name

    async def get_sandbox(self, helper: Any, name: str, namespace: str) -> dict[str, Any] | None:
        ready = {"type": "Ready", "status": "True"}
        return {"status": {"conditions": [ready]}} if name in self.pods else None

    async def delete_sandbox_claim(self, helper: Any, name: str, namespace: str, **_: Any) -> None:
        if (pod := self.pods.pop(name, None)) is not None:
            await pod.close()

    def pod_of(self, request: web.Request) -> BubblewrapSandbox:
        return self.pods[request.headers["X-Sandbox-ID"]]

    async def execute(self, request: web.Request) -> web.Response:
        asked = LegacyExecuteRequest(**await request.json())
        assert asked.timeout_seconds is not None
        result = await self.pod_of(request).exec(
            f"cd {ROOT}; exec {asked.command}", timeout_s=asked.timeout_seconds
        )
        if result.reason is ExecEnd.INFRASTRUCTURE:
            raise web.HTTPBadGateway
        answer = ExecutionResult(
            stdout="" if result.reason is ExecEnd.TIMEOUT else result.output,
            exit_code=result.returncode or 0,
            timed_out=result.reason is ExecEnd.TIMEOUT,
        )
        return web.json_response(answer.model_dump())

    async def upload(self, request: web.Request) -> web.Response:
        part = await (await request.multipart()).next()
        await self.pod_of(request).write(f"{ROOT}/{part.filename}", bytes(await part.read()))
        return web.json_response({})


@pytest_asyncio.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    made = Cluster(BubblewrapBackend({"state_dir": tmp_path / "machine"}))
    for name in "create_sandbox_claim", "wait_for_claim_ready", "get_sandbox", "delete_sandbox_claim":
        call = getattr(made, name)
        monkeypatch.setattr(AsyncK8sHelper, name, lambda *args, call=call, **given: call(*args, **given))
    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/execute", made.execute)
    app.router.add_post("/upload", made.upload)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    assert made.pods == {}, "no claim is left"
    await runner.cleanup()
    await made.machine.aclose()


@pytest_asyncio.fixture
async def backend(cluster: Cluster) -> AsyncIterator[KubernetesBackend]:
    backend = opened(cluster)
    yield backend
    await backend.aclose()


def opened(cluster: Cluster, **settings: Any) -> KubernetesBackend:
    reached = {"warmpool": POOL, "connect": "direct", "connection": {"api_url": cluster.url}}
    return KubernetesBackend({**reached, **settings})


async def test_commands_run_in_a_claimed_pod_with_their_input_variables_and_exit_codes(
    backend: KubernetesBackend, cluster: Cluster
) -> None:
    sandbox = await backend.start(Image(env={"A": "it's"}, workdir=ROOT))
    result = await sandbox.exec('cat; echo "$A $B"; exit 3', timeout_s=60, env={"B": "b c"}, stdin=b"in\n")
    assert (result.output, result.returncode, result.reason) == ("in\nit's b c\n", 3, ExecEnd.EXIT)
    assert said(await sandbox.exec("pwd", timeout_s=60)) == ROOT
    assert all(claim["lifecycle"]["shutdownPolicy"] == "Delete" for claim in cluster.claims.values())
    await sandbox.close()
    assert not await sandbox.alive()


async def test_files_go_in_and_out_as_bytes_and_a_patch_comes_back(
    backend: KubernetesBackend, repository: Path
) -> None:
    sandbox = await backend.start(Image(tree=repository, workdir=f"{ROOT}/tree"))
    data = bytes(range(256)) * 1000
    await sandbox.write("data", data)
    assert await sandbox.read("data") == data
    said(await sandbox.exec("rm data; sed -i s/1/2/ lib.py", timeout_s=60))
    assert "+    return 2" in await sandbox.diff()
    await sandbox.unpack(await sandbox.pack())
    assert "return 2" in said(await sandbox.exec("cat lib.py", timeout_s=60))


async def test_limits_on_time_and_output_end_a_command(backend: KubernetesBackend) -> None:
    sandbox = await backend.start(Image(workdir=ROOT), limits=Limits(output_bytes=1000))
    assert (await sandbox.exec("sleep 100", timeout_s=0.5)).reason is ExecEnd.TIMEOUT
    assert (await sandbox.exec("yes", timeout_s=60)).reason is ExecEnd.OUTPUT_LIMIT
    assert said(await sandbox.exec("echo on", timeout_s=60)) == "on"


async def test_a_pod_that_went_away_is_infrastructure(backend: KubernetesBackend, cluster: Cluster) -> None:
    sandbox = await backend.start(Image(workdir=ROOT))
    (pod,) = cluster.pods.values()
    await pod.close()
    assert (await sandbox.exec("true", timeout_s=60)).reason is ExecEnd.INFRASTRUCTURE
    with pytest.raises(SandboxError):
        await sandbox.snapshot()


async def test_a_pool_that_is_not_there_and_images_without_a_pool_are_named(cluster: Cluster) -> None:
    missing = opened(cluster, warmpool="none")
    with pytest.raises(SandboxUnavailable, match="warm pool none of namespace default"):
        await missing.probe()
    await missing.aclose()
    backend = opened(cluster, warmpools={"python:3.11": POOL})
    await (await backend.start(Image(container="python:3.11"))).close()
    with pytest.raises(ConfigurationError, match="no pool of container image node:22"):
        await backend.start(Image(container="node:22"))
    await backend.aclose()


async def test_settings_of_the_connection_are_the_clients(cluster: Cluster) -> None:
    with pytest.raises(ConfigurationError, match="warmpool"):
        open_backend("kubernetes", {})
    backend = opened(cluster, connection={"api_ur": cluster.url})
    with pytest.raises(ConfigurationError, match="`connection` of sandbox backend `kubernetes`"):
        await backend.probe()


async def test_many_pods_are_claimed_at_once_and_all_are_given_back(
    backend: KubernetesBackend, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    sandboxes = await asyncio.gather(*(backend.start(Image(workdir=ROOT)) for _ in range(8)))
    assert len({sandbox.id for sandbox in sandboxes}) == 8
    await backend.aclose()
    assert "left to its time" not in caplog.text
