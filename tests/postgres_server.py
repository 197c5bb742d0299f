"""Runs a command beside a PostgreSQL server of its own, whose URL it finds in ENVSDK_POSTGRES.

    python -m tests.postgres_server pytest -m postgres tests

The server comes from the system's packages (Debian and Ubuntu: installed if it is missing), lies in a
temporary folder, listens on loopback and ends with the command.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from envsdk.base.net.rendezvous import free_port


def programs() -> Path:
    """The folder of `initdb` and `pg_ctl`, which packages keep out of PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda each: int(each.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    if on_path is None:
        raise FileNotFoundError("initdb")
    return Path(on_path).resolve().parent


def install() -> None:
    """From the system's packages, with the server that they would start by themselves left off."""
    if shutil.which("apt-get") is None or os.getuid() != 0:
        sys.exit("there is no PostgreSQL server: install your system's package (apt-get install postgresql)")
    Path("/etc/postgresql-common").mkdir(exist_ok=True)
    Path("/etc/postgresql-common/createcluster.conf").write_text("create_main_cluster = false\n")
    subprocess.run(["apt-get", "update", "-q"], check=True)
    subprocess.run(["apt-get", "install", "-q", "-y", "--no-install-recommends", "postgresql"], check=True)


class Server:
    """One server, which may be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port("127.0.0.1")
        self.url = f"postgresql://envsdk@127.0.0.1:{self.port}/postgres"
        # It refuses to run as root; its packages bring a user.
        self._as = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
        if self._as:
            shutil.chown(folder, "postgres", pwd.getpwnam("postgres").pw_gid)
        self._run("initdb", "-D", str(folder / "data"), "-U", "envsdk", "--auth=trust", "--no-sync")

    def start(self) -> None:
        options = f"-c listen_addresses=127.0.0.1 -p {self.port} -k {self.folder}"
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-w", "-o", options, "-l", self.log, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-w", "-m", "immediate", "stop")

    @property
    def log(self) -> str:
        return str(self.folder / "log")

    def _run(self, program: str, *args: str) -> None:
        command = [*self._as, str(programs() / program), *args]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self.folder)


@contextmanager
def running() -> Iterator[Server]:
    """A server in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="envsdk-postgres-") as folder:
        server = Server(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()


def main(command: Sequence[str]) -> int:
    """The command's exit code."""
    try:
        programs()
    except FileNotFoundError:
        install()
    with running() as server:
        return subprocess.call(command, env={**os.environ, "ENVSDK_POSTGRES": server.url})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
