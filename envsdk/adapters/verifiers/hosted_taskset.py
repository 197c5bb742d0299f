"""Tasksets of verifiers as hosts of episodes.

verifiers plays an episode of its environment with `TextHarness` as the agent's program. The model that is
asked is a server of this process, behind which a `Rollout` waits for its reply.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, ClassVar

import verifiers.v1 as vf
from aiohttp import web
from pydantic import ValidationError
from verifiers.v1.clients.client import SESSION_ID_HEADER
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

import envsdk.adapters.verifiers.taskset  # noqa: F401 - ours can be played by way of theirs
from envsdk.adapters.verifiers.harness import HARNESS_ID
from envsdk.adapters.verifiers.rollout import (
    Ended,
    Rollout,
    after_last_reply,
    shows_more_than_text,
)
from envsdk.contracts.failures import ConfigurationError

MODEL = "envsdk"
_NO_KEY = "ENVSDK_NEEDS_NO_KEY"
MOST_TASKS = 100_000
"""Tasks that are taken of a taskset without end."""


@dataclass(frozen=True, slots=True, eq=False)
class HostedTaskset:
    """A taskset and what verifiers needs to play its tasks. May be shared: state is in the rollouts."""

    id: str
    settings: str
    tasks: Sequence[Any]
    own_limit: int | None

    @property
    def num_tasks(self) -> int:
        return len(self.tasks)

    def rollout(self, task: int, max_turns: int) -> TaskRollout:
        return TaskRollout(self.tasks[task], self.id, self.settings, max_turns)


@lru_cache(maxsize=16)
def open_taskset(id: str, settings: str) -> HostedTaskset:
    """The taskset of that module, with `settings` (JSON) as fields of its configuration.

    Raises:
        ValueError: It cannot be loaded, or a policy that only writes text cannot play it.
    """
    try:
        environment = _environment(id, settings, 1)
        taskset = environment.taskset
        tasks = list(islice(taskset, MOST_TASKS))
    except ConfigurationError:
        raise
    except Exception as error:
        absent = error.__cause__ if isinstance(error.__cause__, ModuleNotFoundError) else error
        if isinstance(absent, ModuleNotFoundError) and absent.name not in (None, id.replace("-", "_")):
            raise ValueError(f"id: {id} needs {absent.name}: pip install {absent.name}") from error
        raise ValueError(f"id: {id}: {_in_one_line(error)}") from error
    task_class = type(taskset).task_type()
    if task_class.toolsets(taskset.config.task) or type(taskset).toolsets(taskset.config):
        raise ValueError(f"id: {id} has tools, which are called in messages of their own and not in text")
    if task_class.NEEDS_CONTAINER:
        raise ValueError(f"id: {id} works on files in a container, and not in text")
    if not tasks:
        raise ValueError(f"id: {id} has no tasks")
    prompt = tasks[0].data.prompt
    if not isinstance(prompt, str) and shows_more_than_text(prompt or ()):
        raise ValueError(f"id: {id} shows more than text, such as images, which no policy here can see")
    # The usual environment runs its agent once, and so asks `TextHarness` for one reply.
    own_limit = 1 if isinstance(environment, vf.SingleAgentEnv) else None
    return HostedTaskset(id, settings, tasks, own_limit)


def _environment(id: str, settings: str, max_turns: int) -> Any:
    arguments = {**json.loads(settings), "id": id}
    roles = list(agent_config_fields(resolve_env_config({"taskset": arguments})))
    if len(roles) != 1:
        named = ", ".join(roles)
        raise ValueError(f"its environment has {len(roles)} agents ({named}); a policy can be one")
    agent = {
        "harness": {"id": HARNESS_ID},
        "runtime": {"type": "subprocess"},
        "max_turns": max_turns,
        "network_notice": False,
    }
    return load_environment(resolve_env_config({"taskset": arguments, roles[0]: agent}))


def _in_one_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    return f"{error}" if isinstance(error, ValueError | ImportError) else f"{type(error).__name__}: {error}"


class TaskRollout(Rollout):
    """One task, played by `run_episode`."""

    def __init__(self, task: Any, id: str, settings: str, max_turns: int) -> None:
        super().__init__()
        self._verifiers_task = task
        self._opening = id, settings, max_turns

    async def _play(self) -> Ended:
        environment, server = await _serving(*self._opening)
        client = vf.EvalClientConfig(base_url=server.base_url, api_key_var=_NO_KEY)
        model = vf.ModelContext(model=MODEL, client=client)
        with server.answering(self) as on_trace:
            episode = await environment.run_episode(self._verifiers_task, model, on_trace=on_trace)
        return _ended(episode)


def _ended(episode: Any) -> Ended:
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if errors or not episode.traces:
        why = f"{errors[-1].type}: {errors[-1].message}" if errors else "no agent was run"
        return Ended(error=why)
    (trace, *_) = episode.traces
    signals = {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
    signals |= {name: value for name, value in trace.metrics.items() if value is not None}
    return Ended(
        reward=float(trace.reward),
        metrics=signals,
        last_messages=after_last_reply(trace.messages),
        was_cut_short=trace.is_truncated,
    )


_served: dict[tuple[asyncio.AbstractEventLoop, str, str, int], asyncio.Future[tuple[Any, ModelServer]]] = {}
"""Environments that are being served on a loop, by that loop and how they were opened."""
_stack = AsyncExitStack()
"""Holds them open for as long as the process lives."""


async def _serving(id: str, settings: str, max_turns: int) -> tuple[Any, ModelServer]:
    """The environment, with what verifiers keeps open for it, and the model's server of this loop."""
    loop = asyncio.get_running_loop()
    key = (loop, id, settings, max_turns)
    if key not in _served:
        _served[key] = asyncio.ensure_future(_serve(id, settings, max_turns))
    try:
        return await asyncio.shield(_served[key])
    except Exception:
        # The next rollout tries again.
        _served.pop(key, None)
        raise


