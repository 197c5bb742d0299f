"""The `choice` reward: multiple choice, by letter or by the text of an option."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from envsdk.rewards.answer_text import after_thinking
from envsdk.rewards.answers import Extraction, Way, find_answer, short
from envsdk.rewards.reward import InlineReward, Reward, RewardError, Sample, stated_truth, unusable

LETTERS = "ABCDEFGHIJ"

_VALUES: dict[str, tuple[float, float, float, float]] = {
    "binary": (1.0, 1.0, 0.0, 0.0),
    "boxed": (1.0, 0.0, 0.0, 0.0),
    "loose": (1.0, 1.0, -1.0, -1.0),
    "soft": (1.0, 0.5, -0.5, -1.0),
    "strict": (1.0, -1.0, -1.0, -1.0),
}
"""Right in a box, right without, wrong in a box, wrong without."""

_DECORATION = " \t\n*_`$\"'“”.:;"
_LETTER = r"[\s*_(\[$]{0,4}([A-J])(?![A-Za-z0-9])[\s*_)\]$.:]{0,4}"
_START = re.compile(rf"(?:the\s+)?(?:correct\s+)?(?:option|choice|answer)?\s{{0,3}}{_LETTER}", re.IGNORECASE)
_NEXT = re.compile(rf"(?:,|;|/|&|\band\b|\bor\b)\s{{0,3}}(?:option\s{{0,3}})?{_LETTER}", re.IGNORECASE)
_LEAD = re.compile(
    r"(?:(?:[Ss]o|[Tt]herefore|[Tt]hus|[Hh]ence|[Tt]hen)\b,?\s*)?"
    r"(?:(?:[Ii]t|[Tt]his|[Tt]hat)(?:['’]s| is| must be)|(?:I|[Ww]e) (?:choose|pick|select|say|go with))?\s*"
    r"(?=[*(]{0,3}[A-J](?![A-Za-z0-9]))"
)
"""Words before a letter that is chosen."""
_REASON = re.compile(
    r"\s*(?:[-–—,(.]|because\b|since\b|(?:is|must be|would be) (?:the )?(?:correct|right|best|true|answer)\b)"
)
"""What follows a chosen letter, and no article: "A, because", "A is correct"."""
_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s?\{([^{}]*)\}")
_MARKED = re.compile(r"\(([A-J])\)|\*\*\(?([A-J])[).:]?\*\*|\b(?:[Oo]ption|[Cc]hoice)\s+([A-J])\b")
_OPTION_LINE = re.compile(r"^[ \t]*\(?([A-J])[).:][ \t]+(\S[^\n]{0,300})", re.MULTILINE)
_TAIL = 2000
_MAX_PROMPT = 20_000


class ChoiceArgs(Extraction):
    """The settings of `choice`."""

    extract: tuple[Way, ...] = ("boxed", "tag", "hash", "answer_is")
    """Ways of finding the answer, as in `math`. Where none finds one, the last line is read, then the last
    marked letter: `(B)`, `**B**`, `Option B`."""
    reward_type: Literal["binary", "boxed", "loose", "soft", "strict"] = "binary"
    r"""The values of: right in `\boxed{}`, right without, wrong in `\boxed{}`, wrong without. `binary` 1, 1,
    0, 0; `boxed` 1, 0, 0, 0; `loose` 1, 1, -1, -1; `soft` 1, 0.5, -0.5, -1; `strict` 1, -1, -1, -1."""


class ChoiceReward(InlineReward[ChoiceArgs]):
    """Whether the response chooses the letter, or the option's text, that the row's `ground_truth` states."""

    Args = ChoiceArgs

    def score(self, sample: Sample) -> Reward:
        options = options_of(sample)
        truth = chosen(sample.known_truth, options) or _letters_in_a_row(sample.known_truth)
        if not truth:
            raise RewardError(f"its ground_truth is no choice: {short(sample.known_truth) or 'empty'}")
        found = find_answer(sample.response, self.args)
        if found.answer is not None:
            choice, said = chosen(found.answer, options), found.answer
        elif found.way is None and "closed" not in found.problem:
            choice, answer = _marked(sample.response, options), after_thinking(sample.response)
            said = choice or (answer if _letters_in_a_row(answer[-_TAIL:]) else "")
        else:
            choice, said = "", ""
        if len(truth) > 1:
            choice = choice or _letters_in_a_row(said)
        is_right = bool(choice) and choice == truth
        in_box, is_boxed = _VALUES[self.args.reward_type], found.way == "boxed"
        value = in_box[(0 if is_right else 2) + (0 if is_boxed else 1)]
        if is_right:
            verdict = f"{choice} is right" + ("" if is_boxed or value == 1 else ", but not in \\boxed{}")
        elif said:
            verdict = f"{choice or short(said)} is not {truth}"
        else:
            verdict = found.problem or "no choice found"
        parts = (
            {"right": float(is_right), "boxed": float(is_boxed)} if self.args.reward_type != "binary" else {}
        )
        return Reward(value=value, verdict=verdict, correct=is_right, parts=parts)

    def reference(self, sample: Sample) -> str | None:
        r"""The letters of the right options in `\boxed{}`."""
        truth = chosen(sample.known_truth, options_of(sample)) or _letters_in_a_row(sample.known_truth)
        ways = {"tag": f"<answer>{', '.join(truth)}</answer>", "hash": f"#### {', '.join(truth)}"}
        first = self.args.extract[0] if self.args.extract else ""
        return ways.get(first, f"The answer is \\boxed{{{', '.join(truth)}}}") if truth else None

    def unscorable(self, reason: str) -> Reward:
        return Reward(value=_VALUES[self.args.reward_type][3], verdict=reason, correct=False)

    def problem(self, row: Mapping[str, Any]) -> str | None:
        """Why the row's `ground_truth` is no choice."""
        if problem := unusable(given := stated_truth(row)):
            return problem
        truth = str(given)
        if chosen(truth, _options_of_row(row)) or _letters_in_a_row(truth):
            return None
        if truth and (row.get("prompt") or row.get("messages")):
            return None  # it may be the text of an option that stands in the prompt
        return f"its ground_truth is no letter A to J and no option: {short(truth) or 'empty'}"


