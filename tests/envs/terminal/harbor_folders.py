"""Harbor tasks made for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

FILES = {
    "task.toml": "",
    "instruction.md": "Do it.\n",
    "environment/Dockerfile": "FROM python:3.12\nWORKDIR /app\n",
    "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
    "solution/solve.sh": "true\n",
}
GET = "python3 -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:8123/a\").read().decode())'"
UP = "until (: < /dev/tcp/127.0.0.1/8123) 2> /dev/null; do sleep 0.05; done"
SERVE = f"""
cd /srv && echo served > a
setsid python3 -m http.server 8123 --bind 127.0.0.1 > /tmp/log 2>&1 &
{UP}
"""
PAYS = "echo $((1 - $?)) > /logs/verifier/reward.txt"
IN_PLACE: dict[str, str | None] = {
    "task.toml": '[verifier]\nenvironment_mode = "shared"\ntimeout_sec = 30',
    "tests/test.sh": f'[ "$({GET})" = served ]\n{PAYS}\n',
    "solution/solve.sh": SERVE,
}
SEPARATE: dict[str, str | None] = {
    "task.toml": f"""
schema_version = "1.4"
artifacts = ["/app/out"]
[verifier]
environment_mode = "separate"
timeout_sec = 30
[[verifier.collect]]
command = '''{GET} > /logs/artifacts/got'''
timeout_sec = 10
""",
    "tests/test.sh": f'[ "$(cat /logs/artifacts/got)" = served ]\n{PAYS}\n',
    "solution/solve.sh": SERVE,
}


def write_task(folder: Path, files: Mapping[str, str | None] | None = None) -> Path:
    """A task with these files besides FILES; None leaves one of those out."""
    for name, text in {**FILES, **(files or {})}.items():
        if text is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    return folder
