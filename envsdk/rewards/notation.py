r"""Pure: one notation for mathematical answers, however a text writes them.

expression("\\textcolor{red}{1{,}234}~\\mathrm{cm}.")  # "{1,234} \\text{cm}"
quantity("{1,234} \\text{cm}")                         # Quantity(value="1,234", unit=("cm", "1"))
number("2\\frac{3}{4}")                                # Fraction(11, 4)
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction

from envsdk.rewards.answers import NUMBER

_MAX_DIGITS = 60
_MAX_BRACES = 8
_DIGITS = re.compile(r"-?\d+(?:\.\d+)?")
_PLAIN = re.compile(NUMBER)
_SCIENTIFIC = re.compile(r"(-?\d[\d,]*(?:\.\d+)?)\\(?:times|cdot)10\^\{?([-+]?\d{1,3})\}?")
_FRACTION = re.compile(r"([-+]?)(\d*)\\frac(?:\{(-?\d+)\}|(\d))(?:\{(-?\d+)\}|(\d))")
_REPEATING = re.compile(r"(-?\d*)\.(\d*)\\overline\{(\d+)\}")
_MIXED = re.compile(r"([-+]?)(\d+) (\d+)/(\d+)")

_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n")
_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ]+")
_MIXED_SIGN = re.compile(r"(?<=\d)(?=[¼-¾⅐-⅞])")
_SYMBOLS = {
    "−": "-", "–": "-", "⁄": "/", "∕": "/", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": r"\div ",
    "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "±": r"\pm ",
    "∪": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ", "∈": r"\in ", "°": r"^\circ ", "∠": r"\angle ",
    "’": "'", "￥": "", "¥": "", "€": "", "£": "", "$": "",
}  # fmt: skip
_SAME = {
    "dfrac": r"\frac", "tfrac": r"\frac", "cfrac": r"\frac", "dbinom": r"\binom", "tbinom": r"\binom",
    "leq": r"\le", "leqslant": r"\le", "geq": r"\ge", "geqslant": r"\ge", "neq": r"\ne", "lt": "<", "gt": ">",
    "varnothing": r"\emptyset", "lvert": "|", "rvert": "|", "vert": "|", "lbrace": r"\{", "rbrace": r"\}",
    "langle": "(", "rangle": ")", "degree": r"^\circ", "bmod": r"\mod",
    "ldots": r"\dots", "cdots": r"\dots",
}  # fmt: skip
_AS_TEXT = frozenset(
    {"textbf", "textit", "textrm", "textsf", "texttt", "textup", "mathrm", "mbox", "operatorname"}
)
_AS_SPACE = frozenset({"quad", "qquad", "thinspace", "thickspace", "medspace", "enspace", "hfill", "space"})
_LAYOUT = re.compile(
    r"left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits|math(?:bf|it|sf)|boldsymbol|bm|bf|bfseries|rm|it"
    r"|underline|tiny|small|normalsize|[lL]arge|LARGE|[hH]uge|blacksquare|square|Box|boxed|fbox|framebox"
)
_STYLE = re.compile(r"\\(?:color|textcolor|hspace|vspace|phantom|hphantom|label|tag)\*?\s*\{[^{}]*\}")
_COMMAND = re.compile(r"(\\\\)(?:\[[\w.]+\])?|\\([A-Za-z]+)|(\\!\s*|\\[()\[\]])|\\[,;:> ]|~")
_DIGIT_GROUPS = re.compile(r"(?<![\d.,/])\d{1,3}(?: \d{3})+(?![\d/])")
_AND_OR = r"(?:\\text\{ ?,? ?(?:or|and) ?\}|\\(?:lor|land)\b|(?<![\\\w])(?:or|and)(?!\w))"
_REWRITES = [
    (re.compile(r"√\s*\(([^()]*)\)|(?<!\\)sqrt\s*\(([^()]*)\)|√\s*(\d+|[A-Za-z])"), r"\\sqrt{\1\2\3}"),
    (re.compile(r"(\\sqrt(?:\[\w+\])?)\s*(\w)"), r"\1{\2}"),
    # 1.5e3, 1e-3, 2e5 and 2e-10 are powers of ten; 2e-1 and 2e+1 have Euler's number.
    (re.compile(r"(\.\d+|(?<![\d.,])1)[eE]([-+]?)0*(\d{1,4})(?![\w.])"), r"\1\\times 10^{\g<2>\3}"),
    (re.compile(r"(\d)[eE]([-+](?=\d\d)|)0*(\d{1,4})(?![\w.])"), r"\1\\times 10^{\g<2>\3}"),
    (re.compile(r"\{?\s*(\w{1,9})\s*\\choose\s*(\w{1,9})\s*\}?"), r"\\binom{\1}{\2}"),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"\*"), r"\\times "),
    (re.compile(r"(?<!\\)\b(pi|sin|cos|tan|cot|sec|csc|log|ln|exp|infty)\b"), r"\\\1 "),
    (re.compile(r"\s*(?:\\text\{\s*percent\s*\}|\bpercent\b)"), r"\\%"),
    (re.compile(r"\\text\{\s*infinity\s*\}"), r"\\infty"),
    (re.compile(r"(?i)(?<=\d)\s*(?:\\text\{\s*([ap])\.?m\.?\s*\}|\b([ap])\.?m\b\.?)"), r"\\text{ \1\2m}"),
    (re.compile(r"\.\.\."), r"\\dots "),
    (re.compile(r"<="), r"\\le "),
    (re.compile(r">="), r"\\ge "),
    (re.compile(rf"\s*[,;]?\s*{_AND_OR}\s*"), ", "),
    (re.compile(r"(\d)\{([,:])\}(?=\d)"), r"\1\2"),
    (re.compile(r"(\d)\\text\{:\}(?=\d)"), r"\1:"),
]  # fmt: skip
_OTHER_FORM = re.compile(r"\s*\(?\\text\{\s*\(?(?:or|i\.e\.?)\s*\}([^()]*)\)|\s\((?:or|i\.e\.)\s([^()]*)\)$")
_AFTER_VALUE = re.compile(
    r"\s*(?:\(\s*\\text\{[^{}]*\}\s*\)"
    r"|\\text\{\s*,?\s*(?:for (?:all|any|every|some)|where|with)\b[^{}]*\}[^{}]*"
    r"|,?\s*(?:\\text\{\s*for\s*\}\s*)?[a-z]\s*\\in\s*\\mathbb\s*\{?[A-Z]\}?)$"
)
"""The letter of an option, the range of a variable, and other words that are no part of a value."""
_END = re.compile(r"(?:[.,;\s]|\\text\{\s*[.,;]?\s*\})+$")

_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_DENIES = re.compile(
    r"\b(?:not|wrong|incorrect|false|impossible|never|no|cannot|except|mistake|at least|at most|between"
    r"|unless|(?:more|less|greater|fewer|larger|smaller|other|rather) than)\b|n't\b"
)
_LEAD = re.compile(
    r"(?:\\?[A-Za-z]+(?:_\w+)?\s*)?\\text\{[^{}]*\}\s*:?\s*(?=[^\s=<>^_/)}\],:]|$)(?!\\(?:[lg]e|in|text|approx)\b)"
)
_OPTION = re.compile(r"\(?[A-J][).]\s+(?=\d|\\)|\([A-J]\)\s*(?=\d|\\)")
_UNIT_TEXT = re.compile(r"(?:\s*/?\s*\\text\{[^{}]*\}\s*(?:\^\{?-?\d\}?)?)+")
_BARE_UNIT = re.compile(
    rf"({NUMBER})(?:\s([A-Za-z]{{3,}}(?:[ /][A-Za-z]+){{0,3}})|\s?(k?m|[cm]m|k?g|mg|ft|in|[smh]))$"
)
_DEGREES = re.compile(
    r"([^a-z]*|\\frac\{\d+\}\{\d+\})\^\s*(?:\\circ|\{\s*\\circ\s*\})\s*(?:C|F|\\text\{[CF]\})?"
)
_UNITS = {
    name: names.split()[0]
    for names in (
        "cm centimeter centimetre", "mm millimeter millimetre", "km kilometer kilometre", "m meter metre",
        "in inch inche", "ft foot feet", "mi mile", "yd yard", "h hr hour", "min minute", "s sec second",
        "day", "week", "month", "year", "kg kilogram", "mg milligram", "g gram", "lb pound", "oz ounce",
        "ml milliliter", "l liter litre", "dollar usd", "cent", "am", "pm", "degree", "radian rad",
    )
    for name in names.split()
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Quantity:
    """An answer without the words around it."""

    value: str
    unit: tuple[str, ...] = ()
    """Name and power of a unit of the table; empty where there is none."""
    is_denied: bool = False
    """The words say that this is not the answer, or no more than a bound."""


def expression(answer: str) -> str:
    """An answer in one notation: ASCII digits and signs, LaTeX's names, alternatives as a list, no layout."""
    if answer.isascii() and _DIGITS.fullmatch(answer):
        return answer
    text = re.sub(r"\\\$\s*(-?[\d,.{}]+\d|\d)(?!\s*\\)", r"\1\\text{ dollars}", answer).replace("\\$", "")
    text = _SUPERSCRIPT.sub(lambda match: f"^{{{match.group().translate(_SUPERSCRIPTS)}}}", text)
    text = unicodedata.normalize("NFKC", _MIXED_SIGN.sub(" ", text))
    text = "".join(_SYMBOLS.get(character, character) for character in text)
    text = "".join(_ascii_digit(character) for character in text if unicodedata.category(character) != "Cf")
    text = _COMMAND.sub(_plain_command, _STYLE.sub("", text))
    text = _OTHER_FORM.sub(r", \1\2", text)
    text = _DIGIT_GROUPS.sub(lambda match: match.group().replace(" ", ""), " ".join(text.split()))
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return without_braces(_END.sub("", text))


