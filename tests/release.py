"""Builds a release into dist/, checks it, tries it on each Python as its users will, and prints one table.

    python -m tests.release                    # all: `make release`
    python -m tests.release --train none       # without the quickstart, for which pip installs PyTorch
    python -m tests.release --train python3.12

A check that fails does not stop the others; the exit code is 1 if one did.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
PYTHONS = ("python3.11", "python3.12", "python3.13")
"""Interpreters that the package supports; one that this machine lacks is said, and is no failure."""
FIRST_MINUTE = (
    "envs",
    "evaluate FrozenLake --policy random --episodes 20",
    "collect FrozenLake --out data/lake --episodes 50 --epsilon 0.3 --format messages",
    "replay data/lake",
    "view data/lake --export lake.html",
    "init treasure_hunt",
    "train agentic_async.yaml --explain",
)
"""Commands that need neither a model nor Ray."""
QUICKSTART = "train agentic_async.yaml --preset tiny"


class CheckFailed(Exception):
    """What a check found; its text goes into the table."""


@dataclass(frozen=True, slots=True)
class Outcome:
    check: str
    verdict: str
    """`passed`, `FAILED` or `missing`."""
    seconds: float
    detail: str


def attempt(check: str, action: Callable[..., str], *arguments: object) -> Outcome:
    """Run a check, which returns the detail for the table."""
    print(f"{check} ...", flush=True)
    began = time.monotonic()
    try:
        verdict, detail = "passed", action(*arguments)
    except (CheckFailed, OSError, ValueError) as error:
        verdict, detail = "FAILED", str(error)
    return Outcome(check, verdict, time.monotonic() - began, detail)


def call(*command: str | Path, folder: Path = ROOT) -> str:
    """What a command prints, run in `folder` as if no checkout were near."""
    outside = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [*map(str, command)],
        cwd=folder,
        env=outside,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stdout[-4000:], file=sys.stderr)
        raise CheckFailed(f"exit {done.returncode}: {' '.join(map(str, command))}")
    return done.stdout


def runs(python: str) -> bool:
    """True where an interpreter is there and can make environments; a shim on the PATH may only complain."""
    command = (python, "-c", "import ensurepip, venv")
    return (
        bool(shutil.which(python))
        and not subprocess.run(command, capture_output=True, check=False).returncode
    )


def version() -> str:
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / "envsdk/__init__.py").read_text(), re.MULTILINE)
    if found is None:
        raise CheckFailed("envsdk/__init__.py has no line `__version__ = ...`")
    return found[1]


def described(changelog: str, number: str) -> str:
    """The first line of a version's section in the changelog."""
    found = re.search(rf"^## {re.escape(number)}\b.*$", changelog, re.MULTILINE)
    if found is None:
        raise CheckFailed(f"CHANGELOG.md has no heading `## {number}`")
    return found[0]


def build() -> str:
    shutil.rmtree(DIST, ignore_errors=True)
    tool = (sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST)
    call(*tool, "--sdist", "--wheel", ROOT)
    return ", ".join(f"{file.name} {file.stat().st_size / 1e6:.1f} MB" for file in sorted(DIST.iterdir()))


def wheel() -> Path:
    (found,) = DIST.glob("*.whl")
    return found


def strict_check() -> str:
    files = sorted(DIST.iterdir())
    call(sys.executable, "-m", "twine", "check", "--strict", *files)
    return f"{len(files)} files"


def rebuild(folder: Path) -> str:
    """Build the source archive's own wheel."""
    (archive,) = DIST.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    project = folder / archive.name.removesuffix(".tar.gz")
    call(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, project)
    if (folder / wheel().name).read_bytes() != wheel().read_bytes():
        raise CheckFailed("the wheel of the source archive is another one")
    return "the same bytes"


def install(environment: Path, *requirements: str) -> str:
    call(environment / "bin/python", "-m", "pip", "install", *requirements)
    listed = call(environment / "bin/python", "-m", "pip", "list", "--format", "freeze")
    size = sum(
        file.stat().st_size for file in environment.rglob("*") if file.is_file() and not file.is_symlink()
    )
    return f"{len(listed.splitlines())} packages, {size / 1e6:,.0f} MB"


