from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
import ray

from envsdk.base.store.file_lock import locked
from envsdk.config import RayArgs
from envsdk.contracts.failures import ConfigurationError, EngineError
from envsdk.managers import ray_runtime
from envsdk.managers.ray_runtime import (
    KEPT_FOLDERS,
    LOCK,
    MAX_DEFAULT_OBJECT_STORE_BYTES,
    MIN_OBJECT_STORE_BYTES,
    Head,
    Watch,
    held_session,
    object_store_bytes,
    remove_session,
)

GB = 1024**3


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory:
        available = 4 * GB

    monkeypatch.setattr(ray_runtime.psutil, "virtual_memory", Memory)
    monkeypatch.setattr(ray_runtime, "_shared_memory_free", lambda: 1 * GB)


@pytest.mark.usefixtures("free")
def test_a_cluster_that_runs_on_this_machine_is_not_joined_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}

    def init(**kwargs: object) -> None:
        asked.update(kwargs)
        raise ConnectionError("enough seen")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(EngineError, match="enough seen"), ray_runtime.ray_runtime(RayArgs()):
        pass
    assert asked["address"] == "local"


@pytest.mark.usefixtures("free")
def test_a_ray_that_does_not_start_in_time_is_tried_again_and_is_no_bug(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def init(**_: object) -> None:
        started.append(subprocess.Popen(["sleep", "1000"]))
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", init)
    with (
        pytest.raises(EngineError, match=r"Ray cannot be started on this machine: .*timed out"),
        ray_runtime.ray_runtime(RayArgs()),
    ):
        pass
    *earlier, last = started
    assert len(earlier) == ray_runtime.START_TRIES - 1
    assert [process.wait() for process in earlier] == [-signal.SIGKILL] * len(earlier)
    last.kill()
    last.wait()


@pytest.mark.usefixtures("free")
def test_the_store_is_modest_by_default_and_what_was_asked_for_where_it_fits() -> None:
    assert object_store_bytes(None) == GB // 4
    assert object_store_bytes(GB) == GB


@pytest.mark.usefixtures("free")
def test_a_store_larger_than_shared_memory_is_refused_by_key_and_size() -> None:
    with pytest.raises(ConfigurationError, match=r"ray\.object_store_memory is 2048 MB but only 1024 MB"):
        object_store_bytes(2 * GB)


@pytest.mark.usefixtures("free")
def test_a_store_smaller_than_ray_takes_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=str(MIN_OBJECT_STORE_BYTES)):
        object_store_bytes(MIN_OBJECT_STORE_BYTES - 1)


def test_too_little_memory_for_any_store_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_runtime, "_shared_memory_free", lambda: 100 * 1024**2)
    with pytest.raises(ConfigurationError, match=r"too little memory .* set ray\.object_store_memory"):
        object_store_bytes(None)


def test_the_default_never_takes_more_than_a_run_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_runtime, "_shared_memory_free", lambda: 1000 * GB)
    assert object_store_bytes(None) <= MAX_DEFAULT_OBJECT_STORE_BYTES


@pytest.mark.system
def test_a_ray_started_here_listens_on_loopback_alone_joins_no_other_and_takes_its_folder_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with ray_runtime.ray_runtime(RayArgs(num_cpus=1)):
        folder = session_folder()
        assert folder.is_dir()
        parts = ray._private.worker._global_node.all_processes
        assert {*parts} == {"gcs_server", "raylet"}, "no dashboard that nobody asked for"
        started = parts.values()
        # A signal to this process's group, as `timeout` sends it, reaches none of them.
        assert os.getpgrp() not in {os.getpgid(each.process.pid) for kind in started for each in kind}
        assert ray.util.get_node_ip_address() == "127.0.0.1"
        me = psutil.Process()
        listening = {
            connection.laddr.ip
            for process in (me, *me.children(recursive=True))
            for connection in process.net_connections(kind="tcp")
            if connection.status == psutil.CONN_LISTEN
        }
        assert listening
        assert listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert not folder.exists()


@pytest.mark.system
def test_a_cluster_that_is_not_there_is_named() -> None:
    with (
        pytest.raises(EngineError, match=r"ray\.address=127\.0\.0\.1:1"),
        ray_runtime.ray_runtime(RayArgs(address="127.0.0.1:1")),
    ):
        raise AssertionError("joined a cluster that is not there")


def session_folder() -> Path:
    return Path(ray._private.worker._global_node.get_session_dir_path())