def without_braces(text: str) -> str:
    """Without braces around all of it."""
    text = text.strip()
    for _ in range(_MAX_BRACES):
        if not (text.startswith("{") and text.endswith("}") and closing(text, 0) == len(text) - 1):
            break
        text = text[1:-1].strip()
    return text


def closing(text: str, opening: int) -> int:
    """Where the bracket at `opening` closes, whatever kind of bracket closes it; -1 when none does."""
    depth, at = 0, opening
    while at < len(text):
        character = text[at]
        depth += (character in "({[") - (character in ")}]")
        if depth == 0:
            return at
        at += 1
    return -1


def number(text: str) -> Fraction | None:
    """A plain number; None for everything else, percentages included."""
    text = without_braces(text)
    if len(text) > _MAX_DIGITS or text.endswith("%") or ", " in text:
        return None
    if mixed := _MIXED.fullmatch(text):
        return _mixed(mixed[1], mixed[2], mixed[3], mixed[4])
    text = text.replace(" ", "").lstrip("+")
    if scientific := _SCIENTIFIC.fullmatch(text):
        return Fraction(scientific[1].replace(",", "")) * Fraction(10) ** int(scientific[2])
    if fraction := _FRACTION.fullmatch(text):
        return _mixed(fraction[1], fraction[2] or "0", fraction[3] or fraction[4], fraction[5] or fraction[6])
    if repeating := _REPEATING.fullmatch(text):
        whole, once, again = repeating.groups()
        rest = Fraction(int(again), 10 ** len(once) * (10 ** len(again) - 1))
        value = Fraction(f"{whole.strip('-') or 0}.{once or 0}") + rest
        return -value if whole.startswith("-") else value
    if not _PLAIN.fullmatch(text) or "e" in text.lower():
        return None
    numerator, _, denominator = text.replace(",", "").partition("/")
    if not denominator:
        return Fraction(numerator)
    return Fraction(numerator) / Fraction(denominator) if Fraction(denominator) else None


