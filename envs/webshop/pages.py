"""The text of each page, as upstream gets it out of its HTML.

    `text`       every visible string, stripped, joined by ` [SEP] `
    `text_rich`  one line per string; `[button] X [button_]` around what can be clicked, and
                 `[clicked button]` around what was

Strings come in the order of upstream's templates. An empty element has no string; one that is all
blanks has a single blank, or none if there is a line break in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Literal

from envsdk.envs.webshop.session import Page, Session, item_buttons

Mode = Literal["text", "text_rich"]

_BLANKS = " \n\t\f\r"
_HTML_SAFE = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "'": "\\u0027"})


def render(session: Session, mode: Mode) -> str:
    """The page that `session` is on."""
    return _rich(session) if mode == "text_rich" else " [SEP] ".join(_plain(session))


def _plain(session: Session) -> list[str]:
    strings = []
    for string in _strings(session):
        # Nearly all have a text; the rest is for `_kept`.
        if stripped := string.strip():
            strings.append(stripped)
        else:
            strings += [kept.strip() for kept in _kept((string,))]
    return strings


def _strings(session: Session) -> list[str]:
    """All visible strings of the page, without marks."""
    page, instruction = session.page, session.goal.text
    if page is Page.INDEX:
        return ["WebShop", "Instruction: ", instruction, "Search"]
    if page is Page.DONE:
        return _receipt(session)
    strings = ["Instruction:", instruction, "Back to Search"]
    if page is Page.RESULTS:
        strings.append(_count(session))
        if session.number > 1:
            strings.append("< Prev")
        strings.append("Next >")
        for index in session.shown():
            strings += session.catalogue.card(index)
        return strings
    strings.append("< Prev")
    if page is Page.SUB:
        return strings + _sub_page(session)
    product = session.catalogue.product(session.product)
    for name, values in product.options.items():
        strings.append(name)
        strings += values
    strings += (product.title, f"Price: {product.price_tag}", "Rating: N.A.")
    strings += item_buttons(session.show_attributes)
    return strings


def _rich(session: Session) -> str:
    page, instruction = session.page, session.goal.text
    if page is Page.DONE:
        return _lines(_receipt(session))
    if page is Page.INDEX:
        return _lines(["WebShop", "Instruction: ", instruction]) + _button("Search")
    text = _lines(["Instruction:", instruction]) + _button("Back to Search")
    if page is Page.RESULTS:
        return text + _rich_results(session)
    text += _button("< Prev")
    if page is Page.SUB:
        return text + _lines(_sub_page(session))
    product = session.catalogue.product(session.product)
    address, said = _address(session), ""
    for name, values in product.options.items():
        text += _lines([name])
        if address is None:
            text += "".join([f"  [button] {value} [button_]\n" for value in _kept(values)])
            continue
        for value in _kept(values):
            if f'"{value}"' in address:
                said = f"You have clicked {value}.\n{said}"
                text += f"  [clicked button] {value} [clicked button_]\n"
            else:
                text += f"  [button] {value} [button_]\n"
    text += _lines([product.title, f"Price: {product.price_tag}", "Rating: N.A."])
    return said + text + "".join(map(_button, item_buttons(session.show_attributes)))


def _rich_results(session: Session) -> str:
    text = _count(session) + "\n"
    if session.number > 1:
        text += _button("< Prev")
    text += _button("Next >")
    for index in session.shown():
        asin, title, price_tag = session.catalogue.card(index)
        mark = "clicked button" if asin in session.visited else "button"
        text += f"\n[{mark}] {asin} [{mark}_]\n" + _lines([title]) + price_tag + "\n"
    return text


def _count(session: Session) -> str:
    return f"Page {session.number} (Total results: {len(session.results)})"


def _sub_page(session: Session) -> list[str]:
    product = session.catalogue.product(session.product)
    if session.sub == "Description":
        return [product.description]
    if session.sub == "Features":
        return [f" {bullet}" for bullet in product.bullets]
    if session.sub == "Attributes":
        own = [f" {attribute}" for attribute in product.attributes]
        return [*own, product.category, product.query, product.product_category]
    return []


def _receipt(session: Session) -> list[str]:
    """The page after a purchase: upstream's form for paid annotators, mostly unfilled."""
    asin = session.catalogue.product(session.product).asin
    options = json.dumps(session.options, sort_keys=True).translate(_HTML_SAFE)
    return [
        "Thank you for shopping with us!",
        "Your code: ",
        "None",
        " (Paste it in your MTurk interface.)",
        "Purchased",
        "asin",
        asin,
        "options",
        options,
        *("attrs", "None", "category", "None", "query", "None", "product category", "None"),
        *("Target", "asin", "options", "attrs", "price upper", "instuction text", "category"),
        *("product category", "query", "Goal ", "None"),
        *("Reward", "Your score (min 0.0, max 1.0)", str(session.reward), "Reward Details ", "None"),
    ]


def _address(session: Session) -> str | None:
    """The end of an item page's address, where upstream looks for chosen values; None if it has no quote."""
    words = "+".join(session.keywords)
    if not session.options and '"' not in words:
        return None
    asin = session.catalogue.product(session.product).asin
    return f"/{asin}/{words}/{session.number}/{json.dumps(session.options)}"


def _button(label: str) -> str:
    return f"[button] {label} [button_]\n"


def _lines(strings: Iterable[str]) -> str:
    return "".join([f"{string}\n" for string in _kept(strings)])


def _kept(strings: Iterable[str]) -> Iterator[str]:
    """What an HTML parser leaves of `strings`."""
    for string in strings:
        if string and string[0] in _BLANKS and not string.strip(_BLANKS):
            if "\n" not in string:
                yield " "
        elif string:
            yield string
