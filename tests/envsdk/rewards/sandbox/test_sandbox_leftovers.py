"""What a comparison leaves out of a tree that an agent has worked in."""

from __future__ import annotations

import pytest

from envsdk.envs.swe.evaluator.stripping import AddedFile, left_out
from envsdk.envs.swe.tasks.patches import parse, sections
from envsdk.rewards.sandbox.bubblewrap.sandbox import BubblewrapSandbox
from envsdk.rewards.sandbox.contract import MAX_ADDED_BYTES, MAX_ADDED_FILES

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="module")]

LEAVES = r"""
mkdir -p .venv/bin .venv/lib build/html pkg/new node_modules/x 'with space' ;
: > .venv/pyvenv.cfg; : > .venv/bin/python
for i in $(seq 1500); do echo $i > build/html/$i.html; done
echo one > pkg/new/__init__.py; echo '{}' > pkg/new/data.json; echo x > node_modules/x/index.js
echo x > 'with space/ a '; echo x > '@'; echo x > '$(touch broken)'; echo x > 'a[0]'
ln -s /etc/passwd link; mkfifo fifo; echo secret > closed; chmod 000 closed
head -c 9000000 /dev/zero > big.bin
git init -q nested; echo x > nested/x.py; git init -q tests; echo '# more' >> tests/test_lib.py
"""


async def test_a_comparison_keeps_what_a_fix_may_need_and_leaves_the_rest(sandbox: BubblewrapSandbox) -> None:
    done = await sandbox.exec(LEAVES, timeout_s=120)
    assert done.ok, done.output
    patch = await sandbox.diff()
    paths = {path for found in parse(patch) for path in found.paths}
    needed = {
        "tests/test_lib.py",
        "pkg/new/__init__.py",
        "pkg/new/data.json",
        "with space/ a ",
        "a[0]",
        "link",
    }
    odd = {"@", "$(touch broken)"}
    assert needed | odd <= paths
    assert not {path for path in paths if path.startswith((".venv", "node_modules", "nested"))}
    assert not paths & {"big.bin", "fifo", "closed", "broken"}
    assert len([part for part in sections(patch) if part.added is not None]) == MAX_ADDED_FILES


async def test_a_comparison_leaves_out_what_grading_would(sandbox: BubblewrapSandbox) -> None:
    files = {
        f"{top}/{number}.{kind}": 10 + number for top in "ab" for number in range(350) for kind in ("py", "x")
    }
    files |= {f"c/{number}.txt": MAX_ADDED_BYTES // 7 for number in range(9)}
    script = "mkdir a b c\n" + "".join(f"truncate -s {size} {path}\n" for path, size in files.items())
    await sandbox.exec(script, timeout_s=120)
    paths = {part.added for part in sections(await sandbox.diff())}
    dropped = left_out(AddedFile(path=path, num_bytes=size, num_lines=1) for path, size in files.items())
    assert paths == files.keys() - dropped
    assert dropped
