import json
import multiprocessing
import os
import signal
import tracemalloc
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.envs.webshop import analyzer, builder, columns, goal_files, index_builder, json_stream
from envsdk.envs.webshop.build import main
from envsdk.envs.webshop.builder import BuildOptions, build
from envsdk.envs.webshop.generate import generate, generated_store, write_catalogue
from envsdk.envs.webshop.json_stream import ArrayReader, BadData, read_object
from envsdk.envs.webshop.nouns import RuleTagger, make_tagger
from envsdk.envs.webshop.store import FILES, GOALS, MANIFEST, PRICES, Store, open_store, verify

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=4), children, max_size=3)
    ),
    max_leaves=8,
)
layouts = st.sampled_from(
    [{}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False, "indent": 1}]
)


@given(values=st.lists(json_values, max_size=6), layout=layouts, stop=st.integers(0, 6))
def test_an_array_is_read_record_by_record_and_from_any_record_on(tmp_path_factory, values, layout, stop):
    path = tmp_path_factory.mktemp("json") / "array.json"
    path.write_text(json.dumps(values, **layout), encoding="utf-8")
    with ArrayReader(path) as reader:
        first = list(islice(reader, stop))
        offset, num_read = reader.offset, reader.num_read
    assert first == values[:stop]
    if 0 < num_read < len(values):
        with ArrayReader(path, offset=offset, num_read=num_read) as reader:
            assert list(reader) == values[stop:]


@given(entries=st.dictionaries(st.text(max_size=6), json_values, max_size=6), layout=layouts)
def test_an_object_is_read_entry_by_entry(tmp_path_factory, entries, layout):
    path = tmp_path_factory.mktemp("json") / "object.json"
    path.write_text(json.dumps(entries, **layout), encoding="utf-8")
    assert dict(read_object(path)) == entries


def test_memory_does_not_grow_with_the_file(tmp_path):
    path = tmp_path / "large.json"
    record = json.dumps({"text": "x" * 2000})
    path.write_text("[" + ",\n".join([record] * 10_000) + "]")
    tracemalloc.start()
    try:
        with ArrayReader(path) as reader:
            assert sum(1 for _ in reader) == 10_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 0.3 * path.stat().st_size


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"a": 1}, {"a": ', r"record 1 .*cut off or no JSON.*download complete"),
        ('[{"a": 1}, {"a": 2}', r"after record 1.*the end of the file"),
        ('[{"a": 1} {"a": 2}]', r"expected ',' or '\]' after record 0"),
        ('{"a": 1}', r"expected '\[' at the start"),
        ("", r"expected '\[' at the start.*the end of the file"),
        ("[{'a': 1}]", r"record 0 .*no JSON"),
        ("[1, " + "[" * 10_000, r"record 1 \(at byte 4\) cannot be read: .*recursion"),
        ("[1, " + "9" * 10_000 + "]", r"record 1 \(at byte 4\) cannot be read: .*digits"),
    ],
)
def test_a_broken_file_is_named_with_the_record(tmp_path, text, message):
    path = tmp_path / "items_shuffle.json"
    path.write_text(text)
    with pytest.raises(BadData, match=f"(?s)items_shuffle.json: .*{message}"), ArrayReader(path) as reader:
        list(reader)


def test_a_file_that_is_no_utf_8_is_named(tmp_path):
    path = tmp_path / "items_shuffle.json"
    path.write_bytes(b'["\xff\xfe"]')
    with pytest.raises(BadData, match=r"items_shuffle\.json: is no UTF-8"), ArrayReader(path) as reader:
        list(reader)


def raw_product(**changes):
    product = {
        "asin": "B000000001",
        "name": "Red Lamp",
        "full_description": "",
        "small_description": ["bright"],
        "pricing": "$5.00",
        "images": ["x"],
        "product_category": "Home › Lamps",
        "category": "garden",
        "query": "lamps",
        "customization_options": "",
    }
    return {name: value for name, value in {**product, **changes}.items() if value is not ...}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ...}, "name: missing"),
        ({"asin": ...}, "asin: missing"),
        ({"pricing": "5.00"}, r"pricing: '5\.00' has no '\$'"),
        ({"pricing": "$5 - $"}, r"pricing: .* has a '\$' without a number"),
        ({"pricing": 5.0}, "pricing: must be a text"),
        ({"pricing": "$" + "9" * 400}, "pricing: .* is more than a number can hold"),
        ({"asin": "\ud800"}, "asin: holds half of a surrogate pair"),
        ({"query": "lamps\ud800"}, "query: holds half of a surrogate pair"),
        ({"query": None}, "query: must be a text, not None"),
        (
            {"customization_options": {"color": ["red"]}},
            "customization_options: 'color' must be a list of objects",
        ),
    ],
)
def test_a_record_that_cannot_be_loaded_is_named_with_its_file_and_field(
    tmp_path, capsys, changes, message, write_raw_files
):
    bad = raw_product(**{"asin": "B000000002", **changes})
    write_raw_files(tmp_path, [raw_product(), bad], {}, {})
    with pytest.raises(BadData, match=rf"items_shuffle\.json: record 1.*{message}"):
        build(tmp_path, tmp_path / "store")
    assert main(["--data", str(tmp_path), "--tagger", "rules"]) == 2
    assert "record 1" in capsys.readouterr().err
    assert main(["--data", str(tmp_path), "--tagger", "rules", "--skip-bad"]) == 0
    assert "1 products" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("attributes", "human", "message"),
    [
        (
            {"B000000001": {"instruction": "find", "instruction_attributes": []}},
            {},
            r"its entry in items_ins_v2\.json: instruction_attributes: empty",
        ),
        ({"B000000001": []}, {}, r"its entry in items_ins_v2\.json must be an object"),
        (
            {},
            {"B000000001": [{"instruction": "find"}]},
            r"its entry in items_human_ins\.json: instruction_attributes: missing",
        ),
    ],
)
def test_bad_attributes_and_instructions_are_named(tmp_path, attributes, human, message, write_raw_files):
    write_raw_files(tmp_path, [raw_product()], attributes, human)
    with pytest.raises(BadData, match=rf"record 0 \(asin B000000001\): {message}"):
        build(tmp_path, tmp_path / "store")


