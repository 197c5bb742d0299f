"""A server of OpenEnv's own package: guess a number. Prints its port.

usage: guessing_server.py text|fields [MAX_SESSIONS]
"""

from __future__ import annotations

import random
import socket
import sys
from typing import Any

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
from pydantic import Field


class Guess(Action):
    message: str


class GuessWithFields(Action):
    number: int = Field(ge=1, le=9)
    comment: str = ""


class Told(Observation):
    hint: str


class ToldWithFields(Observation):
    hint: str
    num_guesses: int


class Guessing(Environment[Any, Any, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True
    with_fields = False

    def __init__(self) -> None:
        super().__init__()
        self._number = 0
        self._state = State()

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, highest: int = 9, **_: Any
    ) -> Any:
        self._number = random.Random(seed).randint(1, highest)
        self._state = State(episode_id=episode_id, step_count=0)
        return self._told(f"1 to {highest}?")

    def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
        self._state.step_count += 1
        if self.with_fields:
            guess = action.number
        elif action.message == "crash":
            raise RuntimeError("the game is broken")
        else:
            guess = int(action.message) if action.message.isdecimal() else 0
        if guess == self._number:
            return self._told("right", done=True, reward=1.0)
        return self._told("higher" if guess < self._number else "lower", reward=0)

    @property
    def state(self) -> State:
        return self._state

    def _told(self, hint: str, **more: Any) -> Any:
        if self.with_fields:
            metadata = {"success": False} if self._state.step_count > 1 else {}
            return ToldWithFields(hint=hint, num_guesses=self._state.step_count, metadata=metadata, **more)
        return Told(hint=hint, **more)


if __name__ == "__main__":
    Guessing.with_fields = sys.argv[1] == "fields"
    actions, observations = (GuessWithFields, ToldWithFields) if Guessing.with_fields else (Guess, Told)
    sessions = int(sys.argv[2]) if len(sys.argv) > 2 else 8
    app = create_fastapi_app(Guessing, actions, observations, max_concurrent_envs=sessions)
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
