"""Token logs as arrays for a trainer of one's own: `Trajectories.to_arrays` documents them. Pure NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from envsdk.algorithms.advantage_sample import AdvantageSample, steps_of
from envsdk.base.settings.extras import require
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.segments import Segment
from envsdk.contracts.trajectory import NO_VERSION, TokenArrays, Trajectory

Layout = Literal["padded", "packed"]
Library = Literal["numpy", "torch"]
Side = Literal["left", "right"]

_NO_TOKENS = TokenArrays(
    ids=np.zeros(0, np.int32),
    response_mask=np.zeros(0, np.int8),
    behavior_logprobs=np.zeros(0, np.float32),
    versions=np.zeros(0, np.int32),
)


def to_arrays(
    episodes: Sequence[Trajectory],
    group_ids: Sequence[int],
    *,
    layout: Layout,
    library: Library,
    padding_side: Side,
    pad_id: int,
    max_length: int | None,
) -> dict[str, Any]:
    """As documented at `Trajectories.to_arrays`."""
    for name, value, known in (
        ("layout", layout, Layout),
        ("library", library, Library),
        ("padding_side", padding_side, Side),
    ):
        if value not in get_args(known):
            raise ConfigurationError(f"{name}: must be one of {', '.join(get_args(known))}, not {value!r}")
    if max_length is not None and max_length < 1:
        raise ConfigurationError(f"max_length: must be at least 1, not {max_length}")
    if library == "torch":
        require("to_arrays(library='torch')", "torch")
    if episodes and all(each.tokens is None for each in episodes):
        raise ConfigurationError(
            "to_arrays: none of the episodes has tokens: the policy replied with text alone. Play with a "
            "model in an engine (a model folder, envsdk.LocalEngine, envsdk.Rollouts), or use to_messages"
        )
    rows = segments_of(episodes)
    logs = [segment.tokens or _NO_TOKENS for _, segment in rows]
    owners = np.array([number for number, _ in rows], np.int64)
    packed = _packed(episodes, rows, max_length)
    lengths = packed.pop("lengths")
    arrays = (
        {**packed, "cu_seqlens": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)}
        if layout == "packed"
        else _padded(packed, lengths, padding_side, pad_id)
    )
    is_failed = np.array([each.failure is not None for each in episodes], bool)
    arrays |= {
        "rewards": np.where(is_failed, np.nan, [each.total_reward for each in episodes])[owners].astype("f4"),
        "success": np.array([each.success for each in episodes], bool)[owners],
        "valid": np.array([log.response_mask.any() for log in logs], bool) & ~is_failed[owners],
        "group_ids": np.array(group_ids, np.int64)[owners],
        "episodes": owners,
        "lengths": lengths,
        "num_cut": np.array([len(log) for log in logs], np.int64) - lengths,
    }
    if library == "torch":
        import torch

        return {name: torch.from_numpy(array) for name, array in arrays.items()}
    return arrays


def segments_of(episodes: Sequence[Trajectory]) -> list[tuple[int, Segment]]:
    """Every segment, with the position of its episode."""
    return [(number, segment) for number, each in enumerate(episodes) for segment in each.segments()]


def _packed(
    episodes: Sequence[Trajectory], rows: Sequence[tuple[int, Segment]], max_length: int | None
) -> dict[str, NDArray[Any]]:
    """The arrays of tokens `[M]`, and `lengths` `[N]`."""
    logs = [segment.tokens or _NO_TOKENS for _, segment in rows]
    rewards = list(map(_token_rewards, episodes))
    lengths = np.array([min(len(log), max_length or len(log)) for log in logs], np.int64)

    def joined(of: Callable[[int], NDArray[Any]], dtype: type) -> NDArray[Any]:
        parts = [of(index)[: lengths[index]] for index in range(len(logs))]
        return np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype, copy=False)

    starts = np.cumsum(lengths) - lengths
    is_failed = np.array([episodes[number].failure is not None for number, _ in rows], bool)
    mask = joined(lambda n: logs[n].response_mask, np.int64)
    return {
        "ids": joined(lambda n: logs[n].ids, np.int64),
        "position_ids": np.arange(lengths.sum()) - np.repeat(starts, lengths),
        "response_mask": np.where(np.repeat(is_failed, lengths), 0, mask),
        "logprobs": joined(lambda n: logs[n].behavior_logprobs, np.float32),
        "versions": joined(lambda n: logs[n].versions, np.int64),
        "token_rewards": joined(lambda n: rows[n][1].take(rewards[rows[n][0]]), np.float32),
        "lengths": lengths,
    }


def _token_rewards(episode: Trajectory) -> NDArray[np.float32]:
    """The turns' rewards as the estimators see them, `[num_tokens]`."""
    if episode.failure is not None or episode.tokens is None:
        return np.zeros(0 if episode.tokens is None else len(episode.tokens), np.float32)
    steps = steps_of(AdvantageSample.of(episode), "token")
    return steps.spread(steps.rewards_S)


def _padded(
    packed: dict[str, NDArray[Any]], lengths: NDArray[np.int64], side: Side, pad_id: int
) -> dict[str, NDArray[Any]]:
    longest = int(lengths.max(initial=0))
    columns = np.arange(longest)
    is_token = columns < lengths[:, None] if side == "right" else columns >= (longest - lengths)[:, None]
    filled = {"ids": pad_id, "versions": NO_VERSION}
    arrays: dict[str, NDArray[Any]] = {}
    for name, flat in packed.items():
        arrays[name] = np.full(is_token.shape, filled.get(name, 0), flat.dtype)
        arrays[name][is_token] = flat
    arrays["attention_mask"] = is_token.astype(np.int64)
    return arrays
