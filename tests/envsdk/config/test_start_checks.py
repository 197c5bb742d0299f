"""What must be there when a run starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envsdk.base.store.model_files import dense_family
from envsdk.config import load_config
from envsdk.config.models import RunConfig
from envsdk.config.start_checks import check_start, prompt_notes
from envsdk.contracts.failures import ConfigurationError

FILE = """
exp_name: start
rollout_batch_size: 2
num_return_sequences_in_group: 2
prompt_length: 16
response_length: 16
max_steps: 1
rewards:
  sums: {worker_cls: exact, tag_included: [sums]}
  words: {worker_cls: exact, tag_included: [words]}
actor_train:
  data_args: {file_name: ROWS}
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVSDK_CACHE", str(tmp_path / "cache"))


def loaded(tmp_path: Path, *tags: str) -> RunConfig:
    rows = [{"prompt": f"{n}", "ground_truth": "1", "tag": tag} for n, tag in enumerate(tags)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows) + "{torn")
    file = tmp_path / "start.yaml"
    file.write_text(FILE.replace("ROWS", str(tmp_path / "rows.jsonl")))
    return load_config(file).config


@pytest.mark.parametrize("is_tiny", [True, False])
def test_routing_replay_of_a_dense_policy_is_refused_before_anything_starts(
    tmp_path: Path, is_tiny: bool
) -> None:
    replay = ["train_infer_correction.routing_replay=true", *([] if is_tiny else [f"pretrain={tmp_path}"])]
    config = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "num_experts": 0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigurationError, match=r"the policy is dense \(Qwen3\): leave this out") as caught:
        load_config("agentic_sync.yaml", replay)
    assert caught.value.exit_code == 2
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_experts": 8}))
    assert dense_family(tmp_path) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["actor_infer.strategy_args.strategy_name=vllm"], "`vllm` does not tell which experts"),
        (
            [
                "actor_infer.strategy_args.strategy_name=vllm",
                "actor_infer.strategy_args.strategy_config.enable_return_routed_experts=true",
            ],
            "",
        ),
        (["actor_infer.strategy_args.strategy_name=sglang"], "`sglang` does not tell which experts"),
        (["actor_infer.strategy_args.strategy_name=mock"], "`mock` does not tell which experts"),
        (["actor_train.strategy_args.strategy_name=megatron_train"], ""),
        ([], ""),
    ],
)
def test_who_cannot_record_or_replay_experts_is_refused_before_anything_starts(
    tmp_path: Path, changes: list[str], words: str
) -> None:
    config = {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    replay = ["train_infer_correction.routing_replay=true", f"pretrain={tmp_path}", *changes]
    with pytest.raises(ConfigurationError) as caught:
        load_config("agentic_sync.yaml", replay)
    told = str(caught.value)
    assert words in told if words else "train_infer_correction.routing_replay" not in told


@pytest.mark.parametrize("adapts", [False, True])
def test_vllm_is_refused_where_it_would_keep_old_weights(tmp_path: Path, adapts: bool) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt_oss"}))
    engine = "actor_infer.strategy_args"
    changes = [f"{engine}.strategy_name=vllm", f"{engine}.strategy_config.enable_lora={adapts}".lower()]
    with pytest.raises(ConfigurationError) as caught:
        load_config("agentic_sync.yaml", [f"pretrain={tmp_path}", *changes])
    assert ("keeps the old experts and attention sinks" in str(caught.value)) is not adapts


@pytest.mark.parametrize(
    ("pretrain", "words"),
    [
        ("runs/nowhere", "there is no run or checkpoint runs/nowhere with a model: train it first"),
        ("./nowhere", "there is no folder nowhere; give"),
        ("empty", "empty holds no config.json"),
    ],
)
def test_a_teacher_that_is_not_there_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pretrain: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    teacher = [f"teachers.larger.pretrain={pretrain}"]
    with pytest.raises(ConfigurationError, match=words) as caught:
        load_config("agentic_sync.yaml", teacher)
    assert caught.value.exit_code == 2
    assert any(
        words in note for note in load_config("agentic_sync.yaml", teacher, to_explain=True).machine_notes
    )
    trained = tmp_path / pretrain / "checkpoints" / "step_000010" / "model"
    trained.mkdir(parents=True)
    (trained / "config.json").write_text('{"model_type": "qwen3"}')
    assert load_config("agentic_sync.yaml", teacher).config.teachers["larger"].pretrain == pretrain


def test_an_opponent_that_is_not_there_is_refused_as_a_teacher_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for pretrain, words in (("runs/nowhere", "no run or checkpoint"), ("models/past", "no folder, not in")):
        plays = [f"opponents.past.pretrain={pretrain}", "custom_envs.SelfPlay.players=[policy, past]"]
        with pytest.raises(ConfigurationError, match=rf"opponents.past.pretrain .*{words}"):
            load_config("agentic_tic_tac_toe.yaml", plays)
        told = load_config("agentic_tic_tac_toe.yaml", plays, to_explain=True).machine_notes
        assert any(note.startswith("opponents.past.pretrain: ") for note in told)


def test_rows_that_are_never_asked_are_noted_once(tmp_path: Path) -> None:
    config = loaded(tmp_path, "sums", "sums", "words", "poems", "poems")
    check_start(config)
    unusable, unclaimed = prompt_notes(config)
    assert unusable.startswith("1 of 6 rows of ")
    assert f"{tmp_path / 'rows.jsonl'}:6 is no JSON" in unusable
    assert unclaimed.endswith("belong to no domain that is asked: poems (2)")


@pytest.mark.parametrize("num_scored", [0, 5])
def test_rows_that_no_response_can_be_scored_for_are_a_problem_or_noted(
    tmp_path: Path, num_scored: int
) -> None:
    config = loaded(tmp_path, *["sums"] * 10, "words")
    rows = [
        {"prompt": "1", "tag": "sums", "ground_truth": "1" if n < num_scored else None} for n in range(10)
    ]
    words = {"prompt": "1", "tag": "words", "ground_truth": "1"}
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in [*rows, words]))
    if num_scored:
        check_start(config)
        (note,) = prompt_notes(config)
        assert note.startswith("5 of 10 rows of ")
    else:
        with pytest.raises(ConfigurationError, match=r"no row of .*rows.jsonl can be scored; .*:1: it"):
            check_start(config)


