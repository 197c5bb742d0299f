"""AgentEnvManager: an external agent plays the episodes leased to one slot, over the HTTP endpoint.

    lease -> reset -> the agent runs: (asks the policy | steps the environment)* -> submit -> lease -> ...

The agent is a program, or a coroutine in this process. It asks the policy through the OpenAI API, and steps
the environment over HTTP or directly. The environment gives the rewards. The policy's replies become the
trajectory for training: one turn per reply; the reward of a step goes to the last reply before it.

    class LakeAgent(AgentEnvManager):
        command = [sys.executable, "-m", "my_agent"]

    custom_envs: {Lake: {env_manager_cls: "my_agents:LakeAgent", ...}}
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, ClassVar
from weakref import WeakKeyDictionary

from envsdk.contracts.agent_door import AgentDoor, agent_variables
from envsdk.contracts.failures import Boundary, ConfigurationError, Failure
from envsdk.contracts.policy import SequenceFull
from envsdk.contracts.trajectory import Outcome, Trajectory
from envsdk.engines.endpoint.errors import ApiError
from envsdk.engines.endpoint.sampling import SamplingRules
from envsdk.engines.endpoint.server import Endpoint, EndpointConfig
from envsdk.engines.endpoint.sessions import Session, SessionEnvironment
from envsdk.engines.engine_policy import EnginePolicy
from envsdk.engines.proxy import InferenceProxy
from envsdk.managers.env_host import EnvHost, EpisodeFailed, StepResult
from envsdk.managers.episode import EpisodeOrder
from envsdk.managers.traj_env_manager import TagSetup, TrajEnvManager, prompt_too_long

MODEL_NAME = "policy"
"""The name that agents use as `model`."""
_LAST_WORDS = 2000
"""How many of the last bytes of a failed program's output are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEpisode:
    """What an agent needs to play one episode."""

    base_url: str
    """Base URL for OpenAI clients."""
    api_key: str
    session_url: str
    """Prefix of the environment's routes, `GET /env` and `POST /env/step`; base URL for Anthropic clients."""
    model: str
    env: LeasedEnvironment
    """The same environment, for agents in this process."""
    door: Callable[[Path], AbstractAsyncContextManager[None]]
    """Serves the session's replies on a Unix socket: see `Endpoint.door`."""

    def variables(self) -> dict[str, str]:
        """Environment variables for an agent program. OpenAI's and Anthropic's clients read theirs."""
        variables = agent_variables(self.session_url, self.api_key, self.model)
        return {**variables, "ENVSDK_SESSION_URL": self.session_url}