def first_minute(environment: Path, folder: Path) -> str:
    envsdk = environment / "bin/envsdk"
    said = call(envsdk, "--version", folder=folder).strip()
    if said != f"envsdk {version()}":
        raise CheckFailed(f"`envsdk --version` says {said!r}")
    for command in FIRST_MINUTE:
        call(envsdk, *command.split(), folder=folder)
    return f"{said}; {', '.join(command.split()[0] for command in FIRST_MINUTE)}"


def quickstart(environment: Path, folder: Path) -> str:
    said = call(environment / "bin/envsdk", *QUICKSTART.split(), folder=folder)
    line = next((line for line in said.splitlines() if "mean" in line and "->" in line), "")
    return " ".join(line.split()) or "no evaluation"


def bill_of_materials(environment: Path, name: str) -> str:
    """Write what an environment holds as CycloneDX, which its tool checks against the schema."""
    target = DIST / f"{name}.cdx.json"
    tool = (sys.executable, "-m", "cyclonedx_py", "environment", "--validate", "--output-reproducible")
    call(*tool, "--output-format", "JSON", "--output-file", target, environment / "bin/python")
    return target.name


def fresh(python: str, environment: Path, work: Path) -> str:
    work.mkdir()
    call(python, "-m", "venv", environment)
    installed = install(environment, str(wheel()))
    # It names the wheel's path on this machine, which a bill of materials would repeat.
    for source in environment.glob("lib/*/site-packages/envsdk-*/direct_url.json"):
        source.unlink()
    return installed


def trials(pythons: Sequence[str], train: str, folder: Path) -> Iterator[Outcome]:
    """Install the wheel into a fresh environment of each Python, and use it outside of the checkout."""
    for python in pythons:
        if not runs(python):
            yield Outcome(python, "FAILED" if python == train else "missing", 0.0, "not on this machine")
            continue
        environment, work = folder / f"venv-{python}", folder / f"work-{python}"
        name = f"{wheel().stem.removesuffix('-py3-none-any')}-{python}"
        installed = attempt(f"{python}: install", fresh, python, environment, work)
        yield installed
        if installed.verdict == "FAILED":
            continue
        yield attempt(f"{python}: first minute", first_minute, environment, work)
        yield attempt(f"{python}: SBOM", bill_of_materials, environment, name)
        if python == train:
            pins = (ROOT / "constraints.txt").read_text()
            # torch comes first, alone: resolved together with the rest it may come as its newest GPU build.
            torch = re.findall(r"^torch==.*$", pins, re.MULTILINE)
            yield attempt(f"{python}: install torch", install, environment, *torch)
            yield attempt(f"{python}: install [train]", install, environment, f"{wheel()}[train]")
            yield attempt(f"{python}: envsdk {QUICKSTART}", quickstart, environment, work)
            yield attempt(f"{python}: SBOM with [train]", bill_of_materials, environment, f"{name}-train")


def table(outcomes: Sequence[Outcome]) -> str:
    rows = ["| check | outcome | seconds | |", "| --- | --- | --- | --- |"]
    rows += [f"| {each.check} | {each.verdict} | {each.seconds:.0f} | {each.detail} |" for each in outcomes]
    return "\n".join(rows)


def main(argv: Sequence[str]) -> int:
    found = next(filter(runs, PYTHONS), None)
    if found is None:
        print(f"none of {', '.join(PYTHONS)} is on the PATH", file=sys.stderr)
        return 2
    parser = argparse.ArgumentParser(prog="tests.release", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--train", choices=[*PYTHONS, "none"], default=found, help="who runs the quickstart")
    train = parser.parse_args(argv).train
    with tempfile.TemporaryDirectory(prefix="envsdk-release-") as folder:
        outcomes = [attempt("build", build)]
        if outcomes[0].verdict == "passed":
            changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
            outcomes += [
                attempt("changelog", lambda: described(changelog, version())),
                attempt("twine check", strict_check),
                attempt("wheel from the sdist", rebuild, Path(folder)),
                *trials(PYTHONS, train, Path(folder)),
            ]
    print(f"\n{table(outcomes)}\n\nBuilt: {DIST}")
    return int(any(each.verdict == "FAILED" for each in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
