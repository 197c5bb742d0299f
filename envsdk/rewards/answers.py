r"""Finding the answer in a response: which words of a long text are what the policy answers.

Ways of finding are tried in the order of `Extraction.extract`; the first that finds an answer decides, even a
denied one ("not 5"). All are linear in the length of the text.

    find_answer("2 + 2 = 4, so the answer is $4$.", Extraction())   # Found("4", "answer_is")
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from envsdk.settings.strict import StrictSettings

Way = Literal["boxed", "tag", "hash", "answer_is", "last"]


class Extraction(StrictSettings):
    """Where answers are looked for."""

    extract: tuple[Way, ...] = ("boxed", "tag", "hash", "answer_is", "last")
    r"""Ways of finding the answer, in order: the last `\boxed{X}`, the last `<answer>X</answer>`, the last
    `#### X` (GSM8K), the last "the answer is X", the last number or formula of the text."""
    after_think: bool = True
    """Read only the text after the last `</think>`; an unclosed `<think>` has no answer."""
    max_answer_chars: int = 1000
    """A longer answer is wrong; it reaches no parser."""


@dataclass(frozen=True, slots=True)
class Found:
    """What was found in a response."""

    answer: str | None
    """None: there is no answer, for the reason in `problem`."""
    way: Way | None = None
    problem: str = ""


NUMBER = (
    r"[-+−]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,4}\b)?"
    r"(?:/\d+(?:\.\d+)?)?(?:\s?\\?%)?"
)
_NUMBER = re.compile(rf"(?=[-+−.\d])(?<![\w.])(?:{NUMBER}(?!\w)|[-+−]?\d+(?:\.\d+)?(?=[A-Za-z]+\b))")
_LEADING_NUMBERS = re.compile(rf"{NUMBER}(?:\s*[A-Za-z%°]{{0,12}}\s*\b(?:or|and)\s+{NUMBER})*", re.IGNORECASE)
_ALTERNATIVES = re.compile(rf"{NUMBER}\s*[A-Za-z]{{0,12}}\s+or\s+$", re.IGNORECASE)
_FORMULA = re.compile(
    r"(?=[$\\])(?:\$\$([^$]{1,1000})\$\$|\$([^$]{1,1000})\$|\\\(([^$]{1,1000}?)\\\)|\\\[([^$]{1,1000}?)\\\])"
)
_CUE = re.compile(
    r"\b(?:[Aa]nswer|ANSWER)(?i:\s(?:to|for|of)\s[^.\n]{1,80}?\s)?"
    r"[\s*_]{0,4}(?:(?i:is|was)\b|:|=)[\s*_:]{0,8}"
)
_DENIED_BEFORE = re.compile(
    r"(?:\bnot|n['’]t|≠|\\neq?\b|\\ne)\s*(?:equal to|equals?|be|to be|exactly|the number)?[\s$*({:\[\\]*$",
    re.IGNORECASE,
)
_DENIED_AFTER = re.compile(
    r"[\s$*)}\]\\]*(?:(?:is|was|are)\s*(?:n['’]t|not|wrong|incorrect|false)\b|cannot be\b|can['’]t be\b)",
    re.IGNORECASE,
)
_DENIAL = re.compile(r"\W*(?:≠|\\neq?\b|!=)")
_DENIED_CUE = re.compile(
    r"(?:\bnot (?:true|think|believe|say|claim|the case)|n['’]t (?:think|believe|say|true)|\bdoubt|\bfalse)"
    r"[^.\n]*$",
    re.IGNORECASE,
)
_AND_OR = re.compile(r"\s*(?:,|;|\band\b|\bor\b|\\text\{\s*(?:and|or)\s*\})?\s*", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)|\n|;")
_PROSE = re.compile(
    r"(?<![\\A-Za-z])(?!(?:sin|cos|tan|cot|sec|csc|log|exp|sqrt|mod|gcd|lcm|max|min|inf)\b)[A-Za-z]{3,}"
    r"|\b(?:is|it|so|we|he|to|of|no)\b",
    re.IGNORECASE,
)
_MAX_BOXES = 20
_AROUND = 60
"""Characters before and after an answer in which a denial is looked for."""
_MAX_WORDS_CHARS = 40
"""A response without number or formula that is no longer is an answer in words: `north-east`."""
_TAIL = 2000
"""Characters at the end of the text in which its last number is looked for."""


def find_answer(response: str, extraction: Extraction) -> Found:
    """The answer of a response."""
    text = response
    if extraction.after_think:
        text = text[text.rfind("</think>") + len("</think>") :] if "</think>" in text else text
        if "<think>" in text:
            return Found(None, problem="no answer: <think> is not closed")
    ways = {"boxed": _boxed, "tag": _tagged, "hash": _hashed, "answer_is": _announced, "last": _last}
    for way in extraction.extract:
        found = ways[way](text, extraction.max_answer_chars)
        if found is None:
            continue
        if found.answer is not None and len(found.answer) > extraction.max_answer_chars:
            found = Found(None, problem=f"the answer is longer than {extraction.max_answer_chars} characters")
        return Found(found.answer, way, found.problem)
    return Found(None, problem="no answer found")


def boxed_content(text: str, start: int, limit: int) -> tuple[str, int] | None:
    r"""What the `\boxed` at `start` holds, and where it ends; None when its brace is missing or not closed.

    A content of more than `limit` characters is cut there.
    """
    opening = start + len("\\boxed")
    while opening < len(text) and text[opening] == " ":
        opening += 1
    if opening == len(text) or text[opening] != "{":
        return None
    depth, at = 0, opening
    while at < len(text):
        character = text[at]
        if character == "\\":
            at += 1
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return text[opening + 1 : at], at + 1
        if at - opening > limit + 1:
            return text[opening + 1 : at + 1], at + 1
        at += 1
    return None


def _boxed(text: str, limit: int) -> Found | None:
    """The last box, joined with the boxes right before it: `\\boxed{1} and \\boxed{2}` is `1, 2`."""
    start = text.rfind("\\boxed")
    if start < 0:
        return None
    last = boxed_content(text, start, limit)
    if last is None:
        return Found(None, problem="no answer: the last \\boxed is not closed")
    contents, end = [last[0].strip()], last[1]
    if _DENIED_AFTER.match(text[end : end + _AROUND]):
        return Found(None, problem=f"no answer: {short(contents[0])} is denied")
    while True:
        if _DENIED_BEFORE.search(text[max(0, start - _AROUND) : start]):
            return Found(None, problem=f"no answer: {short(contents[0])} is denied")
        before = text.rfind("\\boxed", 0, start)
        previous = boxed_content(text, before, limit) if before >= 0 else None
        if previous is None or start - previous[1] > _AROUND:
            break
        gap = text[previous[1] : start].replace("$", "").replace("*", "")
        if previous[1] > start or not _AND_OR.fullmatch(gap):
            break
        if previous[0].strip() not in contents:
            contents.insert(0, previous[0].strip())
        if len(contents) > _MAX_BOXES:
            return Found(None, problem="no answer: too many boxes in a row")
        start = before
    return Found(", ".join(contents))


def _tagged(text: str, limit: int) -> Found | None:
    close = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, close) if close >= 0 else -1
    if start < 0:
        return None
    content = text[start + len("<answer>") : close]
    return _read(content if len(content) > limit else content.strip())


def _hashed(text: str, limit: int) -> Found | None:
    start = text.rfind("####")
    if start < 0:
        return None
    line = text[start + 4 : start + limit + 6].strip().split("\n", 1)[0]
    return _read(line)


def _announced(text: str, limit: int) -> Found | None:
    """The last "the answer is X" that is not denied."""
    for cue in reversed(deque(_CUE.finditer(text), maxlen=8)):
        if _DENIED_CUE.search(text[max(0, cue.start() - _AROUND) : cue.start()]):
            continue
        content = text[cue.end() : cue.end() + limit + 2]
        if re.match(r"(?:not\b|n['’]t\b)", content, re.IGNORECASE):
            continue
        sentence_end = _SENTENCE_END.search(content, 1)
        content = content[: sentence_end.start()] if sentence_end else content
        content = re.split(r"[,\s]\s*(?:and |but )?not\s", content, maxsplit=1)[0]
        if content.strip():
            return _read(content)
    return None


def _last(text: str, limit: int) -> Found | None:
    """The last line when it holds nothing but an answer, otherwise the last number or formula."""
    tail = text[-_TAIL:]
    line = tail.rstrip().rsplit("\n", 1)[-1].strip()
    if line and len(line) <= 200 and len(_FORMULA.findall(line)) <= 1 and not _PROSE.search(line):
        return Found(None, problem=f"no answer: {short(line)} denies") if _DENIAL.match(line) else _read(line)
    formula = _final(_FORMULA.finditer(tail))
    number = _final(_NUMBER.finditer(tail))
    match = formula if number is None or (formula and formula.end() >= number.end()) else number
    if match is None:
        return Found(text.strip()) if 0 < len(text.strip()) <= _MAX_WORDS_CHARS else None
    answer = _formula_text(match) if match is formula else match.group()
    before, after = (
        tail[max(0, match.start() - _AROUND) : match.start()],
        tail[match.end() : match.end() + _AROUND],
    )
    if _DENIED_BEFORE.search(before) or _DENIED_AFTER.match(after):
        return Found(None, problem=f"no answer: {short(answer)} is denied")
    if other := _ALTERNATIVES.search(before):
        answer = f"{other.group().split()[0]}, {answer}"
    return Found(answer)


def _read(content: str) -> Found:
    """The answer in a phrase: its formulas, else the phrase as a formula, else its number, else its words."""
    content = content.strip().strip('*_`"“”').strip().rstrip(".").strip()
    formulas = [_formula_text(match) for match in _FORMULA.finditer(content)]
    if formulas:
        return Found(", ".join(dict.fromkeys(formulas)))
    if "\\" in content or not _PROSE.search(content):
        return Found(content)
    if leading := _LEADING_NUMBERS.match(content):
        return Found(re.sub(r"\s*[A-Za-z°]*\s*\b(?:or|and)\s+", ", ", leading.group(), flags=re.IGNORECASE))
    if number := _final(_NUMBER.finditer(content)):
        if _DENIED_BEFORE.search(content[: number.start()][-_AROUND:]) or _DENIED_AFTER.match(
            content[number.end() :]
        ):
            return Found(None, problem=f"no answer: {number.group()} is denied")
        if other := _ALTERNATIVES.search(content[: number.start()][-_AROUND:]):
            return Found(f"{other.group().split()[0]}, {number.group()}")
        return Found(number.group())
    return Found(content)


def _formula_text(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group is not None).strip()


def _final(matches: Iterator[re.Match[str]]) -> re.Match[str] | None:
    return next(iter(deque(matches, maxlen=1)), None)


def short(text: str, limit: int = 80) -> str:
    """For a message: one line of at most `limit` characters."""
    text = " ".join(text[: 4 * limit].split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
