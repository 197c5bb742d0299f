"""Recordings of upstream's program, the store of the same data, and a cache folder of the tests' own.

`recordings.json.gz` was recorded from princeton-nlp/WebShop 64fa2a5 in text mode, on a made-up catalogue:
raw files, loaded products, goals, rewards, transcripts and the results of its search engine (Lucene).
"""

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from envsdk.envs.webshop.builder import build
from envsdk.envs.webshop.store import Store, open_store


class GivenTags:
    """Nouns from tags made elsewhere: `(token, part of speech)` by title."""

    name = "given"

    def __init__(self, tags: Mapping[str, Iterable[Sequence[str]]]) -> None:
        self._tags = tags

    def nouns(self, titles: Sequence[str]) -> Iterator[list[str]]:
        for title in titles:
            yield [token.lower() for token, tag in self._tags[title] if tag in ("NOUN", "PROPN")]


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    """Generated catalogues of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENVSDK_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def recordings() -> dict:
    path = Path(__file__).with_name("recordings.json.gz")
    return json.loads(gzip.decompress(path.read_bytes()))


@pytest.fixture(scope="session")
def write_raw_files() -> Callable[[Path, object, object, object], None]:
    """`write_raw_files(folder, items, attributes, human)`."""

    def write(folder: Path, items: object, attributes: object, human: object) -> None:
        names = ("items_shuffle.json", "items_ins_v2.json", "items_human_ins.json")
        for name, content in zip(names, (items, attributes, human), strict=True):
            (folder / name).write_text(json.dumps(content), encoding="utf-8")

    return write


@pytest.fixture(scope="session")
def raw_data(recordings, write_raw_files, tmp_path_factory) -> Path:
    """The recorded catalogue as raw files."""
    folder = tmp_path_factory.mktemp("raw")
    write_raw_files(folder, recordings["items"], recordings["attributes"], recordings["human"])
    return folder


@pytest.fixture(scope="session")
def store(recordings, raw_data, tmp_path_factory) -> Store:
    """The recorded catalogue, with the nouns that the recordings were made with."""
    folder = tmp_path_factory.mktemp("store")
    build(raw_data, folder, tagger=GivenTags(recordings["title_tags"]))
    return open_store(folder)
