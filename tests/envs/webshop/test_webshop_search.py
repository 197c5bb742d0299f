import math
from collections import Counter
from difflib import SequenceMatcher
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsdk.envs.webshop.analyzer import stem, tokens
from envsdk.envs.webshop.index import K1, RANKS, B, Index, lucene_length
from envsdk.envs.webshop.index_builder import IndexBuilder
from envsdk.envs.webshop.reward import THRESHOLD, color_of, color_of_pair, is_alike
from tests.by_day import examples


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("The women's running shoes", ["women", "run", "shoe"]),
        ('52"W by 84"L, 1,299.00 dollars', ["52", "w", "84", "l", "1,299.00", "dollar"]),
        ("t-shirt T.Shirt don't", ["t", "shirt", "t.shirt", "don't"]),
        ("possibly technologies", ["possibl", "technolog"]),
        ("__ — !!", []),
        ("日本 ok", ["日", "本", "ok"]),
        ("café Crème", ["café", "crème"]),
        ("9" * 256, ["9" * 255, "9"]),
    ],
)
def test_text_is_cut_and_stemmed_as_lucene_does(text, terms):
    assert tokens(text) == terms


@given(st.text())
def test_any_text_can_be_analyzed(text):
    assert all(term for term in tokens(text))


def test_short_words_are_not_stemmed():
    assert [stem(word) for word in ("is", "ass", "flies")] == ["is", "ass", "fli"]


def test_lengths_are_rounded_as_one_byte_can_hold_them():
    assert [lucene_length(length) for length in range(40)] == list(range(40))
    assert [lucene_length(length) for length in (40, 41, 42, 55, 57, 100, 1000)] == [
        40,
        40,
        42,
        54,
        56,
        96,
        984,
    ]


@given(st.integers(0, 10**6))
def test_a_rounded_length_is_at_most_an_eighth_short_and_rounds_to_itself(length):
    rounded = lucene_length(length)
    assert rounded <= length
    assert rounded >= length * 7 / 8
    assert lucene_length(rounded) == rounded


words = st.sampled_from(["lamp", "table", "red", "blue", "shoe", "size", "pack", "home"])
documents = st.lists(st.lists(words, max_size=60), min_size=1, max_size=12)


def build_index(folder, token_lists, ranks, flush_every):
    index = IndexBuilder(folder)
    for number, token_list in enumerate(token_lists, 1):
        index.add(token_list)
        if number % flush_every == 0:
            index.flush()
    index.finish(folder)
    np.save(folder / RANKS, np.array(ranks, np.uint32))
    return Index(folder)


def bm25(token_lists, query):
    """The scores, by the book."""
    filled = [token_list for token_list in token_lists if token_list]
    average = sum(map(len, filled)) / max(len(filled), 1)
    scores = []
    for token_list in token_lists:
        counts, score = Counter(token_list), 0.0
        for term in query:
            frequency = sum(term in other for other in token_lists)
            if counts[term]:
                idf = math.log(1 + (len(filled) - frequency + 0.5) / (frequency + 0.5))
                norm = K1 * (1 - B + B * lucene_length(len(token_list)) / average)
                score += idf * counts[term] / (counts[term] + norm)
        scores.append(score)
    return scores


@settings(max_examples=60)
@given(
    token_lists=documents,
    query=st.lists(words | st.just("unknown"), max_size=4),
    flush_every=st.integers(1, 12),
    k=st.integers(1, 12),
    data=st.data(),
)
def test_results_are_ranked_by_bm25_and_ties_by_rank(
    tmp_path_factory, token_lists, query, flush_every, k, data
):
    ranks = data.draw(st.permutations(range(len(token_lists))))
    index = build_index(tmp_path_factory.mktemp("index"), token_lists, ranks, flush_every)
    scores = bm25(token_lists, query)
    found = index.search(query, k)
    matching = [number for number, score in enumerate(scores) if score > 0]
    assert len(found) == min(k, len(matching))
    assert set(found) <= set(matching)
    for one, other in pairwise(found):
        assert scores[one] > scores[other] - 2e-4
        if scores[one] == scores[other]:
            assert ranks[one] < ranks[other]
    if found:
        left_out = [scores[number] for number in matching if number not in found]
        assert max(left_out, default=0.0) < min(scores[number] for number in found) + 2e-4


@pytest.mark.parametrize(
    ("text", "color"),
    [
        ("steelivy fuchsia", "fuchsia"),
        ("stainless steel", "steel"),
        ("standard", "tan"),
        ("blue-red", "blue"),
        ("x-large", "x-large"),
    ],
)
def test_a_text_with_a_color_in_it_is_that_color(text, color):
    assert color_of(text) == color


def test_a_pair_is_a_color_only_if_a_part_of_it_is_one_as_a_whole():
    assert color_of_pair(("color", "navy")) == "navy"
    assert color_of_pair(("color", "navy blue")) == "('color', 'navy blue')"


@pytest.mark.parametrize(
    ("one", "other", "ratio"),
    [
        ("large", "x-large", 100),
        ("xx-large", "x-large", 93),
        ("3 ounce (pack of 1)", "3 ounce (pack of 12)", 97),
        ("café", "caf", 100),
        ("", "", 0),
        ("!", "a", 0),
    ],
)
def test_sets_of_words_are_compared_as_thefuzz_does(one, other, ratio):
    assert token_set_ratio(one, other) == ratio
    assert is_alike(one, other) == (ratio > THRESHOLD)


def token_set_ratio(one, other):
    """thefuzz's, without python-Levenshtein: 0 to 100, and 100 when one set of words contains the other."""
    words, other_words = (
        set("".join(c if c.isascii() and (c.isalnum() or c == "_") else " " for c in text).lower().split())
        for text in (one.replace("é", ""), other.replace("é", ""))
    )
    if not words or not other_words:
        return 0
    both = " ".join(sorted(words & other_words))
    first, second = (
        f"{both} {' '.join(sorted(rest))}".strip() for rest in (words - other_words, other_words - words)
    )
    return max(
        round(100 * SequenceMatcher(None, left, right).ratio()) if left and right else 100 * (left == right)
        for left, right in ((both, first), (both, second), (first, second))
    )


alike_words = st.sampled_from(
    ["x-large", "large", "pack", "of", "12", "1", "ounce", "navy", "navyblue", "a" * 250]
)


@settings(max_examples=examples(50))
@given(
    st.lists(alike_words, max_size=5).map(" ".join) | st.text("ab ,é", max_size=12),
    st.lists(alike_words, max_size=5).map(" ".join) | st.text("ab ,é", max_size=12),
)
def test_texts_are_alike_when_their_ratio_is_above_the_threshold(one, other):
    assert is_alike(one, other) == (token_set_ratio(one, other) > THRESHOLD)
