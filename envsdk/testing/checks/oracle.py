"""`oracle`: a player that solves every task, and changes nothing by being asked."""

from __future__ import annotations

from envsdk.testing.checks import NotApplicable, check
from envsdk.testing.courses import (
    Script,
    ask,
    assert_same,
    play_asking,
    play_from,
    play_to_the_end,
    reset,
    short,
    step,
)
from envsdk.testing.subject import Subject

NEEDS = ("oracle",)


@check("Following it solves every task within the limit of turns: so every task can be solved.", needs=NEEDS)
def solves_every_task(subject: Subject, seed: int) -> None:
    if not subject.options.oracle_always_solves:
        raise NotApplicable("oracle_always_solves is off")
    limit = min(subject.options.max_turns, subject.turn_limit or subject.options.max_turns)
    env = subject.make()
    if reset(env, seed).info.get("roles"):
        raise NotApplicable("it has several players: what one wins another loses")
    *before, turn = play_to_the_end(env, seed, (), limit)
    number = len(before)
    assert turn.is_last, f"the oracle has not solved seed {seed} after {number} turns"
    assert turn.success, (
        f"the oracle ended the task of seed {seed} after {number} turns without info['success']"
    )


@check("It answers wherever replies lead, before the end: it is asked after random moves.", needs=NEEDS)
def answers_anywhere(subject: Subject, seed: int, script: Script) -> None:
    env = subject.make()
    if not play_from(env, seed, script)[-1].is_last:
        reply = ask(env, "oracle")
        assert type(reply) is str, f"oracle() returned {short(reply)}, which is no str"


@check("What it says parses: demonstrations are made of it.", needs=NEEDS)
def its_replies_parse(subject: Subject, seed: int, script: Script) -> None:
    env = subject.make()
    if not play_from(env, seed, script)[-1].is_last:
        reply = ask(env, "oracle")
        assert not step(env, reply).was_invalid, f"the oracle's reply {short(reply)} does not parse"


@check("Asked again it says the same: being asked is no move.", needs=NEEDS)
def says_the_same_again(subject: Subject, seed: int, script: Script) -> None:
    env = subject.make()
    if not play_from(env, seed, script)[-1].is_last:
        said = [ask(env, "oracle") for _ in range(4)]
        assert len(set(said)) == 1, f"asked four times in one state, oracle() says {short(said)}"


@check("Asking it changes no course: policies are compared with and without it.", needs=NEEDS, effort=0.5)
def asking_changes_nothing(subject: Subject, seed: int, script: Script) -> None:
    turns, replies = play_asking(subject.make(), seed, script, "oracle")
    assert_same(play_from(subject.make(), seed, replies), turns, "with the oracle asked the course differs")


@check(
    "Two instances with one history hear the same: demonstrations can be repeated.", needs=NEEDS, effort=0.5
)
def follows_from_the_history(subject: Subject, seed: int, script: Script) -> None:
    said = []
    for _ in range(2):
        env = subject.make()
        if play_from(env, seed, script)[-1].is_last:
            return
        said.append(ask(env, "oracle"))
    assert said[0] == said[1], f"two instances hear {short(said[0])} and {short(said[1])}"
