"""`docker-compose.yaml` of a task: what runs beside the agent's box, the service `main`, in its network."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.terminal.harbor.config import MAIN, Environment, Healthcheck

MAIN_IMAGE = "the-image-of-main"
"""What `${MAIN_IMAGE_NAME}` means."""
HEALTHY = "service_healthy"
_UNREADABLE = OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, yaml.YAMLError
_WITHOUT_EFFECT = {
    *("version", "name", "networks", "ports", "expose", "container_name", "hostname", "restart", "init"),
    *("deploy", "cpus", "mem_limit", "labels", "logging", "platform", "pull_policy", "stdin_open", "tty"),
}
"""Services have one network and the task's limits here, and none starts again."""
_OF_MAIN = {"build", "environment", "depends_on", "volumes", "working_dir"}
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,62}", re.ASCII)
_IDLE = re.compile(r"((/bin/)?(ba)?sh -c )?(sleep infinity|tail -f /dev/null)")
LOGS = {"VERIFIER_LOGS": "/logs/verifier", "AGENT_LOGS": "/logs/agent", "ARTIFACTS": "/logs/artifacts"}
_VARIABLE = re.compile(r"\$(?:\$|([A-Za-z_]\w*)|\{(\w+)(?::?-([^${}]*)|:?\?[^${}]*)?\})")
_ISO = TypeAdapter(timedelta)
"""Durations of ISO 8601, `PT1M30S`; compose writes 1m30s."""
_TIMES = {"interval": "30s", "timeout": "30s", "start_period": "0s", "start_interval": "5s"}


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Refuses a key that stands twice, as compose does."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        marks: dict[Any, Any] = {}
        for key, _ in node.value:
            if marks.setdefault(key.value if isinstance(key, yaml.ScalarNode) else key, key) is not key:
                raise yaml.MarkedYAMLError(problem=f"{key.value!r} stands twice", problem_mark=key.start_mark)
        return node


