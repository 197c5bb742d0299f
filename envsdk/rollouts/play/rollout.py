"""`rollout` and `rollout_sync`: episodes from Python, without Ray and without files.

async for trajectory in rollout("envsdk/FrozenLake-v1", policy=play, tasks=64, group_size=8):
    ...
trajectories = rollout_sync("envsdk/FrozenLake-v1", policy="oracle", tasks=100)

checks of all arguments -> Player -> play_tasks -> a bounded buffer -> the caller
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from envsdk.base.processes.background_loop import on_background_loop
from envsdk.contracts.env import AnyTextEnv, EnvSpec
from envsdk.contracts.trajectory import Task, Trajectory
from envsdk.rollouts.play.rollout_arguments import Play, prepared
from envsdk.rollouts.results.trajectories import Trajectories

if TYPE_CHECKING:
    from envsdk.config import RunConfig

_LEAST_BUFFERED = 16
"""Finished episodes that may wait for the caller before play is held up, where few are played at a time."""


def rollout(
    env: str | Path | RunConfig | EnvSpec | Callable[..., AnyTextEnv],
    *,
    policy: object,
    tasks: int | Iterable[int] | Iterable[Task] = 100,
    group_size: int = 1,
    concurrency: int | None = None,
    split: str = "train",
    seed: int | None = None,
    env_config: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    tags: Sequence[str] | None = None,
    model: str | Path | None = None,
    sampling: Mapping[str, Any] | None = None,
    retries: int = 0,
    turn_timeout_s: float | None = None,
    episode_timeout_s: float | None = None,
    timeout_s: float | None = None,
    progress: bool = False,
) -> AsyncGenerator[Trajectory, None]:
    """Play episodes; gives each as it ends, in no fixed order.

    All arguments are checked at the call; the first `async for` starts to play. A slow consumer holds play
    up: at most as many finished episodes wait as are played at a time, or 16. Leaving the loop ends what is
    being played and closes environments; to wait until that is done, use `contextlib.aclosing`.

    Args:
        env: An environment's id (`envsdk/FrozenLake-v1`, or `FrozenLake`), a run's YAML file, a RunConfig, a
            subclass of TextEnv or AsyncTextEnv, a function that makes one, or an EnvSpec.
        policy: Who replies.

            - A function `(observation, context)` or `(observation)`, or with `messages`, the chat so far in
              OpenAI's form, as the first parameter's name. It returns the reply: a str, or a Reply. An async
              function is awaited; a plain one runs on a thread. `context` is the TurnContext.
            - A Policy object; or the name of one: `oracle`, `random`, `package.module:Class`.
            - A client like `openai.OpenAI` or `openai.AsyncOpenAI`, or the URL of a server of OpenAI's
              protocol, with `model=`.
            - A model's folder (Path), or a LocalEngine: episodes then keep their tokens.

            What it raises fails that episode: `trajectory.failure.traceback` says where. SystemExit and
            KeyboardInterrupt end the rollout instead, and come out of this call.
        tasks: The first so many of the split, over all tags; or indices, which each tag plays; or Task
            objects. An iterable without a length is read as episodes start, and may be endless.
        group_size: Episodes per task, so that `tasks=64, group_size=8` are 512 episodes. Those of a task have
            the same `group_id` and differ in `context.seed`.
        concurrency: Episodes at a time. Absent: as many as a model's engine runs, 16 for functions, clients
            and URLs; for named policies it depends on the environment's isolation.
        split: Which tasks: train, val, or any other name. Seeds depend on it.
        seed: Of tasks and sampling; the YAML's, or 42, when absent.
        env_config: Arguments of the environment, of any type; not with a YAML, which has its own.
        overrides: As `KEY=VALUE` of the command line: keys of the YAML; with an environment, its arguments.
        tags: Tags of the YAML to play; those of its train or val manager when absent.
        model: The model's name at the server, for a client or URL; a folder, for the policy `model`.
        sampling: `temperature`, `top_p`, `top_k`, `min_p`, `max_new_tokens` of a model or a URL. For a
            client: arguments of `create`, such as `max_tokens`; None leaves one out.
        retries: How often a task is played again whose episode failed.
        turn_timeout_s: Seconds for each reply. A late one fails its episode (`policy/timeout`): an async
            function is cancelled, the thread of a plain one is left behind. What blocks the event loop is
            noticed only when it returns.
        episode_timeout_s: Seconds for the turns of one episode, which else fails in the same way. Calls of
            the environment have limits of their own, in its EnvSpec.
        timeout_s: Seconds for the rollout, from its first episode on. Episodes that are still played then
            fail (`scheduler/timeout`). If tasks are left that were not begun, a RuntimeWarning says so.
        progress: Show a bar on stderr, or lines where that is no terminal, as in a notebook.

    Raises:
        ConfigurationError: An argument is wrong; from the call itself.
        RolloutStalled: The policy failed in the same way in each of the first 16 episodes; while iterating.
    """
    return _stream(
        prepared(
            env, policy, tasks, group_size, concurrency, split, seed, env_config, overrides, tags, model,
            sampling, retries, turn_timeout_s, episode_timeout_s, timeout_s, progress,
        )
    )  # fmt: skip


P = ParamSpec("P")


def _that_waits(streaming: Callable[P, object]) -> Callable[P, Trajectories]:
    """`rollout_sync` with the parameters of `rollout`."""
    signature = inspect.signature(streaming)

    def rollout_sync(*args: P.args, **kwargs: P.kwargs) -> Trajectories:
        """Play episodes and wait for all of them; they come in the order of the tasks, groups together.

        It works in a notebook as well; Ctrl-C ends it. Play, and an async function as the policy, run on a
        loop of envsdk's own, in another thread.

        Args: those of `rollout`.

        Returns:
            All episodes that were begun, failed ones among them.

        Raises:
            ConfigurationError: An argument is wrong.
            RolloutStalled: The policy failed in the same way in each of the first 16 episodes.
            RuntimeError: It is called on envsdk's own loop, as in an async policy of another `rollout_sync`:
                use `rollout` there.
        """
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        return on_background_loop(_gathered(prepared(**given.arguments)))

    rollout_sync.__signature__ = signature.replace(return_annotation=Trajectories)  # type: ignore[attr-defined]
    return rollout_sync


rollout_sync = _that_waits(rollout)
"""Play episodes and wait for all of them: takes what `rollout` takes, and works in a notebook as well.