class AgentEnvManager(TrajEnvManager):
    """To use it, derive a class that sets `command` or overrides `run_agent`.

    The run's sampling settings apply: a request for another distribution or seed is refused. Every reply is
    learned from: those of an agent that rewrites its history, or starts others, are several segments.
    """

    command: ClassVar[Sequence[str]] = ()
    """Program and arguments for `run_program`, once per episode."""
    limits_replies: ClassVar[bool] = False
    """Whether the tag's `max_steps` counts replies; otherwise it counts steps of the environment."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(self._policy, EnginePolicy):
            raise ConfigurationError(f"{type(self).__name__} needs a policy that asks an engine")
        if self._setup.window or self._setup.compact_at:
            raise ConfigurationError(
                f"custom_envs.{self._setup.tag}.context: {type(self).__name__} runs an agent, which decides "
                "by itself what its prompts show: leave `context` out"
            )
        self._engine_policy = self._policy
        self._endpoint: Endpoint | None = None

    async def run_agent(self, agent: AgentEpisode) -> None:
        """Play one episode. An exception fails it, unless the environment has ended it."""
        if not self.command:
            raise NotImplementedError(f"{type(self).__name__} sets no `command` and overrides no `run_agent`")
        await self.run_program(agent, *self.command)

    async def run_program(self, agent: AgentEpisode, *command: str, cwd: str | Path | None = None) -> None:
        """Wait for a program with `AgentEpisode.variables`, in the folder `cwd`. RuntimeError where it fails.

        It and the processes it started are killed when it has ended, or when this is canceled.
        """
        with tempfile.TemporaryFile() as output:
            program = await asyncio.create_subprocess_exec(
                *command,
                cwd=cwd,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                env={**os.environ, **agent.variables()},
                start_new_session=True,
            )
            try:
                await program.wait()
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(program.pid, signal.SIGKILL)  # also the processes it started
                await program.wait()
            if program.returncode:
                raise RuntimeError(f"the agent exited with {program.returncode}: {_last_line(output)}")

    async def run_rollout_loop(self) -> None:
        async with _shared_endpoint(self._engine_policy) as self._endpoint:
            await super().run_rollout_loop()

    async def play(self, order: EpisodeOrder) -> Trajectory:
        endpoint, policy = self._endpoint, self._engine_policy
        assert endpoint is not None, "run_rollout_loop"
        session = endpoint.sessions.open(
            session_id=f"{order.task.split}-{order.lease_id}",
            tag=order.task.tag,
            split=order.task.split,
            index=order.task.index,
            group_id=order.group_id,
            seed=order.seed,
            rules=SamplingRules(
                **policy.generating.shape(),
                max_new_tokens=policy.max_new_tokens,
                structure=policy.structure,
                is_fixed=True,
                support=policy.generating.support,
                seed=order.policy_seed,
                max_session_tokens=self._setup.max_episode_tokens,
                max_replies=self._setup.max_turns if self.limits_replies else 0,
            ),
        )
        env = LeasedEnvironment(self._host, self._setup, session)
        session.env = env
        failure: Failure | None = None
        try:
            await env.reset(order)
            agent = AgentEpisode(
                base_url=endpoint.base_url(session),
                api_key=session.api_key,
                session_url=endpoint.session_url(session),
                model=MODEL_NAME,
                env=env,
                door=partial(endpoint.door, session),
            )
            failure = await self._failure_of(agent, env)
        except EpisodeFailed as failed:
            failure = failed.failure
        finally:
            endpoint.sessions.end(session)
            await env.close()
        return self._trajectory(session, env, failure)

    async def _failure_of(self, agent: AgentEpisode, env: LeasedEnvironment) -> Failure | None:
        """Run the agent until it returns or its environment breaks. Returns the failure, if any."""
        running = asyncio.ensure_future(self.run_agent(agent))
        broken = asyncio.ensure_future(env.broken.wait())
        waited_for: set[asyncio.Future[Any]] = {running, broken}
        try:
            await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
        finally:
            broken.cancel()
            running.cancel()
            await asyncio.wait({running})
        if env.failure is not None or running.cancelled():
            return env.failure
        error = running.exception()
        if error is None:
            return None
        if not isinstance(error, Exception):
            raise error
        return Failure.from_exception(Boundary.AGENT, error, kind="agent_failed")

    def _trajectory(self, session: Session, env: LeasedEnvironment, failure: Failure | None) -> Trajectory:
        outcome = env.outcome or Outcome.TRUNCATED
        if failure is not None:
            failure = self._episode_failure(session, env, failure)
        if session.record.replies and session.ignored:
            session.reward(0.0, {"ignored_fields": float(session.ignored.total())})
        return session.episode(
            outcome=Outcome.FAILED if failure is not None else outcome,
            success=env.success and failure is None,
            failure=failure,
            final_observation=env.observation,
            worker=self._worker,
            task_name=self._host.task_name,
        )

    def _episode_failure(self, session: Session, env: LeasedEnvironment, failure: Failure) -> Failure | None:
        """The cause behind the agent's failure; None when the episode has an outcome anyway."""
        if failure.boundary is not Boundary.AGENT:
            self._host.discard()
            return failure
        if env.outcome is not None:
            return None
        if session.full is not None:
            if session.record.replies:
                return None
            full = SequenceFull(
                num_tokens=session.full.num_prompt_tokens,
                max_new_tokens=self._engine_policy.max_new_tokens,
                sequence_length=self._engine_policy.sequence_length,
            )
            own = "have the program send less, by its own settings" if self.limits_replies else ""
            return prompt_too_long(self._setup.tag, full, own)
        if session.engine_error:
            return Failure(boundary=Boundary.ENGINE, kind="request_failed", message=session.engine_error)
        return failure


