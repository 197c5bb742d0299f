"""Without the package behind an adapter: its spec is listed, and making one says what to install."""

from __future__ import annotations

import sys

import pytest

import envsdk
from envsdk.contracts.failures import ConfigurationError


@pytest.mark.parametrize(
    ("id", "arguments", "module", "extra"),
    [
        ("envsdk/Gem-v1", {"id": "game:GuessTheNumber-v0-easy"}, "gem", "gem"),
        (
            "envsdk/ReasoningGym-v1",
            {"dataset": "gcd", "config": {"size": 7}},
            "reasoning_gym",
            "reasoning-gym",
        ),
        ("envsdk/PettingZoo-v1", {"id": "classic/tictactoe_v3"}, "pettingzoo", "pettingzoo"),
        ("envsdk/Verifiers-v1", {"id": "my-environment"}, "verifiers", "verifiers"),
    ],
)
def test_what_to_install_is_said(id, arguments, module, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    assert envsdk.spec(id).description
    with pytest.raises(ConfigurationError, match=rf"not installed .*pip install 'envsdk\[{extra}\]'"):
        envsdk.make(id, **arguments)
