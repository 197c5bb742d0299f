"""An unknown name is answered with the one that was meant."""

from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st

from envsdk.base.settings.nearest import nearest, suggest
from envsdk.config.models import RunConfig

KEYS = list(RunConfig.model_fields)


@given(st.sampled_from(KEYS))
def test_a_known_name_is_its_own_nearest_whatever_its_case(key: str) -> None:
    assert nearest(key, KEYS) == key
    assert nearest(key.upper(), KEYS) == key


@given(
    key=st.sampled_from([key for key in KEYS if len(key) > 10]),
    at=st.integers(0, 9),
    letter=st.sampled_from(string.ascii_lowercase),
    kind=st.sampled_from(["drop", "add", "swap", "replace"]),
)
def test_one_slip_in_a_long_key_still_finds_it(key: str, at: int, letter: str, kind: str) -> None:
    slipped = {
        "drop": key[:at] + key[at + 1 :],
        "add": key[:at] + letter + key[at:],
        "swap": key[:at] + key[at + 1] + key[at] + key[at + 2 :],
        "replace": key[:at] + letter + key[at + 1 :],
    }[kind]
    assert nearest(slipped, KEYS) == (slipped if slipped in KEYS else key)


@given(st.text(), st.lists(st.text()))
def test_an_answer_is_always_one_of_the_candidates(name: str, candidates: list[str]) -> None:
    assert nearest(name, candidates) in [*candidates, None]


def test_a_name_like_no_other_is_answered_with_a_short_list() -> None:
    assert suggest("zzz", ["beta", "alpha"], known="tags") == "tags: alpha, beta"
    assert suggest("zzz", [], known="tags") == "there are no tags"
    assert suggest("zzz", [f"name{i}" for i in range(99)], known="tags").endswith(", ...")
