import subprocess
import sys
from importlib.metadata import EntryPoint

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import envsdk
from envsdk import ConfigurationError, EnvSpec
from envsdk.base import plugins, registry
from envsdk.envs.frozen_lake import FrozenLakeEnv

BUILT_IN = ["envsdk/FrozenLake-v1", "envsdk/Sokoban-v1"]


class Needy(FrozenLakeEnv):
    def __init__(self, depth, *, size=3):
        super().__init__(size=size)
        self.depth = depth


class Anything(FrozenLakeEnv):
    def __init__(self, **kwargs):
        super().__init__()
        self.kwargs = kwargs


@pytest.fixture(autouse=True)
def _registries_are_put_back(monkeypatch):
    monkeypatch.setattr(registry, "_specs", dict(registry._specs))
    before = dict(gymnasium.registry)
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


def install(monkeypatch, *points: EntryPoint) -> None:
    """As if packages with these entry points were installed."""
    known = {**plugins._entry_points(registry.ENTRY_POINT_GROUP), **{point.name: point for point in points}}
    monkeypatch.setattr(plugins, "_entry_points", lambda group: known)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_built_in_environments_are_found_through_entry_points():
    specs = {spec.id: spec for spec in envsdk.list_specs()}
    assert specs.keys() >= set(BUILT_IN)
    for id in BUILT_IN:
        assert specs[id] is envsdk.spec(id)
        assert specs[id].isolation is envsdk.Isolation.INLINE
        assert "<answer>" in specs[id].action_format
        assert specs[id].max_steps is None
        assert envsdk.make(id).max_steps > 0


def test_keywords_of_make_go_over_those_of_the_spec():
    envsdk.register(EnvSpec(id="test/Lake-v0", entry_point=FrozenLakeEnv, kwargs={"size": 3, "p": 1.0}))
    env = envsdk.make("test/Lake-v0", size=2, legend=False)
    assert env.reset(seed=0)[0] == "P_\n_G"


def test_a_spec_can_be_made_without_being_registered():
    spec = EnvSpec(id="test/Unlisted-v0", entry_point="envsdk.envs.frozen_lake:FrozenLakeEnv")
    assert isinstance(envsdk.make(spec), FrozenLakeEnv)
    with pytest.raises(ConfigurationError):
        envsdk.spec("test/Unlisted-v0")


def test_registering_an_id_again_replaces_it():
    envsdk.register(EnvSpec(id="test/Lake-v0", entry_point=FrozenLakeEnv, kwargs={"size": 3}))
    envsdk.register(EnvSpec(id="test/Lake-v0", entry_point=FrozenLakeEnv, kwargs={"size": 2}))
    assert envsdk.spec("test/Lake-v0").kwargs == {"size": 2}
    assert len(gymnasium.make("test/Lake-v0", p=1.0, legend=False).reset()[0]) == 5


@pytest.mark.parametrize(
    ("id", "nearest"),
    [
        ("envsdk/FrozenLak-v1", "envsdk/FrozenLake-v1"),
        ("frozenlake", "envsdk/FrozenLake-v1"),
        ("envsdk/sokoban-v2", "envsdk/Sokoban-v1"),
    ],
)
def test_an_unknown_id_is_refused_and_the_nearest_one_named(id, nearest):
    with pytest.raises(ConfigurationError, match=f"Did you mean '{nearest}'"):
        envsdk.make(id)


def test_an_unknown_keyword_is_refused_and_the_nearest_one_named():
    with pytest.raises(ConfigurationError, match=r"FrozenLake-v1: .*'slippery'.*Did you mean 'is_slippery'"):
        envsdk.make("envsdk/FrozenLake-v1", slippery=True)
    with pytest.raises(ConfigurationError, match=r"'zzz'\. Known: preset, dim"):
        envsdk.make("envsdk/Sokoban-v1", zzz=1)


def test_a_keyword_that_is_needed_is_asked_for():
    spec = EnvSpec(id="test/Needy-v0", entry_point=Needy)
    with pytest.raises(ConfigurationError, match="test/Needy-v0: needs the keyword 'depth'"):
        envsdk.make(spec)
    assert envsdk.make(spec, depth=2).depth == 2


def test_a_constructor_that_takes_any_keyword_gets_them_all():
    assert envsdk.make(EnvSpec(id="test/Any-v0", entry_point=Anything), a=1).kwargs == {"a": 1}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"size": 1}, "size: must be at least 2, not 1"),
        ({"size": "4"}, "size: must be a whole number, not '4'"),
        ({"size": True}, "size: must be a whole number, not true"),
        ({"p": "most"}, "p: must be a number, not 'most'"),
        ({"is_slippery": "no"}, "is_slippery: must be true or false, not 'no'"),
        ({"max_steps": None}, "max_steps: must be a whole number, not null"),
    ],
)
def test_a_value_the_constructor_refuses_is_a_configuration_error(value, why):
    with pytest.raises(ConfigurationError, match=f"envsdk/FrozenLake-v1: {why}"):
        envsdk.make("envsdk/FrozenLake-v1", **value)


