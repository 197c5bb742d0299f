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

from envsdk.base.display.model_command import command_of
from envsdk.base.display.terminal import say
from envsdk.base.settings.options import Option, Options
from envsdk.contracts.failures import ConfigurationError


class BuildStoreOptions(Options):
    """What `python -m envsdk.envs.webshop.build` takes."""

    data: Annotated[Path | None, Option(metavar="DIR")] = None
    """Folder with items_shuffle*.json, items_ins_v2*.json and items_human_ins.json."""
    out: Annotated[Path | None, Option("--out", "-o", metavar="STORE")] = None
    """The store; DIR/store when absent."""
    items: Annotated[str | None, Option(metavar="FILE")] = None
    """Which items_shuffle*.json, where there are several."""
    tagger: str = "auto"
    """Who finds the nouns of titles: spacy (as upstream), spacy:MODEL, rules, or auto: spacy where it is
    installed."""
    num_products: int | None = None
    """Only the first records, before any is left out."""
    skip_bad: Annotated[bool, Option("--skip-bad")] = False
    """Leave out records that cannot be loaded, and count them."""
    check: Annotated[Path | None, Option(metavar="STORE")] = None
    """Build nothing; verify a store's checksums."""


def command(options: BuildStoreOptions) -> None:
    """Make a store of WebShop's official files, for `data_dir: STORE` in an `env_config`."""
    from envsdk.base.display.console import StatusLine, TerminalConsole
    from envsdk.envs.webshop.builder import BuildOptions, build
    from envsdk.envs.webshop.store import open_store, verify

    if options.check is not None:
        verify(options.check)
        say(f"{options.check}: every checksum is right")
        return
    if options.data is None:
        raise ConfigurationError("--data: name the folder with the raw files")
    out = options.out or options.data / "store"
    how = BuildOptions(
        items=options.items,
        tagger=options.tagger,
        num_products=options.num_products,
        skip_bad=options.skip_bad,
    )
    with StatusLine(TerminalConsole(file=sys.stderr)) as line:
        build(options.data, out, how, tell=lambda what, share: line.show(f"{what}: {share:.0%}"))
    manifest = open_store(out).manifest
    goals = manifest["num_goals"]
    skipped = manifest["skipped"]
    say(
        f"{manifest['num_products']:,} products ({skipped['asin']} without a usable asin, "
        f"{skipped['duplicate']} duplicates, {skipped['bad']} bad records left out), "
        f"{goals['human']:,} human and {goals['synthetic']:,} synthetic goals, "
        f"nouns by {manifest['tagger']}: {out}"
    )


app, main = command_of(BuildStoreOptions, command, name="python -m envsdk.envs.webshop.build")

if __name__ == "__main__":
    sys.exit(main())