class _Refused(ValueError):
    """What is wrong with which part of a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    image: str = ""
    build: Mapping[str, Any] | None = None
    """Keywords of `build_image`, and its `context`."""
    command: Sequence[str] = ()
    entrypoint: Sequence[str] | None = None
    environment: Mapping[str, str | None] = field(default_factory=dict)
    """None has the variable's own value, or is left out."""
    env_file: Sequence[str] = ()
    depends_on: Mapping[str, str] = field(default_factory=dict)
    """Their conditions."""
    healthcheck: Healthcheck | None = None
    """Its command is the words of a program, as a line."""
    working_dir: str = ""
    user: str = ""
    binds: Mapping[str, str] = field(default_factory=dict)
    """Files and folders of the task, by path inside."""
    volumes: Mapping[str, str] = field(default_factory=dict)
    """NAME:ro or NAME:rw, by path inside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compose:
    main: Service
    services: Mapping[str, Service]
    """The others, each after those that it depends on."""
    problems: Sequence[str]
    """`KEY: why` of all that cannot be done here."""
    without_effect: Sequence[str]
    """Keys."""

    @property
    def needs_engine(self) -> bool:
        return bool(self.services or self.main.volumes)


def read_compose(file: Path, config: Environment, variables: Mapping[str, str] | None = None) -> Compose:
    """The services of a file; without `variables` those that the host would give stay as they are.

    Raises ConfigurationError: a variable is missing.
    """
    values = {
        **(variables or {}),
        **{f"{side}_{name}_PATH": folder for name, folder in LOGS.items() for side in ("HOST", "ENV")},
        **{"MAIN_IMAGE_NAME": MAIN_IMAGE, "PREBUILT_IMAGE_NAME": MAIN_IMAGE, "CONTEXT_DIR": str(file.parent)},
        **{"TEST_DIR": "/tests", "CPUS": f"{config.cpus or 1:g}", "MEMORY": f"{config.memory_mb or 2048}M"},
    }
    try:
        said = yaml.load(file.read_text(encoding="utf-8"), _Loader)
        document = _keys(_filled(said, values, variables is None), "the file")
        raw = {
            name: {key: value for key, value in _keys(said, f"services.{name}").items() if value is not None}
            for name, said in _keys(document.pop("services"), "services").items()
        }
        named = _keys(document.pop("volumes", None), "volumes")
    except _UNREADABLE as error:
        why = f"services: cannot be read as services by name ({' '.join(str(error).split())})"
        return Compose(main=Service(), services={}, problems=[why], without_effect=[])
    keys = [("", key, None, key) for key in document if not str(key).startswith("x-")]
    keys += [(name, key, raw[name][key], f"services.{name}.{key}") for name in raw for key in raw[name]]
    problems = [
        f"volumes.{name}: is not supported here"
        for name, said in named.items()
        if said and said != {"driver": "local"}
    ]
    imageless = (name for name in raw if name != MAIN and not raw[name].keys() & {"image", "build"})
    problems += [f"services.{name}.image: is missing, and `build` too" for name in imageless]
    odd = (name for name in raw if not _NAME.fullmatch(str(name)) or name == "localhost")
    problems += [f"services.{name!r}: is no name: 1 to 63 letters, digits, `_`, `-`, `.`" for name in odd]
    given: dict[str, dict[str, Any]] = {name: {} for name in raw}
    for name, key, value, where in keys:
        try:
            if name and key in _READERS and (name != MAIN or key in _OF_MAIN):
                given[name] |= _READERS[key](value) if key == "volumes" else {key: _READERS[key](value)}
            elif key not in _WITHOUT_EFFECT and not (
                name == MAIN and key in _HARBORS and _HARBORS[key](value)
            ):
                problems.append(f"{where}: is not supported here")
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            why = str(error) if isinstance(error, _Refused) else f"{str(value)[:80]}: is not supported here"
            problems.append(f"{where}: {why}")
    services = {name: Service(**said) for name, said in given.items()}
    try:
        order = TopologicalSorter({n: each.depends_on for n, each in services.items()}).static_order()
        beside = {name: services[name] for name in order if name in services and name != MAIN}
    except CycleError as error:
        beside, problems = {}, [*problems, f"services: depend on each other: {', '.join(error.args[1])}"]
    return Compose(
        main=services.get(MAIN, Service()),
        services=beside,
        problems=[*problems, *_problems(services, raw, file)],
        without_effect=[where for _, key, _, where in keys if key in _WITHOUT_EFFECT],
    )


def _keys(said: Any, where: str) -> dict[Any, Any]:
    """The keys of a mapping that have a value. Raises _Refused: it is none."""
    if not isinstance(said or {}, dict):
        raise _Refused(f"{where}: {str(said)[:40]}: is no mapping of keys to values")
    return dict(said or {})


def _filled(value: Any, values: Mapping[str, str], keeps: bool) -> Any:
    """A document whose texts have values in place of variables; with `keeps` those without one stay."""

    def fill(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        found = "$" if name is None else values.get(name) or match[3]
        if found is None and not keeps:
            raise ConfigurationError(
                f"docker-compose.yaml: needs the variable {name}: give it in `variables`"
            )
        return match[0] if found is None else found

    if isinstance(value, dict):
        return {key: _filled(each, values, keeps) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, values, keeps) for each in value]
    return _VARIABLE.sub(fill, value) if isinstance(value, str) else value


def _problems(
    services: Mapping[str, Service], raw: Mapping[str, Mapping[str, Any]], file: Path
) -> Iterator[str]:
    """What is not in the task's folder or in the file, and what only several networks could have."""
    for name, service in services.items():
        paths = [("env_file", path) for path in service.env_file]
        if (build := service.build) is not None:
            places = str(Path(build["context"], build["dockerfile"])), build["context"]
            outside = (each for each in places if not _is_inside(file.parent / each, file.parents[1]))
            paths += [("build", next(outside, build["context"]))]
        logs = LOGS.values() if name == MAIN else ()  # they are there anyhow
        paths += [("volumes", source) for source in service.binds.values() if source not in logs]
        for key, path in paths:
            if not _is_inside(file.parent / path, file.parents[1]):
                yield f"services.{name}.{key}: {path}: is not in the task's folder"
            elif key == "env_file":
                try:
                    (file.parent / path).read_text(encoding="utf-8")
                except (OSError, UnicodeDecodeError) as error:
                    yield f"services.{name}.{key}: {path}: cannot be read as text: {error}"
        for other, condition in service.depends_on.items():
            known = services.get(other)
            if other != MAIN and (known is None or (condition == HEALTHY and known.healthcheck is None)):
                yield f"services.{name}.depends_on: {other}: is no service, or has no healthcheck to wait for"
    if len({repr(sorted(map(str, _items(said, "networks")))) for said in raw.values()}) > 1:
        yield "networks: all services share one network here"
    users: dict[str, str] = {}
    for name, said in raw.items():
        for each in (*_items(said, "ports"), *_items(said, "expose")):
            text = str(each.get("target") if isinstance(each, dict) else each)
            port = text.rpartition(":")[2].partition("/")[0]
            if users.setdefault(port, name) != name:
                yield f"services.{name}.ports: {port}: {users[port]} has it, and all share one network here"


