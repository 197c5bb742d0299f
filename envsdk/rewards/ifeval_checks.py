"""Pure: instructions that a program can verify, by name, and the check of each.

    is_followed = instruction("length_constraints:number_words", {"relation": "at least", "num_words": 2})
    is_followed("two words")        # True

Names with a colon are those of IFEval (Zhou et al. 2023, arXiv:2311.07911) with its arguments; the others are
the functions that ROLL's rows name, with theirs. Every check takes time linear in the text. Where both sets
have an instruction and count differently, each keeps its own count: `at least 3 bullet points` against
`exactly 3`.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

Check = Callable[[str], bool]
CheckT = TypeVar("CheckT", bound=Callable[..., bool])
Count = Annotated[int, Field(ge=0)]
Ordinal = Annotated[int, Field(ge=1)]
Words = Annotated[list[str], Field(min_length=1)]
Text = Annotated[str, Field(min_length=1)]
Letter = Annotated[str, Field(min_length=1, max_length=1)]
Relation = Literal["less than", "at least"]
Quantifier = Literal["at least", "around", "at most"]


@dataclass(frozen=True, slots=True)
class _Instruction:
    follows: Callable[..., bool]
    arguments: type[BaseModel]
    """Everything but the text."""


_INSTRUCTIONS: dict[str, _Instruction] = {}


def instruction(name: str, arguments: Mapping[str, Any]) -> Check:
    """The check of one instruction; arguments that are None count as absent.

    Raises KeyError for an unknown name, and pydantic's ValidationError for wrong arguments.
    """
    known = _INSTRUCTIONS[name]
    given = {key: value for key, value in arguments.items() if value is not None}
    if ":" not in name:  # rows of ROLL carry the arguments of all functions
        fields = known.arguments.model_fields.items()
        given = {key: given[key] for key in (each.alias or name for name, each in fields) if key in given}
    return partial(known.follows, **dict(known.arguments.model_validate(given)))


def instruction_names() -> list[str]:
    return sorted(_INSTRUCTIONS)


def _names(*names: str, **renamed: str) -> Callable[[CheckT], CheckT]:
    """Registers a check under these names; `renamed` are its arguments that they call otherwise."""

    def register(follows: CheckT) -> CheckT:
        hints = get_type_hints(follows, include_extras=True)
        keys = [key for key in inspect.signature(follows).parameters if key != "text"]
        fields: Any = {key: (hints[key], Field(alias=renamed.get(key))) for key in keys}
        arguments = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)
        for name in names:
            _INSTRUCTIONS[name] = _Instruction(follows, arguments)
        return follows

    return register


def _holds(number: int, relation: Relation, threshold: int) -> bool:
    return number < threshold if relation == "less than" else number >= threshold


def _is_about(number: int, quantifier: Quantifier, goal: int, *, tolerance: int) -> bool:
    match quantifier:
        case "at least":
            return number >= goal
        case "at most":
            return number <= goal
        case "around":
            return abs(number - goal) <= tolerance


def _num_occurrences(needle: str, text: str) -> int:
    """Without overlaps, whatever the case."""
    return len(re.findall(re.escape(needle), text, flags=re.IGNORECASE))


def _num_bracketed(text: str) -> int:
    """`[...]` within a line."""
    count = 0
    for line in text.split("\n"):
        start = line.find("[")
        while start >= 0 and (end := line.find("]", start)) >= 0:
            count += 1
            start = line.find("[", end)
    return count


_WORD = re.compile(r"\w+")
_TOKEN = re.compile(r"\w+(?:[-&.]\w+)*")
_SENTENCE_END = re.compile(r"""(?<![.!?])([.!?]+)["'”’)\]]*(?=\s|$)""")
_ABBREVIATION = re.compile(
    r"(?:\b(?:mr|mrs|ms|dr|prof|st|sr|jr|vs|etc|inc|ltd|co|no|fig|approx|e\.g|i\.e)|\b[A-Za-z])$",
    re.IGNORECASE,
)


def count_sentences(text: str) -> int:
    """Runs of text that end with `.`, `!` or `?` before a space, abbreviations and initials left out; a rest
    with words counts as one more."""
    count, start = 0, 0
    for end in _SENTENCE_END.finditer(text):
        before = text[max(start, end.start() - 8) : end.start()]
        last_word = text[max(start, end.start() - 2) : end.start()]
        is_short = end.group(1) == "." and end.end() < len(text) and last_word not in ("I", " I")
        if is_short and _ABBREVIATION.search(before):
            continue
        if _WORD.search(text, start, end.start()):
            count += 1
        start = end.end()
    return count + (_WORD.search(text, start) is not None)


_MOST_DETECTED = 20_000
"""Characters from which a language is detected."""


