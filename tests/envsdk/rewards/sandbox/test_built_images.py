"""Images of Dockerfiles, built by bubblewrap out of this machine's own system."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.sandbox import Image, Limits, Root, SandboxError, open_backend
from envsdk.rewards.sandbox.bubblewrap import BubblewrapBackend
from envsdk.rewards.sandbox.images import build_image, named_image
from tests.envsdk.rewards.sandbox.boxes import said
from tests.envsdk.rewards.sandbox.rootfs import write_rootfs

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVERYTHING = """\
FROM python:3.12-slim AS base
ARG WORD=one
ENV APP=/app WORD=$WORD
WORKDIR $APP/src
COPY a.txt renamed.txt
COPY data ./data/
COPY --chmod=755 --chown=user:user a.txt script.sh /opt/tools/
RUN echo "$WORD $PWD $HOME" > /said && useradd --create-home someone && chown -R someone /app
RUN ["bash", "-c", "echo exec > /executed; rm /usr/bin/head"]
RUN <<EOF
#!/usr/bin/env python
open("/python", "w").write("python")
EOF
COPY <<EOF /etc/made
made of $WORD
EOF
FROM base
COPY --from=base /app/src/*.txt /out/
COPY --from=base --chmod=711 /said /said-again
COPY --from=base --chmod=711 /opt/tools /opt/chmod
ADD a.txt /added/
USER someone
ENV LAST=set
CMD ["never", "run"]
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BubblewrapBackend]:
    backend = new_backend(tmp_path_factory.mktemp("state") / "sandboxes")
    yield backend
    await backend.aclose()


def new_backend(state: Path, **settings: object) -> BubblewrapBackend:
    images = {"python:3.*": "host", "box": "host"}
    return BubblewrapBackend({"state_dir": state, "images": images, **settings})


@pytest.fixture
def context(tmp_path: Path) -> Path:
    folder = tmp_path / "context"
    (folder / "data/inner").mkdir(parents=True)
    (folder / "a.txt").write_text("a\n")
    (folder / "script.sh").write_text("#!/bin/sh\necho script\n")
    (folder / "data/inner/b.txt").write_text("b\n")
    return folder


async def built(backend: BubblewrapBackend, context: Path, dockerfile: str, **options: object) -> Image:
    (context / "Dockerfile").write_text(dockerfile)
    return await build_image(backend, context, **options)


async def printed(backend: BubblewrapBackend, image: Image, script: str, **options: object) -> str:
    sandbox = await backend.start(image)
    try:
        return said(await sandbox.exec(script, timeout_s=60, **options))
    finally:
        await sandbox.close()


async def test_an_image_holds_what_its_dockerfile_says(backend: BubblewrapBackend, context: Path) -> None:
    image = await built(backend, context, EVERYTHING, args={"WORD": "given"})
    assert image.workdir == "/app/src"
    assert (image.env["APP"], image.env["LAST"], image.network) == ("/app", "set", False)
    script = (
        "id -un; pwd; echo $HOME; cat /said /said-again /executed /python; echo; cat /etc/made renamed.txt "
        "data/inner/b.txt /out/renamed.txt /added/a.txt; /opt/tools/script.sh; "
        "type -P head || echo gone; stat -c %a /said-again /opt/chmod/a.txt"
    )
    expected = "someone\n/app/src\n/home/someone\ngiven /app/src /root\ngiven /app/src /root\nexec\npython\n"
    assert (
        await printed(backend, image, script)
        == expected + "made of given\na\nb\na\na\nscript\ngone\n711\n711"
    )
    assert await printed(backend, image, "id -u; touch /usr/bin/added", user="root") == "0"
    assert await printed(backend, image, "id -u", user="33") == "33"
    sandbox = await backend.start(image)
    assert "no such user" in (await sandbox.exec("true", timeout_s=60, user="nobody-here")).output
    await sandbox.write("/root/deep/file", b"x")
    assert await sandbox.read("/root/deep/file") == b"x"
    await sandbox.close()


def total_size(images: Path) -> int:
    return sum(int(file.read_text()) for file in images.glob("*/size"))


async def test_what_is_built_once_is_not_built_again(backend: BubblewrapBackend, context: Path) -> None:
    text = "FROM box\nRUN date +%N > /one\nCOPY a.txt /\nRUN date +%N > /two\n"
    first = await built(backend, context, text)
    stamps = (await printed(backend, first, "cat /one /two")).split()
    assert await built(backend, context, f"# said\n{text}LABEL x=y\nENTRYPOINT z\n") == first
    (context / "a.txt").write_text("changed\n")
    again = (await printed(backend, await built(backend, context, text), "cat /one /two")).split()
    assert again[0] == stamps[0]
    assert again[1] != stamps[1]


