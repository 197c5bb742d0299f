"""Unified diffs: parsed strictly and written again in one canonical form.

    text -> parse -> FilePatch ... -> render -> text
    text -> sections -> what each file's part adds, without reading its hunks

`render` writes nothing that `parse` did not understand, so that what was checked is what is applied.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(.*)", re.DOTALL)
_MAX_PATH_CHARS = 4096
"""The kernel takes no longer path."""
_FILE = "diff --git "
_NO_FILE = "/dev/null"
_ESCAPES = {"n": 10, "t": 9, "r": 13, "a": 7, "b": 8, "f": 12, "v": 11, '"': 34, "\\": 92}
_REGULAR_MODES = ("100644", "100755", "100664")
_INDEX = re.compile(r"index [0-9a-f]+\.\.[0-9a-f]+(?: (\d{6}))?")
_IGNORED_HEADERS = ("index ", "similarity index ", "dissimilarity index ", "Binary files ")


class MalformedPatch(ValueError):
    """The text is no unified diff; the message says what is wrong and in which line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunk:
    """One changed range; line numbers count from 1."""

    old_start: int
    old_count: int
    new_start: int
    new_count: int
    section: str
    """What stands behind the second `@@`."""
    lines: tuple[str, ...]
    """Each with its sign in front and without its line break; a line `\\ ...` says that the one before it
    has none at the end of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePatch:
    """The change of one file; paths are relative to the repository's root."""

    old_path: str | None
    """None: the file is new."""
    new_path: str | None
    """None: the file is deleted."""
    old_mode: str = ""
    new_mode: str = ""
    copied: bool = False
    binary: bool = False
    """Its content is not text; what it holds was not kept."""
    hunks: tuple[Hunk, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """The one or two paths that are touched."""
        return tuple(dict.fromkeys(path for path in (self.old_path, self.new_path) if path is not None))

    @property
    def regular(self) -> bool:
        """No symbolic link, submodule or other special file, and no binary content."""
        modes = [mode for mode in (self.old_mode, self.new_mode) if mode]
        return not self.binary and all(mode in _REGULAR_MODES for mode in modes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The part of a patch from one `diff --git` to the next, not read any further."""

    text: str
    added: str | None
    """The path of the file that it adds; None where it changes, moves or deletes one, or cannot be read."""


def sections(text: str) -> Iterator[Section]:
    """The parts of `text` in order; joined they are `text`. What stands before the first is part of it.

    A line of a hunk begins with its sign, so `diff --git` at the start of a line begins a part.
    """
    start = 0
    while start < len(text):
        header = start if text.startswith(_FILE, start) else text.find(f"\n{_FILE}", start) + 1
        end = text.find(f"\n{_FILE}", header) + 1 or len(text)
        yield Section(
            text=text[start:end], added=_added(text[header : min(end, header + 4 * _MAX_PATH_CHARS)])
        )
        start = end


def _added(head: str) -> str | None:
    """The path that a part adds, by its first lines."""
    lines = head.split("\n", 4)
    if not lines[0].startswith(_FILE) or not any(line.startswith("new file mode ") for line in lines[1:4]):
        return None
    try:
        return _Parser(head).name_of_header(lines[0], 0)
    except MalformedPatch:
        return None


def parse(text: str) -> tuple[FilePatch, ...]:
    """The file patches of `text`, in order. Text before the first of them is passed over.

    Raises:
        MalformedPatch: A header or a hunk is incomplete or contradicts itself.
    """
    return tuple(_Parser(text).files())


def render(patches: Iterable[FilePatch]) -> str:
    """The text of `patches` for `git apply`; "" for none."""
    return "".join(_render_file(patch) for patch in patches)


def reverse(patches: Iterable[FilePatch]) -> tuple[FilePatch, ...]:
    """What undoes `patches`. ValueError for a binary one or a copy, which cannot be undone by text."""
    undone = []
    for patch in patches:
        if patch.binary or patch.copied:
            paths = ", ".join(patch.paths)
            raise ValueError(f"the change of {paths} cannot be undone: it is binary or a copy")
        undone.append(
            replace(
                patch,
                old_path=patch.new_path,
                new_path=patch.old_path,
                old_mode=patch.new_mode,
                new_mode=patch.old_mode,
                hunks=tuple(_reverse_hunk(hunk) for hunk in patch.hunks),
            )
        )
    return tuple(undone)


def diff(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """A patch from the files `old` to `new`, by path; a path in one of them alone is new or deleted."""
    text = []
    for path in sorted(old.keys() | new.keys()):
        before, after = old.get(path), new.get(path)
        if before == after:
            continue
        old_name, new_name = _quote(f"a/{path}"), _quote(f"b/{path}")
        text.append(f"{_FILE}{old_name} {new_name}\n")
        if before is None:
            text.append("new file mode 100644\n")
            old_name = _NO_FILE
        elif after is None:
            text.append("deleted file mode 100644\n")
            new_name = _NO_FILE
        for line in difflib.unified_diff(_lines(before or ""), _lines(after or ""), old_name, new_name):
            text.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return render(parse("".join(text)))


def _lines(text: str) -> list[str]:
    """Split at line feeds alone, each line with its own; `str.splitlines` knows more kinds of break."""
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _reverse_hunk(hunk: Hunk) -> Hunk:
    swap = {"+": "-", "-": "+"}
    return replace(
        hunk,
        old_start=hunk.new_start,
        old_count=hunk.new_count,
        new_start=hunk.old_start,
        new_count=hunk.old_count,
        lines=tuple(_removed_first(swap.get(line[:1], line[:1]) + line[1:] for line in hunk.lines)),
    )


def _removed_first(lines: Iterable[str]) -> list[str]:
    """`lines` with the removed ones of every change in front of the added ones, as git has them."""
    change, sign, places = 0, " ", []
    for line in lines:
        if line[:1] != "\\":  # such a line belongs to the one before it
            sign = line[:1]
        change += sign == " "
        places.append((change, " -+".index(sign), line))
    return [line for *_, line in sorted(places, key=lambda place: place[:2])]


def _render_file(patch: FilePatch) -> str:
    old, new = patch.old_path or patch.new_path, patch.new_path or patch.old_path
    assert old is not None
    assert new is not None
    lines = [f"diff --git {_quote('a/' + old)} {_quote('b/' + new)}"]
    if patch.old_path is None:
        lines.append(f"new file mode {patch.new_mode or '100644'}")
    elif patch.new_path is None:
        lines.append(f"deleted file mode {patch.old_mode or '100644'}")
    elif patch.old_mode and patch.new_mode and patch.old_mode != patch.new_mode:
        lines += [f"old mode {patch.old_mode}", f"new mode {patch.new_mode}"]
    if patch.old_path and patch.new_path and old != new:
        verb = "copy" if patch.copied else "rename"
        lines += [f"{verb} from {_quote(old)}", f"{verb} to {_quote(new)}"]
    if patch.hunks:
        lines.append("--- " + (_quote("a/" + old) if patch.old_path else _NO_FILE))
        lines.append("+++ " + (_quote("b/" + new) if patch.new_path else _NO_FILE))
    for hunk in patch.hunks:
        ranges = f"-{hunk.old_start},{hunk.old_count} +{hunk.new_start},{hunk.new_count}"
        lines += [f"@@ {ranges} @@{hunk.section}", *hunk.lines]
    return "\n".join(lines) + "\n"


def _quote(path: str) -> str:
    """As git writes paths: in quotes where it holds anything unusual. A tab would end an unquoted one."""
    if re.fullmatch(r"[\w./+@%=,:~^!#$&'()\[\]{};<>?*|-]+", path, re.ASCII):
        return path
    codes = {value: name for name, value in _ESCAPES.items()}
    data = path.encode("utf-8", "surrogateescape")
    return '"' + "".join(_escape(byte, codes) for byte in data) + '"'


def _escape(byte: int, codes: Mapping[int, str]) -> str:
    if byte in codes:
        return "\\" + codes[byte]
    return chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}"


def _unquote(word: str) -> str:
    """The path in `word`, which begins with a quote."""
    data = bytearray()
    index = 1
    while index < len(word) and word[index] != '"':
        character = word[index]
        if character != "\\":
            data += character.encode("utf-8", "surrogateescape")
            index += 1
            continue
        octal = re.match(r"[0-3][0-7]{2}", word[index + 1 :])
        if octal:
            data.append(int(octal[0], 8))
            index += 4
        elif word[index + 1 : index + 2] in _ESCAPES:
            data.append(_ESCAPES[word[index + 1]])
            index += 2
        else:
            raise ValueError("an unknown escape in a path")
    if index >= len(word):
        raise ValueError("a quoted path without its closing quote")
    return data.decode("utf-8", "surrogateescape")


class _Parser:
    """Walks over the lines once; `self._at` is the next one to read."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        if self._lines[-1] == "":
            self._lines.pop()
        self._at = 0

    def files(self) -> Iterable[FilePatch]:
        found = False
        while (line := self._peek()) is not None:
            if line.startswith(_FILE):
                found = True
                yield self._git_file()
            elif self._starts_plain_file():
                found = True
                yield self._plain_file()
            elif found and line.strip() and not line.startswith("-- "):
                raise self._error("neither a file header nor part of a hunk")
            elif line.startswith("-- "):  # the signature of `git format-patch` ends a patch
                return
            else:
                self._at += 1

    def _peek(self) -> str | None:
        return self._lines[self._at] if self._at < len(self._lines) else None

    def _error(self, what: str) -> MalformedPatch:
        return MalformedPatch(f"line {self._at + 1}: {what}")

    def _starts_plain_file(self) -> bool:
        following = self._lines[self._at + 1] if self._at + 1 < len(self._lines) else ""
        return self._lines[self._at].startswith("--- ") and following.startswith("+++ ")

    def _path(self, word: str, prefix: str) -> str | None:
        """The path in a header; `prefix` is `a/` or `b/`, or "" where the header has none."""
        word = word.removesuffix("\r")
        if len(word) > _MAX_PATH_CHARS:
            raise self._error(f"a path of more than {_MAX_PATH_CHARS} characters")
        try:
            path = _unquote(word) if word.startswith('"') else word.partition("\t")[0]
        except ValueError as error:
            raise self._error(str(error)) from None
        if path == _NO_FILE and prefix:
            return None
        if prefix and not path.startswith(prefix):
            raise self._error(f"a path that does not begin with {prefix}")
        path = path.removeprefix(prefix)
        if not path or "\n" in path or "\0" in path:
            raise self._error("an empty path or one with a line break")
        return path

    def _git_file(self) -> FilePatch:
        header = self._lines[self._at]
        start = self._at
        self._at += 1
        fields: dict[str, str] = {}
        names: dict[str, str] = {}
        binary = False
        while (line := self._peek()) is not None and not line.startswith(_FILE):
            if line.startswith(("--- ", "@@ ")):
                break
            match = re.fullmatch(
                r"(old mode|new mode|new file mode|deleted file mode) (\d{6})|(rename|copy) (from|to) (.+)",
                line.removesuffix("\r"),
            )
            if match and match[1]:
                fields[match[1]] = match[2]
            elif match:
                names[f"{match[3]} {match[4]}"] = self._path(match[5], "") or ""
            elif line == "GIT binary patch":
                binary = True
                self._skip_section()
                break
            elif line.startswith(_IGNORED_HEADERS):
                binary = binary or line.startswith("Binary files ")
                if (index := _INDEX.match(line)) and index[1]:
                    fields["index"] = index[1]
            elif line.strip():
                raise self._error("an unknown header line")
            self._at += 1
        old_path, new_path, hunks = self._names_and_hunks()
        new, deleted = "new file mode" in fields, "deleted file mode" in fields
        copied = "copy from" in names
        moved = names.get("copy from" if copied else "rename from")
        target = names.get("copy to" if copied else "rename to")
        if hunks:
            if new != (old_path is None) or deleted != (new_path is None):
                raise MalformedPatch(f"line {start + 1}: the headers of a file contradict each other")
        elif moved and target:
            old_path, new_path = moved, target
        else:
            name = self.name_of_header(header, start)
            old_path, new_path = None if new else name, None if deleted else name
        if (moved, target) != (None, None) and (moved, target) != (old_path, new_path):
            raise MalformedPatch(f"line {start + 1}: the names of a rename contradict each other")
        if moved is None and old_path and new_path and old_path != new_path:
            raise MalformedPatch(f"line {start + 1}: two paths without a rename")
        return FilePatch(
            old_path=old_path,
            new_path=new_path,
            old_mode=fields.get("old mode", fields.get("deleted file mode", fields.get("index", ""))),
            new_mode=fields.get("new mode", fields.get("new file mode", fields.get("index", ""))),
            copied=copied,
            binary=binary,
            hunks=hunks,
        )

    def _skip_section(self) -> None:
        while (line := self._peek()) is not None and not line.startswith(_FILE):
            self._at += 1

    def name_of_header(self, header: str, start: int) -> str:
        """The one path of `diff --git a/PATH b/PATH`, for a patch that says it nowhere else."""
        words = header.removeprefix(_FILE).removesuffix("\r")
        if len(words) > 2 * _MAX_PATH_CHARS:
            raise MalformedPatch(f"line {start + 1}: a path of more than {_MAX_PATH_CHARS} characters")
        try:
            if words.startswith('"'):
                return _unquote(words).removeprefix("a/")
        except ValueError as error:
            raise MalformedPatch(f"line {start + 1}: {error}") from None
        half = (len(words) - 1) // 2
        old, new = words[:half], words[half + 1 :]
        if not old.startswith("a/") or old.removeprefix("a/") != new.removeprefix("b/"):
            raise MalformedPatch(f"line {start + 1}: a file header without its path")
        return old.removeprefix("a/")

    def _plain_file(self) -> FilePatch:
        start = self._at
        old_path, new_path, hunks = self._names_and_hunks()
        if old_path is None and new_path is None:
            raise MalformedPatch(f"line {start + 1}: a file that is neither before nor after")
        if old_path and new_path and old_path != new_path:
            raise MalformedPatch(f"line {start + 1}: two paths without a rename")
        return FilePatch(
            old_path=old_path,
            new_path=new_path,
            old_mode="100644" if new_path is None else "",
            new_mode="100644" if old_path is None else "",
            hunks=hunks,
        )

    def _names_and_hunks(self) -> tuple[str | None, str | None, tuple[Hunk, ...]]:
        """After the headers: `---`, `+++` and at least one hunk, or nothing."""
        line = self._peek()
        if line is None or not self._starts_plain_file():
            if line is not None and line.startswith(("--- ", "@@ ")):
                raise self._error("a hunk without its two file names")
            return None, None, ()
        old_path = self._path(line[4:], "a/")
        self._at += 1
        new_path = self._path(self._lines[self._at][4:], "b/")
        self._at += 1
        hunks = []
        while (line := self._peek()) is not None and line.startswith("@@ "):
            hunks.append(self._hunk())
        if not hunks:
            raise self._error("file names without a hunk")
        return old_path, new_path, tuple(hunks)

    def _hunk(self) -> Hunk:
        match = _HUNK.fullmatch(self._lines[self._at])
        if match is None:
            raise self._error("a hunk header that cannot be read")
        self._at += 1
        old_count, new_count = (int(match[group] or 1) if match[group] != "0" else 0 for group in (2, 4))
        old_left, new_left = old_count, new_count
        lines: list[str] = []
        while old_left or new_left:
            line = self._peek()
            if line is None:
                raise self._error("the patch ends within a hunk")
            sign = line[:1] or " "  # editors take the space off an empty context line
            if sign == " " and old_left and new_left:
                old_left, new_left = old_left - 1, new_left - 1
            elif sign == "-" and old_left:
                old_left -= 1
            elif sign == "+" and new_left:
                new_left -= 1
            elif sign != "\\" or not lines:
                raise self._error("a hunk whose lines do not match its header")
            lines.append(line or " ")
            self._at += 1
        if (line := self._peek()) is not None and line.startswith("\\"):
            lines.append(line)
            self._at += 1
        return Hunk(
            old_start=int(match[1]),
            old_count=old_count,
            new_start=int(match[3]),
            new_count=new_count,
            section=match[5],
            lines=tuple(lines),
        )
