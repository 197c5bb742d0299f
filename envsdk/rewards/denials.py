"""Pure: whether a text takes back the answer that stands in it, by lists of known words near the answer."""

from __future__ import annotations

import re

_AROUND = 60
"""Characters before and after an answer in which a denial is looked for."""
_WRONG = (
    r"(?:(?:a |an |the )?(?:wrong|incorrect|false|mistaken|(?:a )?mistake)|not (?:right|correct|it|true))\b"
)
_BEFORE = re.compile(
    r"(?:\bnot|\bcannot|n['’]t|≠|\\neq?\b|\\ne|anything but|\bno (?:es|son)|\bnão é|\bnon è|\bnicht"
    r"|\bn['’]est pas|\bне|\bto nie|\bniet|不是|不等于|不為|不为|并非|並非)"
    r"\s*(?:equal to|equals?|be|to be|exactly|the number)?[\s$*({:\[\\]*$",
    re.IGNORECASE,
)
_SENTENCE_BEFORE = re.compile(
    r"(?:\bnot (?:true|think|believe|say|claim|the case)|n['’]t (?:think|believe|say|true)"
    r"|(?<!no )(?<!without )(?<!without a )\bdoubt|\bfalse (?:that|to say)|\bunlikely)[^.\n]*$",
    re.IGNORECASE,
)
_AFTER = re.compile(
    r"[\s$*)}\]\\`]*(?:"
    rf"(?:is|was|are)(?:n['’]t|\s+not)\b(?!\s(?:hard|difficult|only|just|too)\b)|(?:is|was|are)\s+{_WRONG}"
    r"|\(\s*(?:wrong|incorrect|not)\b|[✗✘❌]|\?\s*(?:no|nope|not)\b"
    r"|(?:is|was|are)\s(?:clearly |therefore |thus )?(?:impossible|excluded|extraneous|ruled out|rejected)\b"
    r"|(?:cannot|can['’]t|could not) (?:be|satisfy|work)\b|does(?: not|n['’]t)\b|fails\b"
    r"|no es\b|não é\b|non è\b|ist (?:nicht|falsch)\b|n['’]est pas\b|est faux\b|не\b|неверно|değil"
    r"|[이가은는]?\s*아[닙니님]|では(?:な|ありません)|じゃない|不对|不對|不正确|是错|是錯"
    r"|[.?!,;:—–-]+\s*(?:(?:oh|no|hmm+|wait|oops|actually|but|sorry)\b[\s,.!—–-]*){0,3}"
    r"(?:that|this|it|which)\s?"
    rf"(?:(?:['’]s|is|was|seems)\s(?:clearly |certainly |definitely |also )?{_WRONG}"
    r"|(?:can['’]t|cannot|can not) be (?:right|correct|true|it)\b"
    r"|(?:is|was)n['’]t (?:right|correct|true|it)\b))",
    re.IGNORECASE,
)
BOUND = re.compile(
    r"(?:(?:strictly|definitely|certainly) )?(?:twice|double|triple|at least|at most|up to|between"
    r"|(?:more|less|fewer|greater|larger|smaller|higher|lower|other) than|no (?:more|less|fewer) than"
    r"|anything but|above|below)\b",
    re.IGNORECASE,
)
"""Words before a number that make another value, or no value, of it."""


def denied(text: str, start: int, end: int) -> bool:
    """Whether what stands in `text[start:end]` is denied right before or after it, or by its sentence."""
    before = text[max(0, start - _AROUND) : start]
    return denied_before(before) or _AFTER.match(text[end : end + _AROUND]) is not None


def denied_before(before: str) -> bool:
    """Whether the end of a text denies what follows it."""
    before = before[-_AROUND:]
    return _BEFORE.search(before) is not None or _SENTENCE_BEFORE.search(before) is not None
