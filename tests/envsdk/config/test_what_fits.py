"""What phases need of devices that roles share, and the refusal of what cannot fit."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.base.store.model_files import model_sizes
from envsdk.config import RunConfig, explain, load_config
from envsdk.config.device_memory import RoleMemory, device_needs, gib, role_memory
from envsdk.config.explanation import derived
from envsdk.contracts.failures import ConfigurationError
from envsdk.engines.vllm.settings import VLLMSettings
from envsdk.trainers.training_args import TorchStrategyConfig

GIB = 2**30
TRAIN, INFER = "actor_train.strategy_args", "actor_infer.strategy_args"
ONE_CARD = (
    "async_generation_ratio=0",
    f"{TRAIN}.strategy_name=fsdp2_train",
    "reference.strategy_args.strategy_name=fsdp2_train",
    f"{INFER}.strategy_name=vllm",
    "actor_train.device_mapping=[0]",
    "actor_infer.device_mapping=[0]",
)


GUIDE = Path(__file__).parents[3] / "docs" / "small-model.md"
SHAPES = {  # hidden size, intermediate size, layers, heads, key-value heads, of each model's config.json
    "Qwen2.5-0.5B": (896, 4864, 24, 14, 2),
    "Qwen3-0.6B": (1024, 3072, 28, 16, 8),
    "Qwen2.5-1.5B": (1536, 8960, 28, 12, 2),
    "Qwen3-1.7B": (2048, 6144, 28, 16, 8),
    "Qwen2.5-3B": (2048, 11008, 36, 16, 2),
    "Qwen3-4B": (2560, 9728, 36, 32, 8),
    "Qwen2.5-7B": (3584, 18944, 28, 28, 4),
    "Qwen3-8B": (4096, 12288, 36, 32, 8),
}


def write_config(folder: Path, name: str) -> Path:
    """The config.json of a model of Qwen's."""
    hidden, intermediate, layers, heads, key_value_heads = SHAPES[name]
    family, is_large = name.partition("-")[0].lower(), name in ("Qwen2.5-7B", "Qwen3-8B")
    config: dict[str, object] = {
        "architectures": ["Qwen3ForCausalLM" if family == "qwen3" else "Qwen2ForCausalLM"],
        "model_type": "qwen3" if family == "qwen3" else "qwen2",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_value_heads,
        "tie_word_embeddings": not is_large,
        "vocab_size": 152064 if name == "Qwen2.5-7B" else 151936,
        "torch_dtype": "bfloat16",
    }
    if family == "qwen3":
        config["head_dim"] = 128
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen2.5-1.5B as its config.json alone: 1.54 billion parameters."""
    return write_config(tmp_path_factory.mktemp("qwen"), "Qwen2.5-1.5B")


def config(folder: Path, *overrides: str) -> RunConfig:
    return load_config(
        "agentic_sync.yaml", [f"pretrain={folder}", *ONE_CARD, *overrides], to_explain=True
    ).config


@cache
def cached_config(folder: Path, offload: str) -> RunConfig:
    return config(folder, f"actor_train.offload={offload}", "actor_infer.offload=all")


def refusal(folder: Path, *overrides: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        config(folder, *overrides)
    return " ".join(str(refused.value).split())


def needs_of(found: RunConfig, **totals: float) -> dict[str, dict[str, dict[str, float]]]:
    """By device, phase and role, of roles that take so much, and a tenth of it for their weights."""
    memory = {
        name: RoleMemory(parts={"all": total}, weights=total / 10, is_on_cpu=False)
        for name, total in totals.items()
    }
    return {
        device: {str(phase): dict(taken) for phase, taken in needs.items()}
        for device, needs in device_needs(found, memory).items()
    }


def test_each_phase_of_roles_in_turns_needs_what_its_owner_takes(qwen: Path) -> None:
    needs = needs_of(config(qwen, "actor_train.offload=optimizer"), actor_infer=50.0, actor_train=30.0)
    assert needs == {
        "device 0": {
            "publish": {"actor_infer": 5.0, "actor_train": 3.0},
            "validate": {"actor_infer": 50.0, "actor_train": 3.0},
            "generate": {"actor_infer": 50.0, "actor_train": 3.0},
            "train": {"actor_infer": 0.0, "actor_train": 30.0},
        }
    }


def test_a_reference_model_has_a_turn_in_the_phase_that_scores(qwen: Path) -> None:
    found = config(qwen, "init_kl_coef=0.1", "reference.device_mapping=[0]")
    needs = needs_of(found, actor_infer=50.0, actor_train=30.0, reference=20.0)
    assert needs["device 0"]["score"] == {"actor_infer": 0.0, "actor_train": 3.0, "reference": 0.0}


def test_devices_with_other_roles_are_listed_apart(qwen: Path) -> None:
    found = config(qwen, "actor_train.device_mapping=[0,1,2,3]", "actor_infer.device_mapping=[3]")
    needs = needs_of(found, actor_infer=50.0, actor_train=30.0)
    assert needs.keys() == {"devices 0 to 2", "device 3"}
    assert needs["devices 0 to 2"]["generate"] == {"actor_train": 0.0}


def test_a_trainer_and_an_engine_on_one_card_by_name_are_side_by_side(qwen: Path) -> None:
    found = config(
        qwen,
        f"{TRAIN}.strategy_name=torch",
        f"{TRAIN}.strategy_config.device=cuda:1",
        "actor_train.device_mapping=null",
        "actor_infer.device_mapping=[1]",
    )
    needs = needs_of(found, actor_infer=50.0, actor_train=30.0)
    assert {phase: sum(taken.values()) for phase, taken in needs["device 1"].items()} == dict.fromkeys(
        ("publish", "validate", "generate", "train"), 80.0
    )


@given(
    engine=st.floats(1, 100), trainer=st.floats(1, 100), offload=st.sampled_from(["none", "optimizer", "all"])
)
def test_turns_never_need_more_than_both_side_by_side(
    engine: float, trainer: float, offload: str, qwen: Path
) -> None:
    found = cached_config(qwen, offload)
    needs = needs_of(found, actor_infer=engine, actor_train=trainer)["device 0"]
    sums = {phase: sum(taken.values()) for phase, taken in needs.items()}
    assert max(sums.values()) <= (engine + trainer) * (1 + 1e-9)
    assert sums["generate"] >= engine
    assert sums["train"] == pytest.approx(trainer)


def test_what_fits_in_turns_is_refused_side_by_side(qwen: Path) -> None:
    card = ("device_memory_gib=40", f"{INFER}.strategy_config.gpu_memory_utilization=0.9")
    needs = next(iter(device_needs(found := config(qwen, *card), role_memory(found, 40 * GIB)).values()))
    assert all(sum(taken.values()) <= 40 * GIB for taken in needs.values())
    said = refusal(qwen, *card, "actor_train.offload=none", "actor_infer.offload=none")
    assert "device_memory_gib" in said
    assert "40.0 GiB are not enough for device 0" in said
    assert "let actor_infer and actor_train take turns (`offload: all`" in said


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([], "train an adapter alone (`strategy_config.lora`)"),
        (["sequence_length=16384"], "set `gradient_checkpointing: true`"),
        (
            [
                f"{TRAIN}.strategy_config.lora={{rank: 16}}",
                "actor_train.training_args.max_tokens_per_microbatch=32768",
            ],
            "set `gradient_checkpointing: true`",
        ),
    ],
)
def test_a_refusal_names_what_each_phase_needs_and_what_to_set(
    overrides: list[str], said: str, qwen: Path
) -> None:
    text = refusal(qwen, "device_memory_gib=24", *overrides)
    assert re.search("publish [0-9.]+, validate [0-9.]+, generate [0-9.]+, train [0-9.]+", text)
    assert "Most in train is" in text
    assert said in text


def test_an_engines_share_must_hold_its_weights_and_one_sequence(qwen: Path) -> None:
    share = f"{INFER}.strategy_config.gpu_memory_utilization=0.1"
    said = refusal(qwen, "device_memory_gib=24", share)
    assert f"{INFER}.strategy_config" in said
    assert "gpu_memory_utilization 0.1 of 24.0 GiB is 2.4" in said


def test_training_is_refused_as_explaining_is_and_playing_is_not(qwen: Path) -> None:
    arguments = [f"pretrain={qwen}", *ONE_CARD, "device_memory_gib=8"]
    for to_explain in (True, False):
        with pytest.raises(ConfigurationError, match="are not enough for device 0"):
            load_config("agentic_sync.yaml", arguments, to_explain=to_explain)
    load_config("agentic_sync.yaml", arguments, for_training=False, to_explain=True)


def test_the_card_of_this_machine_is_judged_unless_a_size_is_stated(
    qwen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("device_memory", "machine_checks"):
        monkeypatch.setattr(f"envsdk.config.{module}.card_bytes", lambda config: 8.0 * GIB)

    def notes(*overrides: str) -> str:
        arguments = [f"pretrain={qwen}", *ONE_CARD, *overrides]
        return " ".join(load_config("agentic_sync.yaml", arguments, to_explain=True).machine_notes)

    assert "8.0 GiB are not enough for device 0" in notes()
    assert "not enough" not in notes("device_memory_gib=80")


def test_a_process_that_rests_keeps_cudas_context_and_one_that_trains_works_besides(qwen: Path) -> None:
    memory = role_memory(found := config(qwen, "device_memory_gib=80"), 80 * GIB)
    assert memory["actor_train"].parts["CUDA"] == 1.5 * GIB
    assert memory["actor_infer"].parts["CUDA"] == 0.5 * GIB
    needs = device_needs(found, memory)["device 0"]
    assert [needs[phase]["actor_train"] for phase in needs] == [*[0.5 * GIB] * 3, memory["actor_train"].total]
    on_cpu = config(qwen, f"{TRAIN}.strategy_name=torch", "actor_train.device_mapping=null")
    assert "CUDA" not in role_memory(on_cpu)["actor_train"].parts


def test_teachers_and_opponents_are_counted_where_they_stay(qwen: Path) -> None:
    teacher = ["teachers.large.device_mapping=[0]", f"teachers.large.pretrain={qwen}"]
    teacher += ["teachers.large.strategy_args.strategy_name=fsdp2_train"]
    opponent = ["opponents.past.device_mapping=[0]", "custom_envs.SelfPlay.players=[policy, past]"]
    arguments = [f"pretrain={qwen}", *ONE_CARD, "device_memory_gib=80", *teacher, *opponent]
    arguments += [f"{INFER}.strategy_config.gpu_memory_utilization=0.4"]
    found = load_config("agentic_tic_tac_toe.yaml", arguments, to_explain=True).config
    memory = role_memory(found, 80 * GIB)
    weights = memory["teachers.large"].parts["weights"]
    assert weights == pytest.approx(4 * 1_543_714_304, rel=0.01)
    assert memory["opponents.past"].total == 0.4 * 80 * GIB + 0.5 * GIB
    needs = device_needs(found, memory)["device 0"]
    assert all(taken["teachers.large"] == memory["teachers.large"].total for taken in needs.values())
    told = dict(derived(found))["devices shared"]
    assert "opponents.past takes no turns: it stays beside actor_infer, actor_train" in told
    with pytest.raises(ConfigurationError, match=r"opponents.past \d+.* GiB"):
        load_config("agentic_tic_tac_toe.yaml", [*arguments, "device_memory_gib=40"], to_explain=True)


def test_a_teacher_that_is_not_here_leaves_no_estimate(qwen: Path) -> None:
    with pytest.raises(LookupError, match=r"teachers.large: there is no folder gone"):
        role_memory(config(qwen, "teachers.large.pretrain=./gone"))


def test_explain_says_what_phases_need_of_a_stated_device(qwen: Path) -> None:
    rows = dict(derived(config(qwen, "device_memory_gib=80")))
    assert rows["memory of device 0"].startswith("about, in GiB, of 80.0: publish 3.9, validate 74.6, ")
    assert "share for keys and values (gpu_memory_utilization 0.92) 70.7" in rows["memory of actor_infer"]


def test_explain_says_that_the_folder_is_absent(tmp_path: Path) -> None:
    text = explain(load_config("agentic_sync.yaml", [f"pretrain={tmp_path / 'gone'}"], to_explain=True))
    assert f"not estimated: there is no folder {tmp_path / 'gone'}; download" in text
    assert "Error" not in text


@pytest.mark.parametrize("name", SHAPES)
def test_the_guide_for_one_gpu_has_the_estimates_of(name: str, tmp_path: Path) -> None:
    sizes = model_sizes(write_config(tmp_path, name))
    plain = {"device": "cuda:0", "dtype": "bfloat16", "gradient_checkpointing": True}
    found = [name]
    for more in ({}, {"lora": {"rank": 16}}):
        settings = TorchStrategyConfig.model_validate(plain | more)
        memory = settings.training_memory(sizes, num_ranks=1, num_tokens=4096, sequence_length=4096)
        found.append(gib(sum(memory.values())))
    weights, keys = VLLMSettings().sampling_memory(sizes, num_replies=1, num_tokens=4096).values()
    replies = (int((0.85 * size * GIB - weights) / keys) for size in (24, 80))
    found += [gib(weights), ", ".join(f"{number:,}" for number in replies)]
    assert "| " + " | ".join(found) + " |" in GUIDE.read_text()


def test_an_estimate_by_hand_of_qwen2_5_1_5b(qwen: Path) -> None:
    # A layer: queries and output, keys and values, three biases, three matrices of 8960, two norms.
    layer = 2 * 1536**2 + 2 * 1536 * 256 + (1536 + 2 * 256) + 3 * 1536 * 8960 + 2 * 1536
    number = 28 * layer + 1536 + 151_936 * 1536
    assert model_sizes(qwen).num_parameters == number == 1_543_714_304
    one_card = {"device": "cuda:0", "dtype": "bfloat16", "gradient_checkpointing": True}
    memory = TorchStrategyConfig.model_validate(one_card).training_memory(
        model_sizes(qwen), num_ranks=1, num_tokens=4096
    )
    per_token = 28 * 1536 * 4 + (3 * (1536 + 256) + 4 * 8960) * 2 + 1536 * (5 * 4 + 2 * 2)
    head = 12 * (2**24 + 151_936 * 1536)
    assert sum(memory.values()) == 18 * number + 4096 * per_token + head
