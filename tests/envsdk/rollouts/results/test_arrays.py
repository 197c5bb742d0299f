from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.contracts.failures import ConfigurationError
from envsdk.rollouts.results.trajectories import Trajectories
from tests.envsdk.rollouts.data_sets.episodes import episode
from tests.envsdk.rollouts.results.sampled import sampled, sampled_episodes

OF_TOKENS = ("ids", "position_ids", "response_mask", "logprobs", "versions", "token_rewards")
OF_EPISODES = ("rewards", "success", "valid", "group_ids", "lengths", "num_cut")

batches = st.lists(sampled_episodes, max_size=6).filter(
    lambda episodes: not episodes or any(each.tokens is not None for each in episodes)
)


def rows(arrays: Mapping[str, Any], name: str) -> list[Any]:
    """The part of each episode, without padding."""
    if "cu_seqlens" in arrays:
        return np.split(arrays[name], arrays["cu_seqlens"][1:-1])[: len(arrays["lengths"])]
    return [row[mask == 1] for row, mask in zip(arrays[name], arrays["attention_mask"], strict=True)]


@given(batches, st.sampled_from(["left", "right"]), st.none() | st.integers(1, 9))
def test_padded_and_packed_hold_the_same_and_what_the_episodes_hold(
    episodes: list[Any], side: Any, max_length: int | None
) -> None:
    trajectories = Trajectories(episodes)
    padded = trajectories.to_arrays(padding_side=side, max_length=max_length, pad_id=77)
    packed = trajectories.to_arrays("packed", max_length=max_length)
    for name in OF_TOKENS:
        assert len(rows(padded, name)) == len(episodes)
        for one, other in zip(rows(padded, name), rows(packed, name), strict=True):
            np.testing.assert_array_equal(one, other)
        assert padded[name].dtype == packed[name].dtype
    for name in OF_EPISODES:
        np.testing.assert_array_equal(padded[name], packed[name])
        assert padded[name].shape == (len(episodes),)
    for number, each in enumerate(episodes):
        if each.tokens is None:
            assert padded["lengths"][number] == 0
            continue
        kept = slice(None, max_length)
        np.testing.assert_array_equal(rows(packed, "ids")[number], each.tokens.ids[kept])
        np.testing.assert_array_equal(rows(packed, "logprobs")[number], each.tokens.behavior_logprobs[kept])
        np.testing.assert_array_equal(rows(packed, "versions")[number], each.tokens.versions[kept])
        assert padded["lengths"][number] + padded["num_cut"][number] == len(each.tokens)


@given(batches)
def test_failed_episodes_are_masked_and_have_no_score(episodes: list[Any]) -> None:
    arrays = Trajectories(episodes).to_arrays()
    for number, each in enumerate(episodes):
        if each.failure is not None:
            assert not arrays["valid"][number]
            assert np.isnan(arrays["rewards"][number])
            assert not arrays["response_mask"][number].any()
        else:
            assert arrays["rewards"][number] == each.total_reward
            assert arrays["valid"][number] == (each.oldest_version is not None)


@given(batches)
def test_rewards_stand_at_the_tokens_that_earned_them(episodes: list[Any]) -> None:
    arrays = Trajectories(episodes).to_arrays()
    assert not (arrays["token_rewards"] * (1 - arrays["response_mask"])).any()
    for number, each in enumerate(episodes):
        if each.failure is None and each.turns and all(t.response_end > t.response_start for t in each.turns):
            assert arrays["token_rewards"][number].sum() == pytest.approx(each.total_reward)


