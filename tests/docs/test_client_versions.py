"""The versions of clients in docs/endpoint.md are those that `make test-clients` installs."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_versions_of_clients_are_those_that_are_tested() -> None:
    page = (ROOT / "docs" / "endpoint.md").read_text(encoding="utf-8")
    table = page.partition("| client | tested | set |")[2].partition("\n\n")[0]
    pinned = {
        tuple(line.strip().split("=="))
        for name in ("clients", "inspect")
        for line in (ROOT / f"constraints-{name}.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line
    }
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| ") and "---" not in row]
    told = [
        (package.replace("_", "-"), version)
        for row in rows
        for package, versions in re.findall(r"([a-z][a-z_-]+) ([\d.]+(?: and [\d.]+)?)", row)
        for version in versions.split(" and ")
    ]
    assert len(rows) == 12
    assert len(told) == 11
    for package, version in told:
        assert any(name == package and f"{full}.".startswith(f"{version}.") for name, full in pinned), package
