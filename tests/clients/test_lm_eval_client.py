"""lm-eval: log-likelihoods and generation over `/v1/completions`, on task data written here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("lm_eval", reason="needs lm-eval: make test-clients")
pytestmark = pytest.mark.clients

from policies import LENGTH, MODEL, Served, sampling  # noqa: E402

CHOICES = """
task: envsdk_choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: [" up", " down"]
doc_to_target: answer
metric_list: [{{metric: acc}}]
"""
REPLIES = """
task: envsdk_replies
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: answer
generation_kwargs: {{until: ["\\n\\n"], max_gen_toks: 5, do_sample: false}}
metric_list: [{{metric: exact_match}}]
"""


def evaluate(
    served: Served, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> dict[str, Any]:
    monkeypatch.setenv("OPENAI_API_KEY", served.key)
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    import lm_eval
    from lm_eval.tasks import TaskManager

    data = tmp_path / "data.jsonl"
    rows = [{"question": f"task {number}: go", "answer": number % 2} for number in range(4)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    name = task.split()[1]
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    (tasks / f"{name}.yaml").write_text(task.format(data=data))
    model_args = {
        "model": MODEL, "base_url": f"{served.base_url}/completions", "tokenizer": str(folder),
        "tokenizer_backend": "huggingface", "max_length": LENGTH - 1, "num_concurrent": 1,
    }  # fmt: skip
    results = lm_eval.simple_evaluate(
        model="local-completions",
        model_args=model_args,
        tasks=[name],
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        bootstrap_iters=0,
    )
    assert results is not None
    return results["samples"][name]


def test_log_likelihoods_are_those_of_the_model(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    with sampling(folder) as served:
        samples = evaluate(served, folder, tmp_path, monkeypatch, CHOICES)
        chat = served.chat
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert len(samples) == 4
    for sample in samples:
        for (context, continuation), response in zip(
            sample["arguments"], sample["filtered_resps"], strict=True
        ):
            before, ids = chat.encode(context), chat.encode(context + continuation)
            with torch.inference_mode():
                logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1).numpy()
            at = np.arange(len(before), len(ids))
            expected = logprobs[at - 1, np.array(ids)[at]].sum()
            assert response[0] == pytest.approx(expected, abs=1e-3)
            assert response[1] == all(logprobs[at - 1].argmax(-1) == np.array(ids)[at])


def test_it_generates_until(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with sampling(folder) as served:
        samples = evaluate(served, folder, tmp_path, monkeypatch, REPLIES)
        assert len(served.replies) == len(samples) == 4
