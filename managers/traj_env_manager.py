"""TrajEnvManager: owns one environment slot and plays one leased episode after another.

    lease -> reset -> (prompt -> reply -> step)* -> submit -> lease -> ...

Each manager runs its own loop and never waits for another. A trajectory is token-in-token-out: the policy
appends the sampled tokens to the log of its line, and no text of a line is tokenized twice. There is one line
unless prompts show only the last turns (`window`), or a summary of those before (`compact_at`): later turns
then begin lines of their own. Each of several players has a line too. Managers need no Ray: an `EnvWorker`
runs many of them in an actor, `collect` and `evaluate` run them in one process.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from envsdk.algorithms.task_samplers.prefixes import Prefix, num_replayed
from envsdk.contracts.env import Info
from envsdk.contracts.failures import Boundary, EnvsdkError, Failure, describe_error
from envsdk.contracts.players import POLICY, Players, Seat, seated
from envsdk.contracts.policy import ContextFull, Policy, PolicyFailed, Reply, SequenceFull, TurnContext
from envsdk.contracts.prompts import PREFIX, SUMMARY, AgentPrompts, TagPrompts
from envsdk.contracts.seeds import stable_seed
from envsdk.contracts.trajectory import Outcome, TokenLog, Trajectory
from envsdk.engines.refusals import is_full_context
from envsdk.engines.sampling import OutputStructure
from envsdk.managers.env_host import EnvBlueprint, EpisodeFailed
from envsdk.managers.episode import Episode, EpisodeOrder
from envsdk.managers.hosts import open_host

if TYPE_CHECKING:
    from envsdk.engines.engine_policy import EnginePolicy

UNLIMITED_TURNS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCurriculum:
    """A limit on turns that grows: `start`, and `add` more after every `every` groups of the run.

    The group's number alone decides, so its members have one limit, also in a run that is continued.
    Source: the interaction horizon of arXiv:2509.08755, which grows by a constant in intervals.
    """

    start: int
    add: int
    every: int

    def limit(self, group_id: int) -> int:
        return self.start + self.add * (group_id // self.every)


@dataclass(frozen=True, slots=True, kw_only=True)
class TagSetup:
    """Everything a manager needs to play a tag. Picklable."""

    tag: str
    blueprint: EnvBlueprint
    prompts: AgentPrompts = field(default_factory=AgentPrompts)
    max_turns: int = UNLIMITED_TURNS
    """Turns before the episode is truncated."""
    max_new_tokens: int = 0
    """Maximum length of a reply in tokens. Templates show it as `{max_response_length}`."""
    structure: OutputStructure | None = None
    """Constrains the text of a model's replies."""
    with_state_hashes: bool = False
    """Record a hash of the environment's state before each reply."""
    window: int = 0
    """How many turns a prompt shows; 0: all."""
    compact_at: int = 0
    """Tokens of a line from which on the policy is asked for a summary, or before, where none would fit after
    the next turn; 0: it never is."""
    compact_prompt: str = ""
    """What it is asked."""
    players: Players = ()
    """Who plays the roles of an environment of several players; empty: the policy plays them all."""
    max_episode_tokens: int = 0
    """Tokens of an episode from which on no turn begins; 0: no limit."""
    turn_curriculum: TurnCurriculum | None = None
    """A lower limit on turns, for the time being."""

    @property
    def shown(self) -> TagPrompts:
        """For `Trajectory.shown` of its episodes."""
        return TagPrompts(
            prompts=self.prompts,
            max_turns=self.max_turns,
            max_new_tokens=self.max_new_tokens,
            env_type=self.blueprint.spec.id,
            env_config={**self.blueprint.spec.kwargs, **self.blueprint.env_config},
            window=self.window,
        )

    def engine_policy(self, *engine: Any, **limits: Any) -> EnginePolicy:
        """The model's, for this tag; the arguments are those of `EnginePolicy`."""
        from envsdk.engines.engine_policy import EnginePolicy

        return EnginePolicy(*engine, max_new_tokens=self.max_new_tokens, structure=self.structure, **limits)


