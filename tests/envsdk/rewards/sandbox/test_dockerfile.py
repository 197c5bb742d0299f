"""Dockerfiles as steps: what is expanded, and what is refused, with its line."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.sandbox.images.context import Context, digest_of
from envsdk.rewards.sandbox.images.dockerfile import Copy, Run, Stage, read_dockerfile


def read(text: str, target: str | None = None, **args: str) -> list[Stage]:
    return read_dockerfile(
        text, file="D", args=args, base_env=lambda name: {"PATH": f"/{name}/bin"}, target=target
    )


def test_variables_are_expanded_where_buildkit_does() -> None:
    (stage,) = read(
        "ARG TAG=3\nFROM python:${TAG} AS Base\nARG TAG NEW=n\nARG OTHER\n"
        "ENV A=1 B='$A x' PATH=/opt:$PATH C=$OTHER\nENV A=2 OLD=$A\nWORKDIR /a/$A\nWORKDIR ../b\n"
        "USER $NEW:grp\nCOPY --chmod=0755 x-$TAG y ./\nRUN echo $A\n",
        OTHER="given",
    )
    assert (stage.base, stage.name) == ("python:3", "base")
    settings = stage.settings
    assert settings.env == {"PATH": "/opt:/python:3/bin", "A": "2", "B": "$A x", "C": "given", "OLD": "1"}
    assert (settings.workdir, settings.user) == ("/a/b", "n")
    folder, inner, copy, run = stage.steps
    assert [step.target for step in (folder, inner) if isinstance(step, Copy)] == ["/a/2/", "/a/b/"]
    assert isinstance(copy, Copy)
    assert (copy.sources, copy.target, copy.mode, copy.line) == (("x-3", "y"), "/a/b/", 0o755, 10)
    assert isinstance(run, Run)
    assert run.argv == ("/bin/sh", "-c", "echo $A")
    assert run.args == {"TAG": "3", "NEW": "n", "OTHER": "given"}


def test_a_command_is_given_to_the_shell_that_is_set() -> None:
    (stage,) = read(
        'FROM a\nSHELL ["/bin/bash", "-ec"]\nRUN a && \\\n  # said\n  b\nRUN ["x", "$y"]\n'
        "RUN <<EOF\none\n two\nEOF\n"
        "RUN cat <<-EOF > /x\n\tin\n\tEOF\nRUN <<EOF\n#!/usr/bin/env python3\nprint(1)\nEOF\n"
    )
    commands = [step.argv for step in stage.steps if isinstance(step, Run)]
    assert commands[0] == ("/bin/bash", "-ec", "a &&   b")
    assert commands[1] == ("x", "$y")
    assert commands[2] == ("/bin/bash", "-ec", "one\n two\n")
    assert commands[3][-1] == "cat <<-EOF > /x\n\tin\nEOF"
    assert commands[4][-1].startswith("exec /usr/bin/env python3 /dev/fd/3 3<<'")


def test_stages_build_on_each_other_and_end_at_the_target() -> None:
    text = (
        "FROM a AS one\nENV X=1\nFROM one AS two\nCOPY --from=one /x /y\nCOPY --from=0 /x /y\n"
        "COPY --from=b:1 /x /y\nFROM c\n"
    )
    stages = read(text)
    assert [stage.base for stage in stages] == ["a", 0, "c"]
    assert stages[1].settings.env["X"] == "1"
    assert [step.origin for step in stages[1].steps if isinstance(step, Copy)] == [0, 0, "b:1"]
    assert len(read(text, target="two")) == len(read(text, target="1")) == 2


def test_here_documents_are_files_whose_variables_are_expanded_unless_quoted() -> None:
    (stage,) = read("FROM a\nENV V=v\nCOPY <<one <<'two' /to/\n'$V'\none\n'$V'\ntwo\n")
    (copy,) = stage.steps
    assert isinstance(copy, Copy)
    assert copy.files == {"one": "'v'\n", "two": "'$V'\n"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "D: there is no FROM"),
        ("RUN x", "D:1: RUN comes before FROM"),
        ("FROM scratch", "D:1: FROM scratch is not supported"),
        ("FROM $NONE", "D:1: FROM names no image"),
        ("FROM a b", "D:1: FROM takes an image"),
        ("FROM a\nVOLUME /x", "D:2: VOLUME is not supported"),
        ("FROM a\nONBUILD RUN x", "D:2: ONBUILD is not supported"),
        ("FROM a\nHEALTHCHECK CMD x", "D:2: HEALTHCHECK is not supported"),
        (
            "FROM a\n\n# x\nRUN --mount=type=secret,id=x y",
            "D:4: RUN --mount=type=secret,id=x is not supported",
        ),
        ("FROM a\nADD https://x.example/y /y", "D:2: ADD https://x.example/y: files come from the context"),
        ("FROM a\nADD git@x.example:y /y", "D:2: ADD git@x.example:y: files come"),
        ("FROM a\nCOPY ../x /y", "D:2: COPY ../x: that is outside"),
        ("FROM a\nCOPY --parents x /y", "D:2: COPY --parents is not supported"),
        ("FROM a\nCOPY --chmod=u+x x /y", "D:2: COPY --chmod=u\\+x is not supported"),
        ("FROM a\nCOPY x", "D:2: COPY takes sources and a target"),
        ("FROM a\nRUNN x", "D: Dockerfile parse error on line 2: unknown instruction: RUNN"),
        ("FROM a\nENV A=${B", "D:2: "),
        ("FROM a\nRUN <<E\nx", "unterminated heredoc"),
        ("FROM a\nWORKDIR $NONE", "D:2: WORKDIR names nothing"),
        ("FROM a\nSHELL x", "SHELL"),
    ],
)
def test_what_is_not_supported_is_refused_by_name_and_line(text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        read(text)


LINES = [
    *(
        "FROM a",
        "FROM b AS c",
        "RUN x",
        "COPY a b",
        "COPY --from=c a b",
        "ENV A=$B",
        "ARG X",
        "WORKDIR $A/..",
    ),
    *(
        "RUN <<E",
        "E",
        "USER u",
        "ADD a b",
        "SHELL []",
        "COPY <<E /x",
        "LABEL a=b",
        "CMD x",
        "\\",
        "# escape=`",
    ),
]


@given(st.text(string.printable, max_size=200), st.lists(st.sampled_from(LINES), max_size=12))
def test_any_text_is_read_or_refused(noise: str, lines: list[str]) -> None:
    for text in ("\n".join(["FROM a", *lines]), "\n".join([*lines, noise]), noise):
        try:
            stages = read(text)
        except ConfigurationError:
            continue
        for stage in stages:
            assert stage.settings.workdir.startswith("/")
            for step in stage.steps:
                if isinstance(step, Copy):
                    assert step.target.startswith("/")
                    assert ".." not in step.target.split("/")


def names(context: Context, *sources: str) -> list[str]:
    copy = Copy(line=1, sources=sources, files={}, target="/x/")
    return [entry.name for entry in context.entries(copy)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.py", "b.py", ".hidden", "data/one", "data/deep/two", "data/deep/keep", "data/skip.log"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("a.py")
    return tmp_path


def test_the_content_of_a_folder_is_copied_and_ignored_files_are_not(folder: Path) -> None:
    (folder / ".dockerignore").write_text("# x\n**/*.log\ndata/deep\n!data/deep/keep\n.dockerignore\n")
    context = Context.open(folder, folder / "Dockerfile")
    assert names(context, "data") == ["deep/keep", "one"]
    assert names(context, "/data/deep") == ["keep"]
    assert names(context, "*.py") == ["a.py", "b.py"]
    assert names(context, "[^a].py") == ["b.py"]
    assert names(context, "link", "empty") == ["link"]
    assert names(context, ".")[:3] == [".hidden", "a.py", "b.py"]
    for missing in ("nothing", "data/skip.log", "*.c"):
        with pytest.raises(ValueError, match="no such file"):
            names(context, missing)


def test_a_link_does_not_lead_out_of_the_context(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    secret = tmp_path_factory.mktemp("outside") / "secret"
    secret.write_text("s")
    (folder / "out").symlink_to(secret.parent)
    context = Context.open(folder, folder / "Dockerfile")
    for source in ("out", "out/secret", "out/*"):
        with pytest.raises(ValueError, match="leads out"):
            names(context, source)


def test_a_digest_changes_with_names_modes_and_contents_alone(folder: Path) -> None:
    def digest() -> str:
        context = Context.open(folder, folder / "Dockerfile")
        return digest_of(context.entries(Copy(line=1, sources=(".",), files={}, target="/x/")))

    seen = [digest()]
    (folder / "a.py").touch()
    assert digest() == seen[0]
    for change in (
        lambda: (folder / "a.py").write_text("other"),
        lambda: (folder / "a.py").chmod(0o755),
        lambda: (folder / "a.py").rename(folder / "c.py"),
        lambda: ((folder / "link").unlink(), (folder / "link").symlink_to("b.py")),
    ):
        change()
        seen.append(digest())
    assert len(set(seen)) == 5
