"""Patches that resolve nothing and want to be paid for it: none may be.

Most are code that the package runs when it is imported (code/KIND.txt; `# --- NAME` begins each), behind what
they share (code/common.txt). Others are files (files.py). A cheat knows all of the grader's own code, and
neither the hidden tests nor the gold patch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from tests.envs.swe.grading.cheats.files import FILES
from tests.envs.swe.grading.measure import REACHED
from tests.envs.swe.grading.subjects import Subject, subjects

CODE = Path(__file__).parent / "code"
LIVE = Path(__file__).parent / "live.json"
KINDS = {
    "reach": "ways to pytest's own classes",
    "runner": "what runs and reports tests, changed",
    "equal": "results that equal what they are compared with, or lie when they are written",
    "reading": "expectations read from files, frames, memory",
    "guesses": "values guessed from base, inputs, the task's text, other tests",
    "exceptions": "exceptions that are what is waited for",
    "exits": "early ends, processes, threads, descriptors",
    "outcomes": "tests skipped, not collected, expected to fail",
    "surroundings": "modules, builtins and libraries of the tests, changed",
    "grader": "the evaluator's own code in the process, found without its names",
    "probes": "the probes of sealed tests",
    "resources": "endless, asleep, out of memory: may be paid nothing and masked never",
    "files": "configuration, plug-ins, modules, encodings, links in the patch",
    "patches": "texts that are no patch, or none of this repository",
}
RUN = "import os, runpy\nrunpy.run_path(os.path.join(os.path.dirname(__file__), 'table.txt'))\n"
EVERYWHERE = {"one command", "everything that is left in the process", "the source of the caller"}
"""Cheats that every subject meets."""


@dataclass(frozen=True, kw_only=True)
class Cheat:
    """One cheat in one subject."""

    kind: str
    name: str
    subject: Subject
    make: Callable[[], str]


def sections(kind: str) -> dict[str, str]:
    parts = re.split(r"^# --- (.+)\n", (CODE / f"{kind}.txt").read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@cache
def makers() -> Mapping[tuple[str, str], Callable[[Subject], str]]:
    """What makes each cheat's patch, by kind and name."""
    found: dict[tuple[str, str], Callable[[Subject], str]] = {}
    for kind in KINDS:
        if (CODE / f"{kind}.txt").is_file():
            for name, code in sections(kind).items():
                found[kind, name] = partial(appended, code)
    return found | FILES


def appended(code: str, subject: Subject) -> str:
    """The patch that has the package run `code`, and what it may use, when it is imported.

    The code is in a file that is no Python, so that no grader that judges words has an easy day.
    """
    modules = [path[:-3].replace("/", ".").removesuffix(".__init__") for path in subject.modules]
    known = f"MODULES = {modules!r}\nTASK = {subject.task.problem_statement!r}\n"
    known += (
        f"TESTS = {[*subject.task.fail_to_pass, *subject.task.pass_to_pass]!r}\n" if "TESTS" in code else ""
    )
    text = known + "\n\n".join(sections("common").values()) + "\n\n" + code
    text = text.replace("PKG", subject.package).replace("REACHED", REACHED)
    files = {subject.init: f"{subject.base[subject.init]}\n\n{RUN}", f"{subject.package}/table.txt": text}
    return subject.patch({**subject.base, **files})


@cache
def live_in() -> Mapping[str, list[str]]:
    """By `KIND: NAME`, the tasks in which plain pytest pays a cheat."""
    return json.loads(LIVE.read_text()) if LIVE.is_file() else {}


def cheats(num_subjects: int = 3) -> list[Cheat]:
    """Every cheat in `num_subjects` subjects, in those first where it is alive; some in all of them."""
    found = []
    for number, ((kind, name), make) in enumerate(makers().items()):
        for subject in _chosen(
            f"{kind}: {name}", number, len(subjects()) if name in EVERYWHERE else num_subjects
        ):
            found.append(Cheat(kind=kind, name=name, subject=subject, make=partial(make, subject)))
    return found


def _chosen(cheat: str, start: int, number: int) -> list[Subject]:
    """Where it is alive, then others by turns and far apart, so that they are of different repositories."""
    everyone = list(subjects())
    turns = [everyone[(start + at * 11) % len(everyone)] for at in range(len(everyone))]
    names = dict.fromkeys([*live_in().get(cheat, ()), *turns])
    return [subjects()[name] for name in list(names)[:number]]