def is_in_language(text: str, code: str) -> bool:
    """True also where the text shows no language, such as `1 + 1`, as IFEval has it."""
    import langdetect

    langdetect.DetectorFactory.seed = 0
    try:
        # Its profiles were made of ordinary texts: capitals say nothing of the language.
        detected = str(langdetect.detect(text[:_MOST_DETECTED].lower()))
    except langdetect.LangDetectException:
        return True
    return detected == code or detected.split("-")[0] == code


@_names("keywords:existence")
@_names("verify_keywords", keywords="keyword_list")
def _has_keywords(text: str, keywords: Words) -> bool:
    return all(_num_occurrences(keyword, text) for keyword in keywords)


@_names("keywords:frequency")
def _keyword_frequency(text: str, keyword: Text, frequency: Count, relation: Relation) -> bool:
    return _holds(_num_occurrences(keyword.strip(), text), relation, frequency)


@_names("keywords:forbidden_words")
def _leaves_words_out(text: str, forbidden_words: Words) -> bool:
    found = (re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) for word in forbidden_words)
    return not any(found)


@_names("keywords:letter_frequency")
def _letter_frequency(text: str, letter: Letter, let_frequency: Count, let_relation: Relation) -> bool:
    return _holds(text.lower().count(letter.lower()), let_relation, let_frequency)


@_names("language:response_language", "validate_response_language")
def _response_language(text: str, language: Text) -> bool:
    return is_in_language(text, language)


@_names("length_constraints:number_sentences")
def _number_of_sentences(text: str, num_sentences: Count, relation: Relation) -> bool:
    return _holds(count_sentences(text), relation, num_sentences)


@_names("length_constraints:number_paragraphs")
def _number_of_paragraphs(text: str, num_paragraphs: Count) -> bool:
    """Separated by `***`."""
    parts = [part.strip() for part in text.split("***")]
    return all(parts[1:-1]) and sum(map(bool, parts)) == num_paragraphs


@_names("length_constraints:number_words")
def _number_of_words(text: str, num_words: Count, relation: Relation) -> bool:
    return _holds(len(_WORD.findall(text)), relation, num_words)


@_names("length_constraints:nth_paragraph_first_word")
def _nth_paragraph_first_word(
    text: str, num_paragraphs: Count, nth_paragraph: Ordinal, first_word: Text
) -> bool:
    """Separated by an empty line."""
    parts = text.split("\n\n")
    if sum(bool(part.strip()) for part in parts) != num_paragraphs or nth_paragraph > num_paragraphs:
        return False
    words = parts[nth_paragraph - 1].split(maxsplit=1)
    first = re.split(r"[.,?!'\"]", words[0].lstrip("'").lstrip('"'), maxsplit=1)[0] if words else ""
    return first.lower() == first_word.lower()


@_names("detectable_content:number_placeholders")
@_names("validate_placeholders", num_placeholders="N")
def _number_of_placeholders(text: str, num_placeholders: Count) -> bool:
    return _num_bracketed(text) >= num_placeholders


@_names("detectable_content:postscript")
def _postscript(text: str, postscript_marker: Text) -> bool:
    known = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    marker = postscript_marker.strip()
    return re.search(known.get(marker, re.escape(marker)), text, flags=re.IGNORECASE) is not None


@_names("detectable_format:number_bullet_lists")
def _number_of_bullets(text: str, num_bullets: Count) -> bool:
    """Lines that begin with `-`, or with one `*`."""
    lines = (line.strip() for line in text.split("\n"))
    return sum(line[:1] == "-" or (line[:1] == "*" and line[1:2] not in ("", "*")) for line in lines) == (
        num_bullets
    )


@_names("detectable_format:number_highlighted_sections")
@_names("validate_highlighted_sections", num_highlights="N")
def _number_of_highlights(text: str, num_highlights: Count) -> bool:
    single = sum(bool(part.strip("*").strip()) for part in re.findall(r"\*[^\n*]*\*", text))
    double = sum(bool(part[2:-2].strip()) for part in re.findall(r"\*\*[^\n*]*\*\*", text))
    return single + double >= num_highlights


@_names("detectable_format:multiple_sections")
def _number_of_sections(text: str, section_spliter: Text, num_sections: Count) -> bool:
    return len(re.findall(rf"{re.escape(section_spliter.strip())}\s?\d+", text)) >= num_sections


@_names("detectable_format:json_format")
def _is_json(text: str) -> bool:
    bare = text.strip()
    if bare.startswith("```"):
        bare = re.sub(r"^```(?:json)?", "", bare, flags=re.IGNORECASE).removesuffix("```")
    return _parses(bare)


