"""A product as WebShop loads it from the raw files, and what is wrong with a record it cannot load.

    raw record (items_shuffle*.json) + attributes (items_ins_v2*.json) + instructions
    (items_human_ins.json) -> Product

The rules are upstream's, odd ones included; `docs/webshop.md` lists them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

MAX_ASIN_LENGTH = 10
DEFAULT_PRICE = 100.0
NO_ATTRIBUTES = ("DUMMY_ATTR",)

_NOT_A_DIGIT = re.compile(r"[^\d.]")


class BadRecord(ValueError):
    """A record cannot be loaded; the message names the field and what is wrong with it."""

    entry: Literal["", "attributes", "human"] = ""
    """Where the field is when not in the record itself: the product's entry in another file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HumanInstruction:
    """What a person wrote for a product: one entry of items_human_ins.json."""

    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One product, as pages show it and the reward reads it."""

    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    pricing: tuple[float, ...]
    """One price, or the two ends of a range, in dollars."""
    price_tag: str
    options: Mapping[str, tuple[str, ...]]
    """Values by option name, both in lower case; a value may be there twice."""
    attributes: tuple[str, ...]
    category: str
    query: str
    product_category: str
    """A path, `Beauty › Hair Care › Hair Masks`."""
    instruction: str | None = None
    """What the synthetic goals of the product ask for; None when it has none."""
    instruction_attributes: tuple[str, ...] = ()
    human: tuple[HumanInstruction, ...] = ()
    nouns: tuple[str, ...] = ()
    """The title's nouns in lower case, as often as they stand there."""


def is_skipped(asin: str) -> bool:
    """Whether upstream leaves a record with this asin out."""
    return asin == "nan" or len(asin) > MAX_ASIN_LENGTH


def is_unicode(text: str) -> bool:
    """False of half a surrogate pair, which JSON can hold and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def load_product(
    raw: Mapping[str, Any],
    attributes: Mapping[str, Any] | None,
    human: Sequence[Mapping[str, Any]] | None,
) -> Product:
    """The product of one raw record.

    Args:
        raw: The record of items_shuffle*.json.
        attributes: The entry of items_ins_v2*.json, None when there is none.
        human: The entries of items_human_ins.json, None when there are none.

    Raises BadRecord.
    """
    pricing, price_tag = parse_pricing(raw.get("pricing"))
    bullets = _field(raw, "small_description")
    known, instruction, asked = _synthetic(attributes or {})
    return Product(
        asin=_label(_text(raw, "asin"), "asin"),
        # A template shows what is no text, such as a missing description, as Python prints it.
        title=str(_field(raw, "name")),
        description=str(_field(raw, "full_description")),
        bullets=tuple(map(str, bullets)) if isinstance(bullets, list) else (str(bullets),),
        pricing=pricing,
        price_tag=price_tag,
        options=parse_options(_field(raw, "customization_options")),
        attributes=known,
        category=_label(str(_field(raw, "category")), "category"),
        query=_label(_text(raw, "query"), "query").lower().strip(),
        product_category=str(_field(raw, "product_category")),
        instruction=instruction,
        instruction_attributes=asked,
        human=_human(human or ()),
        nouns=(),
    )


def parse_pricing(text: Any) -> tuple[tuple[float, ...], str]:
    """The prices in a text such as `$10.99 - $1,024.50`, at most two, and how pages show them."""
    if not text:
        return (DEFAULT_PRICE,), f"${DEFAULT_PRICE}"
    if not isinstance(text, str):
        raise BadRecord(f"pricing: must be a text such as '$9.99', not {text!r}")
    prices = []
    for part in text.split("$")[1:]:
        try:
            prices.append(float(Decimal(_NOT_A_DIGIT.sub("", part))))
        except InvalidOperation:
            raise BadRecord(f"pricing: {text!r} has a '$' without a number after it") from None
    if not all(map(math.isfinite, prices)):
        raise BadRecord(f"pricing: {_short(text)} is more than a number can hold")
    if not prices:
        raise BadRecord(f"pricing: {text!r} has no '$'; expected a text such as '$9.99' or '$5 - $9.99'")
    if len(prices) == 1:
        return (prices[0],), f"${prices[0]}"
    return (prices[0], prices[1]), f"${prices[0]} to ${prices[1]}"


def parse_options(groups: Any) -> dict[str, tuple[str, ...]]:
    """Option values by name from `customization_options`."""
    if not groups:
        return {}
    if not isinstance(groups, Mapping):
        raise BadRecord(f"customization_options: must map names to lists, not {_short(groups)}")
    options = {}
    for name, entries in groups.items():
        if entries is None:
            continue
        try:
            values = [entry["value"].strip().replace("/", " | ").lower() for entry in entries]
        except (TypeError, KeyError, AttributeError):
            raise BadRecord(
                f"customization_options: {name!r} must be a list of objects with a text 'value', "
                f"not {_short(entries)}"
            ) from None
        options[name.lower()] = tuple(values)
    return options


def index_text(product: Product) -> str:
    """What the search engine knows of a product."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options.items())
    first = product.bullets[0] if product.bullets else ""
    return " ".join((product.title, product.description, first, options)).lower()


def _synthetic(entry: Mapping[str, Any]) -> tuple[tuple[str, ...], str | None, tuple[str, ...]]:
    """A product's attributes; the instruction of its synthetic goals and what that asks for."""
    try:
        known = _strings(entry, "attributes") if "attributes" in entry else NO_ATTRIBUTES
        instruction = entry.get("instruction")
        if instruction is None:
            return known, None, ()
        asked = _strings(entry, "instruction_attributes")
        if not asked:
            raise BadRecord("instruction_attributes: empty, but there is an instruction")
    except BadRecord as error:
        error.entry = "attributes"
        raise
    return known, str(instruction), asked


def _human(entries: Sequence[Mapping[str, Any]]) -> tuple[HumanInstruction, ...]:
    try:
        return tuple(map(_instruction, entries))
    except BadRecord as error:
        error.entry = "human"
        raise


def _instruction(entry: Mapping[str, Any]) -> HumanInstruction:
    if not isinstance(entry, Mapping):
        raise BadRecord(f"instructions: must be objects, not {_short(entry)}")
    asked = _strings(entry, "instruction_attributes")
    if not asked:
        # No goal is made of it.
        entry = {"instruction": "", "instruction_options": [], **entry}
    return HumanInstruction(
        text=_text(entry, "instruction"),
        attributes=asked,
        options=_strings(entry, "instruction_options"),
    )


def _field(record: Mapping[str, Any], name: str) -> Any:
    try:
        return record[name]
    except KeyError:
        raise BadRecord(f"{name}: missing") from None


def _text(record: Mapping[str, Any], name: str) -> str:
    value = _field(record, name)
    if not isinstance(value, str):
        raise BadRecord(f"{name}: must be a text, not {_short(value)}")
    return value


def _label(text: str, name: str) -> str:
    """A text that products are looked up by."""
    if not is_unicode(text):
        raise BadRecord(f"{name}: holds half of a surrogate pair: {_short(text)}")
    return text


def _strings(record: Mapping[str, Any], name: str) -> tuple[str, ...]:
    values = _field(record, name)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise BadRecord(f"{name}: must be a list of texts, not {_short(values)}")
    return tuple(values)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
