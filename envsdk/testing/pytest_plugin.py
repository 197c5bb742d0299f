"""A pytest plug-in that adds the checks of an environment to a test run:

    pytest -p envsdk.testing.pytest_plugin --envsdk-check mine/Puzzle-v1

It is named on the command line (or under `pytest_plugins` in a conftest.py) rather than found by entry
point: pytest would then import it, and envsdk with it, in every project of the same environment.
"""

from __future__ import annotations

import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_OPTION = "envsdk_check"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("envsdk", "checks of environments")
    group.addoption(
        "--envsdk-check",
        dest=_OPTION,
        action="append",
        default=[],
        metavar="ENV_ID",
        help="Add the checks of this environment (an id, or package.module:Class); may be repeated.",
    )
    group.addoption(
        "--envsdk-examples", type=int, default=25, metavar="N", help="Examples per check of --envsdk-check."
    )
    group.addoption(
        "--envsdk-timeout",
        type=float,
        metavar="SECONDS",
        help="When a call that has not returned is ended; the spec's limits, at least 10, when absent.",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    for name in session.config.getoption(_OPTION):
        collector: Any = EnvironmentChecks.from_parent(session, name=name, path=Path(session.path))
        items.extend(collector.collect())


class EnvironmentChecks(pytest.Collector):
    """The checks of one environment."""

    def collect(self) -> Iterator[pytest.Item]:
        from envsdk.contracts.failures import ConfigurationError
        from envsdk.testing.runner import chosen
        from envsdk.testing.subject import Options, subject_of

        try:
            options = Options(
                max_examples=self.config.getoption("envsdk_examples"),
                timeout_s=self.config.getoption("envsdk_timeout"),
            )
            subject = subject_of(self.name, None, options)
        except ConfigurationError as error:
            raise pytest.UsageError(f"--envsdk-check: {error}") from None
        for check in chosen(()):
            item: Any = CheckItem.from_parent(self, name=check.name)
            item.check, item.subject = check, subject
            yield item


class CheckItem(pytest.Item):
    """One check."""

    check: Any
    subject: Any

    def runtest(self) -> None:
        from envsdk.testing.runner import demand_of, run

        try:
            demand_of(run(self.check, self.subject))
        except unittest.SkipTest as reason:
            pytest.skip(str(reason))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str | Any:
        if isinstance(excinfo.value, AssertionError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"{self.subject.name}: {self.check.name}"