async def _serve(id: str, settings: str, max_turns: int) -> tuple[Any, ModelServer]:
    environment = _environment(id, settings, max_turns)
    await _stack.enter_async_context(environment.serving())
    return environment, await ModelServer.of_this_loop()


class ModelServer:
    """One per event loop: `of_this_loop`. Which rollout asks, the header with its trace's id says.

    They share one address, since verifiers keeps a client, and its connections, for each; it is secret.
    """

    _servers: ClassVar[dict[asyncio.AbstractEventLoop, asyncio.Task[ModelServer]]] = {}

    def __init__(self) -> None:
        self._rollouts: dict[str, Rollout] = {}
        self._secret = secrets.token_urlsafe(24)
        self.base_url = ""

    @classmethod
    async def of_this_loop(cls) -> ModelServer:
        loop = asyncio.get_running_loop()
        if loop not in cls._servers:
            cls._servers[loop] = loop.create_task(cls()._started())
        return await asyncio.shield(cls._servers[loop])

    async def _started(self) -> ModelServer:
        app = web.Application(client_max_size=2**30)
        app.router.add_post(f"/{self._secret}/v1/chat/completions", self._complete)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/{self._secret}/v1"
        return self

    @contextmanager
    def answering(self, rollout: Rollout) -> Iterator[Callable[[Any], None]]:
        """Within the block `rollout` answers for the traces that the block names."""
        traces: list[str] = []

        def on_trace(trace: Any) -> None:
            traces.append(trace.id)
            self._rollouts[trace.id] = rollout

        try:
            yield on_trace
        finally:
            for trace in traces:
                del self._rollouts[trace]

    async def _complete(self, request: web.Request) -> web.Response:
        rollout = self._rollouts.get(request.headers.get(SESSION_ID_HEADER, ""))
        if rollout is None:
            raise web.HTTPNotFound
        body = await request.json()
        text = await rollout.answer(body["messages"])
        message = {"role": "assistant", "content": text}
        return web.json_response(
            {
                "id": "envsdk",
                "object": "chat.completion",
                "created": int(time.time()),
                "model": body["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
            }
        )
