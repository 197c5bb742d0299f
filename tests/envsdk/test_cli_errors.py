"""The error boundary: one message, the right exit code, and no failed run exits 0."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest
import typer

from envsdk import cli, train
from envsdk.base.display.command_line import run_app, run_command
from envsdk.cli import main
from envsdk.contracts.failures import (
    ConfigurationError,
    EngineError,
    EnvsdkError,
    RolloutStalled,
    StorageError,
    TrainerError,
)
from tests.by_day import by_day


def raising(error: BaseException) -> Callable[[], int]:
    @run_command
    def command() -> None:
        raise error

    return command


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


class RemoteError(Exception):
    """As Ray does it: a traceback for a text, the original in `cause`."""

    def __init__(self, cause: Exception) -> None:
        super().__init__("ray::Actor.method()\n  File ...\nmany lines")
        self.cause = cause


class RemoteConfigurationError(RemoteError, ConfigurationError):
    """Ray's copy is of the original's class, too."""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError("seed: wrong"), 2),
        (EngineError("seed: wrong"), 1),
        (StorageError("seed: wrong"), 1),
        (TrainerError("seed: wrong"), 1),
        (RolloutStalled("seed: wrong"), 1),
        (RemoteError(ConfigurationError("seed: wrong")), 2),
        (RemoteConfigurationError(ConfigurationError("seed: wrong")), 2),
        (caused(RuntimeError("outer"), TrainerError("seed: wrong")), 1),
        (typer.BadParameter("seed: wrong"), 2),
    ],
)
def test_what_the_user_can_mend_is_one_message_and_its_exit_code(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert raising(error)() == code
    captured = capsys.readouterr()
    assert captured.err.replace("Invalid value: ", "") == "error: seed: wrong\n"
    assert captured.out == ""


def test_a_package_of_an_extra_that_is_missing_is_named_with_the_extra(
    capsys: pytest.CaptureFixture[str],
) -> None:
    missing = ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")
    assert raising(RemoteError(missing))() == 2
    assert capsys.readouterr().err == "error: torch is not installed: pip install 'envsdk[train]'\n"
    assert raising(ModuleNotFoundError("No module named 'mine'", name="mine"))() == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["train", "agentic_async.yaml"],
        ["evaluate", "agentic_async.yaml"],
        ["sft", "--data", "chats.jsonl", "--out", "cloned"],
    ],
)
def test_what_a_command_needs_is_asked_for_before_it_begins(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "envsdk.base.settings.extras.find_spec", lambda name: None if name == "torch" else name
    )
    assert main(command) == 2
    assert "needs torch, not installed here: pip install 'envsdk[train]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("example", "module", "extra"),
    [
        ("agentic_vllm_async.yaml", "vllm", "vllm"),
        ("agentic_megatron_async.yaml", "megatron", "megatron"),
        ("agentic_async.yaml", "tensorboard", "train"),
    ],
)
def test_what_the_plug_ins_of_a_run_need_is_asked_for_before_it_begins(
    example: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "envsdk.base.settings.extras.find_spec", lambda name: None if name == module else name
    )
    assert main(["train", example]) == 2
    missing = f"this run needs {module}, not installed here: pip install 'envsdk[{extra}]'"
    assert missing in capsys.readouterr().err
    for explaining in (["train", example, "--explain"], ["explain", example]):
        assert main(explaining) == 0
        before_it_trains = capsys.readouterr().out.rpartition("Before this trains here")[2]
        assert missing in " ".join(before_it_trains.split())


@pytest.mark.parametrize(
    ("arguments", "module", "extra"),
    [
        (["rlvr_smollm2.yaml"], "math_verify", "rlvr"),
        (["rlvr_smollm2.yaml", "rewards.math.worker_cls=ifeval"], "langdetect", "rlvr"),
        (["agentic_sync.yaml", "actor_train.strategy_args.strategy_config.lora={rank: 8}"], "peft", "lora"),
        (["rlvr_explorer.yaml"], "sqlalchemy", "train"),
        (["rlvr_explorer.yaml", "mode=serve"], "uvicorn", "view"),
    ],
)
def test_explaining_says_what_the_settings_of_a_run_need_and_is_not_installed(
    arguments: list[str],
    module: str,
    extra: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        "envsdk.base.settings.extras.find_spec", lambda name: None if name == module else name
    )
    assert main(["train", *arguments, "--explain"]) == 0
    notes = " ".join(capsys.readouterr().out.rpartition("Before this trains here")[2].split())
    assert f"needs {module}, not installed here: pip install 'envsdk[{extra}]'" in notes


@pytest.mark.parametrize("error", [KeyboardInterrupt(), typer.Abort()])
def test_an_interrupt_exits_130(error: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    assert raising(error)() == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize("forwarded", [False, True])
def test_a_command_that_is_interrupted_says_so_once(
    forwarded: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("envsdk.config.load_config", interrupted)
    assert (main(["train", "agentic_async.yaml"]) if forwarded else train.main(["x.yaml"])) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EDQUOT, "free space"),
        (errno.EADDRINUSE, "choose another port"),
        (errno.EMFILE, "ulimit"),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_the_operating_system_refusing_names_the_file_and_what_to_do(
    number: int, advice: str, wrapped: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    error: Exception = OSError(number, os.strerror(number), "runs/x/metrics.jsonl")
    if wrapped:
        error = RemoteError(caused(RuntimeError("in an actor"), error))
    assert raising(error)() == 1
    message = capsys.readouterr().err
    assert message.startswith("error: runs/x/metrics.jsonl: ")
    assert advice in message
    assert message.count("\n") == 1


def test_a_database_that_cannot_be_written_is_no_bug_and_a_wrong_query_is_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @run_command
    def query(sql: str) -> None:
        with contextlib.closing(sqlite3.connect(":memory:")) as database:
            database.execute("PRAGMA max_page_count = 1")
            database.execute(sql)

    assert query("CREATE TABLE a (b)") == 1
    assert capsys.readouterr().err == (
        "error: database or disk is full: free some space, or set ENVSDK_CACHE to a folder on another disk\n"
    )
    assert query("SELECT b FROM nowhere") == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_bug_shows_its_traceback_and_asks_to_report_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert raising(ZeroDivisionError("three over nothing"))() == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Traceback")
    assert "ZeroDivisionError: three over nothing" in lines
    assert "please report" in lines[-1]


@pytest.mark.parametrize(("result", "code"), [(None, 0), (0, 0), (3, 3)])
def test_a_command_that_returns_sets_the_exit_code(result: int | None, code: int) -> None:
    assert run_command(lambda: result)() == code


def test_a_command_may_exit_by_itself() -> None:
    app = typer.Typer()

    @app.command()
    def command() -> None:
        raise typer.Exit(7)

    assert run_app(app, [], name="test") == 7


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["trian"], "train"),
        (["train"], "FILE"),
        (["train", "agentic_async.yaml", "--explian"], "--explian"),
        (["train", "agentic_async.yaml", "--max_steps=3"], "without dashes: max_steps=VALUE"),
        (["evaluate", "Sokoban", "--num_boxes", "2"], "without dashes: num_boxes=VALUE"),
        (["collect", "Sokobann"], "did you mean `envsdk/Sokoban-v1`?"),
        (["train", "no_such.yaml"], "agentic_async.yaml"),
        (["train", "agentic_async.yaml", "max_stepz=3"], "`max_steps`"),
        (["explain", "agentic_async.yaml", "rollout_batch_size=63"], "rollout_batch_size (override)"),
    ],
)
def test_a_wrong_command_line_exits_2_and_says_what_was_meant(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert says in message
    assert "Traceback" not in message


COMMANDS = ["train", "collect", "evaluate", "report", "explain", "envs"]


@pytest.mark.parametrize("argv", [["envs"], ["--help"], *([command, "--help"] for command in COMMANDS)])
def test_help_and_lists_exit_0(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("name", [*cli._COMMANDS, "explain"])
def test_help_shows_whole_options_in_a_narrow_terminal_and_gives_flags_no_value(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([name, "--help"]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert "<bool>" not in printed
    assert "…" not in printed
    assert "--help " in printed


def test_the_commands_are_listed_with_whole_sentences(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    _, _, commands = capsys.readouterr().out.partition("Commands:\n")
    assert commands.splitlines()
    assert all(line.endswith(".") and not line.endswith("..") for line in commands.splitlines())


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"envsdk {version('envsdk')}\n"


def test_envs_lists_the_environments_that_ship(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs"]) == 0
    output = capsys.readouterr().out
    assert "envsdk/FrozenLake-v1" in output
    assert "envsdk/Sokoban-v1" in output


def test_train_explains_without_starting_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "agentic_sync.yaml", "seed=5", "--explain"]) == 0
    assert "override" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_train_hands_the_configuration_to_the_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    from envsdk.config import LoadedConfig

    runs: list[LoadedConfig] = []
    pipeline = ModuleType("envsdk.explorers.start")
    pipeline.run = runs.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, pipeline.__name__, pipeline)
    assert main(["train", "agentic_async.yaml", "max_steps=3"]) == 0
    assert [run.config.max_steps for run in runs] == [3]


def test_a_pipeline_that_fails_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(loaded: object) -> None:
        raise EnvsdkError("nothing worked")

    pipeline = ModuleType("envsdk.explorers.start")
    pipeline.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, pipeline.__name__, pipeline)
    assert main(["train", "agentic_async.yaml"]) == 1
    assert capsys.readouterr().err == "error: nothing worked\n"


def run_python(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=120, **options
    )  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize(
    "command", by_day([["-m", "envsdk", "train"]], [["-m", "envsdk.train"], ["-m", "envsdk", "train"]])
)
def test_the_process_itself_exits_2_on_a_wrong_key(command: list[str]) -> None:
    done = run_python(*command, "agentic_async.yaml", "max_stepz=3")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: agentic_async.yaml: 1 problem\n  max_stepz (override): unknown key")


def test_a_reader_that_goes_away_is_no_success_and_no_traceback() -> None:
    program = (
        "import sys; from envsdk.base.display.command_line import run_command;"
        "sys.exit(run_command(lambda: [print('x' * 1000) for _ in range(10**4)] and None)())"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=60) == 141
    process.stderr.close()


def test_a_full_disk_under_standard_output_is_no_success() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "envsdk.cli", "explain", "agentic_async.yaml"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=120,
        )
    assert done.returncode != 0
    assert "disk is full" in done.stderr


@pytest.mark.parametrize(
    ("module", "also_heavy"), [("envsdk.cli", {"pydantic"}), ("envsdk.train", set[str]())]
)
def test_the_command_line_imports_nothing_heavy(module: str, also_heavy: set[str]) -> None:
    modules = run_python("-c", f"import sys, {module}; print(*sys.modules)").stdout.split()
    heavy = {"torch", "ray", "transformers", "pyarrow", "omegaconf"} | also_heavy
    assert not heavy & set(modules)


@pytest.mark.parametrize(
    "number",
    [errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EPERM, errno.EIO, errno.EFBIG,
     errno.ENFILE, errno.ENOMEM],
)  # fmt: skip
def test_what_is_wrong_with_a_path_is_one_message(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert raising(OSError(number, os.strerror(number), "runs/x"))() == 1
    told = capsys.readouterr().err
    assert told.startswith("error: runs/x: ")
    assert told.count("\n") == 1


def test_an_error_that_quotes_somebody_else_does_not_act_on_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    attack = "\x1b]0;TITLE\x07"
    for error in (ConfigurationError(attack), RuntimeError(attack), typer.BadParameter(attack)):
        assert raising(error)() != 0
    shown = capsys.readouterr().err
    assert "\x1b" not in shown
    assert shown.count("\\x1b]0;TITLE\\x07") >= 3


@pytest.mark.parametrize("closed", by_day([">&- 2>&- <&-"], [">&-", "2>&-", ">&- 2>&- <&-"]))
def test_closed_streams_are_no_error_and_no_file_takes_their_place(closed: str, tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from envsdk.cli import main\n"
        "code = main(['explain', 'agentic_async.yaml'])\n"
        f"with open({str(tmp_path / 'file')!r}, 'w') as file: assert file.fileno() > 2\n"
        "sys.exit(code)"
    )
    run = subprocess.run(
        ["bash", "-c", f'exec {sys.executable} -c "$0" {closed}', code], capture_output=True, text=True
    )
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize(
    "override",
    [
        "exp_name=" + "a" * 256,
        'output_dir="a\\0b"',
        'pretrain="a\\0b"',
        'resume="a\\0b"',
        'custom_envs.FrozenLake.agent_template="{observation}\\0"',
    ],
)
def test_names_that_no_file_can_have_are_refused_before_anything_starts(
    override: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main(["agentic_async.yaml", override, "--explain"]) == 2
    told = capsys.readouterr().err
    assert override.partition("=")[0] in told
    assert "Traceback" not in told


def test_a_folder_whose_name_is_too_long_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main(["agentic_async.yaml", f"output_dir={tmp_path}/{'a' * 300}"]) in (1, 2)
    assert "name is too long" in capsys.readouterr().err
