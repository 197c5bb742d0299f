"""`python -m envsdk.envs.swe.make_tasks --package humanize==4.17.0 --out DIR`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from envsdk.display.command_line import run_app

app = typer.Typer(add_completion=False)


@app.command()
def command(
    package: Annotated[
        list[str], typer.Option(metavar="NAME==VERSION", help="A pure-Python package; may be given again.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Rows are written to DIR/tasks.jsonl.")
    ],
    num_tasks: Annotated[int, typer.Option(min=1, help="Tasks of each package.")] = 20,
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
    """Make SWE tasks of packages of the package index. Killed, the same command goes on where it stopped."""
    import asyncio

    from envsdk.envs.swe.make_tasks.command import Arguments, run

    arguments = Arguments(
        packages=tuple(package),
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
