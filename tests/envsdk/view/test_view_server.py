"""The viewer over HTTP: who is let in, what is answered, and that a run which goes on is kept up with."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from envsdk.base.store.shard_plan import plan_shards
from envsdk.base.store.shards import Manifest, record_shard
from envsdk.base.store.tally import Tally
from envsdk.base.store.trajectories import write_trajectories
from envsdk.tracking import JsonlTracker
from envsdk.tracking.timeline import Timeline
from envsdk.view import index as index_module
from envsdk.view import main
from envsdk.view.app import make_app
from envsdk.view.library import Library
from envsdk.view.page import ASSETS, SCRIPTS
from tests.envsdk.view.view_runs import ATTACK, STEPS, make_batch, make_trajectory, write_run, write_step

TOKEN = "a-token-for-tests-only"
HOST = "testserver"


def open_client(folder: Path, cache: Path) -> TestClient:
    """A client that was let in."""
    library = Library(folder, index_folder=cache)
    client = TestClient(make_app(library, token=TOKEN, hosts=frozenset({HOST})))
    assert client.get(f"/?token={TOKEN}").status_code == 200
    return client


def get(client: TestClient, path: str, status: int = 200, **params: str) -> Any:
    answer = client.get(f"/api/sources{path}", params=params)
    assert answer.status_code == status, answer.text
    return answer.json()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests wait for the index, however busy the machine is."""
    monkeypatch.setattr("envsdk.view.library._INDEX_WAIT_S", 60.0)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    folder = tmp_path_factory.mktemp("served")
    write_run(folder / "runs" / "tiny")
    (folder / "runs" / "data").mkdir()
    write_trajectories(
        folder / "runs" / "data" / "part-00000.parquet", [make_trajectory(1, with_tokens=False)]
    )
    return open_client(folder / "runs", folder / "cache")


@pytest.fixture(scope="module")
def run(client: TestClient) -> str:
    """`/ID` of the run."""
    return "/" + next(one["id"] for one in get(client, "")["sources"] if one["kind"] == "run")


