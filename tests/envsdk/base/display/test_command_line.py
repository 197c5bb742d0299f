from __future__ import annotations

import pytest

from envsdk.base.display.command_line import canonical_command


@pytest.mark.parametrize(
    "argv",
    [
        ["/somewhere/envsdk/collect.py", "FrozenLake", "--out", "demos"],
        ["/somewhere/bin/envsdk", "collect", "FrozenLake", "--out", "demos"],
        ["/somewhere/envsdk/__main__.py", "collect", "FrozenLake", "--out", "demos"],
    ],
)
def test_a_command_reads_the_same_whichever_way_it_was_called(argv: list[str]) -> None:
    assert canonical_command("collect", argv) == ["envsdk", "collect", "FrozenLake", "--out", "demos"]
