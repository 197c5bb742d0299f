"""Roles that share devices take turns: never two at once, nobody starves, and any interruption is mended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.config.device_sharing import NEEDS, Phase
from envsdk.contracts.held import Held
from envsdk.runs.device_turns import DeviceTurns, Hold

SIZES = {  # of each role: what Held.WEIGHTS and Held.ALL take of the device
    "actor_infer": (2, 5),
    "actor_train": (4, 16),
    "reference": (4, 4),
}
ROLES = list(SIZES)
RESTS = st.fixed_dictionaries({role: st.sampled_from(Held) for role in ROLES})
TURNS = st.tuples(st.sampled_from(Phase), st.sampled_from(["", "reference"]))


class OutOfMemory(Exception):
    """The device has no room."""


@dataclass
class CountedDevice:
    """A device of a stated size that is only counted: a command takes or gives its bytes in two halves."""

    size: int
    holds: dict[str, Held] = field(default_factory=lambda: dict.fromkeys(ROLES, Held.NOTHING))
    most: int = 0

    def taken(self) -> int:
        return sum(bytes_of(role, held) for role, held in self.holds.items())

    def carry_out(self, command: Hold) -> None:
        self.holds[command.role] = command.held
        self.most = max(self.most, self.taken())
        if self.taken() > self.size:
            raise OutOfMemory(f"{command}: {self.taken()} of {self.size}")


def bytes_of(role: str, held: Held) -> int:
    return (0, *SIZES[role])[held]


def owner_of(phase: Phase, role: str) -> tuple[str, Held]:
    usual, needs = NEEDS[phase]
    return (role if phase is Phase.SCORE and role else usual), needs


def needed(rests: Mapping[str, Held]) -> int:
    """The least device on which every turn fits: one role with everything, the others at rest."""
    return max(
        sum(
            bytes_of(role, Held.ALL if role == owner else min(rest, Held.ALL)) for role, rest in rests.items()
        )
        for owner in rests
    )


@given(RESTS, st.lists(st.tuples(TURNS, st.integers(0, 4), st.booleans()), max_size=30))
def test_never_two_roles_own_the_device_and_every_turn_comes_whatever_is_interrupted(
    rests: dict[str, Held], history: list[tuple[tuple[Phase, str], int, bool]]
) -> None:
    """Each turn may be broken off at any command, which then was carried out or not."""
    device = CountedDevice(needed(rests))
    turns = DeviceTurns(rests)
    for (phase, other), num_until_interruption, is_carried_out in history:
        role, needs = owner_of(phase, other)
        commands = list[Hold]()
        for command in turns.begin(role, needs):
            above = [each for each in ROLES if turns.at_most[each] > rests[each]]
            assert len(above) <= 1 or command.role != role, "it takes more before the others have given back"
            assert all(device.holds[each] <= turns.at_most[each] for each in ROLES)
            commands.append(command)
            if len(commands) > num_until_interruption:
                if is_carried_out:
                    device.carry_out(command)
                break
            device.carry_out(command)
            turns.done(command)
        else:
            assert len(commands) <= len(ROLES), "nobody waits for ever"
            assert device.holds[role] >= needs
            assert all(device.holds[each] <= rests[each] for each in ROLES if each != role)
    # Whatever happened before, each role gets its turn.
    for role in ROLES:
        for command in turns.begin(role, Held.ALL):
            device.carry_out(command)
            turns.done(command)
        assert device.holds[role] is Held.ALL
        assert list(turns.begin(role, Held.ALL)) == []


@pytest.mark.parametrize("trainer", Held)
@pytest.mark.parametrize("engines", [Held.ALL, Held.NOTHING])
def test_what_a_device_must_hold_is_the_largest_turn_and_not_the_sum(trainer: Held, engines: Held) -> None:
    rests = {"actor_train": trainer, "actor_infer": engines}
    device = CountedDevice(10**6)
    turns = DeviceTurns(rests)
    for phase in (Phase.PUBLISH, Phase.VALIDATE, Phase.GENERATE, Phase.SCORE, Phase.TRAIN) * 2:
        role, needs = NEEDS[phase]
        for command in turns.begin(role, needs):
            device.carry_out(command)
            turns.done(command)
    trains = bytes_of("actor_train", Held.ALL) + bytes_of("actor_infer", engines)
    generates = bytes_of("actor_train", trainer) + bytes_of("actor_infer", Held.ALL)
    assert device.most == max(trains, generates)
    with pytest.raises(OutOfMemory):
        take_turns(CountedDevice(device.most - 1), DeviceTurns(rests))


def take_turns(device: CountedDevice, turns: DeviceTurns) -> None:
    for role in ("actor_infer", "actor_train", "actor_infer"):
        for command in turns.begin(role, Held.ALL):
            device.carry_out(command)
            turns.done(command)


def test_engines_that_have_started_give_way_to_the_trainer_that_starts() -> None:
    rests = {"actor_train": Held.NOTHING, "actor_infer": Held.NOTHING}
    turns = DeviceTurns(rests, started="actor_infer")
    found = []
    for command in turns.begin("actor_train", Held.ALL):
        found.append(command)
        turns.done(command)
    assert found == [Hold("actor_infer", Held.NOTHING), Hold("actor_train", Held.ALL)]
    assert list(turns.rest()) == [Hold("actor_train", Held.NOTHING)]
