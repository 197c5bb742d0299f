"""The ALFWorld environment."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from gymnasium.error import ResetNeeded
from gymnasium.spaces import Text
from pydantic import Field

from envsdk.contracts.env import Info, TextEnv
from envsdk.contracts.turn_env import PRINTABLE, AnyTextSpaces
from envsdk.envs.alfworld.games import TASK_TYPES, Game, Scene, Split
from envsdk.envs.alfworld.notebook import Notebook
from envsdk.envs.alfworld.pool import PoolSettings, RemoteGame, shared_pool
from envsdk.envs.alfworld.replies import ActionFormat, format_reply, parse_reply
from envsdk.envs.alfworld.solver import STAGES
from envsdk.envs.alfworld.sources import GameSource, GeneratedGames, OfficialGames
from envsdk.envs.arguments import EnvArguments, keywords_of

NOTHING_HAPPENS = "Nothing happens."

_MAX_OBSERVATION_LENGTH = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Where an episode is; picklable."""

    game: Game
    commands: tuple[str, ...]
    """Those the engine was given, in order: played again, they lead to the same state."""
    scene: Scene
    """What the engine said last."""
    reached: frozenset[str]
    """Stages rewarded so far."""
    turn: int
    note: str
    notebook: Notebook
    """What the texts have said; empty without `notes`."""
    ended: bool


class ALFWorldArguments(EnvArguments):
    """The keywords of `ALFWorldEnv`."""

    games: Literal["auto", "generated", "official"] = "auto"
    """`generated` households, the `official` data, or `auto`: official where `data_dir` or the variable
    ALFWORLD_DATA is given, else generated."""
    data_dir: str | None = None
    """Folder that holds `json_2.1.1`; ALFWORLD_DATA when None."""
    split: Split = "train"
    task_types: Sequence[str] | None = None
    """Some of ALFWorld's six; all when None."""
    size: Literal["small", "medium", "large"] = "medium"
    """Size of generated households."""
    num_games: int | None = Field(None, ge=1)
    """The first so many games only; all when None, and without end where they are generated."""
    max_steps: int = Field(50, ge=1)
    """Replies before the episode is truncated."""
    action_format: ActionFormat = "tag"
    """`tag`: the command stands in `<action>`; `text`: it is the reply's last line."""
    admissible_commands: bool = False
    """Observations end with a list of the commands that do something now."""
    notes: bool = False
    """Observations end with what the texts so far have said: the task, what is in hand, where things that the
    task names were seen, and the receptacles not looked into yet."""
    subgoal_reward: float = 0.0
    """For each stage on the way (taking the object, cleaning it ...), the first time."""
    step_penalty: float = 0.0
    """Taken off the reward of every turn."""
    invalid_penalty: float = 0.0
    """Taken off the reward of a turn whose reply holds no command."""
    oracle_explores: bool = False
    """The oracle looks for things as a player must, rather than knowing where they are."""
    num_processes: int | None = Field(None, ge=1)
    """Engine processes, at most; half of the machine's cores, from 1 to 8, when None."""
    games_per_process: int = Field(500, ge=1)
    """Games after which an engine process is replaced."""
    process_mb: int = Field(1500, ge=1)
    """Memory at which it is."""
    cache_mb: int = Field(1024, ge=1)
    """Size that the cache of translated games is held to."""
    render_mode: str | None = None
    """None, or `ansi`: `render()` returns the last observation."""


