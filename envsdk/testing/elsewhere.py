"""Plays courses in a process of its own: a pickled job comes on stdin, pickled answers go to stdout."""

from __future__ import annotations

import os
import pickle
import sys


def main() -> None:
    spec, env_config, courses = pickle.load(sys.stdin.buffer)
    # What an environment prints must not get into the answer.
    answers_to = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    from envsdk.base import registry
    from envsdk.testing.checks.isolation import watched_answers
    from envsdk.testing.subject import Subject

    subject = Subject(name=spec.id, make=lambda: registry.make(spec, **env_config))
    with answers_to:
        pickle.dump([watched_answers(subject, seed, script) for seed, script in courses], answers_to)


if __name__ == "__main__":
    main()