async def test_too_many_layers_are_refused_with_what_to_do(backend: BubblewrapBackend) -> None:
    image = await named_image(backend, "box")
    assert image.root is not None
    with pytest.raises(ConfigurationError, match="too many for one overlay: join"):
        await backend.start(replace(image, root=replace(image.root, layers=image.root.layers * 200)))


BUILD = """\
import asyncio, sys
from pathlib import Path
from envsdk.rewards.sandbox.bubblewrap import BubblewrapBackend
from envsdk.rewards.sandbox.images import build_image

async def main():
    backend = BubblewrapBackend({"state_dir": sys.argv[1], "images": {"box": "host"}})
    sandbox = await backend.start(await build_image(backend, Path(sys.argv[2])))
    print((await sandbox.exec("cat /one /two", timeout_s=60)).output)
    await backend.aclose()

asyncio.run(main())
"""


async def test_programs_that_build_at_once_share_one_build(context: Path, tmp_path: Path) -> None:
    (context / "Dockerfile").write_text("FROM box\nRUN sleep 0.2; date +%N > /one\nRUN date +%N > /two\n")
    state = tmp_path / "shared"
    command = [sys.executable, "-c", BUILD, str(state), str(context)]
    programs = [await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE) for _ in range(2)]
    outputs = {(await program.communicate())[0] for program in programs}
    assert [program.returncode for program in programs] == [0, 0]
    assert len(outputs) == 1
    assert not list((state / "images").glob("*.new"))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("RUN echo said; exit 3", "Dockerfile:3: RUN ended with code 3: said"),
        (
            "RUN apt-get install nothing-here; exit 3",
            r"(?s)RUN ended .*\n`host` has no package manager: name a",
        ),
        (
            "RUN for i in 1 2 3 4 5 6 7; do head -c 9M /dev/zero > /$i; sleep 0.3; done",
            "ended with `disk_limit`",
        ),
        ("ADD packed.tar.gz /x", "Dockerfile:3: ADD packed.tar.gz: archives are not unpacked"),
        ("COPY missing /x", "Dockerfile:3: COPY missing: there is no such file"),
        ("COPY --from=box /missing /x", "Dockerfile:3: COPY ended with code 1: there is no /missing"),
        ("COPY --from=other /x /x", "Dockerfile:3: there is no image 'other' here: `images`"),
        ("WORKDIR /etc/passwd/x", "Dockerfile:3: WORKDIR ended with code 1: mkdir"),
        ("USER nobody-here", "USER ended with code 1: id:"),
        ("FROM other", "Dockerfile:3: there is no image 'other' here: `images`"),
        ("VOLUME /x", "Dockerfile:3: VOLUME is not supported"),
    ],
)
async def test_what_fails_is_named_with_its_line_and_leaves_nothing(
    backend: BubblewrapBackend, context: Path, line: str, problem: str
) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        await built(backend, context, f"FROM box\n\n{line}\n", limits=Limits(disk_mb=40))
    assert not list((backend.settings.state_dir / "images").glob("*.new"))


async def test_the_network_is_there_only_where_the_settings_allow_it(
    backend: BubblewrapBackend, tmp_path: Path
) -> None:
    script = "tail -n +3 /proc/net/dev | wc -l"
    image = await named_image(backend, "box")
    assert await printed(backend, image, script) == "1"
    with pytest.raises(ConfigurationError, match="`network: true`"):
        await backend.start(replace(image, network=True))
    opened = new_backend(tmp_path / "state", network=True)
    image = replace(await named_image(opened, "box"), network=True)
    assert await printed(opened, image, script) == str(len(os.listdir("/sys/class/net")))
    resolver = Path("/etc/resolv.conf")
    assert await printed(opened, image, f"cat {resolver}") == resolver.read_text().strip()  # noqa: ASYNC240
    sandbox = await opened.start(image)
    with pytest.raises(ConfigurationError, match="images with a `root`"):
        await opened.start(Image(network=True))
    assert "busy" in (await sandbox.exec("mv /etc /moved", timeout_s=60)).output
    await opened.aclose()


