"""Building a search index in memory that does not grow with the number of documents.

    add(tokens) per document -> sorted runs on disk -> merge, a range of terms at a time -> postings

A run is a file of term hashes, one of how many postings each has, and one of the postings. The merge
goes through all runs from the lowest hash to the highest and writes every file of the index front to back.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from envsdk.envs.webshop.columns import ColumnWriter, read_pieces
from envsdk.envs.webshop.index import DOCUMENTS, K1, SCORES, STARTS, TERMS, B, lucene_length, term_hash

_RUN_POSTINGS = 1_000_000
_MERGED_POSTINGS = 1 << 18
_MAX_HASHES = 100_000
_POSTING = np.dtype([("document", "<u4"), ("count", "<u4")])


@dataclass(slots=True)
class _Run:
    """The files of one run, and how much of them is merged."""

    folder: Path
    number: int
    num_terms: int = 0
    num_postings: int = 0

    def file(self, part: str) -> Path:
        return self.folder / f"run_{self.number:04d}.{part}"

    def write(self, hashes: array[int], documents: array[int], counts: array[int]) -> None:
        terms = np.frombuffer(hashes, np.uint64)
        order = np.argsort(terms, kind="stable")
        terms = terms[order]
        firsts = np.flatnonzero(np.concatenate([[True], terms[1:] != terms[:-1]]))
        terms[firsts].tofile(self.file("terms"))
        np.diff(firsts, append=len(terms)).astype(np.uint32).tofile(self.file("lengths"))
        postings = np.empty(len(terms), _POSTING)
        postings["document"] = np.frombuffer(documents, np.uint32)[order]
        postings["count"] = np.frombuffer(counts, np.uint32)[order]
        postings.tofile(self.file("postings"))

    def edges(self, bounds: NDArray[np.uint64]) -> NDArray[np.intp]:
        """How many of the terms are below each bound, and how many there are."""
        terms = np.memmap(self.file("terms"), np.uint64, mode="r").view(np.ndarray)
        return np.append(np.searchsorted(terms, bounds), len(terms))

    def next_terms(self, count: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Terms and how many postings each has."""
        start, self.num_terms = self.num_terms, self.num_terms + count
        terms = np.fromfile(self.file("terms"), np.uint64, count, offset=8 * start)
        lengths = np.fromfile(self.file("lengths"), np.uint32, count, offset=4 * start)
        return terms, lengths.astype(np.int64)

    def next_postings(self, count: int) -> NDArray[np.void]:
        start, self.num_postings = self.num_postings, self.num_postings + count
        return np.fromfile(self.file("postings"), _POSTING, count, offset=_POSTING.itemsize * start)


@dataclass(frozen=True, slots=True)
class _Merged:
    """Postings in the order of the index: complete terms, or a part of one."""

    frequencies: NDArray[np.int64]
    """`[num_terms]`: documents that hold the term, in the catalogue."""
    lengths: NDArray[np.int64]
    """`[num_terms]`: postings of it in this part."""
    postings: NDArray[np.void]