class LeaseSource(ABC):
    """Gives a manager its episodes and takes the results."""

    @abstractmethod
    async def lease(self, slot_id: str, tag: str) -> EpisodeOrder | None:
        """The next episode of this tag for this slot; None when there are no more."""

    @abstractmethod
    def submit(self, slot_id: str, lease_id: int, trajectory: Trajectory) -> None:
        """Hand in a finished episode. The slot is idle."""

    @abstractmethod
    def released(self, slot_id: str, lease_id: int, num_tokens: int) -> None:
        """The lease was cancelled after its replies had this many tokens, and the slot is idle."""


class TrajEnvManager:
    """Plays the episodes leased to one slot.

    Owner: an `EnvWorker`, which may also `cancel` a lease, or a local runner.
    """

    def __init__(
        self,
        *,
        slot_id: str,
        setup: TagSetup,
        policy: Policy,
        leases: LeaseSource,
        worker: str = "",
        opponents: Mapping[str, Policy] | None = None,
    ) -> None:
        """`opponents` are the players of the tag other than the policy, by name."""
        self.slot_id = slot_id
        self._setup = setup
        self._policy = policy
        self._opponents = opponents or {}
        chats = {name: getattr(each, "chat", None) for name, each in self._opponents.items()}
        self._foreign = {n for n, chat in chats.items() if chat is not getattr(policy, "chat", None)}
        self._leases = leases
        self._worker = worker
        self._host = open_host(setup.blueprint)
        self._loop_task: asyncio.Task[None] | None = None
        self._playing: EpisodeOrder | None = None
        self._cancelled: int | None = None
        self._sampled = TokenLog()
        """Tokens of the present episode, or of the last one."""

    async def run_rollout_loop(self) -> None:
        """Play until the lease source has no more."""
        self._loop_task = asyncio.current_task()
        try:
            while (order := await self._leases.lease(self.slot_id, self._setup.tag)) is not None:
                trajectory = await self._play_unless_cancelled(order)
                if trajectory is None:
                    self._leases.released(self.slot_id, order.lease_id, self._sampled.num_sampled)
                else:
                    self._leases.submit(self.slot_id, order.lease_id, trajectory)
        finally:
            self._host.close()
            await self._host.closed()

    def cancel(self, lease_id: int) -> None:
        """Stop playing this lease. Does nothing when another lease, or none, is being played."""
        is_playing = self._playing is not None and self._playing.lease_id == lease_id
        if is_playing and self._loop_task is not None and self._cancelled != lease_id:
            self._cancelled = lease_id
            self._loop_task.cancel()

    @property
    def place(self) -> int | None:
        """Index of the environment among the watched calls of this process; None when it is not watched."""
        return self._host.place

    async def _play_unless_cancelled(self, order: EpisodeOrder) -> Trajectory | None:
        self._playing = order
        try:
            return await self.play(order)
        except asyncio.CancelledError:
            if self._cancelled != order.lease_id:
                raise
            task = asyncio.current_task()
            assert task is not None
            if task.uncancel() > 0:
                raise
            # The environment may have stopped in the middle of a step: its state is unknown.
            self._host.discard()
            return None
        finally:
            self._playing = None

    async def play(self, order: EpisodeOrder) -> Trajectory:
        """Play one episode. Failures of environment, engine and policy become part of the trajectory."""
        episode = Episode(order, self._worker, self._foreign)
        self._sampled = episode.log
        try:
            await self._play_turns(order, episode)
        except (EpisodeFailed, PolicyFailed) as failed:
            episode.fail(failed.failure)
            self._host.discard()
        except SequenceFull as full:
            if any(turn.role != PREFIX for turn in episode.turns):
                episode.outcome = Outcome.TRUNCATED
            else:
                episode.fail(prompt_too_long(self._setup.tag, full))
        return episode.finish(self._host.task_name)

    async def _play_turns(self, order: EpisodeOrder, episode: Episode) -> None:
        setup, host = self._setup, self._host
        clock = time.perf_counter
        before = clock()
        observation, start = await host.reset(order.seed, host.blueprint.reset_options(order.task))
        episode.env_s += clock() - before
        episode.tools, episode.history = start.get("tools", ()), start.get("history", ())
        episode.seats = self._seats(order, start)
        role = start.get("role", "")
        if order.prefix is not None:
            observation = await self._replay(order, order.prefix, episode, observation)
        max_turns = setup.max_turns
        if setup.turn_curriculum is not None:
            max_turns = min(max_turns, len(episode.turns) + setup.turn_curriculum.limit(order.group_id))
        episode.max_turns = max_turns
        for turn_index in range(len(episode.turns), max_turns):
            if 0 < setup.max_episode_tokens <= len(episode.log):
                return
            episode.final_observation = observation
            if episode.seats:
                episode.turn_to(role)
            state_hash = await host.state_hash() if setup.with_state_hashes else None
            if 0 < setup.compact_at <= len(episode.line.log):
                await self._summarize(order, episode, turn_index, state_hash)
            elif 0 < setup.window <= sum(not role or turn.role == role for turn in episode.turns):
                episode.begin_line(setup.shown)
            prompt = setup.prompts.user(
                observation=observation,
                turn_index=turn_index,
                num_actions_left=max_turns - turn_index,
                max_response_length=setup.max_new_tokens,
            )
            reserved = setup.compact_prompt if setup.compact_at and turn_index + 1 < max_turns else ""
            try:
                reply, generate_s = await self._ask(
                    order, episode, turn_index, prompt, observation, reserved_prompt=reserved
                )
            except SequenceFull:
                if not setup.compact_at:
                    raise
                await self._summarize(order, episode, turn_index, state_hash)
                reply, generate_s = await self._ask(order, episode, turn_index, prompt, observation)
            before = clock()
            next_observation, reward, terminated, truncated, info = await host.step(reply.text)
            env_s = clock() - before
            episode.env_s += env_s
            episode.add_turn(
                observation, reply, reward, info, state_hash, generate_s=generate_s, env_s=env_s, role=role
            )
            role = info.get("role", "")
            observation = episode.final_observation = next_observation
            episode.success = info["success"]
            if terminated or truncated:
                episode.outcome = Outcome.TERMINATED if terminated else Outcome.TRUNCATED
                return

    async def _replay(self, order: EpisodeOrder, prefix: Prefix, episode: Episode, observation: str) -> str:
        """Play the replies of the prefix; the policy is shown them as given. Returns the next observation."""
        host, replies = self._host, prefix.replies
        if not replies:
            replies = await self._oracle_replies()
            replies = replies[: num_replayed(len(replies), prefix.share)]
            observation, _ = await host.reset(order.seed, host.blueprint.reset_options(order.task))
        for text in replies:
            state_hash = await host.state_hash() if self._setup.with_state_hashes else None
            answer, reward, terminated, truncated, info = await host.step(text)
            if terminated or truncated:
                message = (
                    "a replayed episode ended earlier than it had: the environment does not follow its seed"
                )
                raise EpisodeFailed(
                    Failure(boundary=Boundary.ENVIRONMENT, kind="prefix_ended", message=message)
                )
            episode.add_turn(
                observation, Reply(text=text), reward, info, state_hash, generate_s=0.0, role=PREFIX
            )
            observation, episode.success = answer, info["success"]
        shown = self._setup.shown.spoken(episode.turns, range(len(episode.turns)))
        episode.history = [*episode.history, *shown]
        return observation

    async def _oracle_replies(self) -> list[str]:
        """How the oracle plays on from here."""
        replies: list[str] = []
        for _ in range(self._setup.max_turns):
            replies.append(await self._host.oracle())
            *_, terminated, truncated, _ = await self._host.step(replies[-1])
            if terminated or truncated:
                break
        return replies

    async def _summarize(
        self, order: EpisodeOrder, episode: Episode, turn_index: int, state_hash: str | None
    ) -> None:
        """End the line with a summary, with which the next one begins, unless it has no turn or no room."""
        if len(episode.turns) == episode.line.start:
            return
        asked = self._setup.compact_prompt
        try:
            reply, generate_s = await self._ask(order, episode, turn_index, asked, asked, kind=SUMMARY)
        except SequenceFull:
            return
        episode.add_turn(asked, reply, 0.0, {}, state_hash, generate_s=generate_s, role=SUMMARY)
        episode.begin_line(self._setup.shown)

    async def _ask(
        self,
        order: EpisodeOrder,
        episode: Episode,
        turn_index: int,
        prompt: str,
        observation: str,
        *,
        kind: str = "",
        reserved_prompt: str = "",
    ) -> tuple[Reply, float]:
        """The player's reply, and the seconds until it came."""
        setup, line, role = self._setup, episode.line, episode.role
        context = TurnContext(
            system=setup.prompts.system_of(role),
            prompt=prompt,
            observation=observation,
            turn_index=turn_index,
            num_actions_left=episode.max_turns - turn_index,
            env=self._host,
            seed=stable_seed(order.policy_seed, turn_index, *([kind] if kind else [])),
            log=line.log,
            session_id=f"{episode.trajectory_id}/{role}" if role else episode.trajectory_id,
            prompt_group=None if turn_index else order.group_id,
            tools=episode.tools,
            turns=episode.turns,
            line_start=line.start,
            role=role,
            history=[*episode.history, *line.carried] if line.carried else episode.history,
            reserved_prompt=reserved_prompt,
        )
        before = time.perf_counter()
        reply = await _act(self._player_of(episode), context)
        generate_s = time.perf_counter() - before
        episode.generate_s += generate_s
        return reply, generate_s

    def _player_of(self, episode: Episode) -> Policy:
        player = POLICY if not episode.seats else episode.seats[episode.role].player
        return self._policy if player == POLICY else self._opponents[player]

    def _seats(self, order: EpisodeOrder, start: Info) -> dict[str, Seat]:
        """Who plays which role. EpisodeFailed where `players` does not fit the environment's roles."""
        try:
            players = seated(self._setup.players, start.get("roles", ()), order.task.index)
            if players and self._setup.compact_at:
                raise ValueError("a summary is nobody's turn, so context: compact takes one player")
        except ValueError as error:
            message = f"custom_envs.{self._setup.tag}.players: {error}"
            failure = Failure(boundary=Boundary.CONFIGURATION, kind="players", message=message)
            raise EpisodeFailed(failure) from error
        return {role: Seat(player=player, score=0.0) for role, player in players.items()}


