"""Several players: whose turn it is, and what the rules pay to whom."""

from __future__ import annotations

import math

from envsdk.testing.checks import NotApplicable, check
from envsdk.testing.courses import Course, Turn, reset, short
from envsdk.testing.subject import Subject


def roles_of(turn: Turn) -> list[str]:
    """The roles that a reset names. NotApplicable without any."""
    roles: list[str] | None = turn.info.get("roles") if isinstance(turn.info, dict) else None
    if not roles:
        raise NotApplicable("it has one player")
    is_sound = isinstance(roles, list) and all(isinstance(role, str) and role for role in roles)
    assert is_sound, f"info['roles'] is {short(roles)}, no list of names"
    return roles


@check(
    "`info['roles']` of `reset` names each role once, the same for all seeds: players are assigned to them."
)
def roles_are_the_same_for_all_tasks(subject: Subject) -> None:
    env = subject.make()
    named = [roles_of(reset(env, seed)) for seed in (0, 1, 2)]
    assert len(set(named[0])) == len(named[0]), f"info['roles'] is {short(named[0])}"
    assert named.count(named[0]) == 3, f"info['roles'] is {named[0]} for one seed and {named[1:]} for others"


@check("Until the end `info['role']` is one of them, and `info['rewards']` pays nobody else.")
def infos_name_known_roles(subject: Subject, course: Course) -> None:
    roles = roles_of(course.turns[0])
    for index, turn in enumerate(course.turns):
        role, rewards = turn.info.get("role"), turn.info.get("rewards", {})
        assert turn.is_last or role in roles, f"turn {index}: info['role'] is {short(role)}, not of {roles}"
        is_sound = isinstance(rewards, dict) and all(
            name in roles and isinstance(paid, int | float) and math.isfinite(paid)
            for name, paid in rewards.items()
        )
        assert is_sound, f"turn {index}: info['rewards'] is {short(rewards)}; the roles are {roles}"


@check("A reply that did not parse leaves the turn to its role: no other player is asked for it.")
def invalid_replies_keep_the_turn(subject: Subject, course: Course) -> None:
    roles_of(course.turns[0])
    for index, turn in course.steps():
        before, now = course.turns[index - 1].info.get("role"), turn.info.get("role")
        is_kept = not turn.was_invalid or turn.is_last or now == before
        assert is_kept, f"turn {index}: the reply of {before} did not parse, and the turn went to {now}"
