"""Sampling by inverse CDF: one uniform number per token, taken from the request's own stream.

So a reply depends on its seed, prompt and weights alone, not on which requests share its batch.
B is the number of rows, V the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from envsdk.contracts.support import Support
from envsdk.engines.engine import PromptScores, TopTokens
from envsdk.engines.sampling import SHAPE, LogitChanges, SamplingParams

# Keeps u * total strictly below total in float32, so that no token without probability is drawn.
_BELOW_ONE = np.float32(1.0 - 2.0**-22)

_LIKELIEST = 512
"""Tokens among which those that are left out are looked for first: sorting a large vocabulary takes long."""


def uniforms(seed: int, count: int) -> NDArray[np.float32]:
    """The first `count` numbers of the stream of `seed`, in [0, 1)."""
    return np.random.Generator(np.random.PCG64(seed % 2**64)).random(count, dtype=np.float32) * _BELOW_ONE


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingPlan:
    """What a batch's rows ask for; None where no row asks, so that the common case costs nothing."""

    inverse_temperature_B1: Tensor | None
    greedy_B: Tensor | None
    filtered_rows: Tensor | None
    """Rows that leave tokens out."""
    num_top: int
    """Most likeliest tokens that a row asks for."""
    shape: Mapping[str, Tensor]
    """Values of these rows by parameter of `SamplingShape`: `[num_filtered, 1]`."""
    tells_support: bool
    """A row asks which tokens could be drawn."""

    @classmethod
    def of(cls, params: Sequence[SamplingParams], device: torch.device) -> SamplingPlan:
        temperatures = [p.temperature or 1.0 for p in params]
        greedy = [p.temperature == 0 for p in params]
        filtered = [row for row, p in enumerate(params) if p.is_truncated]
        return cls(
            inverse_temperature_B1=None
            if all(t == 1.0 for t in temperatures)
            else (1.0 / torch.tensor(temperatures, device=device)).unsqueeze(1),
            greedy_B=torch.tensor(greedy, device=device) if any(greedy) else None,
            filtered_rows=torch.tensor(filtered, device=device) if filtered else None,
            num_top=max((p.top_logprobs for p in params), default=0),
            shape={
                name: torch.tensor([[getattr(params[row], name)] for row in filtered], device=device)
                for name in SHAPE
                if filtered
            },
            tells_support=any(p.tells_support for p in params),
        )


class Sampled(NamedTuple):
    """One token of each row."""

    tokens_B: Tensor
    logprobs_B: Tensor
    """Under the distribution that the tokens were drawn from."""
    top: TopTokens | None
    """Likeliest tokens of that distribution, for all rows, where the plan asks for some."""
    support: Support | None = None
    """Tokens that could be drawn, for all rows, where the plan asks for them."""


def sample(logits_BV: Tensor, uniforms_B: Tensor, plan: SamplingPlan) -> Sampled:
    """Draw a token of each row."""
    if plan.inverse_temperature_B1 is not None:
        logits_BV = logits_BV * plan.inverse_temperature_B1
    support = None
    if plan.filtered_rows is not None:
        kept = _filter(logits_BV[plan.filtered_rows], plan.shape)
        if plan.tells_support:
            support = _support(kept, plan.filtered_rows, len(logits_BV))
        logits_BV = logits_BV.index_copy(0, plan.filtered_rows, kept)
    probabilities_BV = torch.softmax(logits_BV, -1)
    cumulative_BV = torch.cumsum(probabilities_BV, -1)
    target_B1 = cumulative_BV[:, -1:] * uniforms_B.unsqueeze(1)
    # right=True finds the first token whose cumulative probability exceeds the target.
    tokens_B1 = torch.searchsorted(cumulative_BV, target_B1, right=True)
    if plan.greedy_B is not None:
        best_B1 = probabilities_BV.argmax(-1, keepdim=True)
        tokens_B1 = torch.where(plan.greedy_B.unsqueeze(1), best_B1, tokens_B1)
    # Reached only when the logits are not numbers; the log-probability then says so.
    tokens_B1.clamp_(max=logits_BV.shape[1] - 1)
    logprobs_B = probabilities_BV.gather(1, tokens_B1).squeeze(1).log_().clamp_(max=0.0)
    top = None
    if plan.num_top:
        probabilities, ids = probabilities_BV.topk(min(plan.num_top, probabilities_BV.shape[1]), -1)
        top = _top(ids, probabilities.log_().clamp_(max=0.0))
    return Sampled(tokens_B1.squeeze(1), logprobs_B, top, support)


def _support(kept_FV: Tensor, rows_F: Tensor, num_rows: int) -> Support:
    """The tokens of each of `num_rows` that are kept; `kept_FV` is of the rows `rows_F`, in their order."""
    is_kept_FV = kept_FV > -torch.inf
    counts_B = torch.zeros(num_rows, dtype=torch.int32, device=kept_FV.device)
    counts_B[rows_F] = is_kept_FV.sum(-1, dtype=torch.int32)
    ids = is_kept_FV.nonzero()[:, 1].to(torch.int32)
    return Support(counts=counts_B.cpu().numpy(), ids=ids.cpu().numpy())


