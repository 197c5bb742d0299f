"""Who holds a device group when: roles that share devices take turns. Pure.

    begin(role, needs) -> commands, in their order: others down to their rest, then the role up
    done(command)      after each; an interrupted one is given again by the next `begin`

At every moment, between two commands and inside one, at most one role holds more than its rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from envsdk.contracts.held import Held


@dataclass(frozen=True, slots=True)
class Hold:
    """A role is to hold so much from now on. Carrying it out twice changes nothing."""

    role: str
    held: Held


class DeviceTurns:
    """One group of roles on the same devices: nobody's turn -> (turn of a role)*.

    turns = DeviceTurns({"actor_train": Held.NOTHING, "actor_infer": Held.NOTHING})
    turns.begin("actor_infer", Held.ALL)    # Hold(actor_infer, ALL), then after `done`:
    turns.begin("actor_train", Held.ALL)    # Hold(actor_infer, NOTHING), Hold(actor_train, ALL)
    """

    def __init__(self, rests: Mapping[str, Held], *, started: str = "") -> None:
        """`rests`: what each role holds while it is another one's turn. Only `started` is loaded yet."""
        self.rests = rests
        self.at_most = {role: Held.ALL if role == started else Held.NOTHING for role in rests}
        """What each may hold now; more than it has for certain while a command is carried out."""
        self._at_least = dict(self.at_most)

    def begin(self, role: str, needs: Held) -> Iterator[Hold]:
        """Make it the turn of `role`. Take the next command when the one before is `done`."""
        yield from self.rest(but=role)
        if self._at_least[role] < needs:
            self.at_most[role] = max(self.at_most[role], needs)
            yield Hold(role, needs)

    def rest(self, *, but: str = "") -> Iterator[Hold]:
        """Make it nobody's turn, or only that of `but`."""
        for role, rest in self.rests.items():
            if role != but and self.at_most[role] > rest:
                self._at_least[role] = min(self._at_least[role], rest)
                yield Hold(role, rest)

    def done(self, command: Hold) -> None:
        """It was carried out."""
        self.at_most[command.role] = self._at_least[command.role] = command.held
