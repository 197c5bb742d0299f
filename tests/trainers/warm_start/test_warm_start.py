"""The tiny policy: made once, whole or not at all, the same every time, and from held-in tasks alone."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from safetensors.numpy import load_file

from envsdk.base.store.cache import cache_folder
from envsdk.config import RunConfig, load_config
from envsdk.contracts.chat import ChatTokenizer
from envsdk.contracts.env import TextEnv
from envsdk.contracts.failures import ConfigurationError, StorageError
from envsdk.contracts.policy import SequenceFull
from envsdk.contracts.prompts import AgentPrompts
from envsdk.contracts.trajectory import Task, Trajectory, Turn
from envsdk.envs.frozen_lake import FrozenLakeEnv
from envsdk.envs.sokoban import SPEC as SOKOBAN
from envsdk.envs.sokoban import SokobanEnv
from envsdk.managers.policies import OraclePolicy
from envsdk.managers.wiring import tag_setups
from envsdk.rewards.reward import Reward, RewardFunction, Runs, Sample
from envsdk.trainers.warm_start import prepare as warm_start
from envsdk.trainers.warm_start.imitation import batches
from envsdk.trainers.warm_start.prepare import RECORD, demonstrations_of, prepare_policy
from envsdk.trainers.warm_start.tiny_policy import SPECIAL_TOKENS, build_tokenizer
from tests.trajectories import trajectory_with

SMALL = [
    "warm_start.num_episodes=12",
    "warm_start.hidden_size=16",
    "warm_start.num_layers=1",
    "warm_start.num_heads=2",
    "warm_start.batch_size=4",
    "warm_start.epochs=1",
]
FEW = "warm_start.num_episodes=4"


def small_config(*overrides: str) -> RunConfig:
    return load_config("agentic_async.yaml", [*SMALL, *overrides]).config


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENVSDK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def prepare(config: RunConfig) -> tuple[Path, str]:
    out = io.StringIO()
    return prepare_policy(config, console=Console(file=out, width=200)), out.getvalue()


def test_the_policy_is_made_once_and_then_found(cache: Path) -> None:
    folder, said = prepare(small_config())
    assert folder.parent == cache / "policies"
    assert "making a tiny policy for FrozenLake, SimpleSokoban once" in said
    assert "12 demonstrations" in said
    assert "pretrain" not in said
    made_at = (folder / "model.safetensors").stat().st_mtime_ns
    again, said = prepare(small_config())
    assert again == folder
    assert "making" not in said
    assert (folder / "model.safetensors").stat().st_mtime_ns == made_at


def test_before_another_is_made_one_that_knows_the_games_is_named() -> None:
    both, _ = prepare(small_config())
    lake = ("train_env_manager.tags=[FrozenLake]", "val_env_manager.tags=[FrozenLake]")
    _, said = prepare(small_config(*lake))
    assert f"one for FrozenLake, SimpleSokoban already: to take that instead, pretrain={both}\n" in said
    for unlike in ("sequence_length=600", "custom_envs.FrozenLake.env_config.p=0.6"):
        assert "pretrain" not in prepare(small_config(*lake, unlike))[1]


def test_it_is_a_hugging_face_folder_that_transformers_loads() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, _ = prepare(small_config())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    chat = ChatTokenizer.load(folder)
    messages = [{"role": "system", "content": "Walk (P)."}, {"role": "user", "content": "P_\n_G"}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert ids == chat.first_prompt(system="Walk (P).", user="P_\n_G")
    assert model.config.vocab_size == chat.vocab_size == len(tokenizer)
    assert model.generation_config.eos_token_id in chat.stop_token_ids


def test_the_shipped_settings_make_a_model_of_1_to_4_million_parameters() -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    shipped = load_config("agentic_async.yaml").config.warm_start
    sizes = [
        f"warm_start.{name}={getattr(shipped, name)}" for name in ("hidden_size", "num_layers", "num_heads")
    ]
    folder, _ = prepare(small_config(*sizes))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    assert 1_000_000 <= model.num_parameters() <= 4_000_000
    assert json.loads((folder / RECORD).read_text())["num_parameters"] == model.num_parameters()


def test_the_same_settings_make_the_same_weights(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = prepare(small_config())
    monkeypatch.setenv("ENVSDK_CACHE", str(cache.with_name("other")))
    second, _ = prepare(small_config())
    assert first.name == second.name
    assert first != second
    weights, others = (load_file(folder / "model.safetensors") for folder in (first, second))
    assert all(np.array_equal(weights[name], others[name]) for name in weights)


def test_whatever_decides_the_policy_gives_it_a_folder_of_its_own() -> None:
    overrides = [
        "warm_start.seed=7",
        "warm_start.epsilon=0.25",
        "warm_start.demonstrator=random",
        "warm_start.pieces=['a+']",
        "custom_envs.FrozenLake.env_config.p=0.6",
        "custom_envs.FrozenLake.demonstration_config={p: 0.6, detours: 1.0}",
        "custom_envs.FrozenLake.agent_template='Look: {observation}'",
        "sequence_length=400",
    ]
    folders = {prepare(small_config(FEW, each))[0] for each in (FEW, *overrides)}
    assert len(folders) == 1 + len(overrides)


def test_demonstrations_may_be_longer_than_episodes_in_training() -> None:
    longer = "custom_envs.FrozenLake.demonstration_config={size: 8, max_steps: 14}"
    for overrides, limit in (([longer], 14), ([], 8)):
        lake = load_config("agentic_async.yaml", overrides).config.custom_envs["FrozenLake"]
        assert (lake.max_steps, lake.demonstrated.max_steps) == (8, limit)


def test_demonstrations_have_arguments_and_shares_of_their_own() -> None:
    lake = "custom_envs.FrozenLake.demonstration"
    config = small_config("warm_start.num_episodes=8", f"{lake}_config={{p: 0.5}}", f"{lake}_weight=3")
    record = json.loads((prepare(config)[0] / RECORD).read_text())
    assert record["episodes"] == {"FrozenLake": 6, "SimpleSokoban": 2}
    recorded = record["demonstrator"]["tags"]
    played, trained = recorded["FrozenLake"]["env_config"], config.custom_envs["FrozenLake"].env_config
    assert played == {**trained, "detours": 0.5, "p": 0.5}
    assert recorded["SimpleSokoban"]["env_config"] == config.custom_envs["SimpleSokoban"].env_config


def test_what_does_not_concern_the_policy_leaves_it_where_it_is() -> None:
    pinned = "warm_start.seed=1"
    folder, _ = prepare(small_config(FEW, pinned))
    for override in ("exp_name=other", "max_steps=3", "async_generation_ratio=0", "seed=9"):
        assert prepare(small_config(FEW, pinned, override))[0] == folder, override


def test_other_code_of_an_environment_gives_another_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    described = warm_start._describe(small_config())
    assert warm_start._describe(small_config()) == described
    asked: list[list[Any]] = []

    def digest(objects: list[Any], named_in: Any) -> str:
        asked.append([objects, named_in])
        return "other code"

    monkeypatch.setattr(warm_start, "source_digest", digest)
    assert warm_start._describe(small_config()) == {**described, "sources": "other code"}
    [[[lake, sokoban, oracle], configs]] = asked
    assert (lake, sokoban, oracle) == (FrozenLakeEnv, SokobanEnv, OraclePolicy)
    assert [config["compass"] for config in configs] == [True, True]


def test_cloning_teaches_the_demonstrations() -> None:
    few, _ = prepare(small_config("warm_start.epochs=1"))
    many, _ = prepare(small_config("warm_start.epochs=60"))
    loss = [json.loads((folder / RECORD).read_text())["loss"] for folder in (few, many)]
    assert loss[1] < 0.5 * loss[0]


def test_an_interrupted_making_leaves_nothing_behind(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(warm_start, "_imitate", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare(small_config())
    assert [path.suffix for path in (cache / "policies").iterdir()] == [".lock"]
    assert (prepare(small_config())[0] / RECORD).is_file()
    assert not list((cache / "policies").glob(".*.partial"))


def test_who_wants_the_same_policy_at_the_same_time_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    make: Callable[..., None] = warm_start._make
    monkeypatch.setattr(warm_start, "_make", lambda *args: (made.append(1), make(*args)))
    with ThreadPoolExecutor(3) as pool:
        folders = {folder for folder, _ in pool.map(prepare, [small_config()] * 3)}
    assert len(folders) == len(made) == 1


def test_only_training_tasks_are_demonstrated(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Trajectory] = []
    collect = warm_start._collect

    def collected(config: RunConfig, console: Console) -> list[Trajectory]:
        seen.extend(collect(config, console))
        return seen

    monkeypatch.setattr(warm_start, "_collect", collected)
    config = small_config()
    prepare(config)
    assert {trajectory.task.split for trajectory in seen} == {"train"}
    assert {trajectory.task.tag for trajectory in seen} == set(config.train_env_manager.tags)


def test_a_prompt_longer_than_the_sequence_names_the_key_and_the_tag() -> None:
    with pytest.raises(ConfigurationError, match=r"prompt of tag '\w+' .*sequence_length=16: ") as refused:
        prepare(small_config("sequence_length=16"))
    (needed,) = re.findall(r"raise sequence_length to at least (\d+)", str(refused.value))
    prepare(small_config(f"sequence_length={needed}"))


def test_an_environment_without_an_oracle_asks_for_a_model_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FrozenLakeEnv, "oracle", TextEnv.oracle)
    with pytest.raises(ConfigurationError, match=r"FrozenLake.*set `pretrain` to the folder of a model"):
        prepare(small_config())


def test_another_policy_can_be_the_demonstrator() -> None:
    folder, _ = prepare(
        small_config("warm_start.demonstrator=envsdk.managers.policies:RandomPolicy", "warm_start.epsilon=0")
    )
    record = json.loads((folder / RECORD).read_text())
    assert record["warm_start"]["demonstrator"] == "envsdk.managers.policies:RandomPolicy"
    oracle = json.loads((prepare(small_config("warm_start.epsilon=0"))[0] / RECORD).read_text())
    assert record["demonstrator_success"] < oracle["demonstrator_success"] == 1
    assert "demonstrator" not in oracle["warm_start"]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("model", "`model` needs a model, and there is none yet"), ("orcale", "there is no policy 'orcale'")],
)
def test_a_demonstrator_that_cannot_play_is_named(name: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"warm_start\.demonstrator: {complaint}"):
        prepare(small_config(f"warm_start.demonstrator={name}"))


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ENVSDK_CACHE", str(tmp_path / "file"))
    with pytest.raises(StorageError, match="file"):
        prepare(small_config())


def test_the_cache_follows_the_user_s_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVSDK_CACHE", "~/mine")
    assert cache_folder() == Path.home() / "mine"
    monkeypatch.delenv("ENVSDK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_folder() == Path("/elsewhere/envsdk")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "envsdk"


def episode(observations: list[str], replies: list[str]) -> Trajectory:
    turns = [
        Turn(observation=observation, reply=reply, reward=0.0, response_start=0, response_end=0)
        for observation, reply in zip(observations, replies, strict=True)
    ]
    return trajectory_with(
        trajectory_id="1", task=Task(tag="FrozenLake", split="train", index=0), turns=turns
    )


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    from envsdk.trainers.warm_start.tiny_policy import write_tokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, build_tokenizer(["<answer>Up</answer>", "You walk."]), sequence_length=512)
    return ChatTokenizer.load(folder)


def test_a_demonstration_is_the_conversation_the_policy_would_have_had(chat: ChatTokenizer) -> None:
    setup = tag_setups(small_config(), small_config().train_env_manager)["FrozenLake"]
    prompts = AgentPrompts(system="You walk.", template="{turn_idx}/{actions_left}\n{observation}")
    replies = ["<answer>Up</answer>", "<answer>Down</answer>"]
    shown = replace(setup.shown, prompts=prompts)
    (demo,) = demonstrations_of(episode(["P_", "_P"], replies), chat, shown, 512)
    conversation = [
        {"role": "system", "content": "You walk."},
        {"role": "user", "content": "1/8\nP_"},
        {"role": "assistant", "content": replies[0]},
        {"role": "user", "content": "2/7\n_P"},
        {"role": "assistant", "content": replies[1]},
    ]
    assert demo.ids.tolist() == chat.encode(chat.render(conversation, add_generation_prompt=False))
    imitated = demo.ids[demo.response_mask == 1].tolist()
    assert imitated == chat.reply(replies[0]) + chat.reply(replies[1])


def test_a_long_demonstration_is_cut_after_a_whole_turn(chat: ChatTokenizer) -> None:
    setup = tag_setups(small_config(), small_config().train_env_manager)["FrozenLake"]
    trajectory = episode(["P_"] * 5, ["<answer>Up</answer>"] * 5)
    shown = replace(setup.shown, prompts=AgentPrompts())
    (whole,) = demonstrations_of(trajectory, chat, shown, 512)
    (cut,) = demonstrations_of(trajectory, chat, shown, len(whole.ids) - 1)
    assert cut.ids[-1] in chat.stop_token_ids
    assert np.array_equal(cut.ids, whole.ids[: len(cut.ids)])
    with pytest.raises(SequenceFull) as full:
        demonstrations_of(trajectory, chat, shown, 3)
    assert demonstrations_of(trajectory, chat, shown, full.value.num_needed)
    with pytest.raises(SequenceFull):
        demonstrations_of(trajectory, chat, shown, full.value.num_needed - 1)


@given(count=st.integers(1, 60), size=st.integers(1, 20), epochs=st.integers(1, 3), seed=st.integers(0, 9))
def test_every_epoch_holds_every_demonstration_once(count: int, size: int, epochs: int, seed: int) -> None:
    setup_free: Any = [None] * count
    steps = list(batches(setup_free, size=size, epochs=epochs, seed=seed))
    assert len(steps) == epochs * -(-count // size)
    flat = [index for step in steps for index in step]
    for epoch in range(epochs):
        assert sorted(flat[epoch * count : (epoch + 1) * count]) == list(range(count))


def test_a_cell_a_frame_and_an_answer_are_one_token_each() -> None:
    room = "######\n#_O_##\n#_X_##\n#_P__#\n##___#\n######"
    texts = [room, "<answer>Up</answer>", "Left # Down 2"]
    tokenizer = build_tokenizer(texts, pieces=SOKOBAN.text_pieces)
    frame, joint = "######Ċ#", "#Ċ#"
    expected = [frame, *"_O_#", joint, *"_X_#", joint, *"_P__", joint, *"#___", "#Ċ######"]
    assert tokenizer.encode(room).tokens == expected
    assert tokenizer.encode("<answer>Up</answer>").tokens == ["<answer>Up</answer>"]
    assert len(tokenizer.encode("Left # Down 2").tokens) == 2


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("OPO_\nGOO_", [*"OPO_", "Ċ", *"GOO_"]),
        ("Left O Down X", ["LeftĠO", "ĠDownĠX"]),
        ("\nX Up 1 Right 2 O Left 3", ["Ċ", "XĠUpĠ1ĠRightĠ2", "ĠOĠLeftĠ3"]),
        ("\nG Down 2", ["Ċ", "GĠDownĠ2"]),
        ("Over Up 10", ["Over", "ĠUp", "Ġ", "1", "0"]),
    ],
)
def test_letters_of_a_map_a_neighbor_and_a_bearing_are_one_token_each(text: str, tokens: list[str]) -> None:
    assert build_tokenizer([text], pieces=SOKOBAN.text_pieces).encode(text).tokens == tokens


def test_what_else_is_one_token_is_the_users_choice() -> None:
    texts = ["color: navy blue, and size: 9", "<action>click[navy blue]</action>"]
    pieces = [r"<action>click\[|]</action>", r": ", r"(?<=: )[^,]+(?=, and)", r"(?<=click\[)[^\]]+"]
    tokenizer = build_tokenizer(texts, pieces=pieces)
    value = tokenizer.token_to_id("navyĠblue")
    assert tokenizer.encode(texts[0]).ids[2] == value
    assert tokenizer.encode(texts[1]).tokens == ["<action>click[", "navyĠblue", "]</action>"]
    assert tokenizer.decode(tokenizer.encode(texts[0]).ids) == texts[0]


def test_a_piece_that_is_no_regular_expression_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"pieces: '\(' is no regular expression: .*paren"):
        prepare(small_config("warm_start.pieces=['a+','(']"))


@given(texts=st.lists(st.text(max_size=20), max_size=6), data=st.data())
def test_the_vocabulary_does_not_depend_on_the_order_of_the_texts(
    texts: list[str], data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(texts))
    assert build_tokenizer(texts).to_str() == build_tokenizer(shuffled).to_str()


def test_the_vocabulary_is_bounded() -> None:
    texts = [chr(ord("a") + i) + chr(ord("a") + j) for i in range(26) for j in range(26)]
    assert build_tokenizer(texts, max_vocab_size=300).get_vocab_size() == 300
    assert len(SPECIAL_TOKENS) + 256 < 300


def test_texts_that_environments_declare_become_tokens_after_those_of_the_file() -> None:
    config = small_config("warm_start.pieces=['a+']", "train_env_manager.tags=[SimpleSokoban]")
    assert warm_start._pieces(config) == ["a+", *SOKOBAN.text_pieces]


class Exact(RewardFunction):
    runs = Runs.INLINE

    def score(self, sample: Sample) -> Reward:
        return Reward(value=float(sample.response == sample.ground_truth))


def prompts_config(folder: Path, answers: dict[str, str]) -> RunConfig:
    system = {"role": "system", "content": "Answer politely"}
    rows = [
        {"messages": [system, {"role": "user", "content": prompt}], "ground_truth": answer}
        for prompt, answer in answers.items()
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "exp_name": "prompts",
        "rollout_batch_size": 2,
        "num_return_sequences_in_group": 2,
        "prompt_length": 16,
        "response_length": 16,
        "max_steps": 1,
        "pretrain": "embedded_default",
        "rewards": {"words": {"worker_cls": f"{__name__}:Exact"}},
        "actor_train": {"data_args": {"file_name": str(folder / "rows.jsonl")}},
    }
    (folder / "prompts.yaml").write_text(yaml.safe_dump(config))
    return load_config(folder / "prompts.yaml", SMALL).config


def test_rows_of_prompts_warm_start_a_policy_that_knows_their_words(tmp_path: Path) -> None:
    folder, _ = prepare(prompts_config(tmp_path, {f"{n}+1=": f"answer {n + 1}" for n in range(8)}))
    record = json.loads((folder / RECORD).read_text())
    assert 0 < record["demonstrator_success"] < 1
    chat = ChatTokenizer.load(folder)
    assert len(chat.encode("Answer politely")) == 2
    assert len(chat.encode("answer 3")) == 1


def test_other_rows_make_another_policy(tmp_path: Path) -> None:
    names = []
    for place, answer in (("a", "one"), ("b", "one"), ("c", "two")):
        (tmp_path / place).mkdir()
        config = prompts_config(tmp_path / place, {f"{n}+1=": answer for n in range(8)})
        names.append(warm_start._prompts_digest(config)["words"])
    assert names[0] == names[1] != names[2]


def domains_config(folder: Path, rows: list[dict[str, str]], *overrides: str) -> RunConfig:
    """Prompts of the domains `first` and `second`."""
    config = prompts_config(folder, {})
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    written = yaml.safe_load((folder / "prompts.yaml").read_text())
    written["rewards"] = {name: {"worker_cls": f"{__name__}:Exact"} for name in ("first", "second")}
    (folder / "prompts.yaml").write_text(yaml.safe_dump(written))
    del config
    return load_config(folder / "prompts.yaml", [*SMALL, *overrides]).config


def test_rows_without_a_reference_are_left_out_of_the_warm_start_and_counted(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}+1=", "tag": "first"} for n in range(8)]
    rows += [{"prompt": f"{n}+2=", "tag": "second", "ground_truth": f"answer {n + 2}"} for n in range(8)]
    _, said = prepare(domains_config(tmp_path, rows, "warm_start.num_episodes=80"))
    assert "40 of 40 demonstrations of first are left out" in said
    assert "has no reference answer" in said
    assert "of second are left out" not in said


def test_a_row_is_demonstrated_where_those_after_it_have_no_reference(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}+1=", "tag": "first"} for n in range(8)]
    rows[0]["ground_truth"] = "answer 1"
    rows += [{"prompt": f"{n}+2=", "tag": "second", "ground_truth": f"answer {n + 2}"} for n in range(8)]
    _, said = prepare(domains_config(tmp_path, rows, "warm_start.epsilon=1", "warm_start.num_episodes=32"))
    assert "14 of 16 demonstrations of first are left out" in said


def test_where_no_row_has_a_reference_the_making_ends_with_one(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}+1=", "tag": tag} for n in range(8) for tag in ("first", "second")]
    with pytest.raises(ConfigurationError, match=r"all failed, one with .* has no reference answer"):
        prepare(domains_config(tmp_path, rows, "warm_start.num_episodes=200"))
