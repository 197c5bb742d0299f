"""Programs of a job take token ids and tags for the same, or are refused; machines may differ otherwise."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from envsdk.buffer.contract import Meaning, PublishedVersion, Role
from envsdk.buffer.sql_buffer import SqlBuffer
from envsdk.config import load_config
from envsdk.config.env_models import CustomEnv
from envsdk.config.models import RunConfig
from envsdk.contracts.chat import digests
from envsdk.contracts.failures import ConfigurationError
from envsdk.explorers.membership import Membership, meaning_of, open_buffer, terms_of
from envsdk.explorers.start import run
from envsdk.explorers.weights import VersionReader
from envsdk.weights.versions import write_version
from tests.tiny_policies import write_tiny_policy

RULES = """
mode: explore
seed: 1
async_generation_ratio: 1
rollout_batch_size: 2
num_return_sequences_in_group: 4
prompt_length: 64
response_length: 16
max_steps: 2
rewards: {sums: {worker_cls: math, world_size: 2}}
actor_train: {data_args: {file_name: FILE}}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "a"
    folder.mkdir()
    return write_tiny_policy(folder, ["0 1 2 3 4 5 6 7 8 9 + - =", "What is"], hidden_size=32, num_heads=4)


@pytest.fixture
def rotated(tmp_path: Path, model: Path) -> Path:
    """The same model under a tokenizer that gives each digit the id of the next."""
    other = tmp_path / "rotated"
    shutil.copytree(model, other)
    content = json.loads((other / "tokenizer.json").read_text())
    ids = content["model"]["vocab"]
    digits = [str(digit) for digit in range(10) if str(digit) in ids]
    assert len(digits) > 5
    ids |= dict(zip(digits, [ids[digit] for digit in [*digits[1:], digits[0]]], strict=True))
    (other / "tokenizer.json").write_text(json.dumps(content))
    return other


def rows(path: Path, *, first: int = 0, count: int = 40, truth: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        {"prompt": f"What is {n} + 1?", "ground_truth": str(n + 1 + truth), "tag": "sums"}
        for n in range(first, first + count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def job(folder: Path, file: Path, *overrides: str) -> RunConfig:
    made = folder / f"{len(list(folder.glob('*.yaml')))}.yaml"
    made.write_text(RULES.replace("FILE", str(file)))
    return load_config(str(made), [f"output_dir={folder}/runs", "exp_name=job", *overrides]).config


def keys(config: RunConfig) -> dict[str, str]:
    return dict(meaning_of(config, None, tags=["sums"]).tags["sums"])


def test_a_tag_means_the_same_on_machines_with_other_paths_workers_and_deadlines(tmp_path: Path) -> None:
    first, second = rows(tmp_path / "a" / "rows.jsonl"), rows(tmp_path / "b" / "elsewhere.jsonl")
    here = job(tmp_path, first)
    there = job(
        tmp_path,
        second,
        "rewards.sums.world_size=7",
        "custom_envs.sums.step_timeout_s=9",
        "actor_infer.num_engines=2",
    )
    assert keys(here) == keys(there)


def test_rows_are_compared_by_what_is_asked_and_not_by_how_files_hold_them(tmp_path: Path) -> None:
    whole = job(tmp_path, rows(tmp_path / "whole.jsonl"))
    rows(tmp_path / "split" / "1.jsonl", count=13)
    rows(tmp_path / "split" / "2.jsonl", first=13, count=27)
    other = tmp_path / "more.jsonl"
    other.write_text('{"prompt": "p", "tag": "another"}\n' + (tmp_path / "whole.jsonl").read_text())
    assert keys(job(tmp_path, tmp_path / "split"))["rows"] == keys(whole)["rows"]
    assert keys(job(tmp_path, other, "rewards.sums.tag_included=[sums]"))["rows"] == keys(whole)["rows"]
    for changed in (rows(tmp_path / "c.jsonl", truth=1), rows(tmp_path / "d.jsonl", first=1)):
        assert keys(job(tmp_path, changed))["rows"] != keys(whole)["rows"]


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("rewards.sums.worker_cls=exact", "env_config.reward.worker_cls"),
        ("custom_envs.sums.agent_system_template=Think.", "agent_system_template"),
        ("actor_infer.generating_args.temperature=0.5", "generating_args.temperature"),
        ("custom_envs.sums.max_tokens_per_step=5", "max_tokens_per_step"),
        ("sequence_length=99", "sequence_length"),
    ],
)
def test_what_decides_an_episode_is_compared_key_by_key(tmp_path: Path, override: str, key: str) -> None:
    file = rows(tmp_path / "rows.jsonl")
    ours, theirs = keys(job(tmp_path, file, override)), keys(job(tmp_path, file))
    assert {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)} == {key}


