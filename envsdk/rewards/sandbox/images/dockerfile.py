"""What a Dockerfile asks for, as steps; pure.

    text -> instructions, by a port of BuildKit's parser -> stages of steps, or a refusal by file and line

Variables are expanded here, as BuildKit does; a shell expands its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import ClassVar

from e2b_dockerfile_utils import (
    DockerfileHeredoc,
    DockerfileInstruction,
    DockerfileSyntaxError,
    ShellLex,
    chomp_heredoc_content,
    parse_dockerfile_ast,
)

from envsdk.contracts.failures import ConfigurationError

PROXIES = frozenset(
    name for proxy in ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")
    for name in (proxy, proxy.upper())
)  # fmt: skip
"""Build arguments that need no ARG."""
_WILDCARDS = re.compile(r"[*?\[]")
_URL = re.compile(r"(https?|ftp|git|ssh)://|git@", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What instructions leave to those after them, and to the image."""

    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "root"
    """Name or number."""
    shell: tuple[str, ...] = ("/bin/sh", "-c")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A command, as `settings.user` in `settings.workdir`."""

    line: int
    argv: tuple[str, ...]
    settings: Settings
    args: Mapping[str, str]
    """Build arguments, which `settings.env` overrules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """Files for `target`, of root."""

    line: int
    sources: tuple[str, ...]
    """Paths or patterns: in the context, or in `origin`."""
    files: Mapping[str, str]
    """Content of here-documents, by name."""
    target: str
    """Absolute; with a `/` at its end a folder."""
    origin: int | str | None = None
    """Number of an earlier stage, or a base image."""
    mode: int | None = None
    unpacks: bool = False
    """Whether archives are unpacked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeFolder:
    line: int
    path: str


Step = Run | Copy | MakeFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    line: int
    name: str | None
    base: int | str
    """Number of an earlier stage, or a base image."""
    steps: tuple[Step, ...]
    settings: Settings


class _Refusal(Exception):
    """Why an instruction is refused."""


def read_dockerfile(
    text: str,
    *,
    file: str,
    args: Mapping[str, str],
    base_env: Callable[[str], Mapping[str, str]],
    target: str | None = None,
) -> list[Stage]:
    """The stages up to `target`, by name or number; None is the last.

    Args:
        file: Named in errors.
        args: Values for ARG.
        base_env: Variables of a base image, by its name.

    Raises ConfigurationError: it is no Dockerfile, or asks for what is not supported; with file and line.
    """
    line: int | None = None
    try:
        ast = parse_dockerfile_ast(text)
        reader = _Reader(escape=ast.escape_token, given=args, base_env=base_env)
        for instruction in ast.instructions:
            line = instruction.start_line
            reader.read(instruction)
        line = None
        return reader.finished(target)
    except DockerfileSyntaxError as error:
        raise ConfigurationError(f"{file}: {error}") from None
    except (_Refusal, ValueError) as error:
        at = file if line is None else f"{file}:{line}"
        raise ConfigurationError(f"{at}: {error}") from None


@dataclass(slots=True)
class _Reader:
    """Instructions one after another -> `finished`."""

    escape: str
    given: Mapping[str, str]
    base_env: Callable[[str], Mapping[str, str]]
    stages: list[Stage] = field(default_factory=list)
    global_args: dict[str, str] = field(default_factory=dict)
    args: dict[str, str] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    steps: list[Step] = field(default_factory=list)
    opened: tuple[int, str | None, int | str] | None = None
    """(line, name, base) of the stage that is being read."""

    def read(self, instruction: DockerfileInstruction) -> None:
        method = self._methods.get(instruction.name)
        if method is None:
            raise _Refusal(f"{instruction.name} is not supported")
        if self.opened is None and instruction.name not in ("FROM", "ARG"):
            raise _Refusal(f"{instruction.name} comes before FROM")
        if instruction.flags and instruction.name not in ("FROM", "RUN", "COPY", "ADD"):
            raise _Refusal(f"{instruction.name} {instruction.flags[0]} is not supported")
        method(self, instruction)

    def finished(self, target: str | None) -> list[Stage]:
        self._close()
        if not self.stages:
            raise _Refusal("there is no FROM")
        if target is None:
            return self.stages
        number = self._number_of(target)
        if number is None:
            raise _Refusal(f"there is no stage {target!r}")
        return self.stages[: number + 1]

    def _from(self, instruction: DockerfileInstruction) -> None:
        for flag in instruction.flags:
            if not flag.startswith("--platform="):
                raise _Refusal(f"FROM {flag} is not supported")
        self._close()
        words = [self._word(word, self.global_args) for word in instruction.args]
        if len(words) not in (1, 3) or (len(words) == 3 and words[1].lower() != "as"):
            raise _Refusal("FROM takes an image, and AS with a name")
        base: int | str | None = self._number_of(words[0])
        if base is None:
            base = words[0]
            if not base:
                raise _Refusal("FROM names no image: a variable is empty")
            if base == "scratch":
                raise _Refusal("FROM scratch is not supported: commands need a system to run in")
        name = words[2].lower() if len(words) == 3 else None
        self.opened = (instruction.start_line, name, base)
        self.settings = (
            self.stages[base].settings if isinstance(base, int) else Settings(env=self.base_env(base))
        )
        self.args = {name: value for name, value in self.given.items() if name in PROXIES}
        self.steps = []

    def _arg(self, instruction: DockerfileInstruction) -> None:
        for word in instruction.args:
            name, has_default, default = word.partition("=")
            known = self.global_args if self.opened is None else self._known()
            name = self._word(name, known)
            if name in self.given:
                value: str | None = self.given[name]
            elif has_default:
                value = self._word(default, known)
            else:
                value = self.global_args.get(name) if self.opened else None
            if value is not None:
                (self.global_args if self.opened is None else self.args)[name] = value

    def _env(self, instruction: DockerfileInstruction) -> None:
        known, added = self._known(), {}
        for name, value in zip(instruction.args[::3], instruction.args[1::3], strict=True):
            added[self._word(name, known)] = self._word(value, known)
        self.settings = replace(self.settings, env={**self.settings.env, **added})

    def _workdir(self, instruction: DockerfileInstruction) -> None:
        path = self._expanded(instruction)
        self.settings = replace(self.settings, workdir=self._path(path))
        self.steps.append(MakeFolder(line=instruction.start_line, path=self.settings.workdir))

    def _user(self, instruction: DockerfileInstruction) -> None:
        user = self._expanded(instruction).partition(":")[0]
        self.settings = replace(self.settings, user=user)

    def _shell(self, instruction: DockerfileInstruction) -> None:
        if not instruction.json or not instruction.args:
            raise _Refusal('SHELL takes a list, such as ["/bin/bash", "-c"]')
        self.settings = replace(self.settings, shell=tuple(instruction.args))

    def _run(self, instruction: DockerfileInstruction) -> None:
        for flag in instruction.flags:
            # Without a cache, what a command keeps there stays in its layer.
            if not (flag.startswith("--mount=") and "type=cache" in flag.split("=", 1)[1].split(",")):
                raise _Refusal(f"RUN {flag} is not supported")
        if not any(instruction.args):
            raise _Refusal("RUN has no command")
        if instruction.json:
            argv = tuple(instruction.args)
        else:
            argv = (*self.settings.shell, _shell_text(instruction))
        self.steps.append(
            Run(line=instruction.start_line, argv=argv, settings=self.settings, args=dict(self.args))
        )

    def _copy(self, instruction: DockerfileInstruction) -> None:
        known, name = self._known(), instruction.name
        origin: int | str | None = None
        mode: int | None = None
        for flag in instruction.flags:
            key, _, value = flag.partition("=")
            value = self._word(value, known)
            if key == "--from" and name == "COPY":
                number = self._number_of(value)
                origin = value if number is None else number
            elif key == "--chmod" and re.fullmatch("[0-7]{3,4}", value):
                mode = int(value, 8)
            elif key not in ("--chown", "--link"):
                raise _Refusal(f"{name} {flag} is not supported")
        words = [self._word(word, known) for word in instruction.args]
        if len(words) < 2:
            raise _Refusal(f"{name} takes sources and a target")
        *sources, target = words
        heredocs = {heredoc.name: heredoc for heredoc in instruction.heredocs}
        files = {name: self._content(heredoc) for name, heredoc in heredocs.items()}
        sources = [source for source in sources if source.lstrip("<-").strip("'\"") not in heredocs]
        for source in sources:
            if _URL.match(source):
                raise _Refusal(f"{name} {source}: files come from the context, nothing is downloaded")
            if ".." in PurePosixPath(source).parts:
                raise _Refusal(f"{name} {source}: that is outside of the context")
        is_folder = target.endswith(("/", "/.")) or target == "." or len(sources) + len(files) > 1
        self.steps.append(
            Copy(
                line=instruction.start_line,
                sources=tuple(sources),
                files=files,
                target=self._path(target) + ("/" if is_folder else ""),
                origin=origin,
                mode=mode,
                unpacks=name == "ADD",
            )
        )

    def _without_effect(self, instruction: DockerfileInstruction) -> None:
        """Labels and ports are nobody's here, and nothing runs but what is asked for."""

    def _content(self, heredoc: DockerfileHeredoc) -> str:
        content = chomp_heredoc_content(heredoc.content) if heredoc.chomp else heredoc.content
        if not heredoc.expand:
            return content
        lex = ShellLex(
            self.escape, raw_quotes=True, skip_process_quotes=True, env=self._known(), skip_unset_env=False
        )
        return lex.process_word(content)

    def _expanded(self, instruction: DockerfileInstruction) -> str:
        value = self._word(" ".join(instruction.args), self._known())
        if not value:
            raise _Refusal(f"{instruction.name} names nothing: a variable is empty")
        return value

    def _word(self, word: str, known: Mapping[str, str]) -> str:
        return ShellLex(self.escape, env=known, skip_unset_env=False).process_word(word)

    def _known(self) -> dict[str, str]:
        return {**self.args, **self.settings.env}

    def _path(self, path: str) -> str:
        parts: list[str] = []
        for part in PurePosixPath(self.settings.workdir, path).parts[1:]:
            parts = parts[:-1] if part == ".." else [*parts, part]
        return "/" + "/".join(parts)

    def _number_of(self, stage: str) -> int | None:
        """Of an earlier stage, the last of this name."""
        for number, earlier in reversed([*enumerate(self.stages)]):
            if earlier.name == stage.lower():
                return number
        return int(stage) if stage.isdigit() and int(stage) < len(self.stages) else None

    def _close(self) -> None:
        if self.opened is not None:
            line, name, base = self.opened
            self.stages.append(
                Stage(line=line, name=name, base=base, steps=tuple(self.steps), settings=self.settings)
            )

    _methods: ClassVar[Mapping[str, Callable[[_Reader, DockerfileInstruction], None]]] = {
        "FROM": _from, "ARG": _arg, "ENV": _env, "WORKDIR": _workdir, "USER": _user, "SHELL": _shell,
        "RUN": _run, "COPY": _copy, "ADD": _copy,
        "LABEL": _without_effect, "MAINTAINER": _without_effect, "EXPOSE": _without_effect,
        "CMD": _without_effect, "ENTRYPOINT": _without_effect,
    }  # fmt: skip


def _shell_text(instruction: DockerfileInstruction) -> str:
    """What a shell is given of RUN: a command, or the only here-document as a script."""
    (command,) = instruction.args
    heredocs = instruction.heredocs
    if len(heredocs) == 1 and re.fullmatch(r"<<-?\s*(['\"]?)[^\s'\"]+\1", command.strip()):
        content = heredocs[0].content
        content = chomp_heredoc_content(content) if heredocs[0].chomp else content
        interpreter = re.match(r"#!\s*(.+)\n", content)
        if interpreter is None:
            return content
        return f"exec {interpreter[1]} /dev/fd/3 3<<'{_END}'\n{content}{_END}\n"
    return command + "".join(f"\n{heredoc.content}{heredoc.name}" for heredoc in heredocs)


_END = "envsdk-end-of-script"


def is_pattern(path: str) -> bool:
    return _WILDCARDS.search(path) is not None