def _top(ids: Tensor, logprobs: Tensor) -> TopTokens:
    return TopTokens(token_ids=ids.cpu().numpy().astype(np.int32), logprobs=logprobs.cpu().numpy())


def changed(
    logits_V: Tensor, changes: LogitChanges, prompt: NDArray[np.int64], reply: NDArray[np.int64]
) -> Tensor:
    """The logits after `prompt` and `reply`, as `changes` leave them."""
    logits_V = logits_V.clone()
    if changes.bias:
        ids, values = zip(*changes.bias, strict=True)
        logits_V[torch.tensor(ids, device=logits_V.device)] += torch.tensor(values, device=logits_V.device)
    if changes.repetition_penalty != 1:
        seen = torch.from_numpy(np.union1d(prompt, reply)).to(logits_V.device)
        before = logits_V[seen]
        penalty = changes.repetition_penalty
        logits_V[seen] = torch.where(before > 0, before / penalty, before * penalty)
    if len(reply) and (changes.frequency_penalty or changes.presence_penalty):
        given, counts = np.unique(reply, return_counts=True)
        penalties = counts * changes.frequency_penalty + changes.presence_penalty
        logits_V[torch.from_numpy(given).to(logits_V.device)] -= torch.from_numpy(penalties).to(logits_V)
    return logits_V


def prompt_scores(logits: Iterable[Tensor], prompt: NDArray[np.int64], num_top: int) -> PromptScores:
    """`logits`: `[num_positions, V]` each, together after every token of the prompt but the last."""
    parts: list[NDArray[np.float32]] = []
    tops: list[TopTokens] = []
    start = 1
    for logits_TV in logits:
        logprobs_TV = torch.log_softmax(logits_TV, -1)
        next_T = torch.from_numpy(prompt[start : start + len(logits_TV)]).to(logits_TV.device)
        start += len(logits_TV)
        parts.append(logprobs_TV.gather(1, next_T.unsqueeze(1)).squeeze(1).cpu().numpy())
        if num_top:
            logprobs, ids = logprobs_TV.topk(min(num_top, logprobs_TV.shape[1]), -1)
            tops.append(_top(ids, logprobs))
    return PromptScores(
        logprobs=np.concatenate(parts) if parts else np.empty(0, np.float32), top=stacked(tops, num_top)
    )


def stacked(tops: Sequence[TopTokens], num_top: int) -> TopTokens | None:
    """One below the other, the `num_top` likeliest of each; None when none are asked for."""
    if not num_top:
        return None
    if not tops:
        return TopTokens(
            token_ids=np.empty((0, num_top), np.int32), logprobs=np.empty((0, num_top), np.float32)
        )
    return TopTokens(
        token_ids=np.concatenate([top.token_ids[:, :num_top] for top in tops]),
        logprobs=np.concatenate([top.logprobs[:, :num_top] for top in tops]),
    )


def _filter(logits_BV: Tensor, shape: Mapping[str, Tensor]) -> Tensor:
    """-inf outside the `top_k` likeliest tokens, then outside the smallest set that holds `top_p`, then below
    `min_p` times the likeliest token's probability."""
    if logits_BV.shape[1] <= _LIKELIEST:
        ordered, order = logits_BV.sort(dim=-1, descending=True)
        return torch.empty_like(logits_BV).scatter_(1, order, _cut(ordered, logits_BV, shape))
    ordered, order = logits_BV.topk(_LIKELIEST, -1)
    kept = _cut(ordered, logits_BV, shape)
    filtered = torch.full_like(logits_BV, -torch.inf).scatter_(1, order, kept)
    # Tokens as likely as the last of the top k are kept, too.
    least = ordered.gather(1, shape["top_k"].clamp(1, _LIKELIEST) - 1)
    reaches_further = (kept[:, -1:] > -torch.inf) | (shape["top_k"] > 0) & (ordered[:, -1:] >= least)
    for row in reaches_further.squeeze(1).nonzero().flatten().tolist():
        one = slice(row, row + 1)
        ordered, order = logits_BV[one].sort(dim=-1, descending=True)
        kept = _cut(ordered, logits_BV[one], {name: values[one] for name, values in shape.items()})
        filtered[one] = filtered[one].scatter(1, order, kept)
    return filtered


def _cut(ordered: Tensor, logits_BV: Tensor, shape: Mapping[str, Tensor]) -> Tensor:
    """The likeliest of the logits, in order, and -inf where a token is left out."""
    top_k, count = shape["top_k"], ordered.shape[1]
    last = torch.where(top_k == 0, count, top_k.clamp(max=count)) - 1
    ordered = ordered.masked_fill(ordered < ordered.gather(1, last), -torch.inf)
    every = logits_BV if bool((top_k == 0).any()) else ordered
    total = torch.where(top_k == 0, every.logsumexp(-1, keepdim=True), ordered.logsumexp(-1, keepdim=True))
    probabilities = (ordered - total).exp()
    before = probabilities.cumsum(-1) - probabilities
    outside = before >= shape["top_p"]
    outside |= ordered < ordered[:, :1] + shape["min_p"].log()
    outside[:, 0] = False
    return ordered.masked_fill(outside, -torch.inf)