def test_files_of_an_environment_are_compared_by_what_lies_there(tmp_path: Path) -> None:
    config = job(tmp_path, rows(tmp_path / "rows.jsonl"))

    def found(place: Path) -> str:
        env = CustomEnv(env_type="envsdk/FrozenLake-v1", env_config={"data": str(place)})
        played = config.model_copy(update={"custom_envs": {"lake": env}})
        return meaning_of(played, None, tags=["lake"]).tags["lake"]["env_config.data"]

    for name, content in (("a", "1"), ("b", "1"), ("c", "12")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "goals.json").write_text(content)
    for inside in (".", "goals.json"):
        places = [tmp_path / name / inside for name in "abc"]
        assert found(places[0]) == found(places[1]) != found(places[2])


def test_a_tokenizer_is_compared_by_what_it_does(model: Path, rotated: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "same")
    content = json.loads((model / "tokenizer.json").read_text())
    content |= {"truncation": None, "padding": {"length": 3}, "version": "2.0"}
    (tmp_path / "same" / "tokenizer.json").write_text(json.dumps(content, indent=1))
    assert digests(tmp_path / "same") == digests(model)
    different = [part for part, digest in digests(rotated).items() if digest != digests(model)[part]]
    assert different == ["tokenizer"]


@pytest.fixture
def trained(tmp_path: Path, model: Path) -> SqlBuffer:
    """A job whose trainer lives and has published weights."""
    config = job(tmp_path, rows(tmp_path / "rows.jsonl"), f"pretrain={model}", "mode=train")
    buffer = open_buffer(config)
    buffer.create(config.exp_name, terms_of(config))
    trainer = buffer.join(Role.TRAINER, "trainer", meaning_of(config, model, tags=["sums"]))
    buffer.trainer.begin(trainer, 0)
    buffer.trainer.publish(trainer, 0, 0, {})
    return buffer


def started(tmp_path: Path, model: Path, *overrides: str, file: str = "rows.jsonl") -> Callable[[], None]:
    job(tmp_path, tmp_path / file)
    made = sorted(tmp_path.glob("*.yaml"))[-1]
    keys = [f"output_dir={tmp_path}/runs", "exp_name=job", f"pretrain={model}", *overrides]
    loaded = load_config(str(made), keys)
    return lambda: run(loaded)