class ALFWorldEnv(AnyTextSpaces, TextEnv):
    """A household task in text, played by TextWorld with ALFWorld's grammar. The observation is its text:

        -= Welcome to TextWorld, ALFRED! =-

        You are in the middle of a room. Looking quickly around you, you see a bed 1, a desk 1, ...

        Your task is to: put some mug on desk.

    An action is a reply such as `<action>go to desk 1</action>`. A command that cannot be followed is
    answered with `Nothing happens.`; a reply that holds no command costs a turn, and the observation
    says why.

    The reward is 1 for reaching the goal, plus and minus what is asked for. After `max_steps` replies
    the episode is truncated.

    The engine runs in processes that the environments of one process share; see `envsdk.envs.alfworld.pool`.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012 (gymnasium declares it so)

    @keywords_of(ALFWorldArguments)
    def __init__(self, args: ALFWorldArguments) -> None:
        self.max_steps, self.render_mode = args.max_steps, args.render_mode
        self._args = args
        self._source = _source(args)
        self._pool_settings = PoolSettings(
            num_processes=args.num_processes,
            games_per_process=args.games_per_process,
            process_mb=args.process_mb,
            cache_mb=args.cache_mb,
        )
        self._state: State | None = None
        self._played: RemoteGame | None = None

    @cached_property
    def observation_space(self) -> Text:  # type: ignore[override]
        return Text(min_length=1, max_length=_MAX_OBSERVATION_LENGTH, charset=PRINTABLE)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Start the game that the seed draws, or number `options["game"]` of the split.

        `info` names the game and its goal.
        """
        super().reset(seed=seed)
        number = int(self.np_random.integers(self._source.num_numbers))
        if options and "game" in options:
            number = int(options["game"])
        game = self._source.game(number)
        played = self._play(game, ())
        scene = played.begin()
        self._state = State(
            game=game,
            commands=(),
            scene=scene,
            reached=frozenset(),
            turn=0,
            note="",
            notebook=Notebook.begin(scene.feedback) if self._args.notes else Notebook(),
            ended=False,
        )
        return self._observation(self._state), {"game": game.id, "task_type": game.goal.task_type}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        state = self._needed_state()
        if state.ended:
            return self._step_after_the_end(state)
        command, note = parse_reply(action, self._args.action_format)
        reward = -self._args.step_penalty - (self._args.invalid_penalty if note else 0.0)
        turn = state.turn + 1
        is_effective = False
        if note:
            state = replace(state, turn=turn, note=note)
        else:
            scene = self._current(state).step(command)
            is_effective = scene.feedback != NOTHING_HAPPENS
            reached = state.reached | set(scene.stages)
            reward += self._args.subgoal_reward * len(reached - state.reached) + float(scene.won)
            notebook = state.notebook
            if self._args.notes:
                notebook = notebook.after(command, scene.feedback)
            state = replace(
                state,
                commands=(*state.commands, command),
                scene=scene,
                reached=reached,
                turn=turn,
                note="",
                notebook=notebook,
            )
        success = state.scene.won
        truncated = not success and turn >= self.max_steps
        self._state = state = replace(state, ended=success or truncated)
        metrics = {"action_is_valid": float(not note), "action_is_effective": float(is_effective)}
        if self._args.subgoal_reward:
            metrics["subgoals"] = self._share_reached(state)
        info = {"success": success, "metrics": metrics}
        return self._observation(state), 0.0 + reward, success, truncated, info

    def close(self) -> None:
        """Leave the engine. Idempotent."""
        if self._played is not None:
            self._played.close()
            self._played = None

    def render(self) -> str | None:
        state = self._state
        return self._observation(state) if self.render_mode == "ansi" and state is not None else None

    def snapshot(self) -> Any:
        return self._state, self.np_random.bit_generator.state

    def restore(self, snapshot: Any) -> str:
        """The engine plays the episode's commands again when it is next asked."""
        state, random_state = snapshot
        self.close()
        self._state = state
        self.np_random.bit_generator.state = random_state
        return self._observation(state)

    def oracle(self) -> str:
        state = self._needed_state()
        if state.ended:
            return format_reply("look", self._args.action_format)
        command = self._current(state).oracle(explores=self._args.oracle_explores)
        return format_reply(command, self._args.action_format)

    def legal_actions(self) -> Sequence[str]:
        """Replies with the commands that do something now, sorted."""
        state = self._needed_state()
        if state.ended:
            return ()
        return tuple(format_reply(command, self._args.action_format) for command in state.scene.admissible)

    def state_hash(self) -> str:
        """Digest of the game and all that can be seen or found out in it. Turns left do not count."""
        state = self._needed_state()
        return self._current(state).state_hash()

    def _play(self, game: Game, commands: tuple[str, ...]) -> RemoteGame:
        self.close()
        self._played = RemoteGame(
            shared_pool(self._pool_settings), game, commands, with_stages=bool(self._args.subgoal_reward)
        )
        return self._played

    def _current(self, state: State) -> RemoteGame:
        return self._played or self._play(state.game, state.commands)

    def _needed_state(self) -> State:
        if self._state is None:
            raise ResetNeeded("ALFWorld: call reset() first")
        return self._state

    def _observation(self, state: State) -> str:
        text = state.note or state.scene.feedback
        if self._args.notes:
            text += "\n\n" + state.notebook.notes()
        if self._args.admissible_commands:
            text += "\n\nAdmissible commands: " + ", ".join(state.scene.admissible)
        return text

    def _share_reached(self, state: State) -> float:
        if state.scene.won:
            return 1.0
        return len(state.reached) / (1 + len(STAGES.get(state.game.goal.task_type, ("take",))))

    def _step_after_the_end(self, state: State) -> tuple[str, float, bool, bool, Info]:
        """Nothing happens, for no reward."""
        success = state.scene.won
        return self._observation(state), 0.0, success, not success, {"success": success, "metrics": {}}


def _source(args: ALFWorldArguments) -> GameSource:
    if args.task_types is not None and not args.task_types:
        raise ValueError("task_types: name at least one, or leave it out for all")
    task_types = tuple(args.task_types or TASK_TYPES)
    for name in task_types:
        if name not in TASK_TYPES:
            raise ValueError(f"task_types: must be one of {', '.join(TASK_TYPES)}, not {name!r}")
    folder = args.data_dir or os.environ.get("ALFWORLD_DATA")
    if args.games == "official" and not folder:
        raise ValueError("games: the official ones need `data_dir` or the variable ALFWORLD_DATA")
    if args.games == "generated" or not folder:
        return GeneratedGames(
            split=args.split, task_types=task_types, size=args.size, num_games=args.num_games
        )
    return OfficialGames(
        Path(folder).expanduser(), split=args.split, task_types=task_types, num_games=args.num_games
    )
