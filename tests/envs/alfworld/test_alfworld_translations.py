import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.envs.alfworld.translations import Translation, TranslationStore, trim

names = st.text("abc-?1 é", max_size=6)
pairs = st.tuples(names, st.lists(st.tuples(names, names), max_size=2))


def translation(text: str) -> Translation:
    return Translation(
        sas=text, actions=[("go", [("?a", "agent")])], types=[("agent", [])], objects=[], facts=[]
    )


class Translator:
    """Counts how often it is asked."""

    def __init__(self):
        self.num_calls = 0

    def __call__(self, domain, problem):
        self.num_calls += 1
        return translation(domain + problem)


def store(folder, translate, *, version="1", limit_mb=10):
    return TranslationStore(folder, translate, version=version, limit_mb=limit_mb)


@given(
    sas=st.text(),
    actions=st.lists(pairs),
    objects=st.lists(st.tuples(names, names)),
    facts=st.lists(st.tuples(names, st.lists(names))),
)
def test_a_translation_survives_encoding(sas, actions, objects, facts):
    original = Translation(sas=sas, actions=actions, types=[], objects=objects, facts=facts)
    decoded = Translation.decode(original.encode())
    assert decoded.sas == sas
    assert [(name, [tuple(p) for p in parameters]) for name, parameters in decoded.actions] == actions
    assert [tuple(entry) for entry in decoded.objects] == objects
    assert [(name, arguments) for name, arguments in decoded.facts] == facts


def test_what_was_translated_once_is_read_from_disk(tmp_path):
    translate = Translator()
    first = store(tmp_path / "new", translate).get("d", "p")
    again = store(tmp_path / "new", translate).get("d", "p")
    assert first.sas == again.sas == "dp"
    assert translate.num_calls == 1


def test_another_text_or_version_is_translated_anew(tmp_path):
    translate = Translator()
    store(tmp_path, translate).get("a", "bc")
    store(tmp_path, translate).get("ab", "c")
    store(tmp_path, translate, version="2").get("a", "bc")
    assert translate.num_calls == 3


@pytest.mark.parametrize("damage", [b"", b"no zip", translation("x").encode()[:-5]])
def test_a_damaged_file_is_made_again(tmp_path, damage):
    translate = Translator()
    store(tmp_path, translate).get("d", "p")
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage)
    assert store(tmp_path, translate).get("d", "p").sas == "dp"
    assert translate.num_calls == 2
    assert Translation.decode(path.read_bytes()).sas == "dp"


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    translate = Translator()
    for _ in range(2):
        assert store(file, translate).get("d", "p").sas == "dp"
    assert translate.num_calls == 2


def test_no_folder_keeps_nothing():
    translate = Translator()
    nowhere = store(None, translate)
    nowhere.get("d", "p")
    nowhere.get("d", "p")
    assert translate.num_calls == 2


def test_trimming_deletes_what_was_used_longest_ago(tmp_path):
    for age in range(10):
        path = tmp_path / str(age)
        path.write_bytes(b"x" * 100)
        os.utime(path, (1000 - age, 1000 - age))
    trim(tmp_path, 1000)
    assert len(list(tmp_path.iterdir())) == 10
    trim(tmp_path, 999)
    assert sorted(path.name for path in tmp_path.iterdir()) == [str(age) for age in range(7)]


def test_the_store_holds_its_folder_to_the_limit(tmp_path):
    big = TranslationStore(
        tmp_path, lambda domain, problem: translation(os.urandom(20_000).hex()), version="1", limit_mb=1
    )
    for number in range(200):
        big.get("d", str(number))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1 << 20
