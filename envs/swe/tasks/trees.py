"""The files of a task on this machine, made once each and kept in the cache.

base tree       the repository as the agent gets it: hidden tests gone, one commit without a past
hidden tests    the test and configuration files that grading lays over it, read-only
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from envsdk.base.store.atomic import made_once, move_once
from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.swe.tasks.patches import parse
from envsdk.envs.swe.tasks.runtime import cached
from envsdk.envs.swe.tasks.task import GitSource, ImageSource, RepoSource, Task, TextSource, TreeSource

_LEFT_OUT = (".git", "__pycache__", "*.pyc", ".pytest_cache", ".hypothesis", "*.egg-info")
_EXCLUDES = "__pycache__/\n*.pyc\n.pytest_cache/\n.hypothesis/\n"
_AUTHOR = {
    f"GIT_{who}_{field}": value
    for who in ("AUTHOR", "COMMITTER")
    for field, value in (("NAME", "swe"), ("EMAIL", "swe@localhost"), ("DATE", "2020-01-01T00:00:00Z"))
}
_GIT_ENV = {
    "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "LC_ALL": "C.UTF-8",
    **_AUTHOR,
}


class PatchDoesNotApply(ValueError):
    """What git says of a patch."""


def base_tree(task: Task) -> Path:
    """The folder of the repository that the agent gets: a git repository of one commit.

    Raises ConfigurationError: the source is missing, a commit is unknown or the set-up patch does not apply.
        An `ImageSource` has no folder here before `prepare_image` has fetched it.
    """
    return _base_tree(task.source, task.setup_patch, task.hidden_tests, task.instance_id)


@lru_cache(maxsize=4096)
def _base_tree(source: RepoSource, setup_patch: str, hidden: tuple[str, ...], instance_id: str) -> Path:
    target = base_folder(source, setup_patch, hidden)
    if (target / ".git").is_dir():
        return target
    if isinstance(source, ImageSource):
        raise ConfigurationError(f"{instance_id}: the image {source.image} has not been fetched")
    with made_once(target) as folder:
        try:
            _check_out(source, folder)
            finish_base(folder, target, setup_patch, hidden)
        except (OSError, subprocess.CalledProcessError, PatchDoesNotApply) as error:
            detail = getattr(error, "stderr", None) or str(error)
            raise ConfigurationError(
                f"{instance_id}: cannot make its repository: {detail.strip()}"
            ) from error
    return target


def finish_base(folder: Path, target: Path, setup_patch: str, hidden: tuple[str, ...]) -> None:
    """Make the base tree of a checked-out `folder`, which becomes `target`; hidden tests go next to that."""
    if setup_patch:
        apply_patch(folder, setup_patch)
    kept = folder.parent / "hidden"
    for path in hidden:
        if (folder / path).exists():
            (kept / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).rename(kept / path)
    commit(folder)
    if kept.is_dir():
        move_once(kept, hidden_folder(target))


def hidden_folder(base: Path) -> Path:
    """Where the hidden tests of the source of a base tree are, if it has any."""
    return base.with_name(base.name + ".hidden")


def base_folder(source: RepoSource, setup_patch: str, hidden: tuple[str, ...] = ()) -> Path:
    """Where the base tree of `source` is kept once it is made."""
    match source:
        case TreeSource(folder=folder):
            identity = _digest_of_folder(folder)
        case TextSource(files=files):
            identity = repr(files)
        case GitSource(repository=repository, commit=commit):
            identity = f"{repository.resolve()} {commit}"
        case ImageSource(image=image, workdir=workdir):
            identity = f"{image} {workdir}"
    return cached("trees", f"{type(source).__name__} {identity}\n{hidden}\n{setup_patch}")


def apply_patch(folder: Path, patch: str) -> None:
    """Apply a patch of a data set to `folder`. Raises PatchDoesNotApply with what git says."""
    done = subprocess.run(
        ["git", "apply", "--whitespace=nowarn", "-"],
        cwd=folder,
        input=patch.encode(errors="surrogateescape"),
        capture_output=True,
        env={**_GIT_ENV, "GIT_CEILING_DIRECTORIES": str(folder.parent)},
    )
    if done.returncode:
        raise PatchDoesNotApply(done.stderr.decode(errors="replace").strip() or "git apply failed")


def commit(folder: Path) -> None:
    """Make `folder` a git repository of one commit of everything in it, the same one for the same files."""
    _git(folder, "init", "--quiet", "--template=", "--initial-branch=main", ".")
    (folder / ".git" / "info").mkdir(exist_ok=True)
    (folder / ".git" / "info" / "exclude").write_text(_EXCLUDES)
    _git(folder, "-c", "core.autocrlf=false", "add", "--all", "--force", ".")
    _git(folder, "commit", "--quiet", "--allow-empty", "--message", "Initial commit")
    shutil.rmtree(folder / ".git" / "logs", ignore_errors=True)


def _check_out(source: RepoSource, folder: Path) -> None:
    if isinstance(source, TreeSource):
        if not source.folder.is_dir():
            raise FileNotFoundError(f"there is no folder {source.folder}")
        ignore = shutil.ignore_patterns(*_LEFT_OUT)
        shutil.copytree(source.folder, folder, symlinks=True, dirs_exist_ok=True, ignore=ignore)
    elif isinstance(source, TextSource):
        write_texts(folder, dict(source.files))
    elif isinstance(source, GitSource):
        if not source.repository.is_dir():
            raise FileNotFoundError(f"there is no repository {source.repository}")
        index = {"GIT_INDEX_FILE": str(folder.parent / "index"), "GIT_WORK_TREE": str(folder)}
        _git(source.repository, "read-tree", f"{source.commit}^{{tree}}", env=index)
        _git(source.repository, "checkout-index", "--all", "--force", f"--prefix={folder}/", env=index)


def write_texts(folder: Path, files: Mapping[str, str]) -> None:
    """Write text files by path below `folder`, and the folders that they are in."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8", newline="")