@_names("validate_json_format")
def _parses(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


@_names("detectable_format:title", "validate_title")
def _title(text: str) -> bool:
    """`<<poem of joy>>`, within a line."""
    for line in text.split("\n"):
        start, end = line.find("<<"), line.rfind(">>")
        if 0 <= start < end and line[start:end].strip("<> \t"):
            return True
    return False


@_names("combination:two_responses")
def _two_responses(text: str) -> bool:
    parts = [part.strip() for part in text.split("******")]
    given = [part for part in parts if part]
    return all(parts[1:-1]) and len(given) == 2 and given[0] != given[1]


@_names("combination:repeat_prompt")
def _repeats_prompt(text: str, prompt_to_repeat: Text) -> bool:
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


@_names("startend:end_checker")
def _end(text: str, end_phrase: Text) -> bool:
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


@_names("startend:quotation", "validate_quotation")
def _is_quoted(text: str) -> bool:
    bare = text.strip()
    return len(bare) > 1 and bare[0] == bare[-1] == '"'


@_names("change_case:capital_word_frequency")
def _capital_words(text: str, capital_frequency: Count, capital_relation: Relation) -> bool:
    """A hyphenated word counts as one."""
    return _holds(sum(word.isupper() for word in _TOKEN.findall(text)), capital_relation, capital_frequency)


@_names("verify_keyword_frequency")
def _roll_keyword_frequency(text: str, word: Text, N: Count) -> bool:
    return [each.lower() for each in _WORD.findall(text)].count(word.lower()) == N


@_names("validate_forbidden_words")
def _roll_forbidden_words(text: str, forbidden_words: Words) -> bool:
    return not any(_num_occurrences(word, text) for word in forbidden_words)


@_names("verify_letter_frequency")
def _roll_letter_frequency(text: str, letter: Letter, N: Count) -> bool:
    return text.count(letter) == N


@_names("verify_paragraph_count")
def _roll_paragraphs(text: str, N: Count) -> bool:
    """Separated by `* * *`."""
    parts = text.split("* * *")
    return len(parts) == N and all(part.strip() for part in parts)


@_names("validate_word_constraint")
def _roll_words(text: str, N: Count, quantifier: Quantifier) -> bool:
    return _is_about(len(text.split()), quantifier, N, tolerance=max(round(N * 0.1), 1))


@_names("verify_sentence_constraint")
def _roll_sentences(text: str, N: Count, quantifier: Quantifier) -> bool:
    return _is_about(count_sentences(text), quantifier, N, tolerance=1)


@_names("validate_paragraphs")
def _roll_first_word(text: str, N: Count, first_word: Text, i: Ordinal) -> bool:
    parts = text.split("\n\n")
    return len(parts) == N and i <= N and parts[i - 1].strip().startswith(first_word)


@_names("verify_postscript")
def _roll_postscript(text: str, postscript_marker: Text) -> bool:
    """With something after the marker."""
    _, marker, after = text.partition(postscript_marker)
    return bool(marker and after.strip())


@_names("verify_bullet_points")
def _roll_bullets(text: str, N: Count) -> bool:
    return sum(line.strip().startswith(("*", "-")) for line in text.split("\n")) == N


@_names("validate_choice")
def _roll_choice(text: str, options: Words | Text) -> bool:
    """The text is one of the options, whatever its final period."""
    known = _listed(options) if isinstance(options, str) else options
    answer = text.strip().rstrip(".")
    return bool(answer) and answer in {option.strip().rstrip(".") for option in known}


def _listed(options: str) -> list[str]:
    """Items of `('yes', 'no')`, `[yes, no]` or `yes/no`."""
    quoted = [each for _, each in re.findall(r"""(?<!\w)(['"])(.+?)\1(?!\w)""", options)]
    return quoted or re.split(r"[,;/|\n]", options.strip().strip("()[]"))


@_names("validate_sections")
def _roll_sections(text: str, N: Count, section_splitter: Text) -> bool:
    parts = text.split(section_splitter)
    return len(parts) - (parts[0] == "") == N


@_names("validate_repeat_prompt")
def _roll_repeats_prompt(text: str, original_prompt: Text) -> bool:
    return text.startswith(original_prompt)


@_names("validate_two_responses")
def _roll_two_responses(text: str) -> bool:
    return text.count("******") == 1 and _two_responses(text)


@_names("validate_frequency_capital_words")
def _roll_capital_words(text: str, N: Count, quantifier: Quantifier) -> bool:
    return _is_about(len(re.findall(r"\b[A-Z]+\b", text)), quantifier, N, tolerance=0)


@_names("validate_end")
def _roll_end(text: str, end_phrase: Text) -> bool:
    return text.endswith(end_phrase)


_CONSTRAINED = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_OF_ONE_LINE: Mapping[str, Check] = {
    "change_case:english_capital": lambda text: text.isupper() and is_in_language(text, "en"),
    "change_case:english_lowercase": lambda text: text.islower() and is_in_language(text, "en"),
    "detectable_format:constrained_response": lambda text: any(each in text for each in _CONSTRAINED),
    "punctuation:no_comma": lambda text: "," not in text,
    "validate_no_commas": lambda text: "," not in text,
    "validate_lowercase": lambda text: text == text.lower(),
    "validate_uppercase": lambda text: text == text.upper(),
}
"""Checks without arguments."""
for _name, _check in _OF_ONE_LINE.items():
    _names(_name)(_check)
