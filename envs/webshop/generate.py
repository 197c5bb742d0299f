"""A generated catalogue in the format of WebShop's raw files, and the store that is built of one.

    python -m envsdk.envs.webshop.generate --products 1000 --out DIR

A catalogue follows from its number of products and its seed. Every goal can be met in full: the product
that it was made from has the attributes and the options that are asked for, and costs less than the limit.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from envsdk.base.display.model_command import command_of
from envsdk.base.display.terminal import say
from envsdk.base.settings.options import Option, Options
from envsdk.base.store.atomic import make_folder
from envsdk.base.store.cache import cache_folder
from envsdk.base.store.file_lock import locked
from envsdk.envs.webshop.store import FORMAT, is_complete


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of product."""

    query: str
    path: str
    noun: str
    """As titles have it."""
    options: tuple[str, ...]
    """Names of `OPTIONS`."""


_WORDS: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("vocabulary.toml").read_text(encoding="utf-8")
)

BRANDS, ADJECTIVES = tuple(_WORDS["brands"]), tuple(_WORDS["adjectives"])
BULLETS, SENTENCES, REQUESTS = (tuple(_WORDS[name]) for name in ("bullets", "sentences", "requests"))
TRAITS = {category: tuple(words) for category, words in _WORDS["attributes"].items()}
OPTIONS = {name: tuple(values) for name, values in _WORDS["options"].items()}
KINDS = {
    category: tuple(Kind(query, path, noun, tuple(options)) for query, path, noun, options in kinds)
    for category, kinds in _WORDS["kinds"].items()
}

NUM_PRODUCTS = 1000
ITEMS, ATTRIBUTES, HUMAN = "items_shuffle.json", "items_ins_v2.json", "items_human_ins.json"

