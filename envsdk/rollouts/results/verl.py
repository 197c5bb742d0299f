"""Episodes in the form of verl's `DataProto`, as its own rollouts give them. Needs torch, and not verl.

from verl import DataProto

data = DataProto.from_dict(**trajectories.to_verl(pad_id=tokenizer.pad_token_id))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from envsdk.base.settings.extras import require
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.trajectory import TokenArrays, Trajectory
from envsdk.rollouts.results.arrays import segments_of

if TYPE_CHECKING:
    import torch


def to_verl(
    episodes: Sequence[Trajectory],
    *,
    prompt_length: int | None = None,
    response_length: int | None = None,
    pad_id: int = 0,
) -> dict[str, Any]:
    """See `Trajectories.to_verl`."""
    require("to_verl()", "torch")
    import torch

    rows = [
        (episodes[number], segment.turns, segment.tokens)
        for number, segment in segments_of(episodes)
        if episodes[number].failure is None
        and segment.tokens is not None
        and segment.tokens.response_mask.any()
    ]
    kept, logs = [episode for episode, _, _ in rows], [log for _, _, log in rows]
    if not logs:
        raise ConfigurationError(
            f"to_verl: none of the {len(episodes)} episodes can be learned from: each failed, or the policy "
            "sampled no token"
        )
    starts = [int(log.response_mask.argmax()) for log in logs]
    longest_prompt = max(starts)
    if prompt_length is not None and longest_prompt > prompt_length:
        raise ConfigurationError(
            f"to_verl: a prompt has {longest_prompt} tokens, and prompt_length is {prompt_length}: raise it"
        )
    width = response_length or max(len(log) - start for log, start in zip(logs, starts, strict=True))

    def responses(of: Callable[[TokenArrays], NDArray[Any]], fill: int, dtype: type) -> torch.Tensor:
        rows = [of(log)[start : start + width] for log, start in zip(logs, starts, strict=True)]
        return _padded(rows, width, fill, dtype, to_left=False)

    prompts = _padded(
        [log.ids[:start] for log, start in zip(logs, starts, strict=True)],
        prompt_length or longest_prompt,
        pad_id,
        np.int64,
        to_left=True,
    )
    is_prompt = torch.arange(prompts.shape[1]) >= prompts.shape[1] - torch.tensor(starts)[:, None]
    lengths = torch.tensor([min(len(log) - start, width) for log, start in zip(logs, starts, strict=True)])
    is_response = torch.arange(width) < lengths[:, None]
    attention_mask = torch.cat([is_prompt, is_response], dim=1).long()
    ids = responses(lambda log: log.ids, pad_id, np.int64)
    scores = torch.zeros(len(kept), width)
    scores[torch.arange(len(kept)), lengths - 1] = torch.tensor([each.total_reward for each in kept])
    versions = [log.versions[log.response_mask == 1] for log in logs]
    return {
        "tensors": {
            "prompts": prompts,
            "responses": ids,
            "response_mask": responses(lambda log: log.response_mask, 0, np.int64),
            "input_ids": torch.cat([prompts, ids], dim=1),
            "attention_mask": attention_mask,
            "position_ids": (attention_mask.cumsum(dim=1) - 1).clamp(min=0),
            "rollout_log_probs": responses(lambda log: log.behavior_logprobs, 0, np.float32),
            "rm_scores": scores,
        },
        "non_tensors": {
            "uid": _objects([f"{e.task.split}/{e.task.tag}/{e.task.index}/{e.group_id}" for e in kept]),
            "data_source": _objects([each.task.tag for each in kept]),
            "index": _objects([each.task.index for each in kept]),
            "trajectory_id": _objects([each.trajectory_id for each in kept]),
            "success": np.array([each.success for each in kept]),
            "min_global_steps": _objects([int(each.min()) for each in versions]),
            "max_global_steps": _objects([int(each.max()) for each in versions]),
            "__num_turns__": np.array([2 * len(turns) for _, turns, _ in rows], np.int32),
        },
        "meta_info": {"reward_extra_keys": ["success"]},
    }


def _padded(
    rows: Sequence[NDArray[Any]], width: int, fill: int, dtype: type, *, to_left: bool
) -> torch.Tensor:
    import torch

    filled: NDArray[Any] = np.full((len(rows), width), fill, dtype)
    for number, row in enumerate(rows):
        start = width - len(row) if to_left else 0
        filled[number, start : start + len(row)] = row
    return torch.from_numpy(filled)


def _objects(values: Sequence[Any]) -> NDArray[np.object_]:
    array = np.empty(len(values), object)
    array[:] = values
    return array
