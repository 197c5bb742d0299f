"""`envsdk buffer PATH`: what is in the buffer between explorers and a trainer, and its upkeep."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import NonNegativeInt

from envsdk.base.display.console import ResultTable, TerminalConsole
from envsdk.base.display.model_command import command_of
from envsdk.base.display.terminal import say
from envsdk.base.settings.options import Argument, Option, Options
from envsdk.base.store.atomic import make_folder
from envsdk.base.store.trajectories import write_trajectories
from envsdk.buffer.audit import audit, audit_folder
from envsdk.buffer.connecting import shown_place, url_of
from envsdk.buffer.contract import GroupState
from envsdk.buffer.inspection import Content, Total, inspect
from envsdk.buffer.places import find_buffer, opened
from envsdk.buffer.upkeep import DROPPABLE, Which, drop_by_hand, stored_trajectories, vacuum
from envsdk.contracts.failures import ConfigurationError

MOST_VERSIONS = 10
"""In the table."""


class BufferOptions(Options):
    """What `envsdk buffer` takes."""

    path: Annotated[str, Argument("PATH")]
    """A job's folder (output_dir/exp_name), a SQLite file, or a URL such as postgresql://user@host/name."""
    state: Annotated[tuple[str, ...], Option(metavar="STATE")] = ()
    """Only groups in this state: open, leased, ready, taken, trained or dropped; repeat for more."""
    tag: Annotated[tuple[str, ...], Option(metavar="TAG")] = ()
    """Only groups of this tag; repeat for more."""
    explorer: Annotated[tuple[str, ...], Option(metavar="NAME")] = ()
    """Only groups that this explorer played last; repeat for more."""
    version: Annotated[tuple[NonNegativeInt, ...], Option(metavar="N")] = ()
    """Only groups whose oldest token has this version; repeat for more."""
    group: Annotated[tuple[NonNegativeInt, ...], Option(metavar="ID")] = ()
    """Only the group of this id; repeat for more."""
    as_json: Annotated[bool, Option("--json")] = False
    """Print everything as JSON, after what else was asked for."""
    export: Annotated[Path | None, Option(metavar="FILE.parquet")] = None
    """Write the trajectories of these groups to a file, as far as the buffer holds them."""
    drop: bool = False
    """Drop these groups. Those that a trainer has taken stay, unless --group names them, no trainer lives and
    no checkpoint holds them."""
    vacuum: bool = False
    """Remove the trajectories of trained and dropped groups, and give their space back."""
    verify: bool = False
    """Check that the buffer kept its promises, and in a job's folder that batch files and checkpoints are
    what was written; the exit code is 1 when they are not."""


def command(options: BufferOptions) -> int:
    """Look into the buffer between explorers and a trainer, also while they run.

    Nothing is changed without --drop or --vacuum. Several options are carried out in this order: --export,
    --drop, --vacuum, --verify.
    """
    which = _chosen(options)
    if options.drop and which.is_all:
        raise ConfigurationError(
            "--drop: say which groups, by --state, --tag, --explorer, --version or --group; for all that "
            "wait, --drop --state ready"
        )
    found = find_buffer(options.path)
    # With --json alone on stdout a program can read it.
    tell: Callable[..., None] = (lambda text: say(text, err=True)) if options.as_json else say
    is_kept = True
    with opened(found, to_change=options.drop or options.vacuum) as engine:
        if options.export is not None:
            make_folder(options.export.absolute().parent)
            number = write_trajectories(options.export, stored_trajectories(engine, which))
            tell(f"{options.export} with {number:,} trajectories")
        if options.drop:
            dropped = drop_by_hand(engine, which)
            for state, number in dropped.num_by_state.items():
                tell(f"dropped {_groups(number)} that {'was' if number == 1 else 'were'} {state}")
            if not dropped.num_by_state:
                tell(f"dropped nothing: no such group is {', '.join(DROPPABLE[:-1])} or {DROPPABLE[-1]}")
            if dropped.num_kept:
                how = "end it first" if options.group else "--group ID drops one once that has ended"
                kept, them = dropped.num_kept, "it" if dropped.num_kept == 1 else "them"
                tell(f"{_groups(kept)} stayed: a trainer has taken {them}; {how}")
        if options.vacuum:
            freed = vacuum(engine)
            tell(
                f"removed the trajectories of {_groups(freed.num_groups)} ({_bytes(freed.payload_bytes)}); "
                f"the database is {_bytes(freed.disk_bytes)} smaller"
            )
        if options.verify:
            folder = _folder_of(options.path, found)
            broken = audit(engine, decode=True) + (audit_folder(engine, folder) if folder else [])
            for sentence in broken:
                tell(f"broken: {sentence}")
            is_kept = not broken
            looked_at = "buffer, batch files and checkpoints" if folder else "the buffer alone was looked at"
            tell(f"every promise was kept ({looked_at})" if is_kept else f"promises broken: {len(broken)}")
        if options.as_json:
            say(json.dumps({"path": shown_place(found), **inspect(engine, which).to_json()}, indent=2))
        elif not (options.export or options.drop or options.vacuum or options.verify):
            _print(inspect(engine, which), shown_place(found))
    return 0 if is_kept else 1


def _folder_of(path: str, found: str) -> Path | None:
    """The job's folder, where the command was given that or the database in it."""
    url = url_of(found)
    file = url.database if url.get_backend_name() == "sqlite" else None
    places = [Path(path).expanduser(), *([Path(file).parent] if file else [])]
    return next((place for place in places if (place / "trajectories").is_dir()), None)


