"""What a Dockerfile asks for, as steps; pure.

    text -> instructions, by a port of BuildKit's parser -> stages of steps, or a refusal by file and line

Variables are expanded here, as BuildKit does; a shell expands its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, ClassVar

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
_END = "envsdk-end-of-script"
_ARCHIVE = re.compile(r".+\.(tar(\.\w+)?|tgz|tbz2?|txz)")
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
    """Files for `target`, of root; none make a folder of it."""

    line: int
    sources: tuple[str, ...] = ()
    """Paths or patterns: in the context, or in `origin`."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Content of here-documents, by name."""
    target: str
    """Absolute; with a `/` at its end a folder."""
    origin: int | str | None = None
    """Number of an earlier stage, or a base image."""
    mode: int | None = None
    instruction: str = "COPY"


@dataclass(slots=True, kw_only=True)
class Stage:
    line: int
    name: str | None
    base: int | str
    """Number of an earlier stage, or a base image."""
    settings: Settings
    """What its last instruction leaves."""
    steps: list[Run | Copy] = field(default_factory=list)


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
    except ValueError as error:
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
    """Those of the last stage."""

    def read(self, instruction: DockerfileInstruction) -> None:
        method = self._methods.get(instruction.name)
        if method is None:
            raise ValueError(f"{instruction.name} is not supported")
        if not self.stages and instruction.name not in ("FROM", "ARG"):
            raise ValueError(f"{instruction.name} comes before FROM")
        if instruction.flags and instruction.name not in ("FROM", "RUN", "COPY", "ADD"):
            raise ValueError(f"{instruction.name} {instruction.flags[0]} is not supported")
        method(self, instruction)

    def finished(self, target: str | None) -> list[Stage]:
        if not self.stages:
            raise ValueError("there is no FROM")
        number = len(self.stages) - 1 if target is None else _number_of(target, self.stages)
        if number is None:
            raise ValueError(f"there is no stage {target!r}")
        return self.stages[: number + 1]

    def _from(self, instruction: DockerfileInstruction) -> None:
        for flag in instruction.flags:
            if not flag.startswith("--platform="):
                raise ValueError(f"FROM {flag} is not supported")
        words = [self._word(word, self.global_args) for word in instruction.args]
        if len(words) not in (1, 3) or (len(words) == 3 and words[1].lower() != "as"):
            raise ValueError("FROM takes an image, and AS with a name")
        number = _number_of(words[0], self.stages)
        if not words[0]:
            raise ValueError("FROM names no image: a variable is empty")
        if words[0] == "scratch":
            raise ValueError("FROM scratch is not supported: commands need a system to run in")
        self.stages.append(
            Stage(
                line=instruction.start_line,
                name=words[2].lower() if len(words) == 3 else None,
                base=words[0] if number is None else number,
                settings=Settings(env=self.base_env(words[0]))
                if number is None
                else self.stages[number].settings,
            )
        )
        self.args = {name: value for name, value in self.given.items() if name in PROXIES}

    def _arg(self, instruction: DockerfileInstruction) -> None:
        known, args = (self._known(), self.args) if self.stages else (self.global_args, self.global_args)
        for word in instruction.args:
            name, has_default, default = word.partition("=")
            name = self._word(name, known)
            if name in self.given:
                args[name] = self.given[name]
            elif has_default:
                args[name] = self._word(default, known)
            elif name in self.global_args:
                args[name] = self.global_args[name]

    def _env(self, instruction: DockerfileInstruction) -> None:
        known, added = self._known(), {}
        for name, value in zip(instruction.args[::3], instruction.args[1::3], strict=True):
            added[self._word(name, known)] = self._word(value, known)
        self._set(env={**self.stages[-1].settings.env, **added})

    def _workdir(self, instruction: DockerfileInstruction) -> None:
        path = self._path(self._expanded(instruction))
        self._set(workdir=path)
        self.stages[-1].steps.append(
            Copy(line=instruction.start_line, target=f"{path}/", instruction="WORKDIR")
        )

    def _user(self, instruction: DockerfileInstruction) -> None:
        user = self._expanded(instruction).partition(":")[0]
        self._set(user=user)

    def _shell(self, instruction: DockerfileInstruction) -> None:
        if not instruction.json or not instruction.args:
            raise ValueError('SHELL takes a list, such as ["/bin/bash", "-c"]')
        self._set(shell=tuple(instruction.args))

    def _run(self, instruction: DockerfileInstruction) -> None:
        for flag in instruction.flags:
            # Without a cache, what a command keeps there stays in its layer.
            if not (flag.startswith("--mount=") and "type=cache" in flag.split("=", 1)[1].split(",")):
                raise ValueError(f"RUN {flag} is not supported")
        if not any(instruction.args):
            raise ValueError("RUN has no command")
        if instruction.json:
            argv = tuple(instruction.args)
        else:
            argv = (*self.stages[-1].settings.shell, _shell_text(instruction))
        self.stages[-1].steps.append(
            Run(
                line=instruction.start_line,
                argv=argv,
                settings=self.stages[-1].settings,
                args=dict(self.args),
            )
        )

    def _copy(self, instruction: DockerfileInstruction) -> None:
        known, name = self._known(), instruction.name
        origin: int | str | None = None
        mode: int | None = None
        for flag in instruction.flags:
            key, _, value = flag.partition("=")
            value = self._word(value, known)
            if key == "--from" and name == "COPY":
                number = _number_of(value, self.stages[:-1])
                origin = value if number is None else number
            elif key == "--chmod" and re.fullmatch("[0-7]{3,4}", value):
                mode = int(value, 8)
            elif key not in ("--chown", "--link"):
                raise ValueError(f"{name} {flag} is not supported")
        words = [self._word(word, known) for word in instruction.args]
        if len(words) < 2:
            raise ValueError(f"{name} takes sources and a target")
        *sources, target = words
        heredocs = {heredoc.name: heredoc for heredoc in instruction.heredocs}
        files = {name: self._content(heredoc) for name, heredoc in heredocs.items()}
        sources = [source for source in sources if source.lstrip("<-").strip("'\"") not in heredocs]
        for source in sources:
            if _URL.match(source):
                raise ValueError(f"{name} {source}: files come from the context, nothing is downloaded")
            if name == "ADD" and _ARCHIVE.fullmatch(source):
                raise ValueError(f"ADD {source}: archives are not unpacked: COPY it, and unpack it by RUN")
            if ".." in PurePosixPath(source).parts:
                raise ValueError(f"{name} {source}: that is outside of the context")
        is_folder = target.endswith(("/", "/.")) or target == "." or len(sources) + len(files) > 1
        self.stages[-1].steps.append(
            Copy(
                line=instruction.start_line,
                sources=tuple(sources),
                files=files,
                target=self._path(target) + ("/" if is_folder else ""),
                origin=origin,
                mode=mode,
                instruction=name,
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
            raise ValueError(f"{instruction.name} names nothing: a variable is empty")
        return value

    def _word(self, word: str, known: Mapping[str, str]) -> str:
        return ShellLex(self.escape, env=known, skip_unset_env=False).process_word(word)

    def _known(self) -> dict[str, str]:
        return {**self.args, **self.stages[-1].settings.env}

    def _path(self, path: str) -> str:
        parts: list[str] = []
        for part in PurePosixPath(self.stages[-1].settings.workdir, path).parts[1:]:
            parts = parts[:-1] if part == ".." else [*parts, part]
        return "/" + "/".join(parts)

    def _set(self, **settings: Any) -> None:
        self.stages[-1].settings = replace(self.stages[-1].settings, **settings)

    _methods: ClassVar[Mapping[str, Callable[[_Reader, DockerfileInstruction], None]]] = {
        "FROM": _from, "ARG": _arg, "ENV": _env, "WORKDIR": _workdir, "USER": _user, "SHELL": _shell,
        "RUN": _run, "COPY": _copy, "ADD": _copy,
        "LABEL": _without_effect, "MAINTAINER": _without_effect, "EXPOSE": _without_effect,
        "CMD": _without_effect, "ENTRYPOINT": _without_effect,
    }  # fmt: skip


def _number_of(name: str, stages: Sequence[Stage]) -> int | None:
    """Number of the last stage with this name, or which is this number."""
    for number, stage in reversed([*enumerate(stages)]):
        if stage.name == name.lower():
            return number
    return int(name) if name.isdecimal() and int(name) < len(stages) else None


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