_RECIPE = 1
"""Raised when the same number and seed would give another catalogue."""
_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
_UNUSED = (
    *("product_information", "brand_url", "list_price", "availability_quantity", "availability_status"),
    *("average_rating", "total_reviews", "total_answered_questions", "seller_id", "seller_name"),
    *("fulfilled_by_amazon", "fast_track_message", "aplus_present", "small_description_old"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What the three files hold of one product."""

    asin: str
    item: Mapping[str, Any]
    attributes: Mapping[str, Any]
    human: Sequence[Mapping[str, Any]]


def generate(num_products: int, seed: int) -> Iterator[Entry]:
    """The entries of a catalogue, one by one."""
    categories = list(KINDS)
    for number in range(num_products):
        yield _entry(number, categories[number % len(categories)], random.Random(f"{seed} {number}"))


def write_catalogue(folder: Path, *, num_products: int, seed: int) -> None:
    """Write the three raw files into `folder`, in memory that does not grow with them."""
    make_folder(folder)
    with ExitStack() as stack:
        items, attributes, human = (
            stack.enter_context((folder / name).open("w", encoding="utf-8"))
            for name in (ITEMS, ATTRIBUTES, HUMAN)
        )
        opening = {items: "[", attributes: "{", human: "{"}
        for entry in generate(num_products, seed):
            key = json.dumps(entry.asin)
            items.write(f"{opening[items]}\n{json.dumps(entry.item)}")
            attributes.write(f"{opening[attributes]}\n{key}: {json.dumps(entry.attributes)}")
            opening[items] = opening[attributes] = ","
            if entry.human:
                human.write(f"{opening[human]}\n{key}: {json.dumps(entry.human)}")
                opening[human] = ","
        for file, closing in ((items, "]"), (attributes, "}"), (human, "}")):
            file.write(("" if opening[file] == "," else opening[file]) + f"\n{closing}\n")


def generated_store(num_products: int = NUM_PRODUCTS, seed: int = 0) -> Path:
    """The store of a generated catalogue: made at the first call and kept in the cache folder."""
    from envsdk.envs.webshop.builder import BuildOptions, build

    recipe = json.dumps([_RECIPE, FORMAT, num_products, seed])
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:16]
    parent = cache_folder() / "webshop"
    store = parent / digest
    if is_complete(store):
        return store
    make_folder(parent)
    with locked(parent / f".{digest}.lock", patience_s=math.inf):
        if not is_complete(store):
            raw = parent / f".{digest}.raw"
            write_catalogue(raw, num_products=num_products, seed=seed)
            build(raw, store, BuildOptions(tagger="rules"))
            shutil.rmtree(raw)
    return store


def _entry(number: int, category: str, rng: random.Random) -> Entry:
    kind = rng.choice(KINDS[category])
    asin = _asin(number, rng)
    attributes = rng.sample(TRAITS[category], rng.randint(2, 4))
    brand = rng.choice(BRANDS)
    title = " ".join((brand, rng.choice(ADJECTIVES), kind.noun)) + ", " + ", ".join(attributes).title()
    options = {}
    for name in kind.options:
        values = OPTIONS[name]
        options[name.partition("/")[0]] = rng.sample(values, rng.randint(2, min(len(values), 5)))
    fields = {
        "brand": brand,
        "noun": kind.noun.lower(),
        "first": attributes[0],
        "last": attributes[-1],
        "weight": rng.randint(40, 4000),
    }
    sentences = rng.sample(SENTENCES, rng.randint(0, len(SENTENCES)))
    bullets = rng.sample(BULLETS, rng.randint(1, 4))
    item = {
        "asin": asin,
        "name": title,
        "brand": brand,
        "category": category,
        "query": kind.query,
        "product_category": kind.path,
        "full_description": " ".join(sentence.format(**fields) for sentence in sentences),
        "small_description": [bullet.format(**fields) for bullet in bullets],
        "pricing": _pricing(rng),
        "images": [f"https://images.invalid/{asin}.jpg"],
        "customization_options": {
            name.title(): [{"is_selected": False, "value": value, "image": None} for value in values]
            for name, values in options.items()
        },
        **dict.fromkeys(_UNUSED),
    }
    asked = rng.sample(attributes, rng.randint(1, min(3, len(attributes))))
    known: dict[str, Any] = {"attributes": attributes}
    if rng.random() < 0.6:
        known |= {"instruction": f"Find me {', '.join(asked)} {kind.query}", "instruction_attributes": asked}
    human = [_request(asin, kind, attributes, options, rng) for _ in range(rng.choice((2, 2, 3, 3)))]
    return Entry(asin=asin, item=item, attributes=known, human=human)


def _request(
    asin: str, kind: Kind, attributes: list[str], options: Mapping[str, list[str]], rng: random.Random
) -> dict[str, Any]:
    """What a person might ask for."""
    asked = rng.sample(attributes, rng.randint(1, min(3, len(attributes))))
    chosen = {
        name: rng.choice(values).replace("/", " | ").lower()
        for name, values in options.items()
        if rng.random() < 0.75
    }
    wanted = " and ".join(f"{name} {value}" for name, value in chosen.items())
    noun = kind.noun.lower()
    text = rng.choice(REQUESTS).format(
        article="an" if noun[0] in "aeiou" else "a",
        noun=noun,
        attributes=" and ".join(asked),
        options=f" in {wanted}" if wanted else "",
    )
    return {
        "asin": asin,
        "instruction": text,
        "attributes": attributes,
        "options": [f"{name}: {value}" for name, value in chosen.items()],
        "instruction_attributes": asked,
        "instruction_options": list(chosen.values()),
    }


def _asin(number: int, rng: random.Random) -> str:
    """Ten letters: six that differ from product to product, and three at random."""
    letters = []
    for _ in range(6):
        number, digit = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[digit])
    return "B" + "".join(rng.choice(_LETTERS) for _ in range(3)) + "".join(reversed(letters))


def _pricing(rng: random.Random) -> str | None:
    kind = rng.random()
    if kind < 0.02:
        return None
    price = (
        rng.uniform(900, 1400) if kind < 0.03 else rng.uniform(3, 30) if kind < 0.5 else rng.uniform(10, 400)
    )
    return f"${price:,.2f}" if kind < 0.85 else f"${price:,.2f} - ${price + rng.uniform(1, 40):,.2f}"


class CatalogueOptions(Options):
    """What `python -m envsdk.envs.webshop.generate` takes."""

    out: Annotated[Path, Option("--out", "-o", metavar="DIR")]
    """Where the three files go."""
    products: int = NUM_PRODUCTS
    """How many."""
    seed: int = 0
    """Another seed is another catalogue."""


def command(options: CatalogueOptions) -> None:
    """Write a generated catalogue as WebShop's raw files."""
    write_catalogue(options.out, num_products=options.products, seed=options.seed)
    say(f"{options.products:,} products in {options.out}")


app, main = command_of(CatalogueOptions, command, name="python -m envsdk.envs.webshop.generate")

if __name__ == "__main__":
    sys.exit(main())
