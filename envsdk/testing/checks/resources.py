"""Nothing piles up, and calls return within the limits of the spec."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Mapping
from unittest.mock import patch

import psutil

from envsdk.testing.checks import check, spec_of
from envsdk.testing.courses import Course, play_from
from envsdk.testing.subject import Subject

_CYCLES = 4
_WARM_UP = 2


_Use = Mapping[str, int]
"""How many of what this process holds."""


def _use(temporary: str) -> _Use:
    process = psutil.Process()
    return {
        "child processes": len(process.children()),
        "threads": threading.active_count(),
        "open files": process.num_fds(),
        "temporary files": len(os.listdir(temporary)),
    }


def _played_and_closed(subject: Subject) -> None:
    env = subject.make()
    for seed in range(2):
        play_from(env, seed, [0, 1, 2])
    env.close()


def _measured(subject: Subject) -> tuple[_Use, _Use]:
    """Use before and after some more instances, once per subject.

    The first ones are not counted: pools and caches that instances share are made then.
    """
    if "use" not in subject.memory:
        # Not removed before this process ends: what instances share may have begun here and go on.
        folder = tempfile.mkdtemp()
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        for _ in range(_WARM_UP):
            _played_and_closed(subject)
        gc.collect()
        with patch.object(tempfile, "tempdir", folder), patch.dict(os.environ, TMPDIR=folder):
            before = _use(folder)
            for _ in range(_CYCLES):
                _played_and_closed(subject)
            gc.collect()
            after = _use(folder)
        subject.memory["use"] = before, after
    found: tuple[_Use, _Use] = subject.memory["use"]
    return found


def _piles_up(subject: Subject, what: str) -> None:
    before, after = (use[what] for use in _measured(subject))
    # One that comes late is a pool's; a leak has at least one per instance.
    assert after - before < _CYCLES, (
        f"after {_CYCLES} more instances were played and closed there are {after} {what}; before, {before}"
    )


@check("Closed instances leave no process behind: a day of training would fill the machine.")
def no_process_is_left(subject: Subject) -> None:
    _piles_up(subject, "child processes")


@check("Closed instances leave no thread behind: each holds memory and may hold the process.")
def no_thread_is_left(subject: Subject) -> None:
    _piles_up(subject, "threads")


@check("Closed instances leave no file or socket open: the limit is often 1024.")
def no_file_is_left_open(subject: Subject) -> None:
    _piles_up(subject, "open files")


@check("Closed instances leave no temporary file behind: disks fill up.")
def no_temporary_file_is_left(subject: Subject) -> None:
    _piles_up(subject, "temporary files")


@check("A closed instance is freed: a global list of instances grows for ever.")
def closed_instances_are_freed(subject: Subject) -> None:
    kept = []
    for _ in range(3):
        env = subject.make()
        play_from(env, 0, [0])
        env.close()
        kept.append(weakref.ref(env))
        del env
    gc.collect()
    alive = sum(reference() is not None for reference in kept)
    # A cache may hold on to the last one.
    assert alive < len(kept), f"{alive} of {len(kept)} closed instances are still referred to by something"


@check("An instance holds no more after many resets: it plays thousands of episodes.")
def episodes_do_not_pile_up(subject: Subject) -> None:
    env = subject.make()
    for seed in range(3):
        play_from(env, seed, [0, 1])
    with tempfile.TemporaryDirectory() as folder:
        before = _use(folder)
        for seed in range(_CYCLES):
            play_from(env, seed, [0, 1])
        gc.collect()
        after = _use(folder)
    env.close()
    for name in ("child processes", "threads", "open files"):
        grown = after[name] - before[name]
        assert grown < _CYCLES, f"{_CYCLES} more episodes of one instance left {grown} more {name}"


@check("`reset` and `step` return within the spec's limits: later ones count as failed episodes.")
def calls_are_in_time(subject: Subject, course: Course) -> None:
    spec = spec_of(subject)
    for name, took in (("reset", course.slowest_reset_s), ("step", course.slowest_step_s)):
        limit = getattr(spec, f"{name}_timeout_s")
        assert took <= limit, f"{name}() took {took:.3g} s; {name}_timeout_s is {limit:g}"
