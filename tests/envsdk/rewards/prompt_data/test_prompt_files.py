"""Files of prompts: where each row is, what is converted, what has changed."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envsdk.contracts.failures import ConfigurationError, StorageError
from envsdk.rewards.prompt_data import index
from envsdk.rewards.prompt_data.opening import NoRows, Prompts, open_prompts
from envsdk.rewards.prompt_data.prompts import PromptSource

ROWS = [
    {"id": str(n), "prompt": f"{n}+{n}=", "ground_truth": str(2 * n), "tag": "ab"[n % 2]} for n in range(6)
]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVSDK_CACHE", str(tmp_path_factory.mktemp("cache")))


def lines(rows: Sequence[Any]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def opened(path: Path | str, **how: Any) -> Prompts:
    return open_prompts(PromptSource(files=[str(path)], **how))


def ids(prompts: Prompts) -> list[str]:
    return [prompts[n].fields["id"] for n in range(len(prompts))]


def test_rows_are_read_by_number_and_chosen_by_tag(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(lines(ROWS))
    assert ids(opened(path)) == ["0", "1", "2", "3", "4", "5"]
    assert ids(opened(path, tags=["b"])) == ["1", "3", "5"]
    assert ids(opened(path, except_tags=["b"])) == ["0", "2", "4"]
    row = opened(path, tags=["b"])[1]
    assert (row.place, row.messages) == (f"{path}:4", [{"role": "user", "content": "3+3="}])
    assert dict(opened(path).counts) == {"a": 3, "b": 3}


def as_json(path: Path) -> None:
    path.write_text(json.dumps(ROWS))


def as_json_with_data(path: Path) -> None:
    path.write_text(json.dumps({"version": 1, "data": ROWS}))


def as_parquet(path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=2)


def as_gzip(path: Path) -> None:
    path.write_bytes(gzip.compress(lines(ROWS).encode()))


@pytest.mark.parametrize(
    ("name", "write"),
    [("r.json", as_json), ("r.json", as_json_with_data), ("r.parquet", as_parquet), ("r.jsonl.gz", as_gzip)],
)
def test_other_formats_have_the_same_rows(tmp_path: Path, name: str, write: Any) -> None:
    write(tmp_path / name)
    assert ids(opened(tmp_path / name)) == ["0", "1", "2", "3", "4", "5"]


def test_folders_and_patterns_have_the_rows_of_their_files(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(ROWS[:2]))
    (tmp_path / "b.jsonl").write_text(lines(ROWS[2:4]))
    (tmp_path / "notes.txt").write_text("no rows")
    assert ids(opened(tmp_path)) == ids(opened(tmp_path / "*.jsonl")) == ["0", "1", "2", "3"]


def test_what_cannot_be_used_is_named_and_counted_and_never_asked(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"id": "0", "prompt": "x"}\r\n\r\n{"answer": 1}\n\xff\n{"id": "1", "prompt": "y"}\n{"id'
    )
    prompts = opened(path)
    assert ids(prompts) == ["0", "1"]
    assert prompts.num_unusable == 3
    assert [each.place for each in prompts.unusable] == [f"{path}:3", f"{path}:4", f"{path}:6"]
    assert prompts.unusable[0].reason == "has no prompt; its columns are answer"
    assert prompts[1].place == f"{path}:5"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no row in"),
        ('{"answer": 4}\n', "none of the 1 rows of"),
        (lines(ROWS), "has the tag c; tags there: a (3), b (3)"),
    ],
)
def test_files_without_a_row_say_why(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(NoRows) as caught:
        opened(path, tags=["c"])
    assert said in str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.jsonl.gz"])
def test_a_file_of_another_encoding_is_refused_by_name(tmp_path: Path, name: str, encoding: str) -> None:
    path = tmp_path / name
    text = (json.dumps(ROWS) if name == "rows.json" else lines(ROWS)).encode(encoding)
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    with pytest.raises(ConfigurationError, match=rf"{path}.* is UTF-16 or UTF-32, not UTF-8: convert"):
        opened(path)


def test_a_column_that_is_not_there_is_named_with_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"questoin": "2+2?"}\n')
    with pytest.raises(ConfigurationError, match="no column `question`; did you mean `questoin`"):
        opened(path, columns={"prompt": "question"})


@pytest.mark.parametrize("name", ["absent.jsonl", "/absent/rows.jsonl", "rows.txt", "empty"])
def test_what_is_no_file_of_prompts_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "rows.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError):
        opened(tmp_path / name)


def test_a_file_that_changes_is_noticed_while_it_is_read_and_when_it_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(lines(ROWS))
    prompts = opened(path)
    with path.open("a") as file:
        file.write(lines([{"id": "6", "prompt": "x"}]))
    with pytest.raises(StorageError, match="changed while its prompts are asked"):
        prompts[0]
    assert len(opened(path)) == 7


def test_a_file_that_is_replaced_is_noticed_too(tmp_path: Path) -> None:
    path, other = tmp_path / "rows.jsonl", tmp_path / "other.jsonl"
    path.write_text(lines(ROWS))
    prompts = opened(path)
    other.write_text(lines(ROWS[:1]))
    os.replace(other, path)
    with pytest.raises(StorageError, match="changed while its prompts are asked"):
        prompts[0]
    assert ids(opened(path)) == ["0"]


def test_an_index_that_lost_a_part_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(lines(ROWS))
    opened(path)
    for part in Path(os.environ["ENVSDK_CACHE"]).rglob("rows.npy"):
        part.unlink()
    assert ids(opened(path, tags=["a"])) == ["0", "2", "4"]


def test_a_zipped_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(lines(ROWS).encode())[:-12])
    with pytest.raises(ConfigurationError, match="no gzip file that can be read"):
        opened(path)


texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
any_lines = st.lists(
    st.one_of(
        st.builds(
            lambda id, prompt: json.dumps({"id": id, "prompt": prompt}, ensure_ascii=False), texts, texts
        ),
        st.sampled_from(["", "  ", "{", "[]", "null", '{"prompt": 1}', "9" * 5000]),
    ),
    max_size=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(any_lines, st.sampled_from(["\n", "\r\n"]), st.booleans(), st.integers(1, 40), st.integers(1, 2))
def test_the_index_finds_what_reading_the_file_line_by_line_finds(
    tmp_path: Path, texts: list[str], ending: str, ends_with_one: bool, chunk: int, num_workers: int
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes((ending.join(texts) + (ending if ends_with_one else "")).encode())
    expected = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("prompt"), str) and row["prompt"].strip():
            expected.append((row["prompt"], f"{path}:{number}"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "_CHUNK_BYTES", chunk)
        try:
            prompts = opened(path)
        except NoRows:
            found = []
        else:
            found = [
                (row.messages[-1]["content"], row.place)
                for row in map(prompts.__getitem__, range(len(prompts)))
            ]
    assert found == expected


def test_processes_find_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(lines(ROWS))
    monkeypatch.setattr(index, "_CHUNK_BYTES", 100)
    assert ids(opened(path, num_workers=2)) == ["0", "1", "2", "3", "4", "5"]


def test_each_epoch_asks_every_row_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(lines(ROWS))
    prompts = opened(path)
    orders = [[prompts.nth(6 * epoch + n, seed=3) for n in range(6)] for epoch in range(4)]
    assert all(sorted(order) == list(range(6)) for order in orders)
    assert len(set(map(tuple, orders))) > 1
    assert [prompts.nth(n, seed=None) for n in range(8)] == [0, 1, 2, 3, 4, 5, 0, 1]
