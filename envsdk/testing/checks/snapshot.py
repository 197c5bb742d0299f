"""`snapshot` and `restore`: all of the state, and nothing but a copy of it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

from envsdk.contracts.env import TextEnv
from envsdk.testing.checks import check
from envsdk.testing.courses import (
    Script,
    Turn,
    ask,
    assert_same,
    build,
    play,
    play_asking,
    play_from,
    short,
)
from envsdk.testing.subject import Subject

BOTH = ("snapshot", "restore")


def _taken(subject: Subject, seed: int, script: Script) -> Iterator[tuple[TextEnv, Turn, Any]]:
    """An environment in mid-episode, its last turn, and a snapshot; nothing when the episode is over."""
    env = build(subject.make)
    turn = play_from(env, seed, script)[-1]
    if not turn.is_last:
        yield env, turn, ask(env, "snapshot")


@check("A snapshot can be pickled: searches and replays send them between processes.", needs=BOTH)
def can_be_pickled(subject: Subject, seed: int, script: Script) -> None:
    for _, _, snapshot in _taken(subject, seed, script):
        try:
            pickle.loads(pickle.dumps(snapshot))
        except Exception as error:
            raise AssertionError(
                f"the snapshot cannot be pickled: {type(error).__name__}: {error}"
            ) from error


@check("Taking a snapshot changes nothing: the course goes on as without it.", needs=BOTH)
def taking_one_changes_nothing(subject: Subject, seed: int, script: Script) -> None:
    turns, replies = play_asking(subject.make(), seed, script, "snapshot")
    assert_same(play_from(subject.make(), seed, replies), turns, "with snapshots taken the course differs")


@check("`restore` returns the observation of that moment: the policy goes on from it.", needs=BOTH)
def restore_shows_the_same(subject: Subject, seed: int, script: Script, then: Script) -> None:
    for env, turn, snapshot in _taken(subject, seed, script):
        play(env, then)
        shown = ask(env, "restore", snapshot)
        assert shown == turn.observation, f"restore() shows {short(shown)}, not {short(turn.observation)}"


@check("After `restore` the same replies give the same course: random state is state.", needs=BOTH)
def the_course_can_be_replayed(subject: Subject, seed: int, script: Script, then: Script) -> None:
    for env, _, snapshot in _taken(subject, seed, script):
        snapshot = pickle.loads(pickle.dumps(snapshot))
        turns = play(env, then)
        ask(env, "restore", snapshot)
        assert_same(turns, play(env, then), "after restore() the course differs")


@check("A snapshot is a copy: playing on does not change it, and it can be used twice.", needs=BOTH)
def is_independent(subject: Subject, seed: int, script: Script, then: Script) -> None:
    for env, _, snapshot in _taken(subject, seed, script):
        turns = play(env, then)
        for time in ("a first", "a second"):
            ask(env, "restore", snapshot)
            assert_same(turns, play(env, then), f"restored {time} time after playing on, the course differs")


@check("A new instance takes it up, also one that was never reset: a worker starts with it.", needs=BOTH)
def a_new_instance_takes_it_up(subject: Subject, seed: int, script: Script, then: Script) -> None:
    for env, turn, snapshot in _taken(subject, seed, script):
        other = build(subject.make)
        shown = ask(other, "restore", pickle.loads(pickle.dumps(snapshot)))
        assert shown == turn.observation, (
            f"in a new instance it shows {short(shown)}, not {short(turn.observation)}"
        )
        assert_same(play(env, then), play(other, then), "in a new instance the course differs")


@check("An instance on another task takes it up: nothing of that task is left.", needs=BOTH)
def another_task_is_forgotten(
    subject: Subject, seed: int, script: Script, then: Script, other_seed: int
) -> None:
    for env, _, snapshot in _taken(subject, seed, script):
        other = subject.make()
        play_from(other, other_seed, then)
        ask(other, "restore", pickle.loads(pickle.dumps(snapshot)))
        assert_same(play(env, then), play(other, then), "restored over another task, the course differs")
