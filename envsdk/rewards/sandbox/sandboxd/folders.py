"""Folders of a client's machine, sent once: what its images show as trees and binds.

    unknown --PUT /envsdk/folders/DIGEST--> kept --many newer ones, in no sandbox--> deleted

E2B's protocol has no such thing; clients of ours use it where it is there.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import IO

from envsdk.rewards.sandbox.bubblewrap import leases
from envsdk.rewards.sandbox.contract import Image
from envsdk.rewards.sandbox.sandboxd.refused import Refused
from envsdk.rewards.sandbox.threads import in_thread

FOLDERS_KEY = "envsdk_folders"
"""Key of metadata: `{"tree": NAME, "binds": {PLACE INSIDE: NAME}}` as JSON; a name is a digest, with `/file`
where it stands for a single file."""
KEPT = 256
MAX_BYTES = 8 << 30
_NAME = re.compile(r"([0-9a-f]{64})(/file)?")


class Folders:
    """Those of one server, apart for each token."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._used: dict[Path, None] = {}
        """In the order of their last use."""

    def find(self, token: str, name: str) -> Path:
        """Raises Refused: it was not sent, or is gone."""
        parts = _NAME.fullmatch(name)
        place = self._root / token / (parts[1] if parts else "")
        if parts is None or place not in self._used:
            raise Refused(404, f"folder {name} is not here: send it first")
        self._used[place] = self._used.pop(place)
        return place / "file" if parts[2] else place

    def shown(self, token: str, image: Image, asked: str | None) -> Image:
        """`image` with what a client's metadata asks for. Raises Refused."""
        try:
            wanted = json.loads(asked or "{}")
            tree, binds = wanted.get("tree"), dict(wanted.get("binds") or {})
        except (ValueError, TypeError, AttributeError) as error:
            raise Refused(400, f"metadata {FOLDERS_KEY}: {error}") from error
        return replace(
            image,
            tree=self.find(token, str(tree)) if tree else image.tree,
            binds={str(inside): self.find(token, str(name)) for inside, name in binds.items()},
        )

    async def keep(
        self, token: str, name: str, content: AsyncIterator[bytes], in_use: Iterable[Path]
    ) -> None:
        """Unpack a tar archive whose SHA-256 is `name`. Raises Refused: it is another one, or none."""
        with tempfile.TemporaryFile(dir=self._root) as archive:
            digest = hashlib.sha256()
            async for chunk in content:
                digest.update(chunk)
                await asyncio.to_thread(archive.write, chunk)
                if archive.tell() > MAX_BYTES:
                    raise Refused(413, f"the archive is longer than {MAX_BYTES} bytes")
            if digest.hexdigest() != name:
                raise Refused(400, f"the archive's SHA-256 is {digest.hexdigest()}, not {name}")
            archive.seek(0)
            await in_thread(self._unpack, archive, self._root / token / name)
        idle = [each for each in self._used if not {each, each / "file"} & {*in_use}]
        for oldest in idle[: max(0, len(self._used) - KEPT)]:
            del self._used[oldest]
            await in_thread(leases.delete, oldest)

    def _unpack(self, archive: IO[bytes], place: Path) -> None:
        made = Path(tempfile.mkdtemp(dir=self._root))
        made.chmod(0o755)
        tar = ["tar", "--extract", "--no-same-owner", "--preserve-permissions", "--directory", str(made)]
        done = subprocess.run(tar, stdin=archive, capture_output=True, check=False)
        if done.returncode or place in self._used:
            leases.delete(made)
        if done.returncode:
            raise Refused(400, f"the body is no tar archive: {done.stderr.decode(errors='replace')[:500]}")
        if place not in self._used:
            place.parent.mkdir(exist_ok=True)
            made.rename(place)
            self._used[place] = None