async def test_layers_that_nobody_uses_are_deleted_beyond_the_limit(context: Path, tmp_path: Path) -> None:
    backend = new_backend(tmp_path / "state", images_mb=200)
    images = tmp_path / "state/images"
    (images / "of-a-dead-program.new/root").mkdir(parents=True)
    kept = await built(backend, context, "FROM box\nRUN head -c 20M /dev/urandom > /kept\n")
    sandbox = await backend.start(kept)
    first = await built(backend, context, "FROM box\nRUN head -c 20M /dev/urandom > /first\n")
    for number in range(9):
        await built(backend, context, f"FROM box\nRUN head -c 20M /dev/urandom > /{number}\n")
    assert total_size(images) <= 200 << 20
    assert not list(images.glob("*.new"))
    assert said(await sandbox.exec("stat -c %s /kept", timeout_s=60)) == str(20 << 20)
    with pytest.raises(SandboxError, match="build the image again"):
        await backend.start(first)
    await backend.aclose()


async def test_a_folder_with_a_root_file_system_is_a_base(
    context: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("root")
    write_rootfs(root.with_suffix(".tar"))
    shutil.unpack_archive(root.with_suffix(".tar"), root)
    backend = new_backend(tmp_path / "state", images={"mine:*": str(root), "*": str(tmp_path)})
    image = await built(
        backend, context, "FROM mine:1\nRUN echo x >> /usr/bin/env && python --version > /version\n"
    )
    printed_here = await printed(backend, image, "cat /version; ls /usr/bin/vim /work 2>&1 | wc -l")
    assert printed_here.endswith("2")
    assert not (root / "version").exists()
    with pytest.raises(ConfigurationError, match="no root file system"):
        await named_image(backend, "other")
    await backend.aclose()


@pytest.mark.skipif(shutil.which("adduser") is None, reason="Debian's adduser is not here")
async def test_debians_adduser_makes_a_user_with_a_home(backend: BubblewrapBackend, context: Path) -> None:
    dockerfile = "FROM box\nRUN adduser --disabled-password --gecos '' bob\nUSER bob\n"
    image = await built(backend, context, dockerfile)
    assert (await printed(backend, image, "id -un; echo $HOME; ls -A ~")).split()[:2] == ["bob", "/home/bob"]


async def test_files_are_copied_of_an_image_in_which_nothing_can_run(context: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    (tools / "share/inner").mkdir(parents=True)
    (tools / "uv").write_text("#!/bin/sh\necho uv $0\n")
    (tools / "uv").chmod(0o755)
    (tools / "uvx").symlink_to("uv")
    (tools / "share/inner/file").write_text("shared")
    (tools / "passwd").symlink_to("/etc/passwd")
    images = {"ghcr.io/*/uv:latest": tools, "box": "host"}
    backend = BubblewrapBackend({"state_dir": tmp_path / "state", "images": images})
    copies = (
        "FROM box\nCOPY --from=ghcr.io/astral-sh/uv:latest /uv /uvx /bin/\nCOPY --from=ghcr.io/a/uv:latest"
    )
    image = await built(backend, context, f"{copies} share /share\n")
    assert (
        await printed(backend, image, "uv; uvx; cat /share/inner/file")
        == "uv /usr/bin/uv\nuv /usr/bin/uvx\nshared"
    )
    for name, why in ("gone", "there is no such file"), ("passwd", "the link leads out of"):
        with pytest.raises(ConfigurationError, match=f"Dockerfile:3: COPY /?{name}: {why}"):
            await built(backend, context, f"{copies} /{name} /x\n")
    await backend.aclose()


async def test_other_backends_say_that_they_build_nothing(context: Path) -> None:
    backend = open_backend("unsandboxed", {"commands_may_do_anything_to_this_machine": True})
    (context / "Dockerfile").write_text("FROM box\n")
    with pytest.raises(ConfigurationError, match="`unsandboxed` builds no images"):
        await build_image(backend, context)
    with pytest.raises(ConfigurationError, match="there is no Dockerfile"):
        await build_image(backend, context, dockerfile="Other")
    for image, problem in (
        (Image(root=Root(layers=("x",))), "`root`"),
        (Image(network=True), "`network: true`"),
    ):
        with pytest.raises(ConfigurationError, match=problem):
            await backend.start(image)
    with pytest.raises(ConfigurationError, match="one user"):
        await (await backend.start(Image())).exec("true", timeout_s=9, user="root")
    await backend.aclose()
