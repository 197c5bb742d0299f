"""Which tokens could be drawn at each place of a sequence. Pure.

`top_k`, `top_p` and `min_p` leave a part of the vocabulary, the *support*, over which the sampler's
probabilities are normalized. A trainer normalizes over the same one, whatever its own weights would leave:
an importance ratio then compares two policies over the same actions.

Source: "Keep Sampling Mask", DeepSeek-V3.2, arXiv:2512.02556, sec. 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Support:
    """Sets of token ids, one after the other: 4 bytes for each place and for each id."""

    counts: NDArray[np.int32]
    """`[num_tokens]`: ids at each place; 0: the whole vocabulary, or nothing was drawn there."""
    ids: NDArray[np.int32]
    """`[sum of counts]`; the token that was drawn is among those of its place."""

    @classmethod
    def of(cls, sets: Sequence[Sequence[int] | NDArray[np.int32]]) -> Support:
        """One set for each place."""
        counts = np.fromiter(map(len, sets), np.int32, len(sets))
        return cls(counts=counts, ids=np.concatenate([np.zeros(0, np.int32), *sets]).astype(np.int32))

    @classmethod
    def stored(cls, counts: Sequence[int], ids: Sequence[int]) -> Support:
        """The fields as they are in files."""
        return cls(counts=np.array(counts, np.int32), ids=np.array(ids, np.int32))

    @classmethod
    def joined(cls, parts: Sequence[Support | None], lengths: Sequence[int]) -> Support | None:
        """One after the other, None being the whole vocabulary at so many places; None if all of them are."""
        if all(part is None for part in parts):
            return None
        found = [
            part or cls(counts=np.zeros(length, np.int32), ids=np.zeros(0, np.int32))
            for part, length in zip(parts, lengths, strict=True)
        ]
        return cls(
            counts=np.concatenate([part.counts for part in found]),
            ids=np.concatenate([part.ids for part in found]),
        )

    def __len__(self) -> int:
        return len(self.counts)

    def check(self, drawn: NDArray[np.int32]) -> None:
        """ValueError unless these tokens, one of each place, are in its sets."""
        is_whole = len(drawn) == len(self)
        if not is_whole or (self.ids == np.repeat(drawn, self.counts)).sum() != np.count_nonzero(self.counts):
            raise ValueError("the engine's support of a reply lacks a token that was drawn")

    def take(self, places: slice | NDArray[np.int64]) -> Support:
        """The sets at these places, in their order."""
        counts, starts = self.counts[places], (np.cumsum(self.counts) - self.counts)[places]
        shifts = np.repeat(starts - (np.cumsum(counts) - counts), counts)
        return Support(counts=counts, ids=self.ids[shifts + np.arange(len(shifts))])