def _chosen(options: BufferOptions) -> Which:
    known = [state.value for state in GroupState]
    for state in options.state:
        if state not in known:
            raise ConfigurationError(f"--state: {state!r} is none of {', '.join(known)}")
    return Which(
        states=options.state,
        tags=options.tag,
        explorers=options.explorer,
        versions=options.version,
        groups=options.group,
    )


def _print(content: Content, place: str) -> None:
    terms = content.terms
    say(
        f"{place}: job {content.name}, trainer {content.status}, step {content.step}, "
        f"version {_version(content.version)}"
    )
    say(
        f"{_groups(terms.groups_per_batch)} of {terms.group_size} per batch, at most {terms.capacity_groups} "
        f"at a time, at most {terms.staleness_bound} versions old; {_bytes(content.payload_bytes)} of "
        "trajectories"
    )
    console = TerminalConsole()
    for table in tables_of(content):
        console.print(table)


def tables_of(content: Content) -> list[ResultTable]:
    """What is shown of a buffer: groups, programs, versions and steps; tables without a row are left out."""
    now = content.read_at
    version_counts = content.counted("version")
    newest = dict(list(version_counts.items())[-MOST_VERSIONS:])
    reasons = ((reason, f"{count:,}") for reason, count in content.reasons.items())
    tables = [
        _table(
            "Groups",
            ("state", "groups", "trajectories", "tokens", "size", "reward", "youngest", "oldest"),
            ((state.value, *_total_cells(total, now)) for state, total in content.by_state().items()),
        ),
        _by("tag", content.counted("tag")),
        _by("explorer", content.counted("explorer")),
        _by("version", newest),
        _table(
            "In batches, and thrown away",
            ("tag", "groups in batches", "share", "tokens", "tokens thrown away", "share of sampled"),
            (
                (
                    use.tag,
                    f"{use.num_groups:,}",
                    _share(use.share),
                    f"{use.num_tokens:,}",
                    f"{use.dropped_tokens:,}",
                    _share(use.dropped_share),
                )
                for use in content.used_by_tag()
                if content.dropped_tokens
            ),
        ),
        _table("Dropped", ("reason", "groups"), reasons),
        _table(
            "Programs",
            (
                *("program", "name", "state", "heard", "version", "plays", "wants"),
                *("waited for places", "for weights", "process"),
            ),
            (
                (
                    program.role,
                    program.name,
                    program.state(now),
                    f"{_seconds(now - program.seen_at)} ago",
                    _version(program.version),
                    f"{program.num_held}",
                    f"{program.wants}",
                    _seconds(program.waited_places_s),
                    _seconds(program.waited_weights_s),
                    f"{program.pid} on {program.host}",
                )
                for program in content.programs
            ),
            num_left=3,
        ),
        _table(
            "Newest versions",
            ("version", "step", "published", "by"),
            (
                (str(one.version), str(one.step), f"{_seconds(now - one.published_at)} ago", one.method)
                for one in content.newest_versions
            ),
        ),
        _table(
            "Newest steps",
            ("step", "version", "groups", "trainer waited", "taken", "in a checkpoint"),
            (
                (
                    str(one.step),
                    str(one.version),
                    str(one.num_groups),
                    _seconds(one.waited_s),
                    f"{_seconds(now - one.taken_at)} ago",
                    "no" if one.trained_at is None else "yes",
                )
                for one in content.newest_steps
            ),
        ),
    ]
    return [table for table in tables if table.row_count]


def _table(
    title: str, headers: Sequence[str], rows: Iterable[Sequence[str]], *, num_left: int = 1
) -> ResultTable:
    table = ResultTable(*headers, num_left=num_left, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    return table


def _by(name: str, counted: Mapping[Any, Mapping[GroupState, Total]]) -> ResultTable:
    def cells(value: Any, totals: Mapping[GroupState, Total]) -> list[str]:
        numbers = [totals.get(state, Total()).num_groups for state in GroupState]
        mean = _reward(functools.reduce(Total.plus, totals.values(), Total()))
        return [str(value), *(f"{number:,}" if number else "-" for number in numbers), mean]

    headers = (name, *(state.value for state in GroupState), "reward")
    return _table(f"By {name}", headers, (cells(value, totals) for value, totals in counted.items()))


def _total_cells(total: Total, now: float) -> list[str]:
    return [
        f"{total.num_groups:,}",
        f"{total.num_trajectories:,}",
        f"{total.num_tokens:,}",
        _bytes(total.num_bytes),
        _reward(total),
        _seconds(now - total.last_at),
        _seconds(now - total.first_at),
    ]


def _reward(total: Total) -> str:
    return "-" if total.mean_reward is None else f"{total.mean_reward:.3f}"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _version(version: int) -> str:
    return "-" if version < 0 else str(version)


def _seconds(seconds: float) -> str:
    """`4 s`, `12 min`, `3 h`, `5 days`: clocks of two machines may differ, hence never negative."""
    seconds = max(0.0, seconds)
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"


def _bytes(number: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:,.3g} TB"


def _groups(number: int) -> str:
    return f"{number:,} group" if number == 1 else f"{number:,} groups"


app, main = command_of(BufferOptions, command, name="envsdk buffer")
