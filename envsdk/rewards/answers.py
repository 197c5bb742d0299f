r"""Finding the answer in a response: which words of a long text are what the policy answers.

Ways of finding are tried in the order of `Extraction.extract`; the first that finds an answer decides, even a
denied one ("not 5"). All are linear in the length of the text.

    find_answer("2 + 2 = 4, so the answer is $4$.", Extraction())   # Found("4", "answer_is")
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import Literal

from envsdk.base.settings.strict import StrictSettings
from envsdk.rewards.answer_text import NO_SPACES, after_thinking, is_thinking

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
_VALUE = rf"–?{NUMBER}(?::\d+)*"
_NUMBER = re.compile(
    rf"(?=[-+−–.\d])(?:(?<![\w.])|(?<=[{NO_SPACES}]))"
    rf"(?:{_VALUE}(?:(?!\w)|(?=[{NO_SPACES}]))|[-+−]?\d+(?:\.\d+)?(?=[A-Za-z]+\b))"
)
_FORMULA = re.compile(
    r"(?=[$\\])(?:\$\$([^$]{1,1000})\$\$|\$([^$]{1,1000})\$|\\\(([^$]{1,1000}?)\\\)|\\\[([^$]{1,1000}?)\\\])"
)
_SENTENCE = re.compile(r"[A-Za-z]{3,},? [A-Za-z]{2,}")
_ITEM = re.compile(
    rf"(?:\\?[$€£]\s?)?(?P<value>{_VALUE})(?!\d|\.\d|\s?\\?%|\w*[\\^_]"
    r"|\s+(?:of\s+\d+|or so|plus|minus|times|divided|squared|cubed)\b)"
    rf"(?:(?:[ -]?[A-Za-z°]{{1,12}}|[ -]?[A-Za-z°]{{1,12}} [a-z]{{1,12}})(?=\s*(?:,|\band\b|\bor\b)))?"
    r"|(?P<group>[(\[]\s*[-\d][^()\[\]\n]{1,80}[)\]])"
)
_JOINT = re.compile(
    r"\s*(?:[,;]\s*(?:and|or)?|and|or|\\text\{\s*(?:and|or)\s*\})\s*(?=[$\\(\[\d.+−–-])", re.IGNORECASE
)
_CUE = re.compile(
    r"\b(?:(?:[Aa]nswers?|ANSWER)(?i:\s(?:to|for|of)\s[^.\n]{1,80}?\s)?"
    r"[\s*_]{0,4}(?:(?i:is|was|are)\b|:|=)|Ans[.:]"
    r"|[Rr]espuesta(?: final| correcta)? es\b|[Rr]éponse(?: finale)? est\b|[Aa]ntwort (?:ist|lautet)\b"
    r"|[Rr]isposta(?: finale)? è\b|[Rr]esposta(?: final)? é\b|[Оо]твет\w{0,3}(?: равен)?\s?[:—-]"
    r"|(?:[Aa]ctually|[Ww]ait|[Nn]o|[Ss]orry|[Hh]mm|[Cc]orrection|[Ii]t)\b[^.\n]{0,30}?"
    r"\b(?:should|must) (?:be|have been)(?=[\s$*\\(]{1,6}[-\d]))[\s*_:]{0,8}"
    r"|(?:答案|答え|정답|답)\s?(?:应该|應該|应|應)?(?:是|为|為|は|은|:|：|=)[\s*_]{0,8}"
)
_VERB = re.compile(
    r"(?:\b(?:is|are|was|were|equals?|be|becomes|makes|gives)\b|[:=])[\s*]*(?=[$\\(\[\d.+−–-])", re.IGNORECASE
)
_DENIAL = re.compile(r"\W*(?:≠|\\neq?\b|!=)")
_GAP = re.compile(r"\\(?:quad|qquad|[,;:!>()\[\] \\])|\\text(?:rm|bf)?\s*\{([^{}]*)\}|[$*~&]")
_AND_OR = re.compile(
    r"\s*[,;]?\s*(?:and|or|or else|as well as)?\s*(?:also|again|perhaps|maybe|possibly|then)?\s*"
    r"(?:\\?[A-Za-z]+(?:_\{?\w+\}?)?\s*=)?\s*",
    re.IGNORECASE,
)
_OR_OTHER = re.compile(rf"[\s$)\]}}\\]*(?:\\text\{{\s*or\s*\}}|\bor\b)\s*\$?\s*({NUMBER})", re.IGNORECASE)
_SENTENCE_END = re.compile(
    r"(?<!\bi\.e)(?<!\be\.g)(?<!\b[ap]\.m)(?:(?<!\b[A-J])|(?!\.\s[\d$\\]))[.!?](?=\s|$)|[\n;。！？]"
)
_PROSE = re.compile(
    r"(?<![\\A-Za-z])(?!(?:sin|cos|tan|cot|sec|csc|log|exp|sqrt|mod|gcd|lcm|max|min|inf)\b)[A-Za-zÀ-ɏ]{3,}"
    rf"|\b(?:is|it|so|we|he|to|of|no)\b|[а-я]{{3,}}|\bне\b|[{NO_SPACES}]",
    re.IGNORECASE,
)
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![a-z])")
_LETTER_AND_REASON = re.compile(r"\(?[A-J]\)?,?\s+(?:because|since|as)\b")
_BARE_LATEX = re.compile(
    r"\b(?:is|are|equals|be)\s+([-\d(]*\\(?:[dt]?frac|sqrt|pi|binom|left|infty)\b.*?)\.?$"
)
_BOLD_END = re.compile(r"\*\*([^*]{1,40}?)\.?\*\*\W*$")
_MAX_BOXES = 20
_BETWEEN = 60
"""Characters between two boxes that may be one answer."""
_MAX_WORDS_CHARS = 40
"""A response without number or formula that is no longer is an answer in words: `north-east`."""
_TAIL = 2000
"""Characters at the end of the text in which its last number is looked for."""


def find_answer(response: str, extraction: Extraction) -> Found:
    """The answer of a response."""
    text = response
    if extraction.after_think:
        if is_thinking(text):
            return Found(None, problem="no answer: <think> is not closed")
        text = after_thinking(text)
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
    r"""What the box at `start` holds, and where it ends; None when its brace is missing or not closed.

    A content of more than `limit` characters is cut there.
    """
    opening = start + 1
    while text[opening : opening + 1].isalpha():
        opening += 1
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
    starts = [match.start() for match in _BOX.finditer(text)]
    if not starts:
        return None
    start = starts.pop()
    last = boxed_content(text, start, limit)
    if last is None:
        return Found(None, problem="no answer: the last \\boxed is not closed")
    contents, end = [last[0].strip()], last[1]
    while True:
        if denied(text, start, end):
            return Found(None, problem=f"no answer: {short(contents[0])} is denied")
        before = starts.pop() if starts else None
        previous = None if before is None else boxed_content(text, before, limit)
        if before is None or previous is None or not 0 <= start - previous[1] <= _BETWEEN:
            break
        if not _AND_OR.fullmatch(_GAP.sub(r" \1 ", text[previous[1] : start])):
            break
        if previous[0].strip() not in contents:
            contents.insert(0, previous[0].strip())
        if len(contents) > _MAX_BOXES:
            return Found(None, problem="no answer: too many boxes in a row")
        start = before
    if other := _OR_OTHER.match(text[end : end + _BETWEEN]):
        contents.append(other[1])
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
        start = cue.end()
        if denied_before(text[max(0, cue.start() - _AROUND) : cue.start()]):
            continue
        while start < len(text) and text[start].isspace():
            start += 1
        content = text[start : start + limit + 2]
        if re.match(r"(?:not\b|n['’]t\b)", content, re.IGNORECASE):
            continue
        content = content[: _sentence_end(content)]
        content = re.split(r"[,\s]\s*(?:and |but )?not\s", content, maxsplit=1)[0]
        if denied(text, start, start + len(content)):
            return Found(None, problem=f"no answer: {short(content)} is denied")
        if content.strip():
            return _read(content)
    return None


def _last(text: str, limit: int) -> Found | None:
    """The last line when it holds nothing but an answer, otherwise the last number or formula."""
    tail = text[-_TAIL:]
    line = tail.rstrip().rsplit("\n", 1)[-1].strip()
    if line and len(line) <= 200 and len(_FORMULA.findall(line)) <= 1 and not _PROSE.search(line):
        return Found(None, problem=f"no answer: {short(line)} denies") if _DENIAL.match(line) else _read(line)
    if "$" not in line and (stated := _BARE_LATEX.search(line)):
        return Found(stated[1])
    if found := _last_of(tail):
        return found
    if bold := _BOLD_END.search(line):
        return Found(bold[1])
    return Found(text.strip()) if 0 < len(text.strip()) <= _MAX_WORDS_CHARS else None


def _last_of(text: str) -> Found | None:
    """The last number or formula of a text, with those that it is one list with: "3 and -3"."""
    formulas = [match for match in _FORMULA.finditer(text) if _is_formula(match)]
    formula = formulas[-1] if formulas else None
    number = next(iter(deque(_NUMBER.finditer(text), maxlen=1)), None)
    match = formula if number is None or (formula and formula.end() >= number.end()) else number
    if match is None:
        return None
    answer = _formula_text(match) if match is formula else match.group().replace("–", "-")
    if denied(text, match.start(), match.end()):
        return Found(None, problem=f"no answer: {short(answer)} is denied")
    answers, start = [answer], match.start()
    candidates = formulas[:-1] if match is formula else list(_NUMBER.finditer(text[:start]))
    for other in reversed(candidates[-_MAX_BOXES:]):
        gap = re.match(r"\s?[A-Za-z°]{0,12}?" + _JOINT.pattern, text[other.end() :], re.IGNORECASE)
        if gap is None or other.end() + gap.end() != start:
            break
        answers.insert(0, _formula_text(other) if match is formula else other.group())
        start = other.start()
    return Found(", ".join(answers))


def _read(content: str) -> Found:
    """The answer in a phrase: what it begins with, or what stands after its last verb, or its last number."""
    content = content.strip().strip('*_`"“”').strip().rstrip(".。").strip()
    if not _PROSE.search(content) or ("\\" in content and not _FORMULA.search(content)):
        stated = re.sub(r"(?<=\S)\s*\((?:\$|or\s|i\.e)[^()]*\)$", "", content)
        formulas = [_formula_text(match) for match in _FORMULA.finditer(stated)]
        return Found(", ".join(dict.fromkeys(formulas)) if formulas else content)
    if BOUND.match(content):
        return Found(None, problem=f"no answer: {short(content)} states no value")
    if _LETTER_AND_REASON.match(content):
        return Found(content)
    verbs = [0, *(match.end() for match in _VERB.finditer(content) if not _is_inside(match.start(), content))]
    for start in (0, *reversed(verbs[1:])):
        items, end = _items(content, start)
        if items and (start or not _JOINT.match(content, end)):
            if denied(content, start, end):
                return Found(None, problem=f"no answer: {short(items[0])} is denied")
            return Found(", ".join(dict.fromkeys(items)))
    return _last_of(content) or Found(content)


def _items(text: str, at: int) -> tuple[list[str], int]:
    """The numbers and formulas of the list that begins there, and where it ends."""
    items: list[str] = []
    end = at
    while True:
        formula = _FORMULA.match(text, at)
        if formula and _is_formula(formula):
            items.append(_formula_text(formula))
            end = formula.end()
        elif item := _ITEM.match(text, at):
            items.append((item["value"] or item["group"]).replace("–", "-"))
            end = item.end()
        else:
            return items, end
        if (joint := _JOINT.match(text, end)) is None:
            return items, end
        at = joint.end()


def _sentence_end(text: str) -> int:
    """Where the first sentence ends, outside formulas."""
    inside = [match.span() for match in _FORMULA.finditer(text) if _is_formula(match)]
    for end in _SENTENCE_END.finditer(text, 1):
        if not any(start < end.start() < stop for start, stop in inside):
            return end.start()
    return len(text)


def _is_inside(at: int, text: str) -> bool:
    return any(match.start() < at < match.end() for match in _FORMULA.finditer(text))


def _is_formula(match: re.Match[str]) -> bool:
    """Not what stands between the dollars of two prices."""
    return "\\" in match.group() or not _SENTENCE.search(match.group())


def _formula_text(match: re.Match[str]) -> str:
    return next((group for group in match.groups() if group is not None), match.group()).strip()


def short(text: str, limit: int = 80) -> str:
    """For a message: one line of at most `limit` characters."""
    text = " ".join(text[: 4 * limit].split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