def chosen(text: str, options: Mapping[str, str]) -> str:
    """The letters that a short text chooses, sorted; empty when it chooses none, or says "A or B"."""
    text = _WRAPPED.sub(r"\1", unicodedata.normalize("NFKC", text)).strip(_DECORATION)
    text = text[lead.end() :] if (lead := _LEAD.match(text)) else text
    for letter, option in options.items():
        if _plain(text) == _plain(option):
            return letter
    first = _START.match(text)
    if first is None:
        return ""
    letters, at = {first.group(1).upper()}, first.end()
    while following := _NEXT.match(text, at):
        letters.add(following.group(1).upper())
        if "or" in following.group().lower().split() or "/" in following.group():
            return ""
        at = following.end()
    is_marked = (
        re.match(r"\W|option|choice|answer", text, re.IGNORECASE) or first.group().rstrip()[-1:] in ").:]*_$"
    )
    rest = text[at:]
    told = _plain(rest.strip(_DECORATION + " .:)-"))
    if told and any(told == _plain(option) for letter, option in options.items() if letter not in letters):
        return ""  # another option's text
    if rest.strip() and not is_marked and at == first.end() and not _REASON.match(rest):
        return ""  # an article: "A cat"
    return "".join(sorted(letters))


def options_of(sample: Sample) -> dict[str, str]:
    """Text by letter: from the row's `options` or `choices`, otherwise from the prompt's lines `A) Paris`."""
    options = _options_of_row(sample.row)
    if not options and sample.messages:
        prompt = sample.messages[-1].get("content", "")[-_MAX_PROMPT:]
        options = {match[1]: match[2].strip() for match in _OPTION_LINE.finditer(prompt)}
    return options


def _options_of_row(row: Mapping[str, Any]) -> dict[str, str]:
    given = row.get("options") or row.get("choices") or {}
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            return {}
    if isinstance(given, Mapping) and "text" in given:
        given = dict(zip(given.get("label") or LETTERS, given["text"], strict=False))
    if isinstance(given, Sequence) and not isinstance(given, str):
        given = dict(zip(LETTERS, given, strict=False))
    return {str(letter): str(text) for letter, text in given.items()} if isinstance(given, Mapping) else {}


def _letters_in_a_row(text: str) -> str:
    """`AC` as two letters, which only a question with several right options has."""
    text = _WRAPPED.sub(r"\1", text).strip(_DECORATION)
    return "".join(sorted(set(text))) if re.fullmatch(f"[{LETTERS}]{{2,10}}", text) else ""


def _marked(response: str, options: Mapping[str, str]) -> str:
    """The last line, or the first one before an explanation, or the last marked letter."""
    answer = after_thinking(response).strip()
    tail = answer[-_TAIL:]
    for line in (tail.rsplit("\n", 1)[-1], answer[:_TAIL].split("\n", 1)[0]):
        if choice := chosen(line, options):
            return choice
    last = None
    for match in _MARKED.finditer(tail):
        if not re.search(r"\b(?:not|n't)\W*$", tail[max(0, match.start() - 20) : match.start()]):
            last = match
    return "" if last is None else next(group for group in last.groups() if group)


def _plain(text: str) -> str:
    return " ".join(text.casefold().strip(_DECORATION).split())
