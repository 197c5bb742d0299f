"""Runs tests inside a sandbox and writes a report that only this process can have written.

    python -P launch.py CONFIG        CONFIG: JSON, read once and deleted

Every line of the report is a record behind its keyed hash: kind, id, phase, outcome, seconds and message,
each in hex, so that no library that the repository could change takes part. The key is in CONFIG and, from
then on, in this process alone. The last record is the end of the session. The runner and its plug-ins are
imported before any folder of the repository is on `sys.path`; the process leaves without exit handlers.
"""

import hashlib
import importlib.util
import json
import os
import sys
from _thread import allocate_lock
from collections.abc import Callable

# Nothing of a newer Python than 3.6, annotations included: images have old interpreters.
from typing import Any


def write_records(path: str, key: bytes) -> "Callable[..., None]":
    """A function that appends one record to a new file at `path`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    write, blake2b, lock = os.write, hashlib.blake2b, allocate_lock()
    count = 0

    def record(
        kind: str, id: str = "", when: str = "", outcome: str = "", seconds: str = "0", message: str = ""
    ) -> None:
        nonlocal count
        fields = (kind, id, when, outcome, seconds, message)
        text = b" ".join([field.encode("utf-8", "replace").hex().encode() for field in fields])
        with lock:
            mac = blake2b(b"%d %s" % (count, text), key=key, digest_size=16).hexdigest()
            count += 1
            line = memoryview(mac.encode() + b" " + text + b"\n")
            while line:
                line = line[write(descriptor, line) :]

    return record


def load(folder: str, name: str) -> Any:
    """The module `NAME.py` in this folder, under a name that no repository has."""
    spec = importlib.util.spec_from_file_location(f"_envsdk_kit_{name}", os.path.join(folder, f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    path = sys.argv[1]
    with open(path) as file:
        config: dict[str, Any] = json.load(file)
    os.unlink(path)
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if folder not in ("", here, config["root"])]
    sys.path += config["site"]
    os.chdir(config["root"])
    os.environ.update(config["env"])
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join(config["python_path"] + config["site"])
    record = write_records(config["report"], bytes.fromhex(config.pop("key")))
    probes = load(here, "probes").install(record)
    run_tests = load(here, config["runner"] + "_run").run(config, record, probes)
    sys.path[:0] = config["python_path"]
    status = run_tests()
    record("end", outcome=str(status))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
