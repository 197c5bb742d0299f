"""What is printed: all of it goes through here, because much of it is text of somebody else's.

Environments, policies, data sets and model folders may say anything. On a terminal, control characters would
set its title, clear it, write the clipboard, or show text in another order than it is in. Here they are shown
by their codes instead.
"""

from __future__ import annotations

import re
import sys
from typing import TextIO

UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # all that terminals obey but tabulator and line feed
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # what changes the order of text, or ends a line
    "\ud800-\udfff"  # halves of surrogate pairs, which no stream takes
    "\U000e0000-\U000e007f]"  # a second, invisible ASCII
)
"""Characters that `visible` shows by their codes."""


def visible(text: str) -> str:
    r"""`text` with what would act on a terminal shown by its code; lines and tabulators stay.

    >>> visible("\x1b[2Jhello\r\n")
    '\\x1b[2Jhello\\x0d\n'
    """
    return UNSAFE.sub(lambda found: _code(ord(found[0])), text)


def _code(number: int) -> str:
    return (
        f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}" if number < 65536 else f"\\U{number:08x}"
    )


def printable(text: str, encoding: str) -> str:
    """`text` made visible, with what the encoding does not have shown by its code too."""
    return visible(text).encode(encoding, "backslashreplace").decode(encoding)


def say(*parts: object, sep: str = " ", end: str = "\n", err: bool = False, flush: bool = False) -> None:
    """`print`, made visible; on stderr with `err`."""
    stream: TextIO | None = sys.stderr if err else sys.stdout
    if stream is None:
        return
    stream.write(printable(sep.join(map(str, parts)) + end, stream.encoding or "utf-8"))
    if flush:
        stream.flush()
