from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.contracts.trajectory import NO_VERSION, TokenLog, VersionSpan

ids = st.lists(st.integers(0, 2**31 - 1), max_size=5)
spans = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=3)
"""Version and length of each."""


def of_lengths(parts: list[tuple[int, int]]) -> list[VersionSpan]:
    found, start = [], 0
    for version, length in parts:
        found.append(VersionSpan(version=version, start=start, end=start + length))
        start += length
    return found


@given(st.lists(st.tuples(ids, spans), max_size=4))
def test_a_log_is_what_was_appended_to_it(turns: list[tuple[list[int], list[tuple[int, int]]]]) -> None:
    log = TokenLog()
    expected: list[tuple[int, int, float, int]] = []
    for prompt, parts in turns:
        versions = [version for version, length in parts for _ in range(length)]
        reply = list(range(len(versions)))
        logprobs = [-0.1 * token for token in reply]
        log.append_prompt(prompt)
        log.append_sampled(reply, logprobs, of_lengths(parts))
        expected += [(token, 0, 0.0, NO_VERSION) for token in prompt]
        expected += [(t, 1, p, v) for t, p, v in zip(reply, logprobs, versions, strict=True)]
    found = log.arrays()
    columns = [list(column) for column in zip(*expected, strict=True)] or [[], [], [], []]
    for values, wanted, dtype in zip(
        (found.ids, found.response_mask, found.behavior_logprobs, found.versions),
        columns,
        (np.int32, np.int8, np.float32, np.int32),
        strict=True,
    ):
        assert values.dtype == dtype
        assert values.tolist() == np.array(wanted, dtype).tolist()
    assert list(log.ids) == columns[0]
    assert len(log) == len(found) == len(expected)
    sampled = [version for _, mask, _, version in expected if mask]
    assert found.oldest_version == min(sampled, default=None)


def test_what_was_read_does_not_change_with_the_log() -> None:
    log = TokenLog()
    log.append_prompt([1, 2])
    before, prompt = log.arrays(), np.array(log.ids, np.int32)
    log.append_prompt([3])
    assert before.ids.tolist() == prompt.tolist() == [1, 2]
    assert list(log.ids) == [1, 2, 3]


@pytest.mark.parametrize(
    ("logprobs", "parts"),
    [
        ([-0.5], [(0, 2)]),
        ([-0.5, -0.5], [(0, 1)]),
        ([-0.5, -0.5], [(0, 3)]),
        ([-0.5, -0.5], []),
    ],
)
def test_a_reply_that_does_not_fit_its_spans_leaves_the_log_as_it_was(
    logprobs: list[float], parts: list[tuple[int, int]]
) -> None:
    log = TokenLog()
    log.append_prompt([1])
    with pytest.raises(ValueError, match=r"version spans|log-probabilities"):
        log.append_sampled([2, 3], logprobs, of_lengths(parts))
    assert (list(log.ids), log.arrays().oldest_version) == ([1], None)


@pytest.mark.parametrize(
    "starts", [(0, 3), (0, 1), (1, 3), (2, 0)], ids=["gap", "overlap", "late", "backwards"]
)
def test_spans_that_do_not_follow_on_each_other_are_refused_also_where_their_lengths_fit(
    starts: tuple[int, int],
) -> None:
    log = TokenLog()
    spans = [VersionSpan(version=0, start=start, end=start + 2) for start in starts]
    with pytest.raises(ValueError, match="do not cover the reply in order"):
        log.append_sampled([1, 2, 3, 4], [-0.5] * 4, spans)
    assert len(log) == 0
