"""From YAML files and overrides to a typed configuration that remembers where everything came from."""

from __future__ import annotations

import re
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from envsdk.base.settings.problems import dotted, leaves
from envsdk.config import LoadedConfig, explain, find_config, load_config
from envsdk.config.reading import examples_folder
from envsdk.contracts.failures import ConfigurationError

SMALL = """\
exp_name: small
rollout_batch_size: 16
val_batch_size: 8
sequence_length: 256
max_steps: 2
custom_envs:
  Lake:
    env_type: envsdk/FrozenLake-v1
    env_config: {size: 4}
train_env_manager: &manager
  tags: [Lake]
  num_env_groups: 4
  group_size: 4
val_env_manager: *manager
actor_infer:
  strategy_args: {strategy_name: mock}
  device_mapping: list(range(0,4))
"""


READS_FILES = settings(max_examples=30, deadline=None)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


@pytest.mark.parametrize(
    "example", sorted(path.name for path in examples_folder().glob("*.yaml") if path.name != "plan.yaml")
)
def test_a_shipped_example_loads_by_its_bare_name(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "alfworld" in example and find_spec("fast_downward") is None:
        pytest.skip("needs ALFWorld's engine: make install-alfworld")
    monkeypatch.chdir(tmp_path)
    # A GPU, downloads, a teacher.
    asks_for_more = any(each in example for each in ("one_gpu", "smollm2", "harness", "distill"))
    loaded = load_config(example, to_explain=asks_for_more)
    # The programs of a job share a folder.
    name = re.sub("_(trainer|explorer)$", "_job", Path(example).stem)
    assert loaded.config.exp_name == name + "_Claude" * example.endswith("programs.yaml")
    assert load_config(Path(example).stem, to_explain=asks_for_more).config == loaded.config


def test_the_two_agentic_examples_differ_in_alpha_and_name_alone() -> None:
    ours, theirs = (
        load_config(name).config.model_dump() for name in ("agentic_async.yaml", "agentic_sync.yaml")
    )
    different = {key for key in ours if ours[key] != theirs[key]}
    assert different == {"exp_name", "async_generation_ratio"}
    assert theirs["async_generation_ratio"] == 0


@pytest.mark.parametrize("name", ["agentic", "rlvr"])
def test_the_programs_of_a_shipped_job_differ_in_what_they_are_alone(name: str) -> None:
    single, trainer, explorer = (
        load_config(f"{name}_{part}.yaml").config.model_dump() for part in ("async", "trainer", "explorer")
    )
    assert {key for key in single if single[key] != trainer[key]} == {"exp_name", "mode"}
    assert {key for key in trainer if trainer[key] != explorer[key]} == {"mode", "explorer"}


def test_the_working_directory_comes_before_the_shipped_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agentic_async.yaml").write_text(SMALL)
    assert load_config("agentic_async.yaml").config.exp_name == "small"


def test_a_missing_file_is_answered_with_the_nearest_example() -> None:
    with pytest.raises(ConfigurationError, match=r"agentic_asink\.yaml.*did you mean `agentic_async\.yaml`"):
        find_config("agentic_asink.yaml")
    with pytest.raises(ConfigurationError, match="there is no file nowhere/agentic_async"):
        find_config("nowhere/agentic_async.yaml")


def test_a_folder_is_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is a folder"):
        find_config(tmp_path)


def test_overrides_win_over_the_file_and_later_ones_over_earlier_ones(small: Path) -> None:
    loaded = load_config(small, ["max_steps=3", "actor_infer.generating_args.temperature=0.5", "max_steps=4"])
    assert loaded.config.max_steps == 4
    assert loaded.config.actor_infer.generating_args.temperature == 0.5


def test_an_override_may_be_a_list_an_item_of_one_or_a_section(small: Path) -> None:
    loaded = load_config(
        small,
        [
            "custom_envs.Pond={env_type: envsdk/FrozenLake-v1}",
            "train_env_manager.tags=[Lake, Pond]",
            "val_env_manager.tags[0]=Pond",
            "actor_infer.device_mapping=list(range(2,8,2))",
        ],
    )
    assert loaded.config.train_env_manager.tags == ["Lake", "Pond"]
    assert loaded.config.val_env_manager.tags == ["Pond"]
    assert loaded.config.actor_infer.device_mapping == [2, 4, 6]
    assert loaded.provenance["custom_envs.Pond.env_type"] == "override"


@settings(READS_FILES, max_examples=12)
@given(st.integers(1, 10**9))
def test_a_whole_number_survives_an_override(number: int) -> None:
    loaded = load_config("agentic_async.yaml", [f"max_steps={number}"])
    assert loaded.config.max_steps == number


@settings(READS_FILES, max_examples=12)
@given(st.floats(1e-12, 1e3))
def test_a_fraction_survives_an_override_in_every_spelling(number: float) -> None:
    for spelling in (repr(number), f"{number:e}", f"{number:.20f}"):
        loaded = load_config("agentic_async.yaml", [f"async_generation_ratio={spelling}"])
        assert loaded.config.async_generation_ratio == pytest.approx(number, abs=1e-20, rel=1e-6)


@settings(READS_FILES, max_examples=12)
@given(st.text(alphabet="abcXYZ019._-", min_size=1).map(lambda text: f"x{text}"))
def test_a_name_survives_an_override(name: str) -> None:
    assert load_config("agentic_async.yaml", [f"exp_name={name}"]).config.exp_name == name


@READS_FILES
@given(st.text(max_size=40))
def test_any_override_is_applied_or_refused_as_a_wrong_configuration(text: str) -> None:
    with suppress(ConfigurationError):
        load_config("agentic_async.yaml", [text])


@pytest.mark.parametrize(
    "override", ["max_steps", "=3", "max_steps =3", "+max_steps=3", "--seed=3", "extends=a.yaml", "a={b: "]
)
def test_a_malformed_override_is_quoted_in_the_error(small: Path, override: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"override `{override}`")):
        load_config(small, [override])


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("custom_envs=[]", r"custom_envs \(%s\): must be a section of keys, not \[\]"),
        ("train_env_manager={tags: {a: 1}}", r"tags \(%s\): must be a list.* not a section of keys"),
        ("train_env_manager={tags: {}}", r"tags \(%s\): must be a list.* not {}"),
        ("actor_infer=[3]", r"actor_infer \(%s\): must be a section of keys, not \[3\]"),
    ],
)
def test_a_list_in_place_of_a_section_and_the_other_way_round_are_told_with_their_place(
    tmp_path: Path, written: str, message: str
) -> None:
    key, _, value = written.partition("=")
    (tmp_path / "first.yaml").write_text(f"extends: agentic_async.yaml\n{key}: {value}\n")
    with pytest.raises(ConfigurationError, match=message % r".*first.yaml:2"):
        load_config(tmp_path / "first.yaml")
    with pytest.raises(ConfigurationError, match=message % "override"):
        load_config("agentic_async.yaml", [written])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train_env_manager.tags[9]=x", r"the list has no such entry; replace all of it, as in KEY=\[a, b\]"),
        ("train_env_manager.tags.first=x", "the list has no such entry"),
        ("custom_envs=[1", r"is no valid YAML, did not find expected ',' or '\]'; a list is \[a, b\]"),
        ("exp_name=${", r"write `\$\{key\}`"),
    ],
)
def test_an_override_that_cannot_be_applied_is_told_with_what_to_write(override: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"override `{override}`: ") + f".*{message}"):
        load_config("agentic_async.yaml", [override])


