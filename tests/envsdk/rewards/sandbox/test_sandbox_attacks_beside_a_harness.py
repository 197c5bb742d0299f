"""The attacks on sandboxes once more, with a harness running in each: all promises still hold."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from envsdk.base.net.web_server import unix_door
from envsdk.contracts.agent_door import AgentDoor
from envsdk.envs.swe.harness import Harness, Stage, staged
from envsdk.rewards.sandbox import ExecResult, Image, Limits
from envsdk.rewards.sandbox.bubblewrap import BubblewrapBackend
from envsdk.rewards.sandbox.bubblewrap.sandbox import BubblewrapSandbox
from tests.envsdk.rewards.sandbox.boxes import Start
from tests.envsdk.rewards.sandbox.test_sandbox_attacks_on_files import *  # noqa: F403
from tests.envsdk.rewards.sandbox.test_sandbox_attacks_on_git import *  # noqa: F403
from tests.envsdk.rewards.sandbox.test_sandbox_attacks_on_networks import *  # noqa: F403
from tests.envsdk.rewards.sandbox.test_sandbox_attacks_on_processes import *  # noqa: F403

# The first changes a sandbox by hand, the other finds the variables of a harness: a command may see those.
del test_a_memory_hog_is_ended_where_there_are_no_control_groups  # noqa: F821
del test_this_programs_environment_does_not_leak  # noqa: F821

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@dataclass
class Beside:
    """A sandbox whose commands run while a harness does."""

    sandbox: BubblewrapSandbox
    stage: Stage

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sandbox, name)

    async def exec(self, script: str, **how: Any) -> ExecResult:
        variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in self.stage.env.items())
        harness = f"( (export {variables}; {self.stage.script}) < /dev/null > /dev/null 2>&1 & )\n"
        return await self.sandbox.exec(harness + script, **how)


@pytest_asyncio.fixture(loop_scope="module")
async def start(
    backend: BubblewrapBackend, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Start]:
    async def serve(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"yes"})

    door = AgentDoor(socket=tmp_path_factory.mktemp("door") / "socket", api_key="key", model="policy")
    async with (
        unix_door(serve, door.socket, most_requests=1000),
        staged(Harness(command="sleep 3600"), "issue", door) as stage,
    ):

        async def start(*, limits: Limits | None = None, **fields: Any) -> Any:
            image = Image(**{"tree": repository, **fields})
            image = replace(image, binds={**image.binds, **stage.binds})
            return Beside(await backend.start(image, limits=limits), stage)

        yield start


async def test_the_harness_is_there(sandbox: Beside) -> None:
    asks = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:18423').read())"
    tries = f'until python -c "{asks}" 2> /dev/null; do sleep 0.05; done; pgrep -c sleep'
    assert (await sandbox.exec(tries, timeout_s=30)).output == "b'yes'\n1\n"