def percentage(text: str) -> Fraction | None:
    r"""The number before the sign of `40\%`."""
    return number(text.removesuffix("%").removesuffix("\\").strip()) if text.endswith("%") else None


def quantity(text: str) -> Quantity:
    r"""The value in `\text{the area is } 5 \text{ cm}^2`, with its unit."""
    words = " ".join(_TEXT.findall(text)).lower()
    is_denied = bool(_DENIES.search(words) or (text.isascii() and _DENIES.match(text.lower())))
    text = _TEXT.sub(_numbers_outside, _AFTER_VALUE.sub("", text) or text)
    if (option := _OPTION.match(text)) or (option := _LEAD.match(text)):
        text = text[option.end() :] or text
    unit: tuple[str, ...] = ()
    start = text.find("\\text")
    value = text[:start].rstrip()
    if start > 0 and value and value[-1] not in "_^=" and value.count("{") == value.count("}"):
        if _UNIT_TEXT.fullmatch(tail := text[start:]):
            text, unit = value, _unit(tail)
    elif bare := _BARE_UNIT.fullmatch(text):
        text, unit = bare[1], _unit(bare[2] or bare[3])
    if degrees := _DEGREES.fullmatch(text):
        text, unit = degrees[1].strip(), ("degree", "1")
    return Quantity(without_braces(_END.sub("", text)), unit, is_denied)


def _plain_command(match: re.Match[str]) -> str:
    line_break, name, nothing = match.groups()
    if line_break:
        return "\\\\"
    if name:
        if name in _AS_TEXT:
            return "\\text"
        return " " if name in _AS_SPACE else "" if _LAYOUT.fullmatch(name) else _SAME.get(name, match.group())
    return "" if nothing else " "


def _numbers_outside(match: re.Match[str]) -> str:
    """`\\text{34 ways}` as `34 \\text{ ways}`, when it holds one number."""
    before, *rest = re.split(rf"(?<![\w.^])({NUMBER})(?!\w)", match[1])
    if len(rest) != 2:
        return match.group()
    outside = rest[0]
    lead = f"\\text{{{before}}} " if before.strip() else ""
    return f"{lead}{outside}" + (f" \\text{{{rest[1]}}}" if rest[1].strip(" .") else "")


def _mixed(sign: str, whole: str, numerator: str, denominator: str) -> Fraction | None:
    if not int(denominator):
        return None
    value = int(whole) + Fraction(int(numerator), int(denominator))
    return -value if sign == "-" else value


def _unit(text: str) -> tuple[str, ...]:
    words = re.findall(r"[a-z]+", text.lower().replace("\\text", "").replace(".", ""))
    power = re.search(r"\^\{?(\d)", text)
    exponent = (
        power[1] if power else {"square": "2", "sq": "2", "cubic": "3"}.get(words[0] if words else "", "1")
    )
    names = [
        _UNITS.get(word) or _UNITS.get(word.removesuffix("s"))
        for word in words
        if word not in ("square", "sq", "cubic")
    ]
    return (names[0], exponent) if len(names) == 1 and names[0] else ()


def _ascii_digit(character: str) -> str:
    """Decimal digits of any script as ASCII."""
    return character if character.isascii() else str(unicodedata.decimal(character, character))