async def _act(policy: Policy, context: TurnContext) -> Reply:
    """The policy's reply. This is the boundary of policies: their exceptions become PolicyFailed."""
    try:
        reply = await policy.act(context)
        if not isinstance(reply, Reply) or not isinstance(reply.text, str):
            raise TypeError(f"act() must return a Reply with text, not {type(reply).__name__}")
        return reply
    except (EpisodeFailed, PolicyFailed, SequenceFull, EnvsdkError):
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # Nobody cancelled the episode: something that the policy waited for was cancelled.
        raise PolicyFailed.by(error) from error
    except Exception as error:
        if is_full_context(error):
            raise ContextFull(describe_error(error)) from error
        raise PolicyFailed.by(error) from error


def prompt_too_long(tag: str, full: SequenceFull, shorten: str = "") -> Failure:
    """The failure of an episode whose first prompt leaves no room for a reply; `shorten` says how to."""
    shorten = shorten or f"shorten custom_envs.{tag}.agent_system_template or agent_template"
    if isinstance(full, ContextFull):
        problem = (
            f"does not fit into the server's context: {full}: {shorten}, or give the server a longer one"
        )
    else:
        problem = (
            f"has {full.num_tokens} tokens, which leaves no room for a reply of {full.max_new_tokens} tokens "
            f"within sequence_length={full.sequence_length}: raise sequence_length to at least "
            f"{full.num_needed} (prompt_length, where it follows from that), or {shorten}"
        )
    message = f"the first prompt of tag {tag!r} {problem}"
    return Failure(boundary=Boundary.CONFIGURATION, kind="prompt_too_long", message=message)
