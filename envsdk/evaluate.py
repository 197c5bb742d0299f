"""`python -m envsdk.evaluate ENV_OR_YAML`: play a frozen task list, print a table, write JSON.

    evaluation = evaluate("envsdk/FrozenLake-v1", policy="oracle", num_episodes=100)
    evaluation.total.success_rate

The tasks are the first ones of the split, one episode each, with seeds that depend on nothing but the
run's seed: two policies evaluated under the same seed play the same tasks, and so does validation
during training.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import rich.box
import typer
from rich.table import Table

from envsdk.collect import split_names
from envsdk.display.command_line import run_app
from envsdk.display.console import TerminalConsole
from envsdk.display.terminal import say
from envsdk.failures import ConfigurationError, RolloutStalled
from envsdk.play.options import PlayOptions, read_replies
from envsdk.processes.supervised import Share, play_supervised
from envsdk.store.atomic import make_folder, write_json_atomically
from envsdk.store.shards import utc_now
from envsdk.store.tally import Tally, wilson_interval
from envsdk.trajectory import Task, Trajectory
from envsdk.warm_start import make_tiny_policy

if TYPE_CHECKING:
    from envsdk.config import RunConfig
    from envsdk.play.player import Player

FORMAT = "envsdk.evaluation/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """How a policy did on a task list."""

    config: dict[str, Any]
    """All that decides which tasks were played and how, as in a collection's manifest."""
    versions: dict[str, str]
    trajectories: list[Trajectory]
    """In the order of the task list, tag by tag."""

    @property
    def by_tag(self) -> dict[str, Tally]:
        tallies: dict[str, Tally] = {}
        for trajectory in self.trajectories:
            tallies.setdefault(trajectory.task.tag, Tally()).add(trajectory)
        return tallies

    @property
    def total(self) -> Tally:
        return Tally.of(self.trajectories)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "created_at": utc_now(),
            "config": self.config,
            "versions": self.versions,
            "total": _scores(self.total),
            "by_tag": {tag: _scores(tally) for tag, tally in self.by_tag.items()},
            "episodes": [_episode(trajectory) for trajectory in self.trajectories],
        }


def evaluate(
    source: str | Path | RunConfig,
    *,
    num_episodes: int | None = None,
    policy: str = "model",
    epsilon: float = 0.0,
    seed: int | None = None,
    split: str = "val",
    tags: Sequence[str] | None = None,
    model: Path | None = None,
    greedy: bool = False,
    overrides: Sequence[str] = (),
    options: PlayOptions | None = None,
    supervised: bool = False,
    on_start: Callable[[int, int], None] | None = None,
    on_played: Callable[[Trajectory], None] | None = None,
) -> Evaluation:
    """Play the first `num_episodes` tasks of `split`, over all tags; `val_batch_size` of them when None.

    The arguments are those of `envsdk.collect.collect`; `greedy` samples at temperature 0. Failed
    episodes are part of the result. Raises ConfigurationError.
    """
    from envsdk.play.player import make_player, package_versions, resolve_source

    resolved = resolve_source(source, overrides)
    if num_episodes is None:
        num_episodes = resolved.config.val_batch_size
    if num_episodes < 1:
        raise ConfigurationError(f"--episodes: must be at least 1, not {num_episodes}")
    episodes_by_tag = resolved.episodes_by_tag(num_episodes, split=split, tags=tags)
    player = make_player(
        resolved,
        tags=episodes_by_tag,
        policy=policy,
        epsilon=epsilon,
        seed=seed,
        model=model,
        greedy=greedy,
        options=options,
        make_tiny_policy=make_tiny_policy,
    )
    tasks = [
        Task(tag=tag, split=split, index=index)
        for tag, count in episodes_by_tag.items()
        for index in range(count)
    ]
    if on_start is not None:
        on_start(0, len(tasks))
    ended: dict[int, Trajectory] = {}

    def on_trajectory(position: int, trajectory: Trajectory) -> None:
        # Token logs of a long evaluation would fill the memory, and nobody reads them.
        ended[position] = replace(trajectory, tokens=None)
        if on_played is not None:
            on_played(trajectory)

    if supervised and player.may_hang:
        play_supervised([_Tasks(player, dict(enumerate(tasks)))], lambda ended: on_trajectory(*ended))
    else:
        player.play(enumerate(tasks), on_trajectory)
    return Evaluation(
        config={"episodes": episodes_by_tag, "split": split, **player.describe()},
        versions=package_versions(with_model=player.model is not None),
        trajectories=[ended[position] for position in range(len(tasks))],
    )


class _Tasks(Share[tuple[int, Trajectory]]):
    """An evaluation's tasks by position, for a process that plays them."""

    def __init__(self, player: Player, tasks: dict[int, Task]) -> None:
        self._player = player
        self._tasks = tasks

    @property
    def num_environments(self) -> int:
        return self._player.num_slots

    def play(self, send: Callable[[tuple[int, Trajectory]], None]) -> None:
        self._player.play(
            self._tasks.items(), lambda position, ended: send((position, replace(ended, tokens=None)))
        )

    def heard(self, event: tuple[int, Trajectory]) -> None:
        del self._tasks[event[0]]

    def isolated(self) -> _Tasks:
        return _Tasks(self._player.isolated(), self._tasks)


def _scores(tally: Tally) -> dict[str, Any]:
    low, high = wilson_interval(tally.num_successes, tally.num_scored)
    return {
        **tally.to_json(),
        "success_rate_95": [low, high],
        "mean_reward": tally.mean_reward,
        "mean_turns": tally.mean_turns,
    }


