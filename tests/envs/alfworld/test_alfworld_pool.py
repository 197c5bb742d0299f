import importlib
import importlib.util

import pytest
from hypothesis import given
from hypothesis import strategies as st

import envsdk
from envsdk.config.plugins import environment_class, environment_spec
from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.alfworld.pool import PoolSettings, choose_process

loads = st.lists(st.integers(0, 40), max_size=8)


@given(loads=loads, most=st.integers(1, 8), preferred=st.integers(0, 2**32))
def test_a_new_process_is_started_only_while_all_others_have_games(loads, most, preferred):
    slot = choose_process(loads, most_processes=most, preferred=preferred)
    assert (slot is None) == (len(loads) < most and all(loads))


@given(loads=st.lists(st.integers(0, 40), min_size=1, max_size=8), preferred=st.integers(0, 2**32))
def test_games_are_spread_evenly_but_for_a_few(loads, preferred):
    slot = choose_process(loads, most_processes=len(loads), preferred=preferred)
    assert loads[slot] <= min(loads) + 4


@given(num=st.integers(1, 8), preferred=st.integers(0, 2**32))
def test_a_game_goes_where_it_was_played_before(num, preferred):
    chosen = {choose_process([busy] * num, most_processes=num, preferred=preferred) for busy in (1, 5, 20)}
    assert len(chosen) == 1


def test_processes_are_as_many_as_asked_for_or_half_the_cores():
    assert PoolSettings(num_processes=3).most_processes == 3
    assert 1 <= PoolSettings().most_processes <= 8


def test_without_its_engine_the_environment_says_what_to_install(monkeypatch):
    import envsdk.envs.alfworld as package

    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "textworld" else find_spec(name, *rest),
    )
    monkeypatch.delitem(importlib.sys.modules, "envsdk.envs.alfworld.installed", raising=False)
    monkeypatch.delattr(package, "installed", raising=False)
    with pytest.raises(ConfigurationError, match=r"engine is not installed .*textworld.*envsdk\[alfworld\]"):
        environment_class(environment_spec("envsdk/ALFWorld-v1"))
    with pytest.raises(ConfigurationError, match="engine is not installed"):
        envsdk.make("envsdk/ALFWorld-v1")
