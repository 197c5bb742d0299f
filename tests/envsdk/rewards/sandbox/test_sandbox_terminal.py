"""Terminals: keys, the emulator against whatever programs print, and real programs in a sandbox."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.sandbox import ExecEnd, Image, open_backend
from envsdk.rewards.sandbox.bubblewrap.sandbox import BubblewrapSandbox
from envsdk.rewards.sandbox.terminal import Screen, Terminal, open_terminal
from envsdk.rewards.sandbox.terminal.emulator import MAX_MARKS, MAX_STRING, Emulator
from envsdk.rewards.sandbox.terminal.keys import NAMES, bytes_of, is_key
from envsdk.rewards.sandbox.terminal.terminal import MAX_KEYS_BYTES, MAX_PENDING_BYTES, shortened
from tests.envsdk.rewards.sandbox.boxes import Start, processes_of, said

WAIT_S = 60.0
"""More than a busy machine needs: the shell's prompt ends the wait."""


@pytest.mark.parametrize(
    ("keys", "sent"),
    [
        (["ls", "Enter"], b"ls\r"),
        (["C-c", "C-D", "C-["], b"\x03\x04\x1b"),
        (["M-x", "S-Tab", "F1", "F5", "F12"], b"\x1bx\x1b[Z\x1bOP\x1b[15~\x1b[24~"),
        (["Up", "enter", "C-cc", "ü"], b"\x1b[Aenter" + b"C-cc" + "ü".encode()),
        (["\ud800"], b"?"),
    ],
)
def test_names_are_keys_and_all_else_is_typed(keys: list[str], sent: bytes) -> None:
    assert bytes_of(keys, application=False) == sent


def test_arrows_have_the_form_that_the_program_asked_for() -> None:
    emulator = Emulator(5, 10)
    assert not emulator.wants_application_keys
    emulator.feed(b"\x1b[?1h")
    assert emulator.wants_application_keys
    assert bytes_of(["Up"], application=True) == b"\x1bOA"
    assert all(is_key(name) for name in NAMES if " " not in name)


def shown(*printed: str | bytes, rows: int = 4, columns: int = 12) -> Emulator:
    emulator = Emulator(rows, columns)
    for piece in printed:
        emulator.feed(piece if isinstance(piece, bytes) else piece.encode())
    return emulator


@pytest.mark.parametrize(
    ("printed", "text"),
    [
        ("one\r\ntwo", "one\ntwo\n\n"),
        ("日本x\r\n\x1b[1;2HX", " X本x\n\n\n"),
        ("e\u0301" + "\u0301" * 99, "é" + "\u0301" * (MAX_MARKS - 1) + "\n\n\n"),
        ("a\u200bb\x7fc\x9b2Jd", "abc2Jd\n\n\n"),
        ("a\x1b]0;title\x07b\x1bP+q54\x1b\\c\x1b_x\x1b\\d", "abcd\n\n\n"),
        ("main\x1b[?1049h\x1b[Hother", "other\n\n\n"),
        ("main\x1b[?1049h\x1b[Hother\x1b[?1049l!", "main!\n\n\n"),
        ("wide\x1b[?3hx", "widex\n\n\n"),
        ("a\x1b[>4;2mb\x1b[?2026$pc\x1b[38:2::1:2:3md", "abcd\n\n\n"),
        ("x\x1b[5b\x1b[9999999999999Cy", "x          y\n\n\n"),
        ("\x1b]" + "x" * (MAX_STRING + 3) + "\x1b[2J\x1b[Hafter", "after\n\n\n"),
        (b"\xff\xfeok", "\ufffd\ufffdok\n\n\n"),
    ],
)
def test_the_screen_shows_what_a_terminal_would(printed: str | bytes, text: str) -> None:
    assert shown(printed).text == text


def test_questions_are_answered_and_titles_are_not_shown() -> None:
    emulator = shown("\x1b[2;3H")
    assert emulator.feed(b"\x1b[6n") == b"\x1b[2;3R"
    assert len(emulator.feed(b"\x1b[6n" * 10_000)) <= MAX_STRING
    emulator.feed("\x1b]2;my tïtle\x1b\\".encode())
    assert emulator.text.split() == []


