"""A hub on this machine: what `snapshot_download` asks for, over HTTP."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

COMMIT = "a" * 40


@contextmanager
def hub(folders: dict[str, Path]) -> Iterator[tuple[str, list[str]]]:
    """Serves folders by name, data sets as `datasets/NAME`; yields the address, and what was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            path = self.path.partition("?")[0]
            asked.append(path)
            for name, folder in folders.items():
                of_api = name if name.startswith("datasets/") else f"models/{name}"
                files = {
                    str(file.relative_to(folder)): file
                    for file in sorted(folder.rglob("*"))
                    if file.is_file()
                }
                if path.startswith(f"/api/{of_api}/tree/"):
                    tree = [
                        {"type": "file", "path": path, "size": file.stat().st_size, "oid": _etag(file)}
                        for path, file in files.items()
                    ]
                    return self._send(json.dumps(tree).encode(), "", with_body)
                if path.startswith(f"/api/{of_api}"):
                    about = {
                        "id": name,
                        "sha": COMMIT,
                        "siblings": [{"rfilename": path} for path in files],
                    }
                    return self._send(json.dumps(about).encode(), "", with_body)
                if path.startswith(f"/{name}/resolve/"):
                    file = files[path.removeprefix(f"/{name}/resolve/").partition("/")[2]]
                    return self._send(file.read_bytes(), _etag(file), with_body)
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _send(self, content: bytes, etag: str, with_body: bool) -> None:
            self.send_response(200)
            if etag:
                self.send_header("ETag", f'"{etag}"')
                self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if with_body:
                self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _etag(file: Path) -> str:
    return hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest()
