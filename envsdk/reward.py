"""`envsdk reward NAME --file rows.jsonl`: score recorded responses with a reward function."""

from __future__ import annotations

import sys

from envsdk.base.display.console import ResultTable, TerminalConsole
from envsdk.base.display.episode_progress import EpisodeProgress
from envsdk.base.display.model_command import command_of
from envsdk.base.display.terminal import say
from envsdk.config.env_arguments import env_config_from
from envsdk.contracts.failures import EnvsdkError
from envsdk.rewards.reward import RewardError
from envsdk.rewards.scoring import Graded, RewardOptions, RewardTally, Scoring, score_rows

_MAX_SHOWN = 20
_MAX_REASONS = 5


def command(options: RewardOptions) -> None:
    """Score recorded responses with a reward function and print what became of them.

    The exit code is 1 when nothing could be scored, and with --reference when a row's own reference answer
    does not count as right.
    """
    section = env_config_from(options.settings, called="setting")
    with EpisodeProgress("scoring", total=0) as progress:

        def count(graded: Graded) -> None:
            is_right = graded.reward is not None and graded.reward.success
            progress.played(1, int(is_right), int(graded.reward is None))

        scoring = score_rows(
            section, options, on_start=lambda total: progress.start(0, total), on_graded=count
        )
    TerminalConsole().print(scores_table(options.name, scoring))
    for reason, count_ in scoring.reasons.most_common(_MAX_REASONS):
        say(f"{count_} x {reason}")
    if scoring.num_unusable:
        say(f"rows of the file that cannot be used: {scoring.num_unusable}; the first:")
        for row in scoring.unusable[:_MAX_SHOWN]:
            say(f"{row.place} {row.reason}")
    total = scoring.total
    if not total.num_scored:
        raise RewardError("no response was scored: the reasons are above")
    if options.reference:
        _report_references(scoring)


def _report_references(scoring: Scoring) -> None:
    for graded in scoring.not_right[:_MAX_SHOWN]:
        why = graded.problem if graded.reward is None else graded.reward.verdict
        say(f"{graded.row.place}: {why}")
    total = scoring.total
    num_bad = total.num_wrong + total.num_faults + total.num_masked + total.num_missing
    if num_bad > _MAX_SHOWN:
        say(f"and {num_bad - _MAX_SHOWN} more rows")
    if num_bad:
        raise EnvsdkError(f"{num_bad} row(s) have no reference answer that counts as right")


def scores_table(name: str, scoring: Scoring) -> ResultTable:
    """Results by tag, and their total where there are several tags."""
    headers = ("responses", "right", "wrong", "faults", "masked", "missing", "accuracy", "mean value")
    table = ResultTable("tag", *headers, title=name)
    for tag, tally in scoring.by_tag.items():
        table.add_row(tag or "-", *_row(tally))
    if len(scoring.by_tag) > 1:
        table.add_section()
        table.add_row("all", *_row(scoring.total))
    return table


def _row(tally: RewardTally) -> list[str]:
    counts = (tally.num_right, tally.num_wrong, tally.num_faults, tally.num_masked, tally.num_missing)
    scored = tally.num_scored
    return [
        str(scored + tally.num_masked),
        *map(str, counts),
        f"{tally.num_right / scored:.1%}" if scored else "-",
        "-" if tally.mean_value is None else f"{tally.mean_value:.3f}",
    ]


app, main = command_of(RewardOptions, command, name="envsdk reward")

if __name__ == "__main__":
    sys.exit(main())