LEADS = [b"\x1b[", b"\x1b[?", b"\x1b[>", b"\x1b]", b"\x1bP", b"\x1b(", b"\x1b#", b"\x1b%", b"\xc2\x9b"]
WHOLE = [
    *(b"\x1b", b"\x1b7", b"\x1b8", b"\x1bc", b"\x1bM", b"\n", b"\r", b"\t", b"\x08", b"\x1b[?1049h"),
    *(b"\x1b[?1049l", "漢".encode(), "é".encode(), b"\xcc\x81", b"\x1b[9999;9999H", b"\x1b[4h", b"\x1b[?7l"),
    b"\x1b[9999L",
]
SEQUENCES = st.one_of(
    st.binary(max_size=30),
    st.text(max_size=20).map(lambda text: text.encode("utf-8", "replace")),
    st.tuples(
        st.sampled_from(LEADS),
        st.from_regex(rb"[0-9;:]{0,12}", fullmatch=True),
        st.binary(min_size=1, max_size=1),
    ).map(b"".join),
    st.sampled_from(WHOLE),
)


@given(st.lists(SEQUENCES, max_size=30), st.data())
def test_any_output_is_shown_on_a_screen_of_its_size_however_it_arrives(
    printed: list[bytes], data: st.DataObject
) -> None:
    whole = b"".join(printed)
    emulator = shown(whole)
    lines = emulator.text.split("\n")
    assert len(lines) == 4
    assert all(len(line) <= 12 * (1 + MAX_MARKS) for line in lines)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", emulator.text)
    cut = data.draw(st.integers(0, len(whole)))
    again = shown(whole[:cut], whole[cut:])
    assert again.text == emulator.text
    assert again.feed(b"\x1b\\\x1b[6n")[-9:] == emulator.feed(b"\x1b\\\x1b[6n")[-9:], "the cursors"


@settings(max_examples=20)
@given(st.lists(SEQUENCES, max_size=20), st.sampled_from([b"", b"\x1b[?1049h", b"\x1b[?1049l"]))
def test_what_is_left_out_of_a_flood_does_not_decide_on_which_screen_it_ends(
    printed: list[bytes], switch: bytes
) -> None:
    flood = b"".join(printed) + b"\x18" + switch + b"line\r\n" * 15_000
    short = shortened(flood)
    assert len(short) <= MAX_PENDING_BYTES
    assert switch in short
    assert "line" in shown(short).text
    assert shortened(b"x" * MAX_PENDING_BYTES) == b"x" * MAX_PENDING_BYTES
    assert len(shortened(b"\x1b[?1049h" * 99_999)) <= MAX_PENDING_BYTES


def test_an_unfinished_sequence_takes_no_more_than_its_share() -> None:
    emulator = shown()
    for printed in "\x1b]0;" + "x" * 100_000, "\x1b[" + "1" * 100_000, "\x1bP" * 10_000:
        emulator.feed(printed.encode())
        assert len(emulator._unfinished) <= MAX_STRING + 3
    emulator.feed(b"\x1bc")
    assert emulator.text == "\n\n\n"


@pytest_asyncio.fixture(loop_scope="module")
async def terminal(sandbox: BubblewrapSandbox) -> AsyncIterator[Terminal]:
    terminal = await open_terminal(sandbox, rows=12, cols=60)
    yield terminal
    await terminal.close()


in_sandbox = pytest.mark.asyncio(loop_scope="module")


async def until_shown(terminal: Terminal, pattern: str, *keys: str) -> Screen:
    """Press keys and wait for what a program, which gives no sign of its own, shows."""
    screen = await terminal.send(keys, 0.05)
    async with asyncio.timeout(WAIT_S):
        while not re.search(pattern, screen.text, re.MULTILINE):
            screen = await terminal.send((), 0.05)
    return screen


@in_sandbox
async def test_a_command_is_shown_once_it_has_ended(terminal: Terminal, sandbox: BubblewrapSandbox) -> None:
    first = await terminal.send((), 0)
    assert first.text.rstrip().endswith("$")
    screen = await terminal.send(["sleep 0.3; echo so$((40 + 2)); stty size", "Enter"], WAIT_S)
    assert screen.text.split("\n")[1:3] == ["so42", "12 60"]
    assert not screen.ended
    screen = await terminal.send(["export KEPT=1; cd /tmp", "Enter", "echo $KEPT$PWD", "Enter"], WAIT_S)
    assert "\n1/tmp\n" in screen.text
    screen = await terminal.send(["PS1=$(sleep 0.3; echo new)'> '; wait; read -t 0.3 x", "Enter"], WAIT_S)
    assert screen.text.rstrip().endswith("new>")
    screen = await terminal.send(["exit 3", "Enter"], WAIT_S)
    assert screen.ended
    assert terminal.result is not None
    assert (terminal.result.reason, terminal.result.returncode) == (ExecEnd.EXIT, 3)
    assert (await terminal.send(["ls", "Enter"], 1)).ended
    assert said(await sandbox.exec("echo after", timeout_s=60)) == "after"


