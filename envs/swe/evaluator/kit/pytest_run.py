"""Runs pytest with a plug-in that records what becomes of each test."""

import json
from collections.abc import Callable

# Nothing of a newer Python than 3.6, annotations included: images have old interpreters.
from typing import Any

import pytest


def run(config: "dict[str, Any]", record: "Callable[..., None]", probes: Any) -> "Callable[[], int]":
    """What runs the tests once `sys.path` has the repository's folders, and returns the exit status."""
    for plugin in config["plugins"]:
        __import__(plugin)
    measured = start_coverage(config) if config.get("coverage") else None
    reporter = make_reporter(record, config, probes)

    def run_tests() -> int:
        status = int(pytest.main(config["arguments"], plugins=[reporter]))
        if measured:
            save_coverage(measured, config["coverage"]["path"])
        return status

    return run_tests


def make_reporter(record: "Callable[..., None]", config: "dict[str, Any]", probes: Any) -> object:
    """The plug-in that reports, orders and leaves out tests."""
    deselected = set(config["deselected"])
    first, last = config["first"], config["last"]
    switch_context = config.get("switch_context")

    class Reporter:
        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, items: "list[Any]") -> None:
            def place(item: Any) -> int:
                name = item.nodeid.split("::")[0]
                return 0 if name == first else 2 if name == last else 1

            items[:] = sorted((item for item in items if item.nodeid not in deselected), key=place)

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                record("collect_error", report.nodeid, message=shorten(report.longrepr))

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_logstart(self, nodeid: str) -> None:
            probes.test = nodeid
            if switch_context:
                switch_context(nodeid)

        def pytest_runtest_logfinish(self, nodeid: str) -> None:
            probes.test = ""

        def pytest_runtest_logreport(self, report: Any) -> None:
            outcome = report.outcome
            if type(report).__name__ == "SubtestReport" and outcome != "failed":
                return  # the parent reports; a failed part makes it fail
            if hasattr(report, "wasxfail"):
                outcome = "xfailed" if outcome == "skipped" else "xpassed"
            message = shorten(report.longrepr) if outcome == "failed" else ""
            record("test", report.nodeid, report.when, outcome, f"{report.duration:.4f}", message)

    return Reporter()


def shorten(representation: object) -> str:
    try:
        return str(representation)[-1500:]
    except Exception:  # noqa: BLE001 (whatever the repository's own classes raise)
        return ""


def start_coverage(config: "dict[str, Any]") -> Any:
    """Measures which test runs which line of `config["coverage"]["source"]`."""
    import coverage

    measured = coverage.Coverage(
        data_file=None, source=config["coverage"]["source"], config_file=False, messages=False
    )
    measured.start()
    config["switch_context"] = measured.switch_context
    return measured


def save_coverage(measured: Any, path: str) -> None:
    """As JSON: file, line, node ids of the tests that ran it ("" while collecting)."""
    measured.stop()
    data = measured.get_data()
    lines = {file: data.contexts_by_lineno(file) for file in data.measured_files()}
    with open(path, "w") as file:
        json.dump(lines, file)