def _episode(trajectory: Trajectory) -> dict[str, Any]:
    failure = trajectory.failure
    return {
        "tag": trajectory.task.tag,
        "index": trajectory.task.index,
        "seed": trajectory.seed,
        "outcome": trajectory.outcome.value,
        "success": trajectory.success,
        "reward": trajectory.total_reward,
        "turns": len(trajectory.turns),
        "failure": None
        if failure is None
        else {"boundary": failure.boundary.value, "kind": failure.kind, "message": failure.message},
    }


app = typer.Typer(add_completion=False)


@app.command()
def command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="ENV_OR_YAML",
            help="A registered environment id (`envsdk envs` lists them), or a run's YAML file: a path, or "
            "the name of a shipped example. The YAML's tags, prompts and limits are used.",
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
    episodes: Annotated[
        int | None,
        typer.Option(
            "--episodes", "-n", help="Tasks, over all tags; the YAML's `val_batch_size`, or 100, when absent."
        ),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            help="Who plays: oracle, random, scripted, model, endpoint, a plug-in's name or "
            "package.module:Class."
        ),
    ] = "model",
    epsilon: Annotated[
        float, typer.Option(help="Share of moves, from 0 to 1, replaced by random legal ones.")
    ] = 0.0,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER_OR_CHECKPOINT",
            help="For --policy model: a Hugging Face folder, a run, or its checkpoints/step_N. "
            "The YAML's `pretrain` when absent.",
        ),
    ] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Sample at temperature 0.")] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of tasks and sampling; the YAML's, or 42, when absent.")
    ] = None,
    split: Annotated[str, typer.Option(help="Which tasks: val, train, or any other name.")] = "val",
    tags: Annotated[
        list[str] | None,
        typer.Option(
            help="Tags to play, in equal parts: repeat the option, or separate them by commas. "
            "Those of the YAML's val_env_manager when absent.",
        ),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="For --policy endpoint: a server of OpenAI's protocol, such as http://127.0.0.1:8000/v1.",
        ),
    ] = None,
    endpoint_model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model as the server knows it.")
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            metavar="VARIABLE", help="Name of the environment variable that holds the server's key."
        ),
    ] = None,
    replies: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="For --policy scripted: a JSON list of replies, or a text file with one per line; one is "
            "played per turn.",
        ),
    ] = None,
    concurrency: Annotated[int | None, typer.Option(help="Episodes at the same time.")] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write the results, episode by episode, to FILE."),
    ] = None,
) -> None:
    """Play a frozen task list and print success, reward and failures by tag.

    The same seed gives the same tasks, whoever plays: compare two policies by evaluating both.
    """
    from envsdk.display.episode_progress import EpisodeProgress

    if json_file is not None:
        # An evaluation may take long; that its result cannot be written should be said before.
        make_folder(json_file.absolute().parent)
        if json_file.is_dir():
            raise ConfigurationError(f"--json: {json_file} is a folder: name a file")
    with EpisodeProgress("evaluating", total=episodes or 0) as progress:
        evaluation = evaluate(
            source,
            num_episodes=episodes,
            policy=policy,
            epsilon=epsilon,
            seed=seed,
            split=split,
            tags=split_names(tags),
            model=model,
            greedy=greedy,
            overrides=overrides or (),
            options=PlayOptions(
                replies=() if replies is None else read_replies(replies),
                endpoint=endpoint,
                endpoint_model=endpoint_model,
                api_key_env=api_key_env,
                concurrency=concurrency,
            ),
            supervised=True,
            on_start=progress.start,
            on_played=lambda trajectory: progress.played(
                1, int(trajectory.success), int(trajectory.failure is not None)
            ),
        )
    # Where nobody looks, a line is a line.
    TerminalConsole(width=None if sys.stdout.isatty() else 240).print(results_table(evaluation))
    if json_file is not None:
        write_json_atomically(json_file, evaluation.to_json())
    total = evaluation.total
    if total.num_failed and total.num_scored:
        say(f"failures: {total.describe_failures()}")
    if not total.num_scored:
        raise RolloutStalled(f"all {total.num_episodes} episodes failed: {total.describe_failures()}")


def results_table(evaluation: Evaluation) -> Table:
    """Results by tag, and their total where there are several tags."""
    config = evaluation.config
    table = Table(
        title=f"{config['policy']}, split {config['split']}, seed {config['seed']}",
        box=rich.box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("tag", overflow="fold")
    for header in ("episodes", "success", "95% interval", "reward", "turns", "failed"):
        table.add_column(header, justify="right", no_wrap=True)
    by_tag = evaluation.by_tag
    for tag, tally in by_tag.items():
        table.add_row(tag, *_row(tally))
    if len(by_tag) > 1:
        table.add_section()
        table.add_row("all", *_row(evaluation.total))
    return table


def _row(tally: Tally) -> list[str]:
    low, high = wilson_interval(tally.num_successes, tally.num_scored)

    def shown(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    return [
        str(tally.num_episodes),
        shown(tally.success_rate, ".1%"),
        f"{100 * low:.1f}-{high:.1%}" if tally.num_scored else "-",
        shown(tally.mean_reward, ".3f"),
        shown(tally.mean_turns, ".1f"),
        str(tally.num_failed),
    ]


def main(argv: list[str] | None = None) -> int:
    return run_app(app, argv, name="envsdk evaluate")


if __name__ == "__main__":
    sys.exit(main())