def test_products_without_a_price_cost_100_dollars(tmp_path, write_raw_files):
    write_raw_files(
        tmp_path, [raw_product(pricing=...), raw_product(asin="B000000002", pricing=None)], {}, {}
    )
    build(tmp_path, tmp_path / "store", BuildOptions(tagger="rules"))
    store = Store(tmp_path / "store")
    assert [(store.price(index), store.card(index)[2]) for index in (0, 1)] == [(100.0, "$100.0")] * 2


def test_missing_files_are_named_with_where_to_get_them(tmp_path):
    with pytest.raises(BadData, match=r"items_shuffle\.json: missing\..*setup\.sh"):
        build(tmp_path, tmp_path / "store")


def test_of_several_product_files_one_must_be_chosen(tmp_path, write_raw_files):
    write_raw_files(tmp_path, [raw_product()], {}, {})
    (tmp_path / "items_shuffle.json").rename(tmp_path / "items_shuffle_1000.json")
    (tmp_path / "items_shuffle_10.json").write_text("[]")
    with pytest.raises(BadData, match="--items"):
        build(tmp_path, tmp_path / "store")
    build(tmp_path, tmp_path / "store", BuildOptions(items="items_shuffle_1000.json", tagger="rules"))
    assert Store(tmp_path / "store").num_products == 1
    with pytest.raises(BadData, match="holds no product"):
        build(tmp_path, tmp_path / "other", BuildOptions(items="items_shuffle_10.json", tagger="rules"))


def test_the_number_of_products_counts_records_before_any_is_left_out(raw_data, tmp_path):
    build(raw_data, tmp_path, BuildOptions(tagger="rules", num_products=13))
    manifest = open_store(tmp_path).manifest
    assert manifest["num_products"] + sum(manifest["skipped"].values()) == 13


def files_of(folder):
    return {name: (folder / name).read_bytes() for name in FILES}


def _build_and_die(raw, out, saves):
    """Body of a process that is killed after so many saves."""
    save, left = builder._Build._save_products, [saves]

    def save_and_die(self, *arguments):
        save(self, *arguments)
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    builder._Build._save_products = save_and_die
    builder._SAVE_EVERY, builder._BATCH = 60, 20
    build(raw, out, BuildOptions(tagger="rules"))


@pytest.mark.parametrize("saves", [1, 3])
def test_a_killed_build_goes_on_and_ends_in_the_same_files(raw_data, tmp_path, saves):
    build(raw_data, tmp_path / "whole", BuildOptions(tagger="rules"))
    out = tmp_path / "killed"
    process = multiprocessing.get_context("fork").Process(target=_build_and_die, args=(raw_data, out, saves))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not (out / MANIFEST).exists()
    read = []
    with pytest.MonkeyPatch.context() as patch:
        load = builder._Build._load
        patch.setattr(
            builder._Build,
            "_load",
            lambda self, number, *rest: (read.append(number), load(self, number, *rest))[1],
        )
        build(raw_data, out, BuildOptions(tagger="rules"))
    assert min(read) >= 60 * saves
    assert files_of(out) == files_of(tmp_path / "whole")
    assert Store(out).manifest["skipped"] == Store(tmp_path / "whole").manifest["skipped"]


def _die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)


def _build_and_die_at(raw, out, step):
    setattr(builder._Build, step, _die)
    build(raw, out, BuildOptions(tagger="rules"))