def test_folders_that_dead_programs_left_go_except_the_newest_and_those_of_others(tmp_path: Path) -> None:
    def session(second: int, pid: int) -> Path:
        folder = tmp_path / f"session_2026-11-23_10-00-{second:02d}_{pid}"
        folder.mkdir()
        return folder

    ended = subprocess.Popen(["true"])
    ended.wait()
    left = [session(second, ended.pid) for second in range(KEPT_FOLDERS + 3)]
    for folder in left:
        with pytest.raises(EngineError), held_session(folder):
            raise EngineError("the run failed")
    foreign, living = session(0, ended.pid + 1), session(0, os.getpid())
    (living / LOCK).touch()
    (tmp_path / "session_latest").symlink_to(left[0])
    elsewhere = session(1, ended.pid + 1)  # its program lives in a container with pids of its own
    with locked(elsewhere / LOCK, patience_s=0), held_session(session(59, ended.pid)):
        pass
    kept = {folder for folder in tmp_path.iterdir() if not folder.is_symlink()}
    assert kept == {foreign, living, elsewhere, *left[-KEPT_FOLDERS:]}


@pytest.mark.system
def test_rays_folder_stays_where_what_it_was_for_failed() -> None:
    sessions: list[Path] = []

    def fail() -> None:
        with ray_runtime.ray_runtime(RayArgs(num_cpus=1)):
            sessions.append(session_folder())
            raise EngineError("no engine answers")

    with pytest.raises(EngineError):
        fail()
    (failed,) = sessions
    assert (failed / "logs").is_dir()
    remove_session(failed)


KILLED = """
import sys, time
import psutil, ray
from envsdk.config import RayArgs
from envsdk.managers.ray_runtime import ray_runtime

@ray.remote
class Busy:
    def work(self):
        time.sleep(1000)

if_lost = [sys.executable, "-c", "import sys; print(sys.argv[1]); sys.exit(7)"]
with ray_runtime(RayArgs(num_cpus=1), if_lost=if_lost):
    waiting = Busy.remote().work.remote()
    node = ray._private.worker._global_node
    print(node.get_session_dir_path(), flush=True)
    psutil.Process(node.all_processes[sys.argv[1]][0].process.pid).kill()
    ray.get(waiting)
"""


@pytest.mark.system
@pytest.mark.parametrize(
    ("part", "told"),
    [("raylet", "node manager"), pytest.param("gcs_server", "control process", marks=pytest.mark.slow)],
)
def test_where_ray_dies_another_program_takes_over_and_nothing_stays_behind(part: str, told: str) -> None:
    run = subprocess.run([sys.executable, "-c", KILLED, part], capture_output=True, text=True, timeout=300)
    assert run.returncode == 7, run.stderr
    session, lost = run.stdout.splitlines()
    assert told in lost
    assert session in lost
    assert run.stderr == ""
    left = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert not [each for each in left if session in each]
    remove_session(Path(session))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("{ended.pid: 'the raylet died'}, program", "the raylet died"),
        (
            "{}, program, head=Head(address='10.0.0.1:6379', is_reachable=lambda: False, patience_s=0.0)",
            "Ray's head at 10.0.0.1:6379 has been out of reach for 0 s: its machine is gone, it was ended, "
            "or the network is cut",
        ),
    ],
)
def test_a_process_whose_ray_is_gone_is_replaced_by_one_that_says_so(arguments: str, expected: str) -> None:
    code = f"""
import signal, subprocess, sys
from envsdk.managers import ray_runtime
from envsdk.managers.ray_runtime import Head, Watch

ray_runtime.LOOK_AT_HEAD_S = 0.01
program = [sys.executable, "-c", "import sys; print(sys.argv[1:])"]
ended = subprocess.Popen(["sleep", "100"])
watch = Watch({arguments})
ended.kill()
signal.pause()
"""
    lost = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert re.sub(r"for \d+ s", "for 0 s", lost.stdout.strip()) == repr([expected])


def test_a_head_that_answers_again_in_time_is_not_given_up() -> None:
    answers = iter([False, False, True])
    asked = threading.Event()

    def is_reachable() -> bool:
        answer = next(answers, None)
        if answer is None:
            asked.set()
        return answer is not False

    head = Head(address="10.0.0.1:6379", is_reachable=is_reachable, patience_s=1000.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray_runtime, "LOOK_AT_HEAD_S", 0.01)
        watch = Watch({}, ["/bin/false"], head=head)
        assert asked.wait(60)
        watch.end()


@pytest.mark.parametrize(
    ("error", "answers"),
    [
        (OSError(errno.EMFILE, "Too many open files"), True),
        (OSError(errno.ENFILE, "Too many open files in system"), True),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), False),
        (TimeoutError("timed out"), False),
    ],
)
def test_a_head_that_this_process_cannot_ask_for_want_of_descriptors_is_not_out_of_reach(
    monkeypatch: pytest.MonkeyPatch, error: OSError, answers: bool
) -> None:
    def connect(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(ray_runtime.socket, "create_connection", connect)
    assert ray_runtime._answers("10.0.0.1:6379") is answers
