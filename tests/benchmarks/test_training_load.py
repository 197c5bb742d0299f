"""The load of the trainer benchmarks, and the operations it is said to take."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.model_shapes import QUICKSTART, ModelShape, write_model
from benchmarks.training_load import make_batch, train_flops


def test_the_operations_counted_are_those_that_torch_counts(tmp_path: Path) -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoModelForCausalLM

    shape = ModelShape(
        hidden_size=32,
        intermediate_size=80,
        num_layers=2,
        num_heads=4,
        num_key_value_heads=2,
        vocab_size=61,
        max_positions=64,
    )
    folder = write_model(tmp_path, shape)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    (sequence,) = make_batch(61, num_sequences=1, mean_length=40, reply_every=1, reply_length=1).sequences
    length = len(sequence.ids)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.tensor(sequence.ids[None].astype(np.int64)))
    # Computed eagerly, attention goes over the whole square; half of it is masked and not counted here.
    masked = 2 * length * length * shape.hidden_size * shape.num_layers
    counted = counter.get_total_flops() - masked
    assert train_flops(shape, [sequence]) / 3 == counted


def test_a_vocabulary_is_projected_at_scored_tokens_alone() -> None:
    shape = QUICKSTART
    (sequence,) = make_batch(shape.vocab_size, num_sequences=1, mean_length=200).sequences
    num_scored = int(sequence.response_mask.sum())
    assert 0 < num_scored < len(sequence.ids) / 3
    sequence.response_mask[:] = 0
    unscored = train_flops(shape, [sequence])
    sequence.response_mask[:num_scored] = 1
    per_token = 3 * 2 * shape.hidden_size * shape.vocab_size
    assert train_flops(shape, [sequence]) - unscored == num_scored * per_token


def test_a_batch_is_always_the_same_and_can_be_trained_on() -> None:
    one, other = (make_batch(61, num_sequences=9, mean_length=100) for _ in range(2))
    for ours, theirs in zip(one.sequences, other.sequences, strict=True):
        np.testing.assert_array_equal(ours.ids, theirs.ids)
        assert 50 <= len(ours.ids) <= 150
        assert ours.response_mask.any()
        assert not ours.advantages[ours.response_mask == 0].any()
    assert {float(s.advantages.max()) for s in one.sequences} | {
        float(s.advantages.min()) for s in one.sequences
    } == {-1.0, 0.0, 1.0}
