#!/usr/bin/env python3
"""Stands in for `docker`: records how it was called, and runs commands in bubblewrap instead of a container.

Everything is below the folder of this file: `calls.jsonl`, `containers/NAME/`, `images/NAME/`, and `fail`,
whose first line names a subcommand that is to fail with the second.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
CONTAINERS = HERE / "containers"
IMAGES = HERE / "images"
# fmt: off
VALUED = {
    "--name", "--network", "--cap-drop", "--security-opt", "--pids-limit", "--shm-size", "--memory",
    "--memory-swap", "--label", "--user", "--volume", "--env", "--filter", "--format", "--stop-signal",
}
BWRAP = [
    "bwrap", "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--die-with-parent",
    "--new-session", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin",
    "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64",
    "--proc", "/proc", "--dev", "/dev", "--clearenv", "--setenv", "PATH", "/usr/bin:/bin",
]
# fmt: on


def parse(arguments: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    options: dict[str, list[str]] = {}
    rest = list(arguments)
    while rest and rest[0].startswith("--"):
        name = rest.pop(0)
        options.setdefault(name, []).append(rest.pop(0) if name in VALUED else "")
    return options, rest


def refuse(message: str, code: int = 1) -> None:
    print(message, file=sys.stderr)
    raise SystemExit(code)


def files(name: str) -> Path:
    folder = CONTAINERS / name
    if not folder.is_dir():
        refuse(f"Error response from daemon: No such container: {name}")
    return folder


def run(options: dict[str, list[str]], rest: list[str]) -> None:
    folder = CONTAINERS / options["--name"][0]
    image = IMAGES / rest[0].replace(":", "_")
    if image.is_dir():
        shutil.copytree(image, folder / "files", symlinks=True)
    else:
        for name in "testbed", "tmp", "shm":
            (folder / "files" / name).mkdir(parents=True)
    labels = dict(label.split("=", 1) for label in options["--label"])
    (folder / "state.json").write_text(json.dumps({"labels": labels, "volumes": options.get("--volume", [])}))
    print("0123456789abcdef")


def execute(options: dict[str, list[str]], rest: list[str]) -> None:
    folder = files(rest[0])
    state = json.loads((folder / "state.json").read_text())
    shown = [("testbed", "/testbed"), ("tmp", "/tmp"), ("shm", "/dev/shm")]
    argv = list(BWRAP)
    for name, path in shown:
        argv += ["--bind", str(folder / "files" / name), path]
    for volume in state["volumes"]:
        source, path, mode = volume.rsplit(":", 2)
        assert mode == "ro"
        argv += ["--ro-bind", source, path]
    for variable in options.get("--env", []):
        argv += ["--setenv", *variable.split("=", 1)]
    os.execvp("bwrap", [*argv, "--", *rest[1:]])


def inspect(options: dict[str, list[str]], rest: list[str]) -> None:
    folder = files(rest[0])
    template = options["--format"][0]
    if template == "{{.State.Running}}":
        print("true")
    elif template == "{{.SizeRw}}":
        print(subprocess.check_output(["du", "-sb", folder / "files"], text=True).split()[0])
    else:
        assert template == "{{json .Config.Labels}}"
        print(json.dumps(json.loads((folder / "state.json").read_text())["labels"]))


def main() -> None:
    arguments = sys.argv[1:]
    with open(HERE / "calls.jsonl", "a") as calls:
        calls.write(json.dumps(arguments) + "\n")
    subcommand = arguments.pop(0)
    fail = (HERE / "fail").read_text().splitlines() if (HERE / "fail").exists() else []
    if fail and fail[0] == subcommand:
        refuse(fail[1])
    if subcommand == "container":
        assert arguments.pop(0) == "inspect"
        subcommand = "inspect"
    options, rest = parse(arguments)
    if subcommand == "run":
        run(options, rest)
    elif subcommand == "exec":
        execute(options, rest)
    elif subcommand == "inspect":
        inspect(options, rest)
    elif subcommand == "ps":
        print("\n".join(folder.name for folder in CONTAINERS.iterdir()))
    elif subcommand == "image":
        raise SystemExit(int(arguments[1].startswith("nosuch") or (HERE / "no-images").exists()))
    elif subcommand in ("images", "volume"):
        pass  # none has a label
    elif subcommand == "rm":
        shutil.rmtree(files(rest[0]))
    elif subcommand == "commit":
        shutil.copytree(files(rest[0]) / "files", IMAGES / rest[1].replace(":", "_"), symlinks=True)
    elif subcommand == "rmi":
        for image in rest:
            shutil.rmtree(IMAGES / image.replace(":", "_"))
    else:
        refuse(f"docker: '{subcommand}' is not a docker command.")


main()