def _is_inside(path: Path, folder: Path) -> bool:
    try:
        return path.exists() and path.resolve().is_relative_to(folder.resolve())
    except ValueError:
        return False


def _items(said: Mapping[str, Any], key: str) -> Iterable[Any]:
    return found if isinstance(found := said.get(key), list | dict) else ()


def _words(said: Any) -> list[str] | None:
    if isinstance(said, dict):
        raise ValueError
    return shlex.split(said) if isinstance(said, str) else said and [str(word) for word in said]


def _pairs(said: Any) -> dict[str, str | None]:
    for each in said.values() if isinstance(said, dict) else said:
        if isinstance(each, dict | list):
            raise _Refused(f"{str(each)[:40]}: is no text")
    if isinstance(said, list):
        parted = (str(each).partition("=") for each in said)
        return {name: text if is_set else None for name, is_set, text in parted}
    plain = {"True": "true", "False": "false"}
    return {name: None if text is None else plain.get(str(text), str(text)) for name, text in said.items()}


def _build(said: Any) -> dict[str, Any]:
    given = {"context": said} if isinstance(said, str) else said
    found = {"context": ".", "dockerfile": "Dockerfile", **given}
    _only(found, {"context", "dockerfile", "args", "target"})
    return {**found, "context": str(Path(found["context"])), "args": _pairs(found.get("args") or {})}


def _conditions(said: Any) -> dict[str, str]:
    found = {name: (said[name] or {}) if isinstance(said, dict) else {} for name in said}
    conditions = {name: each.get("condition", "service_started") for name, each in found.items()}
    _only(conditions.values(), {HEALTHY, "service_started"})
    return conditions


def _check(said: Any) -> Healthcheck | None:
    test, retries = said.get("test", ["NONE"]), said.get("retries", 3)
    times = _TIMES | {key: said[key] for key in said.keys() - {"test", "retries", "disable"}}
    kind, *words = ("CMD-SHELL", test) if isinstance(test, str) else test
    _only(times, _TIMES)
    _only([kind], {"CMD", "CMD-SHELL", "NONE"})
    if kind == "NONE" or said.get("disable"):
        return None
    command = shlex.join(words if kind == "CMD" else ("/bin/sh", "-c", *words))
    seconds = {f"{key}_sec": _seconds(key, said) for key, said in times.items()}
    return Healthcheck(command=command, retries=retries, **seconds)


def _seconds(key: str, said: Any) -> float:
    try:
        iso = re.sub(r"(\d+)ms", lambda ms: f"{int(ms[1]) / 1000:.3f}s", said)
        return _ISO.validate_python(f"PT{iso.upper()}").total_seconds()
    except (ValueError, TypeError):
        raise _Refused(f"{key}: {str(said)[:40]}: is no time such as 1m30s") from None


def _only(said: Iterable[Any], known: Container[str]) -> None:
    """Raises _Refused: something else is said."""
    if unknown := [each for each in said if each not in known]:
        raise _Refused(f"{str(unknown[0])[:40]}: is not supported here")


def _mounts(said: Any) -> dict[str, dict[str, str]]:
    """`binds` and `volumes`."""
    found: dict[str, dict[str, str]] = {"binds": {}, "volumes": {}}
    for each in said:
        if isinstance(each, dict):
            kind, source, target = each["type"], each["source"], each["target"]
            mode = "ro" if each.get("read_only") else "rw"
            if kind not in ("bind", "volume") or len(each) > 3 + ("read_only" in each):
                raise ValueError
        else:
            source, target, mode = (*each.split(":"), "rw")[:3]
        if mode not in ("ro", "rw"):
            raise ValueError
        if not source.startswith((".", "/", "~")):
            found["volumes"][target] = f"{source}:{mode}"
        else:
            found["binds"][target] = source
    return found


_HARBORS: Mapping[str, Callable[[Any], Any]] = {
    "image": lambda said: said == MAIN_IMAGE,
    "command": lambda said: _IDLE.fullmatch(" ".join(_words(said) or ())),
}
"""Whether what is said of the agent's box is what Harbor says itself."""
_READERS: Mapping[str, Callable[[Any], Any]] = {
    **{"image": str.strip, "build": _build, "command": _words, "entrypoint": _words, "environment": _pairs},
    **{"env_file": lambda said: [said] if isinstance(said, str) else list(map(Path, said)), "user": str},
    **{"depends_on": _conditions, "healthcheck": _check, "working_dir": str.strip, "volumes": _mounts},
}