def test_interpolation_reads_other_keys_and_the_environment(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUN_NAME", "from_environment")
    loaded = load_config(small, ["val_batch_size=${rollout_batch_size}", "exp_name=${oc.env:RUN_NAME}"])
    assert loaded.config.val_batch_size == 16
    assert loaded.config.exp_name == "from_environment"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("${eval:1+1}", "eval"),
        ("${rolout_batch_size}", "rolout_batch_size"),
        ("${oc.env:ENVSDK_SURELY_UNSET}", "the environment variable ENVSDK_SURELY_UNSET is not set"),
        ("${max_steps}", "max_steps"),
        ("${unclosed", "unclosed"),
        ("???", "max_steps"),
    ],
)
def test_an_interpolation_that_cannot_be_resolved_names_the_key(small: Path, value: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=r"max_steps") as caught:
        load_config(small, [f"max_steps={value}"])
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("text", "hint"),
    [("exp_name: x\n\tseed: 1\n", ":2: .*indent with spaces"), ("", "`extends: agentic_async.yaml` runs")],
)
def test_slips_of_a_first_file_are_told_with_what_to_do(tmp_path: Path, text: str, hint: str) -> None:
    (tmp_path / "first.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=hint):
        load_config(tmp_path / "first.yaml")


def test_every_key_remembers_where_it_was_written(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(small.parent)
    provenance = load_config("small.yaml", ["val_env_manager.num_env_groups=2", "seed=1"]).provenance
    assert provenance["exp_name"] == "small.yaml:1"
    assert provenance["custom_envs.Lake.env_config.size"] == "small.yaml:9"
    assert provenance["train_env_manager.tags"] == "small.yaml:11"
    assert provenance["val_env_manager.group_size"] == "small.yaml:13"  # through the anchor
    assert provenance["val_env_manager.num_env_groups"] == "override"
    assert provenance["seed"] == "override"
    assert provenance["ppo_epochs"] == "default"


def test_an_interpolated_section_comes_from_where_it_is_asked_for(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(small.parent)
    small.write_text(SMALL.replace("val_env_manager: *manager", "val_env_manager: ${train_env_manager}"))
    assert load_config("small.yaml").provenance["val_env_manager.group_size"] == "small.yaml:14"


def test_a_file_starts_from_the_one_it_extends(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(small.parent.parent)
    folder = small.parent.name
    child = small.parent / "child.yaml"
    child.write_text(
        "extends: small.yaml\nmax_steps: 9\ncustom_envs:\n  Lake:\n    env_config:\n      p: 0.9\n"
    )
    loaded = load_config(child)
    assert loaded.config.max_steps == 9
    assert loaded.config.custom_envs["Lake"].env_config == {"size": 4, "p": 0.9}
    assert loaded.provenance["max_steps"] == f"{folder}/child.yaml:2"
    assert loaded.provenance["custom_envs.Lake.env_config.p"] == f"{folder}/child.yaml:6"
    assert loaded.provenance["custom_envs.Lake.env_config.size"] == f"{folder}/small.yaml:9"


def test_a_shipped_example_can_be_extended_from_anywhere(tmp_path: Path) -> None:
    child = tmp_path / "mine.yaml"
    child.write_text("extends: agentic_sync.yaml\nexp_name: mine\n")
    loaded = load_config(child)
    assert (loaded.config.exp_name, loaded.config.async_generation_ratio) == ("mine", 0)
    assert [path.name for path in loaded.sources] == ["mine.yaml", "agentic_sync.yaml", "agentic_async.yaml"]


def test_files_that_extend_each_other_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\n")
    with pytest.raises(ConfigurationError, match=r"circle.*a\.yaml -> b\.yaml -> a\.yaml"):
        load_config(tmp_path / "a.yaml")


@pytest.mark.parametrize("value", ["[a.yaml, b.yaml]", "", "3", "missing.yaml", "folder/missing.yaml"])
def test_what_cannot_be_extended_is_named(small: Path, value: str) -> None:
    small.write_text(f"extends: {value}\n{SMALL}")
    with pytest.raises(ConfigurationError, match=r"small\.yaml.*`extends"):
        load_config(small)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: [1, 2\nb: 3\n", r"bad\.yaml:2"),
        ("seed: 1\nseed: 2\n", r"bad\.yaml:2.*duplicate key"),
        ("- a\n- b\n", "mapping of keys"),
        ("3\n", "mapping of keys"),
        ("seed: !!python/object/apply:os.getpid []\n", "python/object"),
        ("\tseed: 1\n", r"bad\.yaml:1"),
    ],
)
def test_text_that_is_no_configuration_is_refused_with_its_line(
    tmp_path: Path, text: str, reason: str
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=reason):
        load_config(path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(b"seed: \xff\n")
    with pytest.raises(ConfigurationError, match="UTF-8"):
        load_config(path)


def test_what_the_user_wrote_is_kept_word_for_word(small: Path) -> None:
    loaded = load_config(small, ["max_steps=7"])
    assert loaded.sources == {small.resolve(): SMALL}
    assert small.read_text() == SMALL


def test_the_resolved_yaml_reads_back_to_the_same_configuration(tmp_path: Path) -> None:
    loaded = load_config(
        "agentic_sync.yaml",
        [
            "seed=7",
            "actor_infer.strategy_args.strategy_name=mock",
            "actor_infer.device_mapping=list(range(2))",
        ],
    )
    path = tmp_path / "config.yaml"
    path.write_text(loaded.resolved_yaml())
    assert load_config(path).config == loaded.config
    assert next(iter(yaml.safe_load(path.read_text()))) == "exp_name"


def test_explain_prints_every_key_once_with_value_and_origin() -> None:
    loaded = load_config("agentic_async.yaml", ["seed=7"])
    table, derived = explain(loaded).split("\nDerived\n")
    keys = [line.split()[0] for line in table.splitlines()[3:] if line]
    assert len(keys) == len(set(keys))
    assert {dotted(path) for path, _ in leaves(loaded.config.model_dump())} <= set(keys)
    assert re.search(r"^seed +7 +override$", table, re.MULTILINE)
    assert re.search(
        r"^actor_train\.training_args\.weight_decay +0\.0 +default of torch$", table, re.MULTILINE
    )
    assert derived.count("runs/agentic_async") == 1
    assert re.search(r"^actor_train attention +sdpa: the fastest kernel", derived, re.MULTILINE)


def derived_of(*overrides: str) -> str:
    loaded = load_config("agentic_sync.yaml", overrides, to_explain=True)
    return re.sub(" +", " ", explain(loaded).split("\nDerived\n")[1])


def test_explain_says_who_teaches_only_where_that_is_set() -> None:
    assert "\nteacher " not in derived_of()
    taught = derived_of("teachers={lake: {pretrain: x, tags: [FrozenLake], coef: 0.5}, rest: {pretrain: y}}")
    for line in (
        "teacher lake scores FrozenLake with torch on a device of its choice; learned from as advantage, "
        "weight 0.5",
        "teacher rest scores SimpleSokoban with torch on a device of its choice; learned from as advantage, "
        "weight 1",
    ):
        assert f"{line}\n" in taught


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ((), "FrozenLake 6000, SimpleSokoban 3000"),
        (("custom_envs.FrozenLake.demonstration_weight=1000000",), "FrozenLake 9000, SimpleSokoban 0"),
        (("pretrain=a/model",), "none: `pretrain` is a model, and demonstration_* do nothing"),
        (
            ("custom_envs.Own={env_type: envsdk/OpenEnv-v1}", "train_env_manager.tags=[FrozenLake, Own]"),
            "FrozenLake 6000, Own has no oracle",
        ),
    ],
)
def test_explain_says_which_demonstrations_there_are(changes: tuple[str, ...], told: str) -> None:
    assert f"\ndemonstrations {told}\n" in derived_of(*changes)


def test_explain_says_what_follows(small: Path) -> None:
    loaded = load_config(
        small,
        ["async_generation_ratio=1.5", "train_env_manager.group_size_redundancy=1", "kl_loss_coef=0.1"],
    )
    derived = explain(loaded).split("\nDerived\n")[1]
    for expected in (
        "asynchronous, generation runs 1.5 batches ahead",
        "2 weight versions",
        "10 groups leased or waiting",
        "20 in 1 worker, 1 of each group spare",
        "Lake 20",
        "4 accelerators [0, 1, 2, 3], 1 mock engine",
        "small",
    ):
        assert expected in derived
    assert "not loaded" not in derived


def test_loading_takes_neither_torch_nor_ray(loaded_modules: set[str]) -> None:
    assert not loaded_modules & {"torch", "ray", "transformers"}


@pytest.fixture
def loaded_modules() -> set[str]:
    import subprocess
    import sys

    program = (
        "import sys; from envsdk.config import load_config, explain;"
        "explain(load_config('agentic_async.yaml')); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_a_loaded_configuration_is_one_value(small: Path) -> None:
    assert isinstance(load_config(small), LoadedConfig)
    assert load_config(small) == load_config(str(small))