They come in the order of the tasks, groups together, failed ones among them.
"""


async def _gathered(play: Play) -> Trajectories:
    ended: dict[int, Trajectory] = {}
    if (end := await play.run(ended.__setitem__)) is not None:
        raise end
    return Trajectories(ended[position] for position in sorted(ended))


async def _stream(play: Play) -> AsyncGenerator[Trajectory, None]:
    buffer: asyncio.Queue[Trajectory | None] = asyncio.Queue()
    capacity = max(_LEAST_BUFFERED, play.player.num_slots)
    has_room = asyncio.Event()
    has_room.set()

    def on_trajectory(position: int, trajectory: Trajectory) -> None:
        buffer.put_nowait(trajectory)
        if buffer.qsize() >= capacity:
            has_room.clear()

    async def admit() -> None:
        await has_room.wait()

    # A task of its own: the consumer's may differ from one item to the next, and may end between two.
    playing = asyncio.create_task(play.run(on_trajectory, admit=admit))
    playing.add_done_callback(lambda _: buffer.put_nowait(None))
    try:
        while (trajectory := await buffer.get()) is not None:
            if buffer.qsize() < capacity:
                has_room.set()
            yield trajectory
        if (end := playing.result()) is not None:
            raise end
    finally:
        playing.cancel()
        await asyncio.wait({playing})
        if not playing.cancelled():
            playing.exception()  # looked at: the consumer left before it came