def _git(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> None:
    subprocess.run(
        ["git", "-c", "safe.directory=*", "-c", "core.hooksPath=/dev/null", *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        env={**_GIT_ENV, **(env or {})},
    )


@lru_cache(maxsize=256)
def _digest_of_folder(folder: Path) -> str:
    """A digest of all names, kinds and contents below `folder`."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if any(path.match(pattern) for pattern in _LEFT_OUT) or "/__pycache__/" in f"/{name}":
            continue
        if path.is_symlink():
            digest.update(f"l {name} {os.readlink(path)}\0".encode())
        elif path.is_file():
            mode = path.stat().st_mode & 0o111
            digest.update(f"f {name} {bool(mode)} {path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


@lru_cache(maxsize=1024)
def solution_of(base: Path, gold_patch: str) -> Mapping[str, tuple[str, str]]:
    """Text before and after by path, "" for a file that is not there; what is not text is left out.

    Raises PatchDoesNotApply with what git says.
    """
    found = {}
    for path, versions in changed_files(base, gold_patch).items():
        try:
            before, after = (version.decode() for version in versions)
        except UnicodeDecodeError:
            continue
        found[path] = (before, after)
    return found


def changed_files(base: Path, patch: str) -> Mapping[str, tuple[bytes, bytes]]:
    """Content before and after by path, empty for a file that is not there.

    Raises PatchDoesNotApply with what git says.
    """
    patches = parse(patch)
    with tempfile.TemporaryDirectory(prefix="swe-gold-") as temporary:
        folder = Path(temporary)
        for path in {changed.old_path for changed in patches if changed.old_path is not None}:
            if (base / path).is_file():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes((base / path).read_bytes())
        if patches:
            apply_patch(folder, patch)
        paths = dict.fromkeys(path for changed in patches for path in changed.paths)
        return {path: (_content(base / path), _content(folder / path)) for path in paths}


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""
