"""`--preset tiny` needs no data, no judge and no GPU, keeps what is there, and says what it replaces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from envsdk.config import explain, load_config
from envsdk.config.loading import LoadedConfig
from envsdk.config.rlvr import source_of
from envsdk.rewards.prompt_data.opening import open_prompts

DOMAINS: dict[str, Any] = {
    "math_rule": {"worker_cls": "math", "tag_included": ["deepmath"], "world_size": 8},
    "code_sandbox": {"worker_cls": "code", "tag_included": ["KodCode"]},
    "ifeval": {"worker_cls": "ifeval"},
    "crossthinkqa": {"worker_cls": "sum", "parts": {"answer": {"worker_cls": "choice"}}},
    "llm_judge": {"worker_cls": "judge", "model": "judge-7b"},
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVSDK_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def tiny(*overrides: str, **keys: Any) -> LoadedConfig:
    Path("run.yaml").write_text(
        yaml.safe_dump(
            {
                "rollout_batch_size": 64,
                "num_return_sequences_in_group": 8,
                "prompt_length": 2048,
                "response_length": 4096,
                "max_steps": 100,
                "pretrain": "Qwen/Qwen2.5-7B",
                "rewards": DOMAINS,
                "actor_train": {"data_args": {"file_name": ["data/code.jsonl", "data/math.jsonl"]}},
                "validation": {"data_args": {"file_name": "data/held_out.jsonl"}},
                **keys,
            },
            sort_keys=False,
        )
    )
    return load_config("run.yaml", list(overrides), preset="tiny")


def rows(loaded: LoadedConfig, tag: str) -> list[dict[str, Any]]:
    prompts = open_prompts(source_of(loaded.config.custom_envs[tag].env_config))
    return [dict(prompts[index].fields) for index in range(len(prompts))]


@pytest.mark.parametrize(
    ("domain", "tag"),
    [
        ("math_rule", "sums"),
        ("code_sandbox", "programs"),
        ("ifeval", "instructions"),
        ("crossthinkqa", "comparisons"),
        ("llm_judge", "questions"),
    ],
)
def test_a_domain_without_files_gets_generated_rows_that_its_reward_can_score(domain: str, tag: str) -> None:
    loaded = tiny()
    for split in (domain, f"{domain}_val"):
        assert {row["tag"] for row in rows(loaded, split)} == {tag}
    assert loaded.config.train_env_manager.tags == [*DOMAINS]


def test_what_is_replaced_is_said_when_the_run_starts_and_by_explain() -> None:
    loaded = tiny()
    said = " ".join(loaded.preset_notes)
    assert "data/code.jsonl, data/math.jsonl are not on this machine" in said
    assert "data/held_out.jsonl is not on this machine" in said
    assert "rewards.llm_judge.judge_api_url=" in said
    assert "data/code.jsonl, data/math.jsonl are not on this machine" in " ".join(explain(loaded).split())
    assert not load_config("agentic_async.yaml").preset_notes


def test_files_that_are_here_are_asked_and_domains_without_rows_are_left_out_and_named() -> None:
    mine = [{"prompt": f"{n}+1=", "ground_truth": str(n + 1), "tag": "deepmath"} for n in range(4)]
    mine += [{"prompt": "print", "ground_truth": "x", "tag": "KodCode", "test_cases": "[]"}]
    Path("mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in mine))
    loaded = tiny(actor_train={"data_args": {"file_name": "mine.jsonl"}})
    assert loaded.config.train_env_manager.tags == ["math_rule", "code_sandbox"]
    assert [row["prompt"] for row in rows(loaded, "math_rule")] == ["0+1=", "1+1=", "2+1=", "3+1="]
    assert "left out, as no row is theirs: ifeval, crossthinkqa, llm_judge" in loaded.preset_notes


def test_generated_rows_that_the_user_names_leave_out_what_they_do_not_hold() -> None:
    loaded = tiny("actor_train.data_args.file_name=generated:arithmetic_train")
    assert loaded.config.actor_train.data_args is not None
    assert loaded.config.actor_train.data_args.file_name == ["generated:arithmetic_train"]
    assert "code_sandbox" not in loaded.config.train_env_manager.tags


def test_a_judge_with_an_address_stays() -> None:
    url = "http://127.0.0.1:9/v1"
    with_address = {**DOMAINS, "llm_judge": {**DOMAINS["llm_judge"], "base_url": url}}
    for loaded in (tiny(f"rewards.llm_judge.base_url={url}"), tiny(rewards=with_address)):
        reward = loaded.config.custom_envs["llm_judge"].env_config["reward"]
        assert (reward["worker_cls"], reward["base_url"]) == ("judge", url)


def test_two_domains_of_one_reward_both_have_rows() -> None:
    loaded = tiny(rewards={"math_rule": {"worker_cls": "math"}, "more_math": {"worker_cls": "math"}})
    assert loaded.config.train_env_manager.tags == ["math_rule", "more_math"]
    assert rows(loaded, "math_rule")


def test_a_data_set_of_the_hub_in_an_environment_gives_way_to_generated_rows() -> None:
    asked = {"files": ["axon-rl/DAPO"], "reward": "math", "columns": {"prompt": "q"}}
    env = {"env_type": "envsdk/Prompts-v1", "max_steps": 1, "env_config": asked}
    managers = {"num_env_groups": 2, "group_size": 2, "tags": ["dapo"]}
    Path("gem.yaml").write_text(
        yaml.safe_dump(
            {
                "rollout_batch_size": 4,
                "val_batch_size": 4,
                "sequence_length": 128,
                "max_steps": 1,
                "custom_envs": {"dapo": env},
                "train_env_manager": managers,
                "val_env_manager": managers,
            }
        )
    )
    loaded = load_config("gem.yaml", preset="tiny")
    assert {row["tag"] for row in rows(loaded, "dapo")} == {"sums"}
    assert "dapo: axon-rl/DAPO is not on this machine, so prompts are generated: sums" in loaded.preset_notes


def test_few_processes_score_and_few_held_out_prompts_are_asked() -> None:
    config = tiny().config
    assert config.rewards["math_rule"].model_dump()["world_size"] == 2
    assert config.val_batch_size <= 32


def test_replies_of_evaluations_are_short_as_well_unless_the_user_sets_their_length() -> None:
    validation = {"data_args": {"file_name": "held_out.jsonl"}, "generating_args": {"max_new_tokens": 4096}}
    assert tiny(validation=validation).config.val_generating_args.max_new_tokens == 32
    own = "validation.generating_args.max_new_tokens=64"
    assert tiny(own, validation=validation).config.val_generating_args.max_new_tokens == 64
    Path("agents.yaml").write_text(
        "extends: agentic_async.yaml\nval_env_manager: {generating_args: {max_new_tokens: 4096}}\n"
    )
    assert load_config("agents.yaml", preset="tiny").config.val_generating_args.max_new_tokens == 32