def test_a_program_with_another_tokenizer_is_refused_before_anything_is_started(
    tmp_path: Path, trained: SqlBuffer, rotated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envsdk.explorers.start.model_of_job", pytest.fail)
    for mode in ("mode=explore", "mode=bench", "mode=serve"):
        held_out = f"validation.data_args.file_name={tmp_path / 'rows.jsonl'}"
        with pytest.raises(ConfigurationError, match=rf"the tokenizer in {rotated} is not the job's"):
            started(tmp_path, rotated, mode, held_out)()


def test_other_rows_or_another_reward_are_refused_by_name_unless_the_explorer_may_differ(
    tmp_path: Path, trained: SqlBuffer, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows(tmp_path / "others.jsonl", truth=1)
    with pytest.raises(ConfigurationError, match=r"tag sums: rows is .* here and .* in the job"):
        started(tmp_path, model, file="others.jsonl")()
    reward = "rewards.sums.worker_cls=exact"
    with pytest.raises(ConfigurationError, match=r"reward.worker_cls is exact here and math in"):
        started(tmp_path, model, reward)()

    def stop(_: object) -> Path:
        raise InterruptedError

    monkeypatch.setattr("envsdk.explorers.start.model_of_job", stop)
    for overrides in ((), (reward, "explorer.may_differ=[sums]")):
        with pytest.raises(InterruptedError):
            started(tmp_path, model, *overrides)()


async def test_an_explorer_brings_a_tag_of_its_own(tmp_path: Path, trained: SqlBuffer, model: Path) -> None:
    own = RULES.replace("{sums: {worker_cls: math, world_size: 2}}", "{mine: {worker_cls: exact}}")
    (tmp_path / "own.yaml").write_text(own.replace("FILE", str(rows(tmp_path / "own.jsonl", first=100))))
    keys = [f"output_dir={tmp_path}/runs", "exp_name=job", f"pretrain={model}"]
    config = load_config(str(tmp_path / "own.yaml"), keys).config
    membership = Membership(config, Role.EXPLORER, "second", say=print)
    await membership.join()
    claimed = trained.explorer.claim(membership.me, ["mine"], version=0, token="1")
    assert claimed[0].task.tag == "mine"
    await membership.leave()


def test_what_tags_mean_may_change_while_no_other_program_lives() -> None:
    before = Meaning(tokens={"tokenizer": "1"}, tags={"a": {"size": "3"}, "b": {"size": "3"}})
    written = before.joined({}, is_alone=True, has_begun=False).written
    now = Meaning(tokens={"tokenizer": "1"}, tags={"a": {"size": "4"}})
    with pytest.raises(ConfigurationError, match="tag a: size is 4 here and 3 in the job"):
        now.joined(written, is_alone=False, has_begun=True)
    alone = now.joined(written, is_alone=True, has_begun=True)
    assert alone.notes == ["other settings than before: tag a: size is 4 here and 3 in the job"]
    assert alone.written["a"] == {"size": "4"}
    assert alone.written["b"] == {"size": "3"}
    other = Meaning(tokens={"tokenizer": "2"})
    with pytest.raises(ConfigurationError, match="the tokenizer in"):
        other.joined(written, is_alone=True, has_begun=True)
    assert other.joined(written, is_alone=True, has_begun=False).written[""] == {"tokenizer": "2"}


def test_a_job_of_an_earlier_envsdk_is_continued() -> None:
    ours = Meaning(tokens={"tokenizer": "1"}, tags={"a": {"size": "3"}})
    found = ours.joined({"a": "0123456789abcdef"}, is_alone=False, has_begun=True)
    assert found.written == {"": {"tokenizer": "1"}, "a": {"size": "3"}}


async def test_weights_published_with_another_tokenizer_are_not_loaded(
    tmp_path: Path, model: Path, rotated: Path
) -> None:
    config = job(tmp_path, rows(tmp_path / "rows.jsonl"), f"pretrain={model}")

    def fill(folder: Path) -> None:
        shutil.copytree(rotated, folder, dirs_exist_ok=True)

    folder = write_version(config.run_folder / "weights", 0, 0, fill)
    location = {"method": "checkpoint", "folder": str(folder)}
    published = PublishedVersion(version=0, step=0, location=location, published_at=0.0)
    reader = VersionReader(config, config.run_folder / "explorers" / "a", model, say=print)
    with pytest.raises(ConfigurationError, match="the tokenizer in"):
        await reader.fetch(published)
    same = VersionReader(config, config.run_folder / "explorers" / "b", rotated, say=print)
    assert (await same.fetch(published)).version == 0
