"""Success rates in words: never without the episodes that they are of and those that failed. Pure.

    str(Score(rate=1.0, num_scored=97, num_failed=415))      # 100.0% of 97, 415 of 512 failed
    change(before, after)                                    # +44.5 points, or why no gain is stated

A failed episode has no outcome, so it is in no rate; a rate of what is left may look better than the policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MEAN = "mean"
"""Stands for all tags together: each weighs the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Success of some episodes."""

    rate: float | None
    """Share solved of those with an outcome, 0 to 1; None where there is none."""
    num_scored: int | None
    """Episodes with an outcome; None where the metrics do not say."""
    num_failed: int = 0
    """Episodes without one."""
    by_tag: Mapping[str, Score] = field(default_factory=dict)
    """What a mean over tags is made of."""

    @classmethod
    def counted(cls, num_successes: float, num_episodes: int, num_failed: int) -> Score:
        """The score of so many episodes, failed ones included."""
        num_scored = num_episodes - num_failed
        rate = num_successes / num_scored if num_scored else None
        return cls(rate=rate, num_scored=num_scored, num_failed=num_failed)

    def __str__(self) -> str:
        return self.text()

    def text(self, digits: int = 1) -> str:
        """`55.5% of 512`, `100.0% of 97, 415 of 512 failed`, `all 256 failed`; `-` for no episodes."""
        if self.rate is None:
            return self.of or "-"
        between = "" if not self.of else " " if self.num_scored is not None else ", "
        return f"{self.rate:.{digits}%}{between}{self.of}"

    @property
    def of(self) -> str:
        """What follows the rate: `of 97, 415 of 512 failed`; empty where nothing is known."""
        if self.rate is None:
            return f"all {self.num_failed} failed" if self.num_failed else ""
        if self.num_scored is None:
            return f"{self.num_failed} failed" if self.num_failed else ""
        total = self.num_scored + self.num_failed
        return f"of {self.num_scored}" + (f", {self.num_failed} of {total} failed" if self.num_failed else "")

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The rates if every failed episode had been unsolved, or solved; None where they are not known."""
        if self.by_tag:
            found = [score.bounds for score in self.by_tag.values()]
            known = [each for each in found if each is not None]
            if len(known) < len(found):
                return None
            return sum(low for low, _ in known) / len(known), sum(high for _, high in known) / len(known)
        if self.num_scored is None or not self.num_scored + self.num_failed:
            return None
        num_solved = (self.rate or 0.0) * self.num_scored
        total = self.num_scored + self.num_failed
        return num_solved / total, (num_solved + self.num_failed) / total

    @property
    def num_episodes(self) -> Mapping[str, int | None]:
        """Episodes of each tag, failed ones included; what was asked for."""
        if self.by_tag:
            return {tag: score.num_episodes[""] for tag, score in sorted(self.by_tag.items())}
        return {"": None if self.num_scored is None else self.num_scored + self.num_failed}


NOT_PLAYED = Score(rate=None, num_scored=0)


def scores(metrics: Mapping[str, float], *, success: str, counts: str) -> dict[str, Score]:
    """The scores in a row of metrics, `mean` first.

    Their names: `SUCCESS/<tag>`, `COUNTS/num_scored/<tag>` and `COUNTS/num_failed/<tag>`.
    """
    scored, failed = f"{counts}/num_scored/", f"{counts}/num_failed/"
    tags = {
        name.removeprefix(prefix)
        for prefix in (f"{success}/", scored, failed)
        for name in metrics
        if name.startswith(prefix)
    } - {MEAN}
    by_tag = {}
    for tag in sorted(tags):
        num_scored = metrics.get(f"{scored}{tag}")
        by_tag[tag] = Score(
            rate=metrics.get(f"{success}/{tag}"),
            num_scored=None if num_scored is None else int(num_scored),
            num_failed=int(metrics.get(f"{failed}{tag}", 0)),
        )
    mean = metrics.get(f"{success}/{MEAN}")
    if mean is None and not by_tag:
        return {}
    known = [score.num_scored for score in by_tag.values()]
    counted = [number for number in known if number is not None]
    total = Score(
        rate=mean,
        num_scored=sum(counted) if known and len(counted) == len(known) else None,
        num_failed=sum(score.num_failed for score in by_tag.values())
        or int(metrics.get(f"{counts}/failed", 0)),
        by_tag=by_tag,
    )
    return {MEAN: total, **by_tag}


def held_out(metrics: Mapping[str, float]) -> dict[str, Score]:
    """The scores of an evaluation, `mean` first; empty where the metrics hold none."""
    return scores(metrics, success="val/success", counts="val")


def in_one_line(by_tag: Mapping[str, Score], failed: str) -> str:
    """Scores by tag, without their mean, and what failed."""
    line = "  ".join(f"{tag} {score}" for tag, score in by_tag.items() if tag != MEAN)
    return f"{line} | failed: {failed}" if failed else line


def failed_kinds(metrics: Mapping[str, float], prefix: str = "val/failures/") -> str:
    """`415 engine/turn_timeout, 3 environment/raised`; empty where nothing failed."""
    kinds = [(name.removeprefix(prefix), n) for name, n in metrics.items() if name.startswith(prefix) and n]
    return ", ".join(f"{n:.0f} {kind}" for kind, n in sorted(kinds, key=lambda each: -each[1]))


MAX_FAILED_SHARE = 0.5
"""Share of the episodes of an evaluation, unless the configuration says otherwise."""


def too_many_failed(num_failed: int, num_episodes: int, max_share: float, reasons: str = "") -> str:
    """Why an evaluation counts for nothing, as a sentence; empty where at most `max_share` of it failed."""
    if num_failed <= max_share * num_episodes:
        return ""
    return (
        f"{num_failed} of {num_episodes} episodes failed, more than max_failed_share={max_share:g} allows; "
        "the scores are of the others alone" + (f". Failures: {reasons}" if reasons else "")
    )


def gain(before: Score, after: Score) -> float | None:
    """What the rate has gained, -1 to 1; None where the two are not of the same tasks."""
    if before.num_episodes != after.num_episodes or before.num_failed or after.num_failed:
        return None
    return None if before.rate is None or after.rate is None else after.rate - before.rate


def change(before: Score, after: Score) -> str:
    """`+44.5 points`; where the two rates are not of the same tasks, why no gain is stated."""
    if (gained := gain(before, after)) is not None:
        return f"{100 * gained:+.1f} points"
    if before.num_episodes != after.num_episodes:
        return "no gain is stated: other tasks were played"
    counts = ((before.num_failed, "before"), (after.num_failed, "after"))
    left_out = " and ".join(f"{number} {when}" for number, when in counts if number)
    if not left_out:
        return "no gain is stated: there is nothing to compare"
    reason = f"no gain is stated: failures left out other tasks ({left_out})"
    if before.bounds is None or after.bounds is None:
        return reason
    least, most = after.bounds[0] - before.bounds[1], after.bounds[1] - before.bounds[0]
    return f"{reason}; with them it is from {100 * least:+.1f} to {100 * most:+.1f} points"