def test_nobody_is_let_in_without_the_token(tmp_path: Path) -> None:
    library = Library(write_run(tmp_path / "run"), index_folder=tmp_path / "cache")
    app = make_app(library, token=TOKEN, hosts=frozenset({HOST}))
    stranger = TestClient(app)
    for path in ("/", "/api/sources", "/assets/view.css", "/?token=wrong", "/?token=", "/?token=%C3%A9"):
        answer = stranger.get(path)
        assert answer.status_code == 401
        assert "address that `envsdk view` printed" in answer.text
        assert "tiny" not in answer.text
    answer = stranger.get(f"/?token={TOKEN}&a=1", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/?a=1")
    for path in ("//evil.example/", "///evil.example", "/\\evil.example", "//evil.example/x"):
        away = stranger.get(f"http://{HOST}{path}?token={TOKEN}", follow_redirects=False)
        location = away.headers["location"]
        assert location.startswith(("/evil.example", "/%5Cevil.example")), "this host's own path"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert stranger.get("/api/sources").status_code == 200


def test_another_host_name_is_not_served(client: TestClient) -> None:
    """A page elsewhere that has its name lead here would otherwise read along."""
    for host in ("evil.example", "evil.example:80", f"{HOST}.evil.example", f"evil.example:{HOST}", ""):
        assert client.get("/api/sources", headers={"host": host}).status_code == 421
    for host in (HOST, f"{HOST}:8000"):
        assert client.get("/api/sources", headers={"host": host}).status_code in (200, 401)


def test_where_every_name_is_served_the_token_is_asked_for_all_the_same(tmp_path: Path) -> None:
    library = Library(write_run(tmp_path / "run"), index_folder=tmp_path / "cache")
    stranger = TestClient(make_app(library, token=TOKEN, hosts=None))
    headers = {"host": "training-machine:8000"}
    assert stranger.get("/api/sources", headers=headers).status_code == 401
    assert stranger.get(f"/?token={TOKEN}", headers=headers, follow_redirects=False).status_code == 303


def test_every_answer_forbids_what_the_page_does_not_need(client: TestClient) -> None:
    for path in ("/", "/api/sources", "/assets/main.js", "/nowhere", "/assets/app.py"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';")
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"


def test_the_page_names_nothing_outside(client: TestClient) -> None:
    page = client.get("/").text
    assert {name for name in ASSETS if f'"/assets/{name}"' in page} == ASSETS
    for name in ASSETS:
        content = client.get(f"/assets/{name}").text
        found = set(re.findall(r"https?://[^\s\"']+", content))
        assert found <= {"http://www.w3.org/2000/svg"}, name


def test_no_script_makes_markup_of_text() -> None:
    folder = Path(index_module.__file__).parent / "assets"
    for name in SCRIPTS:
        script = (folder / name).read_text()
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|Function\(", script
        ), name


def test_only_assets_are_served(client: TestClient) -> None:
    for name in ("page.html", "..%2Fapp.py", "%2e%2e/app.py", "view.css/x"):
        assert client.get(f"/assets/{name}").status_code in (404, 405)


def test_all_sources_are_listed_with_their_state(client: TestClient) -> None:
    data, tiny = get(client, "")["sources"]
    assert (data["name"], data["kind"]) == ("data", "data")
    assert (tiny["name"], tiny["kind"], tiny["state"]) == ("tiny", "run", "finished")
    assert (tiny["steps"], tiny["max_steps"], tiny["before"], tiny["after"]) == (STEPS, STEPS, 0.25, 0.75)


def test_an_overview_has_curves_settings_and_counts(client: TestClient, run: str) -> None:
    view = get(client, run)
    assert view["curves"]["success/mean"] == [
        [step, pytest.approx(0.2 + 0.1 * step)] for step in range(STEPS)
    ]
    assert ["batches ahead", "1"] in view["facts"]
    assert view["summary"]["count"] == 38
    assert view["problems"] == []


def test_a_list_is_filtered_and_names_what_else_there_is(client: TestClient, run: str) -> None:
    found = get(client, f"{run}/trajectories", tag="FrozenLake", use="train", limit="3", sort="-reward")
    assert found["total"] == 16
    assert len(found["rows"]) == 3
    rewards = [row["reward"] for row in found["rows"]]
    assert rewards == sorted(rewards, reverse=True)
    assert found["facets"]["tag"] == [["FrozenLake", 16], ["SimpleSokoban", 16]]
    error = get(client, f"{run}/trajectories", 400, reward_min="much")
    assert error == {"error": "reward_min: 'much' is not a number"}


def test_a_trajectory_has_its_tokens_and_its_place_in_the_list(client: TestClient, run: str) -> None:
    view = get(client, f"{run}/trajectories/step_000002:5", tag="SimpleSokoban", use="train")
    assert (view["tag"], view["step"], view["use"]) == ("SimpleSokoban", 2, "train")
    assert (view["before"], view["behind"]) == ("step_000002:4", "step_000002:6")
    assert (view["place"], view["total"]) == (9, 16)
    for turn in view["turns"]:
        assert "".join(turn["tokens"]["texts"]) == turn["reply"]
        assert len(turn["tokens"]["logprobs"]) == len(turn["tokens"]["ids"])
    for missing in ("step_000002:99", "step_999999:0", "nonsense"):
        assert "error" in get(client, f"{run}/trajectories/{missing}", 404)


def test_a_group_and_all_plays_of_a_task_come_side_by_side(client: TestClient, run: str) -> None:
    group = get(client, f"{run}/groups/train/3")
    assert [member["key"] for member in group["members"]] == [f"step_000001:{row}" for row in range(4, 8)]
    assert group["mean"] == pytest.approx(sum(m["reward"] for m in group["members"]) / 4)
    task = get(client, f"{run}/tasks/val/8")
    assert [member["step"] for member in task["members"]] == [4]
    assert "error" in get(client, f"{run}/groups/train/999", 404)


def test_texts_come_as_they_are_and_as_json_only(client: TestClient, run: str) -> None:
    answer = client.get(f"/api/sources{run}/trajectories/discarded_step_000001:1")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["turns"][0]["reply"] == ATTACK


def test_failures_are_counted_by_boundary(client: TestClient, run: str) -> None:
    view = get(client, f"{run}/failures")
    (row,) = view["failures"]
    assert (row["boundary"], row["kind"], row["count"]) == ("environment", "step_timeout", 1)
    assert [value for _, value in view["curves"]["failures/environment/step_timeout"]] == [0, 1, 0, 0]


def test_the_timeline_adds_up(client: TestClient, run: str) -> None:
    view = get(client, f"{run}/timeline")
    assert [lane["track"] for lane in view["lanes"]] == ["trainer", "generation", "publish"]
    expected = {"both": 2 * 4, "trainer_waits": 3 * 4, "engines_wait": 3 * 4, "publish": 4, "environments": 4}
    assert {name: seconds for name, seconds in view["waits"].items() if seconds} == pytest.approx(expected)


def test_a_data_set_of_a_policy_without_tokens_is_shown(client: TestClient) -> None:
    data = "/" + next(one["id"] for one in get(client, "")["sources"] if one["kind"] == "data")
    assert get(client, data)["summary"]["count"] == 1
    view = get(client, f"{data}/trajectories/part-00000:0")
    assert not view["has_tokens"]
    assert get(client, f"{data}/timeline")["lanes"] == []
    assert get(client, f"{data}/failures")["failures"] == []


def test_a_run_that_goes_on_is_kept_up_with(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", is_over=False)
    client = open_client(run, tmp_path / "cache")
    (source,) = get(client, "")["sources"]
    assert source["state"] == "running"
    at = f"/{source['id']}"
    before = get(client, at)
    count = get(client, f"{at}/trajectories", use="train")["total"]
    stamp = get(client, f"{at}/progress")["stamp"]
    assert get(client, f"{at}/progress")["stamp"] == stamp
    with Timeline(run / "timeline.json") as timeline:
        tracker = JsonlTracker(run / "metrics.jsonl")
        write_step(run, STEPS, tracker=tracker, timeline=timeline)
        tracker.close()
    progress = get(client, f"{at}/progress")
    assert progress["stamp"] != stamp
    assert progress["steps"] == STEPS + 1
    assert len(get(client, at)["curves"]["reward/mean"]) == len(before["curves"]["reward/mean"]) + 1
    assert get(client, f"{at}/trajectories/step_000004:0")["step"] == STEPS
    assert get(client, f"{at}/trajectories", use="train")["total"] == count + 8


def test_evaluations_of_another_program_are_those_of_the_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    client = open_client(run, tmp_path / "cache")
    at = f"/{get(client, '')['sources'][0]['id']}"
    before = get(client, at)
    (run / "bench").mkdir()
    bench = JsonlTracker(run / "bench" / "metrics.jsonl")
    bench.log(2, {"val/success/mean": 0.5}, time_unix_s=1e12)
    bench.close()
    (source,) = get(client, "")["sources"]
    after = get(client, at)
    assert source["id"] == at.removeprefix("/")
    assert [2, 0.5] in after["curves"]["val/success/mean"]
    assert after["curves"]["reward/mean"] == before["curves"]["reward/mean"]
    assert after["facts"] == before["facts"]


def test_a_collection_that_goes_on_says_how_far_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    plans = plan_shards({"FrozenLake": 4}, split="train", shard_size=2)
    manifest = Manifest(config={}, versions={}, command=["collect", "x"], num_planned=2, created_at="")
    states = []
    client = None
    for plan in plans:
        shard = [make_trajectory(plan.number, success=True), make_trajectory(9 + plan.number)]
        write_trajectories(folder / plan.file_name, shard)
        manifest.shards[plan.number] = record_shard(folder, plan, Tally.of(shard))
        manifest.save(folder)
        client = client or open_client(folder, tmp_path / "cache")
        (source,) = get(client, "")["sources"]
        states.append((source["state"], source["shards"], source["episodes"], source["success_rate"]))
        stamp = get(client, f"/{source['id']}/progress")["stamp"]
        assert stamp.startswith(source["state"])
    assert states == [("running", 1, 2, 0.5), ("finished", 2, 4, 0.5)]
    assert source["planned_shards"] == 2
    assert source["command"] == "collect x"


def test_a_new_run_appears_and_a_removed_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envsdk.view.library._RESCAN_S", -1.0)
    write_run(tmp_path / "runs" / "a")
    client = open_client(tmp_path / "runs", tmp_path / "cache")
    write_run(tmp_path / "runs" / "b")
    names = {one["name"]: one["id"] for one in get(client, "")["sources"]}
    assert list(names) == ["a", "b"]
    (tmp_path / "runs" / "a").rename(tmp_path / "elsewhere")
    assert [one["name"] for one in get(client, "")["sources"]] == ["b"]
    assert get(client, f"/{names['a']}", 404) == {"error": "there is no such run or data set any more"}


def test_an_empty_run_has_pages(tmp_path: Path) -> None:
    (tmp_path / "run" / "trajectories").mkdir(parents=True)
    client = open_client(tmp_path / "run", tmp_path / "cache")
    (source,) = get(client, "")["sources"]
    at = f"/{source['id']}"
    assert get(client, at)["curves"] == {}
    assert get(client, f"{at}/trajectories")["total"] == 0
    assert get(client, f"{at}/timeline")["lanes"] == []
    assert get(client, f"{at}/failures") == {
        "failures": [],
        "curves": {},
        "ended": [],
        "totals": [],
        "files_left_out": 0,
    }


def test_a_damaged_run_is_shown_as_far_as_it_can_be_read(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / "config.yaml").write_text("a: [1")
    metrics = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(metrics[:-20] + b"\xff\xfe")
    (run / "timeline.json").write_bytes(b"\x00\x01")
    (run / "trajectories" / "step_000003.parquet").write_bytes(b"PAR1")
    (run / "checkpoints" / "step_000004" / "model" / "tokenizer.json").write_text("{}")
    client = open_client(run, tmp_path / "cache")
    (source,) = get(client, "")["sources"]
    at = f"/{source['id']}"
    view = get(client, at)
    assert "step_000003.parquet" in view["problems"][-1]
    assert "config.yaml cannot be read" in view["problems"][0]
    assert view["curves"]["reward/mean"]
    shown = get(client, f"{at}/trajectories/step_000001:0")
    assert shown["has_tokens"]
    assert not shown["has_token_texts"]


def test_numbers_that_are_not_finite_are_shown_as_unknown(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    odd = []
    for number, value in enumerate((math.inf, -math.inf, math.nan)):
        made = make_trajectory(number, replies=("Left",))
        assert made.tokens is not None
        made.tokens.behavior_logprobs[-1] = value
        odd.append(replace(made, turns=(replace(made.turns[0], reward=value),), ended_at=value))
    write_trajectories(folder / "part-00000.parquet", odd)
    client = open_client(folder, tmp_path / "cache")
    at = f"/{get(client, '')['sources'][0]['id']}"
    assert get(client, at)["summary"]["by_tag"][0]["reward"] is None
    rows = get(client, f"{at}/trajectories", sort="reward")["rows"]
    assert [(row["reward"], row["seconds"], row["logprob"]) for row in rows] == [(None, None, None)] * 3
    assert get(client, f"{at}/groups/data/0")["mean"] is None
    assert get(client, f"{at}/trajectories/part-00000:0")["turns"][0]["tokens"]["logprobs"][-1] is None


def test_a_search_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(3):
        batch = [one for step in range(60) for one in make_batch(step)]
        write_trajectories(folder / f"part-{number:05d}.parquet", batch)
    client = open_client(folder, tmp_path / "cache")
    at = f"/{get(client, '')['sources'][0]['id']}/trajectories"
    assert get(client, at, q="push")["total"]
    monkeypatch.setattr(index_module, "SEARCH_LIMIT_S", -1.0)
    assert "took more than" in get(client, at, 400, q="push")["error"]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process of the command and the address it printed."""
    write_run(tmp_path / "tiny")
    command = [sys.executable, "-m", "envsdk.view", str(tmp_path / "tiny")]
    environment = {**os.environ, "ENVSDK_CACHE": str(tmp_path / "cache"), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    killer = threading.Timer(120, process.kill)
    killer.start()
    try:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S{16,}", process.stdout.readline())
        assert found
        yield process, found[0]
    finally:
        killer.cancel()
        process.kill()
        process.communicate()


def test_the_command_serves_on_loopback_until_it_is_interrupted(
    served: tuple[subprocess.Popen[str], str],
) -> None:
    process, address = served
    with httpx2.Client(follow_redirects=True) as http:
        assert http.get(address.partition("?")[0]).status_code == 401
        assert "envsdk view" in http.get(address).text
        base = address.partition("/?")[0]
        (source,) = http.get(f"{base}/api/sources").json()["sources"]
        trajectory = http.get(f"{base}/api/sources/{source['id']}/trajectories/step_000000:0", timeout=60)
        assert trajectory.json()["tag"] == "FrozenLake"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=90)
    assert (process.returncode, errors.strip()) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "there is no folder nowhere"),
        ([str(Path(__file__).parent)], "neither runs nor data sets"),
        ([".", "--port", "99999"], "--port"),
        (["run", "--host", "no.such.host.invalid"], "cannot serve on no.such.host.invalid:0: "),
        (["run", "--host", "192.0.2.1"], "cannot serve on 192.0.2.1:0: "),
    ],
)
def test_wrong_input_is_named_in_one_message(
    tmp_path: Path,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "run" / "trajectories").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert "Traceback" not in errors


def test_without_the_extra_serving_says_what_to_install_and_a_file_can_be_written(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    code = (
        "import sys; sys.modules['starlette'] = sys.modules['uvicorn'] = None\n"
        "from envsdk.view import main; sys.exit(main(sys.argv[1:]))"
    )
    environment = {**os.environ, "ENVSDK_CACHE": str(tmp_path / "cache")}

    def view(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, str(tmp_path / "run"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    served = view()
    assert served.returncode == 2
    assert "pip install 'envsdk[view]'" in served.stderr
    assert view("--export", str(tmp_path / "run.html")).returncode == 0
