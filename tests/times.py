"""Where a test run spent its time, from pytest's junit files: `make test-times`.

python -m tests.times build/times/*.xml
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from heapq import nlargest
from pathlib import Path
from xml.etree import ElementTree

MOST = 25


def seconds_of(reports: Sequence[Path]) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds by file and by test, set-up and tear-down included."""
    files: dict[str, float] = defaultdict(float)
    tests: dict[str, float] = defaultdict(float)
    for report in reports:
        for case in ElementTree.parse(report).iter("testcase"):
            name, seconds = case.attrib["classname"], float(case.attrib["time"])
            files[name] += seconds
            tests[f"{name}::{case.attrib['name']}"] += seconds
    return files, tests


def main(arguments: Sequence[str]) -> int:
    reports = [Path(each) for each in arguments if Path(each).is_file()]
    if not reports:
        print("no reports: `make test` writes them to build/times", file=sys.stderr)
        return 2
    for title, found in zip(("file", "test"), seconds_of(reports), strict=True):
        print(f"{title}: {len(found):,}, {sum(found.values()):,.0f} s")
        for name, seconds in nlargest(MOST, found.items(), key=lambda item: item[1]):
            print(f"{seconds:9.1f} s  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