def test_the_arrays_of_two_episodes_as_documented() -> None:
    first = sampled([((1, 2), (3, 4), 0.5), ((5,), (6,), 1.0)], version=2)
    second = sampled([((1,), (7,), 0.0)], member=1, success=False)
    arrays = Trajectories([first, second]).to_arrays(pad_id=9, padding_side="left")
    expected = {
        "ids": [[1, 2, 3, 4, 5, 6], [9, 9, 9, 9, 1, 7]],
        "attention_mask": [[1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1]],
        "position_ids": [[0, 1, 2, 3, 4, 5], [0, 0, 0, 0, 0, 1]],
        "response_mask": [[0, 0, 1, 1, 0, 1], [0, 0, 0, 0, 0, 1]],
        "logprobs": [[0, 0, -1, -2, 0, -1], [0, 0, 0, 0, 0, -1]],
        "versions": [[-1, -1, 2, 2, -1, 2], [-1, -1, -1, -1, -1, 0]],
        "token_rewards": [[0, 0, 0, 0.5, 0, 1], [0, 0, 0, 0, 0, 0]],
        "rewards": [1.5, 0.0],
        "success": [True, False],
        "valid": [True, True],
        "group_ids": [0, 0],
        "episodes": [0, 1],
        "lengths": [6, 2],
        "num_cut": [0, 0],
    }
    assert {name: array.tolist() for name, array in arrays.items()} == expected
    floats = {"logprobs", "token_rewards", "rewards"}
    for name, array in arrays.items():
        kind = np.float32 if name in floats else np.bool_ if name in ("success", "valid") else np.int64
        assert array.dtype == kind, name


def _table(text: str) -> dict[str, tuple[str, ...]]:
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in text.splitlines()
        if line.strip().startswith("| `")
    ]
    return {key.strip("`"): (padded, packed, dtype) for key, padded, packed, dtype, _ in rows}


def test_the_docstring_and_the_guide_name_every_array() -> None:
    documented = _table(Trajectories.to_arrays.__doc__ or "")
    page = (Path(__file__).parents[4] / "docs" / "results.md").read_text()
    named = page.partition("## Arrays")[2].partition("```")[0]
    assert [key for key in documented if f"`{key}`" not in named] == []
    batch = Trajectories([sampled(), sampled([((1,), (2, 3), 1.0)])])
    sizes = {"[N, T]": (2, 3), "[M]": (6,), "[N + 1]": (3,), "[N]": (2,)}
    for column, layout in enumerate(("padded", "packed")):
        arrays = batch.to_arrays(layout)  # type: ignore[arg-type]
        told = {key: (row[column].strip("`"), row[2]) for key, row in documented.items() if row[column]}
        assert {key: (array.shape, str(array.dtype)) for key, array in arrays.items()} == {
            key: (sizes[shape], dtype) for key, (shape, dtype) in told.items()
        }


def test_what_max_length_leaves_out_is_said() -> None:
    arrays = Trajectories([sampled([((1, 2), (3, 4), 1.0)])]).to_arrays(max_length=3)
    assert arrays["ids"].tolist() == [[1, 2, 3]]
    assert arrays["num_cut"].tolist() == [1]
    assert arrays["rewards"].tolist() == [1.0]


def test_torch_gets_the_same_as_tensors() -> None:
    torch = pytest.importorskip("torch")
    trajectories = Trajectories([sampled(), sampled(failed=True)])
    tensors = trajectories.to_arrays("packed", "torch")
    for name, array in trajectories.to_arrays("packed").items():
        assert isinstance(tensors[name], torch.Tensor)
        np.testing.assert_array_equal(tensors[name].numpy(), array)


def test_a_trainers_logprobs_meet_those_of_the_sampler_one_token_later() -> None:
    """`logits[:, t - 1]` predict `ids[:, t]`: the shift is the trainer's, not the arrays'."""
    torch = pytest.importorskip("torch")
    logits = torch.randn(1, 3, 8, generator=torch.Generator().manual_seed(0))
    chosen = logits.log_softmax(-1)[0, 1, 5].item()
    episodes = sampled([((1, 2), (5,), 1.0)])
    assert episodes.tokens is not None
    episodes.tokens.behavior_logprobs[2] = chosen
    arrays = Trajectories([episodes]).to_arrays(library="torch")
    predicted = logits[:, :-1].log_softmax(-1).gather(-1, arrays["ids"][:, 1:, None]).squeeze(-1)
    mask = arrays["response_mask"][:, 1:] == 1
    torch.testing.assert_close(predicted[mask], arrays["logprobs"][:, 1:][mask])


def test_episodes_of_text_have_no_arrays() -> None:
    with pytest.raises(ConfigurationError, match="replied with text alone"):
        Trajectories([episode("a")]).to_arrays()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layout": "ragged"}, "layout: must be one of padded, packed, not 'ragged'"),
        ({"library": "jax"}, "library: must be one of"),
        ({"padding_side": "top"}, "padding_side"),
        ({"max_length": 0}, "max_length: must be at least 1"),
    ],
)
def test_bad_settings_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Trajectories([sampled()]).to_arrays(**settings)
