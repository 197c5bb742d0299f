"""`python -m envsdk.envs.swe.make_tasks --package humanize==4.17.0 --out DIR`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from envsdk.display.command_line import run_app

app = typer.Typer(add_completion=False)


@app.command()
def command(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Rows are written to DIR/tasks.jsonl.")
    ],
    package: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME==VERSION", help="A pure-Python package; may be given again."),
    ] = None,
    commits: Annotated[
        Path | None,
        typer.Option(metavar="CLONE", help="In place of packages, a clone: its commits become tasks."),
    ] = None,
    num_tasks: Annotated[
        int, typer.Option(min=1, help="Tasks of each package, or of a clone besides weak ones.")
    ] = 20,
    num_commits: Annotated[
        int,
        typer.Option(min=1, help="Commits that are tried at most, the newest that change source and tests."),
    ] = 1000,
    site: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Virtual environment, or packages, that a clone's tests import."),
    ] = None,
    python_path: Annotated[
        list[str] | None, typer.Option(metavar="FOLDER", help="Folder of a clone with its packages.")
    ] = None,
    needs: Annotated[
        list[str] | None, typer.Option(metavar="REQUIREMENT", help="What the tests import besides.")
    ] = None,
    source: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="The import package, where it cannot be told.")
    ] = None,
    tests: Annotated[
        list[str] | None, typer.Option(metavar="FOLDER", help="The tests, where they cannot be told.")
    ] = None,
    plugin: Annotated[
        list[str] | None, typer.Option(metavar="MODULE", help="A pytest plug-in that the tests need.")
    ] = None,
    pytest_option: Annotated[
        list[str] | None, typer.Option(metavar="ARGUMENT", help="A further argument of pytest.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the order in which mutations are tried.")] = 0,
    per_function: Annotated[int, typer.Option(min=1, help="Tasks of one function.")] = 1,
    max_test_s: Annotated[float, typer.Option(help="Slower tests are left out.")] = 1.0,
    memory_mb: Annotated[int, typer.Option(min=64, help="Memory of one run.")] = 2048,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at once; the number of cores if absent.")
    ] = None,
    backend: Annotated[str, typer.Option(help="The sandbox.")] = "bubblewrap",
) -> None:
    """Make SWE tasks of packages of the package index, or of a clone's commits. Killed, the same command goes
    on where it stopped."""
    import asyncio

    from envsdk.envs.swe.make_tasks.command import Arguments, run, run_of_commits
    from envsdk.envs.swe.make_tasks.from_commits import Options
    from envsdk.failures import ConfigurationError

    if (commits is None) == (not package):
        raise ConfigurationError("give either --package NAME==VERSION or --commits CLONE")
    if commits is not None:
        options = Options(
            num_tasks=num_tasks,
            num_commits=num_commits,
            site=site,
            python_path=tuple(python_path or ()),
            plugins=tuple(plugin or ()),
            options=tuple(pytest_option or ()),
            memory_mb=memory_mb,
            jobs=jobs or os.cpu_count() or 1,
        )
        asyncio.run(run_of_commits(commits, out.absolute(), options, backend))
        return

    arguments = Arguments(
        packages=tuple(package or ()),
        out=out,
        num_tasks=num_tasks,
        needs=tuple(needs or ()),
        source=source,
        tests=tuple(tests or ()),
        plugins=tuple(plugin or ()),
        options=tuple(pytest_option or ()),
        seed=seed,
        per_function=per_function,
        max_test_s=max_test_s,
        memory_mb=memory_mb,
        jobs=jobs,
        backend=backend,
    )
    asyncio.run(run(arguments))


def main(argv: list[str] | None = None) -> int:
    return run_app(app, argv, name="python -m envsdk.envs.swe.make_tasks")


if __name__ == "__main__":
    sys.exit(main())
