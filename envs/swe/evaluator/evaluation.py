"""What grading one patch says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from envsdk.envs.swe.tasks.task import Outcome


class Verdict(StrEnum):
    """Why a patch scored as it did."""

    RESOLVED = "resolved"
    TESTS_FAILED = "tests_failed"
    """A test that decides did not pass; an empty patch ends here."""
    PATCH_REFUSED = "patch_refused"
    """It is no patch, does not apply, is over the limits on patches, or reaches out of the repository."""
    EXHAUSTED = "exhausted"
    """It made grading run out of time, memory, disk or output, where the gold patch comes through."""
    TAMPERED = "tampered"
    """The report is incomplete or contradicts the canaries: the run cannot be believed."""
    SUSPICIOUS = "suspicious"
    """Strict mode, where tests cannot be sealed: the patch brings introspection that neither the original nor
    the gold patch uses."""
    INFRASTRUCTURE = "infrastructure"
    """The evaluation itself failed (the sandbox, or a machine on which the gold patch runs out of time too):
    says nothing about the patch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The verdict on one patch."""

    resolved: bool
    reason: Verdict
    detail: str
    """One line for a person."""
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    """The outcome of every test that decides, by node id; empty where no test ran."""
    stripped: tuple[str, ...] = ()
    """Test and configuration files that the patch touched and that were taken out of it."""
    suspicious: tuple[str, ...] = ()
    """What strict mode looks for, `path: token`, in a patch that `weak` tests rewarded."""
    hidden_bits: float = 0.0
    """At most how many bits of what tests expect must be guessed to be rewarded without solving the task."""
    weak: bool = False
    """So few that a rewarded patch may have forged its verdict."""
    num_left_out: int = 0
    """How many added files counted as leftovers and were not graded."""
    elapsed_s: float = 0.0
    run_s: float = 0.0
    """Seconds of the test run alone, without waiting for a place to run; 0 where no test ran."""
    output_tail: str = ""
    """The end of what the test run printed; for people, never for grading."""

    @property
    def infrastructure(self) -> bool:
        """The sample is to be masked, never scored 0."""
        return self.reason is Verdict.INFRASTRUCTURE

    @property
    def reward(self) -> float | None:
        """1.0 or 0.0; None where the sample is to be masked."""
        return None if self.infrastructure else float(self.resolved)
