"""`python -m envsdk.collect ENV_OR_YAML --out DIR`: play episodes with no trainer, write them as a data set.

    collection = collect("envsdk/FrozenLake-v1", Path("demos"), num_episodes=1000, epsilon=0.3)
    for path in collection.shards:
        trajectories = read_trajectories(path)

What is in the folder, and why a killed run can be continued, is said in `envsdk.store.shards`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envsdk.datasets.card import License
from envsdk.datasets.selection import Duplicates, EpisodeFilters
from envsdk.display.command_line import canonical_command, run_app
from envsdk.display.terminal import say
from envsdk.failures import ConfigurationError, Interrupted, RolloutStalled
from envsdk.inference.rate_limits import RateLimits
from envsdk.play.options import PlayOptions, read_body, read_replies
from envsdk.warm_start import make_tiny_policy

if TYPE_CHECKING:
    from envsdk.config import RunConfig
    from envsdk.play.collection import Collection
    from envsdk.play.shard_play import Played


def collect(
    source: str | Path | RunConfig,
    out: Path,
    *,
    num_episodes: int,
    policy: str = "oracle",
    epsilon: float = 0.0,
    seed: int | None = None,
    split: str = "train",
    tags: Sequence[str] | None = None,
    model: Path | None = None,
    num_workers: int = 1,
    shard_size: int | None = None,
    overrides: Sequence[str] = (),
    options: PlayOptions | None = None,
    filters: EpisodeFilters | None = None,
    deduplicate: Duplicates | None = None,
    formats: Sequence[str] = (),
    license: License | None = None,
    command: Sequence[str] = (),
    supervised: bool = False,
    on_start: Callable[[int, int], None] | None = None,
    on_played: Callable[[Played], None] | None = None,
) -> Collection:
    """Play the first `num_episodes` tasks of `split` into `out`, or what is still missing of them.

    Args:
        source: A registered environment id, a run's YAML file, or a configuration. `overrides` apply
            to it.
        out: The folder; created when absent, continued when it holds the same collection.
        policy: `oracle`, `random`, `scripted`, `model`, `endpoint`, a plug-in or `package.module:Class`.
        epsilon: Share of moves replaced by random legal ones.
        seed: The run seed that task seeds and random moves follow from; the configuration's when None.
        tags: Which tags to play, in equal parts; None plays those of the YAML's env manager.
        model: For `policy="model"`: a Hugging Face folder, a checkpoint or a run; the YAML's when None. For
            `policy="endpoint"`: a folder with the tokenizer of the model that is served, to keep tokens.
        num_workers: Processes that play; 1 plays in this one. More need the caller's main module to be
            importable, as `multiprocessing` does.
        shard_size: Episodes per file, which is what a kill can cost each worker; a sixteenth of
            all, but at most 500, when None.
        options: Endpoint, script, concurrency, retries, and rate limits over all processes.
        filters: Which episodes are kept.
        deduplicate: What makes an episode a duplicate of an earlier one, which alone is kept.
        formats: Names of `envsdk.export_formats` to write besides; they may be asked for later.
        license: For the card; the one stated before when None.
        supervised: Play in another process even with one worker: an environment that hangs where nothing can
            end it (in this process, in the event loop) then costs its own episode and not the call.
        on_start: Called once with the number of episodes on disk and the number wanted.
        on_played: Called about ten times a second.

    Failed episodes are part of the collection. The same arguments give the same episodes, whatever the
    number of workers and however often it was killed.

    Raises:
        ConfigurationError: An argument is wrong, or `out` holds a different collection.
        StorageError: `out` cannot be written or is damaged.
    """
    from envsdk.play.collection import play_into, usual_shard_size
    from envsdk.play.player import make_player, resolve_source

    _check_positive("--episodes", num_episodes)
    _check_positive("--workers", num_workers)
    if shard_size is None:
        shard_size = usual_shard_size(num_episodes)
    _check_positive("--shard-size", shard_size)
    if not split:
        raise ConfigurationError("--split: name a split, such as train or val")
    options = options or PlayOptions()
    resolved = resolve_source(source, overrides)
    episodes_by_tag = resolved.episodes_by_tag(num_episodes, split=split, tags=tags)
    player = make_player(
        resolved,
        tags=episodes_by_tag,
        policy=policy,
        epsilon=epsilon,
        seed=seed,
        model=model,
        options=replace(options, limits=options.limits.share(num_workers)),
        make_tiny_policy=make_tiny_policy,
    )
    return play_into(
        out,
        player,
        episodes_by_tag,
        split=split,
        shard_size=shard_size,
        num_workers=num_workers,
        filters=filters,
        deduplicate=deduplicate,
        formats=formats,
        license=license,
        command=command,
        supervised=supervised,
        on_start=on_start,
        on_played=on_played,
    )


def _check_positive(option: str, value: int) -> None:
    if value < 1:
        raise ConfigurationError(f"{option}: must be at least 1, not {value}")


app = typer.Typer(add_completion=False)

_POLICY, _KEPT, _WRITTEN = "Policies", "What is kept", "What is written besides"


@app.command()
def command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="ENV_OR_YAML",
            help="A registered environment id, whole or its name alone (`envsdk envs` lists them), or a "
            "run's YAML file: a path, or the name of a shipped example. The YAML's tags, prompts and limits "
            "are used.",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Replace single keys of the YAML; with an environment id, arguments of the environment, "
            "such as size=6, or else keys of the run, such as sequence_length=512.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="Where the data set goes; continued if it is there. `data/NAME` when absent.",
        ),
    ] = None,
    episodes: Annotated[int, typer.Option("--episodes", "-n", help="Episodes, over all tags.")] = 100,
    policy: Annotated[
        str,
        typer.Option(
            help="Who plays: oracle, random, scripted, model, endpoint, a plug-in's name or "
            "package.module:Class."
        ),
    ] = "oracle",
    epsilon: Annotated[
        float, typer.Option(help="Share of moves, from 0 to 1, replaced by random legal ones.")
    ] = 0.0,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="For --policy model: a Hugging Face folder, a checkpoint or a run; the YAML's `pretrain` "
            "when absent. For --policy endpoint: a folder with the served model's tokenizer, to keep tokens.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed of tasks and random moves; the YAML's, or 42, when absent."),
    ] = None,
    split: Annotated[str, typer.Option(help="Which tasks: train, val, or any other name.")] = "train",
    tags: Annotated[
        list[str] | None,
        typer.Option(
            help="Tags to play, in equal parts: repeat the option, or separate them by commas. "
            "Those of the YAML's env manager when absent.",
        ),
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes that play.")] = 1,
    shard_size: Annotated[
        int | None,
        typer.Option(
            help="Episodes per file: what a kill can cost each worker. "
            "A sixteenth of all, within 20 to 500, when absent."
        ),
    ] = None,
    replies: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="For --policy scripted: a JSON list of replies, or a text file with one per line; one is "
            "played per turn.",
            rich_help_panel=_POLICY,
        ),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="For --policy endpoint: a server of OpenAI's protocol, such as http://127.0.0.1:8000/v1.",
            rich_help_panel=_POLICY,
        ),
    ] = None,
    endpoint_model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The model as the server knows it.", rich_help_panel=_POLICY),
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            metavar="VARIABLE",
            help="Name of the environment variable that holds the server's key.",
            rich_help_panel=_POLICY,
        ),
    ] = None,
    endpoint_body: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help="Further fields of every request; null leaves one out that would be sent.",
            rich_help_panel=_POLICY,
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(help="Episodes at the same time in each process.", rich_help_panel=_POLICY),
    ] = None,
    retries: Annotated[
        int,
        typer.Option(help="How often a task is played again whose episode failed.", rich_help_panel=_POLICY),
    ] = 0,
    requests_per_minute: Annotated[
        float | None,
        typer.Option(help="Most requests to the model, over all processes.", rich_help_panel=_POLICY),
    ] = None,
    tokens_per_minute: Annotated[
        float | None,
        typer.Option(help="Most tokens to and from the model, over all processes.", rich_help_panel=_POLICY),
    ] = None,
    success_only: Annotated[
        bool, typer.Option("--success-only", help="Keep solved episodes alone.", rich_help_panel=_KEPT)
    ] = False,
    min_reward: Annotated[
        float | None, typer.Option(help="Least total reward that is kept.", rich_help_panel=_KEPT)
    ] = None,
    max_reward: Annotated[
        float | None, typer.Option(help="Largest total reward that is kept.", rich_help_panel=_KEPT)
    ] = None,
    min_turns: Annotated[
        int | None, typer.Option(min=0, help="Fewest turns that are kept.", rich_help_panel=_KEPT)
    ] = None,
    max_turns: Annotated[
        int | None, typer.Option(min=0, help="Most turns that are kept.", rich_help_panel=_KEPT)
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            help="Most tokens that are kept, prompts included; for policies with tokens.",
            rich_help_panel=_KEPT,
        ),
    ] = None,
    deduplicate: Annotated[
        Duplicates | None,
        typer.Option(
            help="Keep the first of episodes that are the same in every observation and reply (episode), "
            "or in the first observation (task).",
            rich_help_panel=_KEPT,
        ),
    ] = None,
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help="Also write messages, messages-parquet, minari or a plug-in's format; repeat the option, or "
            "separate them by commas.",
            rich_help_panel=_WRITTEN,
        ),
    ] = None,
    license_id: Annotated[
        str | None,
        typer.Option(
            "--license",
            metavar="ID",
            help="For the card, as the hub knows it: apache-2.0, cc-by-4.0, other ....",
            rich_help_panel=_WRITTEN,
        ),
    ] = None,
    license_name: Annotated[
        str | None, typer.Option(help="Of --license other.", rich_help_panel=_WRITTEN)
    ] = None,
    license_link: Annotated[
        str | None, typer.Option(help="Where the license is.", rich_help_panel=_WRITTEN)
    ] = None,
) -> None:
    """Play episodes with no trainer and write them as a data set.

    DIR receives part-00000.parquet, part-00001.parquet ..., manifest.json and README.md, the data set's
    card. A run that was interrupted or killed is continued by the same command, without repeats or gaps.
    """
    from envsdk.display.episode_progress import EpisodeProgress

    try:
        limits = RateLimits(requests_per_minute=requests_per_minute, tokens_per_minute=tokens_per_minute)
        filters = EpisodeFilters(
            success_only=success_only,
            min_reward=min_reward,
            max_reward=max_reward,
            min_turns=min_turns,
            max_turns=max_turns,
            max_tokens=max_tokens,
        )
    except ValueError as error:
        raise ConfigurationError(f"--{str(error).replace('_', '-')}") from error
    if license_id is None and (license_name or license_link):
        raise ConfigurationError("--license-name and --license-link need --license")
    options = PlayOptions(
        replies=() if replies is None else read_replies(replies),
        endpoint=endpoint,
        endpoint_model=endpoint_model,
        api_key_env=api_key_env,
        endpoint_body={} if endpoint_body is None else read_body(endpoint_body),
        concurrency=concurrency,
        max_attempts=1 + retries,
        limits=limits,
    )

    progress = EpisodeProgress("collecting", total=episodes)
    try:
        with progress:
            collection = collect(
                source,
                out or default_folder(source),
                num_episodes=episodes,
                policy=policy,
                epsilon=epsilon,
                seed=seed,
                split=split,
                tags=split_names(tags),
                model=model,
                num_workers=workers,
                shard_size=shard_size,
                overrides=overrides or (),
                options=options,
                filters=filters,
                deduplicate=deduplicate,
                formats=split_names(formats) or (),
                license=None
                if license_id is None
                else License(id=license_id, name=license_name, link=license_link),
                command=canonical_command("collect", sys.argv),
                supervised=True,
                on_start=progress.start,
                on_played=lambda played: progress.played(
                    played.num_episodes, played.num_successes, played.num_failed
                ),
            )
    except KeyboardInterrupt:
        raise Interrupted("interrupted: the same command continues where it stopped") from None
    _print_summary(collection)


def default_folder(source: str) -> Path:
    """Where a collection goes that is given no folder: `data/` and the name of the environment or file."""
    name = Path(source).name
    return Path("data") / (name.removesuffix(".yaml").removesuffix(".yml") or "collection")


def split_names(names: Sequence[str] | None) -> list[str] | None:
    """`["a,b", "c"]` as `["a", "b", "c"]`; None when nothing is named."""
    split = [name.strip() for entry in names or () for name in entry.split(",")]
    return list(dict.fromkeys(filter(None, split))) or None


def _print_summary(collection: Collection) -> None:
    manifest = collection.manifest
    for tag, tally in manifest.tally_by_tag.items():
        rate = "-" if tally.success_rate is None else f"{tally.success_rate:.1%}"
        say(f"{tag}: {tally.num_episodes} episodes, solved {rate}, failed {tally.num_failed}")
    tally, played = manifest.tally, manifest.played
    if played.num_failed and played.num_scored:
        say(f"failures: {played.describe_failures()}")
    if dropped := manifest.dropped:
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(dropped.items()))
        say(f"dropped {sum(dropped.values())} of {played.num_episodes} episodes played: {reasons}")
    for name, noted in sorted(manifest.exports.items()):
        say(f"{noted['episodes']} episodes as {name}: {collection.folder / name}")
    say(f"{tally.num_episodes} episodes in {len(collection.shards)} file(s): {collection.folder}")
    if not played.num_scored:
        raise RolloutStalled(f"all {played.num_episodes} episodes failed: {played.describe_failures()}")
    if not tally.num_episodes:
        raise RolloutStalled(f"none of the {played.num_episodes} episodes passed the filters")
    say(f"look at them with: envsdk view {collection.folder}")


def main(argv: list[str] | None = None) -> int:
    return run_app(app, argv, name="envsdk collect")


if __name__ == "__main__":
    sys.exit(main())
