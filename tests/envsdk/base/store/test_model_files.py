"""Models that cannot be played with are told before anything is started."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save, save_file

from envsdk.base.store import model_files
from envsdk.base.store.model_files import model_problem, weights_problem
from envsdk.config import load_config
from envsdk.contracts.chat import ChatTokenizer
from envsdk.contracts.failures import ConfigurationError
from envsdk.rollouts.play.model import check_model, find_model_folder
from envsdk.trainers.warm_start.tiny_policy import build_tokenizer, write_tokenizer

WHOLE = save({"a": np.zeros((3, 5), np.float32), "b": np.ones(7, np.int64)}, metadata={"format": "pt"})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """With a tokenizer of 300 tokens, and 304 embeddings."""
    (tmp_path / "config.json").write_text('{"model_type": "qwen3", "vocab_size": 304}')
    write_tokenizer(
        tmp_path, build_tokenizer([" ".join(f"w{chr(97 + i)}" for i in range(26))]), sequence_length=64
    )
    write_embeddings(tmp_path, 304)
    return tmp_path


def write_embeddings(folder: Path, num_rows: int, name: str = "model.embed_tokens.weight") -> None:
    save_file({name: np.zeros((num_rows, 2), np.float32)}, folder / "model.safetensors")


def edit(folder: Path, name: str, **values: object) -> None:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_tokenizer_needs_an_embedding_for_every_token(model: Path) -> None:
    num_tokens = ChatTokenizer.load(model).num_ids
    for num_rows, name in ((num_tokens - 1, "model.embed_tokens.weight"), (100, "transformer.wte.weight")):
        write_embeddings(model, num_rows, name)
        problem = model_problem(model)
        assert f"has {num_tokens} tokens, but the model embeds {num_rows}" in (problem or "")
    write_embeddings(model, num_tokens, "wte.weight")
    assert model_problem(model) is None
    (model / "model.safetensors").unlink()
    edit(model, "config.json", vocab_size=7)
    assert "embeds 7" in (model_problem(model) or "")
    edit(model, "config.json", vocab_size=None, text_config={"vocab_size": 8})
    assert "embeds 8" in (model_problem(model) or "")


def _text(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (_text("config.json", "{"), "config.json cannot be read"),
        (_text("config.json", "[]"), "must hold a JSON object"),
        (_text("config.json", "[" * 100_000), "config.json cannot be read"),
        (_text("tokenizer.json", "{"), "not a tokenizer file"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json is missing"),
        (_text("tokenizer_config.json", "{"), "is not JSON"),
        (lambda folder: (folder / "chat_template.jinja").unlink(), "no chat template"),
        (_text("chat_template.jinja", "{{ messages"), "chat template"),
        (_text("chat_template.jinja", "{% for i in range(10**9) %}x{% endfor %}"), "OverflowError"),
        (_text("chat_template.jinja", "{{ ''.__class__.__mro__[1].__subclasses__() }}"), "unsafe"),
        (_text("chat_template.jinja", "{{ 1 / 0 }}"), "ZeroDivisionError"),
        (_text("chat_template.jinja", "{{ 'x' * 10**11 }}"), "chat template"),
        (_text("chat_template.jinja", "{{ messages[0].content.encode('utf-8').x.y }}"), "chat template"),
        (
            lambda folder: edit(folder, "config.json", auto_map={"AutoConfig": "evil.C"}, model_type="evil"),
            "Python code of its own",
        ),
    ],
)
def test_what_is_wrong_with_a_model_is_said_in_one_line(
    damage: Callable[[Path], object], named: str, model: Path
) -> None:
    damage(model)
    with pytest.raises(ConfigurationError) as caught:
        check_model(model)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_chat_template_that_never_ends_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_files, "_CHAT_TIMEOUT_S", 3.0)
    loops = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    (model / "chat_template.jinja").write_text(loops)
    assert "does not come to an end" in (model_problem(model) or "")


def test_a_model_that_transformers_knows_may_come_with_code_that_is_not_run(model: Path) -> None:
    edit(model, "config.json", auto_map={"AutoConfig": "evil.C"})
    (model / "evil.py").write_text("raise SystemExit('ran')")
    assert model_problem(model) is None


def test_whole_files_and_folders_without_any_have_no_problem(model: Path) -> None:
    assert weights_problem(model) is None
    (model / "model.safetensors").write_bytes(save({}))
    assert weights_problem(model) is None
    (model / "model.safetensors").unlink()
    assert weights_problem(model) is None


@given(length=st.integers(0, len(WHOLE) - 1))
def test_a_file_that_is_cut_anywhere_is_named(tmp_path_factory: pytest.TempPathFactory, length: int) -> None:
    folder = tmp_path_factory.mktemp("cut")
    (folder / "model-2.safetensors").write_bytes(WHOLE[:length])
    assert str(folder / "model-2.safetensors") in (weights_problem(folder) or "")


@given(content=st.binary(max_size=64))
def test_what_is_no_such_file_is_a_problem_and_no_exception(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    folder = tmp_path_factory.mktemp("noise")
    (folder / "model.safetensors").write_bytes(content)
    weights_problem(folder)


def test_a_damaged_model_is_refused_wherever_one_is_named(model: Path) -> None:
    assert find_model_folder(model) == model
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ConfigurationError, match=r"--model: .*cut short"):
        find_model_folder(model)
    with pytest.raises(ConfigurationError, match=r"pretrain \(override\): .*cut short"):
        load_config("agentic_async.yaml", [f"pretrain={model}"])
