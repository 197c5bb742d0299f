"""The fast path: Llama, Qwen2 and Qwen3 with few operations per layer.

At small batches a step costs what its operations cost to launch, so the weights are rearranged
once, when they are loaded, to need fewer of them:

- **RMS norm as layer norm.** PyTorch has a fused layer norm and no fused RMS norm on a CPU. They
  are the same on vectors of mean zero, so the residual stream is rotated into the subspace of
  mean-zero vectors of a slightly wider space (a Householder reflection that sends the last axis
  to the all-ones direction); weights that read or write the stream are rotated with it.
- Norm weights and the attention scale are folded into the matrices that follow them.
- Query, key and value of one key/value head lie side by side, so that every view the attention needs is a
  stride and not a copy; rotary pairs are interleaved, so that rotation is one complex product.

Shapes: B rows, N tokens (of all rows, packed), T longest new part, S longest sequence, M positions of a slot,
K key/value heads, G query heads per key/value head, D head size, H hidden size, W widened, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from envsdk.contracts.failures import EngineError
from envsdk.contracts.held import Held
from envsdk.engines.core import NO_WEIGHTS
from envsdk.engines.embedded import onednn
from envsdk.engines.embedded.architecture import Architecture
from envsdk.engines.embedded.attention import KeysAndValues, attended, attended_fused, attended_in_blocks
from envsdk.engines.embedded.decoder import Decoder, Tensors, checked, padded
from envsdk.engines.embedded.recorded import RecordedRows, Recorder

_WIDENING = 8
"""Extra width of the residual stream; one would do, eight keep rows aligned."""
_ROTATED_AT_ONCE = 4096
"""Rows of a matrix that are in memory in float32 when weights are rearranged."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """Matrices in the axes of the widened stream: input by output, contiguous; or packed, see `onednn`."""

    qkv: Tensor
    """`[W, K * (G + 2) * D]`"""
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    """`[G + 1, D]`"""
    output: Tensor
    """`[K * G * D, W]`"""
    output_bias: Tensor | None
    gate_up: Tensor
    """`[W, 2 * inner]`"""
    down: Tensor
    """`[inner, W]`"""


@dataclass(frozen=True, slots=True)
class FastWeights:
    """One version of the model."""

    embedding: Tensor
    """`[V, W]`"""
    layers: tuple[_Layer, ...]
    head: Tensor
    """`[W, V]`"""


def _tensors_of(weights: FastWeights) -> Iterator[Tensor]:
    """Always in the same order."""
    yield from (weights.embedding, weights.head)
    for layer in weights.layers:
        yield from (tensor for field in fields(layer) if (tensor := getattr(layer, field.name)) is not None)


def _taking(given: dict[str, Tensor], prefix: str) -> Callable[[str], Tensor]:
    """Weights by the ends of their names, each handed out once and let go of."""
    return lambda end: given.pop(prefix + end)


_LEAST_ROWS, _LEAST_KEYS, _LEAST_PRODUCTS = 4, 32, 400
"""Below these sizes PyTorch on a CPU multiplies matrices and adds up rows in ways that round differently."""
_HALVED = range(193, 384)
"""For so many keys MKL adds up the values in two halves, which begin elsewhere for each number."""
_MAX_SCORES = 1 << 21
"""Pairs of a new token and a key. A row with more of them is attended to in blocks, alone."""


class FastDecoder(Decoder[FastWeights]):
    """See the module's text."""

    caches = True

    def __init__(
        self,
        architecture: Architecture,
        *,
        num_slots: int,
        sequence_length: int,
        max_prefill_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        reproducible: bool = False,
        recorder: Recorder | None = None,
        max_rows: int = 0,
    ) -> None:
        """With a `recorder`, steps of up to `max_rows` rows are recorded; not when `reproducible`, which asks
        that the number of rows makes no difference."""
        arch = architecture
        self._reproducible = reproducible
        self.vocab_size = arch.vocab_size
        self.num_slots = num_slots
        self.device = device
        self._arch = arch
        self._dtype = dtype
        self._packs = onednn.serves(dtype, device) and not reproducible
        self._max_prefill_tokens = max_prefill_tokens
        # An odd multiple of 8: at a power of two, all slots would compete for a few lines of the caches.
        at_least = _HALVED.stop if reproducible and sequence_length >= _HALVED.start else 0
        self._span = ((max(sequence_length, at_least) + 7) // 8 | 1) * 8
        products_per_key = arch.head_dim * arch.num_queries_per_kv
        self._least_keys = min(self._span, max(_LEAST_KEYS, -(-_LEAST_PRODUCTS // products_per_key)))
        self._width = arch.hidden_size + _WIDENING
        # Layer norm divides by the widened width; this epsilon makes up for it, `_reading` for the rest.
        self._eps = arch.norm_eps * arch.hidden_size / self._width
        num_kept = num_slots + (recorder is not None)  # the last one is for rows that only fill up a size
        self._cache = KeysAndValues(arch, num_slots=num_kept, span=self._span, dtype=dtype, device=device)
        angles = torch.outer(torch.arange(sequence_length).float(), arch.inverse_frequencies)
        self._rotation = torch.polar(torch.full_like(angles, arch.rotary_scale), angles).to(device)
        self._weights: FastWeights | None = None
        # The rows being decoded, see `begin`.
        self._num_rows = 0
        self._longest = 0
        self._positions = torch.empty(0)
        self._targets = torch.empty(0)
        self._mask: Tensor | None = None
        self._mask_targets = torch.empty(0)
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._recorded: RecordedRows | None = None
        if recorder is not None:
            self._recorded = RecordedRows(
                self._decode_at,
                recorder=recorder,
                spare_target=self._targets_at(num_slots, torch.zeros(1, dtype=torch.int64, device=device))[0],
                max_rows=max_rows,
                max_keys=self._span,
                vocab_size=arch.vocab_size,
            )

    def build(self, tensors: Tensors) -> FastWeights:
        arch = self._arch
        optional = frozenset({"lm_head.weight"}) if arch.tied else frozenset[str]()
        expected = arch.weight_shapes()
        prefixes = [f"model.layers.{index}." for index in range(arch.num_layers)]
        num_missing = {prefix: sum(name.startswith(prefix) for name in expected) for prefix in prefixes}
        given: dict[str, Tensor] = {}
        layers: dict[str, _Layer] = {}
        with torch.inference_mode():
            for name, tensor in checked(tensors, expected, optional=optional):
                given[name] = tensor.to(self.device, torch.float32)
                prefix = ".".join(name.split(".")[:3]) + "."
                if prefix in num_missing:
                    num_missing[prefix] -= 1
                    if num_missing[prefix] == 0:
                        layers[prefix] = self._rearranged(_taking(given, prefix))
            embedding = given["model.embed_tokens.weight"]
            head = embedding if arch.tied else given["lm_head.weight"]
            return FastWeights(
                embedding=self._rotated(embedding),
                layers=tuple(layers[prefix] for prefix in prefixes),
                head=self._reading(head, given["model.norm.weight"]),
            )

    def _rearranged(self, weight: Callable[[str], Tensor]) -> _Layer:
        """One layer, from its weights by the ends of their names."""
        arch = self._arch
        keys, queries, dim = arch.num_kv_heads, arch.num_queries_per_kv, arch.head_dim
        interleaved = torch.arange(dim, device=self.device).view(2, dim // 2).t().reshape(-1)
        scale = dim**-0.5

        def grouped(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            """`[K * (G + 2) * D, ...]` with rotary pairs interleaved."""
            rest = query.shape[1:]
            query = query.view(keys, queries, dim, *rest)[:, :, interleaved]
            key = key.view(keys, 1, dim, *rest)[:, :, interleaved]
            return torch.cat([query, key, value.view(keys, 1, dim, *rest)], 1).reshape(-1, *rest)

        attention = "self_attn."
        query_scale = 1.0 if arch.qk_norm else scale
        qkv = grouped(
            weight(attention + "q_proj.weight") * query_scale,
            weight(attention + "k_proj.weight"),
            weight(attention + "v_proj.weight"),
        )
        qkv_bias = output_bias = qk_norm = None
        if arch.qkv_bias:
            qkv_bias = grouped(
                weight(attention + "q_proj.bias") * query_scale,
                weight(attention + "k_proj.bias"),
                weight(attention + "v_proj.bias"),
            ).to(self._dtype)
        if arch.output_bias:
            output_bias = self._rotated(weight(attention + "o_proj.bias").unsqueeze(0))[0]
        if arch.qk_norm:
            # The norm below is by the length, not by the root mean square: a factor sqrt(D).
            query_norm = weight(attention + "q_norm.weight")[interleaved] * scale
            key_norm = weight(attention + "k_norm.weight")[interleaved]
            qk_norm = torch.cat([query_norm.expand(queries, dim), key_norm.view(1, dim)]) * dim**0.5
        gate_up = torch.cat([weight("mlp.gate_proj.weight"), weight("mlp.up_proj.weight")])
        return _Layer(
            qkv=self._reading(qkv, weight("input_layernorm.weight")),
            qkv_bias=qkv_bias,
            qk_norm=qk_norm,
            output=self._writing(weight(attention + "o_proj.weight")),
            output_bias=output_bias,
            gate_up=self._reading(gate_up, weight("post_attention_layernorm.weight")),
            down=self._writing(weight("mlp.down_proj.weight")),
        )

    def _rotated(self, vectors: Tensor, factors: Tensor | None = None) -> Tensor:
        """Rows `[N, H]`, times `factors` `[H]`, in the widened stream, `[N, W]`: same length, mean zero."""
        width = self._width
        axis = torch.full((width,), -(width**-0.5), device=self.device)
        axis[-1] += 1.0
        axis /= torch.linalg.vector_norm(axis)
        rotated = torch.empty(len(vectors), width, dtype=self._dtype, device=self.device)
        for start in range(0, len(vectors), _ROTATED_AT_ONCE):
            piece = slice(start, start + _ROTATED_AT_ONCE)
            given = vectors[piece] if factors is None else vectors[piece] * factors
            wide = F.pad(given, (0, _WIDENING))
            rotated[piece].copy_(wide.sub_((wide @ axis).unsqueeze(-1) * (2.0 * axis)))
        return rotated

    def _reading(self, matrix: Tensor, norm: Tensor) -> Tensor:
        """A matrix `[out, H]` that reads the stream after the norm `[H]`, as `[W, out]`."""
        factor = math.sqrt(self._arch.hidden_size / self._width)
        return self._stored(self._rotated(matrix, norm * factor))

    def _writing(self, matrix: Tensor) -> Tensor:
        """A matrix `[H, in]` that adds to the stream, as `[in, W]`."""
        return self._stored(self._rotated(matrix.t()).t())

    def _stored(self, matrix: Tensor) -> Tensor:
        """A matrix `[out, in]` as `_product` takes it."""
        return onednn.packed(matrix) if self._packs else matrix.t().contiguous()

    def use(self, weights: FastWeights) -> None:
        if self._recorded is None or self._weights is None:
            self._weights = weights
            return
        # Recordings know the memory of the weights they were made with.
        for kept, new in zip(_tensors_of(self._weights), _tensors_of(weights), strict=True):
            kept.copy_(new)

    def hold(self, held: Held) -> None:
        if held is Held.NOTHING:
            self._weights, self._keys, self._values = None, [], []
            self._cache.free()
            if self._recorded is not None:
                self._recorded.forget()
        elif held is Held.ALL:
            if self._weights is None:
                raise EngineError(NO_WEIGHTS)
            self._cache.allocate()
            self._keys, self._values = self._cache.first(self._num_rows, self._span)

    def _product(self, rows: Tensor, matrix: Tensor, added: Tensor | None = None) -> Tensor:
        """`rows @ matrix + added`; reproducible, what a row becomes does not depend on how many there are."""
        if matrix.is_mkldnn:
            return onednn.product(rows, matrix, added)
        if not self._reproducible:
            return rows @ matrix if added is None else torch.addmm(added, rows, matrix)
        count = len(rows)
        product = (padded(rows, max(0, _LEAST_ROWS - count)) @ matrix)[:count]
        return product if added is None else product.add_(added)

    def _project(self, stream: Tensor, layer: _Layer, rotation: Tensor) -> Tensor:
        """Rotated queries and keys, and values, `[N, K, G + 2, D]`."""
        arch = self._arch
        normed = F.layer_norm(stream, (self._width,), None, None, self._eps)
        if layer.qkv_bias is None:
            projected = self._product(normed, layer.qkv)
        else:
            projected = self._product(normed, layer.qkv, layer.qkv_bias)
        heads = projected.view(-1, arch.num_kv_heads, arch.num_queries_per_kv + 2, arch.head_dim)
        turning = heads[:, :, :-1]
        exact = turning if self._dtype is torch.float32 else turning.float()
        if layer.qk_norm is not None:
            inverse = (
                torch.linalg.vecdot(exact, exact).add_(arch.norm_eps * arch.head_dim).rsqrt_().unsqueeze_(-1)
            )
            exact.mul_(inverse).mul_(layer.qk_norm)
        pairs = exact.view(*exact.shape[:-1], arch.head_dim // 2, 2)
        torch.view_as_complex(pairs).mul_(rotation)
        if exact is not turning:
            turning.copy_(exact)
        return heads

    def _feed_forward(self, stream: Tensor, layer: _Layer) -> Tensor:
        normed = F.layer_norm(stream, (self._width,), None, None, self._eps)
        gate, up = self._product(normed, layer.gate_up).chunk(2, -1)
        return self._product(F.silu(gate).mul_(up), layer.down, stream)

    def _attended(self, stream: Tensor, attention: Tensor, layer: _Layer) -> Tensor:
        stream = self._product(attention, layer.output, stream)
        return stream if layer.output_bias is None else stream.add_(layer.output_bias)

    def _logits(self, stream: Tensor, weights: FastWeights) -> Tensor:
        return self._scores(stream, weights).float()

    def _scores(self, stream: Tensor, weights: FastWeights) -> Tensor:
        """The logits, in the type that the model computes in."""
        normed = F.layer_norm(stream, (self._width,), None, None, self._eps)
        return self._product(padded(normed, self._spare(len(stream))), weights.head)[: len(stream)]

    def _num_keys(self, longest: int) -> int:
        """Keys that a row is compared with: its own, or some more, which are hidden."""
        if self._packs:
            return min(self._span, onednn.num_computed(longest))
        if not self._reproducible:
            return longest
        num_keys = -(-max(longest, self._least_keys) // 8) * 8
        return min(self._span, _HALVED.stop if num_keys in _HALVED else num_keys)

    def _spare(self, count: int) -> int:
        """How many rows go through the matrices beside so many."""
        return onednn.num_computed(count) - count if self._packs else 0

    def prefill(
        self, first_slot: int, ids: list[NDArray[np.int64]], past: list[int], *, want_logits: bool
    ) -> Tensor | None:
        logits: list[Tensor] = []
        start = 0
        while start < len(ids):
            end = start + 1
            longest, num_keys = len(ids[start]) - past[start], len(ids[start])
            while end < len(ids):
                longest, num_keys = max(longest, len(ids[end]) - past[end]), max(num_keys, len(ids[end]))
                num_new = longest * (end + 1 - start)
                if num_new > self._max_prefill_tokens or num_new * num_keys > 8 * _MAX_SCORES:
                    break
                if self._is_long(ids[start], past[start]) or self._is_long(ids[end], past[end]):
                    break
                end += 1
            part = self._prefill(first_slot + start, ids[start:end], past[start:end], want_logits=want_logits)
            if part is not None:
                logits.append(part)
            start = end
        return torch.cat(logits) if want_logits else None

    @staticmethod
    def _is_long(ids: NDArray[np.int64], past: int) -> bool:
        return (len(ids) - past) * len(ids) > _MAX_SCORES

    def _prefill(
        self, first_slot: int, ids: list[NDArray[np.int64]], past: list[int], *, want_logits: bool
    ) -> Tensor | None:
        new = [len(row) - begin for row, begin in zip(ids, past, strict=True)]
        stream = self._prefilled(first_slot, ids, past)
        if not want_logits:
            return None
        assert self._weights is not None
        last = torch.tensor(new, device=self.device).cumsum(0) - 1
        return self._logits(stream[last], self._weights)

    def score(self, slot: int, ids: NDArray[np.int64]) -> Iterator[Tensor]:
        assert self._weights is not None
        stream = self._prefilled(slot, [ids], [0])[:-1]
        at_once = max(1, _MAX_SCORES // self.vocab_size)
        for start in range(0, len(stream), at_once):
            yield self._logits(stream[start : start + at_once], self._weights)

    def _prefilled(self, first_slot: int, ids: list[NDArray[np.int64]], past: list[int]) -> Tensor:
        """What the last layer makes of the new tokens of all rows, end to end, `[num_new, W]`."""
        assert self._weights is not None
        arch, device = self._arch, self.device
        rows = len(ids)
        new = [len(row) - begin for row, begin in zip(ids, past, strict=True)]
        # Few queries are multiplied in another way, see `_LEAST_ROWS`.
        least_new = -(-_LEAST_ROWS // arch.num_queries_per_kv) if self._reproducible else 1
        longest_new, longest = max(least_new, *new), max(len(row) for row in ids)
        tokens = np.concatenate([row[begin:] for row, begin in zip(ids, past, strict=True)])
        positions = np.concatenate([np.arange(begin, len(row)) for row, begin in zip(ids, past, strict=True)])
        row_of = np.repeat(np.arange(rows), new)
        column = np.concatenate([np.arange(count) for count in new])
        place = None
        if min(new) != longest_new:
            place = torch.from_numpy(row_of * longest_new + column).to(device)
        heads = (first_slot + row_of)[:, None] * arch.num_kv_heads + np.arange(arch.num_kv_heads)
        targets_np = (heads[:, :, None] * 2 + np.arange(2)) * self._span + positions[:, None, None]
        targets = torch.from_numpy(targets_np).to(device)
        in_blocks = not self._reproducible or longest_new * longest > _MAX_SCORES
        if not in_blocks:
            attend = attended
        elif self._packs:
            attend = partial(attended_in_blocks, past=max(past))
        else:
            attend = attended_fused
        longest = self._num_keys(longest)
        reach = torch.tensor(past, device=device)[:, None] + torch.arange(longest_new, device=device)
        hidden = torch.arange(longest, device=device) > reach[:, :, None]
        count = len(tokens)
        spare = self._spare(count)
        tokens, positions = np.pad(tokens, (0, spare)), np.pad(positions, (0, spare))
        rotation = self._rotation[torch.from_numpy(positions).to(device)][:, None, None]
        stream = self._weights.embedding[torch.from_numpy(tokens).to(device)]
        group = arch.num_queries_per_kv
        slots = slice(first_slot * arch.num_kv_heads, (first_slot + rows) * arch.num_kv_heads)
        for layer, cache, cache_rows in zip(
            self._weights.layers, self._cache.layers, self._cache.rows, strict=True
        ):
            mixed = self._project(stream, layer, rotation)[:count]
            cache_rows[targets] = mixed[:, :, group:]
            queries = mixed[:, :, :group]
            if place is not None:
                spread = queries.new_zeros(rows * longest_new, *queries.shape[1:])
                queries = spread.index_copy_(0, place, queries)
            # Keys past a row's end are hidden: the row's own queries come before them.
            kept = cache[slots].view(rows, arch.num_kv_heads, 2, self._span, arch.head_dim)
            attention = attend(
                queries.view(rows, longest_new, arch.num_kv_heads, group, -1).transpose(1, 2),
                kept[:, :, 0, :longest],
                kept[:, :, 1, :longest],
                hidden,
            )
            flat = attention.transpose(1, 2).reshape(rows * longest_new, -1)
            flat = flat if place is None else flat[place]
            stream = self._attended(stream, padded(flat, spare), layer)
            stream = self._feed_forward(stream, layer)
        return stream[:count]

    def begin(self, ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        arch, device = self._arch, self.device
        rows, keys = len(lengths), arch.num_kv_heads
        self._num_rows = rows
        self._longest = int(lengths.max())
        self._positions = torch.from_numpy(lengths - 1).to(device)
        self._targets = self._targets_at(0, self._positions)
        if self._recorded is not None:
            self._recorded.begin(self._positions, self._targets, self._longest)
            return
        self._keys, self._values = self._cache.first(rows, self._span)
        self._mask = None
        if self._reproducible or self._packs or int(lengths.min()) != self._longest:
            self._mask = self._hiding(self._positions, self._span)
            row_positions = self._positions.repeat_interleave(keys)
            self._mask_targets = torch.arange(rows * keys, device=device) * self._span + row_positions

    def decode(self, tokens: Tensor) -> Tensor:
        weights = self._weights
        assert weights is not None
        if self._recorded is not None:
            return self._recorded.decode(tokens)
        length = self._num_keys(self._longest)
        mask = None
        if self._mask is not None:
            self._mask.view(-1).index_fill_(0, self._mask_targets, 0.0)
            mask = self._mask[:, :, :length]
        keys = [layer[:, :, :length] for layer in self._keys]
        values = [layer[:, :length] for layer in self._values]
        stream = self._decoded(weights, tokens, self._positions, self._targets, keys, values, mask)
        self._longest += 1
        self._positions += 1
        self._targets += 1
        if mask is not None:
            self._mask_targets += 1
        return self._logits(stream, weights)[: self._num_rows]

    def _decode_at(self, tokens: Tensor, positions: Tensor, targets: Tensor, num_keys: int) -> Tensor:
        """A step that depends on nothing but the shapes and contents of these and of the cache."""
        weights = self._weights
        assert weights is not None
        keys, values = self._cache.first(len(tokens), num_keys)
        mask = self._hiding(positions, num_keys)
        return self._scores(self._decoded(weights, tokens, positions, targets, keys, values, mask), weights)

    def _decoded(
        self,
        weights: FastWeights,
        tokens: Tensor,
        positions: Tensor,
        targets: Tensor,
        kept_keys: list[Tensor],
        kept_values: list[Tensor],
        mask: Tensor | None,
    ) -> Tensor:
        """What the last layer makes of one token per row, `[B, W]` or longer. Keys `[B * K, D, S]` and values
        `[B * K, S, D]` of each layer; `mask` `[B * K, 1, S]` is added to the scores."""
        rows, group = len(tokens), self._arch.num_queries_per_kv
        num_heads = rows * self._arch.num_kv_heads
        spare = self._spare(rows)
        if spare:
            tokens, positions = F.pad(tokens, (0, spare)), F.pad(positions, (0, spare))
        rotation = self._rotation[positions].view(rows + spare, 1, 1, -1)
        stream = weights.embedding[tokens]
        for layer, keys, values, cache_rows in zip(
            weights.layers, kept_keys, kept_values, self._cache.rows, strict=True
        ):
            mixed = self._project(stream, layer, rotation)[:rows]
            cache_rows[targets] = mixed[:, :, group:]
            queries = mixed.view(num_heads, group + 2, -1)[:, :group]
            if self._packs:
                attention = onednn.attended(queries, keys, values, mask)
            else:
                scores = torch.bmm(queries, keys) if mask is None else torch.baddbmm(mask, queries, keys)
                attention = torch.bmm(torch.softmax(scores, -1), values)
            stream = self._attended(stream, padded(attention.view(rows, -1), spare), layer)
            stream = self._feed_forward(stream, layer)
        return stream

    def _targets_at(self, first_slot: int, positions: Tensor) -> Tensor:
        """Rows of the cache for keys and values at a position of slots `first_slot + i`, `[B, K, 2]`."""
        arch, rows = self._arch, len(positions)
        heads = torch.arange(rows * arch.num_kv_heads, device=self.device) + first_slot * arch.num_kv_heads
        places = (heads[:, None] * 2 + torch.arange(2, device=self.device)) * self._span
        return places.view(rows, arch.num_kv_heads, 2) + positions[:, None, None]

    def _hiding(self, positions: Tensor, num_keys: int) -> Tensor:
        """`[B * K, 1, num_keys]`: 0 up to each row's position, then -inf."""
        row_positions = positions.repeat_interleave(self._arch.num_kv_heads)
        hidden = torch.arange(num_keys, device=self.device) > row_positions[:, None]
        mask = torch.zeros(hidden.shape, dtype=self._dtype, device=self.device)
        return mask.masked_fill_(hidden, -torch.inf).unsqueeze(1)

    def move(self, source: int, target: int, length: int) -> None:
        self._cache.move(source, target, length)

    def exchange(self, one: int, other: int, length: int) -> None:
        self._cache.exchange(one, other, length)

    def clear(self, slot: int) -> None:
        self._cache.clear(slot)