def test_numbers_of_numpy_and_whole_floats_are_numbers():
    env = envsdk.make("envsdk/FrozenLake-v1", size=np.int64(3), p=1, legend=np.False_)
    assert env.reset(seed=0)[0] == "P__\n___\n__G"


def test_only_arguments_with_plain_annotations_are_looked_at():
    def build(size: int | None = None, names: list[str] | str = "", odd: int = None): ...  # noqa: RUF013

    assert registry.wrong_types(build, {"size": "4", "names": 3, "odd": None}) == {
        "size": "must be a whole number, not '4'; leave the quotes out"
    }

    def unreadable(size: int = 4, kind: "OnlyForTypeCheckers" = None): ...  # noqa: F821

    assert registry.wrong_types(unreadable, {"size": "4"}) == {}


@pytest.mark.parametrize(
    "entry_point", ["no_such_module:Env", "envsdk.contracts.env:Missing", "envsdk.contracts.env"]
)
def test_an_entry_point_that_does_not_load_is_named(entry_point):
    with pytest.raises(ConfigurationError, match=f"test/Broken-v0: .*{entry_point}.*cannot be loaded"):
        envsdk.make(EnvSpec(id="test/Broken-v0", entry_point=entry_point))


def test_what_a_module_lacks_is_told_in_its_own_words(tmp_path, monkeypatch):
    (tmp_path / "needs_engine.py").write_text("raise ImportError('no engine: pip install engine')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError, match=r"^test/Bare-v0: no engine: pip install engine$"):
        envsdk.make(EnvSpec(id="test/Bare-v0", entry_point="needs_engine:Env"))


def test_what_is_no_text_env_is_refused():
    with pytest.raises(ConfigurationError, match=r"made a dict, which is no envsdk\.TextEnv"):
        envsdk.make(EnvSpec(id="test/Dict-v0", entry_point=lambda: {}))
    with pytest.raises(ConfigurationError, match="is not callable"):
        envsdk.make(EnvSpec(id="test/Spec-v0", entry_point="envsdk.envs.frozen_lake:SPEC"))


def test_a_malformed_id_is_refused():
    with pytest.raises(ConfigurationError, match="must look like namespace/Name-v1"):
        envsdk.register(EnvSpec(id="not an id!", entry_point=FrozenLakeEnv))


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("test/Gone-v0", "no_such_module:SPEC", "cannot be loaded"),
        ("test/Class-v0", "envsdk.envs.frozen_lake:FrozenLakeEnv", "not an envsdk.EnvSpec"),
        ("test/Other-v0", "envsdk.envs.frozen_lake:SPEC", "its spec has another id"),
    ],
)
def test_an_installed_package_with_a_bad_entry_point_is_named_and_harms_no_other(
    monkeypatch, name, value, why
):
    install(monkeypatch, EntryPoint(name=name, value=value, group=registry.ENTRY_POINT_GROUP))
    with pytest.raises(ConfigurationError, match=f"{name}.*{why}"):
        envsdk.make(name)
    with pytest.raises(ConfigurationError, match=name):
        envsdk.list_specs()
    registry.register_with_gymnasium()
    assert envsdk.make(BUILT_IN[0])


def test_an_entry_point_whose_name_gymnasium_cannot_hold_is_left_out_of_its_registry(monkeypatch):
    install(monkeypatch, EntryPoint(name="not an id!", value="a:B", group=registry.ENTRY_POINT_GROUP))
    registry.register_with_gymnasium()
    assert "not an id!" not in gymnasium.registry


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("id", BUILT_IN)
def test_gymnasium_checks_each_environment_without_a_warning(id):
    check_env(gymnasium.make(id).unwrapped)


def test_gymnasium_makes_environments_by_id_in_a_fresh_process_without_warnings():
    code = (
        "import gymnasium\n"
        "env = gymnasium.make('envsdk:envsdk/FrozenLake-v1', size=2, p=1.0, legend=False)\n"
        "print(env.reset(seed=0)[0])\n"
        "gymnasium.make('envsdk/Sokoban-v1').reset(seed=0)\n"
    )
    done = run_python(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "P_\n_G\n", "")


def test_importing_envsdk_loads_no_environment():
    code = "import sys, envsdk; print([m for m in sys.modules if m.startswith('envsdk.envs')])"
    done = run_python(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
