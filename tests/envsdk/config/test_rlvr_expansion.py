"""What follows from the keys of prompts with verifiable rewards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from envsdk.config.rlvr import PROMPTS_ENV, VAL_SUFFIX, expand

ROWS = {"train.jsonl": 900, "val.jsonl": 40}


def count_rows(env_config: Any) -> int | None:
    """As many rows for every domain but `code`, which has a third in training and none held out."""
    file = next(iter(env_config["files"]), None)
    if not isinstance(file, str) or file not in ROWS:
        return None
    return ROWS[file] if "KodCode" not in env_config.get("tags", ()) else {"train.jsonl": 300}.get(file, 0)


def keys(**changes: Any) -> dict[str, Any]:
    return {
        "async_generation_ratio": 1,
        "rollout_batch_size": 16,
        "num_return_sequences_in_group": 4,
        "prompt_length": 100,
        "response_length": 50,
        "rewards": {
            "math_rule": {"worker_cls": "math", "tag_included": ["aime"], "world_size": 2},
            "code": {"worker_cls": "code", "tag_included": ["KodCode", "code"], "reward_type": "soft"},
        },
        "actor_train": {"data_args": {"file_name": "train.jsonl"}},
        "validation": {"data_args": {"file_name": ["val.jsonl"]}},
    } | changes


def test_a_domain_becomes_a_tag_that_asks_its_rows() -> None:
    found = expand(keys(), count_rows=count_rows)
    assert list(found.data["custom_envs"]) == [
        *("math_rule", "code"),
        *(f"math_rule{VAL_SUFFIX}", f"code{VAL_SUFFIX}"),
    ]
    code = found.data["custom_envs"]["code"]
    assert code["env_type"] == PROMPTS_ENV
    assert code["env_config"]["files"] == ["train.jsonl"]
    assert code["env_config"]["tags"] == ["KodCode", "code"]
    assert found.data["custom_envs"]["math_rule"]["env_config"]["except_tags"] == ["KodCode", "code"]
    assert code["env_config"]["reward"] == {"worker_cls": "code", "reward_type": "soft"}
    assert found.origins[("custom_envs", "code")] == "follows from rewards.code"


def test_a_domain_may_have_a_system_prompt_and_limits_of_its_own() -> None:
    own = {"code": {"agent_system_template": "Write Python."}, "math_rule": {"env_type": "own/Env-v1"}}
    found = expand(keys(custom_envs=own), count_rows=count_rows).data["custom_envs"]
    assert found["code"]["agent_system_template"] == "Write Python."
    assert (found["code"]["env_type"], found["code"]["env_config"]["files"]) == (PROMPTS_ENV, ["train.jsonl"])
    assert found["math_rule"] == {"env_type": "own/Env-v1"}


def test_prompts_are_measured_with_the_models_tokens(tmp_path: Path) -> None:
    data = expand(keys(pretrain=str(tmp_path)), count_rows=count_rows).data
    for env in data["custom_envs"].values():
        assert env["env_config"]["longest_prompt"] == 100
        assert env["env_config"]["tokenizer"] == str(tmp_path)


def test_prompts_and_responses_decide_how_many_play() -> None:
    data = expand(keys(), count_rows=count_rows).data
    assert data["train_env_manager"] == {
        "tags": ["math_rule", "code"],
        "group_size": 4,
        "num_env_groups": 32,
        "num_groups_partition": [24, 8],
        "max_env_num_per_worker": 128,
    }
    assert data["sequence_length"] == 150
    assert data["actor_infer"]["generating_args"]["max_new_tokens"] == 50
    assert data["val_batch_size"] == 40
    assert data["val_env_manager"]["tags"] == [f"math_rule{VAL_SUFFIX}"]


def test_the_mix_is_that_of_domain_interleave_probs() -> None:
    args = {"file_name": "train.jsonl", "domain_interleave_probs": {"math_rule": 0.25, "code": 0.75}}
    data = expand(keys(actor_train={"data_args": args}), count_rows=count_rows).data
    assert data["train_env_manager"]["num_groups_partition"] == [8, 24]
    args = {"file_name": "train.jsonl", "domain_interleave_probs": {"math_rule": 1.0}}
    data = expand(keys(actor_train={"data_args": args}), count_rows=count_rows).data
    assert data["train_env_manager"]["tags"] == ["math_rule"]


def test_additional_prompts_are_spare_groups() -> None:
    more = {"use_additional_prompts": True, "max_additional_running_prompts": 5}
    data = expand(keys(**more), count_rows=count_rows).data
    assert data["train_env_manager"]["num_groups_redundancy"] == 5
    assert data["train_env_manager"]["num_env_groups"] == 37
    data = expand(keys(max_additional_running_prompts=5), count_rows=count_rows).data
    assert "num_groups_redundancy" not in data["train_env_manager"]


def test_files_with_prompts_and_no_rewards_are_mathematics() -> None:
    without = keys()
    del without["rewards"]
    data = expand(without, count_rows=count_rows).data
    assert data["rewards"] == {"math_rule": {"worker_cls": "math"}}
    assert "tags" not in data["custom_envs"]["math_rule"]["env_config"]


def test_a_query_filter_becomes_a_group_filter_of_its_domain() -> None:
    filtered = keys(group_filters=["zero_variance"])
    filtered["rewards"]["code"]["query_filter_config"] = {
        "type": "mean_filter",
        "filter_args": {"threshold_up": 0.9},
    }
    assert expand(filtered, count_rows=count_rows).data["group_filters"] == [
        "zero_variance",
        {"name": "mean_filter", "tags": ["code"], "threshold_up": 0.9},
    ]


def test_files_that_are_not_here_leave_one_held_out_prompt_for_each_domain() -> None:
    data = expand(keys(validation={"data_args": {"file_name": "absent.jsonl"}}), count_rows=count_rows).data
    assert data["val_batch_size"] == 2


def test_domains_beside_other_tags_share_as_many_groups_as_a_batch_needs() -> None:
    found = expand(keys(train_env_manager={"tags": ["Lake", "math_rule"]}), count_rows=count_rows)
    assert found.data["train_env_manager"] == {
        "tags": ["Lake", "math_rule"],
        "group_size": 4,
        "num_env_groups": 32,
    }


def test_held_out_files_without_a_row_of_any_domain_keep_their_tags() -> None:
    data = expand(keys(), count_rows=lambda env_config: 0).data
    assert data["val_env_manager"]["tags"] == [f"math_rule{VAL_SUFFIX}", f"code{VAL_SUFFIX}"]


def test_nothing_that_is_written_is_replaced() -> None:
    written: dict[str, Any] = {
        "custom_envs": {"Lake": {"env_type": "envsdk/FrozenLake-v1"}, "code": {"env_type": "mine/Code-v1"}},
        "train_env_manager": {"tags": ["Lake", "math_rule"], "num_env_groups": 8},
        "sequence_length": 4096,
        "val_batch_size": 8,
    }
    found = expand(keys(**written), count_rows=count_rows)
    assert found.data["custom_envs"]["code"] == {"env_type": "mine/Code-v1"}
    assert found.data["train_env_manager"] == {
        "tags": ["Lake", "math_rule"],
        "num_env_groups": 8,
        "group_size": 4,
    }
    assert (found.data["sequence_length"], found.data["val_batch_size"]) == (4096, 8)
    again = expand(found.data, count_rows=count_rows)
    assert (again.data, again.origins) == (found.data, {})


def test_a_file_without_these_keys_stays_as_it_is_but_for_a_missing_evaluation() -> None:
    managers = {"train_env_manager": {"tags": ["Lake"], "num_env_groups": 8}}
    complete = {**managers, "val_env_manager": {"tags": ["Lake"], "num_env_groups": 8}, "val_batch_size": 8}
    assert expand(complete, count_rows=count_rows).data == complete
    found = expand(managers, count_rows=count_rows)
    assert found.data["val_batch_size"] == 0
    assert found.data["val_env_manager"] == {"tags": ["Lake"], "num_env_groups": 1}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from([*sorted(keys()), "train_env_manager", "val_env_manager"]), json_values)
@example("async_generation_ratio", True)
@example("train_env_manager", None)
@example("async_generation_ratio", float("nan"))
def test_values_of_a_wrong_type_are_left_for_the_check_of_types(name: str, value: Any) -> None:
    data = keys(**{name: value})
    assert expand(data, count_rows=count_rows).data[name] is not None or value is None


@pytest.mark.parametrize("where", ["rewards", "actor_train", "validation"])
@given(json_values)
def test_sections_of_a_wrong_type_are_left_too(where: str, value: Any) -> None:
    data = keys()
    inner = next(iter(data[where]))
    data[where] = {**data[where], inner: value}
    expand(data, count_rows=count_rows)


def test_advantages_of_several_domains_are_whitened_domain_by_domain() -> None:
    assert expand(keys(whiten_advantages=True), count_rows=count_rows).data["whiten_over"] == "tag"
    assert "whiten_over" not in expand(keys(), count_rows=count_rows).data
    one = keys(whiten_advantages=True, rewards={"math_rule": {"worker_cls": "math"}})
    assert "whiten_over" not in expand(one, count_rows=count_rows).data