class LeasedEnvironment(SessionEnvironment):
    """Gives a session access to the manager's environment.

    reset -> step* -> close
    """

    def __init__(self, host: EnvHost, setup: TagSetup, session: Session) -> None:
        self._host = host
        self._setup = setup
        self._session = session
        self._num_steps = 0
        self._stepping: asyncio.Future[Any] | None = None
        self.observation = ""
        self.outcome: Outcome | None = None
        """None until the environment ends the episode."""
        self.success = False
        self.failure: Failure | None = None
        self.broken = asyncio.Event()
        """Set with `failure`."""

    async def reset(self, order: EpisodeOrder) -> None:
        """Start the episode. Raises EpisodeFailed."""
        before = time.perf_counter()
        options = self._host.blueprint.reset_options(order.task)
        self.observation, start = await self._host.reset(order.seed, options)
        if start.get("roles"):
            message = "an agent plays one role, and the environment has several: use TrajEnvManager"
            failure = Failure(boundary=Boundary.CONFIGURATION, kind="players", message=message)
            raise EpisodeFailed(failure)
        await self._hash_state()
        self._session.env_s += time.perf_counter() - before

    async def look(self) -> Mapping[str, Any]:
        return {
            "system": self._setup.prompts.system,
            "observation": self.observation,
            "prompt": self._prompt(),
            "turn": self._num_steps,
            "is_over": self.outcome is not None,
            "success": self.success,
        }

    async def step(self, action: str) -> Mapping[str, Any]:
        return await self._alone(partial(self._host.step, action))

    async def play(self, door: AgentDoor) -> None:
        """Have the environment's own program play the episode. RuntimeError where that is no outcome."""
        session, replies = self._session, self._session.record.replies

        async def played() -> StepResult:
            result = await self._host.play(door)
            if session.engine_error or not replies or result[-1].get("agent_broken"):
                why = result[-1].get("agent_error", "the program ended without a request")
                raise RuntimeError(session.engine_error or why)
            return result

        await self._alone(played)
        session.env_s = max(0.0, session.env_s - session.record.generate_s)

    async def _alone(self, call: Callable[[], Awaitable[StepResult]]) -> Mapping[str, Any]:
        if self.outcome is not None:
            raise ApiError(409, "the episode is over", code="episode_over")
        if self._stepping is not None:
            raise ApiError(409, "another step is not answered yet", code="step_running")
        self._stepping = asyncio.ensure_future(self._step(call))
        try:
            return await asyncio.shield(self._stepping)
        except EpisodeFailed as failed:
            self.failure = failed.failure
            self.broken.set()
            raise ApiError(500, str(failed), code="environment_failed") from failed
        except asyncio.CancelledError:
            if self._stepping.cancelled():
                raise ApiError(409, "the session ended", code="session_ended") from None
            raise
        finally:
            if self._stepping.done():
                self._stepping = None

    async def _step(self, call: Callable[[], Awaitable[StepResult]]) -> dict[str, Any]:
        before = time.perf_counter()
        self.observation, reward, terminated, truncated, info = await call()
        self._num_steps += 1
        self._session.reward(reward, info.get("metrics"), info.get("details"))
        truncated = truncated or (self._num_steps >= self._setup.max_turns and not terminated)
        if terminated or truncated:
            self.outcome = Outcome.TERMINATED if terminated else Outcome.TRUNCATED
            self.success = info["success"]
        else:
            await self._hash_state()
        self._session.env_s += time.perf_counter() - before
        return {**await self.look(), "reward": reward, "terminated": terminated, "truncated": truncated}

    async def _hash_state(self) -> None:
        if self._setup.with_state_hashes:
            self._session.state_hash = await self._host.state_hash()

    def _prompt(self) -> str:
        """The observation in the tag's prompt template."""
        return self._setup.prompts.user(
            observation=self.observation,
            turn_index=self._num_steps,
            num_actions_left=self._setup.max_turns - self._num_steps,
            max_response_length=self._setup.max_new_tokens,
        )

    async def close(self) -> None:
        """Cancel a running step; the environment is then discarded, as its state is unknown."""
        if self._stepping is not None:
            self._stepping.cancel()
            await asyncio.wait({self._stepping})
            self._host.discard()


def _last_line(output: IO[bytes]) -> str:
    """The last line of a program's output; empty without output."""
    output.seek(max(0, output.seek(0, os.SEEK_END) - _LAST_WORDS))
    lines = output.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


@dataclass(slots=True)
class _Shared:
    endpoint: Endpoint
    starting: asyncio.Task[None]
    num_users: int = 0


_shared: WeakKeyDictionary[InferenceProxy, _Shared] = WeakKeyDictionary()


@asynccontextmanager
async def _shared_endpoint(policy: EnginePolicy) -> AsyncIterator[Endpoint]:
    """The endpoint on loopback that all managers of a proxy share. The last manager to end closes it."""
    shared = _shared.get(policy.proxy)
    if shared is None:
        config = EndpointConfig(
            model_name=MODEL_NAME, sequence_length=policy.sequence_length, session_idle_s=float("inf")
        )
        endpoint = Endpoint(policy.proxy, policy.chat, config)
        shared = _shared[policy.proxy] = _Shared(endpoint, asyncio.create_task(endpoint.start()))
    shared.num_users += 1
    try:
        await asyncio.shield(shared.starting)
        yield shared.endpoint
    finally:
        shared.num_users -= 1
        if shared.num_users == 0:
            del _shared[policy.proxy]
            await shared.endpoint.close()
