"""`python -m envsdk.envs.webshop.build --data DIR`: make a store of WebShop's raw files.

    attributes and instructions -> a table on disk
    products, one by one         -> records, postings          (saved every few thousand: resumable)
    prices, goals, index         -> files, checksums, manifest

Memory does not grow with the number of products. A build that was killed is continued by the same command.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from envsdk.display.command_line import run_app
from envsdk.display.terminal import say

app = typer.Typer(add_completion=False)


@app.command()
def command(
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder with items_shuffle*.json, items_ins_v2*.json and items_human_ins.json.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="STORE", help="The store; DIR/store when absent.")
    ] = None,
    items: Annotated[
        str | None, typer.Option(metavar="FILE", help="Which items_shuffle*.json, where there are several.")
    ] = None,
    tagger: Annotated[
        str,
        typer.Option(
            help="Who finds the nouns of titles: spacy (as upstream), spacy:MODEL, rules, or auto: "
            "spacy where it is installed."
        ),
    ] = "auto",
    num_products: Annotated[
        int | None, typer.Option(help="Only the first records, before any is left out.")
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out records that cannot be loaded, and count them.")
    ] = False,
    check: Annotated[
        Path | None, typer.Option(metavar="STORE", help="Build nothing; verify a store's checksums.")
    ] = None,
) -> None:
    """Make a store of WebShop's official files, for `data_dir: STORE` in an `env_config`."""
    from envsdk.display.console import TerminalConsole
    from envsdk.envs.webshop.build_progress import BuildProgress
    from envsdk.envs.webshop.builder import BuildOptions, build
    from envsdk.envs.webshop.store import open_store, verify
    from envsdk.failures import ConfigurationError

    if check is not None:
        verify(check)
        say(f"{check}: every checksum is right")
        return
    if data is None:
        raise ConfigurationError("--data: name the folder with the raw files")
    out = out or data / "store"
    options = BuildOptions(items=items, tagger=tagger, num_products=num_products, skip_bad=skip_bad)
    with BuildProgress(TerminalConsole(file=sys.stderr)) as progress:
        build(data, out, options, progress=progress)
    manifest = open_store(out).manifest
    goals = manifest["num_goals"]
    skipped = manifest["skipped"]
    say(
        f"{manifest['num_products']:,} products ({skipped['asin']} without a usable asin, "
        f"{skipped['duplicate']} duplicates, {skipped['bad']} bad records left out), "
        f"{goals['human']:,} human and {goals['synthetic']:,} synthetic goals, "
        f"nouns by {manifest['tagger']}: {out}"
    )


def main(argv: list[str] | None = None) -> int:
    return run_app(app, argv, name="python -m envsdk.envs.webshop.build")


if __name__ == "__main__":
    sys.exit(main())
