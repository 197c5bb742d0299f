"""A Harbor task's folder, read and put in order: every choice that Harbor makes by file and key is made here.

    task = read_folder(Path("tasks/fix-permissions"))
    task.stages[0].instruction, task.stages[0].verifier.mode

task.toml  instruction.md  trajectory.json
environment/      Dockerfile, or what is laid into the workdir of a `docker_image`
tests/            test.sh; with a Dockerfile the verifier's own image
solution/         solve.sh
steps/NAME/       instruction.md, workdir/ with setup.sh, tests/, solution/

A task without `[[steps]]` has one stage without a name.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from envsdk.base.settings.problems import describe
from envsdk.base.settings.validation import problems_in
from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.terminal.harbor.config import (
    Artifact,
    Collect,
    Environment,
    Healthcheck,
    Mode,
    NetworkMode,
    Step,
    TaskConfig,
    User,
    odd_keys,
    odd_values,
)
from envsdk.envs.terminal.harbor.inputs import IGNORE_FILE, inputs

CONFIG = "task.toml"
INSTRUCTION = "instruction.md"
COMPOSE = "docker-compose.yaml"
HISTORY = "trajectory.json"
_CANARY = re.compile(r"(<!--.*canary.*-->|#.*canary.*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """What a sandbox starts from."""

    config: Environment
    docker_image: str | None
    """Taken before a Dockerfile."""
    context: Path | None
    """Folder with a Dockerfile."""
    laid: Path | None
    """Folder whose files are laid into the workdir of the image."""
    compose: Path | None = None
    """File with services that run beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierPlan:
    """How one stage is checked: /tests/test.sh, in the agent's box or in one of its own."""

    mode: Mode
    box: Box | None
    """The box of a separate verifier."""
    tests: tuple[Path, ...]
    """Folders laid at /tests, later ones over earlier ones; none where the image has them."""
    timeout_s: float
    env: Mapping[str, str]
    user: User
    network: tuple[NetworkMode, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One instruction and its check."""

    name: str
    instruction: str
    history: str
    """The conversation before it, as text; empty where there was none."""
    timeout_s: float | None
    user: User
    network: tuple[NetworkMode, tuple[str, ...]]
    workdir: Path | None
    """Folder laid into the workdir before; its setup.sh is run."""
    healthcheck: Healthcheck | None
    solution: Path | None
    """Folder with solve.sh."""
    gates: Mapping[str, float]
    artifacts: tuple[Artifact, ...]
    collect: tuple[Collect, ...]
    verifier: VerifierPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborTask:
    """One task, checked for what its author can have got wrong."""

    id: str
    """Unique in its list: the way to its folder."""
    folder: Path
    config: TaskConfig
    box: Box
    stages: tuple[Stage, ...]
    strategy: Literal["mean", "final"]
    odd: tuple[str, ...]
    """`KEY: why` of what is read of task.toml as Harbor reads it, and cannot be meant as it stands."""

    @property
    def boxes(self) -> tuple[Box, ...]:
        """The agent's, then those of separate verifiers."""
        return (self.box, *(stage.verifier.box for stage in self.stages if stage.verifier.box is not None))

    @property
    def is_separate(self) -> bool:
        return all(stage.verifier.mode is Mode.SEPARATE for stage in self.stages)

    @property
    def has_solution(self) -> bool:
        return all(stage.solution is not None for stage in self.stages)


class _Refused(Exception):
    """What is wrong with a file of the folder."""


def read_folder(folder: Path, id: str = "") -> HarborTask:
    """The task in `folder`.

    Raises ConfigurationError: a file is missing or wrong; it is named, and of task.toml the key.
    """
    folder = folder.absolute()
    said, config = _read_config(folder / CONFIG)
    try:
        _only_linux(config)
        stages = [_stage(folder, config, step) for step in config.steps or (None,)]
        _no_way_out(folder)
        return HarborTask(
            id=id or folder.name,
            folder=folder,
            config=config,
            box=_agent_box(folder, config),
            stages=tuple(stages),
            strategy=config.multi_step_reward_strategy or "mean",
            odd=(*odd_keys(config), *odd_values(said)),
        )
    except _Refused as error:
        raise ConfigurationError(f"{folder}: {error}") from None


def _only_linux(config: TaskConfig) -> None:
    """Refuse Windows first: such a task has other scripts, whose absence would be reported in its place."""
    boxes = {"environment": config.environment, "verifier.environment": config.verifier.environment}
    boxes |= {
        f"steps[{i}].verifier.environment": each.verifier.environment
        for i, each in enumerate(config.steps or ())
    }
    for key, box in boxes.items():
        if box is not None and box.os == "windows":
            raise _Refused(f"{CONFIG}: {key}.os: windows: sandboxes run Linux")


def find_folders(data: Path) -> Iterator[Path]:
    """Folders with a task.toml in `data`, or `data` itself: in order, each once, none nested, none hidden."""
    return (folder for folder in _folders(data) if (folder / CONFIG).is_file())


def strays(data: Path) -> Iterator[str]:
    """`FILE: why` of what looks like a part of a task, in folders that are none."""
    for folder in _folders(data):
        names = {} if (folder / CONFIG).is_file() else {each.name.lower(): each for each in folder.iterdir()}
        for name in (CONFIG, INSTRUCTION):
            if name in names:
                yield f"{names[name].relative_to(data)}: belongs to no task: its folder has no file {CONFIG}"


def _folders(data: Path) -> list[Path]:
    """Each by one name: of those that lead to it, one without links where there is one."""
    found, folders, links = dict[Path, Path](), [data], list[Path]()
    while folders or links:
        folder = folders.pop() if folders else links.pop(0)
        if (real := folder.resolve()) not in found:
            found[real] = folder
            for inner in () if (folder / CONFIG).is_file() else sorted(folder.iterdir()):
                if inner.is_dir() and not inner.name.startswith("."):
                    (links if inner.is_symlink() else folders).append(inner)
    return sorted(found.values())


def instruction_in(text: str) -> str:
    """An instruction without the canary lines at its begin, which are not for agents."""
    lines = text.split("\n")
    while lines and _CANARY.fullmatch(lines[0].strip()):
        del lines[0]
    return "\n".join(lines).strip("\n") + "\n"


def _read_config(file: Path) -> tuple[dict[str, Any], TaskConfig]:
    """What stands in the file, and what it means."""
    try:
        said = tomllib.loads(file.read_text(encoding="utf-8"))
        return said, TaskConfig.model_validate(said)
    except ValidationError as error:
        problems = list(problems_in(error, TaskConfig))
        raise ConfigurationError(describe(problems, source=str(file), origin=lambda _: "")) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{file}: {error}") from None


def _agent_box(folder: Path, config: TaskConfig) -> Box:
    box = _box(folder / "environment", config.environment)
    if box.docker_image is None and box.context is None:
        raise _Refused("environment/Dockerfile: is missing, and [environment] docker_image is not set")
    return box


def _box(context: Path, config: Environment) -> Box:
    """A box of `context`. A set `docker_image` is taken as it is, with the folder's files laid into it."""
    image, compose = config.docker_image or None, _compose(context)
    is_built = (context / "Dockerfile").is_file() or compose is not None
    lays = image is not None and not is_built and context.is_dir()
    return Box(
        config=config,
        docker_image=image,
        context=context if image is None and is_built else None,
        laid=context if lays else None,
        compose=compose,
    )


def _compose(context: Path) -> Path | None:
    return file if (file := context / COMPOSE).is_file() else None


def _stage(folder: Path, config: TaskConfig, step: Step | None) -> Stage:
    home = folder / "steps" / step.name if step else folder
    agent = step.agent if step else config.agent
    workdir, own = home / "workdir", home / "solution"
    solution = own if step is None or own.is_dir() else folder / "solution"
    if step and own.is_dir() and not (own / "solve.sh").is_file():
        raise _Refused(f"{(own / 'solve.sh').relative_to(folder)}: is missing")
    timeout_s = agent.timeout_sec if agent.timeout_sec is not None else config.agent.timeout_sec
    return Stage(
        name=step.name if step else "",
        instruction=_instruction(folder, home / INSTRUCTION),
        history=_history(folder, home / HISTORY) if not step or step is (config.steps or [step])[0] else "",
        timeout_s=timeout_s,
        user=agent.user if agent.user is not None else config.agent.user,
        network=config.agent_network(step),
        workdir=workdir if step and workdir.is_dir() else None,
        healthcheck=step.healthcheck if step else None,
        solution=solution if (solution / "solve.sh").is_file() else None,
        gates=step.gates if step else {},
        artifacts=config.artifacts_of(step),
        collect=config.collected_after(step),
        verifier=_verifier(folder, config, step),
    )


def _verifier(folder: Path, config: TaskConfig, step: Step | None) -> VerifierPlan:
    said = step.verifier if step else config.verifier
    folders = [folder / "tests", *([folder / "steps" / step.name / "tests"] if step else [])]
    box, has_tests = None, False
    if config.mode_of(step) is Mode.SEPARATE:
        box, has_tests = _verifier_box(folder, config, step)
    tests = () if has_tests else tuple(each for each in folders if each.is_dir())
    if not has_tests and not any(each / "test.sh" in inputs(each) for each in tests):
        named = (folders[-1] / "test.sh").relative_to(folder)
        why = f": {IGNORE_FILE} beside it leaves it out" if (folder / named).is_file() else ": is missing"
        raise _Refused(f"{named}{why}")
    return VerifierPlan(
        mode=config.mode_of(step),
        box=box,
        tests=tests,
        timeout_s=said.timeout_sec,
        env={**config.verifier.env, **said.env},
        user=said.user if said.user is not None else config.verifier.user,
        network=config.verifier_network(step),
    )


def _verifier_box(folder: Path, config: TaskConfig, step: Step | None) -> tuple[Box, bool]:
    """The box of a separate verifier, and whether its image has the tests.

    The first of these that names an image or has a Dockerfile: the step, the task. Else the agent's image.
    """
    of_step = step.verifier.environment if step else None
    own = of_step or config.verifier.environment or config.environment
    sources = [(config.verifier.environment, folder / "tests")]
    if step:
        sources.insert(0, (of_step, folder / "steps" / step.name / "tests"))
    for environment, context in sources:
        if environment and environment.docker_image:
            return Box(config=own, docker_image=environment.docker_image, context=None, laid=None), True
        if any((context / name).is_file() for name in ("Dockerfile", COMPOSE)):
            return Box(
                config=own, docker_image=None, context=context, laid=None, compose=_compose(context)
            ), True
    agents = _agent_box(folder, config)
    os = own.os if "os" in own.model_fields_set else config.environment.os
    return replace(agents, config=own.model_copy(update={"os": os})), False


def _instruction(folder: Path, file: Path) -> str:
    try:
        return instruction_in(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = "is missing" if isinstance(error, FileNotFoundError) else str(error)
        raise _Refused(f"{file.relative_to(folder)}: {why}") from None


def _history(folder: Path, file: Path) -> str:
    """The steps of an ATIF document; of a task with steps, Harbor takes the first one's alone."""
    if not file.is_file():
        return ""
    try:
        return "\n\n".join(map(_turn, json.loads(file.read_text(encoding="utf-8"))["steps"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _Refused(f"{file.relative_to(folder)}: is no ATIF document: {error!r}") from None


def _turn(step: Mapping[str, Any]) -> str:
    calls = (
        f"{each['function_name']}({json.dumps(each['arguments'])})" for each in step.get("tool_calls") or ()
    )
    results = (step.get("observation") or {}).get("results", ())
    said = [_text(step["message"]), *calls, *(_text(each.get("content")) for each in results)]
    return "\n".join((f"[{step['source']}]", *filter(None, said)))


def _text(content: Any) -> str:
    """A message, or the texts of its parts."""
    if isinstance(content, list):
        return "\n".join(part.get("text") or f"({part['type']})" for part in content)
    return content or ""


def _no_way_out(folder: Path) -> None:
    """Refuse links of a task's own files that lead out of its folder."""
    for name in ("environment", "tests", "solution", "steps"):
        for path in (folder / name).rglob("*"):
            if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
                raise _Refused(f"{path.relative_to(folder)}: is a link that leads out of the task's folder")