@pytest.mark.parametrize("step", ["_write_labels", "_finish"])
def test_a_build_that_was_killed_behind_the_products_reads_none_again(raw_data, tmp_path, monkeypatch, step):
    build(raw_data, tmp_path / "whole", BuildOptions(tagger="rules"))
    out = tmp_path / "killed"
    process = multiprocessing.get_context("fork").Process(
        target=_build_and_die_at, args=(raw_data, out, step)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    monkeypatch.delattr(builder._Build, "_read_products")
    build(raw_data, out, BuildOptions(tagger="rules"))
    assert files_of(out) == files_of(tmp_path / "whole")
    assert {path.name for path in out.iterdir()} == {*FILES, MANIFEST, ".lock"}


def test_memory_of_a_build_does_not_grow_with_the_products(tmp_path, monkeypatch):
    for module, name, size in (
        *((module, "PIECE", 128) for module in (columns, goal_files, builder)),
        *((builder, "_SAVE_EVERY", 50), (builder, "_BATCH", 10), (json_stream, "_CHUNK", 1 << 12)),
        *((index_builder, "_RUN_POSTINGS", 2000), (index_builder, "_MERGED_POSTINGS", 2000)),
        *((index_builder, "_MAX_HASHES", 100), (analyzer, "_MAX_TERMS", 100)),
        *((goal_files, "_BLOCK", 512), (goal_files, "_SETS", 16)),
    ):
        monkeypatch.setattr(module, name, size)
    # Its buffer of a fixed size would hide the rest.
    monkeypatch.setattr(builder, "file_digest", lambda path: "")
    peaks = []
    # The first, which is not counted, imports and compiles.
    for number, num_products in enumerate((50, 100, 400)):
        raw = tmp_path / str(number)
        write_catalogue(raw, num_products=num_products, seed=0)
        tracemalloc.start()
        try:
            build(raw, raw / "store", BuildOptions(tagger="rules"))
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[2] < 1.5 * peaks[1]


def test_a_complete_store_is_left_as_it_is_and_other_options_build_anew(raw_data, tmp_path):
    build(raw_data, tmp_path, BuildOptions(tagger="rules"))
    before, whole = (tmp_path / MANIFEST).stat(), Store(tmp_path).num_products
    build(raw_data, tmp_path, BuildOptions(tagger="rules"))
    after = (tmp_path / MANIFEST).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    build(raw_data, tmp_path, BuildOptions(tagger="rules", num_products=50))
    assert Store(tmp_path).num_products <= 50 < whole  # rows that are skipped count too


def test_a_damaged_store_is_noticed(raw_data, tmp_path, capsys):
    build(raw_data, tmp_path, BuildOptions(tagger="rules"))
    assert main(["--check", str(tmp_path)]) == 0
    path = tmp_path / "cards.bin"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadData, match=r"cards\.bin: damaged"):
        verify(tmp_path)
    path.write_bytes(content[:-1])
    with pytest.raises(BadData, match=r"cards\.bin: \d+ bytes, not \d+"):
        Store(tmp_path)
    path.unlink()
    with pytest.raises(BadData, match=r"cards\.bin: missing"):
        Store(tmp_path)
    for manifest in ("[]", "{}", '{"format": 1}'):
        (tmp_path / "manifest.json").write_text(manifest)
        with pytest.raises(BadData, match=r"manifest\.json: is not the manifest of a WebShop store"):
            Store(tmp_path)
    assert main(["--check", str(tmp_path)]) == 2


def test_a_generated_catalogue_follows_from_its_seed(tmp_path):
    assert list(generate(30, seed=1)) == list(generate(30, seed=1)) != list(generate(30, seed=2))
    asins = [entry.asin for entry in generate(2000, seed=3)]
    assert len(set(asins)) == 2000
    assert all(len(asin) == 10 for asin in asins)
    write_catalogue(tmp_path, num_products=30, seed=1)
    assert json.loads((tmp_path / "items_shuffle.json").read_text()) == [e.item for e in generate(30, seed=1)]
    assert generated_store(30, 1) == generated_store(30, 1) != generated_store(30, 2)


def test_rules_see_the_nouns_that_tell_products_apart():
    titles = ["Avenso Soft Women's Sandals, Quick Drying", "42", "Wireless 3ft USB Cable for Kids"]
    nouns = list(RuleTagger().nouns(titles))
    assert {"avenso", "sandals"} <= set(nouns[0])
    assert "soft" not in nouns[0]
    assert nouns[1] == []
    assert nouns[2] == ["usb", "cable", "kids"]


def test_an_unknown_tagger_is_refused():
    with pytest.raises(ValueError, match="must be rules, spacy"):
        make_tagger("nltk")


def test_goals_do_not_depend_on_how_many_are_written_at_a_time(tmp_path, monkeypatch):
    written = []
    for block in (goal_files._BLOCK, 7):
        monkeypatch.setattr(goal_files, "_BLOCK", block)
        folder = tmp_path / str(block)
        write_catalogue(folder, num_products=30, seed=0)
        build(folder, folder / "store", BuildOptions(tagger="rules"))
        written.append([(folder / "store" / name).read_bytes() for name in (*GOALS.values(), PRICES)])
    assert written[0] == written[1]
