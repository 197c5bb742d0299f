"""Attention in blocks, packed matrices and the search among the likeliest tokens."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from envsdk.base.processes.attention_kernels import leave_out_cudnn
from envsdk.engines.embedded import attention, onednn, sampling
from envsdk.engines.sampling import SamplingParams
from tests.by_day import examples

CPU = torch.device("cpu")
needs_onednn = pytest.mark.skipif(
    not onednn.serves(torch.bfloat16, CPU), reason="this build of PyTorch packs no bfloat16 matrices"
)


@given(
    past=st.lists(st.integers(0, 20), min_size=1, max_size=4),
    num_new=st.integers(1, 12),
    group=st.integers(1, 3),
    block=st.integers(1, 5),
    seed=st.integers(0, 100),
)
@settings(max_examples=60, deadline=None)
def test_attention_in_blocks_and_fused_equals_attention_at_once(
    past: list[int], num_new: int, group: int, block: int, seed: int
) -> None:
    torch.manual_seed(seed)
    length = max(past) + num_new
    queries = torch.randn(len(past), 2, num_new, group, 8)
    keys, values = torch.randn(2, len(past), 2, length, 8)
    reach = torch.tensor(past)[:, None] + torch.arange(num_new)
    hidden = torch.arange(length) > reach[:, :, None]
    expected = attention.attended(queries, keys, values, hidden)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "_BLOCK", block)
        blocks = attention.attended_in_blocks(queries, keys, values, hidden, max(past))
    torch.testing.assert_close(blocks, expected)
    torch.testing.assert_close(attention.attended_fused(queries, keys, values, hidden), expected)


@pytest.mark.gpu
def test_fused_attention_of_a_gpu_equals_attention_at_once_without_cudnn() -> None:
    torch.manual_seed(0)
    leave_out_cudnn()
    queries = torch.randn(3, 2, 12, 4, 64, device="cuda", dtype=torch.bfloat16) / 8
    keys, values = torch.randn(2, 3, 2, 40, 64, device="cuda", dtype=torch.bfloat16)
    reach = torch.tensor([0, 9, 28], device="cuda")[:, None] + torch.arange(12, device="cuda")
    hidden = torch.arange(40, device="cuda") > reach[:, :, None]
    found = attention.attended_fused(queries, keys, values, hidden).float()
    expected = attention.attended(queries.float(), keys.float(), values.float(), hidden)
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)


@needs_onednn
@given(
    num_rows=st.integers(1, 70), width=st.integers(1, 70), out=st.integers(1, 70), seed=st.integers(0, 100)
)
@settings(max_examples=60, deadline=None)
def test_a_packed_matrix_multiplies_and_adds_as_a_plain_one(
    num_rows: int, width: int, out: int, seed: int
) -> None:
    torch.manual_seed(seed)
    rows, matrix = torch.randn(num_rows, width).bfloat16(), torch.randn(out, width).bfloat16()
    packed = onednn.packed(matrix)
    exact = rows.float() @ matrix.float().t()
    for added in (None, torch.randn(out).bfloat16(), torch.randn(num_rows, out).bfloat16()):
        expected = exact if added is None else exact + added.float()
        found = onednn.product(rows, packed, added).float()
        torch.testing.assert_close(found, expected, atol=0.02 * np.sqrt(width), rtol=0.01)


@needs_onednn
@pytest.mark.parametrize("at_once", [1, 1500, 1 << 20])
@pytest.mark.parametrize("with_mask", [False, True])
def test_a_decoding_step_attends_where_the_mask_lets_it(with_mask: bool, at_once: int) -> None:
    torch.manual_seed(0)
    queries, cache = torch.randn(6, 3, 16).bfloat16(), torch.randn(6, 2, 40, 16).bfloat16()
    keys, values = cache[:, 0, :33].transpose(1, 2), cache[:, 1, :33]
    mask = torch.zeros(6, 1, 40).masked_fill_(torch.rand(6, 1, 40) < 0.3, -torch.inf).bfloat16()[:, :, :33]
    scores = queries.float() @ keys.float() + (mask.float() if with_mask else 0.0)
    expected = torch.softmax(scores, -1) @ values.float()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onednn, "_ELEMENTS_AT_ONCE", at_once)
        found = onednn.attended(queries, keys, values, mask if with_mask else None)
    torch.testing.assert_close(found.float(), expected, atol=0.05, rtol=0.02)


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 30), st.floats(0.05, 1.0), st.floats(0.0, 1.0)), min_size=1, max_size=5
    ),
    likeliest=st.integers(2, 12),
    ties=st.booleans(),
    seed=st.integers(0, 100),
)
@example(rows=[(0, 1.0, 0.0), (0, 1.0, 0.0), (2, 0.5, 0.0)], likeliest=2, ties=True, seed=18)
@settings(max_examples=examples(35), deadline=None)
def test_what_is_left_out_is_the_same_whether_all_tokens_are_sorted_or_the_likeliest(
    rows: list[tuple[int, float, float]], likeliest: int, ties: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    logits = torch.randn(len(rows), 24) * 3
    if ties:
        logits = logits.round()
    params = [SamplingParams(max_new_tokens=1, top_k=k, top_p=p, min_p=m) for k, p, m in rows]
    uniforms = torch.rand(len(rows))
    plan = sampling.SamplingPlan.of(params, CPU)
    expected = sampling.sample(logits, uniforms, plan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "_LIKELIEST", likeliest)
        found = sampling.sample(logits, uniforms, plan)
    torch.testing.assert_close(found.logprobs_B, expected.logprobs_B, atol=1e-5, rtol=1e-5)
    if not ties:  # of equally likely tokens any may be the last that is kept
        assert found.tokens_B.tolist() == expected.tokens_B.tolist()


@given(st.integers(1, 1 << 20))
def test_few_sizes_are_computed_and_none_is_far_from_the_asked_one(count: int) -> None:
    computed = onednn.num_computed(count)
    assert count <= computed <= count + count // 16
    assert onednn.num_computed(computed) == computed


def test_there_are_at_most_sixteen_sizes_to_an_octave() -> None:
    assert len({onednn.num_computed(count) for count in range(1, 129)}) == 64
