"""Shell: the roles of a run that share devices hold them in turn, as `DeviceTurns` says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from envsdk.config.device_sharing import NEEDS, Phase, device_groups
from envsdk.config.models import RunConfig
from envsdk.contracts.held import Held
from envsdk.runs.device_turns import DeviceTurns, Hold

Start = Callable[[], Awaitable[None]]


class SharedDevices:
    """Owner: the pipeline. Its engines start first, then trainers one after the other: starting -> begin*."""

    def __init__(self, config: RunConfig, hold: Callable[[str, Held], Awaitable[None]]) -> None:
        """`hold` tells a role what to hold."""
        self._hold = hold
        self._turns: dict[str, DeviceTurns] = {}
        """The same for all roles of a group."""
        for group in device_groups(config):
            turns = DeviceTurns({role.name: role.rests_at for role in group}, started="actor_infer")
            self._turns |= dict.fromkeys(turns.rests, turns)
        self._lock = asyncio.Lock()

    def starting(self, role: str, start: Start) -> Start:
        """`start`, when it is the role's turn; it then gives back what it takes."""
        return (lambda: self._start(role, start)) if role in self._turns else start

    async def _start(self, role: str, start: Start) -> None:
        turns = self._turns[role]
        async with self._lock:
            for command in turns.begin(role, Held.ALL):
                await (start() if command.role == role else self._hold(command.role, command.held))
                turns.done(command)
            await self._carry_out(turns, turns.rest())

    async def begin(self, phase: Phase, role: str = "") -> None:
        """The phase begins: of `role`, where that is not the usual one."""
        usual, needs = NEEDS[phase]
        if turns := self._turns.get(role or usual):
            async with self._lock:
                await self._carry_out(turns, turns.begin(role or usual, needs))

    async def _carry_out(self, turns: DeviceTurns, commands: Iterator[Hold]) -> None:
        for command in commands:
            await self._hold(command.role, command.held)
            turns.done(command)