def test_a_domain_without_a_row_is_a_problem_of_the_start(tmp_path: Path) -> None:
    config = loaded(tmp_path, "sums")
    with pytest.raises(ConfigurationError, match=r"words: no row of .* has the tag words; tags there: sums"):
        check_start(config)


def test_files_that_are_not_here_are_explained_and_not_started(tmp_path: Path) -> None:
    file = tmp_path / "start.yaml"
    file.write_text(FILE.replace("ROWS", "absent.jsonl"))
    config = load_config(file).config
    with pytest.raises(ConfigurationError, match=r"there is no file of prompts absent.jsonl"):
        check_start(config)


def test_held_out_rows_of_no_domain_are_a_problem_and_not_a_run_without_evaluations(tmp_path: Path) -> None:
    (tmp_path / "val.jsonl").write_text('{"prompt": "1", "ground_truth": "1", "tag": "poems"}\n')
    loaded(tmp_path, "sums", "words")
    file = tmp_path / "start.yaml"
    text = file.read_text() + f"validation:\n  data_args: {{file_name: {tmp_path / 'val.jsonl'}}}\n"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=r"validation.data_args.file_name: sums_val: .*poems"):
        check_start(load_config(file).config)


def test_sglang_that_is_not_here_is_named_with_the_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def notes(*overrides: str) -> str:
        chosen = ["actor_infer.strategy_args.strategy_name=sglang", *overrides]
        return " ".join(load_config("agentic_sync.yaml", chosen, to_explain=True).machine_notes)

    monkeypatch.setattr("envsdk.base.settings.extras._is_installed", lambda module: module != "ray")
    monkeypatch.setattr("envsdk.engines.sglang.settings.find_spec", lambda module: None)
    assert "needs ray, not installed here" in notes()
    assert "sglang is not installed here: install it into an environment of its own" in notes()
    elsewhere = "actor_infer.strategy_args.strategy_config.python=/opt/sglang/bin/python"
    assert "sglang is not installed" not in notes(elsewhere)