@in_sandbox
async def test_programs_that_draw_their_screen_are_driven_by_keys(terminal: Terminal) -> None:
    await until_shown(terminal, "~", "vim -u NONE /tmp/x.py", "Enter")
    await until_shown(terminal, "^print\\('日本'\\)", "i", "print('日本')", "Escape")
    screen = await terminal.send([":wq", "Enter"], WAIT_S)
    assert "~" not in screen.text
    assert "日本" in (await terminal.send(["cat /tmp/x.py", "Enter"], WAIT_S)).text
    await until_shown(terminal, "^1\n2\n", "seq 500 | less", "Enter")
    await until_shown(terminal, "^500\n", "G")
    await until_shown(terminal, "^490\n", "Up", "PageUp", "PageDown", "Down", "g", "490g")
    assert "500" not in (await terminal.send(["q"], WAIT_S)).text.replace("seq 500", "")
    await until_shown(terminal, "^>>>$", "python -q", "Enter")
    await until_shown(terminal, "^45$", "sum(range(10))", "Enter")
    await until_shown(terminal, r"^\.\.\.$", "while True: pass", "Enter")
    await terminal.send(["Enter"], 0.1)
    await until_shown(terminal, "KeyboardInterrupt\n>>>$", "C-c")
    assert (await terminal.send(["C-d"], WAIT_S)).text.rstrip().endswith("$")
    await until_shown(terminal, "PID", "top -d 1", "Enter")
    await terminal.send(["q"], WAIT_S)


@in_sandbox
async def test_too_many_keys_are_refused(terminal: Terminal) -> None:
    with pytest.raises(ValueError, match="too many"):
        await terminal.send(["x" * (MAX_KEYS_BYTES + 1)], 1)


@in_sandbox
async def test_a_flood_is_shown_and_interrupted(terminal: Terminal) -> None:
    screen = await terminal.send(["yes 0123456789 | head -c 30M; echo the end", "Enter"], WAIT_S)
    assert screen.text.rstrip().split("\n")[-2].endswith("the end")
    assert "0123456789" in (await terminal.send(["yes 0123456789", "Enter"], 0.5)).text
    assert len(terminal._pending) <= MAX_PENDING_BYTES
    assert (await terminal.send(["C-c"], WAIT_S)).text.rstrip().endswith("$")
    screen = await terminal.send(["head -c 200000 /dev/urandom; reset; echo sane", "Enter"], WAIT_S)
    assert "sane" in (await terminal.send(["C-c", "C-u", "echo sane", "Enter"], WAIT_S)).text


@in_sandbox
async def test_keys_interrupt_also_where_a_script_has_started_this_program_in_its_background(
    start: Start,
) -> None:
    """Such a program ignores interrupts, and its children would."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        terminal = await open_terminal(await start())
    finally:
        signal.signal(signal.SIGINT, before)
    said = (await terminal.send(["grep SigIgn /proc/self/status", "Enter"], WAIT_S)).text
    await terminal.close()
    ignored = re.search(r"SigIgn:\s*([0-9a-f]+)", said)
    assert ignored
    assert not int(ignored[1], 16) >> (signal.SIGINT - 1) & 1


@in_sandbox
async def test_closing_ends_all_that_runs_in_it(start: Start) -> None:
    sandbox = await start()
    terminal = await open_terminal(sandbox)
    await terminal.send(["sleep 1000 & sleep 1000", "Enter"], 0.3)
    waiting = asyncio.create_task(sandbox.exec("ps ax | grep -c '[s]leep'; id -u", timeout_s=60))
    await terminal.close()
    await terminal.close()
    assert (await waiting).output == "0\n1000\n"
    assert processes_of(sandbox.shared.lease) == []
    assert terminal.result is None
    again = await open_terminal(sandbox)
    assert "python" in (await until_shown(again, "^python", "echo pyth''on", "Enter")).text
    await again.close()
    await sandbox.close()


@in_sandbox
async def test_a_sandbox_without_terminals_says_so(sandbox: BubblewrapSandbox) -> None:
    backend = open_backend("unsandboxed", {"commands_may_do_anything_to_this_machine": True})
    plain = await backend.start(Image())
    with pytest.raises(ConfigurationError, match="no terminal"):
        await open_terminal(plain)
    await backend.aclose()
    with pytest.raises(ConfigurationError, match="one user"):
        await open_terminal(sandbox, user="root")