class IndexBuilder:
    """Collects postings document by document, in the order of the catalogue.

    Files in `folder`: three per run, and `lengths.u32`, the documents' lengths. After a crash,
    `resume(num_documents, num_runs)` resumes after the last flush.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.num_documents = 0
        self.num_runs = 0
        self._terms, self._documents, self._counts = array("Q"), array("I"), array("I")
        self._lengths = array("I")
        self._hashes: dict[str, int] = {}

    def resume(self, num_documents: int, num_runs: int) -> None:
        self.num_documents, self.num_runs = num_documents, num_runs
        lengths = self._lengths_file()
        with lengths.open("r+b") if lengths.exists() else lengths.open("wb") as file:
            file.truncate(4 * num_documents)

    def add(self, tokens: Sequence[str]) -> None:
        """The next document."""
        hashes = self._hashes
        if len(hashes) > _MAX_HASHES:
            hashes.clear()
        counts = Counter(tokens)
        for term in counts:
            if term not in hashes:
                hashes[term] = int.from_bytes(term_hash(term), "little")
        self._terms.extend(map(hashes.__getitem__, counts))
        self._counts.extend(counts.values())
        self._documents.extend(repeat(self.num_documents, len(counts)))
        self._lengths.append(len(tokens))
        self.num_documents += 1
        if len(self._terms) >= _RUN_POSTINGS:
            self.flush()

    def flush(self) -> None:
        """Put what is in memory on disk, as a run sorted by term and document."""
        if not self._lengths:
            return
        if self._terms:
            _Run(self.folder, self.num_runs).write(self._terms, self._documents, self._counts)
            self.num_runs += 1
        with self._lengths_file().open("ab") as file:
            file.write(self._lengths.tobytes())
        self._terms, self._documents, self._counts = array("Q"), array("I"), array("I")
        self._lengths = array("I")

    def finish(self, out: Path, *, tell: Callable[[float], None] = lambda share: None) -> None:
        """Merge the runs into the files of an index in `out`, but for the ranks that break ties.

        Args:
            tell: Called now and then with the share of postings that are merged.
        """
        self.flush()
        runs = [_Run(self.folder, number) for number in range(self.num_runs)]
        total = sum(run.file("postings").stat().st_size for run in runs) // _POSTING.itemsize
        scorer = _Scorer(self._lengths_file())
        done = 0
        with (
            ColumnWriter(out / TERMS, np.uint64) as terms,
            ColumnWriter(out / STARTS, np.int64) as starts,
            ColumnWriter(out / DOCUMENTS, np.int32, min_length=1) as documents,
            ColumnWriter(out / SCORES, np.float32, min_length=1) as scores,
        ):
            starts.append(np.zeros(1, np.int64))
            for hashes, frequencies, directory in _merge_terms(runs, 1 + total // _MERGED_POSTINGS):
                terms.append(hashes)
                starts.append(done + np.cumsum(frequencies))
                done += int(frequencies.sum())
                for merged in _merge_postings(runs, frequencies, directory):
                    documents.append(merged.postings["document"])
                    scores.append(scorer.scores(merged))
                tell(done / max(total, 1))

    def _lengths_file(self) -> Path:
        return self.folder / "lengths.u32"


class _Scorer:
    """Lucene's BM25 of postings, in its 32-bit arithmetic."""

    def __init__(self, lengths: Path) -> None:
        longest, total, num_documents = 0, 0, 0
        for piece in read_pieces(lengths, np.uint32):
            longest = max(longest, int(piece.max()))
            total += int(piece.sum(dtype=np.int64))
            num_documents += int(np.count_nonzero(piece))
        self._num_documents = max(num_documents, 1)
        average = np.float32(max(total, 1) / self._num_documents)
        rounded = np.array([lucene_length(length) for length in range(longest + 1)], np.float32)
        one = np.float32(1)
        self._norms = one / (np.float32(K1) * ((one - np.float32(B)) + np.float32(B) * rounded / average))
        self._lengths = np.memmap(lengths, np.uint32, mode="r").view(np.ndarray) if total else None

    def scores(self, merged: _Merged) -> NDArray[np.float32]:
        """`[num_postings]`."""
        assert self._lengths is not None
        frequencies = merged.frequencies
        idf = np.log(1 + (self._num_documents - frequencies + 0.5) / (frequencies + 0.5)).astype(np.float32)
        weight = np.repeat(idf, merged.lengths)
        tf = merged.postings["count"].astype(np.float32)
        norms = self._norms[self._lengths[merged.postings["document"]]]
        scores: NDArray[np.float32] = weight - weight / (np.float32(1) + tf * norms)
        return scores


_Directory = list[tuple[NDArray[np.intp], NDArray[np.int64]]]
"""Per run: which of the merged terms it has, and how many postings of each."""


def _merge_terms(
    runs: Sequence[_Run], num_ranges: int
) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.int64], _Directory]]:
    """The terms of all runs in order, in `num_ranges` parts; with in how many documents each is."""
    # Hashes are spread evenly, so that ranges of the same width hold about as many.
    bounds = np.array([(number << 64) // num_ranges for number in range(1, num_ranges)], np.uint64)
    edges = [run.edges(bounds) for run in runs]
    for number in range(num_ranges):
        parts = []
        for run, stops in zip(runs, edges, strict=True):
            parts.append(run.next_terms(int(stops[number]) - run.num_terms))
        terms = np.unique(np.concatenate([part[0] for part in parts])) if parts else np.empty(0, np.uint64)
        frequencies = np.zeros(len(terms), np.int64)
        directory = []
        for hashes, lengths in parts:
            where = np.searchsorted(terms, hashes)
            frequencies[where] += lengths
            directory.append((where, lengths))
        yield terms, frequencies, directory


def _merge_postings(
    runs: Sequence[_Run], frequencies: NDArray[np.int64], directory: _Directory
) -> Iterator[_Merged]:
    """The postings of some terms, in order."""
    for first, last in _groups(frequencies.tolist()):
        group = frequencies[first:last]
        parts = []
        for run, (where, lengths) in zip(runs, directory, strict=True):
            start, stop = np.searchsorted(where, (first, last)).tolist()
            own = lengths[start:stop]
            parts.append((where[start:stop] - first, own, run.next_postings))
        if last - first == 1:
            # One term: its postings are those of the runs, one behind the other.
            for _, lengths, read in parts:
                if len(lengths):
                    yield _Merged(group, lengths, read(int(lengths[0])))
            continue
        cursors = np.cumsum(group) - group
        postings = np.empty(int(group.sum()), _POSTING)
        for where, lengths, read in parts:
            firsts = np.cumsum(lengths) - lengths
            positions = np.repeat(cursors[where] - firsts, lengths)
            positions += np.arange(len(positions))
            postings[positions] = read(len(positions))
            cursors[where] += lengths
        yield _Merged(group, group, postings)


def _groups(frequencies: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Neighboring terms that have at most `_MERGED_POSTINGS` postings together, or one that has more."""
    first, held = 0, 0
    for number, frequency in enumerate(frequencies):
        if held and held + frequency > _MERGED_POSTINGS:
            yield first, number
            first, held = number, 0
        held += frequency
    if held:
        yield first, len(frequencies)
