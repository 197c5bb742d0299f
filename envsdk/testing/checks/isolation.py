"""Instances share nothing, and leave the process as they found it."""

from __future__ import annotations

import contextlib
import copy
import io
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from envsdk.contracts.env import Isolation
from envsdk.testing.checks import NotApplicable, check, spec_of
from envsdk.testing.courses import (
    Course,
    Script,
    assert_same,
    choose_reply,
    play,
    play_from,
    reset,
    same,
    short,
    step,
)
from envsdk.testing.subject import Subject
from envsdk.testing.time_limits import allow

ELSEWHERE_TIMEOUT_S = 300.0


@check("Instances that play at the same time do not influence each other: workers interleave them.")
def instances_do_not_influence_each_other(
    subject: Subject, seed: int, script: Script, other_seed: int, other_script: Script
) -> None:
    alone = play_from(subject.make(), seed, script)
    env, other = subject.make(), subject.make()
    together = [reset(env, seed)]
    reset(other, other_seed)
    other_turns = iter(other_script)
    other_is_over = False
    for item in script[: len(alone) - 1]:
        if not other_is_over and (other_item := next(other_turns, None)) is not None:
            other_is_over = step(other, choose_reply(other, other_item)).is_last
        together.append(step(env, choose_reply(env, item)))
    assert_same(alone, together, "another instance playing at the same time changes the course")


@check("Closing one instance leaves the others playing: slots of a worker close one by one.")
def closing_one_leaves_the_others(subject: Subject, seed: int, script: Script) -> None:
    alone = play_from(subject.make(), seed, script)
    env, other = subject.make(), subject.make()
    reset(other, seed)
    turns = [reset(env, seed)]
    other.close()
    turns += play(env, script)
    assert_same(alone, turns, "after another instance was closed the course differs")


@check("An `info` that was returned stays as it is: trajectories keep it while the episode goes on.")
def returned_infos_do_not_change(subject: Subject, course: Course) -> None:
    for index, (turn, then) in enumerate(zip(course.turns, course.infos_then, strict=True)):
        assert same(turn.info, then), (
            f"the info of turn {index} was {short(then)}, and became {short(turn.info)} in later turns"
        )


@check("Changing a returned `info` changes nothing in the environment: wrappers add keys to it.")
def changed_infos_change_nothing(subject: Subject, seed: int, script: Script) -> None:
    untouched = play_from(subject.make(), seed, script)
    env = subject.make()
    turns = [reset(env, seed)]
    kept = [copy.deepcopy(turns[0])]
    for item in script[: len(untouched) - 1]:
        _spoil(turns[-1].info)
        turns.append(step(env, choose_reply(env, item)))
        kept.append(copy.deepcopy(turns[-1]))
    assert_same(untouched, kept, "after a returned info was changed the course differs")


def _spoil(info: Any) -> None:
    if isinstance(info, dict):
        for value in info.values():
            if isinstance(value, dict | list | set):
                value.clear()
        info.clear()
        info["changed"] = "by somebody else"


@check("The constructor's arguments are left as they were: one `env_config` builds many instances.")
def arguments_are_left_alone(subject: Subject) -> None:
    spec = spec_of(subject)
    given = spec.kwargs, subject.env_config
    before = copy.deepcopy(given)
    for seed in range(2):
        env = subject.make()
        play_from(env, seed, [0, 1, 2])
        env.close()
    assert same(before, given), f"the arguments were {short(before)} and became {short(given)}"


@check("Environment variables and the working directory stay: they belong to the whole process.")
def process_is_left_as_found(subject: Subject) -> None:
    before, folder = dict(os.environ), os.getcwd()
    env = subject.make()
    play_from(env, 0, [0, 1])
    env.close()
    changed = sorted(
        key for key in before.keys() | os.environ.keys() if before.get(key) != os.environ.get(key)
    )
    now = os.getcwd()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(before)
    assert not changed, f"environment variables changed: {', '.join(changed)}"
    assert now == folder, f"the working directory changed from {folder} to {now}"


@check("Nothing is printed: a thousand environments would drown the log and break progress bars.")
def nothing_is_printed(subject: Subject) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        env = subject.make()
        play_from(env, 0, [0, "", 1])
        env.close()
    assert not printed.getvalue(), f"it printed {short(printed.getvalue())}"


@check("With isolation `thread` an instance may change threads: reset on one, steps on another.")
def threads_may_change(subject: Subject) -> None:
    if subject.spec is None or subject.spec.isolation is not Isolation.THREAD:
        raise NotApplicable("its isolation is not `thread`")
    script: Script = [0, 1, 2, 3]
    alone = play_from(subject.make(), 0, script)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        env = one.submit(subject.make).result()
        first = two.submit(reset, env, 0).result()
        turns = [first, *one.submit(play, env, script).result()]
        two.submit(env.close).result()
    assert_same(alone, turns, "played on two threads the course differs")


def _can_be_imported(module: str) -> bool:
    """Not a script, a notebook or a module that was put together while running."""
    return module != "__main__" and getattr(sys.modules.get(module), "__spec__", None) is not None


@check("Another process plays the same course: workers, a resumed run and other machines must agree.")
def another_process_plays_the_same_course(subject: Subject) -> None:
    spec = spec_of(subject)
    if callable(spec.entry_point) and not _can_be_imported(spec.entry_point.__module__):
        raise NotApplicable(f"its class is in `{spec.entry_point.__module__}`, which is no file to import")
    script: Script = [0, 1, "", 2, 3, 5]
    played = [watched_answers(subject, seed, script) for seed in range(3)]
    try:
        job = pickle.dumps((spec, dict(subject.env_config), [(seed, script) for seed in range(3)]))
    except Exception as error:
        raise NotApplicable("its spec cannot be pickled: see contract.spec_can_be_pickled") from error
    # Another hash seed: the order of sets of strings is the usual thing that differs.
    hash_seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    environ = {
        **os.environ,
        "PYTHONHASHSEED": hash_seed,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    allow(ELSEWHERE_TIMEOUT_S)
    done = subprocess.run(
        [sys.executable, "-m", "envsdk.testing.elsewhere"],
        input=job,
        capture_output=True,
        env=environ,
        timeout=ELSEWHERE_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, (
        f"another process could not play: {done.stderr.decode(errors='replace').strip()[-600:]}"
    )
    for seed, (here, there) in enumerate(zip(played, pickle.loads(done.stdout), strict=True)):
        for index, (one, two) in enumerate(zip(here, there, strict=False)):
            assert same(one, two), (
                f"seed {seed}, turn {index}: here {short(one, 400)}, in another process {short(two, 400)}"
            )
        assert len(here) == len(there), (
            f"seed {seed}: {len(here)} turns here, {len(there)} in another process"
        )


def watched_answers(subject: Subject, seed: int, script: Script) -> list[Any]:
    """Turn by turn, all that the environment says, as plain data."""
    env = subject.make()
    answers: list[Any] = []
    turns = [reset(env, seed)]
    abilities = sorted(env.abilities() & {"legal_actions", "state_hash"})
    for item in [*script, None]:
        turn = turns[-1]
        said = {name: getattr(env, name)() for name in abilities}
        listed = {name: value if isinstance(value, str) else list(value) for name, value in said.items()}
        answers.append((turn.observation, turn.reward, turn.terminated, turn.truncated, listed))
        if turn.is_last or item is None:
            break
        turns.append(step(env, choose_reply(env, item)))
    env.close()
    return answers
