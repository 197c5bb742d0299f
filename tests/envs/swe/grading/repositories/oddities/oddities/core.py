"""The functions."""

import asyncio
import enum
import logging
import re
import threading
import uuid
import warnings

log = logging.getLogger("oddities")


class Shade(enum.Enum):
    DARK = "dark"
    LIGHT = "light"


def slug(text, sep="-"):
    """Lower case, with one separator in place of each run of other characters, and none at the ends.

    >>> slug("Two  words!")
    'two-words'
    """
    return re.sub(r"[^a-z0-9]+", sep, text.lower()).strip(sep)


def chunks(items, size):
    """Lists of up to `size` items, one after the other. ValueError where size is below 1."""
    if size < 1:
        raise ValueError(f"size must be at least 1, not {size}")
    items = list(items)
    for at in range(0, len(items), size):
        yield items[at : at + size]


def mean(values):
    """ValueError of nothing."""
    values = list(values)
    if not values:
        raise ValueError("mean of nothing")
    return sum(values) / len(values)


def divide(a, b):
    """The quotient; a ZeroDivisionError that says of what."""
    try:
        return a / b
    except ZeroDivisionError as error:
        raise ZeroDivisionError(f"{a!r} by zero") from error


class Point:
    """Equal where both coordinates are close."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __eq__(self, other):
        if not isinstance(other, Point):
            return NotImplemented
        return abs(self.x - other.x) < 1e-9 and abs(self.y - other.y) < 1e-9

    __hash__ = None

    def __repr__(self):
        return f"<Point at {id(self):x}>"

    def moved(self, x=0, y=0):
        return Point(self.x + x, self.y + y)


class Stack:
    """Last in, first out."""

    def __init__(self, items=()):
        self.items = list(items)

    def push(self, item):
        self.items.append(item)
        return self

    def pop(self):
        return self.items.pop()

    def __len__(self):
        return len(self.items)

    def __iter__(self):
        return reversed(self.items)


class Pool:
    """Calls functions in threads."""

    def __init__(self, size=3):
        self.size = size

    def map(self, function, items):
        """Results in the order of the items."""
        items = list(items)
        results = [None] * len(items)

        def work(start):
            for at in range(start, len(items), self.size):
                results[at] = function(items[at])

        threads = [threading.Thread(target=work, args=(start,)) for start in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


def parse(text):
    """`a=1, b=x` as a dict; numbers become int."""
    found = {}
    for part in text.split(","):
        name, sign, value = part.partition("=")
        if not sign:
            raise ValueError(f"no value in {part.strip()!r}")
        value = value.strip()
        found[name.strip()] = int(value) if value.lstrip("-").isdigit() else value
    return found


def describe(thing):
    """A sentence about it, with its address."""
    log.info("describing %s", type(thing).__name__)
    return f"a {type(thing).__name__} at {id(thing):#x}"


def count_down(number):
    """Numbers down to 1."""
    while number > 0:
        yield number
        number -= 1


def guess(limit):
    """Some whole number below the limit, and how it was found."""
    return limit // 2, ["halved"]


def new_id():
    """A text that was never there before."""
    return uuid.uuid4().hex


async def later(value):
    await asyncio.sleep(0)
    return value


def old():
    """Use slug."""
    warnings.warn("old() is slug() now", DeprecationWarning, stacklevel=2)
    return "old"


def check(value):
    """AssertionError where it is false."""
    if not value:
        raise AssertionError(f"{value!r} is false")
    return value
